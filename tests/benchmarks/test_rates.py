"""Tests of results that are derived from step times: rates, ratios, hours and switches."""

import statistics
from typing import Any

import pytest
from steps import rates

from slowfast_patches.config import load_recipe

RATES = ("clips_per_second", "flops_per_second", "matrix_share")


def spread(*rounds: float) -> dict[str, Any]:
    return {"rounds": list(rounds), "median": statistics.median(rounds or [0.0])}


def row(shape: list[int], *rounds: float, clips: int | None = None) -> dict[str, Any]:
    found = {"shape": shape, "local_clips": clips or shape[0], "bn_group_size": None}
    return found | {"seconds": spread(*rounds) if rounds else None, "failure": "out of memory"}


def short_cycle(*times: tuple[float, ...]) -> list[dict[str, Any]]:
    """Return results of the short-cycle recipe: its baseline, then crops 32, 45 and 64."""
    shapes = ([8, 16, 64], [32, 16, 32], [16, 16, 45], [8, 16, 64])
    return [row(shape, *rounds) for shape, rounds in zip(shapes, times, strict=True)]


def variant(name: str, rows: list[dict[str, Any]], total: tuple[float, ...]) -> dict[str, Any]:
    return {"name": name, "shapes": rows, "totals": {"seconds": spread(*total)}}


def test_rates_by_hand():
    """Two clips of four frames of 10² pixels in 0.5 s are 4 clips per second.

    A frame costs 100 GFLOP, so they are 1.6 TFLOP a second, a fifth of a matrix rate of 8.
    """
    found, none = row([16, 4, 10], 0.5, 1.0, 0.25, clips=2), row([16, 4, 10])
    for each in (found, none):
        rates.add_rates(each, lambda frames, crop: 1e9 * frames * crop**2, 8e12)
    assert [found[key]["median"] for key in RATES] == pytest.approx([4, 1.6e12, 0.2])
    assert found["clips_per_second"]["quartile_1"] == pytest.approx(3)
    assert not none.keys() & set(RATES)


def test_the_whole_schedule_by_hand(short_cycle_recipe):
    """The schedule takes 8 × (120 + 135 + 105) = 2880 s.

    The baseline's 56 iterations of 90 s take 5040 s, which is 1.75 × as long. In a second round all
    but the baseline is twice as slow.
    """
    cfg = load_recipe(short_cycle_recipe)
    rows = short_cycle((90, 90), (120, 240), (135, 270), (105, 210))
    found = rates.totals(cfg, rows, 64)
    assert found["seconds"]["rounds"] == [2880, 5760]
    assert found["baseline_seconds"]["rounds"] == [5040, 5040]
    ratios = rates.totals(cfg, rows, None)["speed_up"]["rounds"]
    assert ratios == pytest.approx([1.75, 0.875], rel=1e-3)
    rows[1]["seconds"] = None
    assert rates.totals(cfg, rows, 64) == {"failure": "no time for 32×16×32²"}


def test_ratios_are_of_one_round_and_of_clips():
    """Steps get slower from round to round, but the variant is always twice as fast as `plain`.

    It also trains 32 clips in the time of 16. A crop of 48 is compared with 45.
    """
    slow = short_cycle((2, 4), (2, 4), (2, 4), ())
    fast = short_cycle((1, 2), (1, 2), (2, 4), (1, 2))
    fast[2] |= {"local_clips": 32, "shape": [32, 16, 48]}
    failed = {"name": "host", "shapes": [], "totals": {"failure": "no"}}
    variants = [variant("plain", slow, (8, 16)), variant("fused", fast, (4, 8)), failed]
    for name in rates.REFERENCES:
        rates.add_relative(name, variants)
    ratios = [found["relative"]["plain"] for found in fast]
    assert [ratio and ratio["rounds"] for ratio in ratios] == [[2, 2], [2, 2], [2, 2], None]
    assert variants[1]["totals"]["relative"]["plain"]["rounds"] == [2, 2]
    assert [found["relative"] for found in slow] == [{}] * 4
