"""A key is one row of config/keys.py and one field of config/recipe.py."""

import dataclasses
import logging
from pathlib import Path
from typing import get_type_hints

import pytest
from slowfast.config import defaults as host_defaults

from slowfast_patches.config import load_recipe
from slowfast_patches.config.keys import (
    ABSENT,
    HOST,
    KEYS,
    find_key,
    flatten,
    format_keys,
    get_cfg,
    may_differ,
    speed_keys,
    speed_switches,
)
from slowfast_patches.config.recipe import Recipe

DOCS = Path(__file__).parents[3] / "docs" / "keys.md"
FOLLOWS = {"MODEL.MODEL_NAME", "MODEL.SINGLE_PATHWAY_ARCH"}
"""Keys of ours that are for the host's code alone."""


def fields(kind: type = Recipe, prefix: str = "") -> set[str]:
    """The keys that the recipe's fields are named after."""
    found = set()
    for name, hint in get_type_hints(kind).items():
        key = prefix + name.upper().rstrip("_")
        found |= fields(hint, f"{key}.") if dataclasses.is_dataclass(hint) else {key}
    return found - {"TEXT"}


def test_off_is_unchanged_the_hosts_keys_keep_the_hosts_defaults():
    ours, host = dict(flatten(get_cfg())), dict(flatten(host_defaults.get_cfg()))
    changed = {key for key in host if ours[key] != host[key]}
    assert changed == {"DATA_LOADER.NUM_WORKERS", "DIST_BACKEND", "MODEL.SINGLE_PATHWAY_ARCH"}


def test_a_key_is_a_row_and_a_field():
    keys, names = dict(flatten(get_cfg())), [key.name for key in KEYS]
    assert len(set(names)) == len(names)
    assert fields() <= keys.keys()
    ours = {key.name for key in KEYS if key.default is not HOST and not key.no_effect}
    assert ours - FOLLOWS <= fields()
    assert {key.name for key in KEYS if key.check} <= fields()
    assert {key.name for key in KEYS if key.default is not ABSENT} <= keys.keys()


def test_rows_say_what_a_key_may_do_to_a_checkpoint_and_to_step_times():
    for name in ("DATA_LOADER.PIN_MEMORY", "TEST.ENABLE", "TRAIN.COMPILE", "BN.NUM_SPLITS"):
        assert may_differ(name)
    for name in ("SOLVER.BASE_LR", "TRAIN.TF32", "DATA.NUM_FRAMES", "NUM_SHARDS", "NO.KEY"):
        assert not may_differ(name)
    assert {"RESNET.DEPTH", "NONLOCAL.GROUP", "TRAIN.DETERMINISTIC"} < set(speed_keys())
    assert "RESNET.ZERO_INIT_FINAL_BN" not in speed_keys()
    assert set(speed_switches()) < set(speed_keys())
    assert all(isinstance(load_recipe(None)[name], bool) for name in speed_switches())


def test_the_page_of_all_keys_is_up_to_date():
    assert DOCS.read_text(encoding="utf-8") == format_keys() + "\n"


@pytest.mark.parametrize("key", [key for key in KEYS if key.no_effect], ids=lambda key: key.name)
def test_a_key_without_effect_is_warned_of_unless_it_asks_for_nothing(key, caplog):
    name = key.name.replace("*", "ANY.THING")
    assert find_key(name) is key
    for value in (key.default, *key.quiet):
        if value is not ABSENT:
            load_recipe(None, [name, value])
    assert not caplog.records
    assert load_recipe(None, [name, "7"]).text == load_recipe(None).text
    messages = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert messages == [f"{name} 7 (the command line) has no effect: {key.comment}"]
