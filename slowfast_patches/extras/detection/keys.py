"""Keys of detection: DETECTION and AVA."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from slowfast_patches.config.fields import (
    AT_LEAST_ONE,
    PART,
    ExtraKeys,
    key,
    only_with,
    speed_key,
)

_detection_key = partial(key, needs=only_with("DETECTION.ENABLE", True))


@dataclass(frozen=True)
class DetectionKeys(ExtraKeys):
    enable: bool = speed_key(
        False,
        "Classify boxes at key frames, as in AVA, instead of whole videos. If this key is not set, "
        "its value follows from TRAIN.DATASET.",
    )
    aligned: bool = _detection_key(
        True,
        "Shift the boxes of ROIAlign by half a pixel to align them with pixel centres. Earlier "
        "releases of PySlowFast correspond to False.",
    )
    spatial_scale_factor: int = _detection_key(
        16,
        "Stride of the last feature map in pixels: 4 times the product of all "
        "RESNET.SPATIAL_STRIDES.",
        AT_LEAST_ONE,
    )
    roi_xform_resolution: int = _detection_key(
        7,
        "Height and width of the feature map that ROIAlign computes for a box.",
        AT_LEAST_ONE,
    )


@dataclass(frozen=True)
class AvaKeys(ExtraKeys):
    frame_dir: str = _detection_key(
        "",
        "Folder that is prepended to the paths in the lists.",
        may_differ=True,
        private=True,
    )
    frame_list_dir: str = _detection_key(
        "",
        "Folder of the lists of frames. Empty: DATA.PATH_TO_DATA_DIR.",
        may_differ=True,
        private=True,
    )
    annotation_dir: str = _detection_key(
        "",
        "Folder of the files of boxes, classes and excluded key frames. Empty: "
        "DATA.PATH_TO_DATA_DIR.",
        may_differ=True,
        private=True,
    )
    train_lists: tuple[str, ...] = _detection_key(
        ("train.csv",),
        "Lists of training frames. To read video files instead of frames, csv files that have a "
        'line "path 0" for each video file.',
    )
    test_lists: tuple[str, ...] = _detection_key(
        ("val.csv",), "Lists for evaluation, in the format of TRAIN_LISTS."
    )
    train_gt_box_lists: tuple[str, ...] = _detection_key(
        ("ava_train_v2.2.csv",), "Files of annotated boxes to train on."
    )
    train_predict_box_lists: tuple[str, ...] = _detection_key(
        (), "Files of detected boxes with labels to train on."
    )
    test_predict_box_lists: tuple[str, ...] = _detection_key(
        ("ava_val_predicted_boxes.csv",),
        "Files of detected boxes to evaluate on. Empty: evaluate on the annotated boxes.",
    )
    detection_score_thresh: float = _detection_key(
        0.9, "Minimum detection score of a detected box.", PART
    )
    full_test_on_val: bool = _detection_key(
        False,
        "Validate on the key frames of all seconds instead of every fourth second.",
    )
    label_map_file: str = _detection_key(
        "ava_action_list_v2.2_for_activitynet_2019.pbtxt",
        "File with the names of the evaluated classes.",
    )
    exclusion_file: str = _detection_key(
        "ava_val_excluded_timestamps_v2.2.csv",
        "File with the key frames to exclude. The file may be absent.",
    )
    groundtruth_file: str = _detection_key(
        "ava_val_v2.2.csv", "File with the annotated boxes for evaluation."
    )
