"""A recipe as frozen dataclasses: every key with its default, its help, its check and its flags.

A section of the config is a dataclass, and a field has its key's name in small letters:
DATA.NUM_FRAMES is `recipe.data.num_frames`. To add a key, add its field here; loading, the table in
docs/keys.md and the comparison with checkpoints follow from it. Fields without a `key(...)` are the
host's, as the host has them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, make_dataclass
from functools import cache, reduce
from typing import Any

from slowfast.config import defaults as host_defaults

from multigrid import Shape
from slowfast_patches.config.fields import (
    ABOVE_ZERO,
    AT_LEAST_ONE,
    AUTO_OR_COUNT,
    AUTO_OR_SWITCH,
    BELOW_ONE,
    COMPILE,
    CROP,
    CSV,
    FACTORS,
    FROM_ZERO,
    LONG_CYCLE,
    NUMBERS,
    PART,
    RATIO,
    SHIFT,
    SIZE,
    WEIGHTS,
    Key,
    above_zero_to,
    from_to,
    key,
    one_of,
)
from slowfast_patches.config.yaml_text import dump_yaml, flatten, parse_yaml

__all__ = [
    "KEYS",
    "PER_PATHWAY",
    "Data",
    "Recipe",
    "default_recipe",
    "differences",
    "host_config",
    "keys_of",
    "parse_yaml",
    "stored_keys",
]

Stages = tuple[tuple[Any, ...], ...]
"""An entry for each stage, and in it one for each pathway."""

PER_PATHWAY = (
    "RESNET.NUM_BLOCK_TEMP_KERNEL",
    "RESNET.SPATIAL_STRIDES",
    "RESNET.SPATIAL_DILATIONS",
    "NONLOCAL.LOCATION",
    "NONLOCAL.GROUP",
    "NONLOCAL.POOL",
)
"""The keys whose values are `Stages`."""

_ONE_PATHWAY = ["c2d", "i3d", "slowonly", "slow", "c2d_nopool", "i3d_nopool", "tsm", "hf"]
"""Architectures of one pathway, as the host's code wants them listed."""


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


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
    )
    equal_time: bool = key(
        False,
        "Shapes of a long cycle take equal times, as their pixels say, where the paper's take "
        "equal iterations, which is the same at BATCH_EXPONENT 1.",
    )
    keep_field_of_view: bool = key(
        False,
        "Short sides of coarse grids are drawn from [min · h/H, max · h/H] of "
        "DATA.TRAIN_JITTER_SCALES, so that their crops show as much as the baseline's, not from "
        "the paper's [min · h/H, max] (section 4).",
    )
    warmup_in_epochs: bool = key(
        False,
        "The warm-up takes SOLVER.WARMUP_EPOCHS passes over the data, as in later releases of "
        "PySlowFast, and ends within the first shapes; without, it is scaled as all lengths "
        "are. Both are our reading: the paper does not say.",
    )
    fine_tuning: bool = key(
        True,
        "The last stage of the rate is the fine-tuning phase. Without, it has the cycles and "
        "its own rate as the stages before: our reading of section 4.2, where that costs 0.4 "
        "points.",
    )


@dataclass(frozen=True)
class Model:
    arch: str = key(
        "slowfast",
        "The architecture. nopool is the host's for C2D and I3D that keep all frames; the "
        "others pool pairs of them after the first stage. slow is slowonly, hf a video "
        "transformer of the package transformers (HF).",
        one_of("slowfast", "slowonly", "c2d", "c2d_nopool", "i3d", "i3d_nopool", "tsm", "hf"),
        speed=True,
    )
    num_classes: int = key(400, "Classes of the data set.", from_to(1, 10**6), speed=True)
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
    )
    ema_decay: float = key(
        0.0,
        "Decay an iteration of an exponential moving average of the weights, which is evaluated "
        "beside them (Polyak and Juditsky, 1992).",
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
    def has_two_pathways(self) -> bool:
        return self.arch == "slowfast"

    @property
    def has_batchnorm(self) -> bool:
        return self.arch != "hf"


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
    )


