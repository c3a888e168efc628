"""Recipes at several lengths: what is trained, and what the curves say, worked out by hand."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slowfast_patches.study.arms import Arm, Arms
from slowfast_patches.study.compare import compare_lengths, format_comparison, make_arms
from slowfast_patches.study.curves.curves import StepTimed
from slowfast_patches.study.curves.families import Family, at_lengths, in_order
from slowfast_patches.study.curves.reading import Curve, Ratio, Reach, ratio_of, stretches
from slowfast_patches.study.experiments import EXPERIMENTS, PAPER, PROOF, trainings_of
from slowfast_patches.study.runs import run_folder

# Accuracies of each arm at 0.5, 1 and 2 times its length, and the seconds of its iterations.
REACHED = {"baseline": (50.0, 70.0, 90.0), "multigrid": (60.0, 80.0, 85.0)}


class TestReading:
    CURVE = Curve([100, 200, 400], [50, 70, 90], [3, 3, 3], [0.5, 1, 2])

    def test_what_an_accuracy_costs(self) -> None:
        assert self.CURVE.reach(70) == Reach(200, at_most=False)
        # half of the way from 50 to 70 is half of a doubling
        assert self.CURVE.reach(60) == pytest.approx((100 * 2**0.5, False))
        assert self.CURVE.reach(50) == Reach(100, at_most=False)
        assert self.CURVE.reach(49) == Reach(100, at_most=True)
        assert self.CURVE.reach(90.1) is None

    def test_a_longer_training_that_is_worse_changes_nothing_before_one_that_is_better(
        self,
    ) -> None:
        curve = Curve([100, 200, 400], [50, 40, 90], [1, 2, 3], [0.5, 1, 2])
        assert curve.reach(50) == Reach(100, at_most=False)
        assert curve.reach(70) == pytest.approx((200 * 2**0.5, False))

    @given(st.floats(50, 90))
    def test_at_the_cost_of_an_accuracy_the_curve_has_it(self, accuracy: float) -> None:
        reach = self.CURVE.reach(accuracy)
        assert self.CURVE.at([reach.cost])[0] == pytest.approx(accuracy)

    def test_a_bound_on_either_side_is_one_on_the_ratio(self) -> None:
        known, below = Reach(200, at_most=False), Reach(50, at_most=True)
        assert ratio_of(known, Reach(100, at_most=False)) == Ratio(2.0, "=")
        assert ratio_of(known, below) == Ratio(4.0, "≥")
        assert ratio_of(below, known) == Ratio(0.25, "≤")
        assert ratio_of(below, below) is ratio_of(known, None) is ratio_of(None, known) is None

    def test_where_curves_break_even_and_by_how_much_one_is_above(self) -> None:
        """Leads of 20, 5 and -10 at 100, 200 and 400; spreads of 3 and 4, of the difference 5."""
        before, after = stretches(self.CURVE, Curve([100, 400], [70, 80], [4, 4], [1, 4]))
        even = 200 * 2 ** (5 / 15)
        assert (before.start, before.stop, before.above) == pytest.approx((100, even, 1))
        assert (before.least, before.most, before.spread) == pytest.approx((5, 20, 5))
        assert before.beyond == 0.5
        assert (after.start, after.stop, after.above) == pytest.approx((even, 400, -1))
        assert (after.most, after.beyond) == (10, 1)

    def test_only_costs_that_both_cover_are_compared(self) -> None:
        [found] = stretches(self.CURVE, Curve([150, 300], [95, 96], [math.nan] * 2, [1, 2]))
        assert (found.start, found.stop, found.above) == (150, 300, 1)
        assert found.beyond is None
        [same] = stretches(self.CURVE, self.CURVE)
        assert (same.above, same.most) == (0, 0)
        assert stretches(self.CURVE, Curve([10, 50], [9, 10], [1, 1], [1, 5])) == []


@pytest.fixture
def configs(short_cycle_recipe: Path) -> list[Path]:
    """56 iterations, and 24 with the short cycle."""
    multigrid = short_cycle_recipe.rename(short_cycle_recipe.with_name("multigrid.yaml"))
    baseline = multigrid.with_name("baseline.yaml")
    baseline.write_text("_BASE_: multigrid.yaml\nMULTIGRID: {SHORT_CYCLE: False}\n")
    return [baseline, multigrid]


@pytest.fixture
def families(configs: list[Path]) -> list[Family]:
    return [at_lengths(arm, [2, 0.5, 1]) for arm in make_arms(configs, [])]


def make_result(arm: Arm, seed: int, top1: float) -> dict:
    """A finished run's, of 2 s an iteration, a fourth of it loading."""
    spent = {"training": 1.5 * arm.iterations, "loading": 0.5 * arm.iterations, "evaluating": 9.0}
    return {
        "config": yaml.safe_load(arm.recipe.text) | {"RNG_SEED": seed},
        "machine": {"processor": "abacus", "gpus": []},
        "world_size": 1,
        "seconds": spent,
        "iterations": arm.iterations,
        "epochs": 7.0,
        "clips": 8 * arm.iterations,
        "flops": 1e9 * arm.iterations,
        "top1": top1,
    }


