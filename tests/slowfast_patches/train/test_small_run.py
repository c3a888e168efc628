"""Whole runs of five iterations: what they leave, and how they resume, end early and test."""

from __future__ import annotations

import csv
import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from multigrid import ScheduleStep
from slowfast_patches.config import load_recipe
from slowfast_patches.train.checkpoint import best_checkpoint
from slowfast_patches.train.step import Outcome
from slowfast_patches.train.trainer import Hook, Trainer
from slowfast_patches.utils.errors import RunError, UserError
from slowfast_patches.utils.files import TEMPORARY
from tests.conftest import Folder, assert_same_run
from tests.slowfast_patches.train.conftest import PREDICTED, At, die

CLIPS = [16, 8, 4, 16, 8]


@pytest.fixture(scope="module")
def whole(small_run: Path) -> Folder:
    """An undisturbed run. Tests must not write to it."""
    return Folder(small_run)


def test_the_result_of_a_run_by_hand(whole):
    result = whole.result
    expected = {"iterations": 5, "baseline_iterations": 12, "clips": 52, "epochs": 2.1667}
    expected |= {"global_batch": 4, "world_size": 1, "finished": True, "metric": "top1"}
    expected |= {"seed": 1, "videos": 8, "unreadable": 0}
    assert {name: result[name] for name in expected} == expected
    assert [e["iteration"] for e in result["evaluations"]] == [2, 5]
    assert result["evaluations"] == [
        {k: v for k, v in r.items() if k != "type"} for r in whole.metrics("val")
    ]
    assert result["best"] in result["evaluations"] if "best" in result else True
    assert "planned_iterations" not in result
    assert "overlaps" not in result
    assert "changes" not in result
    (tested,) = whole.metrics("test")
    assert (result["top1"], result["top5"]) == (tested["top1"], tested["top5"])
    seconds = result["seconds"]
    assert seconds["training"] > 0 < seconds["testing"]
    assert result["machine"]
    assert "torch" in result["versions"]
    assert result["config"]["MODEL"]["ARCH"] == "c2d"


