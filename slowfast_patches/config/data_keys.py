"""The keys of clips and of the method: MULTIGRID, DATA, AVA, MIXUP, AUG and DATA_LOADER."""

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
    SIZE,
    above_zero_to,
    from_to,
    key,
    one_of,
)

__all__ = ["Aug", "Ava", "Data", "DataLoading", "Mixup", "Multigrid"]

_DETECTS = "DETECTION.ENABLE True"


@dataclass(frozen=True)
class Multigrid:
    epoch_factor: float = key(1.5, "Length over the baseline's (paper: 1.5).", above_zero_to(100))
    short_cycle: bool = key(False, "Change the crop from iteration to iteration.")
    short_cycle_factors: tuple[float, ...] = key(
        (0.5, 0.5**0.5), "The short cycle's crops as factors of DATA.TRAIN_CROP_SIZE.", FACTORS
    )
    long_cycle: bool = key(False, "Change frames and crop from phase to phase.")
    long_cycle_factors: tuple[tuple[float, float], ...] = key(
        ((0.25, 0.5**0.5), (0.5, 0.5**0.5), (0.5, 1.0), (1.0, 1.0)),
        "The long cycle's shapes as factors (frames, crop).",
        LONG_CYCLE,
    )
    bn_base_size: int = key(
        8, "Clips that share batch normalisation statistics at the long cycle's crop.", AT_LEAST_ONE
    )
    eval_freq: int = key(3, "Evaluations per shape of the long cycle.", from_to(1, 1000))
    size_divisor: int = key(
        1,
        "Crops of coarser grids are rounded to multiples of it: 1 has the paper's sizes (158 of "
        "224), 16 sizes that GPUs like better (160).",
        AT_LEAST_ONE,
    )
    batch_exponent: float = key(
        1.0,
        "How the batch grows on coarser grids: B times T/t · (H/h)² to the power of this; the "
        "rate follows it. 1 is the paper's Equation 1; 0, B clips always, is progressive "
        "resizing (EfficientNetV2, Tan and Le, 2021, section 4).",
        PART,
        needs=CYCLE,
    )
    equal_time: bool = key(
        False,
        "Shapes of a long cycle take equal times, as their pixels say, where the paper's take "
        "equal iterations, which is the same at BATCH_EXPONENT 1.",
        needs="MULTIGRID.LONG_CYCLE True",
    )
    keep_field_of_view: bool = key(
        False,
        "Short sides of coarse grids are drawn from [min · h/H, max · h/H] of "
        "DATA.TRAIN_JITTER_SCALES, so that their crops show as much as the baseline's, not from "
        "the paper's [min · h/H, max] (section 4).",
        needs=CYCLE,
    )
    warmup_in_epochs: bool = key(
        False,
        "The warm-up ends after SOLVER.WARMUP_EPOCHS passes over the data, as in later releases "
        "of PySlowFast, or where False ends it, if that is earlier. False scales it as all "
        "lengths are. Both are our reading: the paper does not say.",
        needs=CYCLE,
    )
    fine_tuning: bool = key(
        True,
        "The last stage of the rate is the fine-tuning phase. Without, it has the cycles and "
        "its own rate as the stages before: our reading of section 4.2, where that costs 0.4 "
        "points.",
        needs=CYCLE,
    )


