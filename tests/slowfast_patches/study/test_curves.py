"""Recipes at several lengths: what is trained, and what the curves say, worked out by hand."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
import yaml

from slowfast_patches.study.arms import Arm, at_lengths
from slowfast_patches.study.compare import Comparison, format_comparison, make_arms
from slowfast_patches.study.curves import Reach, format_levels, make_curve, reach, stretches
from slowfast_patches.study.runs import run_folder

# Accuracies of each arm at 0.5, 1 and 2 times its length, and the seconds of its iterations.
REACHED = {"baseline": (50.0, 70.0, 90.0), "multigrid": (60.0, 80.0, 85.0)}


class TestReading:
    CURVE = make_curve([0.5, 1, 2], [100, 200, 400], [50, 70, 90], [3, 3, 3])

    def test_what_an_accuracy_costs(self) -> None:
        assert reach(self.CURVE, 70) == pytest.approx((200, False))
        # half of the way from 50 to 70 is half of a doubling
        assert reach(self.CURVE, 60) == pytest.approx((100 * 2**0.5, False))
        assert reach(self.CURVE, 50) == Reach(100, at_most=False)
        assert reach(self.CURVE, 49) == Reach(100, at_most=True)
        assert reach(self.CURVE, 90.1) is None

    def test_a_longer_training_that_is_worse_changes_nothing_before_one_that_is_better(
        self,
    ) -> None:
        curve = make_curve([2, 1, 0.5], [400, 200, 100], [90, 40, 50], [3, 2, 1])
        assert reach(curve, 50) == Reach(100, at_most=False)
        assert reach(curve, 70) == pytest.approx((200 * 2**0.5, False))
        assert curve["best_std"].tolist() == [1, 1, 3]

    @pytest.mark.parametrize(
        ("first", "second", "speed_up"),
        [
            ([(200, 60), (400, 80)], [(100, 60)], "2.00×"),  # of 60, which each has at a length
            ([(200, 60), (400, 80)], [(50, 85)], "≥ 4.00×"),
            ([(50, 85)], [(100, 83), (200, 85)], "≤ 0.35×"),  # of 84, at 100 √2
            ([(50, 85)], [(100, 85)], "–"),
            ([(200, 60), (400, 80)], [(50, 55)], "–"),
        ],
    )
    def test_a_bound_on_either_side_is_one_on_the_ratio(
        self, first: list[tuple], second: list[tuple], speed_up: str
    ) -> None:
        """The last line of the table is the lowest accuracy of the first curve."""

        def curve(points: list[tuple]) -> pd.DataFrame:
            costs, accuracies = zip(*points, strict=True)
            return make_curve([1, 2][: len(points)], costs, accuracies, accuracies)

        text = format_levels({"first": curve(first), "second": curve(second)}, "top1")
        assert re.split("  +", text.splitlines()[-1])[-1] == speed_up

    def test_where_curves_break_even_and_by_how_much_one_is_above(self) -> None:
        """Leads of 20, 5 and -10 at 100, 200 and 400; spreads of 3 and 4, of the difference 5."""
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
        assert (part.start, part.stop) == pytest.approx((150, 300))
        assert part.lead > 0
        assert math.isnan(part.spread)
        [same] = stretches(self.CURVE, self.CURVE)
        assert same.lead == 0
        assert stretches(self.CURVE, make_curve([1, 5], [10, 50], [9, 10], [1, 1])) == []


@pytest.fixture
def configs(short_cycle_recipe: Path) -> list[Path]:
    """56 iterations, and 24 with the short cycle."""
    multigrid = short_cycle_recipe.rename(short_cycle_recipe.with_name("multigrid.yaml"))
    baseline = multigrid.with_name("baseline.yaml")
    baseline.write_text("_BASE_: multigrid.yaml\nMULTIGRID: {SHORT_CYCLE: False}\n")
    return [baseline, multigrid]


@pytest.fixture
def arms(configs: list[Path]) -> list[Arm]:
    """Each recipe at its three lengths."""
    return [longer for arm in make_arms(configs, []) for longer in at_lengths(arm, [2, 0.5, 1])]


def make_result(arm: Arm, seed: int, top1: float) -> dict:
    """A finished run's, of 2 s an iteration, a fourth of it loading."""
    spent = {"training": 1.5 * arm.iterations, "loading": 0.5 * arm.iterations}
    return {
        "config": yaml.safe_load(arm.recipe.text) | {"RNG_SEED": seed},
        "versions": {"torch": "2.0"},
        "machine": {"processor": "abacus", "cores": 2, "gpus": []},
        "seconds": spent | {"evaluating": 9.0, "waiting": 0.0},
        "iterations": arm.iterations,
        "epochs": 7.0,
        "clips": 8 * arm.iterations,
        "flops": 1e9 * arm.iterations,
        "top1": top1,
    }


