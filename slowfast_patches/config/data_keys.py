"""Keys of multigrid training and of the data: MULTIGRID, DATA, DATA_LOADER."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from multigrid.grids import SHORT_VIDEOS
from slowfast_patches.config.fields import (
    ABOVE_ZERO,
    AT_LEAST_ONE,
    AUTO_OR_COUNT,
    CROP,
    FACTORS,
    FROM_ZERO,
    LONG_CYCLE,
    PART,
    POSITIVE_RGB,
    RGB,
    STAGE_TABLE,
    Check,
    free_key,
    from_to,
    key,
    one_of,
    only_with,
    training_key,
    with_cycle,
    with_shapes,
)
from slowfast_patches.registry import TASKS


@dataclass(frozen=True)
class Multigrid:
    epoch_factor: float = key(
        1.5,
        "Number of epochs divided by the baseline's number of epochs (paper: 1.5).",
        ABOVE_ZERO,
    )
    short_cycle: bool = key(False, "Change the crop size at each iteration.")
    short_cycle_factors: tuple[float, ...] = key(
        (0.5, 0.5**0.5),
        "Crop sizes of the short cycle, as factors of DATA.TRAIN_CROP_SIZE.",
        FACTORS,
    )
    long_cycle: bool = key(False, "Change the number of frames and the crop size at each phase.")
    long_cycle_factors: tuple[tuple[float, float], ...] = key(
        ((0.25, 0.5**0.5), (0.5, 0.5**0.5), (0.5, 1.0), (1.0, 1.0)),
        "Shapes of the long cycle, as factors [frames, crop] of DATA.NUM_FRAMES and "
        "DATA.TRAIN_CROP_SIZE.",
        LONG_CYCLE,
    )
    bn_base_size: int = key(
        8,
        "Number of clips that share batch normalisation statistics at the crop size of the long "
        "cycle. With 0, the clips of each process share them, so the result depends on the number "
        "of processes.",
        FROM_ZERO,
    )
    eval_freq: int = key(
        3,
        "Number of evaluations in each phase of the long cycle, or in each of STAGES. 0 evaluates "
        "every TRAIN.EVAL_PERIOD epochs, as without a long cycle.",
        from_to(0, 1000),
    )
    size_divisor: int = key(
        1,
        "Round crop sizes below the baseline's to a multiple of this value. 1 gives the crop sizes "
        "of the paper, such as 158 for 224. With 16, a crop size is 160 instead of 158, which GPUs "
        "compute faster.",
        AT_LEAST_ONE,
    )
    batch_exponent: float = key(
        1.0,
        "Exponent x of the batch size. If the baseline has B clips of T frames and crop size H, a "
        "shape of t frames and crop size h has B · (T/t · (H/h)²)^x clips. The learning rate is "
        "scaled with the number of clips. 1 is Equation 1 of the paper. With 0, the batch size is "
        "constant, as in progressive resizing (EfficientNetV2, Tan and Le, 2021, section 4).",
        PART,
        needs=with_cycle,
    )
    batch_by: str = key(
        "pixels",
        "Quantity that is the same for the iterations of all shapes: pixels (as in the paper), "
        "flops (FLOPs of training), or a file of benchmarks/step_time.py (.json) for the step "
        "time. Batch sizes are rounded to BN groups, and to 8 clips without BN.",
        Check(
            lambda value: value in ("pixels", "flops") or value.endswith(".json"),
            "pixels, flops, or a .json file",
        ),
        needs=with_cycle,
        private=True,
    )
    equal_time: bool = key(
        False,
        "Train for about the same time on each shape of a long cycle, estimated from the number of "
        "pixels. False trains for the same number of iterations on each shape, as the paper does. "
        "With BATCH_EXPONENT 1, True and False give the same schedule.",
        needs=only_with("MULTIGRID.LONG_CYCLE", True),
    )
    keep_field_of_view: bool = key(
        False,
        "If the crop size h is below the baseline's crop size H, draw the short side of a video "
        "from [min · h/H, max · h/H], where [min, max] is DATA.TRAIN_JITTER_SCALES. A crop then "
        "shows as much of the frame as in the baseline. False draws the short side from "
        "[min · h/H, max], as the paper does (section 4).",
        needs=with_shapes,
    )
    warmup_in_epochs: bool = key(
        True,
        "True ends the warm-up after SOLVER.WARMUP_EPOCHS epochs, as in later releases of "
        "PySlowFast. False gives the warm-up the same fraction of all iterations as in the "
        "baseline. If the warm-up would be longer with True than with False, it ends as with "
        "False. The paper does not say which rule it uses.",
        needs=with_cycle,
    )
    fine_tuning: bool = key(
        True,
        "Use the last learning-rate stage for fine-tuning at the baseline's shape. With False, the "
        "last stage has a long cycle and its own learning rate, like the other stages. False is "
        "our reading of an ablation in section 4.2 of the paper, in which the accuracy is 0.4 "
        "points lower.",
        needs=with_cycle,
    )
    stages: tuple[Mapping[str, Any], ...] = key(
        (),
        "Schedule as a table, instead of cycles. Each row is a stage: `shape: [clips of one "
        "machine, frames, crop]`, or a list of shapes to take in turn; `until`, the epoch at which "
        "the stage ends; `rate`, the learning rate, or `[first, last]` for a linear change (by "
        "default that of SOLVER.LR_POLICY at the epoch); `bn_group_size` (by default "
        "BN_BASE_SIZE). The last stage ends at SOLVER.MAX_EPOCH.",
        STAGE_TABLE,
    )


@dataclass(frozen=True)
class Data:
    path_to_data_dir: str = free_key(
        "",
        "Folder with the lists of videos, such as train.csv. It may be in a bucket: s3://bucket/k400.",
        machine=True,
        private=True,
    )
    path_prefix: str = free_key(
        "",
        "Folder that is prepended to the paths in the lists. It may be in a bucket.",
        machine=True,
        private=True,
    )
    path_label_separator: str = training_key(
        " ",
        "Separator between path and label in a line of a csv file. Write `\\t` for a tab.",
    )
    num_frames: int = key(8, "Number of frames in a clip.", from_to(1, 2**16))
    sampling_rate: int = key(
        8,
        "Temporal stride: number of video frames from one frame of a clip to the next.",
        AT_LEAST_ONE,
    )
    clip_sampling: str = key(
        "auto",
        "How the frames of a clip are chosen. stride takes frames that are SAMPLING_RATE apart. "
        "segments divides the video into NUM_FRAMES equal segments and takes one frame from each "
        "(TSN, Wang et al., 2016). auto means segments for ssv2 and stride for all other data "
        "sets. For ssv2, the paper uses stride (section 6).",
        one_of("auto", "stride", "segments"),
    )
    exact_strides: bool = key(
        False,
        "Take frames that are exactly one stride apart, as the paper does. False spreads the "
        "frames evenly from the first to the last frame of the span, as PySlowFast does. For "
        "example, 16 frames of stride 2 are then 2.07 frames apart, and 2 frames of stride 8 are "
        "15 frames apart.",
        needs=only_with("DATA.CLIP_SAMPLING", "auto", "stride"),
    )
    short_videos: str = key(
        "repeat_last",
        "What a clip shows after the end of a video that is shorter than the clip: repeat_last "
        "repeats the last frame, as PySlowFast does, wrap starts the video again, and error ends "
        "the run. Clips around a key frame repeat the first and last frame.",
        one_of(*SHORT_VIDEOS),
        needs=only_with("DATA.CLIP_SAMPLING", "auto", "stride"),
    )
    target_fps: int = key(
        30,
        "Frame rate at which SAMPLING_RATE counts frames. 0 means the frame rate of each video, as "
        "in the paper (footnote 5).",
        FROM_ZERO,
    )
    train_crop_size: int = key(
        224,
        "Height and width of a training clip in pixels.",
        CROP,
    )
    random_flip: bool = training_key(
        True,
        "Flip half of the training clips horizontally.",
    )
    reverse_input_channel: bool = key(False, "Feed BGR instead of RGB.")
    inv_uniform_sample: bool = training_key(
        False,
        "Draw the inverse of the short side of a training video uniformly, instead of the short "
        "side itself.",
    )
    multi_label: bool = key(
        False,
        "A video may have several labels, and the metric is mAP. If this key is not set, its value "
        "follows from TRAIN.DATASET.",
    )
    task: str = key(
        "",
        "Name of a task that a module of IMPORTS has registered. Empty: other keys, such as "
        "DATA.MULTI_LABEL, select the task. If this key is not set, its value follows from "
        "TRAIN.DATASET.",
        Check(lambda name: not name or name in TASKS, "empty, or the name of a registered task"),
    )
    ensemble_method: str = key(
        "sum", "How the scores of all views of a video are combined.", one_of("sum", "max")
    )
    max_bad_fraction: float = free_key(
        0.05,
        "Stop the run if more than this fraction of the videos of an epoch or of an evaluation "
        "cannot be decoded.",
        PART,
    )
    num_train_videos: int = training_key(
        0,
        "Number of training videos that the recipe expects. A plan uses this number if there is no "
        "list of training videos.",
        FROM_ZERO,
        may_differ=True,
    )
    mean: tuple[float, ...] = key((0.45, 0.45, 0.45), "Mean of the pixels of each channel.", RGB)
    std: tuple[float, ...] = key(
        (0.225, 0.225, 0.225), "Standard deviation of the pixels of each channel.", POSITIVE_RGB
    )
    train_jitter_scales: tuple[int, int] = training_key(
        (256, 320),
        "Range [min, max] in pixels from which the short side of a training video is drawn. The "
        "video is resized to that short side before cropping.",
    )
    test_crop_size: int = key(256, "Height and width of a test clip in pixels.", AT_LEAST_ONE)


@dataclass(frozen=True)
class DataLoading:
    num_workers: int | str = free_key(
        "auto",
        "Number of DataLoader workers for each training process. auto chooses the number from the "
        "CPU cores.",
        AUTO_OR_COUNT,
        machine=True,
    )
    pin_memory: bool = free_key(True, "Load clips into pinned memory.")
