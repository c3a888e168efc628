"""Reports of a training by hand: what counts, what is logged, what is written and what is drawn."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.train.record import log, log_metrics
from slowfast_patches.train.record import progress_bar as bars
from slowfast_patches.train.record.log_metrics import (
    LogMetrics,
    _keep_lines_until,
    _Spent,
    curves,
    record_of,
)
from slowfast_patches.train.record.progress_bar import ProgressBar
from slowfast_patches.train.step import Outcome
from slowfast_patches.train.trainer import Progress
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.errors import RunError
from tests.conftest import kept_logging
from tests.slowfast_patches.train.conftest import ALONE
from tests.slowfast_patches.train.test_trainer import plan

CPU = torch.device("cpu")
SECOND = World(1, 2, CPU)
RIGHT = torch.eye(4)[[0] * 8]


class Ticks:
    """A clock that is told its seconds."""

    def __init__(self) -> None:
        self.seconds = {"training": 0.0, "loading": 0.0}

    @property
    def working(self) -> float:
        return sum(self.seconds.values())


class Events(list):
    """Stands in for a writer of TensorBoard events."""

    def add_scalar(self, *given: object) -> None:
        self.append(given)

    def close(self) -> None:
        self.append("closed")


class Lines(io.StringIO):
    """A file in memory that is not emptied when it is closed."""

    def close(self) -> None:
        self.write("closed")


class Reported:
    """A training of `plan()` that is only reported: 8 iterations of 8 clips in two phases."""

    def __init__(
        self, tmp_path: Any, world: World = ALONE, after: Any = (), **keys: object
    ) -> None:
        given = {name.replace("__", "."): value for name, value in keys.items()}
        recipe = default_recipe().replaced({"OUTPUT_DIR": str(tmp_path), "LOG_PERIOD": 2} | given)
        self.hook = LogMetrics(recipe, after)
        self.lines, self.events = Lines(), Events()
        if world.is_main:
            self.hook._files = (self.lines, self.events)
        self.clock = Ticks()
        self.hook._seconds = dict(self.clock.seconds)
        self.trainer: Any = SimpleNamespace(
            world=world,
            clock=self.clock,
            schedule=plan(),
            progress=Progress(),
            stop=StopRequest(ALONE),
            should_save=False,
            should_stop=False,
        )

    def step(
        self, loss: float = 2.0, training: float = 1.0, loading: float = 0.0, **more: Any
    ) -> None:
        """Report an iteration, in which two clips are right."""
        seconds = self.clock.seconds
        self.clock.seconds = {
            "training": seconds["training"] + training,
            "loading": seconds["loading"] + loading,
        }
        step = self.trainer.schedule.at(self.trainer.progress.iteration)
        self.trainer.progress.iteration += 1
        labels = torch.tensor([0, 0, 1, 1, 1, 1, 1, 1])
        self.hook.after_step(self.trainer, step, Outcome(torch.tensor(loss), RIGHT, labels, **more))

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines.getvalue().splitlines()]


@pytest.fixture(autouse=True)
def _logged(caplog) -> None:
    caplog.set_level(logging.INFO)


# What is counted.


def test_the_share_of_loading_is_that_of_the_slowest_process(monkeypatch):
    assert _Spent(3, 24, 3.0, 1.0).seconds == 4.0
    assert _Spent(3, 24, 3.0, 1.0).loading_share(CPU) == 0.25
    assert _Spent(3, 24, 2.0, 1.0).loading_share(CPU) == 0.3333
    assert _Spent().loading_share(CPU) == 0.0
    assert _Spent(1, 8, 0.375, 0.125).loading_share(CPU) == 0.25, "also of less than a second"
    monkeypatch.setattr(log_metrics, "max_over_ranks", lambda share: share + 0.5)
    assert _Spent(3, 24, 3.0, 1.0).loading_share(CPU) == 0.75


def test_a_report_is_of_the_iterations_since_the_one_before(tmp_path, caplog):
    """The wait for the first mini-batch is left out: every run has it."""
    run = Reported(tmp_path)
    run.step(loss=1.0, training=1.0, loading=100.0)
    assert run.records == []
    run.step(loss=2.0, training=2.0, loading=1.0, resampled=3)
    run.step(loss=5.0, training=4.0, loading=0.0)
    run.step(loss=7.0, training=3.0, loading=1.0)
    first, second = run.records
    assert first == {
        "type": "train",
        "iteration": 2,
        "epoch": 0.5,
        "phase": 0,
        "shape": [8, 4, 16],
        "lr": 0.1,
        "bn_group_size": 4,
        "loss": 1.5,
        "top1": 25.0,
        "resampled": 3,
        "clips_per_second": 4.0,
        "loading_share": 0.25,
        "seconds": 104.0,
        "seconds_left": 12.0,
    }
    expected = {"iteration": 4, "loss": 6.0, "clips_per_second": 2.0, "loading_share": 0.125}
    expected |= {"seconds": 112.0, "seconds_left": 12.0, "epoch": 1.5}
    assert {name: second[name] for name in expected} == expected
    assert "resampled" not in second
    assert run.hook.latest == ", loss 6.0000, LR 0.1"
    assert (
        "iteration 2/8 epoch 0.50 phase 1/2 8×4×16² LR 0.1 loss 1.5000 top-1 25.0 4.0 clips/s "
        "(25 % waiting for data), 12 s left" in caplog.text
    )
    assert [hasattr(r, "is_on_bar") for r in caplog.records if "clips/s" in r.getMessage()] == [
        True,
        True,
    ]


def test_numbers_of_a_report_are_rounded(tmp_path, monkeypatch):
    """The other process has one right clip more, so that 7 of 24 are right."""
    monkeypatch.setattr(
        log_metrics,
        "sum_over_ranks",
        lambda total: torch.stack([total[0], total[1] + torch.tensor([1, 0, 0]), total[2]]),
    )
    run = Reported(tmp_path, LOG_PERIOD=3)
    run.trainer.schedule = plan(videos=24)
    for _ in range(3):
        run.step(loss=1.23456789, training=1.23789)
    (record,) = run.records
    expected = {"loss": 1.234568, "top1": 29.167, "epoch": 0.6667, "seconds": 3.714}
    # 24 clips in 3.71367 s are 6.4626 in a second, and 9 iterations of 1.23789 s take 11.141 s.
    expected |= {"clips_per_second": 6.46, "seconds_left": 11.1}
    assert {name: record[name] for name in expected} == expected


def test_the_speed_of_less_than_a_second_is_that_of_a_second(tmp_path):
    run = Reported(tmp_path)
    run.step(training=0.125)
    run.step(training=0.125)
    assert run.records[0]["clips_per_second"] == 64.0


@pytest.mark.parametrize("asked", ["should_save", "should_stop"])
def test_a_report_is_due_by_its_period_where_it_is_scheduled_and_where_it_is_asked_for(
    tmp_path, asked
):
    run = Reported(tmp_path, after={3}, LOG_PERIOD=4)
    for number in range(1, 9):
        setattr(run.trainer, asked, number == 5)
        run.step()
    assert [record["iteration"] for record in run.records] == [3, 4, 5, 8]


def test_the_loss_of_several_processes_is_their_mean(tmp_path, monkeypatch):
    """The other process has the same loss and three right clips more in an iteration."""
    monkeypatch.setattr(
        log_metrics,
        "sum_over_ranks",
        lambda total: torch.stack([2 * total[0], 2 * total[1] + 3, total[2] + 1]),
    )
    run = Reported(tmp_path, World(0, 2, CPU))
    run.step(loss=1.0)
    run.step(loss=3.0)
    (record,) = run.records
    # Of 16 clips, 2 × 2 + 3 are right in each of two iterations.
    assert (record["loss"], record["top1"], record["resampled"]) == (2.0, 87.5, 2)


def test_a_task_without_an_accuracy_reports_none(tmp_path, caplog):
    run = Reported(tmp_path)
    run.hook._task = SimpleNamespace(count_right=lambda *_: torch.tensor(torch.nan))
    run.step()
    run.step()
    assert "top1" not in run.records[0]
    assert "loss 2.0000 8.0 clips/s" in caplog.text


def test_other_processes_reduce_and_write_nothing(tmp_path):
    run = Reported(tmp_path, SECOND)
    run.hook.before_train(run.trainer)
    run.step()
    run.step()
    run.hook.after_test(run.trainer, {"top1": 1.0})
    run.hook.after_train(run.trainer)
    assert list(tmp_path.iterdir()) == []
    assert run.lines.getvalue() == ""


# Phases.


def test_each_phase_is_announced_at_its_start_and_timed_at_its_end(tmp_path, caplog):
    """The first phase has six iterations."""
    run = Reported(tmp_path, LOG_PERIOD=1)
    for _ in range(8):
        run.step(training=1.5, loading=0.5)
    said = [record.getMessage() for record in caplog.records]
    starts = [text for text in said if text.startswith("phase") and "; LR" in text]
    assert [text.split(":")[0] for text in starts] == ["phase 1 of 2", "phase 2 of 2"]
    assert starts[0].endswith("; LR 0.1, BN over 4 clips")
    assert starts[1].endswith("; LR 0.01, BN over 4 clips")
    ends = [text for text in said if "iterations took" in text]
    assert ends == [
        "phase 1 of 2: 6 iterations took 11.5 s, 22 % waiting for data",
        "phase 2 of 2: 2 iterations took 4 s, 25 % waiting for data",
    ]
    (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "the speed of phase 1 of 2. Prepare" in warning
    assert f"NUM_WORKERS ({default_recipe().data_loader.num_workers})" in warning
    assert said.index(starts[1]) > said.index(ends[0])


def test_a_resumed_run_announces_the_phase_in_which_it_is(tmp_path, caplog):
    run = Reported(tmp_path, LOG_PERIOD=1)
    run.trainer.progress.iteration = 3
    for _ in range(3):
        run.step()
    assert caplog.text.count("phase 1 of 2: iterations 0 to 6: 8×4×16²; LR 0.1, BN over") == 1
    assert "phase 1 of 2: 3 iterations took 3 s" in caplog.text


@pytest.mark.parametrize(
    ("training", "loading", "warned"),
    [(17.0, 3.0, False), (16.9, 3.1, True), (2.5, 2.5, False), (2.5, 2.6, True), (9.0, 0.0, False)],
)
def test_waiting_for_data_is_warned_about_from_a_share_and_a_time_on(
    tmp_path, caplog, training, loading, warned
):
    run = Reported(tmp_path)
    run.hook._phase_spent = _Spent(6, 48, training, loading)
    run.hook._log_time_of_phase(run.trainer, run.trainer.schedule.at(0))
    assert ("Data loading limited" in caplog.text) == warned


def test_a_model_without_batch_normalisation_has_no_groups_and_keys_are_those_that_change(
    tmp_path, caplog, monkeypatch
):
    """The second phase is compared with the last iteration before it."""
    run = Reported(tmp_path)
    run.hook._recipe = SimpleNamespace(model=SimpleNamespace(has_batchnorm=False))
    monkeypatch.setattr(log_metrics, "changed_keys", lambda *given: f"KEY {given[2:]}")
    for number in (0, 7):
        run.hook._log_phase(run.trainer, run.trainer.schedule.at(number))
    assert "BN over" not in caplog.text
    assert [text.split("KEY ")[1] for text in caplog.messages if "KEY" in text] == [
        "(0, None)",
        "(6, 5)",
    ]
    caplog.clear()
    monkeypatch.setattr(log_metrics, "changed_keys", lambda *given: "")
    run.hook._log_phase(run.trainer, run.trainer.schedule.at(7))
    assert len(caplog.messages) == 1


# Files.


def test_a_validation_and_a_test_are_written_and_said(tmp_path, caplog, monkeypatch):
    run = Reported(tmp_path)
    entry = {"iteration": 4, "epoch": 2.0, "seconds": 3.0, "top1": 50.0, "loss": 1.0}
    run.hook.log_evaluation(entry)
    assert run.records == [{"type": "val", **entry}]
    assert set(run.events) == {("val/top1", 50.0, 4, 3.0), ("val/loss", 1.0, 4, 3.0)}
    assert "validation after iteration 4 (epoch 2.00): top-1 50.00, loss 1.00" in caplog.text
    opened = list[object]()
    monkeypatch.setattr(run.hook, "_open", opened.append)
    run.trainer.progress.iteration = 8
    run.trainer.schedule = plan(videos=24)
    run.clock.seconds = {"training": 2.0, "loading": 0.12345}
    run.hook.after_test(run.trainer, {"top1": 33.333333, "videos": 9})
    assert opened == [run.trainer]
    last = run.lines.getvalue().splitlines()[1].removesuffix("closed")
    assert json.loads(last) == {
        "type": "test",
        "iteration": 8,
        "epoch": 2.3333,
        "seconds": 2.123,
        "top1": 33.3333,
        "videos": 9,
    }
    assert run.events[-1] == "closed"
    assert run.lines.getvalue().endswith("closed")


def test_lines_are_in_the_file_at_once_and_events_of_an_earlier_attempt_are_purged(
    tmp_path, monkeypatch
):
    opened, events = list[Any](), Events()
    writer = SimpleNamespace(
        SummaryWriter=lambda folder, purge_step: opened.append((folder, purge_step)) or events
    )
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", writer)
    old = {"type": "train", "epoch": 0, "seconds": 0}
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({**old, "iteration": n}) + "\n" for n in (1, 2, 3)))
    run = Reported(tmp_path, LOG_PERIOD=1)
    run.trainer.progress.iteration = 2
    run.clock.seconds = {"training": 50.0, "loading": 1.0}
    run.hook.before_train(run.trainer)
    assert opened == [(str(tmp_path / "tensorboard"), 3)]
    run.step(training=2.0)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["iteration"] for record in records] == [1, 2, 3]
    assert records[2]["clips_per_second"] == 4.0, "the seconds before the resume do not count"
    run.hook.after_train(run.trainer)
    assert events[-1] == "closed"
    with pytest.raises(ValueError, match="closed file"):
        run.hook.log_evaluation({"iteration": 3, "epoch": 1.5, "seconds": 1.0})


def test_what_is_drawn_of_a_record():
    record = {"type": "train", "iteration": 3, "epoch": 1.0, "seconds": 2.0, "phase": 0}
    record |= {
        "seconds_left": 1.0,
        "shape": [8, 4, 16],
        "loss": 2.0,
        "bn_group_size": None,
        "videos": 9,
    }
    assert curves(record) == {
        "train/loss": 2.0,
        "shape/batch": 8,
        "shape/frames": 4,
        "shape/crop": 16,
    }
    assert curves({"type": "val", "iteration": 3, "top1": 0.0}) == {"val/top1": 0.0}


def test_what_is_a_record():
    whole = {"type": "a", "iteration": 1, "epoch": 0.0, "seconds": 2.0}
    assert record_of(json.dumps(whole).encode()) == whole
    for name in whole:
        lacking = {key: value for key, value in whole.items() if key != name}
        assert record_of(json.dumps(lacking).encode()) is None
    for line in (b"", b"[1]", b'"type"', b"\xff"):
        assert record_of(line) is None


def test_which_lines_a_resumed_run_keeps(tmp_path, caplog):
    """A validation after the last checkpoint is repeated, and so is the test."""
    path = tmp_path / "metrics.jsonl"
    _keep_lines_until(path, 4, 2)
    assert path.read_bytes() == b""

    def line(kind: str, iteration: int) -> str:
        return json.dumps({"type": kind, "iteration": iteration, "epoch": 0, "seconds": 0})

    kept = [line("train", 2), line("val", 2), line("train", 4), line("other", 4)]
    gone = [line("val", 4), line("train", 5), line("test", 0), line("test", 4), line("other", 5)]
    path.write_text("\r\n".join([*kept[:2], *gone, *kept[2:]]))
    _keep_lines_until(path, 4, 2)
    assert path.read_text().splitlines() == kept
    assert path.read_text().endswith("\n")
    assert caplog.text == ""
    path.write_text("\n".join([kept[0], "damaged", kept[1], "damaged", "torn"]))
    _keep_lines_until(path, 4, 2)
    assert f"2 damaged lines of {path} are removed." in caplog.text


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    run = Reported(tmp_path)

    def fail(text: str) -> None:
        raise PermissionError(13, "Permission denied")

    run.lines.write = fail
    run.step()
    with pytest.raises(RunError, match=rf"^{tmp_path}/metrics\.jsonl cannot be written"):
        run.step()


# The bar and the terminal.


class Bar(SimpleNamespace):
    """Notes what a bar of tqdm would show."""

    def __getattr__(self, name: str) -> Any:
        def note(*given: object, refresh: bool = False) -> None:
            assert not refresh, "the next update draws the bar"
            self.calls.append((name, *given))

        return note

    def update(self, count: int) -> None:
        self.n += count


def test_a_bar_shows_where_the_training_is_and_closes_before_a_validation(tmp_path, monkeypatch):
    made = list[Any]()

    def terminal_bar(name: str, total: int, done: int, *, is_main: bool) -> Bar:
        made.append(Bar(given=(name, total, done, is_main), n=done, calls=[]))
        return made[-1]

    monkeypatch.setattr(bars, "terminal_bar", terminal_bar)
    trainer: Any = SimpleNamespace(schedule=plan(), world=SECOND, progress=Progress(iteration=3))
    hook = ProgressBar(SimpleNamespace(latest=", loss 1"), closes_after={5})
    hook.after_train(trainer)
    for done in range(4, 8):
        trainer.progress.iteration = done
        hook.after_step(trainer, trainer.schedule.at(done - 1), None)
    first, second = made
    assert first.given == ("phase 1/2", 8, 4, False)
    assert second.given == ("phase 1/2", 8, 6, False)
    assert (first.n, second.n) == (5, 7)
    assert first.calls[-1] == ("close",)
    assert ("set_postfix_str", "8×4×16², loss 1") in first.calls
    assert ("set_description_str", "phase 2/2") in second.calls
    assert ("close",) not in second.calls
    hook.after_train(trainer)
    hook.after_train(trainer)
    assert second.calls.count(("close",)) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("terminal", "variable", "shown"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_bars_are_for_terminals(monkeypatch, terminal, variable, shown):
    monkeypatch.setattr(sys, "stderr", Terminal() if terminal else io.StringIO())
    monkeypatch.setenv("TQDM_DISABLE", variable)
    assert bool(log.shows_bars()) is shown
    for is_main in (True, False):
        bar = log.terminal_bar("name", 8, 3, is_main=is_main)
        assert bar.disable is not (shown and is_main)
        if not bar.disable:
            assert (bar.total, bar.n, bar.leave) == (8, 3, False)
            assert bar.desc.startswith("name")
            assert bar.dynamic_ncols, "it follows the width of the terminal"
            assert 0 < bar.smoothing < 1, "tqdm takes the share of the newest speed"
        bar.close()


def test_lines_about_iterations_are_on_the_terminal_where_there_is_no_bar(monkeypatch):
    for terminal, counts in ((Terminal(), (0, 1)), (io.StringIO(), (1, 1))):
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.delenv("TQDM_DISABLE", raising=False)
        handler = log._Terminal()
        for text, extra in (("an iteration", {"is_on_bar": True}), ("a phase", {})):
            record = logging.makeLogRecord({"msg": text, **extra})
            handler.handle(record)
        said = terminal.getvalue()
        assert (said.count("an iteration"), said.count("a phase")) == counts


def test_a_worker_does_not_touch_the_bar(monkeypatch):
    used = list[object]()
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    handler = log._Terminal()
    real = log.tqdm.external_write_mode
    monkeypatch.setattr(
        log.tqdm, "external_write_mode", lambda file: used.append(file) or real(file)
    )
    handler.emit(logging.makeLogRecord({"msg": "a"}))
    assert used == [handler.stream]
    monkeypatch.setattr(os, "getpid", lambda: -1)
    handler.emit(logging.makeLogRecord({"msg": "b"}))
    assert len(used) == 1
    assert handler.stream.getvalue() == "a\nb\n"


def test_the_files_of_a_test_have_names_of_their_own(tmp_path):
    with kept_logging():
        for world in (ALONE, SECOND):
            log.setup_logging(str(tmp_path), world, "test")
        assert logging.getLogger("fvcore").level == logging.WARNING
        assert logging.getLogger().level == logging.INFO
        assert logging.raiseExceptions is False
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.log"))
    assert found == ["logs/test_rank_0001.log", "test.log"]


def test_a_main_process_that_cannot_write_its_log_ends(tmp_path):
    (tmp_path / "out").touch()
    with kept_logging(), pytest.raises(RunError, match=r"^OUTPUT_DIR .*train\.log cannot be"):
        log.setup_logging(str(tmp_path / "out"), ALONE)
