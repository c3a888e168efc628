"""The processes of a run come together: all of them, with the same recipe."""

from __future__ import annotations

import resource
import socket
import time
import uuid
from datetime import timedelta
from urllib.parse import urlsplit

import torch.distributed as dist

from slowfast_patches.config.recipe import Recipe, differences, keys_of
from slowfast_patches.launch.failing import JoiningError, LostError
from slowfast_patches.utils.distributed import gathered

__all__ = ["check_address", "join"]

_POLL_SECONDS = 0.05
_NAMED = 16
"""Ranks, or keys, that a message lists at most."""
_FILES = 1 << 16
"""Rank 0 has an open file for each process, and the usual limit is 1024."""
_OF_A_MACHINE = (
    "SHARD_ID",
    "DATA.PATH_PREFIX",
    "DATA.PATH_TO_DATA_DIR",
    "DATA_LOADER.NUM_WORKERS",
)
"""Keys that machines may differ in: where each has its data, and what reads them."""


def check_address(url: str) -> None:
    """Raise ValueError unless processes can meet at `url`."""
    try:
        parts = urlsplit(url)
        known = {"tcp": parts.hostname and parts.port, "file": parts.path, "env": True}
    except ValueError:  # a port that is none
        known = {}
    if not known.get(url.partition(":")[0]):
        raise ValueError(
            f"--init-method {url}: processes meet at tcp://HOST:PORT of the first machine, or at "
            "file:///PATH on a file system that they share"
        )


def join(rank: int, size: int, address: str, recipe: Recipe, backend: str) -> None:
    """Enter the process group: the only place where a world of several processes is made.

    Raises:
        JoiningError: not all come within DIST_JOIN_SECONDS, or the address is somebody else's.
        ValueError: this process has another recipe than rank 0.
        LostError: another one has.
    """
    store = _meet(rank, size, address, timedelta(seconds=recipe.dist_join_seconds))
    patience = timedelta(seconds=recipe.dist_stall_seconds)
    store.set_timeout(patience)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)
    _check_same_recipe(recipe, rank)


def _meet(rank: int, size: int, address: str, seconds: timedelta) -> dist.Store:
    """The store at an address, once all have come."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < _FILES:
        most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        return _wait_for_all(_open_store(rank, size, address, seconds), rank, size, seconds)
    except dist.DistError as error:
        raise JoiningError(
            f"the processes do not meet at {address} ({str(error).splitlines()[0]}): it has to be "
            f"a free port of the first machine, or a file, that {socket.gethostname()} can reach"
        ) from error


def _wait_for_all(store: dist.Store, rank: int, size: int, seconds: timedelta) -> dist.Store:
    """A part of the store that belongs to this start of the run alone, once all have come.

    torchrun's store outlives the processes that it starts again, with all that they left in it, and
    its machines need not agree how often they did so. Rank 0 names each start to those that ask.
    """
    deadline, name = time.monotonic() + seconds.total_seconds(), uuid.uuid4().hex
    if rank > 0:
        store.set(f"asks/{rank}", name)
        store.wait([f"start/{name}"], seconds)
        name = store.get(f"start/{name}").decode()
    start = dist.PrefixStore(name, store)
    everyone = [str(number) for number in range(size)]
    start.set(str(rank), "")
    while not start.check(everyone):
        if rank == 0:
            _name_start(store, size, name)
        if time.monotonic() > deadline:
            missing = [number for number in everyone if not start.check([number])]
            shown = ", ".join(missing[:_NAMED]) + ", ..." * (len(missing) > _NAMED)
            raise JoiningError(
                f"of {size} processes, rank {shown} did not come within "
                f"{seconds.total_seconds():g} s (DIST_JOIN_SECONDS)"
            )
        time.sleep(_POLL_SECONDS)
    return start


def _name_start(store: dist.Store, size: int, name: str) -> None:
    for rank in range(1, size):
        if store.check([f"asks/{rank}"]):
            asked = store.get(f"asks/{rank}").decode()
            store.compare_set(f"start/{asked}", "", name)


def _open_store(rank: int, size: int, address: str, seconds: timedelta) -> dist.Store:
    parts = urlsplit(address)
    if parts.scheme == "file":
        return dist.FileStore(parts.path, size)
    if parts.scheme == "env":
        found: dist.Store = next(iter(dist.rendezvous("env://", timeout=seconds)))[0]
        return found
    assert parts.hostname is not None, "check_address"
    assert parts.port is not None
    here = {"is_master": rank == 0, "wait_for_workers": False}
    return dist.TCPStore(parts.hostname, parts.port, **here, timeout=seconds)


def _check_same_recipe(recipe: Recipe, rank: int) -> None:
    """Raise in the first rank whose recipe is not that of rank 0, and LostError in the others."""
    first, *others = gathered(keys_of(recipe))
    for number, keys in enumerate(others, 1):
        if not (differing := differences(first, keys, f"on rank {number}", _OF_A_MACHINE)):
            continue
        text = f"another recipe than rank 0: {'; '.join(differing[:_NAMED])}"
        if number == rank:
            raise ValueError(f"this process has {text}. Give all machines the same")
        raise LostError(f"rank {number} has {text}")
