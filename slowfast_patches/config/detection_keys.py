"""Keys of detection: DETECTION and AVA."""

from __future__ import annotations

from dataclasses import dataclass

from slowfast_patches.config.fields import AT_LEAST_ONE, PART, key, only_with

_DETECTS = only_with("DETECTION.ENABLE", True)


@dataclass(frozen=True)
class Detection:
    enable: bool = key(
        False,
        "Classify boxes at key frames, as in AVA, instead of whole videos. If this key is not set, "
        "its value follows from TRAIN.DATASET.",
        speed=True,
    )
    aligned: bool = key(
        True,
        "Shift the boxes of ROIAlign by half a pixel to align them with pixel centres. Earlier "
        "releases of PySlowFast correspond to False.",
        needs=_DETECTS,
    )
    spatial_scale_factor: int = key(
        16,
        "Stride of the last feature map in pixels: 4 times the product of all "
        "RESNET.SPATIAL_STRIDES.",
        AT_LEAST_ONE,
        needs=_DETECTS,
    )
    roi_xform_resolution: int = key(
        7,
        "Height and width of the feature map that ROIAlign computes for a box.",
        AT_LEAST_ONE,
        needs=_DETECTS,
    )


@dataclass(frozen=True)
class Ava:
    frame_dir: str = key(
        "",
        "Folder that is prepended to the paths in the lists.",
        may_differ=True,
        needs=_DETECTS,
    )
    frame_list_dir: str = key(
        "",
        "Folder of the lists of frames. Empty: DATA.PATH_TO_DATA_DIR.",
        may_differ=True,
        needs=_DETECTS,
    )
    annotation_dir: str = key(
        "",
        "Folder of the files of boxes, classes and excluded key frames. Empty: "
        "DATA.PATH_TO_DATA_DIR.",
        may_differ=True,
        needs=_DETECTS,
    )
    train_lists: tuple[str, ...] = key(
        ("train.csv",),
        "Lists of training frames. To read video files instead of frames, csv files that have a "
        'line "path 0" for each video file.',
        needs=_DETECTS,
    )
    test_lists: tuple[str, ...] = key(
        ("val.csv",), "Lists for evaluation, in the format of TRAIN_LISTS.", needs=_DETECTS
    )
    train_gt_box_lists: tuple[str, ...] = key(
        ("ava_train_v2.2.csv",), "Files of annotated boxes to train on.", needs=_DETECTS
    )
    train_predict_box_lists: tuple[str, ...] = key(
        (), "Files of detected boxes with labels to train on.", needs=_DETECTS
    )
    test_predict_box_lists: tuple[str, ...] = key(
        ("ava_val_predicted_boxes.csv",),
        "Files of detected boxes to evaluate on. Empty: evaluate on the annotated boxes.",
        needs=_DETECTS,
    )
    detection_score_thresh: float = key(
        0.9, "Minimum detection score of a detected box.", PART, needs=_DETECTS
    )
    full_test_on_val: bool = key(
        False,
        "Validate on the key frames of all seconds instead of every fourth second.",
        needs=_DETECTS,
    )
    label_map_file: str = key(
        "ava_action_list_v2.2_for_activitynet_2019.pbtxt",
        "File with the names of the evaluated classes.",
        needs=_DETECTS,
    )
    exclusion_file: str = key(
        "ava_val_excluded_timestamps_v2.2.csv",
        "File with the key frames to exclude. The file may be absent.",
        needs=_DETECTS,
    )
    groundtruth_file: str = key(
        "ava_val_v2.2.csv", "File with the annotated boxes for evaluation.", needs=_DETECTS
    )
