"""Load a recipe: YAML with `_BASE_`, then overrides, into the defaults, with clear errors."""

from __future__ import annotations

import difflib
import logging
import os.path
import sys
from ast import literal_eval
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin

from slowfast_patches.config.keys import no_effect
from slowfast_patches.config.recipe import KEYS, PER_PATHWAY, Recipe, default_recipe, plain
from slowfast_patches.config.scale import fit_batch, scaled_lengths
from slowfast_patches.config.yaml_text import flatten, parse_yaml
from slowfast_patches.utils.command_line import split_pairs

__all__ = ["CONFIGS", "load_recipe", "parse_recipe", "recipe_path", "sets_key"]

logger = logging.getLogger(__name__)

_PACKAGE = Path(__file__).parents[1]

CONFIGS = next(filter(Path.is_dir, (_PACKAGE / "configs", _PACKAGE.parent / "configs")))
"""The recipes that come with the package: installed in it, or beside it in a checkout."""

_BASE = "_BASE_"
_LARGEST = 2**32 - 1
"""The largest whole number of a key: NumPy and torch take it wherever a key may lead."""


class _Setting(NamedTuple):
    """A value as the user wrote it, and where: a file, or "the command line"."""

    value: Any
    source: str


_Settings = dict[str, _Setting]


def load_recipe(path: str | Path | None, overrides: Sequence[object] = ()) -> Recipe:
    """The defaults, changed by a recipe and then by KEY VALUE pairs, each also as KEY=VALUE.

    A recipe may name another one as its `_BASE_`: relative to itself, or one that the package
    ships. Values are adapted to the type of the key: "1e-4" and 1 are numbers for a float, a list
    is a tuple. A key without effect (config/keys.py) is warned of and stays at its default, and so
    are steps and rates that no iteration gets to, which are dropped; lengths, batch and rates are
    scaled (`fit_batch`): the result holds what is trained with.

    Raises:
        ValueError: a file that is missing or not YAML, a key that does not exist, a value of
            another type, a pair without a value.
    """
    return _make(_merged(path, overrides))


def sets_key(name: str, path: str | Path | None, overrides: Sequence[object] = ()) -> bool:
    """Return whether a recipe or the pairs after it set a key. Raises as `load_recipe`."""
    return name in _merged(path, overrides)


def recipe_path(path: str | Path, folder: Path = Path()) -> Path:
    """The file that a user named, in `folder`, or else the recipe of that name which the package
    ships, such as configs/Demo/SLOWFAST_DEMO.yaml.

    Raises:
        ValueError: there is neither.
    """
    for candidate in (folder / os.path.expanduser(path), CONFIGS.parent / path):
        if candidate.exists():
            return candidate
    shipped = [str(file.relative_to(CONFIGS.parent)) for file in CONFIGS.rglob("*.yaml")]
    nearest = difflib.get_close_matches(str(path), shipped, n=1)
    advice = f"; did you mean {nearest[0]}?" if nearest else ""
    raise ValueError(
        f"the config {folder / path} cannot be read: there is no such file, and no recipe "
        f"of that name in {CONFIGS}{advice}"
    )


def parse_recipe(text: str, source: str, overrides: Sequence[object] = ()) -> Recipe:
    """As `load_recipe`, from the text of a resolved config; `source` is for messages."""
    return _make(_settings(_content(text, source), source) | _pairs(overrides))


def _merged(path: str | Path | None, overrides: Sequence[object]) -> _Settings:
    """Return what a recipe and the pairs after it set; MODEL.NUM_CLASSES auto is not set."""
    settings = {} if path is None else _read_layers(recipe_path(path), {})
    settings = settings | _pairs(overrides)
    classes = settings.get("MODEL.NUM_CLASSES")
    if classes is not None and classes.value == "auto":
        del settings["MODEL.NUM_CLASSES"]
    return settings


def _make(settings: _Settings) -> Recipe:
    values = {name: default_recipe()[name] for name in KEYS}
    for name, setting in settings.items():
        _set(values, name, setting)
    _derive(values, settings)
    for name, (_, source) in settings.items():
        if name in KEYS:
            _check(name, values[name], source)
    _drop_unreached(values)
    recipe = default_recipe().replaced(values)
    if recipe.solver.length != 1:
        recipe = recipe.replaced(scaled_lengths(recipe, recipe.solver.length))
    return fit_batch(recipe, max(1, recipe.num_gpus) * recipe.num_shards)


