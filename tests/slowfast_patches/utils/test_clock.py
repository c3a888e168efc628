"""The clock of a run, with a fake time, and how durations are written."""

from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch

from slowfast_patches.utils import clock as clock_module
from slowfast_patches.utils.clock import Clock, format_duration

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def time(monkeypatch):
    """The time, which goes on when `now` is increased."""
    made = SimpleNamespace(now=100.0)
    made.perf_counter = lambda: made.now
    monkeypatch.setattr(clock_module, "time", made)
    return made


def test_each_activity_has_its_own_seconds_and_an_inner_one_is_not_counted_twice(time):
    clock = Clock()
    time.now += 1000  # before the first activity
    with clock.time("training"):
        time.now += 3
        with clock.time("saving"):
            time.now += 2
            assert clock.seconds["saving"] == 2
        time.now += 5
    time.now += 1000
    with clock.wait(CPU):
        time.now += 7
    spent = {name: value for name, value in clock.seconds.items() if value}
    assert spent == {"training": 8, "saving": 2, "loading": 7}
    assert clock.seconds.keys() >= {"preparing", "evaluating", "testing"}
    assert clock.working == 15


def test_an_activity_ends_with_an_error_and_a_resumed_run_adds_to_the_seconds(time):
    clock = Clock()
    clock.load({"training": 50.0, "saving": 1.0})
    with suppress(OSError), clock.time("saving"):
        time.now += 2
        raise OSError("full")
    time.now += 9
    with clock.time("training"):
        time.now += 4
    assert (clock.seconds["saving"], clock.seconds["training"]) == (3, 54)
    found = clock.seconds
    found["training"] = 0.0
    assert clock.seconds["training"] == 54, "the caller gets a copy"


class Event:
    """Mark on a GPU that has computed until `done`, seconds of the fake time."""

    def __init__(self, time, done):
        self.time, self.done = time, done
        self.at = time.now
        self.is_known = False

    def query(self):
        return self.time.now >= self.done

    def record(self):
        self.at = self.time.now

    def synchronize(self):
        self.is_known = True

    def elapsed_time(self, other):
        assert other.is_known, "the times of events are not known before"
        return 1000 * (other.at - max(self.at, self.done))


@pytest.mark.parametrize(
    ("busy", "loading", "training"),
    [
        (0, 10, 0),  # The GPU has nothing to do for all 10 s.
        (4, 6, 4),  # It computes for 4 s of them.
        (10, 0, 10),
        (25, 0, 10),  # It still computes at the end.
    ],
)
def test_a_wait_in_which_the_gpu_computes_is_training(time, monkeypatch, busy, loading, training):
    done = time.now + busy

    def event(*, enable_timing):
        assert enable_timing, "torch cannot tell the time between other events"
        return Event(time, done)

    monkeypatch.setattr(torch.cuda, "Event", event)
    clock = Clock()
    clock.load({"loading": 100.0, "training": 200.0})
    with clock.wait(GPU):
        time.now += 10
    assert clock.seconds["loading"] == pytest.approx(100 + loading)
    assert clock.seconds["training"] == pytest.approx(200 + training)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0123, "0.0123 s"),
        (42.54, "42.5 s"),
        (99.96, "100 s"),
        (119.9, "120 s"),
        (120, "2 min"),
        (421, "7.02 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (9000, "2.5 h"),
        (3600 * 1240, "1,240 h"),
    ],
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text
