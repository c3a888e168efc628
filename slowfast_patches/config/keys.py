"""The config's keys: the host's, those of the later releases that recipes use, and ours."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

import slowfast.config.defaults as host_defaults
from fvcore.common.config import CfgNode

__all__ = [
    "AUTO_OR_COUNT",
    "NOT_HERE",
    "NO_EFFECT",
    "PER_PATHWAY",
    "NoEffect",
    "add_multigrid_config",
    "find_no_effect",
    "get_cfg",
]


PER_PATHWAY = (
    "RESNET.NUM_BLOCK_TEMP_KERNEL",
    "RESNET.SPATIAL_STRIDES",
    "RESNET.SPATIAL_DILATIONS",
    "NONLOCAL.LOCATION",
    "NONLOCAL.GROUP",
    "NONLOCAL.POOL",
)
"""Lists of the host's with an entry for each stage, and in it one for each pathway."""


AUTO_OR_COUNT = ("DATA_LOADER.NUM_WORKERS",)
"""Keys that take "auto" or a whole number, 0 or more."""


def get_cfg() -> CfgNode:
    """A fresh config with every key at its default, not frozen."""
    cfg = host_defaults.get_cfg()
    add_multigrid_config(cfg)
    return cfg


def add_multigrid_config(cfg: CfgNode) -> None:
    """Add our keys, and those of the later releases, to the host's config in place."""
    _add_multigrid(cfg)
    _add_bn(cfg)
    _add_solver(cfg)
    _add_model(cfg)
    _add_data(cfg)
    _add_run(cfg)


def _add_multigrid(cfg: CfgNode) -> None:
    cfg.MULTIGRID = CfgNode()
    # Length of the training relative to the baseline's MAX_EPOCH (paper: 1.5).
    cfg.MULTIGRID.EPOCH_FACTOR = 1.5
    # The short cycle changes the crop from iteration to iteration; factors of DATA.TRAIN_CROP_SIZE.
    cfg.MULTIGRID.SHORT_CYCLE = False
    cfg.MULTIGRID.SHORT_CYCLE_FACTORS = [0.5, 0.5**0.5]
    # The long cycle changes frames and crop from phase to phase; factors (frames, crop).
    cfg.MULTIGRID.LONG_CYCLE = False
    cfg.MULTIGRID.LONG_CYCLE_FACTORS = [[0.25, 0.5**0.5], [0.5, 0.5**0.5], [0.5, 1.0], [1.0, 1.0]]
    # Clips that share batch normalisation statistics at the long cycle's crop.
    cfg.MULTIGRID.BN_BASE_SIZE = 8
    # Evaluations per shape of the long cycle.
    cfg.MULTIGRID.EVAL_FREQ = 3
    # Crops of coarser grids are rounded to multiples of it: 1 has the paper's sizes (158 of 224),
    # 16 sizes that GPUs like better (160).
    cfg.MULTIGRID.SIZE_DIVISOR = 1
    # Filled at run time in the later releases; see NO_EFFECT.
    cfg.MULTIGRID.LONG_CYCLE_SAMPLING_RATE = 0
    cfg.MULTIGRID.DEFAULT_B = 0
    cfg.MULTIGRID.DEFAULT_T = 0
    cfg.MULTIGRID.DEFAULT_S = 0


def _add_bn(cfg: CfgNode) -> None:
    # Kinds of BN in the later releases; see NO_EFFECT.
    cfg.BN.NORM_TYPE = "batchnorm"
    cfg.BN.NUM_SPLITS = 1
    cfg.BN.NUM_SYNC_DEVICES = 1
    cfg.BN.GLOBAL_SYNC = False
    # Clips that share statistics where no cycle is on, on however many processes; 0: those that
    # each process has. With a cycle it is MULTIGRID.BN_BASE_SIZE.
    cfg.BN.GROUP_SIZE = 0


