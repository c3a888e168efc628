"""Times of training steps with a clock that is told what time it is."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import pytest
import torch

from multigrid import ScheduleStep, Shape
from slowfast_patches.train import step_timer
from slowfast_patches.train.step_timer import StepClock, Timed, time_step, time_steps, timed_step
from slowfast_patches.utils.errors import UserError
from tests.slowfast_patches.train.test_stepper import config

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SMALL, LARGE = Shape(8, 4, 16), Shape(16, 2, 16)


@pytest.fixture(autouse=True)
def graphs(monkeypatch) -> list[int]:
    """Return the numbers of graphs that were expected. The compiler takes seconds to import."""
    expected = list[int]()
    monkeypatch.setattr(step_timer, "expect_graphs", expected.append)
    return expected


class Event:
    """Stands in for a CUDA event, which knows the milliseconds at which it was recorded."""

    made: ClassVar[list[Event]] = []
    now = 0.0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing, "an event without timing has no elapsed time"
        self.at: float | None = None
        Event.made.append(self)

    def record(self) -> None:
        Event.now += 1000.0 * len(Event.made)
        self.at = Event.now

    def elapsed_time(self, later: Event) -> float:
        return later.at - self.at


def test_times_of_parts_on_the_cpu_by_hand():
    """Forward of 2 and 4 s, backward of 3 and 5 s, and a gap of 1 s add up to 15 s in 2 steps."""
    times = iter([10.0, 12.0, 15.0, 16.0, 20.0, 25.0])
    clock = StepClock(CPU, lambda: next(times))
    for _ in range(2):
        clock.start()
        clock.mark("forward")
        clock.mark("backward")
    found = clock.read()
    assert found == Timed(7.5, {"forward": 3.0, "backward": 4.0})
    assert list(found.parts) == ["forward", "backward"]


def test_a_part_that_is_marked_twice_in_a_step_is_one_part():
    """As with micro-batches: forward of 1 + 2 s, backward of 4 + 8 s."""
    times = iter([0.0, 1.0, 5.0, 7.0, 15.0])
    clock = StepClock(CPU, lambda: next(times))
    clock.start()
    for _ in range(2):
        clock.mark("forward")
        clock.mark("backward")
    assert clock.read() == (15.0, {"forward": 3.0, "backward": 12.0})


def test_times_on_a_gpu_are_those_between_events_in_seconds(monkeypatch):
    """The events of two steps are recorded after 1, 3, 6 and 10 s."""
    monkeypatch.setattr(Event, "made", [])
    monkeypatch.setattr(Event, "now", 0.0)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    clock = StepClock(GPU)
    for _ in range(2):
        clock.start()
        clock.mark("all")
    assert clock.read() == (4.5, {"all": 3.0})
    assert len(Event.made) == 4


@pytest.mark.parametrize(("device", "waits"), [(CPU, 0), (GPU, 2)])
def test_a_step_is_repeated_between_two_waits_for_the_gpu(monkeypatch, device, waits):
    calls = list[object]()
    times = iter(range(100))
    clock = partial(StepClock, now=lambda: float(next(times)))
    monkeypatch.setattr(step_timer, "StepClock", lambda _: clock(CPU))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda of: calls.append(of.type))
    step, batch = timed_step(SMALL, 8, None), object()

    def take(*given: object, mark: step_timer.Mark) -> None:
        assert given == (step, batch)
        calls.append("step")
        mark("forward")
        mark("optimizer")

    found = time_step(take, step, batch, 3, device)
    assert found == ((9 - 1) / 3, {"forward": 1.0, "optimizer": 1.0})
    assert calls == ["cuda"] * (waits // 2) + ["step"] * 3 + ["cuda"] * (waits // 2)


def test_a_timed_step_has_a_rate_that_changes_little_and_groups_within_its_clips():
    step = timed_step(SMALL, 4, 8)
    assert step == ScheduleStep(0, 0, SMALL, 1e-4, 4, 0, 0.0)
    assert timed_step(SMALL, 8, 4).bn_group_size == 4
    assert timed_step(SMALL, 4, None).bn_group_size is None


class Steps:
    """Stands in for a stepper of two processes, and notes the steps."""

    recipe = config(NUM_SHARDS=2)
    device = CPU

    def __init__(self, error: Exception | None = None) -> None:
        self.calls, self.error = list[Any](), error

    def __call__(self, step, batch, mark=lambda part: None) -> None:
        if self.error is not None:
            raise self.error
        assert batch["clips"].shape[:2] == (step.shape.batch // 2, step.shape.frames)
        self.calls.append((step.shape, step.bn_group_size))
        mark("optimizer")


def test_shapes_take_turns_after_an_untimed_step_and_the_median_counts(monkeypatch, graphs):
    kinds, timed = [(SMALL, 2), (LARGE, 8), (LARGE, None)], list[Any]()
    # Two rounds of three kinds.
    seconds = iter([1.0, 2.0, 3.0, 5.0, 8.0, 13.0])
    stepper = Steps()

    def time_step(take, step, batch, iterations, device) -> Timed:
        assert (take, iterations, device) == (stepper, 3, CPU)
        assert stepper.calls[-1] == (step.shape, step.bn_group_size)
        timed.append((step.shape, step.bn_group_size))
        return Timed(next(seconds), {})

    monkeypatch.setattr(step_timer, "time_step", time_step)
    found = time_steps(stepper, kinds)
    assert timed == stepper.calls == [*kinds, *kinds]
    assert found == {kinds[0]: 3.0, kinds[1]: 5.0, kinds[2]: 8.0}
    assert graphs == [6], "a graph for the warm-up of each, and one more where sizes differ"


def test_four_steps_of_a_shape_a_round_are_really_taken():
    stepper = Steps()
    found = time_steps(stepper, [(SMALL, 2)])
    assert stepper.calls == [(SMALL, 2)] * 8
    assert 0 < found[SMALL, 2] < 5


def test_a_shape_that_does_not_fit_is_named():
    error = RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
    with pytest.raises(UserError, match=r"The shape 8×4×16² does not fit into the memory of cpu"):
        time_steps(Steps(error), [(SMALL, 2)])


def test_a_gpu_is_waited_for_and_a_cpu_is_not(monkeypatch):
    calls = list[object]()
    monkeypatch.setattr(torch.cuda, "synchronize", calls.append)
    step_timer.wait_for(CPU)
    assert calls == []
    step_timer.wait_for(GPU)
    assert calls == [GPU]
