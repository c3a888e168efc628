"""What a training says of itself, in log, metrics.jsonl and TensorBoard, in a time made by hand."""

import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer
from torch import Tensor

from multigrid import Schedule, Shape, SteppedRate, make_schedule
from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.train.record import clock as clock_module
from slowfast_patches.train.record import record as record_module
from slowfast_patches.train.record.clock import Clock, Forecast
from slowfast_patches.train.record.record import Record
from slowfast_patches.train.step import Outcome
from slowfast_patches.utils.distributed import World

CPU, GPU = torch.device("cpu"), torch.device("cuda")
ADVICE = "buy a faster disk"
Curve = list[tuple[int, float]]


class Time:
    """Goes on when it is told to."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Time:
    """The time. Readers of events order files by their names, which hold the second and the
    process: those of runs that one process begins in one second are in no order."""
    caplog.set_level("INFO")
    seconds, made = itertools.count(1_000_000_000), Time()
    monkeypatch.setattr(event_file_writer, "time", SimpleNamespace(time=lambda: next(seconds)))
    monkeypatch.setattr(clock_module, "time", made)
    return made


def schedule(bn_size: int | None = 4) -> Schedule:
    """8 clips of 8 frames of 32²: 20 iterations of stage one, 20 of two, none of fine-tuning."""
    rate = SteppedRate((20.0, 40.0), (0.1, 0.01))
    return make_schedule(
        Shape(8, 8, 32), 8, rate, epoch_factor=1, long_cycle=(), short_cycle=(), bn_size=bn_size
    )


@pytest.fixture
def train(now: Time, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict]]:
    """`train(folder, start, stop, ...)`: a run from one iteration to another; its records.

    It is reported every second iteration and evaluated every tenth. `seconds(i)` are those of
    training and of loading of iteration i; `others` those of other ranks in each report.
    """

    def run(
        folder: Path,
        start: int = 0,
        stop: int = 40,
        *,
        seconds: Callable[[int], tuple[float, float]] = lambda i: (0.3, 0.0),
        others: Sequence[tuple[float, float]] = (),
        loss: float = 2.0,
        several: bool = False,
        bn_size: int | None = 4,
        evaluation_due: bool = False,
    ) -> list[dict]:
        def gather(total: Tensor) -> Tensor:
            for rank, spent in enumerate(others):
                total[2 * (rank - len(others)) :][:2] = torch.tensor(spent)
            return total

        folder.mkdir(exist_ok=True)
        recipe = default_recipe().replaced({"OUTPUT_DIR": str(folder)})
        plan, world = schedule(bn_size), World(0, 1 + len(others), CPU)
        monkeypatch.setattr(record_module, "sum_over_ranks", gather)
        record, clips = Record(recipe, world, plan, ADVICE), torch.arange(8)
        labels = torch.ones(8, 3) if several else (clips > 1).long()  # the first two are right
        outcome = Outcome(torch.tensor(loss * world.size), torch.eye(3)[[0] * 8], labels)
        record.clock.load({"training": start * seconds(start)[0]})
        record.done = start
        record.open(evaluation_due)
        if evaluation_due:
            evaluate(record, "map" if several else "top1", loss)
        with record.clock.time("training"):
            for step in plan.steps(start, stop):
                training, loading = seconds(step.iteration)
                with record.clock.wait(CPU):
                    now.now += loading
                if step.iteration in (start, 0, 20):
                    record.enter_phase(step)
                now.now += training
                record.add(step, outcome, [])
                if record.done % 2 == 0:
                    record.report(step)
                if record.done % 10 == 0:
                    evaluate(record, "map" if several else "top1", loss)
        record.close()
        return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

    def evaluate(record: Record, metric: str, value: float) -> None:
        with record.clock.time("evaluating"):
            now.now += 7
        found = {"iteration": record.done, "epoch": 1, "seconds": round(record.clock.working, 3)}
        record.evaluated({**found, metric: value}, {metric: value})

    return run


def of(kind: str, records: list[dict]) -> list[dict]:
    return [record for record in records if record["type"] == kind]


def said(caplog: pytest.LogCaptureFixture, level: str, beginning: str) -> list[str]:
    texts = [r.getMessage() for r in caplog.records if r.levelname == level]
    return [text for text in texts if text.startswith(beginning)]


# Waiting for data.


def test_each_phase_says_what_its_time_went_to(tmp_path, train, caplog):
    # 8 clips an iteration: 40 clips/s of training alone; the second phase waits as long again
    records = train(tmp_path, seconds=lambda i: (0.2, 0.2 * (i >= 20)))
    first, second = of("phase", records)
    assert (first["phase"], first["iteration"], first["iterations"]) == (0, 20, 20)
    assert (second["phase"], second["iteration"], second["clips"]) == (1, 40, 160)
    assert (first["seconds"], first["loading_share"]) == (pytest.approx(4), 0)
    assert (second["seconds"], second["loading_share"]) == (pytest.approx(8), 0.5)
    assert not [r for r in records if "worst_loading_share" in r]
    (text,) = said(caplog, "INFO", "training: 40 iterations took 12 s, 33 %")
    assert "reading gave 26.7 clips/s, training could take 40.0" in text
    (warning,) = said(caplog, "WARNING", "loading was the limit of phase 2 of 2")
    assert "waited 50 % of the time" in warning
    assert warning.endswith(ADVICE)


def test_the_first_mini_batch_of_a_run_is_no_evidence(tmp_path, train, caplog):
    records = train(tmp_path, seconds=lambda i: (1.0, 500.0 * (i == 0)))
    assert {r["loading_share"] for r in records if r["type"] != "val"} == {0}
    assert of("phase", records)[0]["seconds"] == pytest.approx(20)
    assert of("train", records)[-1]["seconds"] == pytest.approx(540)


def test_a_continued_run_reports_what_it_saw_and_each_phase_once(tmp_path, train):
    train(tmp_path, 0, 30, seconds=lambda i: (1.0, 0.0))
    first, second = of("phase", train(tmp_path, 25, seconds=lambda i: (1.0, 1.0)))
    assert (first["iteration"], first["iterations"]) == (20, 20)
    assert (second["iteration"], second["iterations"], second["clips"]) == (40, 15, 120)
    assert second["seconds"] == pytest.approx(15 + 14)  # the first of them as if it had not waited


def test_the_rank_that_waits_most_for_data_is_told(tmp_path, train, caplog):
    records = train(tmp_path, seconds=lambda i: (1.0, 0.0), others=[(1.5, 0.5), (1.8, 0.2)])
    shares = [r for r in records if r["type"] != "val"]
    assert {(r["worst_loading_share"], r["worst_loading_rank"]) for r in shares} == {(0.25, 1)}
    assert {r["loading_share"] for r in shares} == {0}
    assert {r["loss"] for r in of("train", records)} == {2.0}
    assert "rank 1 most with 25 %), 38 s left" in said(caplog, "INFO", "iteration 2/40")[0]
    warnings = said(caplog, "WARNING", "loading was the limit of phase")
    assert len(warnings) == 2
    assert all("rank 1 waited 25 % of the time" in text for text in warnings)


# What is left.


@pytest.fixture
def forecast() -> Forecast:
    """Of stage one, 4 iterations of 32 clips and 4 of 8, and fine-tuning, 8 of 8; all of equal
    pixels."""
    rate = SteppedRate((2.0, 4.0), (0.1, 0.01))
    cycle = {"long_cycle": ((0.25, 1.0), (1.0, 1.0)), "short_cycle": ()}
    plan = make_schedule(Shape(8, 16, 32), 56, rate, epoch_factor=1.0, **cycle)
    assert [(p.start, p.stop) for p in plan.phases] == [(0, 4), (4, 8), (8, 12), (12, 16)]
    return Forecast(plan)


def test_each_shape_counts_with_its_own_time(forecast: Forecast):
    forecast.observe(Shape(32, 4, 32), 3.0)
    assert forecast.remaining(2) == pytest.approx(14 * 3)  # equal pixels
    forecast.observe(Shape(8, 16, 32), 1.0)
    # 2 of the first phase at 3 s, then 12 at 1 s; the shape at hand is not extrapolated
    assert forecast.remaining(2) == pytest.approx(2 * 3 + 12 * 1)
    assert forecast.remaining(14) == pytest.approx(2)


# The clock.


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_gpu_that_still_computes_is_not_waiting(monkeypatch):
    monkeypatch.setattr(clock_module, "time", time)
    a = torch.randn(8192, 8192, device=GPU)
    (a @ a).sum().item()
    shares = []
    for products in (0, 200):
        clock = Clock()
        for _ in range(products):
            a @ a
        with clock.wait(GPU):
            time.sleep(0.05)
        torch.cuda.synchronize()
        shares.append(clock.seconds["loading"] / clock.working)
    assert shares[0] > 0.9
    assert shares[1] < 0.1


# TensorBoard.


def curves(folder: Path) -> dict[str, Curve]:
    """(step, value) of each scalar of a folder of events, as TensorBoard reads it."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, pytest.approx(event.value)) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_every_curve_is_there_over_iterations_and_over_seconds(tmp_path: Path, train):
    train(tmp_path, others=[(0.45, 0.15)])
    done = list(range(2, 41, 2))
    constant = {
        "train/loss": 2,
        "train/top1": 25,
        "train/loading_share": 0,
        "train/worst_loading_share": 0.25,
        "train/clips_per_second": 26.67,
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
    second = {step: 3 * step // 10 for step in done}
    assert curves(tmp_path / "tensorboard/seconds") == {
        tag: [(second[step], value) for step, value in curve] for tag, curve in expected.items()
    }


@pytest.mark.parametrize("start", [12, 14])
def test_a_continued_run_draws_nothing_twice_and_loses_nothing(tmp_path: Path, train, start: int):
    """From a checkpoint whose second has reports of before and after it, and from others."""
    train(tmp_path / "plain")
    train(tmp_path / "killed", 0, 25)
    train(tmp_path / "killed", start)
    for name in ("tensorboard", "tensorboard/seconds"):
        found, expected = curves(tmp_path / "killed" / name), curves(tmp_path / "plain" / name)
        assert found == {tag: expected[tag] for tag in found}
        assert found.keys() == expected.keys()


def test_an_evaluation_that_is_done_again_is_drawn_once(tmp_path: Path, train):
    """The checkpoint after iteration 20 was made before the evaluation, and continued twice."""
    train(tmp_path, 0, 20)
    for loss in (3.0, 4.0):
        train(tmp_path, 20, 22, loss=loss, evaluation_due=True)
    for name, steps in (("tensorboard", (10, 20, 22)), ("tensorboard/seconds", (3, 6, 6))):
        found = curves(tmp_path / name)
        assert found["val/top1"] == [(steps[0], 2), (steps[1], 4)]
        assert found["train/loss"][-2:] == [(steps[1], 2), (steps[2], 4)]


def test_what_a_recipe_does_not_have_is_not_drawn(tmp_path: Path, train):
    train(tmp_path, 0, 20, bn_size=None, several=True)
    for name in ("tensorboard", "tensorboard/seconds"):
        found = curves(tmp_path / name)
        assert not found.keys() & {"shape/bn_size", "train/top1", "val/top1"}
        assert found.keys() >= {"val/map", "train/loss", "shape/batch"}
