"""Keys of the method and of clips: MULTIGRID, DATA, AVA, MIXUP, AUG and DATA_LOADER."""

from __future__ import annotations

from dataclasses import dataclass

from slowfast_patches.config.fields import (
    ABOVE_ZERO,
    AT_LEAST_ONE,
    AUTO_OR_COUNT,
    CROP,
    CYCLE,
    FACTORS,
    FROM_ZERO,
    LONG_CYCLE,
    PART,
    RAND_AUGMENT,
    REGISTERED,
    SIZE,
    above_zero_to,
    from_to,
    key,
    one_of,
)

_DETECTS = "DETECTION.ENABLE True"
_MIXES = "MIXUP.ENABLE True"
_AUGMENTS = "AUG.ENABLE True"


@dataclass(frozen=True)
class Multigrid:
    epoch_factor: float = key(
        1.5, "Epochs relative to the baseline's (paper: 1.5).", above_zero_to(100)
    )
    short_cycle: bool = key(False, "Change the crop at each iteration.")
    short_cycle_factors: tuple[float, ...] = key(
        (0.5, 0.5**0.5),
        "Crops of the short cycle, as factors of DATA.TRAIN_CROP_SIZE.",
        FACTORS,
    )
    long_cycle: bool = key(False, "Change the number of frames and the crop at each phase.")
    long_cycle_factors: tuple[tuple[float, float], ...] = key(
        ((0.25, 0.5**0.5), (0.5, 0.5**0.5), (0.5, 1.0), (1.0, 1.0)),
        "Shapes of the long cycle, as factors [frames, crop].",
        LONG_CYCLE,
    )
    bn_base_size: int = key(
        8,
        "Number of clips that share batch normalisation statistics at the crop of the long cycle.",
        AT_LEAST_ONE,
    )
    eval_freq: int = key(3, "Evaluations per shape of the long cycle.", from_to(1, 1000))
    size_divisor: int = key(
        1,
        "Round the crops of coarse shapes to a multiple of this. 1 gives the crops of the paper, "
        "such as 158 for 224. 16 gives crops that GPUs compute faster, such as 160.",
        AT_LEAST_ONE,
    )
    batch_exponent: float = key(
        1.0,
        "Growth of the batch size: a coarse shape of t frames and crop h has B · (T/t · (H/h)²)^x "
        "clips, where x is this value. The learning rate follows the number of clips. 1 is "
        "Equation 1 of the paper. 0 always takes B clips, as progressive resizing does "
        "(EfficientNetV2, Tan and Le, 2021, section 4).",
        PART,
        needs=CYCLE,
    )
    equal_time: bool = key(
        False,
        "Give the shapes of a long cycle equal times, estimated from their pixels. The paper gives "
        "them equal numbers of iterations. The two are the same with BATCH_EXPONENT 1.",
        needs="MULTIGRID.LONG_CYCLE True",
    )
    keep_field_of_view: bool = key(
        False,
        "Draw the short sides of coarse shapes from [min · h/H, max · h/H] of "
        "DATA.TRAIN_JITTER_SCALES, so that a crop shows as much of the frame as the baseline's. "
        "False draws from [min · h/H, max], as the paper does (section 4).",
        needs=CYCLE,
    )
    warmup_in_epochs: bool = key(
        False,
        "End the warm-up after SOLVER.WARMUP_EPOCHS passes over the data, as later releases of "
        "PySlowFast do, or at the point where False ends it, whichever comes first. False scales "
        "the warm-up like all other lengths. The paper does not say which it uses.",
        needs=CYCLE,
    )
    fine_tuning: bool = key(
        True,
        "Use the last learning-rate stage as the fine-tuning phase. With False, the last stage has "
        "the cycles and a rate of its own, like the other stages. This is our reading of section "
        "4.2 of the paper, where it costs 0.4 points.",
        needs=CYCLE,
    )


