"""What TensorBoard draws of a training."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from multigrid import Schedule, Shape, SteppedRate, make_schedule
from slowfast_patches.train.record.clock import Clock
from slowfast_patches.train.record.monitor import Monitor
from slowfast_patches.train.record.window import Summary

Curve = list[tuple[int, float]]


@pytest.fixture(autouse=True)
def _one_second_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers order files by their names, which hold the second and the process: those of runs
    that one process begins in one second are in no order."""
    seconds = itertools.count(1_000_000_000)
    monkeypatch.setattr(event_file_writer, "time", SimpleNamespace(time=lambda: next(seconds)))


def curves(folder: Path) -> dict[str, Curve]:
    """(step, value) of each scalar of a folder of events, as TensorBoard reads it."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, pytest.approx(event.value)) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def schedule(bn_size: int | None) -> Schedule:
    """8 clips of 8 frames of 32²: 20 iterations of stage one, 20 of two, none of fine-tuning."""
    rate = SteppedRate((20.0, 40.0), (0.1, 0.01))
    return make_schedule(
        Shape(8, 8, 32), 8, rate, epoch_factor=1, long_cycle=(), short_cycle=(), bn_size=bn_size
    )


def train(
    folder: Path,
    start: int,
    stop: int,
    loss: float,
    *,
    seconds: float = 0.3,
    bn_size: int | None = 4,
    top1: float | None = 25.0,
    evaluation_due: bool = False,
) -> None:
    """A run from one iteration to another, each of so many seconds, reported every second one and
    evaluated every tenth."""
    folder.mkdir(exist_ok=True)
    clock = Clock({"training": start * seconds})
    monitor = Monitor(str(folder), schedule(bn_size), clock, start, "", evaluation_due)

    def evaluate(done: int) -> None:
        record = {"iteration": done, "epoch": done, "seconds": round(clock.working, 3)}
        name = "map" if top1 is None else "top1"
        monitor.evaluated({**record, name: loss}, {name: loss})

    if evaluation_due:
        evaluate(start)
    for step in schedule(bn_size).steps(start, stop):
        clock.seconds["training"] += seconds
        done = step.iteration + 1
        if done % 2 == 0:
            spent = [(1.0, 0.0), (0.75, 0.25)]
            monitor.progress(step, Summary(loss, 16, top1, [], spent))
        if done % 10 == 0:
            evaluate(done)
        monitor.observe(step)
    monitor.close()


def test_every_curve_is_there_over_iterations_and_over_seconds(tmp_path: Path):
    train(tmp_path, 0, 40, loss=2.0)
    done = list(range(2, 41, 2))
    constant = {
        "train/loss": 2,
        "train/top1": 25,
        "train/loading_share": 0,
        "train/worst_loading_share": 0.25,
        "train/clips_per_second": 16,  # in the second that this process spent
        "shape/batch": 8,
        "shape/frames": 8,
        "shape/crop": 32,
        "shape/bn_size": 4,
    }
    rates = [0.1] * 10 + [0.01] * 10
    expected = {tag: [(step, value) for step in done] for tag, value in constant.items()}
    expected["train/lr"] = list(zip(done, rates, strict=True))
    expected["val/top1"] = [(step, 2) for step in (10, 20, 30, 40)]
    phases = {f"phase/{n}": v for n, v in [("loading_share", 0), ("worst_loading_share", 0.25)]}
    assert curves(tmp_path / "tensorboard") == expected | {
        tag: [(20, value), (40, value)] for tag, value in phases.items()
    }
    # 0.3 s an iteration: 0.6, 1.2, 1.8, 2.4, 3.0, ... are in the seconds 0, 1, 1, 2, 3, ...
    of = {step: 3 * step // 10 for step in done}
    assert curves(tmp_path / "tensorboard/seconds") == {
        tag: [(of[step], value) for step, value in curve] for tag, curve in expected.items()
    }


@pytest.mark.parametrize("start", [12, 14, 16, 20])
def test_a_continued_run_draws_nothing_twice_and_loses_nothing(tmp_path: Path, start: int):
    """From a checkpoint whose second has reports of before and after it, and from others."""
    train(tmp_path / "plain", 0, 40, loss=2.0)
    train(tmp_path / "killed", 0, 25, loss=2.0)
    train(tmp_path / "killed", start, 40, loss=2.0)
    for name in ("tensorboard", "tensorboard/seconds"):
        found, expected = curves(tmp_path / "killed" / name), curves(tmp_path / "plain" / name)
        assert found == {tag: expected[tag] for tag in found}
        assert found.keys() == expected.keys()


def test_an_evaluation_that_is_done_again_is_drawn_once(tmp_path: Path):
    """The checkpoint after iteration 20 was made before the evaluation, and continued twice."""
    train(tmp_path, 0, 20, loss=2.0)
    for loss in (3.0, 4.0):
        train(tmp_path, 20, 22, loss=loss, evaluation_due=True)
    for name, steps in (("tensorboard", (10, 20, 22)), ("tensorboard/seconds", (3, 6, 6))):
        found = curves(tmp_path / name)
        assert found["val/top1"] == [(steps[0], 2), (steps[1], 4)]
        assert found["train/loss"][-2:] == [(steps[1], 2), (steps[2], 4)]


def test_what_comes_after_a_checkpoint_is_the_continued_runs(tmp_path: Path):
    train(tmp_path, 0, 18, loss=2.0, seconds=0.1)  # all but the last report in second 0
    train(tmp_path, 6, 14, loss=3.0, seconds=0.1)
    losses = [(2, 2), (4, 2), (6, 2), (8, 3), (10, 3), (12, 3), (14, 3)]
    assert curves(tmp_path / "tensorboard")["train/loss"] == losses
    found = curves(tmp_path / "tensorboard/seconds")["train/loss"]
    assert found == [(int(0.1 * step), loss) for step, loss in losses]
    records = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert [r["loss"] for r in records if r["type"] == "train"] == [loss for _, loss in losses]


def test_a_run_that_starts_over_draws_over_the_one_before(tmp_path: Path):
    train(tmp_path, 0, 40, loss=2.0)
    train(tmp_path, 0, 4, loss=3.0)
    for name, steps in (("tensorboard", (2, 4)), ("tensorboard/seconds", (0, 1))):
        assert curves(tmp_path / name)["train/loss"] == [(step, 3) for step in steps]


def test_what_a_recipe_does_not_have_is_not_drawn(tmp_path: Path):
    train(tmp_path, 0, 20, loss=2.0, bn_size=None, top1=None)
    for name in ("tensorboard", "tensorboard/seconds"):
        found = curves(tmp_path / name)
        assert not found.keys() & {"shape/bn_size", "train/top1", "val/top1"}
        assert found.keys() >= {"val/map", "train/loss", "shape/batch"}
