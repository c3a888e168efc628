"""The keys of networks: MODEL, their sections, and BN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slowfast_patches.config.families import FAMILIES, ModelFamily
from slowfast_patches.config.fields import (
    AT_LEAST_ONE,
    BELOW_ONE,
    FROM_ZERO,
    SHIFT,
    SIZE,
    from_to,
    key,
    one_of,
)

__all__ = ["BatchNorm", "Detection", "Hf", "Model", "NonLocal", "ResNet", "SlowFast", "Tsm"]


Stages = tuple[tuple[int, ...], ...]
"""A number for each stage, and in it for each pathway."""
Places = tuple[tuple[tuple[int, ...], ...], ...]
"""Several of them."""


@dataclass(frozen=True)
class Model:
    arch: str = key(
        "slowfast",
        "The architecture. nopool is the host's for C2D and I3D that keep all frames; the "
        "others pool pairs of them after the first stage. slow is slowonly, hf a video "
        "transformer of the package transformers (HF).",
        one_of(*FAMILIES),
        speed=True,
    )
    num_classes: int = key(
        400,
        "Classes of the data set; auto, or where neither the recipe nor the command line has this "
        "key: those of the training list.",
        from_to(1, 10**6),
        speed=True,
    )
    head_act: str = key(
        "softmax",
        "What makes scores of the head's outputs in evaluation: softmax, or sigmoid for several "
        "labels a video.",
    )
    label_smoothing: float = key(
        0.0,
        "Part of a clip's label that is spread evenly over all classes in the training's loss "
        "(Szegedy et al., 2016, section 7).",
        BELOW_ONE,
        needs="DATA.MULTI_LABEL False",
    )
    ema_decay: float = key(
        0.0,
        "Decay an iteration of an exponential moving average of the weights, which is evaluated "
        "beside them (Polyak and Juditsky, 1992; Tarvainen and Valpola, 2017).",
        BELOW_ONE,
        speed=True,
    )
    channels_last: bool = key(
        False,
        "Clips and weights with a pixel's channels side by side, as tensor cores read them.",
        may_differ=True,
        switch=True,
    )
    act_checkpoint: bool = key(
        False,
        "Compute a block's activations anew in the backward pass instead of keeping them.",
        may_differ=True,
        speed=True,
    )
    loss_func: str = "cross_entropy"
    dropout_rate: float = 0.5
    fc_init_std: float = 0.01

    @property
    def family(self) -> ModelFamily:
        return FAMILIES[self.arch]

    @property
    def has_two_pathways(self) -> bool:
        return self.family.pathways == 2

    @property
    def has_batchnorm(self) -> bool:
        return self.family.has_batchnorm


@dataclass(frozen=True)
class SlowFast:
    alpha: int = key(
        8, "Frames of the fast pathway for each of the slow one.", AT_LEAST_ONE, speed=True
    )
    beta_inv: int = key(
        8, "Channels of the slow pathway for each of the fast one.", AT_LEAST_ONE, speed=True
    )
    fusion_conv_channel_ratio: int = key(2, "Fused channels for each fast.", SIZE, speed=True)
    fusion_kernel_sz: int = key(5, "Frames of the fusing kernel.", SIZE, speed=True)


@dataclass(frozen=True)
class Tsm:
    shift_div: int = key(
        8,
        "MODEL.ARCH tsm: 1/SHIFT_DIV of the channels move one frame back, as many one frame "
        "forward; 0 moves none.",
        SHIFT,
        speed=True,
        needs="MODEL.ARCH tsm",
    )


@dataclass(frozen=True)
class Hf:
    model: str = key(
        "videomae",
        "MODEL.ARCH hf: a type of model (videomae, timesformer, vivit or vjepa2), which starts "
        "from scratch; a folder with a config.json and, if there are any, weights to start from in "
        "*.safetensors; or the name of a model with such weights on the Hugging Face Hub, fetched "
        "once.",
        speed=True,
        needs="MODEL.ARCH hf",
    )
    config: Mapping[str, Any] = key(
        {},
        "Values of the model's configuration, such as hidden_size, others than its type's or "
        "its folder's; on the command line also one by one, HF.CONFIG.hidden_size 192. Grid and "
        "classes follow from DATA and MODEL.NUM_CLASSES.",
        speed=True,
        needs="MODEL.ARCH hf",
    )
    drop_path: float = key(
        0.0,
        "Chance that a clip skips a residual branch of the last layer, rising linearly from 0 "
        "at the first (stochastic depth, Huang et al., 2016).",
        BELOW_ONE,
        needs="MODEL.ARCH hf",
    )


@dataclass(frozen=True)
class ResNet:
    # The host's basic_transform cannot be built: it does not take the host's own arguments.
    trans_func: str = key(
        "bottleneck_transform", "Of blocks.", one_of("bottleneck_transform"), speed=True
    )
    depth: int = key(50, "Layers.", one_of(50, 101), speed=True)
    num_groups: int = key(1, "Groups of a block's convolution.", SIZE, speed=True)
    width_per_group: int = key(64, "Channels of the first blocks.", SIZE, speed=True)
    inplace_relu: bool = key(True, "ReLU in place.", speed=True)
    stride_1x1: bool = key(False, "Stride in a block's first convolution.", speed=True)
    num_block_temp_kernel: Stages = key(
        ((3,), (4,), (6,), (3,)), "Blocks with a temporal kernel.", speed=True
    )
    spatial_strides: Stages = key(((1,), (2,), (2,), (2,)), "Stride of each stage.", speed=True)
    spatial_dilations: Stages = key(((1,),) * 4, "Dilation of each stage.", speed=True)
    zero_init_final_bn: bool = False


@dataclass(frozen=True)
class NonLocal:
    location: Places = key((((),),) * 4, "Blocks that a non-local one follows.", speed=True)
    group: Stages = key(((1,),) * 4, "Parts of a clip.", speed=True)
    pool: Places = key((((1, 2, 2), (1, 2, 2)),) * 4, "Pooling of what is looked at.", speed=True)
    instantiation: str = key("dot_product", "dot_product or softmax.", speed=True)


@dataclass(frozen=True)
class Detection:
    enable: bool = key(
        False, "Score boxes at key frames, as of AVA, in the place of whole videos.", speed=True
    )
    aligned: bool = key(
        True,
        "ROIAlign takes the centre of a value for its place; False as earlier releases.",
        needs="DETECTION.ENABLE True",
    )
    spatial_scale_factor: int = key(
        16,
        "Pixels of a clip to one of the last feature map's: 4 times the strides of the stages.",
        AT_LEAST_ONE,
        needs="DETECTION.ENABLE True",
    )
    roi_xform_resolution: int = key(
        7, "Features along a side of a box.", AT_LEAST_ONE, needs="DETECTION.ENABLE True"
    )


@dataclass(frozen=True)
class BatchNorm:
    group_size: int = key(
        0,
        "Clips that share statistics where no cycle is on, on however many processes; 0: those "
        "that each process has. With a cycle: MULTIGRID.BN_BASE_SIZE.",
        FROM_ZERO,
    )
    use_precise_stats: bool = False
    num_batches_precise: int = 200
    weight_decay: float = key(
        0.0, "Weight decay of scale and shift.", needs="SOLVER.OPTIMIZING_METHOD sgd adam adamw"
    )
