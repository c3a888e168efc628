"""Load a recipe: YAML with `_BASE_`, then overrides, into the defaults, with clear errors."""

from __future__ import annotations

import difflib
import logging
import os.path
import sys
from ast import literal_eval
from collections.abc import Collection, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from slowfast_patches.config.fields import Check
from slowfast_patches.config.keys import no_effect
from slowfast_patches.config.recipe import KEYS, PER_PATHWAY, Recipe, default_recipe, keys_of
from slowfast_patches.config.scale import scaled_lengths
from slowfast_patches.config.yaml_text import flatten, parse_yaml

__all__ = ["CONFIGS", "load_recipe", "parse_recipe", "recipe_path"]

logger = logging.getLogger(__name__)

_PACKAGE = Path(__file__).parents[1]

CONFIGS = next(filter(Path.is_dir, (_PACKAGE / "configs", _PACKAGE.parent / "configs")))
"""The recipes that come with the package: installed in it, or beside it in a checkout."""

_BASE = "_BASE_"
_MOST_BASES = 50
"""Bases of bases above a recipe."""
_LARGEST = 2**32 - 1
"""The largest whole number of a key: NumPy and torch take it wherever a key may lead."""


class _Setting(NamedTuple):
    """A value as the user wrote it, and where: a file, or "the command line"."""

    value: Any
    source: str


def load_recipe(path: str | Path | None, overrides: Sequence[object] = ()) -> Recipe:
    """The defaults, changed by a recipe and then by KEY VALUE pairs.

    A recipe may name another one as its `_BASE_`: relative to itself, or one that the package
    ships. Values are adapted to the type of the default: "1e-4" and 1 are numbers for a float, a
    tuple is a list. A key without effect (config/keys.py) is warned of once and stays at its
    default, and so are steps and rates that no iteration gets to, which are dropped: the result
    holds only what is in force.

    Raises:
        ValueError: a file that is missing or no YAML, a key that does not exist, a value of another
            type, a pair without a value.
    """
    return _make({} if path is None else _read_layers(recipe_path(path), {}), overrides)


def recipe_path(path: str | Path, folder: Path = Path()) -> Path:
    """The file that a user named, in `folder`, or else the recipe of that name which the package
    ships, such as configs/Demo/SLOWFAST_DEMO.yaml.

    Raises:
        ValueError: there is neither.
    """
    for place in (folder / os.path.expanduser(path), CONFIGS.parent / path):
        if place.exists():
            return place
    raise ValueError(
        f"the config {folder / path} cannot be read: there is no such file, and no recipe "
        f"of that name in {CONFIGS}"
    )


def parse_recipe(text: str, source: str, overrides: Sequence[object] = ()) -> Recipe:
    """As `load_recipe`, from the text of a resolved config; `source` says where it comes from."""
    return _make(_settings(_content(text, source), source), overrides)


def _make(settings: Mapping[str, _Setting], overrides: Sequence[object]) -> Recipe:
    settings = {**settings, **_pairs(overrides)}
    values = keys_of(default_recipe())
    for key, setting in settings.items():
        _set(values, key, setting)
    _derive(values, settings.keys())
    for key, (_, source) in settings.items():
        check = KEYS[key].check if key in KEYS else None
        if check and not check.passes(values[key]):
            raise ValueError(f"{key} must be {check.wanted}, not {values[key]!r:.60} ({source})")
    _drop_surplus_rates(values)
    recipe = default_recipe().replaced(values)
    length = recipe.solver.length
    return recipe if length == 1 else recipe.replaced(scaled_lengths(recipe, length))


