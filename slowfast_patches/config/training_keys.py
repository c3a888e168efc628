"""Keys of training and testing: SOLVER, TRAIN and TEST."""

from __future__ import annotations

from dataclasses import dataclass

from slowfast_patches.config.fields import (
    ABOVE_ZERO,
    AT_LEAST_ONE,
    BELOW_ONE,
    CLASS_WEIGHTS,
    CSV,
    EPOCHS,
    FROM_ZERO,
    PART,
    RATES,
    RATIO,
    Check,
    all_of,
    free_key,
    key,
    one_of,
    only_with,
    speed_key,
    with_backbone,
    with_layers,
    with_steps,
)
from slowfast_patches.utils.tables import format_list


@dataclass(frozen=True)
class Solver:
    # Epochs are floats, because a shortened recipe may have fractions of an epoch.
    max_epoch: float = key(300.0, "Number of epochs of the baseline.", EPOCHS)
    length: float = key(
        1.0,
        "Factor that multiplies MAX_EPOCH, STEPS, WARMUP_EPOCHS and the stages when a recipe is "
        "loaded. 0.25 trains a quarter as long. The loaded recipe has the multiplied values and "
        "LENGTH 1.",
        Check(lambda value: 1e-6 <= value <= 1e4, "from 0.000001 to 10,000"),
    )
    warmup_epochs: float = key(0.0, "Number of epochs of the warm-up.")
    lr_policy: str = key(
        "cosine", "Learning-rate policy.", one_of("cosine", "steps_with_relative_lrs")
    )
    steps: tuple[float, ...] = key(
        (),
        "Epochs at which the learning-rate stages start. The first must be 0.",
        RATES,
        needs=only_with("SOLVER.LR_POLICY", "steps_with_relative_lrs"),
    )
    lrs: tuple[float, ...] = key(
        (),
        "Learning rate of each stage as a factor of BASE_LR. Empty: powers of GAMMA. Values beyond "
        "the number of stages are used only in recipes of later PySlowFast releases.",
        RATES,
        needs=with_steps,
    )
    base_lr: float = key(0.1, "Learning rate after the warm-up.", ABOVE_ZERO)
    cosine_end_lr: float = key(
        0.0,
        "Final learning rate of the cosine policy.",
        FROM_ZERO,
        needs=only_with("SOLVER.LR_POLICY", "cosine"),
    )
    cosine_after_warmup: bool = key(
        False,
        "Start the cosine with BASE_LR at the end of the warm-up. With False, the cosine starts at "
        "epoch 0, so that the warm-up ends below BASE_LR.",
        needs=only_with("SOLVER.LR_POLICY", "cosine"),
    )
    batch_rate_rule: str = key(
        "linear",
        "Rule that scales the learning rate when the batch size changes. If the batch is k times "
        "as large, linear multiplies the learning rate by k (Goyal et al., 2017), and sqrt "
        "multiplies it by the square root of k (Krizhevsky, 2014). Use sqrt with adam and adamw "
        "(Malladi et al., 2022).",
        one_of("linear", "sqrt"),
    )
    reference_batch_size: int = free_key(
        0,
        "Global batch size for which BASE_LR, WARMUP_START_LR and COSINE_END_LR are given. When a "
        "recipe is loaded, BATCH_RATE_RULE scales these learning rates to the global batch size, "
        "which is TRAIN.BATCH_SIZE times NUM_SHARDS, and this key is set to that size. 0 means no "
        "scaling.",
        FROM_ZERO,
    )
    optimizing_method: str = speed_key(
        "sgd",
        "Optimizer. sgd and adam work as in PySlowFast. adamw (Loshchilov and Hutter, 2019) is "
        "torch.optim.AdamW with the same betas as adam.",
        one_of("sgd", "adam", "adamw"),
    )
    layer_decay: float = key(
        1.0,
        "Layer-wise learning-rate decay (BEiT, Bao et al., 2022): each layer has the learning rate "
        "of the next layer multiplied by this value. The head has the full learning rate, and the "
        "embeddings have the smallest. With 1, all layers have the same learning rate.",
        RATIO,
        needs=all_of(with_layers, with_backbone),
    )
    clip_grad_val: float | None = key(
        None,
        "Clip each element of the gradients to this absolute value. None: no clipping.",
        FROM_ZERO,
    )
    clip_grad_l2norm: float | None = key(
        None,
        "Maximum L2 norm of all gradients together, for gradient clipping. None: no clipping.",
        FROM_ZERO,
        needs=only_with("SOLVER.CLIP_GRAD_VAL", None, 0.0),
    )
    class_weights: tuple[float, ...] | str = key(
        (),
        "Class weights in the training loss: a number for each class, or balanced for weights "
        "inversely proportional to the number of training videos of a class. The weights are "
        "normalised to a mean of 1 over the training videos, or over the classes if a video may "
        "have several labels.",
        CLASS_WEIGHTS,
    )
    zero_wd_1d_param: bool = key(
        False,
        "Use no weight decay for biases, other one-dimensional parameters, and the position "
        "embeddings and tokens of a transformer.",
    )
    accumulation_steps: int = free_key(
        1,
        "Gradient accumulation (Ott et al., 2018): split the mini-batch of a process into this "
        "many micro-batches to save memory. The batch size and the learning rates stay the same. "
        "The result stays the same, unless random numbers are drawn for a whole micro-batch, as "
        "by the dropout of a transformer. A run may be resumed with another value if the result "
        "stays the same.",
        AT_LEAST_ONE,
        speed=True,
    )
    fused: bool = free_key(
        False,
        "Use the fused implementation of sgd, adam and adamw.",
        switch=True,
    )
    gamma: float = key(
        0.1,
        "Factor that multiplies the learning rate at the start of each stage if LRS is empty.",
        ABOVE_ZERO,
        needs=all_of(with_steps, only_with("SOLVER.LRS", ())),
    )
    momentum: float = key(
        0.9, "Momentum of sgd.", BELOW_ONE, needs=only_with("SOLVER.OPTIMIZING_METHOD", "sgd")
    )
    dampening: float = key(
        0.0, "Dampening of sgd.", PART, needs=only_with("SOLVER.OPTIMIZING_METHOD", "sgd")
    )
    nesterov: bool = key(
        True,
        "Use Nesterov momentum in sgd.",
        needs=only_with("SOLVER.OPTIMIZING_METHOD", "sgd"),
    )
    weight_decay: float = key(0.0001, "Weight decay.", FROM_ZERO)
    warmup_start_lr: float = key(
        0.01,
        "Learning rate at the start of the warm-up.",
        FROM_ZERO,
        needs=lambda r: None if r.solver.warmup_epochs else "with SOLVER.WARMUP_EPOCHS 0",
    )


