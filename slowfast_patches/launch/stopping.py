"""Why a training ends before its schedule does, and how it is asked to."""

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
from slowfast_patches.utils.signals import ASKING, EARLY, TrainingInterruptedError, listening

__all__ = [
    "EARLY",
    "StopRequest",
    "TrainingInterruptedError",
    "TrainingStoppedError",
    "handling",
    "interruptible",
]

T = TypeVar("T")
Handler = Callable[[int, FrameType | None], None]


class TrainingStoppedError(ToolError):
    """The training cannot go on; the message says why and where."""

    exit_status = MISTAKE_STATUS


@contextmanager
def interruptible() -> Iterator[None]:
    """In its body, until a `StopRequest` listens, SIGTERM and SIGUSR1 raise
    TrainingInterruptedError: there is nothing to save yet."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise TrainingInterruptedError(EARLY.format(signal.Signals(number).name))

    with handling((signal.SIGTERM, signal.SIGUSR1), interrupt):
        yield


@contextmanager
def handling(numbers: Sequence[signal.Signals], handler: Handler) -> Iterator[None]:
    """Have signals handled so in the body; nothing outside of the main thread, which gets them."""
    in_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if in_main}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class StopRequest:
    """Whether this run was asked to stop: SIGINT, SIGTERM or SIGUSR1 to any of its processes.

    A context manager: in its body the signals set a flag, and after it they do what they did
    before, but in one of several processes that was interrupted: that only has to end. A second
    SIGINT ends the process at once. Outside of the main thread, which alone gets
    signals, it only hears of what other processes were asked.

    The processes agree in steps: each calls `ask`, then `agreed`, equally often. What takes place
    between the two calls hides the exchange of one number.

    Args:
        world: of this process.
        timeout: how long a process waits for the others; None is torch's own.

    Attributes:
        asked: the signal that this process alone got; 0 for none.
    """

    def __init__(self, world: World, timeout: timedelta | None = None) -> None:
        self._world = world
        self._timeout = timeout
        self.asked = 0
        self._interrupted = False
        self._agreed = 0
        self._number, self._work = torch.zeros(1, dtype=torch.int64), None  # type: Any, Any
        self._group: Any = None
        self._listening = handling(ASKING, self._note)

    def __enter__(self) -> Self:
        listening.append(self)
        if self._world.size > 1:
            # signals are not worth a GPU's time
            self._group = dist.new_group(backend="gloo", timeout=self._timeout)
        self._listening.__enter__()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        listening.remove(self)
        # One of several that has saved waits for the others: a late signal must not kill it then.
        if self._world.size == 1 or not isinstance(error, TrainingInterruptedError):
            self._listening.__exit__(None, None, None)

    def ask(self) -> None:
        """Tell the other processes whether this one was asked to stop; returns at once."""
        self.agreed()
        self._number[0] = self.asked
        if self._group is not None:
            self._work = dist.all_reduce(
                self._number, dist.ReduceOp.MAX, group=self._group, async_op=True
            )

    def agreed(self) -> bool:
        """Whether any process had been asked when all of them called `ask`: alike in all."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        self._agreed = max(self._agreed, int(self._number[0]))
        return self._agreed > 0

    @property
    def signal(self) -> signal.Signals:
        """The signal that the processes agreed to stop for."""
        return signal.Signals(self._agreed)

    def between(self, batches: Iterable[T], rounds: int) -> Iterator[T]:
        """The mini-batches of an evaluation, until the run is asked to stop.

        Args:
            batches: of this process, `rounds` at most.
            rounds: the most mini-batches that a process has; the same in all.

        Raises:
            TrainingInterruptedError: it was asked; in all processes at the same mini-batch.
        """
        iterator = iter(batches)
        for _ in range(rounds):
            self.ask()
            for batch in iterator:
                yield batch
                break
            if self.agreed():
                raise TrainingInterruptedError(f"stopped by {self.signal.name} in an evaluation")

    def _note(self, number: int, frame: FrameType | None) -> None:
        """The handler. It does not log, as it may interrupt what logs."""
        if number == signal.SIGINT:
            # Only SIGINT counts: a launcher passes the first on as SIGTERM, which may come earlier.
            if self._interrupted:
                _say("interrupted again: ending without saving")
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGINT)
            self._interrupted = True
            if self._world.is_main:
                _say("interrupted: saving after this iteration; once more ends at once")
        self.asked = self.asked or number


def _say(text: str) -> None:
    os.write(2, f"\n{text}\n".encode())
