"""Recipes at several lengths: what is trained, and what the curves say, worked out by hand."""

import math
from pathlib import Path

import pandas as pd
import pytest

from slowfast_patches.study.compare import Comparison, make_arms
from slowfast_patches.study.curves import level, make_curve, reach, stretches
from slowfast_patches.study.runs import Study


class TestReading:
    CURVE = make_curve([0.5, 1, 2], [100, 200, 400], [50, 70, 90], [3, 3, 3])

    @pytest.mark.parametrize(
        ("accuracy", "cost"),
        [
            (70, (200, False)),
            (60, (100 * 2**0.5, False)),  # half of the way from 50 to 70 is half of a doubling
            (50, (100, False)),
            (49, (100, True)),
            (90.1, None),
        ],
    )
    def test_what_an_accuracy_costs(self, accuracy: float, cost: tuple | None) -> None:
        assert reach(self.CURVE, accuracy) == pytest.approx(cost)

    def test_a_longer_training_that_is_worse_changes_nothing_before_one_that_is_better(
        self,
    ) -> None:
        curve = make_curve([2, 1, 0.5], [400, 200, 100], [90, 40, 50], [3, 2, 1])
        assert reach(curve, 50) == (100, False)
        assert reach(curve, 70) == pytest.approx((200 * 2**0.5, False))
        assert curve["best_std"].tolist() == [1, 1, 3]

    @pytest.mark.parametrize(
        ("first", "second", "accuracy", "ratio"),
        [
            ([(200, 60), (400, 80)], [(100, 60)], 60, ("=", 2)),
            ([(200, 60), (400, 80)], [(50, 85)], 60, ("≥", 4)),
            ([(50, 85)], [(100, 83), (200, 85)], 84, ("≤", 0.5**1.5)),  # 84 is at 100 √2
            ([(50, 85)], [(100, 85)], 84, None),
        ],
    )
    def test_a_bound_on_either_side_is_one_on_the_ratio(
        self, first: list[tuple], second: list[tuple], accuracy: float, ratio: tuple | None
    ) -> None:
        def curve(points: list[tuple]) -> pd.DataFrame:
            costs, accuracies = zip(*points, strict=True)
            return make_curve([1, 2][: len(points)], costs, accuracies, accuracies)

        cost = level({"first": curve(first), "second": curve(second)}, accuracy)["second"]
        found = cost["baseline_ratio"]
        assert (found and (found["bound"], found["value"])) == pytest.approx(ratio)

    def test_the_spread_of_a_single_seed_is_unknown(self) -> None:
        curve = make_curve([0.5, 1, 2], [100, 200, 400], [60, 70, 65], [7, math.nan, 5])
        assert curve["best_std"].tolist() == pytest.approx([7, math.nan, math.nan], nan_ok=True)

    def test_where_curves_break_even_and_by_how_much_one_is_above(self) -> None:
        """A curve leads by 20, 5 and -10 at 100, 200 and 400. Errors of 3 and 4 give 5 together."""
        second = make_curve([1, 4], [100, 400], [70, 80], [4, 4])
        before, after = stretches(self.CURVE, second)
        even = 200 * 2 ** (5 / 15)
        assert before == pytest.approx((100, even, 20, 5))
        assert after == pytest.approx((even, 400, -10, 5))

    def test_curves_that_touch_at_a_point_break_even_there(self) -> None:
        second = make_curve([1, 2, 4], [100, 200, 400], [60, 70, 80], [4, 4, 4])
        assert [part[:3] for part in stretches(self.CURVE, second)] == [
            pytest.approx((100, 200, 10)),
            pytest.approx((200, 400, -10)),
        ]

    def test_only_costs_that_both_cover_are_compared(self) -> None:
        [part] = stretches(self.CURVE, make_curve([1, 2], [150, 300], [95, 96], [math.nan] * 2))
        assert part[:2] == pytest.approx((150, 300))
        assert part[2] > 0
        assert math.isnan(part[3])
        assert stretches(self.CURVE, self.CURVE) == [pytest.approx((100, 400, 0, 18**0.5))]
        assert stretches(self.CURVE, make_curve([1, 5], [10, 50], [9, 10], [1, 1])) == []


