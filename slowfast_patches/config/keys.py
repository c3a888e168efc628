"""The config's keys, a row for each of ours, of the later releases and of the host's that need one.

To add a key, add its row here and its field to config/recipe.py; all else follows from the row:
its default, its check, whether a run may be continued with another value, its line in docs/keys.md.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import slowfast.config.defaults as host_defaults
from fvcore.common.config import CfgNode

from slowfast_patches.utils.tables import format_list

__all__ = [
    "AUTO_OR_COUNT",
    "AUTO_OR_SWITCH",
    "KEYS",
    "PER_PATHWAY",
    "Check",
    "Key",
    "add_multigrid_config",
    "find_key",
    "flatten",
    "format_keys",
    "get_cfg",
    "may_differ",
    "speed_keys",
    "speed_switches",
]


class Check(NamedTuple):
    """Whether a value can be, and in words, which can: "KEY must be `wanted`"."""

    passes: Callable[[Any], bool]
    wanted: str


def one_of(*choices: object) -> Check:
    return Check(lambda value: value in choices, format_list(choices, "or"))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_factors(values: Any) -> bool:
    return isinstance(values, tuple) and all(_is_number(x) and 0 < x <= 1 for x in values)


def _is_long_cycle(values: tuple[Any, ...]) -> bool:
    return values[-1:] == ((1, 1),) and all(_are_factors(x) and len(x) == 2 for x in values)


AT_LEAST_ONE = Check(lambda value: value >= 1, "1 or more")
FROM_ZERO = Check(lambda value: value >= 0, "0 or more")
ABOVE_ZERO = Check(lambda value: value > 0, "above 0")
BELOW_ONE = Check(lambda value: 0 <= value < 1, "in [0, 1), where 0 is off")
RATIO = Check(lambda value: 0 < value <= 1, "in (0, 1]")
PART = Check(lambda value: 0 <= value <= 1, "in [0, 1]")
AUTO_OR_COUNT = Check(lambda value: value == "auto" or value >= 0, "0 or more, or auto")
AUTO_OR_SWITCH = Check(lambda value: value in (False, True, "auto"), "True, False or auto")
NUMBERS = Check(lambda values: all(map(_is_number, values)), "a list of numbers")
FACTORS = Check(lambda x: len(x) > 0 and _are_factors(x), "a list of factors in (0, 1]")
LONG_CYCLE = Check(_is_long_cycle, "a list of [frames, crop], factors in (0, 1], the last [1, 1]")
SHIFT = Check(lambda value: value == 0 or value >= 2, "2 or more, or 0 for no shift")
CROP = Check(lambda value: value >= 32, "32 pixels or more")
CSV = Check(lambda value: not value or value.endswith(".csv"), "a name that ends in .csv")
WEIGHTS = one_of("pytorch", "caffe2")

_HEADER = """# Keys

Written from the rows of slowfast_patches/config/keys.py by

    python -c "from slowfast_patches.config.keys import format_keys as f; print(f())" > docs/keys.md"""  # noqa: E501

HOST: Any = object()
"""The default of a key that the host has, and whose default stays."""

ABSENT: Any = object()
"""The default of a key, or of a section's keys, that recipes may have and the config has not."""


@dataclass(frozen=True)
class Key:
    """A key and what it means.

    comment: what it is; of a key without effect, why, and what to write instead.
    may_differ: whether a run that continues a checkpoint may have another value.
    speed: whether step times are only of recipes that have the same value.
    switch: whether True only makes iterations faster; `speed` is then True as well.
    no_effect: whether it is accepted and changes nothing, `name` may then end in ".*".
    quiet: values of a key without effect, beside the default, that are not warned of.
    """

    name: str
    default: Any
    comment: str
    check: Check | None = None
    may_differ: bool = False
    speed: bool = False
    switch: bool = False
    no_effect: bool = False
    quiet: tuple[object, ...] = ()


