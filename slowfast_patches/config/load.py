"""Load a recipe: YAML with `_BASE_`, then overrides, into the defaults, with clear errors."""

from __future__ import annotations

import difflib
import logging
from ast import literal_eval
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from fvcore.common.config import BASE_KEY, CfgNode

from slowfast_patches.config.keys import (
    AUTO_OR_COUNT,
    NOT_HERE,
    PER_PATHWAY,
    find_no_effect,
    get_cfg,
)
from slowfast_patches.config.recipe import Recipe, recipe_of
from slowfast_patches.utils.report import format_list

__all__ = ["CONFIGS", "load_recipe", "parse_recipe", "recipe_path"]

logger = logging.getLogger(__name__)

_PACKAGE = Path(__file__).parents[1]
CONFIGS = next(filter(Path.is_dir, (_PACKAGE / "configs", _PACKAGE.parent / "configs")))
"""The recipes of this project: in the installed package, or beside it in a checkout."""


class _Setting(NamedTuple):
    """A value as the user wrote it, and where: a file, or "the command line"."""

    value: Any
    source: str


def load_recipe(path: str | Path | None, overrides: Sequence[object] = ()) -> Recipe:
    """The defaults, changed by a recipe and then by KEY VALUE pairs.

    A recipe may name another one as its `_BASE_`, relative to itself. Values are adapted to the
    type of the default: "1e-4" and 1 are numbers for a float, a tuple is a list. A key of the
    later releases that has no effect here (`NO_EFFECT`) is warned of once and stays at its
    default, and so are steps and rates that no iteration gets to, which are dropped: the result
    holds only what is in force.

    Raises:
        ValueError: a file that is missing or no YAML, a key that does not exist or belongs to what
            is `NOT_HERE`, a value of another type, a pair without a value.
    """
    defaults = get_cfg()
    settings = dict(_pairs(overrides))
    if path is not None:
        settings = {**_read_layers(recipe_path(path), defaults), **settings}
    return _make(defaults, settings)


def recipe_path(path: str | Path) -> Path:
    """The file that a user named, or else the recipe of that name which the package ships.

    Raises:
        ValueError: there is neither.
    """
    places = (Path(path).expanduser(), CONFIGS.parent / path)
    for place in places:
        if place.exists():
            return place
    raise ValueError(
        f"the config {path} cannot be read: there is no such file, and no recipe of that name in "
        f"{CONFIGS}"
    )


def parse_recipe(text: str, source: str, overrides: Sequence[object] = ()) -> Recipe:
    """As `load_recipe`, from the text of a resolved config; `source` says where it comes from."""
    defaults = get_cfg()
    own = _flatten(_parse_yaml(text, source), defaults, source)
    settings = {key: _Setting(value, source) for key, value in own}
    return _make(defaults, settings | dict(_pairs(overrides)))


def _make(defaults: CfgNode, settings: Mapping[str, _Setting]) -> Recipe:
    _refuse_what_is_not_here(settings)
    cfg = defaults.clone()
    for key, setting in settings.items():
        _set(cfg, key, setting)
    _derive(cfg, settings.keys())
    _drop_surplus_rates(cfg.SOLVER)
    return recipe_of(cfg)


def _refuse_what_is_not_here(settings: Mapping[str, _Setting]) -> None:
    """One message for all sections of models and trainings that are `NOT_HERE`."""
    found: dict[str, str] = {}
    for key, setting in settings.items():
        section, _, name = key.partition(".")
        if section in NOT_HERE:
            found.setdefault(section + ".*" * bool(name), setting.source)
    if found:
        belong = [f"{name} belongs to {NOT_HERE[name.removesuffix('.*')]}" for name in found]
        raise ValueError(
            f"{format_list(belong)} of later releases, which this project does not have "
            f"({format_list(dict.fromkeys(found.values()))}); it trains C2D, I3D, Slow, SlowFast "
            "and TSM (MODEL.ARCH), without these keys"
        )