def _add_solver(cfg: CfgNode) -> None:
    # Epochs are numbers, not counts: shortened recipes have fractions of one.
    cfg.SOLVER.MAX_EPOCH = float(cfg.SOLVER.MAX_EPOCH)
    cfg.SOLVER.WARMUP_EPOCHS = float(cfg.SOLVER.WARMUP_EPOCHS)
    # The rate that the cosine policy ends at.
    cfg.SOLVER.COSINE_END_LR = 0.0
    # Multiply BASE_LR by NUM_SHARDS.
    cfg.SOLVER.BASE_LR_SCALE_NUM_SHARDS = False
    # Clips of a global mini-batch that BASE_LR and COSINE_END_LR belong to: they are multiplied by
    # batch / this. WARMUP_START_LR is not: a warm-up starts at BASE_LR as it is written (Goyal et
    # al., 2017, sections 2.1 and 2.2). 0 is off.
    cfg.SOLVER.REFERENCE_BATCH_SIZE = 0
    # GPUs of one machine that the recipe's TRAIN.BATCH_SIZE and learning rates were written for:
    # both are scaled to the processes of the run (the key is detectron2's). 0 is off.
    cfg.SOLVER.REFERENCE_WORLD_SIZE = 0
    # Largest gradient value, or largest L2 norm of all gradients; None clips nothing.
    cfg.SOLVER.CLIP_GRAD_VAL = None
    cfg.SOLVER.CLIP_GRAD_L2NORM = None
    # No weight decay for biases and other parameters of one dimension.
    cfg.SOLVER.ZERO_WD_1D_PARAM = False
    # Parts that a process's clips of an iteration pass the network in, one after another, for less
    # memory: the gradients are summed, the training is the same (as the delayed updates of Ott et
    # al., "Scaling Neural Machine Translation", 2018). TRAIN.BATCH_SIZE and the rates stay.
    cfg.SOLVER.ACCUMULATION_STEPS = 1
    # Update all parameters in one kernel (sgd, adam and adamw).
    cfg.SOLVER.FUSED = False
    # OPTIMIZING_METHOD: the host's sgd and adam; adamw, as in the later releases, is torch's with
    # the host's moments (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019).
    # OPTIMIZING_METHOD lars: the trust coefficient, by which a weight's rate is multiplied beside
    # the ratio of its norm to its gradient's (You, Gitman and Ginsburg, 2017; their eta).
    cfg.SOLVER.LARS_TRUST = 0.001


def _add_model(cfg: CfgNode) -> None:
    # "slow" is the later name of "slowonly". "nopool" is the host's for C2D and I3D that keep all
    # frames; the others pool pairs of them after the first stage.
    added = ("slow", "c2d_nopool", "i3d_nopool", "tsm")
    cfg.MODEL.SINGLE_PATHWAY_ARCH = [*cfg.MODEL.SINGLE_PATHWAY_ARCH, *added]
    cfg.TSM = CfgNode()
    # MODEL.ARCH tsm: 1/SHIFT_DIV of the channels move one frame back, as many one frame forward; 0
    # moves none.
    cfg.TSM.SHIFT_DIV = 8
    # Follows from MODEL.ARCH: load_config fills it.
    cfg.MODEL.MODEL_NAME = "SlowFast"
    # What turns the head's outputs into scores in evaluation: "softmax", or "sigmoid" for several
    # labels a video.
    cfg.MODEL.HEAD_ACT = "softmax"
    # Part of a clip's label that is spread evenly over all classes in the training's loss (Szegedy
    # et al., "Rethinking the Inception Architecture for Computer Vision", 2016, section 7).
    cfg.MODEL.LABEL_SMOOTHING = 0.0
    # Decay an iteration of an exponential moving average of the weights, which is evaluated beside
    # them (Polyak and Juditsky, 1992; Tarvainen and Valpola, "Mean teachers ...", 2017); 0 is off.
    cfg.MODEL.EMA_DECAY = 0.0
    # Clips and weights with a pixel's channels side by side, as tensor cores read them.
    cfg.MODEL.CHANNELS_LAST = False
    # Compute a block's activations anew in the backward pass instead of keeping them.
    cfg.MODEL.ACT_CHECKPOINT = False


