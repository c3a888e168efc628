"""A process for each GPU of this machine, started, watched and ended together."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import resource_tracker
from types import FrameType

from torch.multiprocessing.spawn import (
    ProcessContext,
    ProcessException,
    start_processes,
)

from slowfast_patches.launch.failing import (
    BY_HAND_STATUS,
    GRACE_SECONDS,
    Failures,
)
from slowfast_patches.launch.stopping import INTERRUPTED_STATUS
from slowfast_patches.utils.signals import held_back

__all__ = ["spawn"]

_FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_PATIENCE = 2 * GRACE_SECONDS
"""What the processes have to end by themselves, in seconds, once one has failed."""
_ENDED_BY_US = (signal.SIGTERM, signal.SIGKILL)


def spawn(
    function: Callable[..., None],
    arguments: tuple[object, ...],
    count: int,
    first_rank: int,
    failures: Failures,
) -> int:
    """Call `function(number, *arguments)` in `count` processes; the exit status of them all.

    A process says itself what went wrong in it, and ends with a status other than 0: the others
    then get a few seconds to end by themselves. One that was killed cannot speak: this does.
    SIGTERM, SIGUSR1 and SIGINT go on to the processes, which know how to stop; this waits.
    """
    resource_tracker.ensure_running()  # which would let signals through, once it starts
    with ExitStack() as stack:
        # Ctrl-C finds processes that still import things, with a traceback from each.
        with held_back({signal.SIGINT}):
            context: ProcessContext = start_processes(  # type: ignore[no-untyped-call]
                function, arguments, count, join=False, start_method="spawn"
            )
            received = stack.enter_context(_forwarding(context))
        try:
            while not context.join(grace_period=_PATIENCE):
                pass
        except ProcessException as error:
            return _status(error, context, first_rank, failures, received)
    return 0


@contextmanager
def _forwarding(context: ProcessContext) -> Iterator[list[int]]:
    """Send signals on; gives the numbers of those that came.

    Ctrl-C reaches the whole process group, and a second one ends a training at once: the first is
    sent on as SIGTERM, so that it never counts twice.
    """
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        again = number == signal.SIGINT and number in received
        received.append(number)
        sent = signal.SIGKILL if again else number
        if number == signal.SIGINT and not again:
            sent = signal.SIGTERM
        for process in context.processes:
            if process.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(process.pid, sent)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _status(
    error: ProcessException,
    context: ProcessContext,
    first_rank: int,
    failures: Failures,
    received: list[int],
) -> int:
    """What the processes ended with, after saying what none of them could say."""
    first = failures.first()
    codes = [process.exitcode or 0 for process in context.processes]
    index, code = error.error_index, codes[error.error_index]
    if received.count(signal.SIGINT) > 1:
        return BY_HAND_STATUS
    if -code in _FORWARDED and signal.SIGINT in received:  # before there was something to save
        sys.stderr.write("interrupted\n")
        return BY_HAND_STATUS
    if code == INTERRUPTED_STATUS or (-code in _FORWARDED and received):
        return INTERRUPTED_STATUS
    killed = [n for n, code in enumerate(codes) if code < 0 and -code not in _ENDED_BY_US]
    index = index if code < 0 else next(iter(killed), index)
    if codes[index] < 0 and (first is None or first.lost):
        return failures.killed(f"rank {first_rank + index}", _how(-codes[index]))
    return failures.echo(first)


def _how(number: int) -> str:
    name = signal.Signals(number).name
    because = ", perhaps for memory" if number == signal.SIGKILL else ""
    return f"was killed by {name}{because}"