_GROUPS = "Clips share statistics by number: BN.GROUP_SIZE, with a cycle MULTIGRID.BN_BASE_SIZE."
_NO_DEMO = "There is no demo on a camera or a single file; leave the section out."
_FILLED = "The baseline's mini-batch is what the recipe's own keys say; write "

# fmt: off
KEYS: tuple[Key, ...] = (
    # The method.
    Key("MULTIGRID.EPOCH_FACTOR", 1.5, "Length over the baseline's (paper: 1.5).", ABOVE_ZERO),
    Key("MULTIGRID.SHORT_CYCLE", False, "Change the crop from iteration to iteration."),
    Key("MULTIGRID.SHORT_CYCLE_FACTORS", [0.5, 0.5**0.5], "The short cycle's crops as factors of "
        "DATA.TRAIN_CROP_SIZE.", FACTORS),
    Key("MULTIGRID.LONG_CYCLE", False, "Change frames and crop from phase to phase."),
    Key("MULTIGRID.LONG_CYCLE_FACTORS",
        [[0.25, 0.5**0.5], [0.5, 0.5**0.5], [0.5, 1.0], [1.0, 1.0]],
        "The long cycle's shapes as factors (frames, crop).", LONG_CYCLE),
    Key("MULTIGRID.BN_BASE_SIZE", 8, "Clips that share batch normalisation statistics at the long "
        "cycle's crop.", AT_LEAST_ONE),
    Key("MULTIGRID.EVAL_FREQ", 3, "Evaluations per shape of the long cycle.", AT_LEAST_ONE),
    Key("MULTIGRID.SIZE_DIVISOR", 1, "Crops of coarser grids are rounded to multiples of it: 1 has "
        "the paper's sizes (158 of 224), 16 sizes that GPUs like better (160).", AT_LEAST_ONE),
    Key("MULTIGRID.BATCH_EXPONENT", 1.0, "How the batch grows on coarser grids: B times T/t · "
        "(H/h)² to the power of this; the rate follows it. 1 is the paper's Equation 1; 0, B clips "
        "always, is progressive resizing (EfficientNetV2, Tan and Le, 2021, section 4).", PART),
    Key("MULTIGRID.EQUAL_TIME", False, "Shapes of a long cycle take equal times, as their pixels "
        "say, where the paper's take equal iterations, which is the same at BATCH_EXPONENT 1."),
    Key("MULTIGRID.KEEP_FIELD_OF_VIEW", False, "Short sides of coarse grids are drawn from "
        "[min · h/H, max · h/H] of DATA.TRAIN_JITTER_SCALES, so that their crops show as much as "
        "the baseline's, not from the paper's [min · h/H, max] (section 4)."),
    Key("MULTIGRID.WARMUP_IN_EPOCHS", False, "The warm-up takes SOLVER.WARMUP_EPOCHS passes over "
        "the data, as in later releases of PySlowFast, and ends within the first shapes. The "
        "paper's is scaled with the schedule."),
    Key("MULTIGRID.SHORT_CYCLE_AT_END", True, "The last phase of fine-tuning has the short cycle, "
        "as the paper's; without, it has the shape that is tested and no other (the train-test "
        "resolution discrepancy, Touvron et al., 2019)."),

    # The host's AVA; a loop of one's own may train the model that it makes.
    Key("DETECTION.ENABLE", HOST, "Detection, which is not trained here.", one_of(False)),

    # Batch normalisation.
    Key("BN.GROUP_SIZE", 0, "Clips that share statistics where no cycle is on, on however many "
        "processes; 0: those that each process has. With a cycle: MULTIGRID.BN_BASE_SIZE.",
        FROM_ZERO),

    # The model.
    Key("MODEL.ARCH", HOST, "The architecture. nopool is the host's for C2D and I3D that keep all "
        "frames; the others pool pairs of them after the first stage. slow is slowonly, hf a video "
        "transformer of the package transformers (HF).",
        one_of("slowfast", "slowonly", "c2d", "c2d_nopool", "i3d", "i3d_nopool", "tsm", "hf"),
        speed=True),
    Key("MODEL.SINGLE_PATHWAY_ARCH",
        ["c2d", "i3d", "slowonly", "slow", "c2d_nopool", "i3d_nopool", "tsm", "hf"],
        "Architectures of one pathway."),
    Key("MODEL.MODEL_NAME", "SlowFast", "Follows from MODEL.ARCH."),
    Key("MODEL.NUM_CLASSES", HOST, "Classes of the data set.", AT_LEAST_ONE, speed=True),
    Key("MODEL.HEAD_ACT", "softmax", "What makes scores of the head's outputs in evaluation: "
        "softmax, or sigmoid for several labels a video."),
    Key("MODEL.LABEL_SMOOTHING", 0.0, "Part of a clip's label that is spread evenly over all "
        "classes in the training's loss (Szegedy et al., 2016, section 7).", BELOW_ONE),
    Key("MODEL.EMA_DECAY", 0.0, "Decay an iteration of an exponential moving average of the "
        "weights, which is evaluated beside them (Polyak and Juditsky, 1992).",
        BELOW_ONE, speed=True),
    Key("MODEL.CHANNELS_LAST", False, "Clips and weights with a pixel's channels side by side, as "
        "tensor cores read them.", may_differ=True, speed=True, switch=True),
    Key("MODEL.ACT_CHECKPOINT", False, "Compute a block's activations anew in the backward pass "
        "instead of keeping them.", may_differ=True, speed=True),
    Key("TSM.SHIFT_DIV", 8, "MODEL.ARCH tsm: 1/SHIFT_DIV of the channels move one frame back, as "
        "many one frame forward; 0 moves none.", SHIFT, speed=True),
    Key("HF.MODEL", "videomae", "MODEL.ARCH hf: a type of model (videomae, timesformer, vivit or "
        "vjepa2), which starts from scratch, or a folder with a config.json and, if there are "
        "any, weights to start from in *.safetensors. Nothing is fetched.", speed=True),
    Key("HF.CONFIG", {}, "Values of the model's configuration, such as hidden_size, others than "
        "its type's or its folder's; on the command line also one by one, HF.CONFIG.hidden_size "
        "192. Grid and classes follow from DATA and MODEL.NUM_CLASSES.", speed=True),
    Key("HF.DROP_PATH", 0.0, "Chance that a clip skips a residual branch of the last layer, "
        "rising linearly from 0 at the first (stochastic depth, Huang et al., 2016).", BELOW_ONE),
    Key("SLOWFAST.ALPHA", HOST, "Frames of the fast pathway for each of the slow one.",
        AT_LEAST_ONE, speed=True),
    Key("SLOWFAST.BETA_INV", HOST, "Channels of the slow pathway for each of the fast one.",
        AT_LEAST_ONE, speed=True),
    Key("SLOWFAST.FUSION_CONV_CHANNEL_RATIO", HOST, "Fused channels for each fast.", speed=True),
    Key("SLOWFAST.FUSION_KERNEL_SZ", HOST, "Frames of the fusing kernel.", speed=True),
    # The host's basic_transform cannot be built: it does not take the host's own arguments.
    Key("RESNET.TRANS_FUNC", HOST, "Of blocks.", one_of("bottleneck_transform"), speed=True),
    Key("RESNET.DEPTH", HOST, "50 or 101 layers.", speed=True),
    Key("RESNET.NUM_GROUPS", HOST, "Groups of a block's convolution.", speed=True),
    Key("RESNET.WIDTH_PER_GROUP", HOST, "Channels of the first blocks.", speed=True),
    Key("RESNET.INPLACE_RELU", HOST, "ReLU in place.", speed=True),
    Key("RESNET.STRIDE_1X1", HOST, "Stride in a block's first convolution.", speed=True),
    Key("RESNET.NUM_BLOCK_TEMP_KERNEL", HOST, "Blocks with a temporal kernel.", speed=True),
    Key("RESNET.SPATIAL_STRIDES", HOST, "Stride of each stage.", speed=True),
    Key("RESNET.SPATIAL_DILATIONS", HOST, "Dilation of each stage.", speed=True),
    Key("NONLOCAL.LOCATION", HOST, "Blocks that a non-local one follows.", speed=True),
    Key("NONLOCAL.GROUP", HOST, "Parts of a clip.", speed=True),
    Key("NONLOCAL.POOL", HOST, "Pooling of what is looked at.", speed=True),
    Key("NONLOCAL.INSTANTIATION", HOST, "dot_product or softmax.", speed=True),

    # Data.
    Key("DATA.PATH_TO_DATA_DIR", HOST, "Folder of the lists.", may_differ=True),
    Key("DATA.PATH_PREFIX", HOST, "Stands before the paths in the lists.", may_differ=True),
    Key("DATA.PATH_LABEL_SEPARATOR", " ", "Between path and label in a line of a csv file; the two "
        r"characters \t are a tab."),
    Key("DATA.NUM_FRAMES", HOST, "Frames of a clip.", AT_LEAST_ONE),
    Key("DATA.SAMPLING_RATE", HOST, "Frames of the video for each of a clip.", AT_LEAST_ONE),
    Key("DATA.CLIP_SAMPLING", "auto", "Where a clip's frames are: segments takes one from each of "
        "NUM_FRAMES equal parts of the video (TSN, Wang et al., 2016), stride takes them from a "
        "part of it, SAMPLING_RATE apart; auto is what the data set is known for.",
        one_of("auto", "stride", "segments")),
    Key("DATA.EXACT_STRIDES", False, "Frames are a whole stride apart. PySlowFast spreads them "
        "from the span's first frame to its last: 16 frames of stride 2 are 2.07 apart, 2 of "
        "stride 8 are 15."),
    Key("DATA.REPEATED_CLIPS", 1, "Clips that training takes of a video in a row; those of one "
        "mini-batch are read in one pass (Hoffer et al., 2020). More than one cost accuracy where "
        "it was measured.", AT_LEAST_ONE),
    Key("DATA.TARGET_FPS", 30, "Frames a second that SAMPLING_RATE counts in.", AT_LEAST_ONE),
    Key("DATA.TRAIN_CROP_SIZE", HOST, "Pixels of a training clip's sides.", CROP),
    Key("DATA.RANDOM_FLIP", True, "Flip half of the training clips horizontally."),
    Key("DATA.REVERSE_INPUT_CHANNEL", False, "Feed BGR instead of RGB."),
    Key("DATA.INV_UNIFORM_SAMPLE", False, "Draw the inverse of a training clip's short side "
        "uniformly, not the short side itself."),
    Key("DATA.MULTI_LABEL", False, "Several labels per video: MODEL.LOSS_FUNC bce_logit, "
        "MODEL.HEAD_ACT sigmoid, judged by mAP."),
    Key("DATA.ENSEMBLE_METHOD", "sum", "How a video's score comes from those of its views.",
        one_of("sum", "max")),
    Key("DATA.MAX_FRAME_PIXELS", 1 << 26, "Larger frames are refused before they are decoded, "
        "which would take their memory: 8192 × 8192, almost twice the largest picture of any "
        "level of H.264, HEVC and AV1.", AT_LEAST_ONE, may_differ=True),
    Key("DATA.MAX_BAD_FRACTION", 0.05, "A run stops when more than this part of the videos of an "
        "epoch, or of an evaluation, cannot be decoded.", PART, may_differ=True),
    Key("DATA.NUM_TRAIN_VIDEOS", 0, "Training videos that the recipe expects: what a plan counts "
        "with where no csv file is at hand."),
    Key("MIXUP.ENABLE", False, "Blend clips of a mini-batch, and their labels, with their "
        "neighbours in the stream: mixup or cutmix, of each clip one.", speed=True),
    Key("MIXUP.ALPHA", 0.8, "Mixup (Zhang et al., 2018): a clip's share is of Beta(ALPHA, ALPHA); "
        "0 is cutmix only.", FROM_ZERO),
    Key("MIXUP.CUTMIX_ALPHA", 1.0, "Cutmix (Yun et al., 2019): a box of all frames is the "
        "neighbour's, its share of Beta(CUTMIX_ALPHA, CUTMIX_ALPHA); 0 is mixup only.", FROM_ZERO),
    Key("MIXUP.PROB", 1.0, "Part of the clips that are blended.", PART),
    Key("MIXUP.SWITCH_PROB", 0.5, "Part of these that are cutmix, where both alphas are above 0.",
        PART),
    Key("DATA_LOADER.NUM_WORKERS", "auto", "Processes that read clips for each process that "
        "trains; auto picks from the cores.", AUTO_OR_COUNT, may_differ=True),
    Key("DATA_LOADER.PIN_MEMORY", HOST, "Clips in page-locked memory.", may_differ=True),
    Key("DATA_LOADER.ENABLE_MULTI_THREAD_DECODE", HOST, "Decode in threads.", may_differ=True),

    # The solver.
    # Epochs are numbers, not counts: shortened recipes have fractions of one.
    Key("SOLVER.MAX_EPOCH", 300.0, "Epochs of the baseline.", ABOVE_ZERO),
    Key("SOLVER.WARMUP_EPOCHS", 0.0, "Epochs of the warm-up."),
    Key("SOLVER.LR_POLICY", HOST, "How the rate falls.",
        one_of("cosine", "steps_with_relative_lrs")),
    Key("SOLVER.STEPS", HOST, "Epochs at which stages start, from 0.", NUMBERS),
    Key("SOLVER.LRS", HOST, "Rates of the stages over BASE_LR; empty: powers of GAMMA.", NUMBERS),
    Key("SOLVER.BASE_LR", HOST, "The learning rate.", ABOVE_ZERO),
    Key("SOLVER.COSINE_END_LR", 0.0, "The rate that the cosine policy ends at."),
    Key("SOLVER.BATCH_RATE_RULE", "linear", "How rates follow the clips of a mini-batch, in the "
        "long cycle and wherever else they do: linear multiplies them by as much (Goyal et al., "
        "2017), sqrt by its square root (Krizhevsky, 2014), for adam and adamw (Malladi et al., "
        "2022).", one_of("linear", "sqrt")),
    Key("SOLVER.BASE_LR_SCALE_NUM_SHARDS", False, "Multiply the rates by NUM_SHARDS, or what "
        "BATCH_RATE_RULE makes of it."),
    Key("SOLVER.REFERENCE_BATCH_SIZE", 0, "Clips of a global mini-batch that BASE_LR and "
        "COSINE_END_LR belong to: they are multiplied by batch / this, or what BATCH_RATE_RULE "
        "makes of it. WARMUP_START_LR is not: a warm-up starts at BASE_LR as it is written (Goyal "
        "et al., 2017). 0 is off.", FROM_ZERO),
    Key("SOLVER.REFERENCE_WORLD_SIZE", 0, "GPUs of one machine that the recipe's TRAIN.BATCH_SIZE "
        "and learning rates were written for: both are scaled to the processes of the run, the "
        "rates by BATCH_RATE_RULE. 0 is off.", FROM_ZERO, may_differ=True),
    Key("SOLVER.OPTIMIZING_METHOD", HOST, "The host's sgd and adam; torch's adamw with the host's "
        "moments (Loshchilov and Hutter, 2019); lars (You, Gitman and Ginsburg, 2017).",
        one_of("sgd", "adam", "adamw", "lars"), speed=True),
    Key("SOLVER.LARS_TRUST", 0.001, "lars: the trust coefficient, by which a weight's rate is "
        "multiplied beside the ratio of its norm to its gradient's.", ABOVE_ZERO),
    Key("SOLVER.LAYER_DECAY", 1.0, "MODEL.ARCH hf: the rate of a layer is this times that of the "
        "layer behind it; the head has the whole, embeddings the smallest (BEiT, Bao et al., "
        "2022). 1 is off.", RATIO),
    Key("SOLVER.CLIP_GRAD_VAL", None, "Largest value of a gradient; None clips nothing."),
    Key("SOLVER.CLIP_GRAD_L2NORM", None, "Largest L2 norm of all gradients; None clips nothing."),
    Key("SOLVER.ZERO_WD_1D_PARAM", False, "No weight decay for biases and other parameters of one "
        "dimension, and for a transformer's positions and tokens."),
    Key("SOLVER.ACCUMULATION_STEPS", 1, "Parts that a process's clips of an iteration pass the "
        "network in, one after another, for less memory: the gradients are summed, the training "
        "is the same, TRAIN.BATCH_SIZE and the rates stay.", AT_LEAST_ONE,
        may_differ=True, speed=True),
    Key("SOLVER.FUSED", False, "Update all parameters in one kernel (sgd, adam and adamw).",
        may_differ=True, speed=True, switch=True),

    # The training and the test.
    Key("TRAIN.BATCH_SIZE", HOST, "Clips of one machine's mini-batch.", AT_LEAST_ONE),
    Key("TRAIN.MIXED_PRECISION", False, "Compute in bfloat16 where that is exact enough, or in "
        "float16 with a scaled loss on a GPU that has no bfloat16; auto: on a GPU, and on a "
        "processor with avx512_bf16 or AMX.", AUTO_OR_SWITCH, speed=True, switch=True),
    Key("TRAIN.TF32", True, "Let a GPU round the factors of float32 products to 10 bits of "
        "mantissa.", speed=True, switch=True),
    Key("TRAIN.CUDNN_BENCHMARK", True, "Let cuDNN try its convolutions at each shape and take the "
        "fastest.", may_differ=True, speed=True, switch=True),
    Key("TRAIN.DETERMINISTIC", False, "Give the same numbers in every run on the same machine, "
        "where that takes slower kernels too.", may_differ=True, speed=True),
    Key("TRAIN.COMPILE", False, "Compile the network for each shape, before the training begins.",
        may_differ=True, speed=True, switch=True),
    Key("TRAIN.CUDA_GRAPHS", False, "Record each shape's kernels once and launch them as one CUDA "
        "graph.", may_differ=True, speed=True, switch=True),
    Key("TRAIN.EVAL_PERIOD", HOST, "Epochs from evaluation to evaluation, without the long cycle.",
        AT_LEAST_ONE, may_differ=True),
    Key("TRAIN.CHECKPOINT_PERIOD", HOST, "Epochs from checkpoint to checkpoint.",
        AT_LEAST_ONE, may_differ=True),
    Key("TRAIN.CHECKPOINTS_KEPT", 3, "The last checkpoints that stay, beside those at the ends of "
        "phases; 0 keeps all.", FROM_ZERO, may_differ=True),
    Key("TRAIN.KEEP_BEST", False, "Keep the weights of the best validation so far, by the recipe's "
        "first metric, the averaged ones with MODEL.EMA_DECAY, in checkpoint_best.pyth.",
        may_differ=True),
    Key("TRAIN.AUTO_RESUME", HOST, "Continue the run in OUTPUT_DIR.", may_differ=True),
    Key("TRAIN.CHECKPOINT_TYPE", HOST, "Of TRAIN.CHECKPOINT_FILE_PATH.", WEIGHTS),
    Key("TEST.ENABLE", HOST, "Test after the training.", may_differ=True),
    Key("TEST.DATASET", HOST, "The data set of the test.", may_differ=True),
    Key("TEST.BATCH_SIZE", HOST, "Clips of one machine's mini-batch in evaluation.", AT_LEAST_ONE,
        may_differ=True),
    Key("TEST.NUM_ENSEMBLE_VIEWS", HOST, "Clips along a video.", AT_LEAST_ONE, may_differ=True),
    Key("TEST.NUM_SPATIAL_CROPS", HOST, "Crops of a clip.", one_of(1, 3), may_differ=True),
    Key("TEST.CHECKPOINT_FILE_PATH", HOST, "The weights that are tested.", may_differ=True),
    Key("TEST.CHECKPOINT_TYPE", HOST, "Of TEST.CHECKPOINT_FILE_PATH.", WEIGHTS, may_differ=True),
    Key("TEST.SAVE_RESULTS_PATH", "", "The test's predictions, a CSV file in OUTPUT_DIR: each "
        "video's label, prediction and the probabilities of all classes. Empty: not written.",
        CSV, may_differ=True),

    # Machines and files.
    Key("NUM_GPUS", HOST, "GPUs of a machine; 0 is the CPU.", FROM_ZERO, may_differ=True),
    Key("NUM_SHARDS", HOST, "Machines.", AT_LEAST_ONE),
    Key("SHARD_ID", HOST, "This machine.", may_differ=True),
    Key("OUTPUT_DIR", HOST, "The run's folder.", may_differ=True),
    Key("LOG_PERIOD", HOST, "Iterations from line to line of the log.", AT_LEAST_ONE,
        may_differ=True),
    Key("LOG_MODEL_INFO", True, "Log the model's parameters and operations.", may_differ=True),
    Key("DIST_BACKEND", "auto", "auto is nccl with GPUs and gloo without.",
        one_of("auto", "nccl", "gloo"), may_differ=True),
    Key("DIST_JOIN_SECONDS", 300.0, "Seconds that a process of several waits for the others to "
        "come together.", ABOVE_ZERO, may_differ=True),
    Key("DIST_STALL_SECONDS", 1800.0, "Seconds that one may wait in a collective for the others; "
        "then the run ends.", ABOVE_ZERO, may_differ=True),

    # Accepted, and without effect.
    Key("BN.NORM_TYPE", "batchnorm", _GROUPS, no_effect=True),
    Key("BN.NUM_SPLITS", 1, _GROUPS, no_effect=True),
    Key("BN.NUM_SYNC_DEVICES", 1, _GROUPS, no_effect=True),
    Key("BN.GLOBAL_SYNC", False, _GROUPS, no_effect=True),
    Key("BN.EPSILON", 1e-5, "The host builds its models with 1e-5; leave it out.", no_effect=True),
    Key("BN.MOMENTUM", 0.1, "The host builds its models with 0.1; leave it out.", no_effect=True),
    Key("MULTIGRID.DEFAULT_B", 0, _FILLED + "TRAIN.BATCH_SIZE.", no_effect=True),
    Key("MULTIGRID.DEFAULT_T", 0, _FILLED + "DATA.NUM_FRAMES.", no_effect=True),
    Key("MULTIGRID.DEFAULT_S", 0, _FILLED + "DATA.TRAIN_CROP_SIZE.", no_effect=True),
    Key("MULTIGRID.LONG_CYCLE_SAMPLING_RATE", 0, "The stride of a shape is drawn between the "
        "baseline's and the one with the same span; write DATA.SAMPLING_RATE.", no_effect=True),
    Key("DATA.DECODING_BACKEND", "pyav", "Videos are read with PyAV; write pyav.", no_effect=True),
    Key("SOLVER.STEP_SIZE", 1, "No policy reads it; write SOLVER.STEPS.", no_effect=True),
    Key("SOLVER.WARMUP_FACTOR", 0.1, "The warm-up starts at SOLVER.WARMUP_START_LR; write that.",
        no_effect=True),
    Key("MIXUP.LABEL_SMOOTH_VALUE", ABSENT, "Labels are smoothed by MODEL.LABEL_SMOOTHING; write "
        "that.", no_effect=True, quiet=(0,)),
    Key("TRAIN.CHECKPOINT_EPOCH_RESET", False, "A training that starts from "
        "TRAIN.CHECKPOINT_FILE_PATH starts at iteration 0; one in OUTPUT_DIR is continued by "
        "TRAIN.AUTO_RESUME.", no_effect=True, quiet=(True,)),
    Key("TENSORBOARD.ENABLE", ABSENT, "Event files are always written to OUTPUT_DIR; leave it out.",
        no_effect=True, quiet=(True,)),
    Key("TENSORBOARD.*", ABSENT, "Event files go to OUTPUT_DIR and hold scalars only; leave the "
        "section out.", no_effect=True, quiet=("", 0, False, None)),
    Key("DEMO.ENABLE", ABSENT, _NO_DEMO, no_effect=True, quiet=(False,)),
    Key("DEMO.*", ABSENT, _NO_DEMO, no_effect=True),
)
# fmt: on

