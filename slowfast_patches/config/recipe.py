"""Recipes as frozen dataclasses.

Each section of the config is a dataclass in model_keys.py, data_keys.py or training_keys.py, or in
keys.py of an extra. Each field is a key in lower case: DATA.NUM_FRAMES is `recipe.data.num_frames`.
To add a key, add a field with a call of `key`, which states everything about the key: default,
help, check, flags, when it has no effect, and how other releases write it (see `fields.Key`).
Loading, warnings, docs/keys.md and the comparison with checkpoints then include the new key.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from math import isclose
from typing import Any, get_type_hints

from slowfast.config import defaults as host_defaults

from multigrid import Shape
from slowfast_patches.config.data_keys import Data, DataLoading, Multigrid
from slowfast_patches.config.fields import (
    AT_LEAST_ONE,
    FROM_ZERO,
    SECONDS,
    SEED,
    Key,
    free_key,
    key,
    one_of,
)
from slowfast_patches.config.model_keys import (
    BatchNorm,
    Model,
    NonLocal,
    ResNet,
    SlowFast,
)
from slowfast_patches.config.training_keys import Solver, Test, Train
from slowfast_patches.config.yaml_text import dump_yaml, flatten
from slowfast_patches.registry import MODELS, TASKS, task_name
from slowfast_patches.seams import SECTIONS, import_extras

PER_PATHWAY = (
    "RESNET.NUM_BLOCK_TEMP_KERNEL",
    "RESNET.SPATIAL_STRIDES",
    "RESNET.SPATIAL_DILATIONS",
    "NONLOCAL.LOCATION",
    "NONLOCAL.GROUP",
    "NONLOCAL.POOL",
)
"""Keys whose values have an entry for each pathway of each stage."""

COMMAND_LINE = "the command line"
"""Source of the keys that the command line, or the overrides of `load_recipe`, set."""


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


import_extras()


@dataclass(frozen=True)
class Recipe:
    """Values of all keys of a run. `Recipe()` has the default values."""

    multigrid: Multigrid = Multigrid()
    model: Model = Model()
    slowfast: SlowFast = SlowFast()
    resnet: ResNet = ResNet()
    nonlocal_: NonLocal = NonLocal()
    bn: BatchNorm = BatchNorm()
    data: Data = Data()
    data_loader: DataLoading = DataLoading()
    solver: Solver = Solver()
    train: Train = Train()
    test: Test = Test()
    num_gpus: int = free_key(1, "Number of GPUs on each machine. 0 uses the CPU.", FROM_ZERO)
    num_shards: int = free_key(1, "Number of machines.", AT_LEAST_ONE)
    shard_id: int = free_key(
        0,
        "Index of this machine, from 0.",
        machine=True,
    )
    imports: tuple[str, ...] = free_key(
        (),
        "Python modules to import before the recipe is checked. They can register models, data "
        "sets or augmentations. The option --import sets this key.",
    )
    rng_seed: int = key(1, "Random seed of a run.", SEED)
    output_dir: str = free_key("./tmp", "Folder for all output of the run.", private=True)
    log_period: int = free_key(10, "Number of iterations between lines of the log.", AT_LEAST_ONE)
    log_model_info: bool = free_key(True, "Log the number of parameters and FLOPs of the model.")
    dist_backend: str = free_key(
        "auto",
        "Backend of torch.distributed. auto means nccl with GPUs and gloo without GPUs.",
        one_of("auto", "nccl", "gloo"),
        needs=lambda recipe: (
            "with NUM_GPUS 0, which uses gloo"
            if recipe.dist_backend == "nccl" and recipe.num_gpus == 0
            else None
        ),
    )
    dist_join_seconds: float = free_key(
        300.0,
        "Maximum time in seconds that a process waits for the other processes at the rendezvous.",
        SECONDS,
    )
    dist_timeout_seconds: float = free_key(
        1800.0,
        "Maximum time in seconds that a process waits for the other processes in a collective "
        "operation before the run fails.",
        SECONDS,
    )

    extras: tuple[Any, ...] = tuple(section.keys() for section in SECTIONS.values())
    """Sections of the extras. `ExtraKeys.of` finds the one of a class. This field is not a key."""

    processes_per_machine: int = dataclasses.field(default=0, compare=False)
    """Number of processes that a launcher started on each machine, or 0 without a launcher.

    This field is not a key.
    """

    given: Mapping[str, str] = dataclasses.field(default_factory=dict, compare=False)
    """Maps each key that the user has set to its source: a file, or `COMMAND_LINE` for overrides.

    This field is not a key.
    """

    @property
    def world_size(self) -> int:
        """Number of processes on all machines. Without a launcher, each GPU has one process."""
        return self.num_shards * (self.processes_per_machine or max(1, self.num_gpus))

    @property
    def text(self) -> str:
        """All keys and values as YAML text, which `parse_recipe` converts back to a recipe.

        A section of an extra that the recipe does not use is left out. So the text can be read
        where this extra is not installed.
        """
        values = {
            name: value
            for name, value in values_by_key(self).items()
            if (section := name.partition(".")[0]) not in SECTIONS or self._uses(section)
        }
        return dump_yaml(_nested(values, {}))

    def _uses(self, section: str) -> bool:
        """Return whether the recipe uses a section of an extra, and must store its values.

        A section is used if a value differs from its default, or if a key that depends on other
        keys has an effect.
        """
        if SECTIONS[section].keys.of(self) not in default_recipe().extras:
            return True
        keys = [key for name, key in KEYS.items() if name.startswith(f"{section}.")]
        return any(key.needs is not None and key.needs(self) is None for key in keys)

    @property
    def has_cycles(self) -> bool:
        """Whether the long cycle, the short cycle, or both are on."""
        return self.multigrid.long_cycle or self.multigrid.short_cycle

    @property
    def uses_multigrid(self) -> bool:
        """Whether a cycle is on, or MULTIGRID.STAGES is set."""
        return self.has_cycles or bool(self.multigrid.stages)

    @property
    def task(self) -> str:
        """Name of the task in `registry.TASKS`."""
        return task_name(self)

    @property
    def multi_label(self) -> bool:
        """Whether a video may have several labels."""
        return TASKS[self.task].multi_label

    @property
    def groups_batchnorm(self) -> bool:
        """Whether BN statistics are computed over groups of a fixed number of clips."""
        return self.bn_group_size > 0

    @property
    def bn_group_size(self) -> int:
        """Number of clips that share BN statistics at the baseline's crop size.

        0 means that the clips of each process share statistics, or that the model has no BN.
        """
        return self[self.bn_key] if self.model.has_batchnorm else 0

    @property
    def bn_key(self) -> str:
        """Name of the key that sets `bn_group_size`."""
        return "MULTIGRID.BN_BASE_SIZE" if self.uses_multigrid else "BN.GROUP_SIZE"

    @property
    def base_shape(self) -> Shape:
        """Shape of the baseline's mini-batch over all machines."""
        batch = self.train.batch_size * self.num_shards
        return Shape(batch, self.data.num_frames, self.data.train_crop_size)

    def __getitem__(self, name: str) -> Any:
        """Return the value of a key, such as "DATA.NUM_FRAMES"."""
        section, _, field = name.rpartition(".")
        if section in SECTIONS:
            return getattr(SECTIONS[section].keys.of(self), field.lower())
        return reduce(getattr, _path(name), self)

    def replaced(self, values: Mapping[str, Any]) -> Recipe:
        """Return a copy of the recipe with new values of some keys.

        The new values are not checked, and all other keys keep their values.

        Args:
            values: Values by full key, such as "DATA.NUM_FRAMES".
        """
        fields = dict[str, Any]()
        sections = defaultdict[str, dict[str, Any]](dict)
        for name, value in values.items():
            section = name.rpartition(".")[0]
            changes = sections[section] if section else fields
            changes[_path(name)[-1]] = _frozen(value)
        extras = {type(keys): keys for keys in self.extras}
        for section, changes in sections.items():
            if section in SECTIONS:
                kind = SECTIONS[section].keys
                extras[kind] = dataclasses.replace(extras[kind], **changes)
            else:
                attribute = _path(f"{section}.")[0]
                fields[attribute] = dataclasses.replace(getattr(self, attribute), **changes)
        return dataclasses.replace(self, **fields, extras=tuple(extras.values()))


