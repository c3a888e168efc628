"""Metadata of keys: help, checks of values, and flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Self

from multigrid.stage_rows import ROWS_FORM, are_rows
from slowfast_patches.utils.tables import format_list

Values = Mapping[str, Any]
"""Values by full key, such as "SOLVER.BASE_LR"."""
Needs = Callable[[Any], str | None]
"""Function that takes a recipe and returns why a key has no effect, such as "without a cycle"."""


class Check(NamedTuple):
    """Check of the value of a key.

    Attributes:
        passes: Function that returns whether a value is valid.
        wanted: Description of the valid values that completes the sentence "KEY must be ...".
    """

    passes: Callable[[Any], bool]
    wanted: str


class Key(NamedTuple):
    """Metadata of a key.

    Attributes:
        help: Description of the key for docs/keys.md.
        check: Check of the value, or None if all values of the right type are valid.
        may_differ: Whether a resumed run may have a different value than before.
        speed: Whether the value affects how long an iteration takes.
        switch: Whether the value True makes iterations faster and has no other effect.
        machine: Whether the value may differ between the machines of a run.
        only_training: Whether the value does not affect how a trained model scores a video.
        private: Whether the value is a path on the machine, which is not published with a model.
        needs: Function that returns why the key has no effect in a recipe. None if it has an
            effect.
        later: How a value of another PySlowFast release is translated: a note for docs/keys.md, and
            a function that takes all values and returns the values to set.
        kind: Type of the value, as in the annotation of the field.
    """

    help: str = ""
    check: Check | None = None
    may_differ: bool = False
    speed: bool = False
    switch: bool = False
    machine: bool = False
    only_training: bool = False
    private: bool = False
    needs: Needs | None = None
    later: tuple[str, Callable[[Values], dict[str, Any]]] | None = None
    kind: Any = Any


class Ignored(NamedTuple):
    """Key of another release that has no effect.

    Attributes:
        note: Text that says why the key has no effect, and what to do.
        usual: Values that describe what this package does anyway. They cause no warning.
    """

    note: str
    usual: tuple[object, ...] = ()


class Translated(NamedTuple):
    """Key of PySlowFast that is no key of this package, because other keys determine its value.

    Attributes:
        kind: Type of the value.
        note: Text for docs/keys.md that says what the key becomes.
        translate: Function that takes the value of the key and all values of this package's keys.
            It returns the values to set, or raises UserError if the value contradicts them.
    """

    kind: Any
    note: str
    translate: Callable[[Any, Values], dict[str, Any]]


class Rule(NamedTuple):
    """Rule for the values of several keys.

    Attributes:
        is_broken: Function that takes a recipe and returns whether the keys contradict each other.
        text: Message, with {KEY} in place of the value of each key.
    """

    is_broken: Callable[[Any], object]
    text: str


class ExtraKeys:
    """Base class of the frozen dataclasses with the keys that an extra adds to the recipe."""

    @classmethod
    def of(cls, recipe: Any) -> Self:
        """Return the values in a recipe."""
        found: Self = next(keys for keys in recipe.extras if type(keys) is cls)
        return found


def key(default: Any, help: str, check: Check | None = None, **flags: Any) -> Any:
    """Return a dataclass field with the metadata of a key.

    Args:
        default: Default value.
        help: See `Key`.
        check: See `Key`.
        **flags: Other attributes of `Key`.
    """
    metadata = {"key": Key(help, check, **flags)}
    return dataclasses.field(default_factory=lambda: default, metadata=metadata)


free_key = partial(key, may_differ=True)
"""Field of a key that a resumed run may change."""
speed_key = partial(key, speed=True)
"""Field of a key that affects how long an iteration takes."""
training_key = partial(key, only_training=True)
"""Field of a key that does not affect how a trained model scores a video."""


def only_with(name: str, *values: object) -> Needs:
    """Return `Key.needs` of a key that has no effect unless another key has one of these values."""
    return lambda recipe: None if recipe[name] in values else f"with {name} {recipe[name]}"


def all_of(*needs: Needs) -> Needs:
    """Return `Key.needs` of a key with several conditions. It returns the first reason."""
    return lambda recipe: next(filter(None, (reason(recipe) for reason in needs)), None)


def with_cycle(recipe: Any) -> str | None:
    return None if recipe.has_cycles else "without a cycle"


def with_shapes(recipe: Any) -> str | None:
    return None if recipe.uses_multigrid else "without a cycle or MULTIGRID.STAGES"


def with_steps(recipe: Any) -> str | None:
    policy = recipe.solver.lr_policy
    return None if policy == "steps_with_relative_lrs" else f"with SOLVER.LR_POLICY {policy}"


def with_backbone(recipe: Any) -> str | None:
    frozen = "with TRAIN.FREEZE backbone, where only the head is trained"
    return frozen if "backbone" in recipe.train.freeze else None


def with_layers(recipe: Any) -> str | None:
    model = recipe.model
    return None if model.spec.depths else f"with MODEL.ARCH {model.arch}, which has no layers"


def one_of(*choices: object) -> Check:
    named = ["empty" if choice == "" else choice for choice in choices]
    return Check(lambda value: value in choices, format_list(named, "or"))


def from_to(least: int, most: int) -> Check:
    return Check(lambda value: least <= value <= most, f"from {least} to {most:,}")


def _are_factors(values: tuple[float, ...]) -> bool:
    return all(0 < value <= 1 for value in values)


AT_LEAST_ONE = Check(lambda value: value >= 1, "1 or more")
FROM_ZERO = Check(lambda value: value is None or value >= 0, "0 or more")
RATES = Check(lambda values: all(value >= 0 for value in values), "a list of numbers from 0")
SEED = Check(lambda value: 0 <= value < 2**63, "from 0 to 2**63 - 1")
RGB = Check(lambda values: len(values) == 3, "a list of 3 numbers")
POSITIVE_RGB = Check(lambda x: len(x) == 3 and min(x) > 0, "a list of 3 numbers above 0")
STAGES = Check(lambda stages: len(stages) == 4, "a list with an entry for each of the 4 stages")
ABOVE_ZERO = Check(lambda value: value > 0, "above 0")
BELOW_ONE = Check(lambda value: 0 <= value < 1, "in [0, 1), where 0 means off")
RATIO = Check(lambda value: 0 < value <= 1, "in (0, 1]")
PART = Check(lambda value: 0 <= value <= 1, "in [0, 1]")
AUTO_OR_COUNT = Check(
    lambda value: value == "auto" or (not isinstance(value, str) and 0 <= value <= 10_000),
    "from 0 to 10,000, or auto",
)
SECONDS = Check(lambda value: 0 < value <= 1e8, "above 0 and at most 1e8")
EPOCHS = Check(lambda value: 0 < value <= 1e6, "above 0 and at most 1,000,000")
FACTORS = Check(lambda x: bool(x) and _are_factors(x), "a list of factors in (0, 1]")
LONG_CYCLE = Check(
    lambda x: x[-1:] == ((1, 1),) and all(len(pair) == 2 and _are_factors(pair) for pair in x),
    "a list of factors [frames, crop] in (0, 1] that ends with [1, 1]",
)
STAGE_TABLE = Check(are_rows, ROWS_FORM)
CLASS_WEIGHTS = Check(
    lambda x: x == "balanced" or (not isinstance(x, str) and all(weight > 0 for weight in x)),
    "balanced, a list with a number above 0 for each class, or [] for no weights",
)
CROP = Check(lambda value: value >= 32, "32 pixels or more")
CSV = Check(
    lambda value: not value or (value.endswith(".csv") and "/" not in value),
    "a file name that ends in .csv, without a folder",
)
