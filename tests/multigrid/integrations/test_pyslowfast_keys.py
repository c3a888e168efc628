"""Keys of a PySlowFast config: how they are found, set and turned off, and those of an MViT."""

from __future__ import annotations

import pytest
from fvcore.common.config import CfgNode

from multigrid import MultigridError, Shape, SteppedRate
from multigrid.integrations.pyslowfast_checks import refused_keys
from multigrid.integrations.pyslowfast_keys import (
    add_multigrid_config,
    baseline_config,
    find_key,
    get_key,
    has_cycles,
    set_keys,
    start_stages,
    use_plain_batchnorm,
    uses_multigrid,
)
from multigrid.integrations.pyslowfast_schedule import schedule_of
from tests.multigrid.integrations.configs import new_config

OFF = {"LONG_CYCLE": False, "SHORT_CYCLE": False, "STAGES": []}
ROWS = [{"shape": [8, 4, 16], "until": 6, "rate": 0.1}]


def multigrid(**values):
    """Return a config with the section MULTIGRID alone."""
    return CfgNode({"MULTIGRID": CfgNode({**OFF, **values})})


def test_a_key_is_found_or_has_a_default():
    cfg = CfgNode({"A": CfgNode({"B": 0, "C": CfgNode({"D": 4})})})
    assert (find_key(cfg, "A.B"), find_key(cfg, "A.C.D")) == (0, 4)
    assert (find_key(cfg, "A.X"), find_key(cfg, "X.B", 7)) == (None, 7)
    assert get_key(multigrid(EPOCH_FACTOR=3.0), "MULTIGRID.EPOCH_FACTOR") == 3.0
    assert get_key(CfgNode(), "MULTIGRID.BN_BASE_SIZE") == 8
    assert get_key(CfgNode(), "MULTIGRID.FINE_TUNING") is True
    with pytest.raises(MultigridError, match=r"has no key DATA\.NUM_FRAMES"):
        get_key(cfg, "DATA.NUM_FRAMES")


def test_keys_are_set_where_they_exist_also_in_a_frozen_config():
    cfg = multigrid()
    cfg.freeze()
    set_keys(cfg, {"MULTIGRID.LONG_CYCLE": True, "MULTIGRID.NEW": 1, "NEW.KEY": 1})
    assert cfg.MULTIGRID.LONG_CYCLE is True
    assert set(cfg.MULTIGRID) == set(OFF)
    assert set(cfg) == {"MULTIGRID"}


def test_only_missing_keys_are_added_each_with_a_value_of_its_own():
    one, other = multigrid(EPOCH_FACTOR=9.0), CfgNode()
    for cfg in (one, other):
        add_multigrid_config(cfg)
    assert (one.MULTIGRID.EPOCH_FACTOR, other.MULTIGRID.EPOCH_FACTOR) == (9.0, 1.5)
    assert other.SOLVER.BATCH_RATE_RULE == "linear"
    one.MULTIGRID.SHORT_CYCLE_FACTORS.append(1)
    assert len(other.MULTIGRID.SHORT_CYCLE_FACTORS) == 2
    assert other.MULTIGRID.LONG_CYCLE_FACTORS[-1] == [1, 1]


def test_the_baseline_s_config_is_a_copy_in_which_all_is_off():
    cfg = multigrid(LONG_CYCLE=True, SHORT_CYCLE=True, STAGES=ROWS, DEFAULT_B=4, EVAL_FREQ=3)
    found = baseline_config(cfg).MULTIGRID
    assert (found.LONG_CYCLE, found.SHORT_CYCLE, found.STAGES) == (False, False, [])
    assert (found.DEFAULT_B, found.EVAL_FREQ) == (0, 3)
    assert cfg.MULTIGRID.LONG_CYCLE is True
    assert cfg.MULTIGRID.STAGES == ROWS


@pytest.mark.parametrize(
    ("values", "uses", "has"),
    [
        ({}, False, False),
        ({"LONG_CYCLE": True}, True, True),
        ({"SHORT_CYCLE": True}, True, True),
        ({"STAGES": ROWS}, True, False),
        ({"LONG_CYCLE": True, "LONG_CYCLE_FACTORS": []}, True, False),
        ({"LONG_CYCLE": True, "LONG_CYCLE_FACTORS": [], "SHORT_CYCLE": True}, True, True),
        ({"LONG_CYCLE_FACTORS": [[1, 1]]}, False, False),
    ],
)
def test_cycles_or_stages_are_multigrid_and_cycles_need_factors(values, uses, has):
    cfg = multigrid(**values)
    assert (uses_multigrid(cfg), has_cycles(cfg)) == (uses, has)


@pytest.mark.parametrize(
    ("values", "started"),
    [
        ({"STAGES": ROWS}, True),
        ({}, False),
        ({"STAGES": ROWS, "SHORT_CYCLE": True}, False),
    ],
)
def test_stages_are_started_by_a_long_cycle_without_factors(values, started):
    cfg = multigrid(**values, LONG_CYCLE_FACTORS=[[1, 1]])
    start_stages(cfg)
    assert cfg.MULTIGRID.LONG_CYCLE is started
    assert ([] if started else [[1, 1]]) == cfg.MULTIGRID.LONG_CYCLE_FACTORS


