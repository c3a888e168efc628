"""A signal that comes before a training listens ends the process, and says so."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from slowfast_patches.launch.failing import end_process
from slowfast_patches.launch.stopping import INTERRUPTED_STATUS, requeue

__all__ = ["ending_early"]

_NUMBERS = (signal.SIGTERM, signal.SIGUSR1)


@contextmanager
def ending_early(*, first: bool, torchrun: bool) -> Iterator[None]:
    """In its body, SIGTERM and SIGUSR1 end this process with INTERRUPTED_STATUS.

    Until something else handles them, as a training does. A thread ends the process, since the
    main one may be waiting where no handler of Python's runs: for another process to join.

    Args:
        first: this process is rank 0, or starts it: it speaks, and has a job of SLURM requeued on
            SIGUSR1, the warning before its time is up.
        torchrun: sends SIGTERM itself where another process has failed: nothing is said of it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def ours(number: int, frame: FrameType | None) -> None:
        """Only that it is installed matters: the signal's number is in the pipe by then."""

    def watch() -> None:
        while read := os.read(reader, 1):
            if read[0] in _NUMBERS and signal.getsignal(read[0]) is ours:
                _end(signal.Signals(read[0]), first, torchrun)
        os.close(reader)

    threading.Thread(target=watch, name="early signals", daemon=True).start()
    before = {number: signal.signal(number, ours) for number in _NUMBERS}
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writer)


def _end(number: signal.Signals, first: bool, torchrun: bool) -> None:
    try:
        if first and number == signal.SIGUSR1:
            requeue(os.environ)
        if first and not (torchrun and number == signal.SIGTERM):
            text = f"stopped by {number.name} before the training began; the same command starts it"
            sys.stderr.write(f"interrupted: {text}\n")
    finally:
        end_process(INTERRUPTED_STATUS)


# A process that is forked meanwhile has the pipe too: what it is sent is not for its parent.
os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
