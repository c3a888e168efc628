"""Recipes at several lengths: what is trained, and what the curves say, worked out by hand."""

import math
from pathlib import Path

import pandas as pd
import pytest

from slowfast_patches.experiments.comparison import compare, make_variants
from slowfast_patches.experiments.curves import curves_of, leads, leads_table, levels_table, reach
from slowfast_patches.experiments.runs import Experiment
from slowfast_patches.experiments.variants import with_length


def make_curve(costs: list[float], accuracies: list[float]) -> pd.DataFrame:
    runs = {"label": "a", "length": costs, "clock": costs, "top1": accuracies}
    return curves_of(pd.DataFrame(runs), "clock", "top1")["a"]


CURVE = make_curve([400, 100, 200], [90, 50, 70])


@pytest.mark.parametrize(
    ("accuracy", "cost"),
    [
        (70, (200, False)),
        (60, (100 * 2**0.5, False)),  # half of the way from 50 to 70 is half of a doubling
        (50, (100, False)),
        (49, (100, True)),
        (90.1, (math.inf, False)),
    ],
)
def test_what_an_accuracy_costs(accuracy: float, cost: tuple[float, bool]) -> None:
    assert reach(CURVE, accuracy) == pytest.approx(cost)


def test_a_longer_training_that_is_worse_changes_nothing_before_one_that_is_better() -> None:
    curve = make_curve([400, 200, 100], [90, 40, 50])
    assert reach(curve, 50) == pytest.approx((100, False))
    assert reach(curve, 70) == pytest.approx((200 * 2**0.5, False))


def test_the_times_of_accuracies_are_a_table() -> None:
    """A level between two lengths is reached on the way of a doubling.

    The baseline needs 10 · 2^(19/20) s for 69 %, and the other recipe 5 · 2^(9/20) s.
    """
    curves = {
        "base": make_curve([10, 20], [50, 70]),
        "fast": make_curve([5, 10], [60, 80]),
        "low": make_curve([1], [40]),
    }
    table = levels_table(curves, "top-1")
    assert table.headers == [
        *("base", "top-1, %", "time"),
        *("fast,\ntime", "speed-up", "low,\ntime", "speed-up"),
    ]
    assert table.rows == [
        ["at 20×", "70.0", "20 s", "7.07 s", "2.83×", "not reached", "–"],
        ["1 point below its best", "69.0", "19.3 s", "6.83 s", "2.83×", "not reached", "–"],
        ["at 10×", "50.0", "10 s", "≤ 5 s", "≥ 2.00×", "not reached", "–"],
    ]


def test_the_ratio_of_two_bounds_is_unknown() -> None:
    """Below the best result of a single length, both times are bounds."""
    curves = {"base": make_curve([10], [50]), "fast": make_curve([5], [60])}
    assert levels_table(curves, "top-1").rows == [
        ["at 10×", "50.0", "10 s", "≤ 5 s", "≥ 2.00×"],
        ["1 point below its best", "49.0", "≤ 10 s", "≤ 5 s", "–"],
    ]


def test_the_lead_at_each_time_is_a_table() -> None:
    """At 200 s, the other recipe is 5 points above. They are equal 5 / 15 of a doubling later."""
    table = leads_table({"base": CURVE, "other": make_curve([100, 400], [70, 80])})
    assert table.headers == ["config", "training time", "points above\nbase"]
    assert [row[1:] for row in table.rows] == [
        ["100 s", "+20.0"],
        ["3.33 min", "+5.0"],
        ["4.2 min", "equal"],
        ["6.67 min", "-10.0"],
    ]
    assert {row[0] for row in table.rows} == {"other"}


@pytest.mark.parametrize(
    ("costs", "accuracies", "points"),
    [
        # At 200, 5 above. They are equal 5 / 15 of a doubling later.
        ([100, 400], [70, 80], [(100, 20), (200, 5), (200 * 2 ** (5 / 15), 0), (400, -10)]),
        ([100, 200, 400], [60, 70, 80], [(100, 10), (200, 0), (400, -10)]),
        ([100, 200, 400], [40, 70, 80], [(100, -10), (200, 0), (400, -10)]),
        # At 150 and 300, the first curve is at 61.7 and 81.7.
        ([150, 300], [95, 96], [(150, 33.3), (200, 25.415), (300, 14.3)]),
        ([10, 50], [9, 10], []),
    ],
)
def test_by_how_much_a_curve_is_above_where_both_have_costs(
    costs: list[float], accuracies: list[float], points: list[tuple[float, float]]
) -> None:
    found = leads(CURVE, make_curve(costs, accuracies))
    assert found == [pytest.approx(point, rel=1e-3) for point in points]


