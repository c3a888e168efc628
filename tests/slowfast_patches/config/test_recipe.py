"""The recipe object: values that follow from several keys, replaced values, and comparisons."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from multigrid import Shape
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import (
    KEYS,
    default_recipe,
    differences,
    plain,
    pyslowfast_config,
    stored_keys,
    values_by_key,
)
from slowfast_patches.registry import MODELS
from slowfast_patches.seams import SECTIONS


def recipe(**keys: Any) -> Any:
    return default_recipe().replaced({name.replace("__", "."): v for name, v in keys.items()})


@pytest.mark.parametrize(
    ("keys", "processes"),
    [
        ({"NUM_GPUS": 0}, 1),
        ({"NUM_GPUS": 1}, 1),
        ({"NUM_GPUS": 4, "NUM_SHARDS": 2}, 8),
        ({"NUM_GPUS": 0, "NUM_SHARDS": 3}, 3),
        ({"NUM_GPUS": 4, "NUM_SHARDS": 2, "PROCESSES_PER_MACHINE": 3}, 6),
    ],
)
def test_each_gpu_has_a_process_unless_a_launcher_starts_others(keys, processes):
    assert recipe(**keys).world_size == processes


def test_the_baselines_mini_batch_is_over_all_machines():
    keys = {"TRAIN__BATCH_SIZE": 6, "DATA__NUM_FRAMES": 4, "DATA__TRAIN_CROP_SIZE": 32}
    assert recipe(**keys, NUM_SHARDS=3).base_shape == Shape(18, 4, 32)


def test_one_cycle_or_stages_make_a_multigrid_training():
    rows = ({"shape": [8, 8, 224], "until": 300},)
    for keys, expected in (
        ({}, (False, False)),
        ({"MULTIGRID__LONG_CYCLE": True}, (True, True)),
        ({"MULTIGRID__SHORT_CYCLE": True}, (True, True)),
        ({"MULTIGRID__STAGES": rows}, (False, True)),
    ):
        found = recipe(**keys)
        assert (found.has_cycles, found.uses_multigrid) == expected


def test_the_size_of_bn_groups_is_the_cycles_or_the_baselines_and_0_without_bn(monkeypatch):
    sizes = {"BN__GROUP_SIZE": 1, "MULTIGRID__BN_BASE_SIZE": 4}
    baseline, cycled = recipe(**sizes), recipe(**sizes, MULTIGRID__SHORT_CYCLE=True)
    assert (baseline.bn_group_size, baseline.groups_batchnorm) == (1, True)
    assert (cycled.bn_group_size, cycled.bn_key) == (4, "MULTIGRID.BN_BASE_SIZE")
    assert (recipe().bn_group_size, recipe().groups_batchnorm) == (0, False)
    spec = replace(MODELS["slowfast"], has_batchnorm=False)
    monkeypatch.setitem(MODELS.entries, "slowfast", spec)
    assert (cycled.bn_group_size, cycled.groups_batchnorm) == (0, False)
    needs = KEYS["BN.GROUP_SIZE"].needs
    assert needs(cycled) is None, "a model without BN has no size that another key would replace"


def test_several_labels_are_those_of_the_task():
    assert (recipe().task, recipe().multi_label) == ("single_label", False)
    several = recipe(DATA__MULTI_LABEL=True)
    assert (several.task, several.multi_label) == ("multi_label", True)


def test_every_value_can_be_replaced_and_all_others_stay():
    """Also those of the sections of extras."""
    default = values_by_key(default_recipe())
    for name in KEYS:
        changed = default_recipe().replaced({name: "another value"})
        assert values_by_key(changed) == {**default, name: "another value"}
    assert values_by_key(default_recipe()) == default


def test_lists_are_frozen_and_written_as_lists():
    found = recipe(SOLVER__STEPS=[0, [1, 2]])
    assert found.solver.steps == (0, (1, 2))
    assert plain(found.solver.steps) == [0, [1, 2]]
    assert plain({"a": (1, {"b": (2,)})}) == {"a": [1, {"b": [2]}]}
    assert plain("ab") == "ab"


@pytest.mark.parametrize(
    ("there", "here", "text"),
    [
        (0.1, 0.1 + 1e-12, None),
        (0.1, 0.2, "KEY 0.1 there, 0.2 here"),
        (1, 1.5, "KEY 1 there, 1.5 here"),
        (1, 1.0, None),
        ("a", "b", "KEY a there, b here"),
        ([1, 2], [1, 2], None),
        (3, 4, "KEY 3 there, 4 here"),
    ],
)
def test_values_differ_but_for_the_rounding_of_floats(there, here, text):
    found = differences({"KEY": there}, {"KEY": here})
    assert found == ({} if text is None else {"KEY": text})


def test_differences_are_sorted_and_absent_keys_differ_unless_they_are_ignored():
    there, here = {"B": 1, "A": 1, "C": 1}, {"A": 2, "D": 1, "B": 2}
    assert list(differences(there, here)) == ["A", "B", "C", "D"]
    assert differences(there, here, ["A", "C", "D"]) == {"B": "B 1 there, 2 here"}
    assert differences({"C": 1}, {}) == {"C": "C 1 there, None here"}


def test_a_stored_config_has_later_keys_at_their_default_and_no_removed_ones():
    stored = stored_keys({"SOLVER": {"BASE_LR": 0.7, "REMOVED": 1}, "GONE": {"KEY": 2}})
    assert stored == {**values_by_key(default_recipe()), "SOLVER.BASE_LR": 0.7}


def test_a_recipe_is_read_from_its_text_where_an_extra_is_missing_that_it_does_not_use():
    default = default_recipe()
    sections = {line.split(":")[0] for line in default.text.splitlines() if line[:1].isalpha()}
    assert {"MODEL", "SOLVER", "NONLOCAL", "NUM_GPUS"} <= sections
    for keys in default.extras:
        (section,) = (name for name, each in SECTIONS.items() if each.keys is type(keys))
        named = [name for name in KEYS if name.startswith(f"{section}.")]
        alone = [KEYS[name] for name in named if KEYS[name].needs]
        is_used = any(key.needs(default) is None for key in alone)
        assert (section in sections) == is_used, section
        changed = default.replaced({named[0]: "another value"})
        assert f"\n{section}:" in f"\n{changed.text}"


def test_the_config_of_pyslowfast_tells_which_models_have_one_pathway():
    node = pyslowfast_config(load_recipe(None, ["DATA.TRAIN_CROP_SIZE", 128]))
    assert node.DATA.CROP_SIZE == 128
    assert node.DATA.INPUT_CHANNEL_NUM == [3, 3]
    assert {"slowonly", "i3d", "c2d"} <= set(node.MODEL.SINGLE_PATHWAY_ARCH)
    assert "slowfast" not in node.MODEL.SINGLE_PATHWAY_ARCH
    assert node.NONLOCAL.LOCATION == [[[], []]] * 4
