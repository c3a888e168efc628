"""The keys of training and testing: SOLVER, TRAIN and TEST."""

from __future__ import annotations

from dataclasses import dataclass

from slowfast_patches.config.fields import (
    ABOVE_ZERO,
    AT_LEAST_ONE,
    CLASS_WEIGHTS,
    CSV,
    FROM_ZERO,
    RATIO,
    WEIGHTS,
    above_zero_to,
    key,
    one_of,
)

__all__ = ["Solver", "Test", "Train"]


@dataclass(frozen=True)
class Solver:
    # Epochs are numbers, not counts: shortened recipes have fractions of one.
    max_epoch: float = key(300.0, "Epochs of the baseline.", above_zero_to(100_000))
    length: float = key(
        1.0,
        "Multiplies MAX_EPOCH, STEPS and WARMUP_EPOCHS when a recipe is loaded: 0.25 trains a "
        "quarter as long. A loaded recipe has the products, and 1 here.",
        above_zero_to(100),
    )
    warmup_epochs: float = key(0.0, "Epochs of the warm-up.")
    lr_policy: str = key(
        "cosine", "How the rate falls.", one_of("cosine", "steps_with_relative_lrs")
    )
    steps: tuple[float, ...] = key(
        (),
        "Epochs at which stages start, from 0.",
        needs="SOLVER.LR_POLICY steps_with_relative_lrs",
    )
    lrs: tuple[float, ...] = key(
        (),
        "Rates of the stages over BASE_LR; empty: powers of GAMMA.",
    )
    base_lr: float = key(0.1, "The learning rate.", ABOVE_ZERO)
    cosine_end_lr: float = key(0.0, "The rate that the cosine policy ends at.")
    batch_rate_rule: str = key(
        "linear",
        "How rates follow the clips of a mini-batch, in the long cycle and wherever else they "
        "do: linear multiplies them by as much (Goyal et al., 2017), sqrt by its square root "
        "(Krizhevsky, 2014), for adam and adamw (Malladi et al., 2022).",
        one_of("linear", "sqrt"),
    )
    reference_batch_size: int = key(
        0,
        "Clips of a global mini-batch that BASE_LR, WARMUP_START_LR and COSINE_END_LR belong to: "
        "when a recipe is loaded they are multiplied by batch / this, or what BATCH_RATE_RULE "
        "makes of it. A loaded recipe has the products, and its own batch here. 0 is off.",
        FROM_ZERO,
        may_differ=True,
    )
    reference_world_size: int = key(
        0,
        "GPUs of one machine that the recipe's TRAIN.BATCH_SIZE was written for: each process "
        "takes as many clips as one of these GPUs, and the rates follow the batch. 0 is off.",
        FROM_ZERO,
        may_differ=True,
    )
    base_lr_scale_num_shards: bool = key(
        False,
        "Of PySlowFast's later releases, True multiplies the rates by NUM_SHARDS: a loaded "
        "recipe has REFERENCE_BATCH_SIZE instead, of one machine's clips.",
    )
    optimizing_method: str = key(
        "sgd",
        "The host's sgd and adam; torch's adamw with the host's moments (Loshchilov and Hutter, "
        "2019).",
        one_of("sgd", "adam", "adamw"),
        speed=True,
    )
    layer_decay: float = key(
        1.0,
        "MODEL.ARCH hf: the rate of a layer is this times that of the layer behind it; the head "
        "has the whole, embeddings the smallest (BEiT, Bao et al., 2022). 1 is off.",
        RATIO,
        needs="MODEL.ARCH hf",
    )
    clip_grad_val: float | None = key(None, "Largest value of a gradient; None clips nothing.")
    clip_grad_l2norm: float | None = key(
        None,
        "Largest L2 norm of all gradients; None clips nothing.",
        needs="SOLVER.CLIP_GRAD_VAL None 0.0",
    )
    class_weights: tuple[float, ...] | str = key(
        (),
        "Weights of the classes in the training's loss: one for each, or balanced for those in "
        "inverse proportion to its training videos. They are divided by their mean over these "
        "videos or, of several labels, over the classes.",
        CLASS_WEIGHTS,
    )
    zero_wd_1d_param: bool = key(
        False,
        "No weight decay for biases and other parameters of one dimension, and for a "
        "transformer's positions and tokens.",
    )
    accumulation_steps: int = key(
        1,
        "Parts that a process's clips of an iteration pass the network in, one after another, "
        "for less memory: the gradients are summed, the training is the same, TRAIN.BATCH_SIZE "
        "and the rates stay (Ott et al., 2018).",
        AT_LEAST_ONE,
        may_differ=True,
        speed=True,
    )
    fused: bool = key(
        False,
        "Update all parameters in one kernel.",
        may_differ=True,
        switch=True,
    )
    gamma: float = 0.1
    momentum: float = 0.9
    dampening: float = 0.0
    nesterov: bool = True
    weight_decay: float = 0.0001
    warmup_start_lr: float = 0.01


