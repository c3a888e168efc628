"""Loading of recipes.

A YAML file overrides its `_BASE_` files, which override the defaults. Overrides from the command
line take precedence over all files.
"""

from __future__ import annotations

import difflib
import logging
import os.path
import sys
from ast import literal_eval
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin

from slowfast.config import defaults as host_defaults

from slowfast_patches.config.imports import import_modules, require_imported
from slowfast_patches.config.later_releases import TRANSLATED, ignored_key
from slowfast_patches.config.recipe import (
    COMMAND_LINE,
    KEYS,
    PER_PATHWAY,
    Recipe,
    default_recipe,
    plain,
)
from slowfast_patches.config.scale import scale_epochs, scale_rates
from slowfast_patches.config.yaml_text import flatten, parse_yaml
from slowfast_patches.registry import TASKS, task_name
from slowfast_patches.seams import MAPPINGS
from slowfast_patches.utils.command_line import split_pairs
from slowfast_patches.utils.errors import UserError, mistake_in

logger = logging.getLogger(__name__)

_PACKAGE = Path(__file__).parents[1]

CONFIGS = next(filter(Path.is_dir, (_PACKAGE / "configs", _PACKAGE.parent / "configs")))
"""Folder of the recipes that ship with the package. A checkout has this folder at the top level."""

_COUNTED_CLASSES = ("MODEL.NUM_CLASSES", "auto")
"""Key and value that mean the same as an absent key."""


class _Layer(NamedTuple):
    """Values of keys as the user wrote them, by full key, and their source.

    Attributes:
        source: File name, or `COMMAND_LINE`.
        values: Values by full key. The value of a key in `MAPPINGS` is a mapping, or there are
            separate keys, such as SECTION.KEY.name.
    """

    source: str
    values: dict[str, Any]


def load_recipe(path: str | Path | None, overrides: Sequence[object] = ()) -> Recipe:
    """Load a recipe and apply overrides.

    Each value is converted to the type of its key. For example, "1e-4" and 1 are valid floats, and
    a list becomes a tuple. Keys of other PySlowFast releases are translated, or ignored with a
    warning (later_releases.py). Epochs and learning rates are scaled to the values to train with
    (`scale_epochs`, `scale_rates`).

    Args:
        path: YAML file, or None for the defaults. `_BASE_` in the file names one or more recipes,
            either relative to the file or from the package, such as configs/Cycles/PAPER.yaml.
        overrides: Keys and values in turn, such as ["NUM_GPUS", 2]. "NUM_GPUS=2" works as well.

    Returns:
        The recipe. Combinations of keys are not checked. For that, call `check_recipe`.

    Raises:
        ValueError: A file is missing or is not valid YAML, a key does not exist, a value has the
            wrong type, an override has no value, or a module of IMPORTS cannot be imported.
    """
    return _scaled(load_unscaled(path, overrides))


def load_unscaled(path: str | Path | None, overrides: Sequence[object] = ()) -> Recipe:
    """Load a recipe as written: SOLVER.LENGTH and REFERENCE_BATCH_SIZE have not been applied.

    See `load_recipe`, which is for all other uses.
    """
    files = [] if path is None else _read(recipe_path(path))
    return _make([*files, _command_line(overrides)])


def _scaled(recipe: Recipe) -> Recipe:
    return scale_rates(scale_epochs(recipe))


def recipe_files(path: str | Path) -> list[Path]:
    """Return a recipe file and all its `_BASE_` files.

    Raises:
        ValueError: See `load_recipe`.
    """
    return [Path(layer.source) for layer in _read(recipe_path(path))]


def recipe_path(path: str | Path, folder: Path = Path()) -> Path:
    """Return the path of a recipe file.

    The file may be in `folder` or in the package, such as configs/Demo/SLOWFAST_DEMO.yaml. If both
    exist, the file in `folder` takes precedence.

    Raises:
        ValueError: Neither file exists.
    """
    with mistake_in(f"the config {path} cannot be read"):  # such as a name that is too long
        for candidate in (folder / os.path.expanduser(path), CONFIGS.parent / path):
            if candidate.exists():
                return candidate
    raise UserError(
        f"the config {folder / path} cannot be read: there is no such file, and {CONFIGS} has no "
        "recipe of that name."
    )