@dataclass(frozen=True)
class Data:
    path_to_data_dir: str = key(
        "", "Folder of the lists of videos, such as train.csv.", may_differ=True
    )
    path_prefix: str = key(
        "", "Folder that is prepended to the paths in the lists.", may_differ=True
    )
    path_label_separator: str = key(
        " ",
        "Separator of path and label in a line of a csv file. The two characters `\\t` stand for "
        "a tab.",
    )
    num_frames: int = key(8, "Number of frames in a clip.", SIZE)
    sampling_rate: int = key(
        8,
        "Temporal stride: frames of the video from one frame of the clip to the next.",
        AT_LEAST_ONE,
    )
    clip_sampling: str = key(
        "auto",
        "How the frames of a clip are chosen. stride takes frames that are SAMPLING_RATE apart. "
        "segments divides the video into NUM_FRAMES equal segments and takes one frame from each "
        "(TSN, Wang et al., 2016). auto is segments for ssv2 and stride otherwise. The paper uses "
        "strides for ssv2, too (section 6).",
        one_of("auto", "stride", "segments"),
    )
    exact_strides: bool = key(
        False,
        "Take frames that are exactly one stride apart, as the paper does. False spreads them "
        "evenly from the first to the last frame of the span, as PySlowFast does: 16 frames of "
        "stride 2 are then 2.07 apart, and 2 frames of stride 8 are 15 apart.",
        needs="DATA.CLIP_SAMPLING auto stride",
    )
    target_fps: int = key(
        30,
        "Frame rate in which SAMPLING_RATE is counted. 0 is the frame rate of the video itself, as "
        "in the paper (footnote 5).",
        FROM_ZERO,
    )
    train_crop_size: int = key(224, "Height and width of a training clip in pixels.", CROP)
    random_flip: bool = key(True, "Flip half of the training clips horizontally.")
    reverse_input_channel: bool = key(False, "Feed BGR instead of RGB.")
    inv_uniform_sample: bool = key(
        False,
        "Draw the inverse of a training clip's short side uniformly, instead of the short side.",
    )
    multi_label: bool = key(
        False,
        "A video may have several labels, and the metric is mAP. If left out, it follows from "
        "TRAIN.DATASET.",
    )
    ensemble_method: str = key(
        "sum", "How the scores of a video's views are combined.", one_of("sum", "max")
    )
    max_frame_pixels: int = key(
        1 << 26,
        "Refuse to decode larger frames, which would exhaust the memory. The default is 8192 × "
        "8192, almost twice the largest picture of any level of H.264, HEVC and AV1.",
        AT_LEAST_ONE,
        may_differ=True,
    )
    max_video_frames: int = key(
        1 << 22,
        "Refuse video files with more frames, including audio frames. The default is 38 hours at "
        "30 frames per second. A scan takes about 250 bytes of memory per frame.",
        AT_LEAST_ONE,
        may_differ=True,
    )
    max_frame_bytes: int = key(
        1 << 28,
        "Refuse larger JPEG files, and video files with a larger coded frame.",
        AT_LEAST_ONE,
        may_differ=True,
    )
    max_read_seconds: float = key(
        30.0,
        "Treat a video as unreadable if its scan or one of its clips takes more processor time "
        "than this many seconds plus 0.1 s per frame.",
        ABOVE_ZERO,
        may_differ=True,
    )
    max_bad_fraction: float = key(
        0.05,
        "Stop the run if more than this fraction of the videos of an epoch or of an evaluation "
        "cannot be decoded.",
        PART,
        may_differ=True,
    )
    num_train_videos: int = key(
        0,
        "Number of training videos that the recipe expects. A plan uses it if there is no csv "
        "file.",
    )
    crop_size: int = key(
        224, "Crop for which the test-time pooling of the head is made. Follows TRAIN_CROP_SIZE."
    )
    mean: tuple[float, ...] = key((0.45, 0.45, 0.45), "Mean of the pixels of each channel.")
    input_channel_num: tuple[int, ...] = key(
        (3, 3), "Number of input channels of each pathway. Follows MODEL.ARCH."
    )
    std: tuple[float, ...] = key(
        (0.225, 0.225, 0.225), "Standard deviation of the pixels of each channel."
    )
    train_jitter_scales: tuple[int, int] = key(
        (256, 320), "Range of the short side of a training video in pixels, before it is cropped."
    )
    test_crop_size: int = key(256, "Height and width of a test clip in pixels.")


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
        "Folder of the lists. Empty: DATA.PATH_TO_DATA_DIR.",
        may_differ=True,
        needs=_DETECTS,
    )
    annotation_dir: str = key(
        "",
        "Folder of the annotation files below. Empty: DATA.PATH_TO_DATA_DIR.",
        may_differ=True,
        needs=_DETECTS,
    )
    train_lists: tuple[str, ...] = key(
        ("train.csv",),
        'Lists of training frames, or csv files of video files with a line "path 0" for each.',
        needs=_DETECTS,
    )
    test_lists: tuple[str, ...] = key(
        ("val.csv",), "The same lists for evaluation.", needs=_DETECTS
    )
    train_gt_box_lists: tuple[str, ...] = key(
        ("ava_train_v2.2.csv",), "Annotated boxes to train on.", needs=_DETECTS
    )
    train_predict_box_lists: tuple[str, ...] = key(
        (), "Boxes of a detector, with labels, to train on.", needs=_DETECTS
    )
    test_predict_box_lists: tuple[str, ...] = key(
        ("ava_val_predicted_boxes.csv",),
        "Boxes of a detector to evaluate on. Empty: the annotated boxes.",
        needs=_DETECTS,
    )
    detection_score_thresh: float = key(
        0.9, "Minimum score of a detector's box.", PART, needs=_DETECTS
    )
    full_test_on_val: bool = key(
        False, "Validate on all seconds instead of every fourth.", needs=_DETECTS
    )
    label_map_file: str = key(
        "ava_action_list_v2.2_for_activitynet_2019.pbtxt",
        "Names of the evaluated classes.",
        needs=_DETECTS,
    )
    exclusion_file: str = key(
        "ava_val_excluded_timestamps_v2.2.csv",
        "Key frames to exclude. The file is optional.",
        needs=_DETECTS,
    )
    groundtruth_file: str = key(
        "ava_val_v2.2.csv", "Annotated boxes for evaluation.", needs=_DETECTS
    )