def _check(name: str, value: Any, source: str) -> None:
    """Raise ValueError for a value that its key cannot have."""
    check = KEYS[name].check
    if check and not check.passes(value):
        wanted = check.wanted
    elif _has_too_large(value):
        wanted = f"{_LARGEST} at most"
    else:
        return
    raise ValueError(f"{name} must be {wanted}, not {plain(value)!r:.60} ({source})")


def _has_too_large(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_has_too_large, value))
    return isinstance(value, int) and abs(value) > _LARGEST


def _read_layers(path: Path, read: dict[Path, _Settings | None]) -> _Settings:
    """Every key that a file and its bases set; the file wins over its base.

    `read` has the files that were read before; None stands for one whose bases are being read.
    """
    file = path.resolve()
    if file not in read:
        read[file] = None
        content = _content(_text(path), str(path))
        bases = content.pop(_BASE, [])
        settings: _Settings = {}
        for base in bases if isinstance(bases, list) else [bases]:
            if not isinstance(base, str):
                raise ValueError(f"{path}: {_BASE} takes a file or a list of files, not {base!r}")
            settings |= _read_layers(recipe_path(base, path.parent), read)
        read[file] = settings | _settings(content, str(path))
    if (known := read[file]) is None:
        raise ValueError(f"{path}: {_BASE} leads back to the file itself")
    return known


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise OSError("it is not a regular file")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the config {path} cannot be read: {error}") from error


def _content(text: str, source: str) -> dict[str, Any]:
    content = parse_yaml(text, source)
    if not isinstance(content, dict | None):
        raise ValueError(f"{source}: a config is a mapping of sections, not {content!r:.60}")
    return content or {}


def _settings(content: Mapping[Any, Any], source: str) -> _Settings:
    """The values that a file sets, by full key; a mapping's names one by one, as HF.CONFIG.x."""
    settings = _Settings()
    for name, value in flatten(content):
        if isinstance(value, Mapping) and value:
            settings |= {f"{name}.{inner}": _Setting(v, source) for inner, v in value.items()}
        else:
            settings[name] = _Setting(value, source)
    return settings


def _pairs(overrides: Sequence[object]) -> _Settings:
    words = split_pairs(overrides)
    if len(words) % 2:
        raise ValueError(
            f"overrides are pairs KEY VALUE, or KEY=VALUE, and {words[-1]} has no value"
        )
    pairs = zip(words[::2], words[1::2], strict=True)
    return {str(key): _Setting(value, "the command line") for key, value in pairs}


def _set(values: dict[str, Any], name: str, setting: _Setting) -> None:
    """Change one value, by full key; a key without effect is warned of instead."""
    value, source = setting
    section, _, inner = name.rpartition(".")
    if row := no_effect(name):
        if (decoded := _decode(value)) not in row.quiet:
            logger.warning(f"{name} {decoded!s:.60} ({source}) has no effect: {row.why}")
    elif name in values:
        try:
            values[name] = _adapt(value, KEYS[name].kind)
        except TypeError as wanted:
            message = f"{name} takes {wanted}, not {value!r:.60} ({source})"
            raise ValueError(message) from None
    elif isinstance(values.get(section), Mapping):
        values[section] = {**values[section], inner: _decode(value)}
    elif not any(known.startswith(f"{name}.") for known in values):
        nearest = difflib.get_close_matches(name.upper(), values, n=1)
        advice = f"; did you mean {nearest[0]}?" if nearest else ""
        raise ValueError(f"{name:.60} is not a config key ({source}){advice}")
    elif value is not None:  # a section may be empty
        raise ValueError(
            f"{name} is a section and cannot be {value!r:.60} ({source}); name a key in it"
        )


_WANTED = {
    bool: "True or False",
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    type(None): "None",
    tuple: "a list",
    Mapping: "a mapping such as {'hidden_size': 192}",
}