@pytest.fixture
def configs(short_cycle_recipe: Path) -> list[Path]:
    """Return two recipes: one of 56 iterations, and one of 24 with the short cycle."""
    multigrid = short_cycle_recipe.rename(short_cycle_recipe.with_name("multigrid.yaml"))
    baseline = multigrid.with_name("baseline.yaml")
    baseline.write_text("_BASE_: multigrid.yaml\nMULTIGRID: {SHORT_CYCLE: False}\n")
    return [baseline, multigrid]


@pytest.fixture
def study(configs: list[Path], tmp_path: Path) -> Study:
    """Each recipe at three lengths, two seeds."""
    return Study(make_arms(configs, [], lengths=[2, 0.5, 1]), [0, 1], tmp_path / "runs")


@pytest.fixture
def finished(study: Study, write_run) -> Study:
    """Write runs of 2 s per iteration, with seeds 1 point above and below the mean of each arm."""
    means = (50.0, 70.0, 90.0, 60.0, 80.0, 85.0)
    for arm, mean in zip(study.arms, means, strict=True):
        for seed in (0, 1):
            write_run(study, arm, seed, 2 * arm.iterations, top1=mean + 1 - 2 * seed)
    return study


def test_all_lengths_are_multiplied_and_one_is_the_recipe_itself(configs, study) -> None:
    assert [arm.iterations for arm in study.arms] == [28, 56, 112, 12, 24, 48]
    assert [(arm.name, arm.folder) for arm in study.arms[:2]] == [
        ("baseline at 0.5×", "baseline_x0.5"),
        ("baseline", "baseline"),
    ]
    assert {arm.label for arm in study.arms[3:]} == {"multigrid"}
    assert {arm.baseline for arm in study.arms} == {"baseline"}
    assert study.arms[1] == make_arms(configs, [])[0]
    assert study.arms[3].recipe.multigrid.epoch_factor == 1
    assert [arm.length for arm, seed in study.missing() if seed == 0] == [0.5, 0.5, 1, 1, 2, 2]


def test_what_accuracies_cost_and_where_arms_break_even(finished: Study) -> None:
    """The baseline takes 56, 112, 224 s to 50, 70, 90 %; multigrid 24, 48, 96 s to 60, 80, 85 %.

    Both curves cover 56 to 96 s, where multigrid has the higher accuracy.
    """
    comparison = Comparison(finished, finished.runs(), "command")
    levels = {level["what"]: level for level in comparison.levels}
    assert list(levels) == ["at 2×", "1 point below its best", "at 1×", "at 0.5×"]
    assert levels["at 2×"]["seconds"]["multigrid"] is None
    at_own = levels["at 1×"]["seconds"]["multigrid"]
    assert at_own["cost"] == pytest.approx(24 * 2**0.5)
    assert at_own["baseline_ratio"] == {"value": pytest.approx(112 / 24 / 2**0.5), "bound": "="}
    assert levels["at 0.5×"]["iterations"]["multigrid"]["at_most"]
    assert levels["at 0.5×"]["flops"]["multigrid"]["baseline_ratio"]["bound"] == "≥"
    # The plain table is relative to the baseline as it is.
    factors = [row["iteration_factor"]["mean"] for row in comparison.to_json()["configs"][:3]]
    assert factors == [2, 1, 0.5]
    # At 56 s the baseline has 50; multigrid, with 80 at 48 s and 85 at 96 s, 81.1.
    comparison.write(finished.output)
    assert (finished.output / "report.png").read_bytes().startswith(b"\x89PNG")
    assert "| 1 point below its best |" in (finished.output / "report.md").read_text()
    text = str(comparison)
    assert "- from 56 s to 96 s: above by up to 31.1 points (standard deviation: 2.0)" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["at", "0.5×", "50.0", "56", "s", "≤", "24", "s", "≥", "2.33×"] in lines
    assert ["at", "2×", "90.0", "3.73", "min", "not", "reached", "–"] in lines


def test_before_the_baseline_has_a_result_there_are_no_curves(study: Study, write_run) -> None:
    write_run(study, study.arms[3], 0, 24, top1=60.0)
    assert Comparison(study, study.runs(), "command").levels == []