def make_results(arms: list[Arm]) -> dict[tuple[str, int], dict]:
    """Two seeds, 1 point above and below the mean."""
    means = [mean for reached in REACHED.values() for mean in reached]
    return {
        (arm.name, seed): make_result(arm, seed, mean + 1 - 2 * seed)
        for arm, mean in zip(arms, means, strict=True)
        for seed in (0, 1)
    }


def test_all_lengths_are_multiplied_and_one_is_the_recipe_itself(
    configs: list[Path], arms: list[Arm]
) -> None:
    assert [arm.iterations for arm in arms] == [28, 56, 112, 12, 24, 48]
    assert [(arm.name, arm.folder) for arm in arms[:2]] == [
        ("baseline at 0.5×", "baseline_x0.5"),
        ("baseline", "baseline"),
    ]
    assert {arm.label for arm in arms[3:]} == {"multigrid"}
    assert arms[1] == make_arms(configs, [])[0]
    assert arms[3].recipe.multigrid.epoch_factor == 1


def test_what_accuracies_cost_and_where_arms_break_even(arms: list[Arm]) -> None:
    """Baseline 56, 112, 224 s for 50, 70, 90; multigrid 24, 48, 96 s for 60, 80, 85. In common are
    56 to 96 s, where it is above."""
    comparison = Comparison(arms, [0, 1], make_results(arms), "command")
    found = comparison.to_json()
    levels = {level["what"]: level for level in found["levels"]}
    assert list(levels) == ["at 2×", "1 point below its best", "at 1×", "at 0.5×"]
    assert levels["at 2×"]["seconds"]["multigrid"] is None
    at_own = levels["at 1×"]["seconds"]["multigrid"]
    assert at_own["cost"] == pytest.approx(24 * 2**0.5)
    assert at_own["baseline_ratio"] == {"value": pytest.approx(112 / 24 / 2**0.5), "bound": "="}
    assert levels["at 0.5×"]["iterations"]["multigrid"]["at_most"]
    assert levels["at 0.5×"]["flops"]["multigrid"]["baseline_ratio"]["bound"] == "≥"
    # The plain table is relative to the baseline as it is.
    factors = [row["iteration_factor"]["mean"] for row in found["configs"][:3]]
    assert factors == [2, 1, 0.5]
    # At 56 s the baseline has 50; multigrid, with 80 at 48 s and 85 at 96 s, 81.1.
    text = format_comparison(comparison)
    assert "- from 56 s to 96 s: above by up to 31.1 points (the seeds' spread: ± 2.0)" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["at", "0.5×", "50.0", "56", "s", "≤", "24", "s", "≥", "2.33×"] in lines
    assert ["at", "2×", "90.0", "3.73", "min", "not", "reached", "–"] in lines


