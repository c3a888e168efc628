"""The processes of a run come together: all of them, each once, with the same recipe."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch.distributed as dist
import yaml

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.stores import JoiningError
from slowfast_patches.utils.placement import Placement

__all__ = ["ElsewhereError", "StrangerError", "arrive", "check_open", "enter_round"]

_POLL_SECONDS = 0.1
_NAMED = 16
"""Processes, or keys, that a message lists at most."""
_OF_A_MACHINE = (
    "SHARD_ID",
    "DATA.PATH_PREFIX",
    "DATA.PATH_TO_DATA_DIR",
    "DATA_LOADER.NUM_WORKERS",
)
"""Keys that machines may differ in: where each has its data, and what reads them."""


class ElsewhereError(JoiningError):
    """Another process has failed, and said why."""


class StrangerError(JoiningError):
    """This process does not belong to the run that it found; that one goes on."""


@dataclass(frozen=True)
class _Process:
    """What a process says of itself on arrival; `token` is its alone, as numbers of processes are
    not in containers."""

    host: str
    pid: int
    size: int
    digest: str
    token: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def enter_round(
    store: dist.Store, placement: Placement, seconds: float
) -> tuple[str, Callable[[], None]]:
    """A name for this start of a run, and what rank 0 has to call while the others come.

    torchrun's store outlives the processes that it starts again, with all that they left in it,
    and its machines need not agree how often they did so. Rank 0 names each start, and tells it to
    those that ask now.

    Raises:
        JoiningError: rank 0 does not answer.
    """
    token, rank = uuid.uuid4().hex, placement.first_rank
    if rank == 0:
        return token, partial(_welcome, store, placement.size, token)
    deadline = time.monotonic() + seconds
    store.set(f"asks/{rank}", token)
    while not store.check([f"answer/{token}"]):
        if time.monotonic() >= deadline:
            raise JoiningError(f"rank 0 did not come within {seconds:g} s (DIST_JOIN_SECONDS)")
        time.sleep(_POLL_SECONDS)
    return store.get(f"answer/{token}").decode(), lambda: None


def _welcome(store: dist.Store, size: int, name: str) -> None:
    for rank in range(1, size):
        if store.check([f"asks/{rank}"]):
            store.compare_set(f"answer/{store.get(f'asks/{rank}').decode()}", "", name)


def check_open(store: dist.Store, placement: Placement) -> None:
    """Raise StrangerError if a complete run meets here: it is not to learn what fails before."""
    first = _first(store)
    if first is not None and _arrived(store) >= first.size:
        raise StrangerError(
            f"the run of {first} has met at {placement.address}, and is complete; give this one "
            "another place with --init-method"
        )


def arrive(
    store: dist.Store,
    placement: Placement,
    recipe: Recipe,
    seconds: float,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Register the ranks of this command, and wait until all of the run are there and agree.

    Args:
        store: the run's, where it keeps what is said on arrival.
        placement: this command's processes among the run's.
        recipe: has to be the same everywhere, but for what is a machine's own (`_OF_A_MACHINE`).
        seconds: how long to wait for the others.
        meanwhile: called again and again until they have come.

    Raises:
        JoiningError: a rank twice, another number of processes, another recipe, or a rank that
            does not come.
        StrangerError: the same, where a run goes on that this process does not belong to.
        ElsewhereError: another process has failed meanwhile.
    """
    deadline = time.monotonic() + seconds
    keys = dict(sorted(_leaves(yaml.safe_load(recipe.text))))
    digest = hashlib.sha256(json.dumps(keys).encode()).hexdigest()
    process = _Process(
        socket.gethostname(), os.getpid(), placement.size, digest, token=uuid.uuid4().hex
    )
    for rank in range(placement.first_rank, placement.first_rank + placement.count):
        _claim(store, placement, rank, process)
    if placement.first_rank == 0:
        store.set("recipe", json.dumps(keys))

    def wait_until(ready: Callable[[], bool]) -> None:
        while not ready():
            meanwhile()
            if store.check(["failure"]):
                raise ElsewhereError("another process failed")
            if time.monotonic() >= deadline:
                raise JoiningError(_who_is_missing(store, placement.size, seconds))
            time.sleep(_POLL_SECONDS)

    wait_until(lambda: store.check([_key(0)]))
    _check_same(store, placement, process, keys)
    store.add("arrived", placement.count)
    wait_until(lambda: _arrived(store) >= placement.size)