PER_PATHWAY = (
    *("RESNET.NUM_BLOCK_TEMP_KERNEL", "RESNET.SPATIAL_STRIDES", "RESNET.SPATIAL_DILATIONS"),
    *("NONLOCAL.LOCATION", "NONLOCAL.GROUP", "NONLOCAL.POOL"),
)
"""Lists of the host's with an entry for each stage, and in it one for each pathway."""


def get_cfg() -> CfgNode:
    """A fresh config with every key at its default, not frozen."""
    cfg = host_defaults.get_cfg()
    add_multigrid_config(cfg)
    return cfg


def add_multigrid_config(cfg: CfgNode) -> None:
    """Add our keys, and those of the later releases, to the host's config in place."""
    for key in KEYS:
        if key.default is not HOST and key.default is not ABSENT:
            section, _, name = key.name.rpartition(".")
            node = cfg.setdefault(section, CfgNode()) if section else cfg
            node[name] = deepcopy(key.default)


def find_key(name: str) -> Key | None:
    """The row of a key, its full name before its section; None where it has none."""
    section = name.partition(".")[0] + ".*"
    return _ROWS.get(name) or _ROWS.get(section)


_ROWS = {key.name: key for key in KEYS}
_MAPPINGS = frozenset(key.name for key in KEYS if key.default == {})