def test_step_times_take_the_place_of_seconds_measured_on_a_busy_machine(arms: list[Arm]) -> None:
    """Here as if iterations of multigrid took 4 s and the baseline's 1 s."""
    factors = {"baseline": 1.0, "multigrid": 4.0}
    seconds = {arm.name: arm.iterations * factors[arm.label] for arm in arms}
    comparison = Comparison(
        arms, [0, 1], make_results(arms), "command", step_seconds=seconds, step_times="times.json"
    )
    found = comparison.to_json()
    rows = {row["name"]: row for row in found["configs"]}
    assert rows["baseline at 0.5×"]["step_seconds"] == 28
    assert rows["multigrid at 0.5×"]["clock"]["mean"] == 48
    assert rows["multigrid at 0.5×"]["seconds"]["mean"] == 24
    assert found["seconds"] == "step times of times.json"
    # At 48 s, where multigrid has 60, the baseline has 50 + 20 log2(48 / 28), 65.5; at 96 s, where
    # it has 80, 85.5; at 112 s, 90 and 81.1.
    text = format_comparison(comparison)
    assert "- from 48 s to 112 s: below by up to 8.9 points" in text
    assert "iterations × the step times of times.json, measured alone" in text


def test_before_the_baseline_has_a_result_there_are_no_curves(arms: list[Arm]) -> None:
    only = {key: run for key, run in make_results(arms).items() if "multigrid" in key[0]}
    comparison = Comparison(arms, [0, 1], only, "command")
    assert comparison.to_json()["levels"] == []
    assert "break even" not in format_comparison(comparison)


@pytest.fixture
def cli(
    configs: list[Path], load_program: Callable[[str], ModuleType]
) -> tuple[ModuleType, list[str]]:
    files = [word for path in configs for word in ("--cfg", str(path))]
    return load_program("tools/compare.py"), files


@pytest.mark.slow
def test_the_command_reuses_runs_and_reports_curves(
    cli: tuple[ModuleType, list[str]],
    arms: list[Arm],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tool, files = cli
    by_name = {arm.name: arm for arm in arms}
    output = tmp_path / "runs"
    for (name, seed), result in make_results(arms).items():
        folder = run_folder(output, by_name[name], seed)
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(result))
    command = [*files, "--seeds", "0", "1", "--output", str(output)]
    assert tool.main([*command, "--lengths", "0.5", "1", "2", "LOG_PERIOD", "10"]) == 0
    assert "1 point below its best" in capsys.readouterr().out
    report = json.loads((output / "report.json").read_text())
    points = [row for row in report["configs"] if row["label"] == "multigrid"]
    assert [(point["length"], point["top1"]["mean"]) for point in points] == [
        *((0.5, 60), (1, 80), (2, 85)),
    ]
    assert (output / "report.png").read_bytes().startswith(b"\x89PNG")
    text = (output / "report.md").read_text()
    assert "| 1 point below its best |" in text
    assert "linearly in the logarithm of the time" in text


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (["0"], "above 0, not 0"),
        (["nan"], "above 0, not nan"),
        (["1", "0.5", "1.0"], "--lengths has one twice: 1 0.5 1"),
        (["half"], "--lengths takes numbers, not half"),
        (["0.5", "1", "0.01"], "multigrid at 0.01×: the training is too short"),
        (["0.5", "1", "0.01"], "or leave 0.01 out of --lengths"),
    ],
)
def test_lengths_that_cannot_be_are_said_in_a_line(
    cli: tuple[ModuleType, list[str]],
    refused: Callable[[ModuleType, list[str]], str],
    tmp_path: Path,
    lengths: list[str],
    message: str,
) -> None:
    tool, files = cli
    assert message in refused(tool, [*files, "--output", str(tmp_path), "--lengths", *lengths])


def test_lengths_and_equal_iterations_exclude_each_other(
    cli: tuple[ModuleType, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    tool, files = cli
    with pytest.raises(SystemExit):
        tool.main([*files, "--equal-iterations", "--lengths", "1"])
    assert "not allowed with argument --equal-iterations" in capsys.readouterr().err
