"""Stop a training in all processes when one of them receives a signal."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from datetime import timedelta
from itertools import islice
from types import FrameType
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist

from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.interruption import TrainingInterruptedError
from slowfast_patches.utils.signals import STOP_SIGNALS, call_users_handler, listening, set_handlers

T = TypeVar("T")


class StopRequest:
    """Context manager that finds out whether any process of a run was asked to stop.

    Stop requests are the signals SIGINT, SIGTERM and SIGUSR1. In the body, the first signal only
    sets `asked`. A second SIGINT ends the process immediately. Signals are received in the main
    thread only.

    All processes must call `ask` and then `agreed` the same number of times. `ask` starts an
    asynchronous all-reduce that overlaps with the work between the two calls.

    Args:
        world: Rank and world size of this process.
        timeout: Timeout of the all-reduce. None means torch's default.

    Attributes:
        asked: Number of the signal that this process received, or 0.
    """

    def __init__(self, world: World, timeout: timedelta | None = None) -> None:
        self._world = world
        self._timeout = timeout
        self.asked = 0
        self._interrupted = False
        self._agreed = torch.zeros(1, dtype=torch.int64)
        self._work: Any = None
        self._group: Any = None
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        listening.append(self)
        if self._world.size > 1:
            # gloo exchanges the flag on the CPU, so that the GPU is not delayed.
            self._group = dist.new_group(backend="gloo", timeout=self._timeout)
        self._handlers = set_handlers(dict.fromkeys(STOP_SIGNALS, self._note))
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        listening.remove(self)
        # A signal must not kill a rank that waits for rank 0 to save a checkpoint or the result.
        if self._world.size == 1 or isinstance(error, Exception):
            set_handlers(self._handlers)

    def ask(self) -> None:
        """Start to tell the other processes whether this process was asked to stop."""
        self.agreed()
        self._agreed.clamp_(min=self.asked)
        if self._group is not None:
            self._work = dist.all_reduce(
                self._agreed, dist.ReduceOp.MAX, group=self._group, async_op=True
            )

    def agreed(self) -> bool:
        """Return whether any process had been asked to stop at its last call of `ask`."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return bool(self._agreed)

    def any_of(self, *flags: bool) -> list[bool]:
        """Return for each flag whether it is true in any process. All processes must call this."""
        values = torch.tensor(flags, dtype=torch.uint8)
        if self._group is not None:
            dist.all_reduce(values, dist.ReduceOp.MAX, group=self._group)
        return [bool(value) for value in values]

    def check(self, when: str = "") -> None:
        """Raise TrainingInterruptedError "stopped by SIGTERM ..." in all processes if `agreed`."""
        if self.agreed():
            name = signal.Signals(int(self._agreed)).name
            raise TrainingInterruptedError(f"stopped by {name} {when}".strip())

    def begin(self, name: str) -> None:
        """Call `ask` and `check` before the part of the run called `name`."""
        self.ask()
        self.check(f"before {name}")

    def between(self, batches: Iterable[T], rounds: int) -> Iterator[T]:
        """Yield the mini-batches of an evaluation, and `check` after each of them.

        All processes check `rounds` times, the maximum number of mini-batches of any process.
        """
        iterator = iter(batches)
        for _ in range(rounds):
            self.ask()
            yield from islice(iterator, 1)
            self.check("during an evaluation")

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal. Do not log here, because the signal may have interrupted a logger."""
        self.asked = self.asked or number
        call_users_handler(number, frame)
        if number != signal.SIGINT:
            return  # SIGTERM is never a second Ctrl-C: launchers forward SIGINT as SIGTERM.
        if self._interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        self._interrupted = True
        if self._world.is_main:
            text = "\ninterrupted: saving after this iteration. Press Ctrl-C again to exit now.\n"
            os.write(2, text.encode())
