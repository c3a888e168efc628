"""A recipe as frozen dataclasses: every key with its type, default, help, check and flags.

A section of the config is a dataclass in model_keys.py, data_keys.py or training_keys.py, and a
field has its key's name in small letters: DATA.NUM_FRAMES is `recipe.data.num_frames`. To add a
key, add its field; loading, docs/keys.md and the comparison with checkpoints follow from it. Fields
without a `key(...)` are the host's, as the host has them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any, get_type_hints

from slowfast.config import defaults as host_defaults

from multigrid import Shape
from slowfast_patches.config.data_keys import Aug, Ava, Data, DataLoading, Mixup, Multigrid
from slowfast_patches.config.families import FAMILIES
from slowfast_patches.config.fields import (
    AT_LEAST_ONE,
    FROM_ZERO,
    Key,
    above_zero_to,
    from_to,
    key,
    one_of,
)
from slowfast_patches.config.model_keys import (
    BatchNorm,
    Detection,
    Hf,
    Model,
    NonLocal,
    ResNet,
    SlowFast,
    Tsm,
)
from slowfast_patches.config.training_keys import Solver, Test, Train
from slowfast_patches.config.yaml_text import dump_yaml, flatten, parse_yaml

__all__ = [
    "KEYS",
    "PER_PATHWAY",
    "Aug",
    "Data",
    "Recipe",
    "Solver",
    "default_recipe",
    "differences",
    "host_config",
    "keys_of",
    "parse_yaml",
    "plain",
    "stored_keys",
]

PER_PATHWAY = (
    "RESNET.NUM_BLOCK_TEMP_KERNEL",
    "RESNET.SPATIAL_STRIDES",
    "RESNET.SPATIAL_DILATIONS",
    "NONLOCAL.LOCATION",
    "NONLOCAL.GROUP",
    "NONLOCAL.POOL",
)
"""The keys with an entry for each stage, and in it one for each pathway."""


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


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
    bn: BatchNorm = BatchNorm()
    data: Data = Data()
    ava: Ava = Ava()
    mixup: Mixup = Mixup()
    aug: Aug = Aug()
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
    def multi_label(self) -> bool:
        """Whether what is scored has several labels: videos with DATA.MULTI_LABEL, boxes always."""
        return self.data.multi_label or self.detection.enable

    @property
    def groups_batchnorm(self) -> bool:
        """Whether BN is over a given number of clips, and not over those that a process has."""
        return self.bn_size > 0

    @property
    def bn_size(self) -> int:
        """The clips that share BN statistics at the baseline's crop; 0: those of a process."""
        return self[self.bn_key] if self.model.has_batchnorm else 0

    @property
    def bn_key(self) -> str:
        """The key that `bn_size` is."""
        return "MULTIGRID.BN_BASE_SIZE" if self.uses_multigrid else "BN.GROUP_SIZE"

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
        recipe = self
        for name, value in values.items():
            *sections, field = _path(name)
            change = {field: _frozen(value)}
            for section in sections:
                change = {section: dataclasses.replace(getattr(recipe, section), **change)}
            recipe = dataclasses.replace(recipe, **change)
        return recipe


def _path(name: str) -> list[str]:
    """A key as the names of attributes; nonlocal is a word of Python's."""
    return name.lower().replace("nonlocal.", "nonlocal_.").split(".")


def _keys(section: Any, prefix: str = "") -> Iterator[tuple[str, Key]]:
    kinds = get_type_hints(section)
    for field in dataclasses.fields(section):
        name = prefix + field.name.upper().rstrip("_")
        if dataclasses.is_dataclass(field.default):
            yield from _keys(type(field.default), f"{name}.")
        else:
            yield name, field.metadata.get("key", Key())._replace(kind=kinds[field.name])


KEYS: Mapping[str, Key] = dict(_keys(Recipe))
"""The keys by full name, in the order of the fields."""


@cache
def default_recipe() -> Recipe:
    """Every key at its default."""
    return Recipe()


def keys_of(recipe: Recipe) -> dict[str, Any]:
    """The values of a recipe by full key, as plain data: lists in the place of tuples."""
    return {name: plain(recipe[name]) for name in KEYS}


def stored_keys(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config that was stored with a checkpoint or a result, by full key.

    A key that is newer than the file is at its default, which changes nothing, and one that was
    removed since is left out.
    """
    stored = {name: value for name, value in flatten(tree) if name in KEYS}
    return keys_of(default_recipe()) | stored


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
    node.MODEL.SINGLE_PATHWAY_ARCH = [arch for arch in FAMILIES if FAMILIES[arch].pathways == 1]
    node.MODEL.MODEL_NAME = "SlowFast" if recipe.model.has_two_pathways else "ResNet"
    return node


def _nested(values: Mapping[str, Any], tree: Any) -> Any:
    """Put values by full key into the sections of `tree`, a mapping of either kind."""
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        node = tree.setdefault(section, type(tree)()) if section else tree
        node[key] = value
    return tree


def plain(value: Any) -> Any:
    """Lists in the place of tuples, as YAML has them."""
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value