def _adapt(raw: Any, kind: Any) -> Any:
    """A value as a field's type.

    Raises:
        TypeError: it is not of that type; the message says which type is wanted.
    """
    if isinstance(kind, UnionType):
        for option in get_args(kind):
            with suppress(TypeError):
                return _adapt(raw, option)
        options = [get_origin(option) or option for option in get_args(kind)]
        raise TypeError(" or ".join(_WANTED[option] for option in options))
    value = _decode(raw)
    origin = get_origin(kind) or kind
    if origin is tuple and isinstance(value, str) and get_args(kind)[0] is str:
        value = value.replace(",", " ").split()  # "s1, s2" or one alone
    if origin is tuple and isinstance(value, list):
        try:
            return tuple(_adapt(item, get_args(kind)[0]) for item in value)
        except TypeError as wanted:
            raise TypeError(f"a list with {wanted} in each place") from None
    if origin is str:  # text stays as it is written, digits and all, without its quotes
        value = value if isinstance(value, str) else raw
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if origin is float and number and abs(value) <= sys.float_info.max:
        return float(value)
    if origin is int and number and value == value // 1:
        return int(value)
    if origin not in (int, float, tuple) and (origin is Any or isinstance(value, origin)):
        return value
    raise TypeError(_WANTED[origin])


def _decode(raw: Any) -> Any:
    """What a text stands for ("1e-4" is a number, "(1, 2)" a list); texts in lists too."""
    if isinstance(raw, str):
        try:
            raw = literal_eval(raw)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return raw
    return [_decode(item) for item in raw] if isinstance(raw, list | tuple) else raw


def _derive(values: dict[str, Any], given: Mapping[str, object]) -> None:
    """Fill the keys that follow from others, where `given`, the user's keys, do not name them."""
    if values["SOLVER.BASE_LR_SCALE_NUM_SHARDS"]:
        if values["SOLVER.REFERENCE_BATCH_SIZE"]:
            raise ValueError(
                "SOLVER.BASE_LR_SCALE_NUM_SHARDS True and SOLVER.REFERENCE_BATCH_SIZE would both "
                "scale the learning rates; set one of them to False or 0"
            )
        # As there: all rates, the start of the warm-up too, are those of one machine's clips.
        values["SOLVER.REFERENCE_BATCH_SIZE"] = values["TRAIN.BATCH_SIZE"]
        values["SOLVER.BASE_LR_SCALE_NUM_SHARDS"] = False
    if values["MODEL.ARCH"] == "slow":
        values["MODEL.ARCH"] = "slowonly"
    if values["MODEL.ARCH"] == "slowfast":
        for key in PER_PATHWAY:
            if key not in given:
                values[key] = tuple((stage[0], stage[0]) for stage in values[key])
    elif "DATA.INPUT_CHANNEL_NUM" not in given:
        values["DATA.INPUT_CHANNEL_NUM"] = values["DATA.INPUT_CHANNEL_NUM"][:1]
    if values["DETECTION.ENABLE"]:
        # The host's head for boxes has no other, and recipes of 1.0 have no such key.
        derived = {"MODEL.HEAD_ACT": "sigmoid", "TEST.NUM_ENSEMBLE_VIEWS": 1}
        values |= {key: value for key, value in derived.items() if key not in given}
    if "DATA.CROP_SIZE" not in given:
        values["DATA.CROP_SIZE"] = values["DATA.TRAIN_CROP_SIZE"]
    if values["DIST_BACKEND"] == "nccl" and values["NUM_GPUS"] == 0:
        logger.warning("DIST_BACKEND nccl has no effect with NUM_GPUS 0: gloo is used; write auto.")
        values["DIST_BACKEND"] = "gloo"


def _drop_unreached(values: dict[str, Any]) -> None:
    """Cut SOLVER.STEPS at MAX_EPOCH, and LRS to a rate for each stage, and warn of what that drops.

    Recipes of the later releases have six rates for any number of steps, and some a last step at
    MAX_EPOCH.
    """
    if values["SOLVER.LR_POLICY"] != "steps_with_relative_lrs":
        return
    end = values["SOLVER.MAX_EPOCH"]
    stages = max(1, len(values["SOLVER.STEPS"]))
    while stages > 1 and values["SOLVER.STEPS"][stages - 1] == end:
        stages -= 1
    for key in ("SOLVER.STEPS", "SOLVER.LRS"):
        if dropped := values[key][stages:]:
            logger.warning(
                f"the last of {key}, {list(dropped)}, has no effect and is dropped: the steps make "
                f"{stages} stages before SOLVER.MAX_EPOCH {end:g}, each with one rate"
            )
        values[key] = values[key][:stages]
