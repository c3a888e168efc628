"""What follows from step times, by hand: rates, shares, ratios, hours, switches that pay."""

import importlib
import statistics
from types import ModuleType
from typing import Any

import pytest

from slowfast_patches.config import load_recipe


@pytest.fixture
def columns(step_bench) -> ModuleType:
    return importlib.import_module("step_columns")


def spread(*rounds: float) -> dict[str, Any]:
    return {"rounds": list(rounds), "median": statistics.median(rounds or [0.0])}


def row(shape: list[int], *rounds: float, clips: int | None = None) -> dict[str, Any]:
    found = {"shape": shape, "local_clips": clips or shape[0], "bn_size": None}
    return found | {"seconds": spread(*rounds) if rounds else None, "failure": "out of memory"}


def medians(found: dict[str, Any], *keys: str) -> list[float]:
    return [found[key]["median"] for key in keys]


RATES = ("clips_per_second", "pixels_per_second", "flops_per_second", "matrix_share")


def test_rates_by_hand(columns):
    """2 of 16 clips are here; a frame of 10² costs 100 GFLOP; 2 clips of 4 frames in 0.5 s are 4
    clips, 1600 pixels, 1.6 TFLOP a second, a fifth of 8."""
    found = row([16, 4, 10], 0.5, 1.0, 0.25, clips=2)
    columns.add_rates(found, lambda frames, crop: 1e9 * frames * crop**2, 8e12)
    assert medians(found, *RATES) == pytest.approx([4, 1600, 1.6e12, 0.2])
    assert found["clips_per_second"]["quartile_1"] == pytest.approx(3)
    assert found["clips_per_second"]["quartile_3"] == pytest.approx(6)


def test_a_shape_without_a_time_has_no_rates(columns):
    found = row([16, 4, 10])
    columns.add_rates(found, lambda frames, crop: 1.0, 1.0)
    assert not found.keys() & set(RATES)


def short_cycle(columns: ModuleType, *times: tuple[float, ...]) -> list[dict[str, Any]]:
    """Of the short-cycle recipe: its baseline, then crops 32, 45 and 64."""
    shapes = ([8, 16, 64], [32, 16, 32], [16, 16, 45], [8, 16, 64])
    return [row(shape, *rounds) for shape, rounds in zip(shapes, times, strict=True)]


def test_the_whole_schedule_by_hand(columns, short_cycle_recipe):
    """8 × (120 + 135 + 105) s are 2880; the baseline's 56 iterations of 90 s are 5040: 1.75 × as
    long. In a second round all but the baseline is twice as slow."""
    cfg = load_recipe(short_cycle_recipe)
    rows = short_cycle(columns, (90, 90), (120, 240), (135, 270), (105, 210))
    found = columns.totals(cfg, rows, 64)
    assert found["seconds"]["rounds"] == [2880, 5760]
    assert found["baseline_seconds"]["rounds"] == [5040, 5040]
    assert found["speed_up"]["rounds"] == pytest.approx([1.75, 0.875])
    assert columns.totals(cfg, rows, None)["speed_up"]["rounds"] == pytest.approx(
        [1.75, 0.875], rel=1e-3
    )


def test_a_schedule_of_which_a_shape_has_no_time_has_none(columns, short_cycle_recipe):
    rows = short_cycle(columns, (90,), (), (135,), (105,))
    found = columns.totals(load_recipe(short_cycle_recipe), rows, 64)
    assert found == {"failure": "no time for 32×16×32²"}


def test_a_baseline_is_its_own_schedule(columns, short_cycle_recipe):
    cfg = load_recipe(short_cycle_recipe, ["MULTIGRID.SHORT_CYCLE", False])
    found = columns.totals(cfg, [row([8, 16, 64], 2.0, 3.0)], 64)
    assert found["seconds"]["rounds"] == [112, 168]
    assert found["speed_up"]["rounds"] == [1, 1]


def variant(name: str, rows: list[dict[str, Any]], total: tuple[float, ...]) -> dict[str, Any]:
    return {"name": name, "shapes": rows, "totals": {"seconds": spread(*total)}}


def test_ratios_are_of_one_round_and_of_clips(columns, short_cycle_recipe):
    """Ever slower, but always twice as fast as plain; of 32 clips against 16 in the same time,
    twice as many."""
    cfg = load_recipe(short_cycle_recipe)
    slow = short_cycle(columns, (2, 4), (2, 4), (2, 4), ())
    fast = short_cycle(columns, (1, 2), (1, 2), (2, 4), (1, 2))
    fast[2]["local_clips"] = 32
    variants = [variant("plain", slow, (8, 16)), variant("fused", fast, (4, 8))]
    columns.add_relative("plain", [cfg, cfg], variants)
    columns.add_relative("host", [cfg, cfg], variants)
    ratios = [found["relative"]["plain"] for found in fast]
    assert [ratio and ratio["rounds"] for ratio in ratios] == [[2, 2], [2, 2], [2, 2], None]
    assert variants[1]["totals"]["relative"]["plain"]["rounds"] == [2, 2]
    assert [found["relative"] for found in slow] == [{}] * 4
    assert variants[1]["totals"]["relative"].keys() == {"plain"}
    assert variants[1]["matches"] == {"plain": [0, 1, 2, 3]}


def test_nothing_is_relative_to_what_was_not_measured(columns, short_cycle_recipe):
    cfg = load_recipe(short_cycle_recipe)
    failed = {"name": "plain", "shapes": [], "totals": {"failure": "no"}}
    variants = [failed, variant("fused", short_cycle(columns, *[(1, 2)] * 4), (4, 8))]
    columns.add_relative("plain", [cfg, cfg], variants)
    assert variants[1]["totals"]["relative"] == {}
    assert columns.recommend(variants) is None


def test_shapes_of_other_sizes_match_by_their_place(columns, short_cycle_recipe):
    """Crops 32, 32, 64 stand where 32, 45, 64 stand."""
    cfg = load_recipe(short_cycle_recipe)
    same = load_recipe(short_cycle_recipe, ["MULTIGRID.SHORT_CYCLE_FACTORS", [0.5, 0.5]])
    other = load_recipe(short_cycle_recipe, ["MULTIGRID.SIZE_DIVISOR", 16])  # 48, not 45
    assert columns.matching_rows(other, cfg) == [0, 1, 2, 3]
    assert columns.matching_rows(same, cfg) == [0, 1, 3]
    assert columns.matching_rows(cfg, same) == [0, 1, 1, 2]


def test_what_pays_is_faster_by_more_than_the_spread(columns):
    def with_ratio(name: str, low: float) -> dict[str, Any]:
        ratio = {"median": low + 0.1, "quartile_1": low, "quartile_3": low + 0.2}
        return {"name": name, "totals": {"relative": {"plain": ratio}}}

    found = [
        with_ratio("channels_last", 0.95),
        with_ratio("fused", 1.01),
        with_ratio("mixed_precision", 1.5),
        with_ratio("all", 2.0),
        {"name": "tf32", "totals": {"failure": "no", "relative": {}}},
    ]
    pairs = ["TRAIN.MIXED_PRECISION", "True", "SOLVER.FUSED", "True"]
    assert columns.recommend(found) == pairs
    assert columns.recommend(found[:1]) == []
    assert columns.recommend(found[3:]) is None
