"""When a piece of work takes too long, and what is said of it: which rank, waiting for what."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from slowfast_patches.launch.pulse import State

__all__ = ["Alarm", "Heard", "Limits"]

logger = logging.getLogger(__name__)

_DOES = {
    "preparing": ("prepares", "prepare"),
    "loading": ("waits for data", "wait for data"),
    "training": ("computes", "compute"),
    "evaluating": ("evaluates", "evaluate"),
    "saving": ("saves", "save"),
    "other": ("does other work", "do other work"),
    "communicating": ("waits in communication", "wait in communication"),
}
"""What one rank and several ranks do."""


@dataclass(frozen=True)
class Limits:
    """When something takes too long."""

    factor: float = 10.0
    """Times the median of its kind,"""
    least: float = 5.0
    """but never fewer seconds than these: what is fast may stumble."""
    unknown: float = 600.0
    """Seconds where no median is known yet: of the first iterations of each shape, say."""
    silence: float = 10.0
    """Seconds after which a process is said not to be heard of, if something is late."""
    tick: float = 2.0
    """Seconds from one look to the next."""

    def slower(self, times: int) -> Limits:
        """The same with looks that are so much rarer, and more silence."""
        return replace(self, tick=times * self.tick, silence=times * self.silence)

    def is_late(self, state: State) -> bool:
        limit = self.unknown if state.usual is None else max(self.factor * state.usual, self.least)
        return state.seconds > limit


class Heard(NamedTuple):
    """What a process said last, and the seconds since."""

    state: State
    age: float


class Alarm:
    """What the main process says of the states of all.

    It warns when a piece of work takes longer than the limits allow, again at each doubling of its
    time, and says when it went on. Ranks that wait in communication are not to blame, unless all
    do: as long as none of the others is late by its own measure or silent, nothing is said.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._subject: tuple[int, str] | None = None
        """The rank and the name of the piece of work that takes too long."""
        self._began, self._said_at = 0.0, 0.0
        self._over = set[str]()
        """Pieces of work that went on, while what a rank said before may still say otherwise."""

    def look(self, heard: Mapping[int, Heard], now: float) -> None:
        """Say what there is to say of what was heard of each rank; `now` is in seconds."""
        heard = {rank: h for rank, h in heard.items() if h.state.activity != "done"}
        self._settle(heard, now)
        silent = {rank for rank, (_, age) in heard.items() if age > self._limits.silence}
        late = self._late({rank: s for rank, (s, _) in heard.items() if rank not in silent})
        waiting = {r for r, (s, _) in heard.items() if s.activity == "communicating"} - silent
        to_blame = heard.keys() - waiting or waiting
        if not late or to_blame.isdisjoint(silent.union(late)):
            return
        rank = self._subject[0] if self._subject and self._subject[0] in late else late[0]
        state = heard[rank].state
        if self._subject is None or state.seconds >= 2 * self._said_at:
            self._subject, self._said_at = (rank, state.name), state.seconds
            self._began = now - state.seconds
            logger.warning("%s: %s", _how_long(state), _who(heard, silent, state.name))

    def _late(self, states: Mapping[int, State]) -> list[int]:
        """The ranks that are late, but for what is known to be over."""
        late = [rank for rank, state in states.items() if self._limits.is_late(state)]
        self._over &= {states[rank].name for rank in late}
        return [rank for rank in late if states[rank].name not in self._over]

    def _settle(self, heard: Mapping[int, Heard], now: float) -> None:
        """Say that what took so long is over, once it is."""
        if self._subject is None:
            return
        rank, name = self._subject
        if rank not in heard or heard[rank].state.name != name:
            logger.info("%s went on after %.0f s", name, now - self._began)
            self._over.add(name)
            self._subject = None


def _how_long(state: State) -> str:
    text = f"{state.name} has taken {state.seconds:.0f} s"
    if state.usual is None:
        return f"{text}, and there is no median yet"
    times = state.seconds / max(state.usual, 1e-9)
    return f"{text}, {times:.0f} times the median of {state.usual:.2g} s"


def _who(heard: Mapping[int, Heard], silent: set[int], name: str) -> str:
    """What each rank does, first those that are not heard of, last those that wait for the others;
    ranks that are at something else than `name` say at what."""
    if len(heard) == 1:
        (said,) = heard.values()
        return f"it {_DOES[said.state.activity][0]}"
    groups = defaultdict[tuple[str, str], list[int]](list)
    for rank, (state, _) in heard.items():
        if rank not in silent:
            groups[state.activity, state.name if state.name != name else ""].append(rank)
    parts = list[str]()
    if silent:
        age = min(heard[rank].age for rank in silent)
        has = "has" if len(silent) == 1 else "have"
        parts.append(f"{_ranks(silent)} {has} not been heard of for {age:.0f} s")
    for (activity, at), ranks in sorted(groups.items(), key=lambda g: list(_DOES).index(g[0][0])):
        does = _DOES[activity][len(ranks) > 1]
        parts.append(f"{_ranks(ranks)} {does}" + (f" ({at})" if at else ""))
    return "; ".join(parts)


def _ranks(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 0-2, 4": neighbours as ranges."""
    runs = list[list[int]]()
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"rank {text}" if text.isdecimal() else f"ranks {text}"
