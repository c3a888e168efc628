"""Load a recipe: YAML with `_BASE_`, then overrides, into the defaults, with clear errors."""

from __future__ import annotations

import difflib
import logging
from ast import literal_eval
from collections.abc import Container, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from fvcore.common.config import BASE_KEY, CfgNode

from slowfast_patches.config.keys import (
    AUTO_OR_COUNT,
    AUTO_OR_SWITCH,
    PER_PATHWAY,
    Check,
    Key,
    find_key,
    flatten,
    get_cfg,
)
from slowfast_patches.config.recipe import Recipe, parse_yaml, recipe_of

__all__ = ["CONFIGS", "load_recipe", "parse_recipe", "recipe_path"]

logger = logging.getLogger(__name__)

_PACKAGE = Path(__file__).parents[1]

CONFIGS = next(filter(Path.is_dir, (_PACKAGE / "configs", _PACKAGE.parent / "configs")))
"""The recipes that come with the package: installed in it, or beside it in a checkout."""


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
    return _make({} if path is None else _read_layers(recipe_path(path)), overrides)


def recipe_path(path: str | Path, folder: Path = Path()) -> Path:
    """The file that a user named, in `folder`, or else the recipe of that name which the package
    ships, such as configs/Demo/SLOWFAST_DEMO.yaml.

    Raises:
        ValueError: there is neither.
    """
    for place in (folder / Path(path).expanduser(), CONFIGS.parent / path):
        if place.exists():
            return place
    raise ValueError(
        f"the config {folder / path} cannot be read: there is no such file, and no recipe "
        f"of that name in {CONFIGS}"
    )


def parse_recipe(text: str, source: str, overrides: Sequence[object] = ()) -> Recipe:
    """As `load_recipe`, from the text of a resolved config; `source` says where it comes from."""
    return _make(_settings(_parse_yaml(text, source), source), overrides)


def _make(settings: Mapping[str, _Setting], overrides: Sequence[object]) -> Recipe:
    settings = {**settings, **_pairs(overrides)}
    cfg = get_cfg()
    for key, setting in settings.items():
        _set(cfg, key, setting)
    _derive(cfg, settings.keys())
    _drop_surplus_rates(cfg.SOLVER)
    return recipe_of(cfg)


def _read_layers(path: Path, children: tuple[Path, ...] = ()) -> dict[str, _Setting]:
    """Every key that a file and its bases set; the file wins over its base."""
    if path.resolve() in children:
        raise ValueError(f"{path}: {BASE_KEY} leads back to the file itself")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the config {path} cannot be read: {error}") from error
    content = _parse_yaml(text, str(path))
    bases = content.pop(BASE_KEY, [])
    settings: dict[str, _Setting] = {}
    for base in [bases] if isinstance(bases, str) else bases:
        settings |= _read_layers(recipe_path(base, path.parent), (*children, path.resolve()))
    return settings | _settings(content, str(path))


def _parse_yaml(text: str, source: str) -> dict[str, Any]:
    try:
        content = parse_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise ValueError(f"{source}{line}: this is not YAML: {problem}") from error
    if not isinstance(content, dict | None):
        raise ValueError(f"{source}: a config is a mapping of sections, not {content!r:.60}")
    return content or {}


def _settings(content: Mapping[Any, Any], source: str) -> dict[str, _Setting]:
    return {key: _Setting(value, source) for key, value in flatten(content, whole=())}


def _pairs(overrides: Sequence[object]) -> dict[str, _Setting]:
    if len(overrides) % 2:
        odd = next((str(o) for o in overrides[::2] if "=" in str(o)), None)
        advice = f"write {odd.replace('=', ' ', 1)}" if odd else f"{overrides[-1]} has no value"
        raise ValueError(f"overrides are pairs KEY VALUE, but there are {len(overrides)}: {advice}")
    pairs = zip(overrides[::2], overrides[1::2], strict=True)
    return {str(key): _Setting(value, "the command line") for key, value in pairs}


def _set(cfg: CfgNode, key: str, setting: _Setting) -> None:
    """Put one value into the config; a key without effect is warned of instead."""
    row = find_key(key)
    if row is not None and row.no_effect:
        value = _decode(setting.value)
        if value not in (row.default, *row.quiet):
            logger.warning(f"{key} {value} ({setting.source}) has no effect: {row.comment}")
        return
    *sections, name = key.split(".")
    node = cfg
    for section in sections:
        node = node.get(section) if isinstance(node, dict) else None
    if isinstance(node, dict) and not isinstance(node, CfgNode):  # one of a mapping's own names
        node[name] = _decode(setting.value)
        return
    if not isinstance(node, CfgNode) or name not in node:
        raise ValueError(_unknown_message(cfg, key, setting.source))
    if not isinstance(node[name], CfgNode):
        try:
            node[name] = _adapt(setting.value, node[name], row)
        except TypeError as wanted:
            message = f"{key} takes {wanted}, not {setting.value!r} ({setting.source})"
            raise ValueError(message) from None
    elif setting.value is not None:  # a section may be empty
        raise ValueError(
            f"{key} is a section and cannot be {setting.value!r} ({setting.source}); name a key in "
            "it"
        )