def parse_recipe(text: str, source: str, overrides: Sequence[object] = ()) -> Recipe:
    """Load a recipe from YAML text, such as the config in a checkpoint.

    The text is not trusted. A module in its IMPORTS must already have been imported, unless the
    overrides set IMPORTS.

    Args:
        text: YAML text.
        source: Origin of the text, for error messages.
        overrides: See `load_recipe`.

    Raises:
        ValueError: See `load_recipe`. Or a module in IMPORTS has not been imported.
    """
    layer = _Layer(source, dict(flatten(_content(text, source))))
    given = _command_line(overrides)
    if "IMPORTS" in layer.values and "IMPORTS" not in given.values:
        require_imported(_adapt(layer.values["IMPORTS"], KEYS["IMPORTS"].kind), source)
    return _scaled(_make([layer, given]))


def _make(layers: Sequence[_Layer]) -> Recipe:
    """Make an unscaled recipe from layers. Later layers take precedence."""
    values = {name: default_recipe()[name] for name in KEYS}
    given = dict[str, str]()
    for layer in layers:
        for name, value in layer.values.items():
            _set(values, given, name, value, layer.source)
    import_modules(values["IMPORTS"])
    for name, key in KEYS.items():
        values |= key.later[1](values) if key.later else {}
        if key.check and not key.check.passes(values[name]):
            raise _wrong_value(name, key.check.wanted, plain(values[name]))
    for name in [*filter(values.__contains__, TRANSLATED)]:
        source = given.pop(name)
        replacing = TRANSLATED[name].translate(values.pop(name), values)
        values |= replacing
        given |= dict.fromkeys(replacing, source)
    _derive(values, given)
    return replace(default_recipe().replaced(values), given=given)


def _read(path: Path, parents: tuple[Path, ...] = ()) -> list[_Layer]:
    """Return the layers of a YAML file: those of its `_BASE_` files, and its own.

    Args:
        path: The YAML file.
        parents: Files whose `_BASE_` led to this file.

    Raises:
        ValueError: A file is invalid, or refers to itself through `_BASE_`.
    """
    file = path.resolve()
    if file in parents:
        raise UserError(f"{path} refers to itself through _BASE_. Remove the circular reference.")
    with mistake_in(f"the config {path} cannot be read", OSError, UnicodeError):
        text = path.read_text(encoding="utf-8")
    content = _content(text, str(path))
    if not content:
        raise UserError(f"the config {path} is empty. Write keys, or _BASE_ with another recipe.")
    named = content.pop("_BASE_", None) or []
    bases = [named] if isinstance(named, str) else named
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise UserError(f"{path}: _BASE_ must be a path or a list of paths, not {named!r:.60}")
    layers = list[_Layer]()
    for base in bases:
        layers += _read(recipe_path(base, path.parent), (*parents, file))
    return [*layers, _Layer(str(path), dict(flatten(content)))]


def _content(text: str, source: str) -> dict[str, Any]:
    content = parse_yaml(text, source) or {}
    if not isinstance(content, dict):
        raise UserError(f"{source}: a config must be a mapping of sections, not {content!r:.60}")
    return content


def _command_line(overrides: Sequence[object]) -> _Layer:
    words = split_pairs(overrides)
    if len(words) % 2:
        raise UserError(
            f"overrides must be pairs KEY VALUE or KEY=VALUE, but {words[-1]} has no value"
        )
    names = map(str, words[::2])
    return _Layer(COMMAND_LINE, dict(zip(names, words[1::2], strict=True)))


