"""Mini-batches on their way to a GPU, beside what it computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

__all__ = ["SideStream", "side_stream"]


class SideStream:
    """A stream of a GPU in which mini-batches are prepared while the one before is trained on.

    A step of training is only queued when it returns. What is called for the next mini-batch is
    therefore done beside it, and the step after waits on the device, not here.

    The host is held back so that two mini-batches are on the device at most: the one that is
    trained on, and the one that is prepared. This bounds its memory, and the pinned memory of the
    mini-batches that are not copied yet. All that prepare mini-batches for a device share one
    stream, `side_stream`: memory that one of them has used is kept for it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Of high priority: a few blocks of threads go before those of the step, which has many.
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._queued: torch.cuda.Event | None = None

    def __call__(self, prepare: Callable[[], list[Tensor]]) -> list[Tensor]:
        """What `prepare` returns, for use in the current stream; it is called in the side stream,
        which nothing that it reads on the device must still be written for in another."""
        current = torch.cuda.current_stream(self._device)
        self._hold_back(current)
        with torch.cuda.stream(self._stream):
            prepared = prepare()
        current.wait_stream(self._stream)
        for tensor in prepared:
            # Its memory is the side stream's, which must not use it again before this one is done.
            tensor.record_stream(current)
        return prepared

    def _hold_back(self, current: torch.cuda.Stream) -> None:
        """Return when all is done that was queued in `current` before the call before this."""
        before = self._queued
        # A process that waits for this kind of event leaves its core to the workers that read.
        self._queued = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._queued.record(current)
        if before is not None:
            before.synchronize()


@cache
def side_stream(device: torch.device) -> SideStream:
    """The side stream of a GPU, whose number `device` has."""
    return SideStream(device)