_WITH_AUTO: dict[Check | None, object] = {AUTO_OR_COUNT: 0, AUTO_OR_SWITCH: False}
_WANTED = {bool: "True or False", int: "a whole number", float: "a number"}


def _adapt(raw: Any, default: Any, row: Key | None = None) -> Any:
    """A value as the type of its default; None stands for an optional number.

    Raises:
        TypeError: it is not of that type; the message says which type is wanted.
    """
    value = _decode(raw)
    if row is not None and row.check in _WITH_AUTO:
        return _adapt_or_auto(value, _WITH_AUTO[row.check])
    if isinstance(default, str):  # text stays as it is written, digits and all, without its quotes
        texts = [text for text in (value, raw) if isinstance(text, str)]
        if texts:
            return texts[0]
        raise TypeError("a text")
    if isinstance(default, list):
        return _adapt_list(value, default)
    if isinstance(default, dict):
        if isinstance(value, dict):
            return value
        raise TypeError("a mapping such as {'hidden_size': 192}")
    if isinstance(value, bool) or isinstance(default, bool):
        if isinstance(value, bool) and isinstance(default, bool):
            return value
    elif value is None and default is None:
        return None
    elif isinstance(value, int | float):
        if not isinstance(default, int):
            return float(value)
        if value == value // 1:  # neither a fraction nor infinite
            return int(value)
    raise TypeError(_WANTED.get(type(default), "a number or None"))


def _adapt_or_auto(value: Any, default: Any) -> Any:
    if str(value).lower() == "auto":
        return "auto"
    try:
        return _adapt(value, default)
    except TypeError as wanted:
        raise TypeError(f"{wanted}, or auto") from None


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
        except (ValueError, SyntaxError):
            return raw
    return [_decode(item) for item in raw] if isinstance(raw, list | tuple) else raw


def _derive(cfg: CfgNode, given: Container[str]) -> None:
    """Fill the keys that follow from others, where `given`, the user's keys, do not name them."""
    if cfg.MODEL.ARCH == "slow":
        cfg.MODEL.ARCH = "slowonly"
    name = "SlowFast" if cfg.MODEL.ARCH == "slowfast" else "ResNet"
    if "MODEL.MODEL_NAME" in given and name != cfg.MODEL.MODEL_NAME:
        logger.warning(
            f"MODEL.MODEL_NAME {cfg.MODEL.MODEL_NAME} has no effect: MODEL.ARCH {cfg.MODEL.ARCH} "
            "says what is built; write MODEL.ARCH."
        )
    cfg.MODEL.MODEL_NAME = name
    if "DATA.INPUT_CHANNEL_NUM" not in given and name == "ResNet":
        cfg.DATA.INPUT_CHANNEL_NUM = cfg.DATA.INPUT_CHANNEL_NUM[:1]
    for section, key in (name.split(".") for name in PER_PATHWAY):
        if f"{section}.{key}" not in given and name == "SlowFast":
            stages = cfg[section][key]
            cfg[section][key] = [[stage[0], deepcopy(stage[0])] for stage in stages]
    if "DATA.CROP_SIZE" not in given:
        cfg.DATA.CROP_SIZE = cfg.DATA.TRAIN_CROP_SIZE
    if cfg.DIST_BACKEND == "nccl" and cfg.NUM_GPUS == 0:
        logger.warning("DIST_BACKEND nccl has no effect with NUM_GPUS 0: gloo is used; write auto.")
        cfg.DIST_BACKEND = "gloo"


def _drop_surplus_rates(solver: CfgNode) -> None:
    """Cut SOLVER.STEPS and LRS to those that take effect, and say what that drops.

    Recipes of the later releases have six rates for any number of steps, and some a last step at
    MAX_EPOCH.
    """
    if solver.LR_POLICY != "steps_with_relative_lrs":
        return
    steps, end = list(solver.STEPS), solver.MAX_EPOCH
    while len(steps) > 1 and steps[-1] == end:
        steps.pop()
    if late := solver.STEPS[len(steps) :]:
        logger.warning(
            f"the last of SOLVER.STEPS, {late}, has no effect and is dropped: the training ends at "
            f"SOLVER.MAX_EPOCH {end:g}; leave it out, or raise MAX_EPOCH."
        )
    if surplus := solver.LRS[max(1, len(steps)) :]:
        logger.warning(
            f"the last of SOLVER.LRS, {surplus}, have no effect and are dropped: SOLVER.STEPS "
            f"{steps} has one rate a stage; leave them out, or give more steps."
        )
    solver.STEPS, solver.LRS = steps, solver.LRS[: max(1, len(steps))]


def _unknown_message(cfg: CfgNode, key: str, source: str) -> str:
    """The nearest key is named where its section is the key's, or spelt nearly so."""
    known = [name for name, _ in flatten(cfg)]
    if "." in key:
        section = difflib.get_close_matches(key.split(".")[0], list(cfg), n=1, cutoff=0.8)
        known = [name for name in known if name.split(".")[0] in section]
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    advice = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"{key} is not a config key ({source}){advice}"