def _read_layers(
    path: Path, read: dict[Path, dict[str, _Setting]], children: tuple[Path, ...] = ()
) -> dict[str, _Setting]:
    """Every key that a file and its bases set; the file wins over its base. `read` has those of
    the files that were read before."""
    file = path.resolve()
    if file in children:
        raise ValueError(f"{path}: {_BASE} leads back to the file itself")
    if len(children) > _MOST_BASES:
        raise ValueError(f"{path} is the base of a base, more than {_MOST_BASES} times over")
    if file not in read:
        content = _content(_text(path), str(path))
        bases = content.pop(_BASE, [])
        settings: dict[str, _Setting] = {}
        for base in bases if isinstance(bases, list) else [bases]:
            if not isinstance(base, str):
                raise ValueError(
                    f"{path}: {_BASE} takes a file or a list of files, not {base!r:.60}"
                )
            settings |= _read_layers(recipe_path(base, path.parent), read, (*children, file))
        read[file] = settings | _settings(content, str(path))
    return read[file]


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


def _settings(content: Mapping[Any, Any], source: str) -> dict[str, _Setting]:
    """The values that a file sets, by full key; a mapping's names one by one, as HF.CONFIG.x."""
    settings = dict[str, _Setting]()
    for key, value in flatten(content):
        names = value if isinstance(value, Mapping) else {}
        leaves = {f"{key}.{name}": leaf for name, leaf in names.items()} or {key: value}
        settings |= {name: _Setting(leaf, source) for name, leaf in leaves.items()}
    return settings


def _pairs(overrides: Sequence[object]) -> dict[str, _Setting]:
    if len(overrides) % 2:
        odd = next((str(o) for o in overrides[::2] if "=" in str(o)), None)
        advice = f"write {odd.replace('=', ' ', 1)}" if odd else f"{overrides[-1]} has no value"
        raise ValueError(f"overrides are pairs KEY VALUE, but there are {len(overrides)}: {advice}")
    pairs = zip(overrides[::2], overrides[1::2], strict=True)
    return {str(key): _Setting(value, "the command line") for key, value in pairs}


def _set(values: dict[str, Any], key: str, setting: _Setting) -> None:
    """Change one value, by full key; a key without effect is warned of instead."""
    if row := no_effect(key):
        value = _decode(setting.value)
        if value not in row.quiet:
            logger.warning(f"{key} {value!s:.60} ({setting.source}) has no effect: {row.why}")
        return
    section, _, name = key.rpartition(".")
    if key in values:
        try:
            values[key] = _adapt(setting.value, values[key], KEYS[key].check)
        except TypeError as wanted:
            message = f"{key} takes {wanted}, not {setting.value!r:.60} ({setting.source})"
            raise ValueError(message) from None
    elif isinstance(values.get(section), dict):  # one of a mapping's own names
        values[section][name] = _decode(setting.value)
    elif not any(known.startswith(f"{key}.") for known in values):
        raise ValueError(_unknown_message(values, key, setting.source))
    elif setting.value is not None:  # a section may be empty
        raise ValueError(
            f"{key} is a section and cannot be {setting.value!r:.60} ({setting.source}); name a "
            "key in it"
        )


_WANTED = {bool: "True or False", int: "a whole number", float: "a number"}


def _adapt(raw: Any, default: Any, check: Check | None = None) -> Any:
    """A value as the type of its default; None stands for an optional number.

    Raises:
        TypeError: it is not of that type; the message says which type is wanted.
    """
    value = _decode(raw)
    if check is not None and check.texts:
        return _adapt_or_text(value, check)
    if isinstance(default, str):  # text stays as it is written, digits and all, without its quotes
        texts = [text for text in (value, raw) if isinstance(text, str)]
        if texts:
            return texts[0]
        raise TypeError("a text")
    if isinstance(default, list):
        return _adapt_list(value, default)
    if isinstance(default, dict):
        if isinstance(value, dict):
            return dict(value)
        raise TypeError("a mapping such as {'hidden_size': 192}")
    if isinstance(value, bool) or isinstance(default, bool):
        if isinstance(value, bool) and isinstance(default, bool):
            return value
    elif value is None and default is None:
        return None
    elif isinstance(value, int | float):
        whole = isinstance(default, int)
        if not abs(value) <= (_LARGEST if whole else sys.float_info.max):  # NaN, too
            raise TypeError(f"a whole number up to {_LARGEST}" if whole else "a finite number")
        if not whole:
            return float(value)
        if value == value // 1:
            return int(value)
    raise TypeError(_WANTED.get(type(default), "a number or None"))