def _read_layers(
    path: Path, defaults: CfgNode, children: tuple[Path, ...] = ()
) -> dict[str, _Setting]:
    """Every key that a file and its bases set; the file wins over its base."""
    if path.resolve() in children:
        raise ValueError(f"{path}: {BASE_KEY} leads back to the file itself")
    content = _read_yaml(path)
    bases = content.pop(BASE_KEY, [])
    settings: dict[str, _Setting] = {}
    for base in [bases] if isinstance(bases, str) else bases:
        base_path = path.parent / Path(base).expanduser()
        settings |= _read_layers(base_path, defaults, (*children, path.resolve()))
    own = _flatten(content, defaults, source=str(path))
    return settings | {key: _Setting(value, str(path)) for key, value in own}


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the config {path} cannot be read: {error}") from error
    return _parse_yaml(text, str(path))


def _parse_yaml(text: str, source: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise ValueError(f"{source}{line}: this is not YAML: {problem}") from error
    if not isinstance(content, dict | None):
        raise ValueError(f"{source}: a config is a mapping of sections, not {content!r:.60}")
    return content or {}


def _flatten(
    content: Mapping[Any, Any], defaults: CfgNode | None, source: str, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """The leaves of nested sections as (full key, value); `defaults` is the section's own node."""
    for name, value in content.items():
        key = f"{prefix}{name}"
        default = None if defaults is None else defaults.get(name)
        is_section = isinstance(default, CfgNode)
        if isinstance(value, dict):
            yield from _flatten(value, default if is_section else None, source, f"{key}.")
        elif not is_section:
            yield key, value
        elif value is not None:
            raise ValueError(_section_message(key, value, source))


def _pairs(overrides: Sequence[object]) -> Iterator[tuple[str, _Setting]]:
    if len(overrides) % 2:
        odd = next((str(o) for o in overrides[::2] if "=" in str(o)), None)
        advice = f"write {odd.replace('=', ' ', 1)}" if odd else f"{overrides[-1]} has no value"
        raise ValueError(f"overrides are pairs KEY VALUE, but there are {len(overrides)}: {advice}")
    for key, value in zip(overrides[::2], overrides[1::2], strict=True):
        yield str(key), _Setting(value, "the command line")


def _set(cfg: CfgNode, key: str, setting: _Setting) -> None:
    """Put one value into the config; a key without effect is warned of instead."""
    no_effect = find_no_effect(key)
    if no_effect is not None:
        value = _decode(setting.value)
        if value not in no_effect.quiet:
            message = "%s %s (%s) has no effect: %s."
            logger.warning(message, key, value, setting.source, no_effect.because)
        return
    *sections, name = key.split(".")
    node = cfg
    for section in sections:
        node = node.get(section)
        if not isinstance(node, CfgNode):
            raise ValueError(_unknown_message(cfg, key, setting.source))
    if name not in node:
        raise ValueError(_unknown_message(cfg, key, setting.source))
    if isinstance(node[name], CfgNode):
        raise ValueError(_section_message(key, setting.value, setting.source))
    try:
        if key in AUTO_OR_COUNT:
            node[name] = _adapt_auto_or_count(setting.value)
        else:
            node[name] = _adapt(setting.value, node[name])
    except TypeError as wanted:
        message = f"{key} takes {wanted}, not {setting.value!r} ({setting.source})"
        raise ValueError(message) from None


def _adapt(raw: Any, default: Any) -> Any:
    """A value as the type of its default.

    Raises:
        TypeError: it is not of that type; the message says which type is wanted.
    """
    if isinstance(default, str):
        return _adapt_text(raw)
    value = _decode(raw)
    if isinstance(default, list):
        return _adapt_list(value, default)
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise TypeError("True or False")
        return value
    if default is None and value is None:
        return None
    return _adapt_number(value, default)


def _adapt_text(raw: Any) -> str:
    """Text stays as it is written, digits and all; only its own quotes go."""
    value = _decode(raw)
    if isinstance(value, str):
        return value
    if isinstance(raw, str):
        return raw
    raise TypeError("a text")


def _adapt_list(value: Any, default: list[Any]) -> list[Any]:
    """A list whose leaves have the type of the default's first leaf, where it has one."""
    if not isinstance(value, list):
        raise TypeError(f"a list such as {default}")
    leaf = next(_leaves(default), _ANYTHING)

    def adapt(item: Any) -> Any:
        if isinstance(item, list):
            return [adapt(inner) for inner in item]
        return item if leaf is _ANYTHING else _adapt(item, leaf)

    try:
        return [adapt(item) for item in value]
    except TypeError as wanted:
        raise TypeError(f"a list with {wanted} in each place, such as {default}") from None


def _adapt_number(value: Any, default: float | None) -> float:
    """An int where the default is one, else a float; None stands for an optional float."""
    wanted = {int: "a whole number", float: "a number"}.get(type(default), "a number or None")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(wanted)
    if not isinstance(default, int):
        return float(value)
    if value != value or value in (float("inf"), float("-inf")) or value != int(value):
        raise TypeError(wanted)
    return int(value)


def _adapt_auto_or_count(raw: Any) -> int | str:
    """ "auto" in any case, or an int, whose range `check_recipe` looks at."""
    value = _decode(raw)
    if isinstance(value, str) and value.lower() == "auto":
        return "auto"
    try:
        return int(_adapt_number(value, 0))
    except TypeError as wanted:
        raise TypeError(f"{wanted} or auto") from None


def _decode(raw: Any) -> Any:
    """What a text stands for ("1e-4" is a number, "(1, 2)" a list); texts in lists too."""
    if isinstance(raw, str):
        try:
            raw = literal_eval(raw)
        except (ValueError, SyntaxError):
            return raw
    return [_decode(item) for item in raw] if isinstance(raw, list | tuple) else raw


_ANYTHING = object()


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _derive(cfg: CfgNode, given: Container[str]) -> None:
    """Fill the keys that follow from others, where `given`, the user's keys, do not name them."""
    if cfg.MODEL.ARCH == "slow":
        cfg.MODEL.ARCH = "slowonly"
    name = "SlowFast" if cfg.MODEL.ARCH == "slowfast" else "ResNet"
    if "MODEL.MODEL_NAME" in given and name != cfg.MODEL.MODEL_NAME:
        message = "MODEL.MODEL_NAME %s has no effect: MODEL.ARCH %s makes a %s; write MODEL.ARCH."
        logger.warning(message, cfg.MODEL.MODEL_NAME, cfg.MODEL.ARCH, name)
    cfg.MODEL.MODEL_NAME = name
    if "DATA.INPUT_CHANNEL_NUM" not in given and name == "ResNet":
        cfg.DATA.INPUT_CHANNEL_NUM = cfg.DATA.INPUT_CHANNEL_NUM[:1]
    for section, key in (name.split(".") for name in PER_PATHWAY):
        stages = cfg[section][key]
        if f"{section}.{key}" not in given and name == "SlowFast":
            cfg[section][key] = [stage[:1] * 2 for stage in stages]
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
            "the last of SOLVER.STEPS, %s, has no effect and is dropped: the training ends at "
            "SOLVER.MAX_EPOCH %g; leave it out, or raise MAX_EPOCH.",
            *(late, end),
        )
    stages = max(1, len(steps))
    if surplus := solver.LRS[stages:]:
        logger.warning(
            "the last of SOLVER.LRS, %s, have no effect and are dropped: SOLVER.STEPS %s makes %d "
            "stage(s) of one rate each; leave them out, or give more steps.",
            *(surplus, steps, stages),
        )
    solver.STEPS, solver.LRS = steps, solver.LRS[:stages]


def _unknown_message(cfg: CfgNode, key: str, source: str) -> str:
    """The nearest key is named where its section is the key's, or spelt nearly so."""
    known = [name for name, _ in _flatten(cfg, cfg, source)]
    if "." in key:
        section = difflib.get_close_matches(key.split(".")[0], list(cfg), n=1, cutoff=0.8)
        known = [name for name in known if name.split(".")[0] in section]
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    advice = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"{key} is not a config key ({source}){advice}"


def _section_message(key: str, value: Any, source: str) -> str:
    return f"{key} is a section, not a value, and cannot be {value!r} ({source}); name a key in it"