def test_each_iteration_has_a_line_with_its_shape_rate_and_group(whole):
    lines = whole.metrics()
    assert [line["iteration"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["shape"] for line in lines] == [
        [clips, 8, {16: 16, 8: 23, 4: 32}[clips]] for clips in CLIPS
    ]
    assert [line["bn_group_size"] for line in lines] == CLIPS
    assert [line["lr"] for line in lines] == pytest.approx([0.002, 0.01, 0.01, 0.01, 0.001])
    assert [line["phase"] for line in lines] == [0, 0, 1, 1, 2]


def test_a_run_leaves_its_recipe_its_plan_and_its_tables(whole):
    folder = whole.path
    again = load_recipe(folder / "config.yaml")
    assert again.text == (folder / "config.yaml").read_text()
    assert again.model.arch == "c2d"
    plan = json.loads((folder / "plan.json").read_text())
    assert (plan["iterations"], plan["clips"], plan["evaluations"]) == (5, 52, 2)
    assert "Training set: 24 videos." in (folder / "plan.txt").read_text()
    with (folder / "result_classes.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 8
    for said in (
        "World size 1, global batch size 4, SOLVER.BASE_LR 0.01, TRAIN.MIXED_PRECISION False",
        "c2d has 130448 parameters",
        "The training has 5 iterations (the baseline: 12), or 2.2 epochs of 24 videos",
        "the baseline has 12 iterations (below 25,000)",
        "validation after iteration 5",
        "test on 2 views × 1 crops: top-1",
    ):
        assert said in whole.log


def test_predictions_have_a_row_for_each_video_and_agree_with_the_accuracy(whole, tiny_data):
    rows = list(csv.DictReader((whole.path / "predictions.csv").open()))
    assert len(rows) == 8
    listed = [line.split()[0] for line in (tiny_data / "test.csv").read_text().splitlines()]
    paths = [next(v for v in row.values() if str(v).endswith(".mp4")) for row in rows]
    assert [Path(path).name for path in paths] == [Path(path).name for path in listed]


def test_a_test_alone_finds_the_same_and_replaces_nothing(whole, run_small, tmp_path):
    folder = shutil.copytree(whole.path, tmp_path / "copy")
    left = {path: path.read_bytes() for path in folder.glob("*.*") if path.suffix != ".lock"}
    tested = run_small(folder, *PREDICTED, "TRAIN.ENABLE", False)
    found = json.loads((tested.path / "test.json").read_text())
    assert (found["top1"], found["top5"]) == (whole.result["top1"], whole.result["top5"])
    assert "iterations" not in found
    assert {path: path.read_bytes() for path in left} == left
    assert (tested.path / "test_predictions.csv").read_bytes() == left[
        tested.path / "predictions.csv"
    ]
    assert (tested.path / "test_classes.csv").exists()


class Kill(Hook):
    """Ends the process at a place of an iteration."""

    def __init__(self, place: str, iteration: int) -> None:
        self.place, self.iteration = place, iteration

    def _at(self, place: str, step: ScheduleStep, trainer: Trainer) -> None:
        if (place, step.iteration) == (self.place, self.iteration):
            die(trainer)

    def before_step(self, trainer: Trainer, step: ScheduleStep, batch: object) -> None:
        self._at("before_step", step, trainer)

    def after_backward(self, trainer: Trainer, step: ScheduleStep, outcome: Outcome) -> None:
        self._at("after_backward", step, trainer)

    def after_step(self, trainer: Trainer, step: ScheduleStep, outcome: Outcome) -> None:
        self._at("after_step", step, trainer)


PLACES = ("before_step", "after_backward", "after_step")


def disturbed(run_small: Callable[..., Folder], folder: Path, seed: int, kills: int) -> Folder:
    """Run to the end, killed at random places. Checkpoints follow iterations 2, 4 and 5."""
    rng = random.Random(seed)
    for iteration in sorted(rng.sample(range(5), kills)):
        with suppress(SystemExit):
            run_small(folder, *PREDICTED, hooks=[Kill(rng.choice(PLACES), iteration)])
    return run_small(folder, *PREDICTED)


@pytest.mark.parametrize(
    ("seed", "kills"),
    [
        (0, 1),
        *(
            pytest.param(seed, 3, marks=pytest.mark.slow("the quick tests kill once"))
            for seed in (0, 1, 2, 3)
        ),
    ],
)
def test_a_run_killed_at_random_places_ends_as_if_undisturbed(
    whole, run_small, tmp_path, seed, kills
):
    assert_same_run(disturbed(run_small, tmp_path, seed, kills), whole)


@pytest.mark.slow("trains twice; the parts of a run are tested by themselves")
def test_results_of_an_earlier_run_and_half_written_checkpoints_go_when_a_run_resumes(
    run_small, tmp_path
):
    with suppress(SystemExit):
        run_small(tmp_path, hooks=[Kill("after_step", 2)])
    half = tmp_path / "checkpoints" / f"checkpoint_iter_00000004.pyth{TEMPORARY}"
    half.write_bytes(b"half")
    (tmp_path / "result.json").write_text("old")
    (tmp_path / "plan.txt").write_text("unchanged, as it is written at the start")
    with suppress(SystemExit):
        run_small(tmp_path, hooks=[Kill("before_step", 3)])
    assert not half.exists()
    assert not (tmp_path / "result.json").exists()
    assert (tmp_path / "plan.txt").read_text().startswith("unchanged")


def test_a_run_that_a_hook_ends_tells_the_iterations_that_were_planned(run_small, tmp_path):
    def stop(trainer: Trainer) -> None:
        trainer.should_stop = True

    result = run_small(tmp_path, "TEST.ENABLE", False, hooks=[At(3, stop)]).result
    facts = {name: result[name] for name in ("iterations", "planned_iterations", "clips", "epochs")}
    assert facts == {"iterations": 3, "planned_iterations": 5, "clips": 28, "epochs": 1.1667}
    assert result["top1"] == result["evaluations"][-1]["top1"]
    assert result["evaluations"][-1]["iteration"] == 3


def test_averaged_weights_are_validated_tested_and_kept_beside_the_others(run_small, tmp_path):
    keys = ("MODEL.EMA_DECAY", 0.5, "TRAIN.KEEP_BEST", True, "BN.USE_PRECISE_STATS", False)
    folder = run_small(tmp_path, *keys)
    for found in (folder.result, *folder.metrics("val")):
        assert found.keys() >= {"top1", "top5", "top1_ema", "top5_ema"}
    assert all({"loss", "loss_ema"} <= found.keys() for found in folder.metrics("val"))
    best = max(e["top1_ema"] for e in folder.result["evaluations"])
    assert folder.result["best"]["top1_ema"] == best
    assert best_checkpoint(tmp_path) is not None


@pytest.mark.slow("trains twice; the parts of a run are tested by themselves")
def test_an_error_of_a_run_names_the_last_checkpoint_and_a_wrong_key_does_not(run_small, tmp_path):
    def fail(error: Exception) -> Callable[[Trainer], object]:
        def act(trainer: Trainer) -> None:
            raise error

        return act

    for error, named in ((RunError("too bright"), True), (UserError("wrong key"), False)):
        with pytest.raises(type(error)) as failed:
            run_small(tmp_path, hooks=[At(3, fail(error))])
        notes = getattr(failed.value, "__notes__", [])
        assert len(notes) == named
        if named:
            assert "checkpoint_iter_00000002.pyth. Repeat the command to resume." in notes[0]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (("TRAIN.ENABLE", False, "TEST.ENABLE", False), "are False. Set one of them True"),
        (("TRAIN.FREEZE", ["s1"]), "would freeze random weights"),
        (("TRAIN.CHECKPOINT_INFLATE", True), "no weights to inflate"),
        (("DATA.PATH_PREFIX", "/nowhere"), r"None of \d+ videos .*exists.*Set DATA.PATH_PREFIX"),
        (("TRAIN.CHECKPOINT_FILE_PATH", "gone.pyth"), "gone.pyth"),
        (("TRAIN.ENABLE", False), "There is no model to test"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(run_small, tmp_path, keys, said):
    with pytest.raises(UserError, match=said):
        run_small(tmp_path / "out", *keys)
    assert not list(tmp_path.rglob("*.log"))
