"""A recipe as plain data: what all code behind config/ is given in the place of a config object.

A section of the config is a dataclass, and a field has its key's name in small letters:
DATA.NUM_FRAMES is `recipe.data.num_frames`. config/keys.py says what each key means.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from typing import Any, TypeVar, get_type_hints

import yaml
from fvcore.common.config import CfgNode

from multigrid import Shape
from slowfast_patches.config.keys import flatten, get_cfg

__all__ = [
    "Data",
    "Recipe",
    "default_recipe",
    "differences",
    "host_config",
    "keys_of",
    "parse_yaml",
    "recipe_of",
    "stored_keys",
]

Stages = tuple[tuple[Any, ...], ...]
"""An entry for each stage, and in it one for each pathway."""

_KNOWN_NAMES = frozenset({"MODEL.SINGLE_PATHWAY_ARCH", "MODEL.MULTI_PATHWAY_ARCH"})
"""Lists of the architectures that a version knows: they say nothing of the one that is trained."""

_LOADER, _DUMPER = (
    getattr(yaml, f"C{name}", getattr(yaml, name)) for name in ("SafeLoader", "SafeDumper")
)
"""Ten times as fast where PyYAML has its C library, as its wheels do."""


@dataclass(frozen=True)
class Model:
    arch: str
    num_classes: int
    loss_func: str
    head_act: str
    label_smoothing: float
    dropout_rate: float
    ema_decay: float
    channels_last: bool
    act_checkpoint: bool
    multi_pathway_arch: tuple[str, ...]

    @property
    def has_two_pathways(self) -> bool:
        return self.arch in self.multi_pathway_arch

    @property
    def has_batchnorm(self) -> bool:
        return self.arch != "hf"


@dataclass(frozen=True)
class SlowFast:
    alpha: int
    beta_inv: int


@dataclass(frozen=True)
class Tsm:
    shift_div: int


@dataclass(frozen=True)
class Hf:
    model: str
    config: tuple[tuple[str, Any], ...]
    drop_path: float


@dataclass(frozen=True)
class ResNet:
    trans_func: str
    width_per_group: int
    num_block_temp_kernel: Stages
    spatial_strides: Stages
    spatial_dilations: Stages


@dataclass(frozen=True)
class NonLocal:
    location: Stages
    group: Stages
    pool: Stages


@dataclass(frozen=True)
class Detection:
    enable: bool


@dataclass(frozen=True)
class Data:
    path_to_data_dir: str
    path_prefix: str
    path_label_separator: str
    num_frames: int
    sampling_rate: int
    clip_sampling: str
    exact_strides: bool
    repeated_clips: int
    target_fps: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    input_channel_num: tuple[int, ...]
    reverse_input_channel: bool
    crop_size: int
    train_crop_size: int
    train_jitter_scales: tuple[int, int]
    test_crop_size: int
    inv_uniform_sample: bool
    random_flip: bool
    multi_label: bool
    ensemble_method: str
    max_frame_pixels: int
    max_bad_fraction: float
    num_train_videos: int


@dataclass(frozen=True)
class Mixup:
    enable: bool
    alpha: float
    cutmix_alpha: float
    prob: float
    switch_prob: float


@dataclass(frozen=True)
class DataLoading:
    num_workers: int | str
    pin_memory: bool
    enable_multi_thread_decode: bool


@dataclass(frozen=True)
class BatchNorm:
    use_precise_stats: bool
    num_batches_precise: int
    weight_decay: float
    group_size: int


@dataclass(frozen=True)
class Solver:
    base_lr: float
    lr_policy: str
    gamma: float
    steps: tuple[float, ...]
    lrs: tuple[float, ...]
    max_epoch: float
    warmup_epochs: float
    warmup_start_lr: float
    cosine_end_lr: float
    batch_rate_rule: str
    base_lr_scale_num_shards: bool
    reference_batch_size: int
    reference_world_size: int
    optimizing_method: str
    momentum: float
    dampening: float
    nesterov: bool
    lars_trust: float
    layer_decay: float
    clip_grad_val: float | None
    clip_grad_l2norm: float | None
    zero_wd_1d_param: bool
    accumulation_steps: int
    fused: bool


@dataclass(frozen=True)
class Multigrid:
    epoch_factor: float
    short_cycle: bool
    short_cycle_factors: tuple[float, ...]
    long_cycle: bool
    long_cycle_factors: tuple[tuple[float, float], ...]
    bn_base_size: int
    eval_freq: int
    size_divisor: int
    batch_exponent: float
    equal_time: bool
    keep_field_of_view: bool
    warmup_in_epochs: bool
    short_cycle_at_end: bool


@dataclass(frozen=True)
class Train:
    enable: bool
    dataset: str
    batch_size: int
    eval_period: int
    checkpoint_period: int
    checkpoints_kept: int
    keep_best: bool
    auto_resume: bool
    checkpoint_file_path: str
    checkpoint_type: str
    checkpoint_inflate: bool
    mixed_precision: bool | str  # True, False, or "auto" until it is decided
    tf32: bool
    cudnn_benchmark: bool
    deterministic: bool
    compile: bool
    cuda_graphs: bool


@dataclass(frozen=True)
class Test:
    enable: bool
    dataset: str
    batch_size: int
    num_ensemble_views: int
    num_spatial_crops: int
    checkpoint_file_path: str
    checkpoint_type: str
    save_results_path: str


@dataclass(frozen=True)
class Recipe:
    """All that a run is told. `text` is the whole config as YAML, from which it can be made again;
    another recipe is made by `replaced`, so that the two never disagree."""

    text: str = dataclasses.field(repr=False)
    model: Model
    slowfast: SlowFast
    tsm: Tsm
    hf: Hf
    resnet: ResNet
    nonlocal_: NonLocal
    detection: Detection
    data: Data
    mixup: Mixup
    data_loader: DataLoading
    bn: BatchNorm
    solver: Solver
    multigrid: Multigrid
    train: Train
    test: Test
    num_gpus: int
    num_shards: int
    shard_id: int
    output_dir: str
    rng_seed: int
    log_period: int
    log_model_info: bool
    dist_backend: str
    dist_join_seconds: float
    dist_stall_seconds: float

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

    def __getitem__(self, key: str) -> Any:
        """The value of a key by its name in the config, such as "DATA.NUM_FRAMES"."""
        return reduce(getattr, key.lower().replace("nonlocal.", "nonlocal_.").split("."), self)

    def replaced(self, values: Mapping[str, Any]) -> Recipe:
        """The recipe with other values of some keys, by their names in the config.

        They are taken as they are: nothing is checked, and nothing follows from them.
        """
        node = host_config(self)
        for key, value in values.items():
            _put(node, key, value)
        return recipe_of(node)


T = TypeVar("T")


def recipe_of(node: CfgNode) -> Recipe:
    """The recipe that a config object describes, whose values are of their keys' types."""
    return _read(Recipe, node, text=yaml.dump(_plain(node), Dumper=_DUMPER))