def make_results(families: list[Family]) -> dict[tuple[str, int], dict]:
    """Two seeds, 1 point above and below the mean."""
    return {
        (arm.name, seed): make_result(arm, seed, mean + 1 - 2 * seed)
        for family, means in zip(families, REACHED.values(), strict=True)
        for arm, mean in zip(family.arms.values(), means, strict=True)
        for seed in (0, 1)
    }


def test_all_lengths_are_multiplied_and_one_is_the_recipe_itself(
    configs: list[Path], families: list[Family]
) -> None:
    arms = in_order(families)
    assert [arm.iterations for arm in arms] == [28, 12, 56, 24, 112, 48]
    assert [(arm.name, arm.folder) for arm in arms[:4]] == [
        ("baseline at 0.5×", "baseline_x0.5"),
        ("multigrid at 0.5×", "multigrid_x0.5"),
        ("baseline", "baseline"),
        ("multigrid", "multigrid"),
    ]
    assert arms[2] == make_arms(configs, [])[0]
    assert arms[1].recipe.multigrid.epoch_factor == 1


def test_what_accuracies_cost_and_where_arms_break_even(families: list[Family]) -> None:
    """Baseline 56, 112, 224 s for 50, 70, 90; multigrid 24, 48, 96 s for 60, 80, 85. In common are
    56 to 96 s, where it is above."""
    comparison = compare_lengths(families, [0, 1], make_results(families), "command")
    found = comparison.to_json()
    levels = {level["what"]: level for level in found["levels"]}
    assert list(levels) == ["at 2×", "1 point below its best", "at 1×", "at 0.5×"]
    assert levels["at 2×"]["seconds"]["multigrid"] is None
    at_own = levels["at 1×"]["seconds"]["multigrid"]
    assert at_own["cost"] == pytest.approx(24 * 2**0.5)
    assert at_own["baseline_ratio"] == {"value": pytest.approx(112 / 24 / 2**0.5), "bound": "="}
    assert levels["at 0.5×"]["iterations"]["multigrid"]["at_most"]
    assert levels["at 0.5×"]["flops"]["multigrid"]["baseline_ratio"]["bound"] == "≥"
    [stretch] = found["stretches"]["multigrid"]["seconds"]
    assert (stretch["start"], stretch["stop"], stretch["above"]) == (56, 96, "multigrid")
    assert (stretch["start_length"], stretch["beyond"]) == (0.5, 1)
    # The plain table is relative to the baseline as it is.
    assert [row["iteration_factor"] for row in found["configs"][:3]] == [2, 1, 0.5]
    text = format_comparison(comparison)
    assert "do not break even in the range of both" in text
    assert "- from 56 s (0.5×) to 96 s (0.857×): multigrid is above, by " in text
    lines = [line.split() for line in text.splitlines()]
    assert ["at", "0.5×", "50.0", "56", "s", "≤", "24", "s", "≥", "2.33×"] in lines
    assert ["at", "2×", "90.0", "3.73", "min", "not", "reached", "–"] in lines


def test_step_times_take_the_place_of_seconds_measured_on_a_busy_machine(
    families: list[Family],
) -> None:
    """Here as if iterations of multigrid took 4 s and the baseline's 1 s."""
    factors = zip(families, (1.0, 4.0), strict=True)
    seconds = {
        arm.name: arm.iterations * f for family, f in factors for arm in family.arms.values()
    }
    timed = StepTimed(seconds, "times.json")
    comparison = compare_lengths(families, [0, 1], make_results(families), "command", timed)
    found = comparison.to_json()
    assert found["curves"][0]["points"][0]["seconds"] == {"mean": 28, "std": 0}
    assert found["curves"][1]["points"][0]["seconds"]["mean"] == 48
    assert found["seconds"] == "step times of times.json"
    # At 48 s, where multigrid has 60, the baseline has 50 + 20 log2(48 / 28), 65.5.
    [stretch] = found["stretches"]["multigrid"]["seconds"]
    assert (stretch["above"], stretch["start"]) == ("baseline", 48)
    assert "iterations × the step times of times.json, measured alone" in format_comparison(
        comparison
    )


