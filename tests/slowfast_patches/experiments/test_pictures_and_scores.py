"""What the pictures of experiments show, and scores and verdicts at their bounds."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from slowfast_patches.experiments import comparison, reproduction, slurm_jobs
from slowfast_patches.experiments.comparison import make_variants
from slowfast_patches.experiments.curves import curves_of, draw_curves
from slowfast_patches.experiments.paper import PaperTable, Row
from slowfast_patches.experiments.runs import Experiment
from slowfast_patches.experiments.score import score_of, scored_videos
from slowfast_patches.experiments.slurm_jobs import check
from slowfast_patches.experiments.variants import Variant
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.pictures import COLOURS, new_figure
from slowfast_patches.utils.tables import Mean
from tests.slowfast_patches.experiments.test_compare import BASE, DELTA


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Variant]:
    """Baseline and multigrid: 102 and 36 iterations."""
    folder = tmp_path_factory.mktemp("configs")
    for name, text in (("baseline", BASE), ("multigrid", DELTA)):
        (folder / f"{name}.yaml").write_text(text)
    return make_variants([folder / "baseline.yaml", folder / "multigrid.yaml"], [])


@pytest.fixture
def experiment(two: list[Variant], tmp_path: Path) -> Experiment:
    return Experiment(two, [0, 1], tmp_path / "out")


# Pictures.


def table_of(*rows: tuple[str, float, int, float, float]) -> pd.DataFrame:
    """Return runs of label, length, seed, seconds and top-1."""
    columns = ["label", "length", "seed", "clock", "top1"]
    return pd.DataFrame(rows, columns=columns).assign(
        iterations=lambda runs: runs["clock"] * 2,
        flops=lambda runs: runs["clock"] * 1e9,
        seconds=lambda runs: runs["clock"] * 4,
    )


def points_of(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """Return the points of each curve with error bars, by its name in the legend."""
    return {
        str(bars.get_label()): [tuple(map(float, pair)) for pair in bars[0].get_xydata()]
        for bars in axes.containers
    }


def test_a_curve_has_the_mean_of_each_length_and_its_number_of_seeds():
    runs = table_of(
        ("a", 2, 0, 200, 60), ("a", 1, 0, 100, 40), ("a", 1, 1, 100, 44), ("b", 1, 0, 50, 30)
    )
    _, [axes] = new_figure(1, 4, 4)
    draw_curves(axes, curves_of(runs, "clock", "top1"), {"a": "red", "b": "blue"}, runs)
    assert points_of(axes) == {"a (n = 2)": [(100, 42), (200, 60)], "b (n = 1)": [(50, 30)]}
    assert [text.get_text() for text in axes.texts] == [" 1×", " 2×", " 1×"]
    assert [text.xy for text in axes.texts] == [(100, 42), (200, 60), (50, 30)]
    assert axes.get_xscale() == "log"
    assert [to_hex(bars[0].get_color()) for bars in axes.containers] == ["#ff0000", "#0000ff"]
    heights = [
        float(segment[1][1] - segment[0][1]) for segment in axes.containers[0][2][0].get_segments()
    ]
    assert heights == pytest.approx([2 * 8**0.5, 0])


def test_curves_are_in_the_order_of_the_runs_and_leave_out_those_without_a_result():
    runs = table_of(("b", 1, 0, 50, 30), ("a", 1, 0, 100, 40), ("c", 1, 0, 9, math.nan))
    found = curves_of(runs, "clock", "top1")
    assert list(found) == ["b", "a"]
    assert found["a"].to_dict("records") == [
        {"length": 1, "cost": 100, "accuracy": 40, "std": pytest.approx(math.nan, nan_ok=True)}
        | {"best": 40}
    ]


def test_a_single_length_has_a_linear_axis_and_no_notes():
    runs = table_of(("a", 1, 0, 100, 40), ("b", 1, 0, 50, 30))
    _, [axes] = new_figure(1, 4, 4)
    draw_curves(axes, curves_of(runs, "clock", "top1"), {"a": "red", "b": "blue"}, runs)
    assert axes.get_xscale() == "linear"
    assert not axes.texts


def test_without_lengths_the_validations_of_each_run_are_a_thin_line():
    """The run took four times as long as its steps, and was validated half-way."""
    result = {"evaluations": [{"seconds": 200, "top1": 20.0}, {"seconds": 400, "top1": 40.0}]}
    runs = table_of(("a", 1, 0, 100, 40.0)).assign(result=[result])
    figure = comparison._figure(runs, "top1", 12.5, "steps", has_lengths=False)
    (axes,) = figure.axes
    assert points_of(axes) == {"a (n = 1)": [(100, 40)]}
    lines = {line.get_alpha(): line.get_xydata().tolist() for line in axes.lines}
    assert lines[0.5] == [[50, 20], [100, 40]]
    assert axes.get_xlim()[0] == 0
    assert tuple(figure.get_size_inches()) == (8, 5)
    assert axes.get_xlabel() == "seconds of training (steps)"
    assert axes.get_ylabel() == "top-1 (%)"
    (chance,) = [line for line in axes.lines if line.get_label() == "chance, 12.5 %"]
    assert list(chance.get_ydata()) == [12.5, 12.5]
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {"a (n = 1)", "chance, 12.5 %"}


def test_lengths_are_drawn_against_seconds_iterations_and_flops():
    runs = table_of(("a", 1, 0, 100, 40), ("a", 2, 0, 200, 60), ("b", 1, 0, 50, 30))
    figure = comparison._figure(runs, "top1", None, "steps", has_lengths=True)
    labels = ["seconds of training (steps)", "iterations", "training FLOPs"]
    assert [axes.get_xlabel() for axes in figure.axes] == labels
    assert tuple(figure.get_size_inches()) == (16, 5)  # 4 inches for each panel
    for axes, factor in zip(figure.axes, (1, 2, 1e9), strict=True):
        expected = [(100 * factor, 40), (200 * factor, 60)]
        assert points_of(axes)["a (n = 1)"] == expected
        colours = [to_hex(bars[0].get_color()) for bars in axes.containers]
        assert colours == list(COLOURS[:2])
        assert not any("chance" in str(line.get_label()) for line in axes.lines)
    assert figure.axes[0].get_ylabel() == "top-1 (%)"


@pytest.mark.parametrize("has_lengths", [False, True])
def test_the_source_of_the_step_times_is_read_whole_below_a_panel(has_lengths: bool) -> None:
    runs = table_of(("one", 1.0, 0, 10, 50.0))
    runs["result"] = [{"evaluations": [{"seconds": 1.0, "top1": 20.0}]}]
    times = "iterations × the step times of runs/$a/$b/steps.json, measured on AMD EPYC (cpu), "
    times += "1 threads, torch 2.13.0+cpu, 2026-11-28T12:41:54+00:00"
    figure = comparison._figure(runs, "top1", None, times, has_lengths=has_lengths)
    figure.draw_without_rendering()
    label = figure.axes[0].xaxis.label
    assert " ".join(label.get_text().split()) == f"seconds of training ({times})"
    assert not label.get_parse_math()
    longest = max(map(len, label.get_text().splitlines()))
    assert (50 < longest <= 80) is not has_lengths, "a panel beside others has shorter lines"
    box = label.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    if has_lengths:
        assert box.x1 <= figure.axes[1].xaxis.label.get_window_extent().x0


def test_a_figure_of_the_paper_has_hollow_points_at_the_published_time():
    """Multigrid is 4 times as fast in the paper, and 2 times here."""
    rows = (
        Row("base", "a.yaml", "a.yaml", metrics={"top1": Mean(75.0, None)}, curve="baseline"),
        Row(
            "fast", "b.yaml", "a.yaml", metrics={"top1": Mean(76.0, None)}, speed_up=4.0, curve="m"
        ),
        Row("none", "c.yaml", "a.yaml", curve="m"),
    )
    runs = table_of(("baseline", 1, 0, 100, 70), ("m", 1, 0, 50, 71), ("other", 1, 0, 1, 1))
    runs = runs.assign(variant=["a", "b", "d"], speed_up=[1.0, 2.0, 9.0])
    figure = reproduction._figure(PaperTable("Title", ["top1"], rows), runs)
    (axes,) = figure.axes
    assert points_of(axes) == {"baseline (n = 1)": [(1.0, 70)], "m (n = 1)": [(0.5, 71)]}
    hollow = {
        str(line.get_label()): (line.get_xydata().tolist(), to_hex(line.get_markeredgecolor()))
        for line in axes.lines
        if line.get_markerfacecolor() == "none"
    }
    assert hollow == {
        "baseline, published": ([[1.0, 75.0]], COLOURS[0]),
        "m, published": ([[0.25, 76.0]], COLOURS[1]),
    }
    assert axes.get_ylabel() == "top-1 accuracy (%)"
    assert "relative to the baseline" in axes.get_xlabel()
    assert figure.get_suptitle() == "Title"
    assert tuple(figure.get_size_inches()) == (8, 5)
    assert len(figure.legends) == 1


# Scores and verdicts.


def runs_of(variant: str, *scores: float, **result: object) -> pd.DataFrame:
    rows = [(variant, score, dict(result)) for score in scores]
    return pd.DataFrame(rows, columns=["variant", "top1", "result"])


def test_the_error_of_a_score_whose_number_of_videos_is_unknown():
    """One seed at 20 %: 40 · 0.2 · 0.8 points. At 0 and 100 %, half a per cent is assumed."""
    assert score_of(runs_of("a", 20.0), "a", "top1").stdev == pytest.approx(6.4)
    for bound in (0.0, 100.0):
        assert score_of(runs_of("a", bound), "a", "top1").stdev == pytest.approx(0.199)


def test_the_error_of_several_seeds_has_their_own_variance():
    """Seeds 10 and 30: a variance of 200, beside four of 6.4²."""
    found = score_of(runs_of("a", 10.0, 30.0), "a", "top1")
    assert (found.mean, found.stdev) == pytest.approx((20, math.sqrt((4 * 6.4**2 + 200) / 5 / 2)))


def test_all_right_is_as_uncertain_as_one_wrong():
    """Of 50 videos: 98 %."""
    found = score_of(runs_of("a", 100.0, videos=60, unreadable=10), "a", "top1")
    of_videos = 100 * math.sqrt(0.98 * 0.02 / 50)
    assert found.stdev == pytest.approx(math.hypot(of_videos, 40 * 0.98 * 0.02))
    assert scored_videos([{"videos": 9}, {"videos": 8, "unreadable": 2}, {"videos": 7}]) == 6
    assert scored_videos([{}]) == 0


@pytest.mark.parametrize(
    ("change", "errors", "is_clear"),
    [
        (10.0, (3.0, 4.0), True),  # twice √(3² + 4²)
        (-10.0, (3.0, 4.0), True),
        (9.99, (3.0, 4.0), False),
        (0.0, (0.0, 0.0), False),
    ],
)
def test_a_difference_of_twice_its_error_is_clear(experiment, change, errors, is_clear):
    baseline, multigrid = experiment.variants
    runs = pd.concat([runs_of(each.name, 1.0, 1.0, videos=9) for each in experiment.variants])
    scores = {
        "baseline": NormalDist(50, errors[0] or 1e-300),
        "multigrid": NormalDist(50 + change, errors[1] or 1e-300),
    }
    text = comparison._verdict(experiment, runs, scores, multigrid)
    assert text.startswith("Verdict: compared with baseline, the top-1 of multigrid differs by")
    assert ("undecided" not in text) is is_clear
    assert baseline.name == "baseline"


@pytest.mark.parametrize(
    ("seeds", "is_asked"),
    [((2, 2), False), ((3, 2), False), ((2, 1), True), ((1, 1), True), ((1, 0), False)],
)
def test_more_seeds_are_asked_for_if_a_variant_has_one(
    experiment, write_run, monkeypatch, seeds, is_asked
):
    monkeypatch.setattr(comparison, "_figure", lambda *_, **__: None)
    experiment = replace(experiment, seeds=range(3))
    for variant, count in zip(experiment.variants, seeds, strict=True):
        for seed in range(count):
            write_run(experiment, variant, seed, 100, top1=50.0, top5=90.0)
    report = comparison.compare(experiment, experiment.runs(), "multigrid-compare --cfg x")
    assert ("To add seeds" in report.result[-1]) is is_asked


@pytest.mark.parametrize(("chance", "low"), [(10.0, True), (9.9, False), (0.0, False)])
def test_an_accuracy_of_two_errors_above_chance_is_clear(experiment, chance, low):
    scores = {"baseline": NormalDist(20, 5), "multigrid": NormalDist(99, 1)}
    found = comparison._warnings(experiment, scores, chance)
    assert any("of baseline is not clearly above chance" in text for text in found) is low
    assert any(text.startswith("multigrid: ") for text in found)


@pytest.mark.parametrize(
    ("speed_up", "total", "step_times", "expected"),
    [
        (2.0, 1.5, "steps.json", ["By the step times of steps.json", "1.50× as fast."]),
        (2.0, 1.5, None, ["trains 2.00× as fast.", "is 1.50× as fast."]),
        (2.0, math.nan, None, ["By wall-clock time without evaluation and test"]),
        (math.nan, 1.5, "steps.json", ["By wall-clock time with data loading"]),
        (math.nan, math.nan, None, []),
    ],
)
def test_each_known_speed_up_is_a_sentence(experiment, speed_up, total, step_times, expected):
    row = ("multigrid", speed_up, total)
    runs = pd.DataFrame([row], columns=["variant", "speed_up", "total_speed_up"])
    texts = comparison._speeds(runs, experiment.variants[1], step_times)
    assert len(texts) == len(expected)
    assert all(part in text for part, text in zip(expected, texts, strict=True))


def test_chance_is_explained_if_it_is_known():
    assert comparison._explain("a", "t", 12.5).endswith("Chance is 12.5 %.")
    assert "Chance" not in comparison._explain("a", "t", None)


# Jobs.


def test_a_job_is_described_with_what_this_machine_lacks(two, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_jobs, "plan_of", lambda recipe: recipe)
    monkeypatch.setattr(slurm_jobs, "format_plan", lambda recipe: "the plan")
    written = two[0].recipe.replaced({"DATA.PATH_TO_DATA_DIR": str(tmp_path)})
    text, warnings = check(written, written)
    batch = "Global batch: 1 × TRAIN.BATCH_SIZE 8 = 8 clips on 1 processes; SOLVER.BASE_LR 0.1"
    assert text == f"the plan\n\n{batch}"
    names = [f"{tmp_path}/{split}.csv is not on this machine" for split in ("train", "val", "test")]
    assert [warning.partition(". It must")[0] for warning in warnings] == names
    assert check(written, written.replaced({"DATA.NUM_TRAIN_VIDEOS": 1}))[0] == text
    unknown = written.replaced({"DATA.NUM_TRAIN_VIDEOS": 0})
    assert check(written, unknown)[0] == batch
    (tmp_path / "train.csv").write_text("a.mp4 0\n" * 136)
    assert check(written, unknown)[0] == text
    weights = {"TRAIN.ENABLE": False, "TEST.CHECKPOINT_FILE_PATH": "https://some.org/a.pyth"}
    assert check(written, written.replaced(weights))[0] == batch


def test_a_larger_batch_with_the_rates_of_the_recipe_is_warned_of(two, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_jobs, "plan_of", lambda recipe: recipe)
    monkeypatch.setattr(slurm_jobs, "format_plan", lambda recipe: "the plan")
    written = two[0].recipe.replaced({"DATA.PATH_TO_DATA_DIR": str(tmp_path)})
    larger: dict[str, Any] = {"TRAIN.BATCH_SIZE": 16}

    def warned(**keys: object) -> bool:
        *_, last = check(written, written.replaced({**larger, **keys}))[1]
        return "learning rates are for 8 clips per iteration, but this job has 16" in last

    assert warned()
    assert not warned(**{"SOLVER.BASE_LR": 0.2})
    assert not warned(**{"TRAIN.BATCH_SIZE": 8})


def test_a_job_has_no_number_of_its_machine(two, tmp_path):
    recipe = two[0].recipe.replaced({"DATA.PATH_TO_DATA_DIR": str(tmp_path)})
    several = SimpleNamespace(shard_id=1)
    with pytest.raises(UserError, match=r"SHARD_ID is 1, but each machine .* Remove SHARD_ID"):
        check(recipe, several)