def _adapt_or_text(value: Any, check: Check) -> Any:
    if str(value).lower() in check.texts:
        return str(value).lower()
    try:
        return _adapt(value, check.like)
    except TypeError as wanted:
        raise TypeError(f"{wanted}, or {' or '.join(check.texts)}") from None


def _adapt_list(value: Any, default: list[Any]) -> list[Any]:
    """A list whose leaves have the type of the default's first leaf, where it has one."""
    if not isinstance(value, list):
        raise TypeError(f"a list such as {default or [0, 1]}")
    leaf: Any = default
    while isinstance(leaf, list) and leaf:
        leaf = leaf[0]

    def adapt(item: Any) -> Any:
        if isinstance(item, list):
            return [adapt(inner) for inner in item]
        return item if leaf == [] else _adapt(item, leaf)

    try:
        return [adapt(item) for item in value]
    except TypeError as wanted:
        raise TypeError(f"a list with {wanted} in each place, such as {default}") from None


def _decode(raw: Any) -> Any:
    """What a text stands for ("1e-4" is a number, "(1, 2)" a list); texts in lists too."""
    if isinstance(raw, str):
        try:
            raw = literal_eval(raw)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            return raw
    return [_decode(item) for item in raw] if isinstance(raw, list | tuple) else raw


def _derive(values: dict[str, Any], given: Container[str]) -> None:
    """Fill the keys that follow from others, where `given`, the user's keys, do not name them."""
    if values["MODEL.ARCH"] == "slow":
        values["MODEL.ARCH"] = "slowonly"
    if values["MODEL.ARCH"] == "slowfast":
        for key in PER_PATHWAY:
            if key not in given:
                values[key] = [[stage[0], stage[0]] for stage in values[key]]
    elif "DATA.INPUT_CHANNEL_NUM" not in given:
        del values["DATA.INPUT_CHANNEL_NUM"][1:]
    if "DATA.CROP_SIZE" not in given:
        values["DATA.CROP_SIZE"] = values["DATA.TRAIN_CROP_SIZE"]
    if values["DIST_BACKEND"] == "nccl" and values["NUM_GPUS"] == 0:
        logger.warning("DIST_BACKEND nccl has no effect with NUM_GPUS 0: gloo is used; write auto.")
        values["DIST_BACKEND"] = "gloo"


def _drop_surplus_rates(values: dict[str, Any]) -> None:
    """Cut SOLVER.STEPS and LRS to those that take effect, and say what that drops.

    Recipes of the later releases have six rates for any number of steps, and some a last step at
    MAX_EPOCH.
    """
    if values["SOLVER.LR_POLICY"] != "steps_with_relative_lrs":
        return
    steps = values["SOLVER.STEPS"]
    rates = values["SOLVER.LRS"]
    end = values["SOLVER.MAX_EPOCH"]
    count = len(steps)
    while count > 1 and steps[count - 1] == end:
        count -= 1
    stages = max(1, count)
    if late := steps[count:]:
        logger.warning(
            f"the last of SOLVER.STEPS, {late}, has no effect and is dropped: the training ends at "
            f"SOLVER.MAX_EPOCH {end:g}; leave it out, or raise MAX_EPOCH."
        )
    if surplus := rates[stages:]:
        logger.warning(
            f"the last of SOLVER.LRS, {surplus}, have no effect and are dropped: SOLVER.STEPS "
            f"{steps[:count]} has one rate a stage; leave them out, or give more steps."
        )
    del steps[count:]
    del rates[stages:]


def _unknown_message(known: Collection[str], key: str, source: str) -> str:
    """The nearest key is named where its section is the key's, or spelt nearly so."""
    names = list(known)
    if "." in key:
        sections = {name.split(".")[0] for name in known}
        section = difflib.get_close_matches(key.upper().split(".")[0], sections, n=1, cutoff=0.8)
        names = [name for name in known if name.split(".")[0] in section]
    nearest = difflib.get_close_matches(key.upper(), names, n=1, cutoff=0.5)
    advice = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"{key:.60} is not a config key ({source}){advice}"
