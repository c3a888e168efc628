"""Registries of models, data sets, tasks and augmentations, by their names in recipes.

The package registers its own entries with the same functions as users. Call them in a module of
yours, and name the module in the config key IMPORTS.

specs.py has the properties that a registration states. seams.py has what only extras register.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import import_module
from inspect import signature
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from slowfast_patches.seams import import_extras
from slowfast_patches.specs import DatasetSpec, ModelSpec, TaskSpec
from slowfast_patches.utils.blame import register_role
from slowfast_patches.utils.errors import UserError

__all__ = [
    "DatasetSpec",
    "ModelSpec",
    "TaskSpec",
    "register_augmentation",
    "register_dataset",
    "register_model",
    "register_task",
]

T = TypeVar("T")

BUILT_IN = (
    "slowfast_patches.models.build_model",
    "slowfast_patches.datasets.lists.dataset_lists",
    "slowfast_patches.tasks.task",
)
"""Modules that register the entries of the core. The first lookup of a name imports them."""

Augment = Callable[[NDArray[np.uint8], np.random.Generator], NDArray[np.uint8]]
"""Function that takes a training clip (T, S, S, 3) and a random generator, and returns a clip of
the same shape."""


class Registry(Mapping[str, T]):
    """Entries by name, in the order of their registration.

    Args:
        kind: Noun for an entry in error messages, such as "model".
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.entries = dict[str, T]()

    def add(self, name: str, entry: T) -> None:
        """Register an entry.

        Raises:
            ValueError: The name is taken, or has invalid characters.
        """
        if name in self.entries or not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
            raise UserError(
                f"{name!r} cannot be the name of a new {self.kind}: it is taken, or has characters "
                "other than letters, digits, '_', '.' and '-', with a letter first."
            )
        self.entries[name] = entry
        register_role(self.kind, name, entry)

    def find(self, name: str, key: str, advice: str = "") -> T:
        """Return the entry that a key of the recipe names.

        Args:
            name: Value of the key.
            key: Name of the key, for the error message.
            advice: Further advice for the error message.

        Raises:
            ValueError: No entry has this name.
        """
        if name not in self:
            raise UserError(
                f"{key} is {name!r}, but the registered {self.kind}s are {', '.join(self)}."
                f"{advice} If your module registers the {self.kind}, add --import MODULE."
            )
        return self[name]

    def __getitem__(self, name: str) -> T:
        import_built_in()
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        import_built_in()
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


@cache
def import_built_in() -> None:
    """Import the modules that register the entries of the package.

    This happens at the first lookup, because the modules themselves import this module.
    """
    for module in BUILT_IN:
        import_module(module)
    import_extras()


MODELS = Registry[ModelSpec]("model")
DATASETS = Registry[DatasetSpec]("data set")
TASKS = Registry[TaskSpec]("task")
AUGMENTATIONS = Registry[Augment]("augmentation")

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


def register_model(name: str, spec: ModelSpec | None = None) -> Callable[[_Decorated], _Decorated]:
    """Return a decorator that registers a model under a name for MODEL.ARCH.

    The decorated class or function takes a `Recipe` and returns a `torch.nn.Module`. The module
    takes a list of pathways (N, C, T, H, W) and returns logits (N, classes). In evaluation, the
    activation of MODEL.HEAD_ACT converts the logits to scores.

    Args:
        name: Name of the model in MODEL.ARCH.
        spec: Properties of the model. By default, the model has one pathway.

    Raises:
        ValueError: The name is taken or invalid.
    """
    return _registering(MODELS, name, spec or ModelSpec())


def register_dataset(name: str, dataset: DatasetSpec) -> None:
    """Register a data set under a name for TRAIN.DATASET and TEST.DATASET.

    Args:
        name: Name in a recipe. Upper and lower case make no difference.
        dataset: Properties of the data set.

    Raises:
        ValueError: The name is already registered or invalid.
    """
    DATASETS.add(name.lower(), dataset)


def register_task(name: str, spec: TaskSpec | None = None) -> Callable[[_Decorated], _Decorated]:
    """Return a decorator that registers a task under a name for `DatasetSpec.task` and DATA.TASK.

    The decorated class is a subclass of `slowfast_patches.tasks.Task`. It defines the
    arguments of the network, the loss, how scores are collected, and the metrics.

    Args:
        name: Name of the task.
        spec: Properties of the task, and the keys that it determines.

    Raises:
        ValueError: The name is taken or invalid.
    """
    spec = spec or TaskSpec()
    if spec.switch[0] == "DATA.TASK":
        spec = replace(spec, switch=("DATA.TASK", name))
    return _registering(TASKS, name, spec)


def register_augmentation(name: str) -> Callable[[Augment], Augment]:
    """Return a decorator that registers a function as an augmentation, which recipes can name.

    Args:
        name: Name of the augmentation in a recipe.

    Raises:
        UserError: The name is taken or invalid, or the function takes other arguments.
    """

    def decorate(augment: Augment) -> Augment:
        _check_arguments(augment, name)
        AUGMENTATIONS.add(name, augment)
        return augment

    return decorate


def _check_arguments(augment: Augment, name: str) -> None:
    """Raise UserError if an augmentation is no function of a clip and a generator."""
    try:
        signature(augment).bind("clip", "generator")
    except (TypeError, ValueError) as error:
        raise UserError(
            f"the augmentation {name!r} must be a function of a clip and a random generator "
            f"({error})"
        ) from error


def _registering(
    registry: Registry[Any], name: str, spec: Any
) -> Callable[[_Decorated], _Decorated]:
    """Return a decorator that registers a class or function as `build` of a spec."""

    def decorate(build: _Decorated) -> _Decorated:
        registry.add(name, replace(spec, build=build))
        return build

    return decorate


def task_name(values: Any) -> str:
    """Return the name of the task that the keys of a recipe select.

    Args:
        values: A recipe, or a mapping from full keys to values.
    """

    def precedence(name: str) -> int:
        # Every recipe has a value of DATA.MULTI_LABEL, so all other keys take precedence.
        return {"DATA.MULTI_LABEL": 0, "DATA.TASK": 2}.get(TASKS[name].switch[0], 1)

    selected = [n for n, f in TASKS.items() if values[f.switch[0]] == f.switch[1]]
    return max(selected, key=precedence)
