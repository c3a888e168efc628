"""A watchdog: what each process is at, and in the log of the main process what takes too long."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from typing import Any, cast

from torch.distributed.distributed_c10d import PrefixStore

from slowfast_patches.launch.alarm import Alarm, Heard, Limits
from slowfast_patches.launch.pulse import Pulse, State
from slowfast_patches.utils.distributed import World

__all__ = ["Heartbeat"]

logger = logging.getLogger(__name__)

_MANY = 512
"""Processes for which a look is as rare again: one reads what all write, 20 ms with 2,048."""


class Heartbeat:
    """Watches this process from a thread of its own while the `with` block lasts.

    Each process puts its state into the run's store; the main process reads them all and writes the
    log, see `Alarm`. The training never fails by it: without a store that answers, it ends.
    """

    def __init__(self, pulse: Pulse, world: World, limits: Limits | None = None) -> None:
        self._pulse, self._world = pulse, world
        self._limits = (limits or Limits()).slower(max(1, world.size // _MANY))
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(self._limits.tick)  # no longer: the store may not answer

    def _watch(self) -> None:
        try:
            board = _Board(self._world) if self._world.store is not None else None
            alarm = Alarm(self._limits)
            while not self._over.wait(self._limits.tick):
                self._look(board, alarm)
            if board is not None:
                board.put(State("the end", "done", 0.0, None))
        except Exception as error:  # whatever it is, training goes on without a watchdog
            logger.debug("the heartbeat ends: %s: %s", type(error).__name__, error)

    def _look(self, board: _Board | None, alarm: Alarm) -> None:
        heard = {self._world.rank: Heard(self._pulse.state(), 0.0)}
        if board is not None:
            board.put(heard[self._world.rank].state)
        if self._world.is_main:
            others = board.others() if board is not None else {}
            alarm.look(heard | others, time.monotonic())


class _Board:
    """Where the ranks put their states for the main process.

    It has a connection of its own to the store: the run's may be waited in by another thread.
    """

    def __init__(self, world: World) -> None:
        store: Any = world.store  # torch's stubs lack some methods
        self._store: Any = PrefixStore("heartbeat", store.clone())
        self._key, self._count = str(world.rank), itertools.count()
        nothing = b"", time.monotonic()
        self._last = dict.fromkeys((r for r in range(world.size) if r != world.rank), nothing)

    def put(self, state: State) -> None:
        # The number tells a process whose state stays as it is from one that says nothing.
        self._store.set(self._key, f"{next(self._count)} {state.to_json()}")

    def others(self) -> dict[int, Heard]:
        """What the other ranks said last."""
        # To get what is not there would wait for it.
        there = [r for r, (text, _) in self._last.items() if text or self._store.check([str(r)])]
        texts, now = self._get([str(rank) for rank in there]), time.monotonic()
        for rank, text in zip(there, texts, strict=True):
            if text != self._last[rank][0]:
                self._last[rank] = text, now
        return {rank: Heard(_state(text), now - at) for rank, (text, at) in self._last.items()}

    def _get(self, keys: list[str]) -> list[bytes]:
        if self._store.has_extended_api():
            return cast(list[bytes], self._store.multi_get(keys))
        return [self._store.get(key) for key in keys]


def _state(text: bytes) -> State:
    """What `put` wrote; of a process that has not come yet, that it is elsewhere."""
    return State.from_json(text.partition(b" ")[2]) if text else State("", "other", 0.0, None)