@dataclass(frozen=True)
class Train:
    batch_size: int = key(64, "Clips of one machine's mini-batch.", AT_LEAST_ONE)
    mixed_precision: bool | str = key(
        False,
        "Compute in bfloat16 where that is exact enough, or in float16 with a scaled loss on a "
        "GPU that has no bfloat16; auto: on a GPU, and for RESNET.WIDTH_PER_GROUP 32 and more on a "
        "processor with AMX.",
        one_of(False, True, "auto"),
        switch=True,
    )
    tf32: bool = key(
        True, "Let a GPU round the factors of float32 products to 10 bits of mantissa.", switch=True
    )
    cudnn_benchmark: bool = key(
        True,
        "Let cuDNN try its convolutions at each shape and take the fastest.",
        may_differ=True,
        switch=True,
    )
    deterministic: bool = key(
        False,
        "Give the same numbers in every run on the same machine, where that takes slower "
        "kernels too.",
        may_differ=True,
        speed=True,
    )
    compile: bool | str = key(
        False,
        "Compile the network for each shape, before the training begins: True, or a mode of "
        "torch.compile such as reduce-overhead, which has CUDA graphs.",
        one_of(False, True, "default", "reduce-overhead", "max-autotune"),
        may_differ=True,
        switch=True,
    )
    eval_period: int = key(
        1,
        "Epochs from evaluation to evaluation, without the long cycle.",
        AT_LEAST_ONE,
        may_differ=True,
    )
    eval_max_share: float = key(
        0.1,
        "Most that all evaluations during a training may cost, as a share of its FLOPs: where "
        "TRAIN.EVAL_PERIOD or MULTIGRID.EVAL_FREQ ask for more, some are left out evenly, the "
        "last never. 0 leaves none out.",
        FROM_ZERO,
        may_differ=True,
    )
    checkpoint_period: int = key(
        1, "Epochs from checkpoint to checkpoint.", AT_LEAST_ONE, may_differ=True
    )
    checkpoints_kept: int = key(
        3,
        "The last checkpoints that stay, beside those at the ends of phases; 0 keeps all.",
        FROM_ZERO,
        may_differ=True,
    )
    keep_best: bool = key(
        False,
        "Keep the weights of the best validation so far, by the recipe's first metric, the "
        "averaged ones with MODEL.EMA_DECAY, in checkpoint_best.pyth.",
        may_differ=True,
    )
    freeze: tuple[str, ...] = key(
        (),
        "Parts of the model that keep the weights that they start with, their BN its statistics, "
        "and drop nothing: names of modules or parameters, with * and ?; backbone is all but the "
        "head.",
        speed=True,
    )
    auto_resume: bool = key(True, "Continue the run in OUTPUT_DIR.", may_differ=True)
    checkpoint_type: str = key("pytorch", "Of TRAIN.CHECKPOINT_FILE_PATH.", WEIGHTS)
    enable: bool = True
    dataset: str = "kinetics"
    checkpoint_file_path: str = ""
    checkpoint_inflate: bool = False


@dataclass(frozen=True)
class Test:
    enable: bool = key(True, "Test after the training.", may_differ=True)
    dataset: str = key("kinetics", "The data set of the test.", may_differ=True)
    batch_size: int = key(
        8, "Clips of one machine's mini-batch in evaluation.", AT_LEAST_ONE, may_differ=True
    )
    num_ensemble_views: int = key(
        10, "Clips along a video; with DETECTION.ENABLE 1.", AT_LEAST_ONE, may_differ=True
    )
    num_spatial_crops: int = key(3, "Crops of a clip.", one_of(1, 3), may_differ=True)
    checkpoint_file_path: str = key("", "The weights that are tested.", may_differ=True)
    checkpoint_type: str = key("pytorch", "Of TEST.CHECKPOINT_FILE_PATH.", WEIGHTS, may_differ=True)
    save_results_path: str = key(
        "",
        "The test's predictions, a CSV file in OUTPUT_DIR, which a run replaces: each video's "
        "label, prediction and the probabilities of all classes. Empty: not written.",
        CSV,
        may_differ=True,
    )