def _key(rank: int) -> str:
    return f"here/{rank}"


def _arrived(store: dist.Store) -> int:
    return int(store.add("arrived", 0))


def _claim(store: dist.Store, placement: Placement, rank: int, process: _Process) -> None:
    mine = json.dumps(asdict(process))
    found = store.compare_set(_key(rank), "", mine).decode()
    if found == mine:
        return
    other = _Process(**json.loads(found))
    advice = "give each machine a --shard-id of its own"
    if placement.address is not None and placement.address.startswith("file:"):
        advice += f", and remove {placement.address} if an earlier run has left it"
    text = f"two processes of this run are rank {rank}: {process} and {other}; {advice}"
    raise _error(store, text)


def _check_same(
    store: dist.Store, placement: Placement, process: _Process, keys: Mapping[str, str]
) -> None:
    """Raise JoiningError if rank 0 has another number of processes or another recipe."""
    first = _Process(**json.loads(store.get(_key(0))))
    here = f"rank {placement.first_rank} ({process})"
    if first.size != process.size:
        raise _error(
            store,
            f"{here} is one of {process.size} processes, rank 0 ({first}) one of {first.size}; "
            "give all machines the same NUM_SHARDS and NUM_GPUS",
        )
    if first.digest == process.digest:
        return
    theirs: dict[str, str] = json.loads(store.get("recipe"))
    differing = [k for k in sorted(keys.keys() | theirs.keys()) if keys.get(k) != theirs.get(k)]
    lines = [f"  {k}: {keys.get(k)} here, {theirs.get(k)} there" for k in differing[:_NAMED]]
    more = [f"  and {len(differing) - _NAMED} more"] if len(differing) > _NAMED else []
    raise _error(
        store,
        f"{here} has another recipe than rank 0 ({first}):\n" + "\n".join(lines + more) + "\n"
        "Give all machines the same recipe, or each run a place of its own to meet (--init-method)",
    )


def _error(store: dist.Store, text: str) -> JoiningError:
    """The error of a process that does not fit: a run that is complete is not disturbed by it."""
    first = _first(store)
    if first is None or _arrived(store) < first.size:
        return JoiningError(text)
    return StrangerError(f"{text}. The run of {first} is complete, and goes on without this one")


def _first(store: dist.Store) -> _Process | None:
    """Rank 0, once it has come."""
    return _Process(**json.loads(store.get(_key(0)))) if store.check([_key(0)]) else None


def _who_is_missing(store: dist.Store, size: int, seconds: float) -> str:
    there = {rank: _Process(**json.loads(store.get(_key(rank)))) for rank in _present(store, size)}
    missing = [rank for rank in range(size) if rank not in there]
    if not missing:
        return f"not all of {size} processes were ready within {seconds:g} s (DIST_JOIN_SECONDS)"
    word = "rank" if len(missing) == 1 else "ranks"
    named = [f"{rank} ({process.host})" for rank, process in there.items()]
    return (
        f"{word} {_list(missing)} of {size} did not come within {seconds:g} s "
        f"(DIST_JOIN_SECONDS); here are ranks {_list(named)}"
    )


def _present(store: dist.Store, size: int) -> list[int]:
    return [rank for rank in range(size) if store.check([_key(rank)])]


def _list(items: list[Any]) -> str:
    shown = ", ".join(map(str, items[:_NAMED]))
    return shown if len(items) <= _NAMED else f"{shown} and {len(items) - _NAMED} more"


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every key of a recipe that has to be the same everywhere, in full, with its value."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{key}.")
        elif key not in _OF_A_MACHINE:
            yield key, repr(value)
