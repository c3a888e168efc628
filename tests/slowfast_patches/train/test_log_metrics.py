"""The log, metrics.jsonl and TensorBoard events of trainings with a fake clock."""

import itertools
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from multigrid import ScheduleStep, Shape, SteppedRate, make_schedule
from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.train.hooks import Validate
from slowfast_patches.train.record.log_metrics import LogMetrics, _keep_lines_until
from slowfast_patches.train.step import Outcome
from slowfast_patches.utils import clock as clock_module
from slowfast_patches.utils.clock import Clock
from slowfast_patches.utils.errors import explain_machine_error
from tests.conftest import without_times
from tests.slowfast_patches.train.conftest import At, die, train_without_model

GPU = torch.device("cuda")
RATE = SteppedRate((20.0, 40.0), (0.1, 0.01))
PLAN = make_schedule(Shape(8, 8, 32), 8, RATE, cycles=None, bn_group_size=4)
"""20 iterations with each of two rates, which are reported every second and evaluated every tenth
iteration."""
EVALUATED = (10, 20, 30, 40)
LABELS = torch.eye(3)[[0, 0, 1, 1, 1, 1, 1, 1]].lerp(torch.eye(3)[[2] * 8], 0.4)
OUTCOME = Outcome(torch.tensor(2.0), torch.eye(3)[[0] * 8], LABELS)
"""Of mixed labels the larger counts: the first two clips are right."""


class Time:
    """Goes on when it is told to."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def now(monkeypatch, caplog) -> Time:
    """The time. Readers of events order files by their names, which hold the second and the
    process: those of runs that one process begins in one second are in no order."""
    caplog.set_level("INFO")
    seconds, made = itertools.count(1_000_000_000), Time()
    monkeypatch.setattr(event_file_writer, "time", SimpleNamespace(time=lambda: next(seconds)))
    monkeypatch.setattr(clock_module, "time", made)
    return made


@pytest.fixture
def reported(now: Time, tmp_path: Path) -> Callable[..., list[dict]]:
    """`reported(start, stop, seconds=...)`: a run from one iteration to another; its records.

    `seconds(i)` are those of training and of loading of iteration i.
    """

    def run(start: int = 0, stop: int = 40, seconds=lambda i: (0.3, 0.0)) -> list[dict]:
        def spend(time: float) -> None:
            now.now += time

        def take_step(step: ScheduleStep) -> Outcome:
            spend(seconds(step.iteration)[0])
            return OUTCOME

        def validate(step: ScheduleStep) -> dict[str, float]:
            spend(7)
            return {"top1": 2.0}

        log = LogMetrics(
            default_recipe().replaced({"OUTPUT_DIR": str(tmp_path), "LOG_PERIOD": 2}), ()
        )
        train_without_model(
            *(PLAN, [log, Validate(EVALUATED, validate, log.log_evaluation), At(stop, die)]),
            *(start, take_step),
            wait=lambda i: spend(seconds(i)[1]),
            evaluated=EVALUATED,
            seconds=start * seconds(start)[0],
        )
        return [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]

    return run


# Waiting for data, and what is left.


def test_each_phase_says_what_its_time_went_to_and_each_report_what_is_left(reported, caplog):
    # 8 clips an iteration: 40 clips/s of training alone; the second phase waits as long again, the
    # first only for the mini-batch with which the run begins
    records = reported(seconds=lambda i: (0.2, 0.2 * (i >= 20) + 500 * (i == 0)))
    by_iteration = {r["iteration"]: r for r in records if r["type"] == "train"}
    first, second, last = (by_iteration[n] for n in (2, 22, 40))
    assert (first["clips_per_second"], first["loading_share"]) == (40, 0)
    assert (second["clips_per_second"], second["loading_share"]) == (20, 0.5)
    assert last["seconds"] == pytest.approx(512)
    assert [r["seconds_left"] for r in (first, second, last)] == pytest.approx([7.6, 7.2, 0])
    assert "phase 1 of 2: 20 iterations took 4 s, 0 % waiting for data" in caplog.text
    assert "phase 2 of 2: 20 iterations took 8 s, 50 % waiting for data" in caplog.text
    [warning] = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "limited the speed of phase 2 of 2" in warning


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


# Files.


def curves(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """(step, seconds, value) of each scalar, as TensorBoard reads it."""
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {
        tag: [(event.step, event.wall_time, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_a_continued_run_draws_and_writes_each_point_once(tmp_path, reported):
    whole = reported()
    found = curves(tmp_path)
    means = {"shape/batch": 8, "shape/frames": 8, "shape/crop": 32, "train/bn_group_size": 4}
    means |= {"train/loss": 2, "train/top1": 25, "train/loading_share": 0}
    for name, value in (means | {"train/clips_per_second": 26.67}).items():
        points = [(2 * n, 0.6 * n, value) for n in range(1, 21)]
        assert found[name] == [pytest.approx(point) for point in points]
    assert [v for _, _, v in found["train/lr"]] == pytest.approx([0.1] * 10 + [0.01] * 10)
    assert [step for step, _, _ in found["val/top1"]] == [10, 20, 30, 40]
    assert len(found) == 10

    reported(0, 25)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"type": "tra')  # as the run was killed
    records = reported(14)
    assert curves(tmp_path) == {
        tag: [pytest.approx(point) for point in points] for tag, points in found.items()
    }
    assert [(r["type"], r["iteration"]) for r in records] == [
        (r["type"], r["iteration"]) for r in whole
    ]


@pytest.mark.parametrize("bad", [b"\xff\xfe\n", b"17\n", b"{}\n", b'{"type": "tra\n', b"null\n"])
def test_damaged_lines_of_the_metrics_do_not_stop_a_resume(tmp_path, caplog, bad):
    def line(number: int) -> bytes:
        record = {"type": "train", "iteration": number, "epoch": 0.0, "seconds": 1.0}
        return json.dumps(record).encode() + b"\n"

    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line(1) + bad + line(2) + line(9) + b'{"type": "tr')
    _keep_lines_until(path, 5, 5)
    assert path.read_bytes() == line(1) + line(2)
    assert "1 damaged lines" in caplog.text


@pytest.mark.parametrize("space", [0, 700, 1111])
def test_a_full_disk_ends_the_run_with_the_name_of_the_file_and_loses_no_line(
    tmp_path, reported, monkeypatch, space
):
    """The disk is full in the middle of a line. Then there is space again, and the run resumes."""
    no_events = SimpleNamespace(add_scalar=lambda *_: None, close=lambda: None)
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", lambda *_, **__: no_events)
    path = tmp_path / "metrics.jsonl"
    whole = reported()
    lines = path.read_bytes().splitlines(keepends=True)
    path.unlink()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (space, limits[1]))
        with pytest.raises(OSError, match="File too large") as failed:
            reported()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = explain_machine_error(failed.value)
    assert str(path) in said
    assert "Raise it with ulimit -f" in said
    assert b"".join(lines)[:space] == path.read_bytes()
    lines_left = path.read_bytes().count(b"\n")
    last_checkpoint = 2 * max(0, lines_left - 1)
    assert without_times(reported(last_checkpoint)) == without_times(whole)
