"""Fixtures: programs of benchmarks/, and a fake clock."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from steps import rates
from steps.case import Steps

from slowfast_patches.train.step_timer import Timed

SECONDS = Callable[[Steps], float]


@pytest.fixture
def step_time(load_program: Callable[[str], ModuleType]) -> ModuleType:
    return load_program("benchmarks/step_time.py")


@pytest.fixture
def clock_says(monkeypatch: pytest.MonkeyPatch) -> Callable[[SECONDS], None]:
    """Return a function that fakes the times of steps.

    After `clock_says(seconds)`, a step of a bench takes `seconds(bench)`, three quarters of it in
    backward. If that is infinite, the step runs out of memory. A product of 512² matrices takes
    0.25 s.
    """

    def install(seconds: SECONDS) -> None:
        def time(self: Steps, step: object, batch: object, iterations: int) -> Timed:
            took = seconds(self)
            if took == float("inf"):
                raise torch.OutOfMemoryError("made up")
            return Timed(took, {"forward": 0.25 * took, "backward": 0.75 * took})

        monkeypatch.setattr(Steps, "time", time)
        monkeypatch.setattr(rates, "seconds_of", lambda action, device: 0.25)

    return install
