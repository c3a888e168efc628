"""The progress bar on a terminal."""

import io
import re
import sys
import time
from pathlib import Path

import torch

from multigrid import ScheduleStep, Shape, SteppedRate, make_schedule
from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.train.record.log import setup_logging
from slowfast_patches.train.record.log_metrics import LogMetrics
from slowfast_patches.train.record.progress_bar import ProgressBar
from slowfast_patches.train.step import Outcome
from tests.conftest import Folder, kept_logging
from tests.slowfast_patches.train.conftest import ALONE, At, die, train_without_model

PLAN = make_schedule(Shape(4, 8, 32), 24, SteppedRate((1.0,), (0.1,)), cycles=None, bn_group_size=4)
"""6 iterations."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """Return what a terminal shows after it has overwritten what \\r goes back to."""
        lines = []
        for line in self.getvalue().split("\n"):
            shown = ""
            for text in line.split("\r"):
                shown = text + shown[len(text) :]
            lines.append(shown.rstrip())
        return list(filter(None, lines))


def train(folder: Path, start: int, stop: int) -> None:
    """Train, reporting every second iteration. Bars are drawn ten times a second at most."""

    def take_step(step: ScheduleStep) -> Outcome:
        time.sleep(0.12)
        return Outcome(torch.tensor(1.0), torch.eye(4), torch.arange(4))

    with kept_logging():
        setup_logging(str(folder), ALONE)
        recipe = default_recipe().replaced({"OUTPUT_DIR": str(folder), "LOG_PERIOD": 2})
        log = LogMetrics(recipe, ())
        hooks = [log, ProgressBar(log, closes_after=()), At(stop, die)]
        train_without_model(PLAN, hooks, start, take_step)


def test_on_a_terminal_a_bar_shows_the_iterations_and_leaves_the_log_whole(tmp_path, monkeypatch):
    first, second = Terminal(), Terminal()
    for terminal, start, stop in ((first, 0, 5), (second, 4, 6)):
        monkeypatch.setattr(sys, "stderr", terminal)
        train(tmp_path, start, stop)
    bar = r"phase 1/1 67%\|.* 4/6 \[\S+ left, +\S+, 4×8×32², loss 1.0000, LR 0.1"
    assert re.search(bar, first.getvalue())
    assert re.search(r"phase 1/1 83%\|.* 5/6 \[", second.getvalue())
    assert " 4/6 [" not in second.getvalue(), "it goes on where the training does"
    for terminal in (first, second):
        assert all(re.match(r"\d\d:\d\d:\d\d \w+ \S", line) for line in terminal.lines())
        assert "INFO iteration" not in terminal.getvalue()
    folder = Folder(tmp_path)
    assert folder.log.count("INFO iteration") == len(folder.metrics()) == 3