def _add_data(cfg: CfgNode) -> None:
    # Between path and label in a line of a csv file; the two characters \t are a tab.
    cfg.DATA.PATH_LABEL_SEPARATOR = " "
    # Frames per second that DATA.SAMPLING_RATE counts in.
    cfg.DATA.TARGET_FPS = 30
    cfg.DATA.DECODING_BACKEND = "pyav"
    # Flip half of the training clips horizontally.
    cfg.DATA.RANDOM_FLIP = True
    # Feed BGR instead of RGB.
    cfg.DATA.REVERSE_INPUT_CHANNEL = False
    # Draw the inverse of a training clip's short side uniformly, not the short side itself.
    cfg.DATA.INV_UNIFORM_SAMPLE = False
    # Several labels per video: MODEL.LOSS_FUNC bce_logit, MODEL.HEAD_ACT sigmoid, judged by mAP.
    cfg.DATA.MULTI_LABEL = False
    # How a video's score comes from those of its views: "sum" or "max".
    cfg.DATA.ENSEMBLE_METHOD = "sum"
    # Larger frames are refused before they are decoded, which would take their memory: 8192 × 8192,
    # almost twice the largest picture of any level of H.264, HEVC and AV1.
    cfg.DATA.MAX_FRAME_PIXELS = 1 << 26
    # A run stops when more than this part of the videos of an epoch, or of an evaluation, cannot be
    # decoded.
    cfg.DATA.MAX_BAD_FRACTION = 0.05
    # Training videos that the recipe expects: what a plan counts with where no csv file is at hand.
    cfg.DATA.NUM_TRAIN_VIDEOS = 0


def _add_run(cfg: CfgNode) -> None:
    # Compute in bfloat16 where that is exact enough, or in float16 with a scaled loss on a GPU that
    # has no bfloat16.
    cfg.TRAIN.MIXED_PRECISION = False
    # Let a GPU round the factors of float32 products to 10 bits of mantissa.
    cfg.TRAIN.TF32 = True
    # Let cuDNN try its convolutions at each shape and take the fastest.
    cfg.TRAIN.CUDNN_BENCHMARK = True
    # Give the same numbers in every run on the same machine, where that takes slower kernels too.
    cfg.TRAIN.DETERMINISTIC = False
    # Compile the network for each shape, before the training begins.
    cfg.TRAIN.COMPILE = False
    # Record each shape's kernels once and launch them as one CUDA graph.
    cfg.TRAIN.CUDA_GRAPHS = False
    # In the later releases: do not continue TRAIN.CHECKPOINT_FILE_PATH; see NO_EFFECT.
    cfg.TRAIN.CHECKPOINT_EPOCH_RESET = False
    # The last checkpoints that stay, beside those at the ends of phases; 0 keeps all.
    cfg.TRAIN.CHECKPOINTS_KEPT = 3
    # Keep the weights of the best validation so far, by the recipe's first metric, the averaged
    # ones where MODEL.EMA_DECAY is on, in checkpoint_best.pyth (as the trainers of timm and
    # Lightning do).
    cfg.TRAIN.KEEP_BEST = False
    # The test's predictions, a CSV file in OUTPUT_DIR: each video's label, prediction and the
    # probabilities of all classes. Empty: not written.
    cfg.TEST.SAVE_RESULTS_PATH = ""
    # Log the model's parameters and operations.
    cfg.LOG_MODEL_INFO = True
    # "auto" is nccl with GPUs and gloo without.
    cfg.DIST_BACKEND = "auto"
    # Seconds that a process of several waits for the others to come together.
    cfg.DIST_JOIN_SECONDS = 300.0
    # Seconds that one may wait in a collective for the others; then the run ends.
    cfg.DIST_STALL_SECONDS = 1800.0
    # Processes that read clips for each process that trains; "auto" picks from the cores.
    cfg.DATA_LOADER.NUM_WORKERS = "auto"