def _path(name: str) -> list[str]:
    """Return the attribute names of a key: ["data", "num_frames"] for "DATA.NUM_FRAMES".

    The attribute of the section NONLOCAL is `nonlocal_`, because `nonlocal` is a Python keyword.
    """
    return name.lower().replace("nonlocal.", "nonlocal_.").split(".")


def _keys(section: Any, prefix: str = "") -> Iterator[tuple[str, Key]]:
    kinds = get_type_hints(section)
    for field in dataclasses.fields(section):
        name = prefix + field.name.upper().rstrip("_")
        if dataclasses.is_dataclass(field.default):
            yield from _keys(type(field.default), f"{name}.")
        elif "key" in field.metadata:
            yield name, field.metadata["key"]._replace(kind=kinds[field.name])


KEYS: Mapping[str, Key] = dict(_keys(Recipe)) | {
    name: key
    for section, extra in SECTIONS.items()
    for name, key in _keys(extra.keys, f"{section}.")
}
"""Metadata of all keys by full key, in the order of the fields, with those of the extras last."""


@cache
def default_recipe() -> Recipe:
    """Return the recipe with the default values of all keys."""
    return Recipe()


def values_by_key(recipe: Recipe) -> dict[str, Any]:
    """Return all values of a recipe by full key, with lists instead of tuples."""
    return {name: plain(recipe[name]) for name in KEYS}