def _set(values: dict[str, Any], given: dict[str, str], name: str, value: Any, source: str) -> None:
    """Set the value and the source of one key, or warn that the key has no effect."""
    section, _, inner = name.rpartition(".")
    if section in MAPPINGS:
        name, value = section, {inner: value}
    if (name, value) == _COUNTED_CLASSES:
        values[name] = default_recipe()[name]
        given.pop(name, None)
    elif name in KEYS or name in TRANSLATED:
        try:
            new = _adapt(value, (KEYS.get(name) or TRANSLATED[name]).kind)
        except TypeError as wanted:
            raise _wrong_value(name, wanted, value) from None
        values[name] = {**values[name], **new} if isinstance(new, Mapping) else new
        given[name] = source
    elif row := ignored_key(name):
        if (decoded := _decode(value)) not in row.usual:
            logger.warning(f"{name} {decoded!s:.60} ({source}) has no effect: {row.note}")
    elif name in _host_defaults() and _decode(value) == _host_defaults()[name]:
        pass  # a key of PySlowFast for what is not installed here, which asks for nothing
    elif value is not None or not any(key.startswith(f"{name}.") for key in KEYS):
        # An empty section is valid.
        nearest = difflib.get_close_matches(name.upper(), KEYS, n=1)
        advice = f" Did you mean {nearest[0]}?" if nearest else ""
        raise UserError(f"{name[:60] or repr(name)} is not a config key ({source}).{advice}")


@cache
def _host_defaults() -> dict[str, Any]:
    """Return the default values of PySlowFast by full key."""
    return dict(flatten(host_defaults.get_cfg()))


def _wrong_value(name: str, wanted: object, value: object) -> ValueError:
    return UserError(f"{name} must be {wanted}, not {value!r:.60}")


_WANTED = {
    bool: "True or False",
    int: "a whole number",
    float: "a finite number",
    str: "a string",
    type(None): "None",
    tuple: "a list",
    Mapping: "a mapping such as {'hidden_size': 192}",
}


def _adapt(raw: Any, kind: Any) -> Any:
    """Convert a value to the type of a field.

    Raises:
        TypeError: The value cannot be converted. The message describes the expected type, such as
            "a whole number".
    """
    if isinstance(kind, UnionType):
        for option in get_args(kind):
            with suppress(TypeError):
                return _adapt(raw, option)
        options = [get_origin(option) or option for option in get_args(kind)]
        raise TypeError(" or ".join(_WANTED[option] for option in options))
    value = _decode(raw)
    origin = get_origin(kind) or kind
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if origin is tuple:
        if isinstance(value, str) and get_args(kind)[0] is str:
            # "s1, s2", a single name, or "[s1, s2]", which a shell passes on without its quotes
            inner = value[1:-1] if value[:1] + value[-1:] in ("[]", "()") else value
            value = [name.strip("'\"") for name in inner.replace(",", " ").split()]
        if isinstance(value, list):
            return tuple(_adapt(item, get_args(kind)[0]) for item in value)
    elif origin is float and number and abs(value) <= sys.float_info.max:
        return float(value)
    elif origin is int and number and value % 1 == 0:
        return int(value)
    elif origin is str and isinstance(raw, str):
        # Remove quotes, but keep text such as "007" instead of a number.
        return value if isinstance(value, str) else raw
    elif origin in (bool, Mapping, type(None)) and isinstance(value, origin):
        return value
    raise TypeError(_WANTED[origin])


def _decode(raw: Any) -> Any:
    """Convert text to the Python literal that it contains, and tuples to lists.

    Text inside lists and mappings is converted, too. Text without a literal stays the same.
    """
    if isinstance(raw, str):
        try:
            raw = literal_eval(raw)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return raw
    if isinstance(raw, Mapping):
        return {name: _decode(value) for name, value in raw.items()}
    return [_decode(item) for item in raw] if isinstance(raw, list | tuple) else raw


def _derive(values: dict[str, Any], given: Collection[str]) -> None:
    """Set the keys whose defaults depend on other keys, unless the user set them."""
    derived = dict(TASKS[task_name(values)].defaults)
    derived["TEST.DATASET"] = values["TRAIN.DATASET"]
    if values["MODEL.ARCH"] == "slowfast":
        for key in PER_PATHWAY:
            derived[key] = tuple((*stage[:1], *stage[:1]) for stage in values[key])
    values |= {key: value for key, value in derived.items() if key not in given}