@dataclass(frozen=True)
class Data:
    path_to_data_dir: str = key("", "Folder of the lists.", may_differ=True)
    path_prefix: str = key("", "Stands before the paths in the lists.", may_differ=True)
    path_label_separator: str = key(
        " ", "Between path and label in a line of a csv file; the two characters \\t are a tab."
    )
    num_frames: int = key(8, "Frames of a clip.", SIZE)
    sampling_rate: int = key(8, "Frames of the video for each of a clip.", AT_LEAST_ONE)
    clip_sampling: str = key(
        "auto",
        "Where a clip's frames are: segments takes one from each of NUM_FRAMES equal parts of "
        "the video (TSN, Wang et al., 2016), stride takes them from a part of it, SAMPLING_RATE "
        "apart; auto is segments for ssv2, where the paper has strides (section 6), and "
        "strides for all others.",
        one_of("auto", "stride", "segments"),
    )
    exact_strides: bool = key(
        False,
        "Frames are a stride apart, as the paper's. PySlowFast spreads them from the span's "
        "first frame to its last: 16 frames of stride 2 are 2.07 apart, 2 of stride 8 are 15.",
        needs="DATA.CLIP_SAMPLING auto stride",
    )
    target_fps: int = key(
        30,
        "Frames a second that SAMPLING_RATE counts in; 0: the video's own, as the paper's "
        "(footnote 5).",
        FROM_ZERO,
    )
    train_crop_size: int = key(224, "Pixels of a training clip's sides.", CROP)
    random_flip: bool = key(True, "Flip half of the training clips horizontally.")
    reverse_input_channel: bool = key(False, "Feed BGR instead of RGB.")
    inv_uniform_sample: bool = key(
        False,
        "Draw the inverse of a training clip's short side uniformly, not the short side itself.",
    )
    multi_label: bool = key(
        False,
        "Several labels per video: MODEL.LOSS_FUNC bce_logit, MODEL.HEAD_ACT sigmoid, judged by "
        "mAP.",
    )
    ensemble_method: str = key(
        "sum", "How a video's score comes from those of its views.", one_of("sum", "max")
    )
    max_frame_pixels: int = key(
        1 << 26,
        "Larger frames are refused before they are decoded, which would take their memory: 8192 "
        "× 8192, almost twice the largest picture of any level of H.264, HEVC and AV1.",
        AT_LEAST_ONE,
        may_differ=True,
    )
    max_video_frames: int = key(
        1 << 22,
        "Video files of more frames, those of sound included, are refused: 38 hours at 30 frames "
        "a second. A scan takes about 250 bytes of memory for each.",
        AT_LEAST_ONE,
        may_differ=True,
    )
    max_frame_bytes: int = key(
        1 << 28,
        "Larger JPEG files, and video files with a larger coded frame, are refused.",
        AT_LEAST_ONE,
        may_differ=True,
    )
    max_read_seconds: float = key(
        30.0,
        "A video whose scan, or whose clip, takes more processor time than this and a tenth of a "
        "second for each frame is unreadable.",
        ABOVE_ZERO,
        may_differ=True,
    )
    max_bad_fraction: float = key(
        0.05,
        "A run stops when more than this part of the videos of an epoch, or of an evaluation, "
        "cannot be decoded.",
        PART,
        may_differ=True,
    )
    num_train_videos: int = key(
        0,
        "Training videos that the recipe expects: what a plan counts with where no csv file is "
        "at hand.",
    )
    crop_size: int = 224
    mean: tuple[float, ...] = (0.45, 0.45, 0.45)
    input_channel_num: tuple[int, ...] = (3, 3)
    std: tuple[float, ...] = (0.225, 0.225, 0.225)
    train_jitter_scales: tuple[int, int] = (256, 320)
    test_crop_size: int = 256