def test_layers_of_pyslowfast_s_own_are_replaced_with_a_word(caplog):
    cfg = CfgNode({"BN": CfgNode({"NORM_TYPE": "sub_batchnorm"})})
    use_plain_batchnorm(cfg)
    assert cfg.BN.NORM_TYPE == "batchnorm"
    (record,) = caplog.records
    assert "BN.NORM_TYPE sub_batchnorm is replaced" in record.getMessage()
    use_plain_batchnorm(cfg)
    use_plain_batchnorm(CfgNode())
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("name", "valid", "refused"),
    [
        ("TRAIN.DATASET", ("kinetics", "ssv2"), ("imagenet", "ImageNetprefetch", "Ptvkinetics")),
        ("TASK", ("",), ("ssl",)),
        ("DATA.LOADER_CHUNK_SIZE", (0,), (1, 500)),
        ("MULTIGRID.EVAL_FREQ", (1, 3), (0,)),
        ("MULTIGRID.DEFAULT_B", (0,), (8,)),
        ("DETECTION.ENABLE", (False,), (True,)),
        ("MVIT.REV.ENABLE", (False,), (True,)),
        ("MODEL.MODEL_NAME", ("SlowFast", "MViT"), ("PTVMViT", "MaskMViT", "ContrastiveModel")),
    ],
)
def test_each_rule_refuses_its_values_alone(name, valid, refused):
    for value in (*valid, *refused):
        cfg = tree = CfgNode()
        *sections, key = name.split(".")
        for section in sections:
            tree[section] = CfgNode()
            tree = tree[section]
        tree[key] = value
        found = refused_keys(cfg)
        assert list(found.values()) == ([f"{name} {value}"] if value in refused else [])


def test_a_table_of_stages_needs_a_policy_only_for_rows_without_a_rate():
    off = ("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False)
    cfg = new_config(*off, "SOLVER.LR_POLICY", "poly", "MULTIGRID.STAGES", ROWS)
    assert schedule_of(cfg, 400).at(0).lr == 0.1
    cfg.MULTIGRID.STAGES = [{"shape": [8, 4, 16], "until": 6}]
    with pytest.raises(MultigridError, match="LR_POLICY poly is not supported"):
        schedule_of(cfg, 400)
    assert schedule_of(cfg, 400, SteppedRate((6.0,), (0.3,))).at(0).lr == 0.3


# --- an MViT, whose crops are multiples of patches and pools


def mvit(divisor=1, **values):
    cfg = new_config("MULTIGRID.SIZE_DIVISOR", divisor, "MODEL.ARCH", "mvit")
    section = {"PATCH_STRIDE": [2, 4, 4], "DEPTH": 4, **values}
    cfg.MVIT = CfgNode(section)
    return cfg


QUERIES = [[1, 1, 2, 2], [3, 1, 2, 2]]


@pytest.mark.parametrize(
    ("values", "divisor"),
    [
        ({}, 4),  # patches of 4 pixels
        ({"PATCH_STRIDE": "(2, 8, 8)"}, 8),
        ({"POOL_Q_STRIDE": QUERIES}, 16),  # two pools halve the map
        ({"POOL_Q_STRIDE": QUERIES, "POOL_KV_STRIDE_ADAPTIVE": [1, 2, 2]}, 16),
        ({"POOL_KV_STRIDE_ADAPTIVE": "(1, 8, 8)"}, 32),
        # Keys are pooled by 3 in layer 2, whose map is halved, and by 4 in layer 0: 6 and 4.
        ({"POOL_Q_STRIDE": QUERIES, "POOL_KV_STRIDE": [[0, 1, 4, 4], [2, 1, 3, 3]]}, 48),
        ({"POOL_KV_STRIDE": [[9, 1, 5, 5]]}, 4),  # there is no layer 9
    ],
)
def test_the_divisor_of_crops_by_hand(values, divisor):
    crop = 4 * divisor
    sizes = ("DATA.TRAIN_CROP_SIZE", crop, "DATA.TRAIN_JITTER_SCALES", [crop, crop])
    cfg = mvit(**values)
    cfg.merge_from_list(list(sizes))
    schedule = schedule_of(cfg, 400)
    crops = {shape.crop for shape in schedule.shapes}
    assert all(each % divisor == 0 for each in crops)
    assert min(crops) < crop
    assert {size for phase in schedule.phases for size in phase.bn_group_sizes} == {None}
    with pytest.raises(MultigridError, match=rf"multiples of {divisor}\. Set .*DIVISOR {divisor}"):
        schedule_of(mvit(divisor + 1, **values), 400)


def test_a_multiple_of_the_divisor_is_kept_and_another_model_has_none():
    cfg = mvit(8)
    crops = {shape.crop for shape in schedule_of(cfg, 400).shapes}
    assert all(crop % 8 == 0 for crop in crops)
    cfg.MODEL.ARCH = "slowfast"
    shapes = schedule_of(cfg, 400)
    assert 4 in {size for phase in shapes.phases for size in phase.bn_group_sizes}
    assert Shape(4, 8, 32) in shapes.shapes


def test_the_name_of_the_model_comes_before_its_architecture():
    cfg = mvit()
    cfg.MODEL.MODEL_NAME = "SlowFast"
    assert {size for p in schedule_of(cfg, 400).phases for size in p.bn_group_sizes} != {None}
    cfg.MODEL.MODEL_NAME = "MViT"
    cfg.MODEL.ARCH = "other"
    assert {size for p in schedule_of(cfg, 400).phases for size in p.bn_group_sizes} == {None}


def test_a_config_without_the_section_is_refused():
    with pytest.raises(MultigridError, match=r"no section MULTIGRID\. Call add_multigrid_config"):
        schedule_of(CfgNode(), 400)
