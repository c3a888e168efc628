"""A process for each GPU of this machine, started, watched and ended together by torch."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from types import FrameType

from torch.multiprocessing.spawn import ProcessContext, ProcessException, start_processes

from slowfast_patches.launch.failing import GRACE_SECONDS
from slowfast_patches.launch.stopping import EARLY, handling
from slowfast_patches.utils.signals import ASKING, BY_HAND_STATUS, INTERRUPTED_STATUS, held_back

__all__ = ["spawn"]


def spawn(
    function: Callable[..., None], arguments: tuple[object, ...], count: int, first_rank: int
) -> int:
    """Call `function(number, *arguments)` in `count` processes; the exit status of them all.

    A process says itself what went wrong in it, and ends with a status other than 0; the others
    then have a few seconds. One that was killed cannot speak: this does. SIGTERM, SIGUSR1 and
    SIGINT go on to the processes, which know how to stop; this waits.
    """
    logging.getLogger(ProcessContext.__module__).setLevel(logging.ERROR)  # says whom it ends
    resource_tracker.ensure_running()  # which would let signals through, once it starts
    with _forwarding() as received:
        # Ctrl-C would find processes that still import things, with a traceback from each.
        with held_back({signal.SIGINT}):
            context: ProcessContext = start_processes(  # type: ignore[no-untyped-call]
                function, arguments, count, join=False, start_method="spawn"
            )
        try:
            while not context.join(grace_period=GRACE_SECONDS):
                pass
        except ProcessException as error:
            index = error.error_index  # of the first to end
            code = context.processes[index].exitcode or 0
            return _status(code, f"rank {first_rank + index}", received)
    return 0


@contextmanager
def _forwarding() -> Iterator[list[int]]:
    """Send signals on to the processes; gives the numbers of those that came.

    Ctrl-C reaches the whole process group, and a second one ends a training at once: the first is
    sent on as SIGTERM, so that it never counts twice.
    """
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        again = number == signal.SIGINT and number in received
        received.append(number)
        sent = signal.SIGTERM if number == signal.SIGINT else number
        for process in multiprocessing.active_children():
            with suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.SIGKILL if again else sent)

    with handling(ASKING, forward):
        yield received


def _status(code: int, who: str, received: list[int]) -> int:
    """The exit status of the run, after saying what none of its processes could say.

    `code` is how the first process ended that did not end well.
    """
    if received.count(signal.SIGINT) > 1:
        return BY_HAND_STATUS
    if received and (-code in ASKING or code == BY_HAND_STATUS):  # nothing was there to save
        if signal.SIGINT in received:
            if code != BY_HAND_STATUS:  # it has not heard of it, and said nothing
                sys.stderr.write("interrupted\n")
            return BY_HAND_STATUS
        sys.stderr.write(f"interrupted: {EARLY.format(signal.Signals(received[0]).name)}\n")
        return INTERRUPTED_STATUS
    if code >= 0:
        return code
    because = ", perhaps for memory" if -code == signal.SIGKILL else ""
    sys.stderr.write(f"error: {who} was killed by {signal.Signals(-code).name}{because}\n")
    return 1