@dataclass(frozen=True)
class Hf:
    model: str = key(
        "videomae",
        "MODEL.ARCH hf: a type of model (videomae, timesformer, vivit or vjepa2), which starts "
        "from scratch, or a folder with a config.json and, if there are any, weights to start "
        "from in *.safetensors. Nothing is fetched.",
        speed=True,
    )
    config: Mapping[str, Any] = key(
        {},
        "Values of the model's configuration, such as hidden_size, others than its type's or "
        "its folder's; on the command line also one by one, HF.CONFIG.hidden_size 192. Grid and "
        "classes follow from DATA and MODEL.NUM_CLASSES.",
        speed=True,
    )
    drop_path: float = key(
        0.0,
        "Chance that a clip skips a residual branch of the last layer, rising linearly from 0 "
        "at the first (stochastic depth, Huang et al., 2016).",
        BELOW_ONE,
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
    location: Stages = key((((),),) * 4, "Blocks that a non-local one follows.", speed=True)
    group: Stages = key(((1,),) * 4, "Parts of a clip.", speed=True)
    pool: Stages = key((((1, 2, 2), (1, 2, 2)),) * 4, "Pooling of what is looked at.", speed=True)
    instantiation: str = key("dot_product", "dot_product or softmax.", speed=True)


@dataclass(frozen=True)
class Detection:
    # A loop of one's own may train the model that the host makes.
    enable: bool = key(False, "Detection, which is not trained here.")
    aligned: bool = True
    spatial_scale_factor: int = 16
    roi_xform_resolution: int = 7


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
    weight_decay: float = 0.0


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
    )
    cutmix_alpha: float = key(
        1.0,
        "Cutmix (Yun et al., 2019): a box of all frames is the neighbour's, its share of "
        "Beta(CUTMIX_ALPHA, CUTMIX_ALPHA); 0 is mixup only.",
        FROM_ZERO,
    )
    prob: float = key(1.0, "Part of the clips that are blended.", PART)
    switch_prob: float = key(
        0.5, "Part of these that are cutmix, where both alphas are above 0.", PART
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
    steps: tuple[float, ...] = key((), "Epochs at which stages start, from 0.", NUMBERS)
    lrs: tuple[float, ...] = key(
        (), "Rates of the stages over BASE_LR; empty: powers of GAMMA.", NUMBERS
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
    base_lr_scale_num_shards: bool = key(
        False, "Multiply the rates by NUM_SHARDS, or what BATCH_RATE_RULE makes of it."
    )
    reference_batch_size: int = key(
        0,
        "Clips of a global mini-batch that BASE_LR and COSINE_END_LR belong to: they are "
        "multiplied by batch / this, or what BATCH_RATE_RULE makes of it. WARMUP_START_LR is "
        "not: a warm-up starts at BASE_LR as it is written (Goyal et al., 2017). 0 is off.",
        FROM_ZERO,
    )
    reference_world_size: int = key(
        0,
        "GPUs of one machine that the recipe's TRAIN.BATCH_SIZE and learning rates were written "
        "for: both are scaled to the processes of the run, the rates by BATCH_RATE_RULE. 0 is "
        "off.",
        FROM_ZERO,
        may_differ=True,
    )
    optimizing_method: str = key(
        "sgd",
        "The host's sgd and adam; torch's adamw with the host's moments (Loshchilov and Hutter, "
        "2019); lars (You, Gitman and Ginsburg, 2017).",
        one_of("sgd", "adam", "adamw", "lars"),
        speed=True,
    )
    lars_trust: float = key(
        0.001,
        "lars: the trust coefficient, by which a weight's rate is multiplied beside the ratio "
        "of its norm to its gradient's.",
        ABOVE_ZERO,
    )
    layer_decay: float = key(
        1.0,
        "MODEL.ARCH hf: the rate of a layer is this times that of the layer behind it; the head "
        "has the whole, embeddings the smallest (BEiT, Bao et al., 2022). 1 is off.",
        RATIO,
    )
    clip_grad_val: float | None = key(None, "Largest value of a gradient; None clips nothing.")
    clip_grad_l2norm: float | None = key(
        None, "Largest L2 norm of all gradients; None clips nothing."
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
        "and the rates stay.",
        AT_LEAST_ONE,
        may_differ=True,
        speed=True,
    )
    fused: bool = key(
        False,
        "Update all parameters in one kernel (sgd, adam and adamw).",
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
        AUTO_OR_SWITCH,
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
        COMPILE,
        may_differ=True,
        switch=True,
    )
    eval_period: int = key(
        1,
        "Epochs from evaluation to evaluation, without the long cycle.",
        AT_LEAST_ONE,
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
    num_ensemble_views: int = key(10, "Clips along a video.", AT_LEAST_ONE, may_differ=True)
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


Ava = make_dataclass(
    "Ava",
    [
        (name.lower(), type(value), key(_frozen(value), ""))
        for name, value in host_defaults.get_cfg().AVA.items()
    ],
    frozen=True,
    namespace={"__module__": __name__},
)
"""The host's lists for detection, which is not trained here."""


@dataclass(frozen=True)
class Recipe:
    """All keys of a run; `Recipe()` has every one at its default."""

    multigrid: Multigrid = Multigrid()
    model: Model = Model()
    slowfast: SlowFast = SlowFast()
    tsm: Tsm = Tsm()
    hf: Hf = Hf()
    resnet: ResNet = ResNet()
    nonlocal_: NonLocal = NonLocal()
    detection: Detection = Detection()
    ava: Any = Ava()  # the keys of AVA as the host has them
    bn: BatchNorm = BatchNorm()
    data: Data = Data()
    mixup: Mixup = Mixup()
    data_loader: DataLoading = DataLoading()
    solver: Solver = Solver()
    train: Train = Train()
    test: Test = Test()
    num_gpus: int = key(1, "GPUs of a machine; 0 is the CPU.", from_to(0, 1024), may_differ=True)
    num_shards: int = key(1, "Machines.", AT_LEAST_ONE)
    shard_id: int = key(0, "This machine.", may_differ=True)
    rng_seed: int = key(1, "What all randomness of a run follows from.", FROM_ZERO)
    output_dir: str = key("./tmp", "The run's folder.", may_differ=True)
    log_period: int = key(
        10, "Iterations from line to line of the log.", AT_LEAST_ONE, may_differ=True
    )
    log_model_info: bool = key(True, "Log the model's parameters and operations.", may_differ=True)
    dist_backend: str = key(
        "auto",
        "auto is nccl with GPUs and gloo without.",
        one_of("auto", "nccl", "gloo"),
        may_differ=True,
    )
    dist_join_seconds: float = key(
        300.0,
        "Seconds that a process of several waits for the others to come together.",
        above_zero_to(10**9),
        may_differ=True,
    )
    dist_stall_seconds: float = key(
        1800.0,
        "Seconds that one may wait in a collective for the others; then the run ends.",
        above_zero_to(10**9),
        may_differ=True,
    )

    @property
    def text(self) -> str:
        """All keys as YAML, from which the recipe can be made again."""
        return dump_yaml(_nested(keys_of(self), {}))

    @property
    def uses_multigrid(self) -> bool:
        """Whether the long cycle, the short cycle, or both are on."""
        return self.multigrid.long_cycle or self.multigrid.short_cycle

    @property
    def groups_batchnorm(self) -> bool:
        """Whether BN is over a given number of clips, and not over those that a process has."""
        return self.bn_size > 0

    @property
    def bn_size(self) -> int:
        """The clips that share BN statistics at the baseline's crop; 0: those of a process."""
        if not self.model.has_batchnorm:
            return 0
        return self.multigrid.bn_base_size if self.uses_multigrid else self.bn.group_size

    @property
    def base_shape(self) -> Shape:
        """The baseline's mini-batch over all machines: TRAIN.BATCH_SIZE is one machine's."""
        batch = self.train.batch_size * self.num_shards
        return Shape(batch, self.data.num_frames, self.data.train_crop_size)

    def __getitem__(self, name: str) -> Any:
        """The value of a key by its name in the config, such as "DATA.NUM_FRAMES"."""
        return reduce(getattr, _path(name), self)

    def replaced(self, values: Mapping[str, Any]) -> Recipe:
        """The recipe with other values of some keys, by their names in the config.

        They are taken as they are: nothing is checked, and nothing follows from them.
        """
        changes: dict[str, dict[str, Any]] = {"": {}}
        for name, value in values.items():
            *sections, field = _path(name)
            changes.setdefault("".join(sections), {})[field] = _frozen(value)
        fields = changes.pop("")
        for section, inner in changes.items():
            fields[section] = dataclasses.replace(getattr(self, section), **inner)
        return dataclasses.replace(self, **fields)


def _path(name: str) -> list[str]:
    """A key as the names of attributes; nonlocal is a word of Python's."""
    return name.lower().replace("nonlocal.", "nonlocal_.").split(".")


def _all_keys() -> Iterator[tuple[str, Key]]:
    for outer in dataclasses.fields(Recipe):
        name = outer.name.upper().rstrip("_")
        if dataclasses.is_dataclass(outer.default):
            for inner in dataclasses.fields(outer.default):
                yield f"{name}.{inner.name.upper()}", inner.metadata.get("key", Key())
        else:
            yield name, outer.metadata["key"]


KEYS: Mapping[str, Key] = dict(_all_keys())
"""The keys by full name, in the order of the fields."""


@cache
def default_recipe() -> Recipe:
    """Every key at its default."""
    return Recipe()


def keys_of(recipe: Recipe) -> dict[str, Any]:
    """The values of a recipe by full key, as plain data: lists in the place of tuples."""
    return {name: _plain(recipe[name]) for name in KEYS}


def stored_keys(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config that was stored with a checkpoint or a result, by full key.

    A key that is newer than the file is at its default, which changes nothing.
    """
    return keys_of(default_recipe()) | dict(flatten(tree))


def differences(
    stored: Mapping[str, object],
    wanted: Mapping[str, object],
    now: str,
    ignored: Collection[str] = (),
) -> list[str]:
    """The keys whose values are others, as "KEY 1 there, 2 now"."""
    keys = sorted((stored.keys() | wanted.keys()).difference(ignored))
    values = [(key, stored.get(key, "(absent)"), wanted.get(key, "(absent)")) for key in keys]
    return [f"{key} {old} there, {new} {now}" for key, old, new in values if old != new]


def host_config(recipe: Recipe) -> Any:
    """The config object that the host's own functions take; the caller's to change."""
    node = _nested(keys_of(recipe), host_defaults.get_cfg())
    node.MODEL.SINGLE_PATHWAY_ARCH = list(_ONE_PATHWAY)
    node.MODEL.MODEL_NAME = "SlowFast" if recipe.model.has_two_pathways else "ResNet"
    return node


def _nested(values: Mapping[str, Any], tree: Any) -> Any:
    """Put values by full key into the sections of `tree`, a mapping of either kind."""
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        node = tree.setdefault(section, type(tree)()) if section else tree
        node[key] = value
    return tree


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
