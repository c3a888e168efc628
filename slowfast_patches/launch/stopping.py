"""Stop requests: signals, and the errors that end a training early."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn, Self, TypeVar

import torch
import torch.distributed as dist

from slowfast_patches.utils.command_line import MISTAKE_STATUS, ToolError
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.signals import (
    EARLY,
    STOP_SIGNALS,
    TrainingInterruptedError,
    listening,
)

__all__ = [
    "EARLY",
    "StopRequest",
    "TrainingInterruptedError",
    "TrainingStoppedError",
    "handle_signals",
    "interruptible",
]

T = TypeVar("T")
Handler = Callable[[int, FrameType | None], None]


class TrainingStoppedError(ToolError):
    """Error raised when a training cannot continue."""

    exit_status = MISTAKE_STATUS


@contextmanager
def interruptible() -> Iterator[None]:
    """Context manager: raise TrainingInterruptedError on SIGTERM and SIGUSR1.

    It is for the time before a training has something to save, when `StopRequest` takes over.
    """

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise TrainingInterruptedError(EARLY.format(signal.Signals(number).name))

    with handle_signals((signal.SIGTERM, signal.SIGUSR1), interrupt):
        yield


@contextmanager
def handle_signals(numbers: Sequence[signal.Signals], handler: Handler) -> Iterator[None]:
    """Context manager: handle signals with `handler`. It does nothing outside the main thread."""
    in_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if in_main}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class StopRequest:
    """Context manager for stop requests: SIGINT, SIGTERM or SIGUSR1 to any process of a run.

    In the body, the first signal sets a flag. A second SIGINT ends the process immediately. On
    exit, the previous handlers return, except in an interrupted process of several, which only has
    to end. Outside the main thread, which receives all signals, it only learns about requests to
    other processes.

    All processes must call `ask` and then `agreed` equally often. The exchange between them is
    asynchronous, so that it overlaps with the work between the two calls.

    Args:
        world: World of this process.
        timeout: Timeout of the exchange. None is torch's default.

    Attributes:
        asked: Number of the signal that this process got. 0 for none.
    """

    def __init__(self, world: World, timeout: timedelta | None = None) -> None:
        self._world = world
        self._timeout = timeout
        self.asked = 0
        self._interrupted = False
        self._agreed = 0
        self._number, self._work = torch.zeros(1, dtype=torch.int64), None  # type: Any, Any
        self._group: Any = None
        self._listening = handle_signals(STOP_SIGNALS, self._note)

    def __enter__(self) -> Self:
        listening.append(self)
        if self._world.size > 1:
            # gloo exchanges the flag on the CPU, without delaying the GPU.
            self._group = dist.new_group(backend="gloo", timeout=self._timeout)
        self._listening.__enter__()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        listening.remove(self)
        # A process that has saved waits for the others. A late signal must not kill it.
        if self._world.size == 1 or not isinstance(error, TrainingInterruptedError):
            self._listening.__exit__(None, None, None)

    def ask(self) -> None:
        """Start telling the other processes whether this one was asked to stop."""
        self.agreed()
        self._number[0] = self.asked
        if self._group is not None:
            self._work = dist.all_reduce(
                self._number, dist.ReduceOp.MAX, group=self._group, async_op=True
            )

    def agreed(self) -> bool:
        """Return whether any process had been asked to stop at the last `ask`; the same in all."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        self._agreed = max(self._agreed, int(self._number[0]))
        return self._agreed > 0

    @property
    def signal(self) -> signal.Signals:
        """Signal for which the processes agreed to stop."""
        return signal.Signals(self._agreed)

    def begin(self, name: str) -> None:
        """Begin a step of the preparation, unless the run was asked to stop.

        Raises:
            TrainingInterruptedError: The run was asked to stop. All processes raise it.
        """
        self.ask()
        if self.agreed():
            raise TrainingInterruptedError(
                f"stopped by {self.signal.name} before {name}, when the training had not begun"
            )

    def between(self, batches: Iterable[T], rounds: int) -> Iterator[T]:
        """Yield the mini-batches of an evaluation until the run is asked to stop.

        Args:
            batches: Mini-batches of this process, at most `rounds`.
            rounds: Maximum number of mini-batches of any process.

        Raises:
            TrainingInterruptedError: The run was asked to stop. All processes raise it at the same
                mini-batch.
        """
        iterator = iter(batches)
        for _ in range(rounds):
            self.ask()
            for batch in iterator:
                yield batch
                break
            if self.agreed():
                raise TrainingInterruptedError(
                    f"stopped by {self.signal.name} during an evaluation"
                )

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal. Logging is not allowed here, as the signal may interrupt a logger."""
        if number == signal.SIGINT:
            # A launcher forwards the first SIGINT as SIGTERM, so only SIGINT counts twice.
            if self._interrupted:
                _say("interrupted again: exiting without saving")
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGINT)
            self._interrupted = True
            if self._world.is_main:
                _say("interrupted: saving after this iteration; press Ctrl-C again to exit now")
        self.asked = self.asked or number


def _say(text: str) -> None:
    os.write(2, f"\n{text}\n".encode())