@dataclass(frozen=True)
class Ava:
    frame_dir: str = key(
        "", "Stands before the paths in the lists.", may_differ=True, needs=_DETECTS
    )
    frame_list_dir: str = key("", "Folder of the lists.", may_differ=True, needs=_DETECTS)
    annotation_dir: str = key(
        "",
        "Folder of the files below. Empty, like that of the lists: DATA.PATH_TO_DATA_DIR.",
        may_differ=True,
        needs=_DETECTS,
    )
    train_lists: tuple[str, ...] = key(
        ("train.csv",), 'Frame lists, or csv files of video files, "path 0" a line.', needs=_DETECTS
    )
    test_lists: tuple[str, ...] = key(("val.csv",), "Those of evaluation.", needs=_DETECTS)
    train_gt_box_lists: tuple[str, ...] = key(
        ("ava_train_v2.2.csv",), "Annotated boxes to train on.", needs=_DETECTS
    )
    train_predict_box_lists: tuple[str, ...] = key(
        (), "A detector's boxes to train on, with labels.", needs=_DETECTS
    )
    test_predict_box_lists: tuple[str, ...] = key(
        ("ava_val_predicted_boxes.csv",),
        "A detector's boxes to evaluate on; empty: the annotated ones.",
        needs=_DETECTS,
    )
    detection_score_thresh: float = key(0.9, "Least score of these.", PART, needs=_DETECTS)
    full_test_on_val: bool = key(False, "Validate on all seconds, not each fourth.", needs=_DETECTS)
    label_map_file: str = key(
        "ava_action_list_v2.2_for_activitynet_2019.pbtxt",
        "Names of the classes that are evaluated.",
        needs=_DETECTS,
    )
    exclusion_file: str = key(
        "ava_val_excluded_timestamps_v2.2.csv", "Key frames to leave out, if any.", needs=_DETECTS
    )
    groundtruth_file: str = key(
        "ava_val_v2.2.csv", "Annotated boxes of evaluation.", needs=_DETECTS
    )


@dataclass(frozen=True)
class Mixup:
    enable: bool = key(
        False,
        "Blend clips of a mini-batch, and their labels, with their neighbours in the stream: "
        "mixup or cutmix, of each clip one.",
        speed=True,
    )
    alpha: float = key(
        0.8,
        "Mixup (Zhang et al., 2018): a clip's share is of Beta(ALPHA, ALPHA); 0 is cutmix only.",
        FROM_ZERO,
        needs="MIXUP.ENABLE True",
    )
    cutmix_alpha: float = key(
        1.0,
        "Cutmix (Yun et al., 2019): a box of all frames is the neighbour's, its share of "
        "Beta(CUTMIX_ALPHA, CUTMIX_ALPHA); 0 is mixup only.",
        FROM_ZERO,
        needs="MIXUP.ENABLE True",
    )
    prob: float = key(1.0, "Part of the clips that are blended.", PART, needs="MIXUP.ENABLE True")
    switch_prob: float = key(
        0.5,
        "Part of these that are cutmix, where both alphas are above 0.",
        PART,
        needs="MIXUP.ENABLE True",
    )


@dataclass(frozen=True)
class Aug:
    enable: bool = key(
        False,
        "Augment training clips, all frames of one alike: by RandAugment or by jitter of colours, "
        "then by random erasing.",
    )
    aa_type: str = key(
        "rand-m9-mstd0.5-inc1",
        "RandAugment (Cubuk et al., 2020); empty: none.",
        RAND_AUGMENT,
        needs="AUG.ENABLE True",
    )
    color_jitter: float = key(
        0.4,
        "Without AA_TYPE, the largest change of brightness, contrast and colour, each times a "
        "factor from 1 - this to 1 + this.",
        PART,
        needs="AUG.ENABLE True",
    )
    re_prob: float = key(
        0.25,
        "Part of the clips that lose boxes (random erasing, Zhong et al., 2020).",
        PART,
        needs="AUG.ENABLE True",
    )
    re_mode: str = key(
        "pixel",
        "What boxes are filled with: pixel is noise, const the colour of DATA.MEAN.",
        one_of("pixel", "const"),
        needs="AUG.ENABLE True",
    )
    re_count: int = key(
        1, "Boxes, which share the area of one.", AT_LEAST_ONE, needs="AUG.ENABLE True"
    )


@dataclass(frozen=True)
class DataLoading:
    num_workers: int | str = key(
        "auto",
        "Processes that read clips for each process that trains; auto picks from the cores.",
        AUTO_OR_COUNT,
        may_differ=True,
    )
    pin_memory: bool = key(True, "Clips in page-locked memory.", may_differ=True)
    enable_multi_thread_decode: bool = key(False, "Decode in threads.", may_differ=True)
