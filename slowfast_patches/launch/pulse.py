"""What this process is at: noted by the training as it goes, looked at by a watchdog."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from statistics import median
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed import distributed_c10d

from multigrid.batchnorm import wait_for_neighbours
from slowfast_patches.launch.stopping import StopRequest

__all__ = ["Pulse", "State", "WatchedBatches", "note_communication"]

_RECENT = 50
"""Pieces of work of a kind of which the median is taken."""
_ENOUGH = 5
"""Of fewer, none is."""


class State(NamedTuple):
    """A piece of work: its name, what of it is going on, the seconds since it began, and the median
    of the recent ones of its kind, None where too few are known.

    Activities are "preparing", "loading", "training" (computing), "communicating", "evaluating",
    "saving", "other" (starting, log, files), and "done" where nothing will come any more.
    """

    name: str
    activity: str
    seconds: float
    usual: float | None

    def to_json(self) -> str:
        return json.dumps(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> State:
        return cls(*json.loads(text))


class Pulse:
    """The piece of work at hand, and how long the recent ones of each kind took.

    A piece of work is an iteration, whose kind is its shape, or a mini-batch of an evaluation. What
    is of kind None, such as the first of each, for which the workers start, says nothing of others.
    One thread writes, any may look.
    """

    def __init__(self) -> None:
        self.activity = "other"
        self._name, self._kind, self._began = "the start", None, time.perf_counter()
        self._taken: dict[Hashable, deque[float]] = defaultdict(lambda: deque(maxlen=_RECENT))
        self._lock = threading.Lock()

    _kind: Hashable | None

    def begin(self, name: str, kind: Hashable | None = None) -> None:
        """Go over to another piece of work; the one before is over."""
        now = time.perf_counter()
        with self._lock:
            if self._kind is not None:
                self._taken[self._kind].append(now - self._began)
            self._name, self._kind, self._began = name, kind, now

    @contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """What the body is."""
        before, self.activity = self.activity, activity
        try:
            yield
        finally:
            self.activity = before

    def state(self) -> State:
        """What this process is at now. A collective that Python waits in, such as those of grouped
        BN, is communication, whatever it is part of."""
        with self._lock:
            taken = list(self._taken[self._kind]) if self._kind is not None else []
            name, seconds = self._name, time.perf_counter() - self._began
        activity = "communicating" if _in_collective() else self.activity
        return State(name, activity, seconds, median(taken) if len(taken) >= _ENOUGH else None)


class WatchedBatches:
    """The mini-batches of an evaluation's loader, each a piece of work."""

    def __init__(self, loader: Any, pulse: Pulse, name: str) -> None:
        self._loader, self._pulse, self._name = loader, pulse, name

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self._pulse.begin(f"mini-batch 0 of {self._name}")
        batches = iter(self._loader)
        for number in range(len(self)):
            if number:
                self._pulse.begin(f"mini-batch {number} of {self._name}", self._name)
            with self._pulse.during("loading"):
                batch = next(batches)
            yield batch
        self._pulse.begin(f"the end of {self._name}")


def note_communication(pulse: Pulse, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Have the time from a network's gradients to the optimizer's step noted as communication.

    The gradients of a model's first layer are the last to be computed; after them, backward waits
    for the other processes, in C++, where nothing else shows it. A hook on one parameter leaves
    DDP's own reduction as it is, which a communication hook would replace. After parts of a
    mini-batch whose gradients DDP does not exchange, the next part is computed.
    """
    first = next(p for p in network.parameters() if p.requires_grad)

    def note(activity: str) -> None:
        pulse.activity = activity

    def after_gradients(_: object) -> None:
        if getattr(network, "require_backward_grad_sync", True):
            note("communicating")

    first.register_hook(after_gradients)  # type: ignore[no-untyped-call]
    optimizer.register_step_pre_hook(lambda *_: note("training"))


_WAITS = frozenset({StopRequest.agreed.__code__, wait_for_neighbours.__code__})
"""Functions that wait for a collective which was begun before: in C++, below no other frame."""


def _in_collective() -> bool:
    """Whether a thread of this process is in a function of torch.distributed, or of `_WAITS`."""
    return any(map(_is_collective, sys._current_frames().values()))


def _is_collective(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if code in _WAITS or code.co_filename == distributed_c10d.__file__:
            return True
        frame = frame.f_back
    return False
