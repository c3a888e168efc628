"""Keys of the model: MODEL, SLOWFAST, TSM, HF, RESNET, NONLOCAL and BN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slowfast_patches.config.fields import (
    AT_LEAST_ONE,
    BELOW_ONE,
    FROM_ZERO,
    PART,
    STAGES,
    Check,
    free_key,
    key,
    one_of,
    only_with,
    speed_key,
    training_key,
    with_backbone,
)
from slowfast_patches.registry import MODELS, ModelSpec

Stages = tuple[tuple[int, ...], ...]
"""One number for each pathway of each stage."""
Places = tuple[tuple[tuple[int, ...], ...], ...]
"""Several numbers for each pathway of each stage."""


@dataclass(frozen=True)
class Model:
    arch: str = speed_key(
        "slowfast",
        "Architecture. c2d and i3d pool pairs of frames after the first stage; c2d_nopool and "
        "i3d_nopool keep all frames. slow is another name for slowonly. Extras and modules of "
        "IMPORTS register more architectures.",
        Check(
            MODELS.__contains__,
            "slowfast, slowonly, c2d, c2d_nopool, i3d, i3d_nopool, or the name of another "
            "registered model",
        ),
        later=(
            "`slow` becomes `slowonly`.",
            lambda values: {"MODEL.ARCH": "slowonly"} if values["MODEL.ARCH"] == "slow" else {},
        ),
    )
    num_classes: int = speed_key(
        400,
        "Number of classes. If this key is auto or not set, the classes in the training list are "
        "counted.",
        AT_LEAST_ONE,
    )
    head_act: str = key(
        "softmax",
        "Activation that turns logits into scores in evaluation: softmax, or sigmoid if a video "
        "may have several labels. If this key is not set, its value follows from the task.",
    )
    label_smoothing: float = training_key(
        0.0,
        "Label smoothing in the training loss: the fraction of a label that is spread evenly over "
        "all classes (Szegedy et al., 2016, section 7).",
        BELOW_ONE,
        needs=only_with("DATA.MULTI_LABEL", False),
    )
    ema_decay: float = speed_key(
        0.0,
        "Decay of an exponential moving average of the weights, which is updated at each iteration "
        "(Polyak and Juditsky, 1992; Tarvainen and Valpola, 2017). Evaluations score both the "
        "weights and their average. 0 means no average.",
        BELOW_ONE,
        only_training=True,
    )
    channels_last: bool = free_key(
        False,
        "Store clips and weights in the memory format channels_last_3d, which is faster on tensor "
        "cores.",
        switch=True,
    )
    act_checkpoint: bool = free_key(
        False,
        "Activation checkpointing: save memory by computing the activations of a block again in "
        "the backward pass instead of storing them.",
        speed=True,
    )
    loss_func: str = training_key(
        "cross_entropy",
        "Training loss: cross_entropy for one label per video, bce_logit for several labels, bce "
        "for a network that returns probabilities. If this key is not set, its value follows from "
        "the task.",
    )
    dropout_rate: float = training_key(
        0.5,
        "Dropout rate of the head.",
        PART,
    )
    fc_init_std: float = training_key(
        0.01,
        "Standard deviation of the head's initial weights.",
        FROM_ZERO,
    )

    @property
    def spec(self) -> ModelSpec:
        return MODELS[self.arch]

    @property
    def has_two_pathways(self) -> bool:
        return self.spec.pathways == 2

    @property
    def has_batchnorm(self) -> bool:
        return self.spec.has_batchnorm


@dataclass(frozen=True)
class SlowFast:
    alpha: int = speed_key(
        8,
        "Number of frames in the fast pathway for each frame in the slow pathway.",
        AT_LEAST_ONE,
    )
    beta_inv: int = speed_key(
        8,
        "Number of channels in the slow pathway for each channel in the fast pathway.",
        AT_LEAST_ONE,
    )
    fusion_conv_channel_ratio: int = speed_key(
        2,
        "Number of output channels of a lateral convolution for each channel in the fast pathway.",
        AT_LEAST_ONE,
    )
    fusion_kernel_sz: int = speed_key(
        5, "Temporal kernel size of the lateral convolutions.", AT_LEAST_ONE
    )


@dataclass(frozen=True)
class ResNet:
    depth: int = speed_key(50, "Number of layers of the ResNet.", one_of(50, 101))
    num_groups: int = speed_key(
        1, "Number of groups in the 3×3 convolution of a block.", AT_LEAST_ONE
    )
    width_per_group: int = speed_key(
        64, "Number of channels per group in the first stage.", AT_LEAST_ONE
    )
    inplace_relu: bool = speed_key(
        True,
        "Use in-place ReLU.",
        only_training=True,
    )
    stride_1x1: bool = speed_key(
        False,
        "Apply the spatial stride of a block in the first 1×1 convolution instead of the 3×3 "
        "convolution.",
    )
    num_block_temp_kernel: Stages = speed_key(
        ((3,), (4,), (6,), (3,)),
        "Number of blocks in each stage that have temporal kernels.",
        STAGES,
    )
    spatial_strides: Stages = speed_key(
        ((1,), (2,), (2,), (2,)), "Spatial stride of each stage.", STAGES
    )
    spatial_dilations: Stages = speed_key(((1,),) * 4, "Spatial dilation of each stage.", STAGES)
    zero_init_final_bn: bool = training_key(
        False,
        "Initialise the scale of the last BN layer of each block with 0.",
    )


@dataclass(frozen=True)
class NonLocal:
    location: Places = speed_key(
        (((),),) * 4,
        "Indices of the blocks in each stage that are followed by a non-local block.",
        STAGES,
    )
    group: Stages = speed_key(
        ((1,),) * 4,
        "Number of temporal segments into which a non-local block splits a clip.",
        STAGES,
    )
    pool: Places = speed_key(
        (((1, 2, 2), (1, 2, 2)),) * 4,
        "Pooling kernel for the keys and values of a non-local block.",
        STAGES,
    )
    instantiation: str = speed_key(
        "dot_product",
        "Normalisation of the attention in non-local blocks: dot_product or softmax.",
        one_of("dot_product", "softmax"),
    )


def _in_the_baseline(recipe: Any) -> str | None:
    if not recipe.uses_multigrid or recipe.bn_group_size in (0, recipe.bn.group_size):
        return None
    return f"with a cycle, where {recipe.bn_key} {recipe.bn_group_size} clips share statistics"


@dataclass(frozen=True)
class BatchNorm:
    group_size: int = key(
        0,
        "Number of clips that share BN statistics, independent of the number of processes. 0 means "
        "that the clips of each process share statistics. If the long or the short cycle is on, "
        "MULTIGRID.BN_BASE_SIZE applies instead.",
        FROM_ZERO,
        needs=_in_the_baseline,
    )
    use_precise_stats: bool = key(
        False,
        "Recompute the running statistics from training clips before each evaluation.",
        needs=with_backbone,
    )
    num_batches_precise: int = key(
        200, "Number of mini-batches for USE_PRECISE_STATS.", AT_LEAST_ONE
    )
    weight_decay: float = key(
        0.0,
        "Weight decay of the scale and shift of BN layers.",
        FROM_ZERO,
    )