@pytest.fixture
def cli(
    configs: list[Path], load_program: Callable[[str], ModuleType]
) -> tuple[ModuleType, list[str]]:
    files = [word for path in configs for word in ("--cfg", str(path))]
    return load_program("tools/compare.py"), files


@pytest.mark.slow
def test_the_command_reuses_runs_and_reports_curves(
    cli: tuple[ModuleType, list[str]],
    families: list[Family],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tool, files = cli
    by_name = {arm.name: arm for arm in in_order(families)}
    output = tmp_path / "runs"
    for (name, seed), result in make_results(families).items():
        folder = run_folder(output, by_name[name], seed)
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(result))
    command = [*files, "--seeds", "0", "1", "--output", str(output)]
    assert tool.main([*command, "--lengths", "0.5", "1", "2", "LOG_PERIOD", "10"]) == 0
    assert "1 point below its best" in capsys.readouterr().out
    report = json.loads((output / "report.json").read_text())
    points = report["curves"][1]["points"]
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


def test_lengths_and_equal_time_exclude_each_other(
    cli: tuple[ModuleType, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    tool, files = cli
    with pytest.raises(SystemExit):
        tool.main([*files, "--equal-time", "--lengths", "1"])
    assert "not allowed with argument --equal-time" in capsys.readouterr().err


class TestWords:
    WORDS = EXPERIMENTS["words"]

    @pytest.fixture
    def folder(self, configs: list[Path]) -> Path:
        """Two recipes in the place of configs/."""
        words = configs[0].parent / "Words"
        words.mkdir()
        for path, name in zip(configs, ("SLOWFAST_WORDS", "SLOWFAST_WORDS_MULTIGRID"), strict=True):
            recipe = f"_BASE_: ../{path.name}\nMODEL: {{NUM_CLASSES: 22}}\n"
            (words / f"{name}.yaml").write_text(recipe)
        return words.parent

    def test_is_no_table_of_the_paper(self) -> None:
        assert PROOF[0] == "words"
        assert {*PAPER, *PROOF} == EXPERIMENTS.keys()

    def test_is_trained_as_compare_would(self, folder: Path) -> None:
        arms = Arms(folder, data={"words": "here", "kinetics": "elsewhere"})
        made = [arms.arm(training) for training in trainings_of([self.WORDS])]
        assert [arm.iterations for arm in made][2:] == [7, 3, 14, 6, 28, 12, 56, 24]
        assert made[2].folder == "Words/SLOWFAST_WORDS_x0.125"
        assert {arm.recipe.data.path_to_data_dir for arm in made} == {"here"}
        files = [folder / "Words" / f"SLOWFAST_WORDS{end}.yaml" for end in ("", "_MULTIGRID")]
        compared = [at_lengths(arm, self.WORDS.lengths) for arm in make_arms(files, [])]
        same = {"DATA.PATH_TO_DATA_DIR": ""}
        assert [arm.recipe.replaced(same) for arm in made] == [
            arm.recipe for arm in in_order(compared)
        ]

    @pytest.mark.slow
    def test_its_report_has_the_curves_of_each_recipe(
        self,
        folder: Path,
        tmp_path: Path,
        load_program: Callable[[str], ModuleType],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        tool, output = load_program("tools/reproduce.py"), tmp_path / "out"
        monkeypatch.setattr(tool, "CONFIGS", folder)
        arms = Arms(folder)
        for row, top1 in zip(self.WORDS.rows, (5, 10, 50, 70, 90, 4, 9, 45, 80, 92), strict=True):
            run = run_folder(output, arms.arm(row.training), 0)
            run.mkdir(parents=True)
            result = make_result(arms.arm(row.training), 0, top1) | {"top5": 99.0}
            (run / "result.json").write_text(json.dumps(result))
        assert tool.main(["words", "--output", str(output)]) == 0
        assert "multigrid and baseline do not break even" in capsys.readouterr().out
        report = json.loads((output / "words.json").read_text())
        assert [curve["label"] for curve in report["curves"]] == ["baseline", "multigrid"]
        best = report["levels"][0]
        assert (best["accuracy"], best["what"]) == (90, "at 1×")
        # 10 of the 12 points from 24 to 48 s, of a doubling; the baseline's took 112 s
        ratio = best["seconds"]["multigrid"]["baseline_ratio"]["value"]
        assert ratio == pytest.approx(112 / (24 * 2 ** (10 / 12)))
        assert (output / "words.png").exists()
        assert (
            "![Top-1 accuracy against training time](words.png)"
            in (output / "words.md").read_text()
        )
        assert tool.main(["words", "--local", "--output", str(output)]) == 2
        assert "give --words DIR" in capsys.readouterr().err