@cache
def default_recipe() -> Recipe:
    """Every key at its default."""
    return recipe_of(get_cfg())


def parse_yaml(text: str) -> Any:
    """What a YAML text holds; nothing in it is executed. Raises yaml.YAMLError."""
    return yaml.load(text, _LOADER)


def keys_of(recipe: Recipe) -> dict[str, Any]:
    """The values of a config by full key, as plain data."""
    return _flat(parse_yaml(recipe.text))


def stored_keys(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config that was stored with a checkpoint or a result, by full key.

    A key that is newer than the file is at its default, which changes nothing.
    """
    return keys_of(default_recipe()) | _flat(tree)


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


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in flatten(tree) if key not in _KNOWN_NAMES}


def host_config(recipe: Recipe) -> Any:
    """The config object that the host's own functions take; the caller's to change."""
    return _parsed(recipe.text).clone()


@lru_cache(maxsize=64)
def _parsed(text: str) -> CfgNode:
    node = get_cfg()
    for key, value in flatten(parse_yaml(text)):
        _put(node, key, value)
    return node


def _put(node: CfgNode, key: str, value: Any) -> None:
    *sections, name = key.split(".")
    reduce(getattr, sections, node)[name] = value


def _read(kind: type[T], node: CfgNode, **given: Any) -> T:
    """A dataclass from the keys of a section that its fields are named after."""
    for name, hint in get_type_hints(kind).items():
        if name not in given:
            value = node[name.upper().rstrip("_")]
            given[name] = _read(hint, value) if isinstance(value, CfgNode) else _frozen(value)
    return kind(**given)


def _plain(value: Any) -> Any:
    """Sections as mappings, which YAML knows."""
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, CfgNode) else value


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple(sorted((name, _frozen(inner)) for name, inner in value.items()))
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