def may_differ(name: str) -> bool:
    """Whether a key may change between a checkpoint and the run that continues it.

    Such keys change no result by more than rounding, or are those that a run which stopped over
    unreadable videos is told to change; keys without effect are among them.
    """
    key = find_key(name)
    return key is not None and (key.may_differ or key.no_effect)


def speed_keys() -> tuple[str, ...]:
    """Keys that decide how long an iteration of a shape takes."""
    return tuple(key.name for key in KEYS if key.speed)


def speed_switches() -> tuple[str, ...]:
    """Keys that, where True, make iterations faster and change nothing else."""
    return tuple(key.name for key in KEYS if key.switch)


def flatten(
    tree: Mapping[Any, Any], prefix: str = "", whole: Collection[str] = _MAPPINGS
) -> Iterator[tuple[str, Any]]:
    """The values of sections within sections as (full key, value); mappings that are the value of a
    key, as HF.CONFIG, are taken apart only where they are not in `whole`."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and f"{prefix}{name}" not in whole:
            yield from flatten(value, f"{prefix}{name}.", whole)
        else:
            yield f"{prefix}{name}", value


def format_keys() -> str:
    """docs/keys.md: a line for each row."""
    defaults = dict(flatten(get_cfg()))
    lines = [_HEADER]
    title = ""
    for key in KEYS:
        ours = not key.no_effect
        section = key.name.partition(".")[0] if "." in key.name else "Machines and files"
        if title != (title := section if ours else "Accepted without effect"):
            lines += ["", f"## {title}", ""]
        default = f" `{defaults[key.name]!r}`" if ours else ""
        check = f" Must be {key.check.wanted}." if key.check else ""
        lines.append(_wrap(f"- `{key.name}`{default}: {key.comment}{check}"))
    host = sorted(defaults.keys() - {key.name for key in KEYS})
    lines += ["", "## The host's other keys", ""]
    return "\n".join([*lines, _wrap(", ".join(f"`{name}`" for name in host) + ".")])


def _wrap(text: str) -> str:
    return textwrap.fill(text, 100, subsequent_indent="  ", break_on_hyphens=False)