class NoEffect(NamedTuple):
    """A key of the later releases, or of the host, that changes nothing here.

    because: why it has no effect, and what to write instead.
    quiet: the values that ask for nothing that is not done anyway; others are warned of.
    """

    because: str
    quiet: tuple[object, ...]


_GROUPS = (
    "the number of clips that share statistics is given as such, on any number of GPUs; write "
    "BN.GROUP_SIZE, or MULTIGRID.BN_BASE_SIZE with a cycle"
)
_FILLED = "the baseline's mini-batch is what the recipe's own keys say; "

NO_EFFECT: Mapping[str, NoEffect] = {
    "BN.NORM_TYPE": NoEffect(_GROUPS, ("batchnorm",)),
    "BN.NUM_SPLITS": NoEffect(_GROUPS, (1,)),
    "BN.NUM_SYNC_DEVICES": NoEffect(_GROUPS, (1,)),
    "BN.GLOBAL_SYNC": NoEffect(_GROUPS, (False,)),
    "BN.EPSILON": NoEffect("the host builds its models with 1e-5; leave it out", (1e-5,)),
    "BN.MOMENTUM": NoEffect("the host builds its models with 0.1; leave it out", (0.1,)),
    "MULTIGRID.DEFAULT_B": NoEffect(_FILLED + "write TRAIN.BATCH_SIZE", (0,)),
    "MULTIGRID.DEFAULT_T": NoEffect(_FILLED + "write DATA.NUM_FRAMES", (0,)),
    "MULTIGRID.DEFAULT_S": NoEffect(_FILLED + "write DATA.TRAIN_CROP_SIZE", (0,)),
    "MULTIGRID.LONG_CYCLE_SAMPLING_RATE": NoEffect(
        "the stride of a shape is drawn between the baseline's and the one with the same span; "
        "write DATA.SAMPLING_RATE",
        (0,),
    ),
    "DATA.DECODING_BACKEND": NoEffect("videos are read with PyAV; write pyav", ("pyav",)),
    "SOLVER.STEP_SIZE": NoEffect("no learning rate policy reads it; write SOLVER.STEPS", (1,)),
    "SOLVER.WARMUP_FACTOR": NoEffect(
        "the warm-up starts at SOLVER.WARMUP_START_LR; write that", (0.1,)
    ),
    "TRAIN.CHECKPOINT_EPOCH_RESET": NoEffect(
        "a training that starts from TRAIN.CHECKPOINT_FILE_PATH starts at iteration 0; one in "
        "OUTPUT_DIR is continued by TRAIN.AUTO_RESUME",
        (False, True),
    ),
    "TENSORBOARD.ENABLE": NoEffect(
        "event files are always written to OUTPUT_DIR; leave it out", (True,)
    ),
    "TENSORBOARD.*": NoEffect(
        "event files go to OUTPUT_DIR and hold scalars only; leave the section out",
        ("", 0, False, None),
    ),
    "DEMO.*": NoEffect("there is no demo on a camera or a single file; leave the section out", ()),
    "DEMO.ENABLE": NoEffect(
        "there is no demo on a camera or a single file; leave it out", (False,)
    ),
}
"""Keys that are accepted and change nothing, by full name or by section ("DEMO.*")."""


NOT_HERE: Mapping[str, str] = {
    "X3D": "the X3D models",
    "MVIT": "the MViT models",
    "MASK": "masked pre-training",
    "VIS_MASK": "masked pre-training",
    "CONTRASTIVE": "contrastive pre-training",
    "SSL": "self-supervised pre-training",
    "TASK": "self-supervised pre-training",
    "AUG": "the augmentation of MViT's recipes",
    "MIXUP": "the augmentation of MViT's recipes",
    "BENCHMARK": "the benchmark of loading",
}
"""What in the later releases whole sections belong to that are not here."""


def find_no_effect(key: str) -> NoEffect | None:
    """The row of NO_EFFECT for a key, its full name before its section; None where it has one."""
    if key in NO_EFFECT:
        return NO_EFFECT[key]
    return next((row for name, row in NO_EFFECT.items() if fnmatchcase(key, name)), None)
