"""The progress bar on a pseudo-terminal."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.slowfast_patches.train.conftest import SaveAndDie, hooked
from tests.slowfast_patches.train.test_stops import PLAIN, SHORT

pytestmark = pytest.mark.slow


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Standard error is a terminal; after the body, the list has what was written to it."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 140, 0, 0))
    written, parts = list[str](), list[bytes]()

    def read() -> None:
        with suppress(OSError):  # the other end is closed
            while part := os.read(master, 4096):
                parts.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    with monkeypatch.context() as patch, open(slave, "w") as stream:
        patch.setattr(sys, "stderr", stream)
        yield written
    reader.join()
    os.close(master)
    written.append(b"".join(parts).decode())


def on_screen(written: str) -> list[str]:
    """The lines that a terminal shows after it has overwritten what \\r goes back to."""
    lines = []
    for line in written.split("\n"):
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
    with (
        terminal(monkeypatch) as first,
        hooked(SlowUntil(4)),
        pytest.raises(SystemExit),
    ):
        train(tmp_path, *keys)
    with terminal(monkeypatch) as second:
        train(tmp_path, *keys)
    assert re.search(r"phase 1/1 67%\|.* 4/6 \[\S+ left, +\S+, 4×8×32², loss \d.*, LR", first[0])
    assert re.search(r"phase 1/1 83%\|.* 5/6 \[", second[0])
    assert " 4/6 [" not in second[0], "it goes on where the training does"
    for text in (*first, *second):
        assert all(re.match(r"\d\d:\d\d:\d\d \w+ \S", line) for line in on_screen(text))
        assert "INFO iteration" not in text
    assert [line for line in on_screen(second[0]) if "validation after iteration 6" in line]
    folder = opened(tmp_path)
    assert folder.log.count("INFO iteration") == len(folder.metrics()) == 3