@dataclass(frozen=True)
class Mixup:
    enable: bool = key(
        False,
        "Blend the clips of a mini-batch in pairs, together with their labels, by mixup or by "
        "cutmix.",
        speed=True,
    )
    alpha: float = key(
        0.8,
        "Mixup (Zhang et al., 2018): the weight of a clip is drawn from Beta(ALPHA, ALPHA). 0 uses "
        "cutmix only.",
        FROM_ZERO,
        needs=_MIXES,
    )
    cutmix_alpha: float = key(
        1.0,
        "Cutmix (Yun et al., 2019): a box in all frames comes from the other clip of the pair. Its "
        "share of the area is drawn from Beta(CUTMIX_ALPHA, CUTMIX_ALPHA). 0 uses mixup only.",
        FROM_ZERO,
        needs=_MIXES,
    )
    prob: float = key(1.0, "Fraction of the clips that are blended.", PART, needs=_MIXES)
    switch_prob: float = key(
        0.5,
        "Fraction of the blended clips that use cutmix, if both alphas are above 0.",
        PART,
        needs=_MIXES,
    )


@dataclass(frozen=True)
class Aug:
    enable: bool = key(
        False,
        "Augment training clips by RandAugment or colour jitter, then by random erasing. All "
        "frames of a clip change in the same way.",
    )
    aa_type: str = key(
        "rand-m9-mstd0.5-inc1",
        "RandAugment (Cubuk et al., 2020). Empty: off.",
        RAND_AUGMENT,
        needs=_AUGMENTS,
    )
    color_jitter: float = key(
        0.4,
        "Strength of colour jitter: brightness, contrast and colour are each multiplied by a "
        "factor from 1 - this to 1 + this. AA_TYPE replaces it.",
        PART,
        needs=f"{_AUGMENTS} and AUG.AA_TYPE ''",
    )
    re_prob: float = key(
        0.25,
        "Fraction of the clips with random erasing (Zhong et al., 2020).",
        PART,
        needs=_AUGMENTS,
    )
    re_mode: str = key(
        "pixel",
        "Filling of erased boxes: pixel is noise, const is the colour DATA.MEAN.",
        one_of("pixel", "const"),
        needs=_AUGMENTS,
    )
    re_count: int = key(
        1,
        "Number of erased boxes in a clip. They share the area of one box.",
        AT_LEAST_ONE,
        needs=_AUGMENTS,
    )
    custom: tuple[str, ...] = key(
        (),
        "Augmentations of your own, in this order after all others. A module of IMPORTS registers "
        "them.",
        REGISTERED,
        needs=_AUGMENTS,
    )


@dataclass(frozen=True)
class DataLoading:
    num_workers: int | str = key(
        "auto",
        "DataLoader workers for each training process. auto chooses by the number of cores.",
        AUTO_OR_COUNT,
        may_differ=True,
    )
    pin_memory: bool = key(True, "Load clips into pinned memory.", may_differ=True)
    enable_multi_thread_decode: bool = key(
        False, "Decode videos with several threads.", may_differ=True
    )