_MODES = (False, True, "default", "max-autotune-no-cudagraphs")
_COMPILES = Check(
    lambda value: value in _MODES,
    f"{format_list(_MODES, 'or')} (reduce-overhead and max-autotune replay CUDA graphs, which "
    "overwrite the scores of earlier micro-batches that a step keeps)",
)


@dataclass(frozen=True)
class Train:
    batch_size: int = key(64, "Number of clips in the mini-batch of one machine.", AT_LEAST_ONE)
    mixed_precision: bool | str = key(
        False,
        "Automatic mixed precision with bfloat16, or with float16 and loss scaling on a GPU "
        "without bfloat16. auto means True on a GPU. On a CPU, auto means True only if the CPU has "
        "AMX and RESNET.WIDTH_PER_GROUP is 32 or more.",
        one_of(False, True, "auto"),
        switch=True,
    )
    tf32: bool = key(
        True,
        "Use TF32 on a GPU: round the inputs of float32 matrix products and convolutions to 10 "
        "bits of mantissa.",
        switch=True,
    )
    cudnn_benchmark: bool = free_key(
        True,
        "Let cuDNN benchmark its convolution algorithms at each shape and use the fastest one.",
        switch=True,
    )
    deterministic: bool = free_key(
        False,
        "Use deterministic algorithms, so that runs on the same machine give the same numbers. "
        "Some kernels are slower.",
        speed=True,
    )
    compile: bool | str = free_key(
        False,
        "Compile the model for each shape before the training begins: True, or a mode of "
        "torch.compile.",
        _COMPILES,
        switch=True,
    )
    eval_period: int = free_key(
        1,
        "Number of epochs between evaluations if the long cycle is off or MULTIGRID.EVAL_FREQ "
        "is 0.",
        AT_LEAST_ONE,
    )
    checkpoint_period: int = free_key(1, "Number of epochs between checkpoints.", AT_LEAST_ONE)
    checkpoints_kept: int = free_key(
        3,
        "Number of latest checkpoints to keep. The checkpoints at the ends of phases are kept in "
        "addition. 0 keeps all checkpoints.",
        FROM_ZERO,
    )
    keep_best: bool = free_key(
        False,
        "Save the weights with the best validation so far, by the recipe's first metric, as "
        "checkpoint_best.pyth. With MODEL.EMA_DECAY, the metric is that of the averaged weights.",
    )
    freeze: tuple[str, ...] = speed_key(
        (),
        "Freeze parts of the model: names of modules or parameters, with wildcards `*` and `?`, or "
        "backbone for everything except the head. Frozen parts also keep their BN statistics and "
        "have no dropout.",
    )
    accept_changes: tuple[str, ...] = free_key(
        (),
        "Differences with which a run may resume: names of keys, or train_list, val_list, "
        "train_clips, val_clips (the video files), weights (the initial weights), code (of the "
        "modules in IMPORTS), schedule, rates, or division (into processes and micro-batches). The "
        "error that refuses to resume lists the names. result.json lists the accepted changes.",
    )
    auto_resume: bool = free_key(True, "Resume the run in OUTPUT_DIR if it has a checkpoint.")
    enable: bool = key(True, "Train the model.")
    dataset: str = key("kinetics", "Data set to train on.")
    checkpoint_file_path: str = key(
        "", "Checkpoint with the initial weights. Empty: no checkpoint.", private=True
    )
    checkpoint_share: float = free_key(
        0.5,
        "Smallest share of the model's weights, without its head, that the file of the initial "
        "weights must fill. The other weights keep their random values. A file that fills less is "
        "refused, because it is probably of another model.",
        PART,
    )
    checkpoint_inflate: bool = key(
        False, "Inflate the weights of a 2D network to 3D when they are loaded."
    )


@dataclass(frozen=True)
class Test:
    enable: bool = free_key(True, "Test the model after training.")
    dataset: str = free_key("kinetics", "Data set to test on. By default that of TRAIN.DATASET.")
    batch_size: int = free_key(
        8,
        "Number of clips in the mini-batch of one machine in the multi-view test. A validation "
        "during the training has TRAIN.BATCH_SIZE clips, divided by ACCUMULATION_STEPS.",
        AT_LEAST_ONE,
    )
    num_ensemble_views: int = free_key(
        10,
        "Number of temporal views: clips that are spread over a video.",
        AT_LEAST_ONE,
    )
    num_spatial_crops: int = free_key(
        3, "Number of spatial crops of each temporal view.", one_of(1, 3)
    )
    checkpoint_file_path: str = free_key("", "Checkpoint to test.", private=True)
    save_results_path: str = free_key(
        "",
        "CSV file in OUTPUT_DIR for the predictions of the test: label, prediction and class "
        "probabilities of each video. An existing file is replaced. Empty: no file.",
        CSV,
    )