@pytest.fixture
def configs(short_cycle_recipe: Path) -> list[Path]:
    """Return two recipes: one of 56 iterations, and one of 24 with the short cycle."""
    multigrid = short_cycle_recipe.rename(short_cycle_recipe.with_name("multigrid.yaml"))
    baseline = multigrid.with_name("baseline.yaml")
    baseline.write_text("_BASE_: multigrid.yaml\nMULTIGRID: {SHORT_CYCLE: False}\n")
    return [baseline, multigrid]


@pytest.fixture
def experiment(configs: list[Path], tmp_path: Path) -> Experiment:
    """Each recipe at three lengths, two seeds."""
    return Experiment(make_variants(configs, [], lengths=[2, 0.5, 1]), [0, 1], tmp_path / "runs")


@pytest.fixture
def finished(experiment: Experiment, write_run) -> Experiment:
    """Write runs of 2 s per iteration, with seeds 1 point above and below each mean."""
    means = (50.0, 70.0, 90.0, 60.0, 80.0, 85.0)
    for variant, mean in zip(experiment.variants, means, strict=True):
        for seed in (0, 1):
            write_run(experiment, variant, seed, 2 * variant.iterations, top1=mean + 1 - 2 * seed)
    return experiment


def test_all_lengths_are_multiplied_and_one_is_the_recipe_itself(configs, experiment) -> None:
    assert [variant.iterations for variant in experiment.variants] == [28, 56, 112, 12, 24, 48]
    assert [(variant.name, variant.folder) for variant in experiment.variants[:2]] == [
        ("baseline x0.5", "baseline_x0.5"),
        ("baseline", "baseline"),
    ]
    assert experiment.variants[1] == make_variants(configs, [])[0]
    assert {variant.baseline for variant in experiment.variants} == {"baseline"}
    assert [variant.length for variant, seed in experiment.missing() if seed == 0] == [
        0.5,
        0.5,
        1,
        1,
        2,
        2,
    ]


def test_a_length_multiplies_the_length_that_the_recipe_has(configs) -> None:
    """0.25 times a recipe of SOLVER.LENGTH 2 has half of the 56 iterations."""
    whole, _ = make_variants(configs, ["SOLVER.LENGTH", "2"])
    short = with_length(whole, 0.25)
    assert (whole.iterations, short.iterations, short.length) == (112, 28, 0.25)
    assert short.recipe == make_variants(configs, ["SOLVER.LENGTH", "0.5"])[0].recipe
    assert with_length(short, 2).length == 0.5


def test_what_accuracies_cost_and_where_variants_break_even(finished: Experiment) -> None:
    """The baseline takes 56, 112, 224 s to 50, 70, 90 %; multigrid 24, 48, 96 s to 60, 80, 85 %.

    Both curves cover 56 to 96 s. At 56 s the baseline has 50; multigrid, with 80 at 48 s and 85 at
    96 s, 81.1.
    """
    report = compare(finished, finished.runs(), "command")
    # The plain table is relative to the baseline as it is.
    factors = [row["iteration_factor"]["mean"] for row in report.content["configs"][:3]]
    assert factors == [2, 1, 0.5]
    report.write(finished.output)
    assert (finished.output / "report.png").read_bytes().startswith(b"\x89PNG")
    text = str(report)
    lines = [line.split() for line in text.splitlines()]
    assert ["multigrid", "56", "s", "+31.1"] in lines
    levels = [line for line in lines if line[:1] == ["at"] or "point" in line]
    assert levels == [
        ["at", "2×", "90.0", "3.73", "min", "not", "reached", "–"],
        ["1", "point", "below", "its", "best", "89.0", "3.61", "min", "not", "reached", "–"],
        ["at", "1×", "70.0", "112", "s", "33.9", "s", "3.30×"],
        ["at", "0.5×", "50.0", "56", "s", "≤", "24", "s", "≥", "2.33×"],
    ]


def test_before_the_baseline_has_a_result_there_are_no_curves(
    experiment: Experiment, write_run
) -> None:
    write_run(experiment, experiment.variants[3], 0, 24, top1=60.0)
    assert "not reached" not in str(compare(experiment, experiment.runs(), "command"))
