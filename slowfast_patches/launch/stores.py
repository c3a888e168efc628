"""The store through which the processes of a run find each other: torch's, with clear errors."""

from __future__ import annotations

import errno
import os
import resource
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import torch.distributed as dist

__all__ = ["Address", "JoiningError", "connect", "host"]

_RETRY_SECONDS = 0.2
_TRY_SECONDS = 5.0
"""How long one attempt to reach a machine may take."""
_MOST_FILES = 1 << 16
_OPERATION = timedelta(seconds=60)
"""How long one question to the store may take: all ours are answered at once."""


class JoiningError(RuntimeError):
    """The processes of a run did not come together; the message says who and why."""


class Address(NamedTuple):
    """Where processes meet: tcp (host and port), file (path), or env, as torchrun arranges it.

    `prefix` is put before all their keys there, which tells one start of a run from another.
    """

    scheme: str
    host: str = ""
    port: int = 0
    path: str = ""
    prefix: str = ""

    @classmethod
    def parse(cls, url: str) -> Address:
        """From what --init-method takes.

        Raises:
            ValueError: neither tcp://HOST:PORT nor file:///PATH.
        """
        try:
            parts = urlsplit(url)
            address = cls(parts.scheme, parts.hostname or "", parts.port or 0, parts.path)
        except ValueError:  # a port that is none
            address = cls("")
        known = {"tcp": address.host and address.port, "file": address.path, "env": True}
        if not known.get(address.scheme):
            raise ValueError(
                f"--init-method {url}: processes meet at tcp://HOST:PORT of the first machine, or "
                "at file:///PATH on a file system that they share"
            )
        return address

    def __str__(self) -> str:
        if self.scheme == "tcp":
            return f"tcp://{self.host}:{self.port}"
        return f"{self.scheme}://{self.path}"


def host(port: int) -> dist.TCPStore:
    """A store that this process hosts, until it ends; 0 takes a free port, the store's `port`.

    Raises:
        JoiningError: the port is in use.
    """
    _allow_connections()
    try:
        return dist.TCPStore(
            "localhost", port, is_master=True, wait_for_workers=False, timeout=_OPERATION
        )
    except dist.DistNetworkError as error:
        if errno.errorcode[errno.EADDRINUSE] not in str(error):
            raise
        raise JoiningError(
            f"port {port} of this machine ({socket.gethostname()}) is in use, by another run "
            "perhaps, or by another process with SHARD_ID 0; give another with --init-method "
            "tcp://HOST:PORT, the same on all machines"
        ) from error


def _allow_connections() -> None:
    """Each process holds a few, and the usual limit, 1024 open files, is far from the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def connect(address: Address, seconds: float) -> dist.Store:
    """A connection to the store at an address, waiting for its host for `seconds`.

    Raises:
        JoiningError: nobody answers there.
    """
    if address.scheme == "env":
        found = dist.rendezvous("env://", timeout=timedelta(seconds=seconds))
        return cast(dist.Store, next(iter(found))[0])
    if address.scheme == "file":
        return _file_store(address.path)
    _wait_for_host(address, seconds)
    try:
        store = dist.TCPStore(
            address.host,
            address.port,
            wait_for_workers=False,
            timeout=timedelta(seconds=seconds),
        )
    except dist.DistError as error:
        raise JoiningError(
            f"what answers at {address} is no process of this run: {str(error).splitlines()[0]}"
        ) from error
    store.set_timeout(_OPERATION)
    return store


def _file_store(path: str) -> dist.Store:
    """torch would wait for minutes for a folder that is not there."""
    folder = Path(path).parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise JoiningError(
            f"--init-method file://{path}: {folder} is no folder that this machine "
            f"({socket.gethostname()}) can write to"
        )
    store = dist.FileStore(path)
    store.set_timeout(_OPERATION)
    return store


def _wait_for_host(address: Address, seconds: float) -> None:
    """Until it answers. torch would do so too, with pages of its own call stack on the terminal."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            left = max(_RETRY_SECONDS, deadline - time.monotonic())
            where = (address.host, address.port)
            socket.create_connection(where, timeout=min(left, _TRY_SECONDS)).close()
            return
        except OSError as error:
            unknown = isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME
            if unknown or time.monotonic() >= deadline:
                raise JoiningError(_not_reached(address, error, unknown, seconds)) from error
            time.sleep(_RETRY_SECONDS)


def _not_reached(address: Address, error: OSError, unknown: bool, seconds: float) -> str:
    if unknown:
        return (
            f"{address}: this machine ({socket.gethostname()}) knows no host {address.host}; give "
            "the first machine's name or number with --init-method tcp://HOST:PORT"
        )
    return (
        f"rank 0 did not answer at {address} within {seconds:g} s (DIST_JOIN_SECONDS): "
        f"{error.strerror or error}. It has to run on {address.host}, and its port has to be open "
        f"to this machine ({socket.gethostname()})"
    )
