"""Fields of keys, and the page that is generated from them."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from slowfast.config import defaults as host_defaults

from multigrid import MultigridError
from multigrid.integrations.pyslowfast import add_multigrid_config
from slowfast_patches.config import check_recipe, load_recipe, pyslowfast_config
from slowfast_patches.config.keys_page import format_keys
from slowfast_patches.config.later_releases import IGNORED, TRANSLATED, ignored_key
from slowfast_patches.config.recipe import KEYS, PER_PATHWAY, Recipe, default_recipe, plain
from slowfast_patches.config.yaml_text import flatten
from slowfast_patches.registry import AUGMENTATIONS, TASKS

DOCS = Path(__file__).parents[3] / "docs" / "keys.md"


def test_off_is_unchanged_the_hosts_keys_keep_the_hosts_defaults():
    ours = dict(flatten(pyslowfast_config(default_recipe())))
    host = dict(flatten(host_defaults.get_cfg()))
    changed = {key for key in host if ours[key] != host[key]}
    of_boxes = {key for key in host if key.startswith(("AVA.", "DETECTION."))}
    assert all(
        key in KEYS or key in TRANSLATED or ignored_key(key) for key in host.keys() - of_boxes
    )
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


_WORDS = (
    *("sum", "max", "linear", "sqrt", "cosine", "a.csv", "error", "stride", "flops", "gloo"),
    *("const", "ssv2", "adamw", "softmax", "slowonly", "rand-m7-n4", "mlflow"),
)
_GIVEN: dict[str, object] = {
    "MULTIGRID.LONG_CYCLE_FACTORS": ((1.0, 1.0),),
    "MULTIGRID.STAGES": ({"shape": [8, 8, 224], "until": 300},),
    "DATA.TRAIN_JITTER_SCALES": (300, 320),
    "NONLOCAL.POOL": (((1, 1, 1),) * 2,) * 4,
    "NONLOCAL.LOCATION": (((0,), ()), ((), ()), ((), ()), ((), ())),
    "RESNET.NUM_BLOCK_TEMP_KERNEL": ((3, 3), (4, 4), (6, 6), (2, 2)),
    "RESNET.SPATIAL_STRIDES": ((1, 1), (1, 1), (2, 2), (2, 2)),
    "RESNET.DEPTH": 101,
    "HF.CONFIG": {"hidden_size": 192},
    "IMPORTS": ("json",),
    "AUG.CUSTOM": ("mine",),
    "SOLVER.LR_POLICY": "steps_with_relative_lrs",
}
"""Values of keys that `_others` cannot guess."""


def _others(name: str, value: Any) -> list[Any]:
    """Return values of the type of a value that may be valid, too."""
    if name in _GIVEN:
        return [_GIVEN[name]]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float) or value is None:
        return [type(value or 0.0)(x) for x in (2, 1, 0.5, (value or 0) + 8, 0)]
    if isinstance(value, str):
        return [*_WORDS, f"{value}x"]
    pathways = tuple((2, 2) for _ in value)
    return [(0.4,) * len(value), (0.0,), (0.0, 1.0), (1.0,) * 400, ("backbone",), pathways]


def _has_another_value(name: str, recipe: Recipe) -> bool:
    for value in _others(name, recipe[name]):
        with suppress(MultigridError, TypeError):
            changed = recipe.replaced({name: value})
            check = KEYS[name].check
            if changed[name] != recipe[name] and (check is None or check.passes(value)):
                check_recipe(changed)
                return True
    return False


def test_every_key_has_two_valid_values_in_one_recipe_or_one_for_each_task(monkeypatch):
    monkeypatch.setitem(AUGMENTATIONS.entries, "mine", lambda clip, rng: clip)
    names = ("Demo/SLOWFAST_DEMO_MULTIGRID", "Kinetics/SLOWFAST_8x8_R50", "Kinetics/I3D_16x4_R50")
    plain_sgd = load_recipe(None, ["SOLVER.NESTEROV", False])
    recipes = [plain_sgd, *(load_recipe(f"configs/{name}.yaml") for name in names)]
    specs = TASKS.values()
    by_task = {name for spec in specs for name in spec.derived}
    switches = {spec.switch[0] for spec in specs} | {"DATA.TASK"}
    assert all(len({spec.derived.get(name) for spec in specs}) > 1 for name in by_task)
    assert [
        name
        for name in KEYS.keys() - by_task - switches
        if not any(_has_another_value(name, recipe) for recipe in recipes)
    ] == []


def test_the_page_has_all_keys():
    """It may have those of an extra that is not here (tests/test_extras.py)."""
    page = set(DOCS.read_text(encoding="utf-8").splitlines())
    assert set(format_keys().splitlines()) <= page


def test_each_key_has_a_row_with_its_default_and_limits_in_its_section():
    page = format_keys()
    first, *sections = page.split("\n## ")[1:]
    assert first.startswith("Keys you will change\n")
    assert "| `OUTPUT_DIR` | `'./tmp'` |" in first
    rows = {section.partition("\n")[0]: section.splitlines() for section in sections}
    for name, key in KEYS.items():
        section = name.partition(".")[0] if "." in name else "Machines and files"
        (row,) = (line for line in rows[section] if line.startswith(f"| `{name}` | `"))
        assert key.help in row
        assert (f" Must be {key.check.wanted}. |" in row) if key.check else row.endswith(" |")
    later = rows["Keys of other PySlowFast releases"]
    translated = [*TRANSLATED, *(name for name, key in KEYS.items() if key.later)]
    for name in [*translated, *IGNORED]:
        assert sum(line.startswith(f"| `{name}` | ") for line in later) == 1, name
    assert later[later.index("| key | what happens |") + 1] == "| --- | --- |"
    assert "| `MODEL.NUM_CLASSES` | `'auto'` |" in page


def test_a_key_without_effect_is_warned_of_unless_it_asks_for_nothing(caplog):
    for key, row in IGNORED.items():
        for value in row.usual:
            load_recipe(None, [key.replace("*", "ANY.THING"), value])
    assert not caplog.records
    assert load_recipe(None, ["DEMO.ENABLE", "7"]) == load_recipe(None)
    assert "DEMO.ENABLE 7 (the command line) has no effect: This package has no" in caplog.text