def stored_keys(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config that was stored with a checkpoint or a result.

    A key that was added later gets its default, which does not change the behaviour. A key that was
    removed later is left out.

    Args:
        tree: The config, with sections as nested mappings.

    Returns:
        Values by full key.
    """
    stored = {name: value for name, value in flatten(tree) if name in KEYS}
    return values_by_key(default_recipe()) | stored


def differences(
    stored: Mapping[str, Any], wanted: Mapping[str, Any], ignored: Collection[str] = ()
) -> dict[str, str]:
    """Describe the keys whose values differ between two configs. Ignore rounding of floats.

    Args:
        stored: Values of the stored config by full key.
        wanted: Values of the new config by full key.
        ignored: Keys that may differ.

    Returns:
        A text such as "SOLVER.BASE_LR 0.1 there, 0.2 here" for each key that differs, sorted.
    """
    texts = dict[str, str]()
    for name in sorted((stored.keys() | wanted.keys()).difference(ignored)):
        there, here = stored.get(name), wanted.get(name)
        is_rounding = isinstance(there, float) and isinstance(here, float) and isclose(there, here)
        if there != here and not is_rounding:
            texts[name] = f"{name} {there} there, {here} here"
    return texts


def pyslowfast_config(recipe: Recipe) -> Any:
    """Convert a recipe to a new config object of PySlowFast."""
    node = _nested(values_by_key(recipe), host_defaults.get_cfg())
    node.MODEL.SINGLE_PATHWAY_ARCH = [arch for arch in MODELS if MODELS[arch].pathways == 1]
    node.DATA.CROP_SIZE = recipe.data.train_crop_size
    node.DATA.INPUT_CHANNEL_NUM = recipe.model.spec.input_channels
    node.MODEL.MODEL_NAME = "SlowFast" if recipe.model.has_two_pathways else "ResNet"
    return node


def _nested(values: Mapping[str, Any], tree: Any) -> Any:
    """Store values by full key in the nested sections of `tree`, and return `tree`."""
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        node = tree.setdefault(section, type(tree)()) if section else tree
        node[key] = value
    return tree


def plain(value: Any) -> Any:
    """Convert tuples to lists recursively, because YAML has no tuples."""
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value
