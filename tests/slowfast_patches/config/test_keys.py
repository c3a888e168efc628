"""Fields of keys, and the page that is generated from them."""

from pathlib import Path

from slowfast.config import defaults as host_defaults

from multigrid.integrations.pyslowfast import add_multigrid_config
from slowfast_patches.config import load_recipe, pyslowfast_config
from slowfast_patches.config.keys_page import format_keys
from slowfast_patches.config.later_releases import IGNORED, ignored_key
from slowfast_patches.config.recipe import KEYS, PER_PATHWAY, default_recipe, plain
from slowfast_patches.config.yaml_text import flatten

DOCS = Path(__file__).parents[3] / "docs" / "keys.md"


def test_off_is_unchanged_the_hosts_keys_keep_the_hosts_defaults():
    ours = dict(flatten(pyslowfast_config(default_recipe())))
    host = dict(flatten(host_defaults.get_cfg()))
    changed = {key for key in host if ours[key] != host[key]}
    of_boxes = {key for key in host if key.startswith(("AVA.", "DETECTION."))}
    assert all(key in KEYS or ignored_key(key) for key in host.keys() - of_boxes)
    others = {"DATA_LOADER.NUM_WORKERS", "DIST_BACKEND", "MODEL.SINGLE_PATHWAY_ARCH"}
    assert changed - of_boxes == others


def test_keys_that_a_config_of_pyslowfast_gets_have_the_same_defaults():
    cfg = host_defaults.get_cfg()
    add_multigrid_config(cfg)
    ours = default_recipe()
    common = [name for name in dict(flatten(cfg)) if name.startswith("MULTIGRID.") and name in KEYS]
    assert len(common) > 10
    for name in common:
        section, key = name.split(".")
        assert str(plain(ours[name])) == str(cfg[section][key]), name


def test_every_key_has_a_help_text_and_a_valid_default():
    recipe = default_recipe()
    assert all(key.help for key in KEYS.values())
    assert all(key.check.passes(recipe[name]) for name, key in KEYS.items() if key.check)
    assert set(PER_PATHWAY) < set(KEYS)


def test_the_page_has_all_keys():
    """It may have those of an extra that is not here (tests/test_extras.py)."""
    page = set(DOCS.read_text(encoding="utf-8").splitlines())
    assert set(format_keys().splitlines()) <= page


def test_a_key_without_effect_is_warned_of_unless_it_asks_for_nothing(caplog):
    for key, row in IGNORED.items():
        for value in row.usual:
            load_recipe(None, [key.replace("*", "ANY.THING"), value])
    assert not caplog.records
    assert load_recipe(None, ["DEMO.ENABLE", "7"]) == load_recipe(None)
    assert "DEMO.ENABLE 7 (the command line) has no effect: This package has no" in caplog.text
