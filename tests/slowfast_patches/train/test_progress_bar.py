"""The progress bar on a terminal."""

import io
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slowfast_patches.train.conftest import SaveAndDie, hooked
from tests.slowfast_patches.train.test_stops import PLAIN, SHORT

pytestmark = pytest.mark.slow


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
        return [line for line in lines if line and not line.startswith("index of")]


class SlowUntil(SaveAndDie):
    """Waits after each step, as bars are drawn ten times a second at most."""

    def after_step(self, trainer, step, outcome) -> None:
        time.sleep(0.12)
        super().after_step(trainer, step, outcome)


def test_on_a_terminal_a_bar_shows_the_iterations_and_leaves_the_log_whole(
    train: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    opened: type,
):
    keys = (*PLAIN, *SHORT, "LOG_PERIOD", 2)
    first, second = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stderr", first)
    with hooked(SlowUntil(4)), pytest.raises(SystemExit):
        train(tmp_path, *keys)
    monkeypatch.setattr(sys, "stderr", second)
    train(tmp_path, *keys)
    bar = r"phase 1/1 67%\|.* 4/6 \[\S+ left, +\S+, 4×8×32², loss \d.*, LR"
    assert re.search(bar, first.getvalue())
    assert re.search(r"phase 1/1 83%\|.* 5/6 \[", second.getvalue())
    assert " 4/6 [" not in second.getvalue(), "it goes on where the training does"
    for terminal in (first, second):
        assert all(re.match(r"\d\d:\d\d:\d\d \w+ \S", line) for line in terminal.lines())
        assert "INFO iteration" not in terminal.getvalue()
    folder = opened(tmp_path)
    assert folder.log.count("INFO iteration") == len(folder.metrics()) == 3
