"""How a run ends where one of its processes fails: all of them, at once, and said once."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import NoReturn

import torch.distributed as dist

from slowfast_patches.launch.meeting import ElsewhereError, StrangerError
from slowfast_patches.launch.stopping import (
    INTERRUPTED_STATUS,
    TrainingInterruptedError,
    TrainingStoppedError,
)
from slowfast_patches.launch.stores import JoiningError
from slowfast_patches.utils.placement import Placement

__all__ = [
    "BY_HAND_STATUS",
    "GRACE_SECONDS",
    "Failure",
    "Failures",
    "end_process",
    "exit_status",
    "explain",
    "interrupted_status",
    "log_failure",
]

GRACE_SECONDS = 5.0
"""What a process has to end by itself once another has failed."""
_LOOK_SECONDS, _POLL_SECONDS = 0.5, 0.05
"""How often a process looks whether another has failed, and for what it waits for."""
_WAIT_SECONDS = 2.0
"""How long one question to the store waits for its answer."""
_ANSWER = timedelta(seconds=10)
"""How long a process that ends waits for the store, whose host may be gone."""
BY_HAND_STATUS = 130
"""What a shell gives for SIGINT."""
_MISTAKE, _BUG = 2, 1
_MISTAKES = (ValueError, ImportError, OSError, TrainingStoppedError, JoiningError)
_LOST = re.compile(
    r"[Cc]onnection (was likely )?(closed|reset|refused)|[Bb]roken pipe|[Tt]imed out|Timeout|"
    r"remote (peer|process)|ncclRemoteError|ncclSystemError|Socket"
)
"""What gloo and NCCL say where another process has gone, or does not answer."""


def exit_status(error: BaseException) -> int:
    """75 for a training that goes on when started again, 2 for a mistake of the user's or what
    stops a training, 130 for an end by hand, 1 for all else: a bug."""
    if isinstance(error, TrainingInterruptedError):
        return INTERRUPTED_STATUS
    if isinstance(error, KeyboardInterrupt):
        return BY_HAND_STATUS
    return _MISTAKE if isinstance(error, _MISTAKES) else _BUG


def interrupted_status(environ: Mapping[str, str]) -> int:
    """How a process ends after an interruption, which torchrun is not to take for a failure.

    With --max-restarts it would start all again at once; on 0 it ends.
    """
    restarts = "TORCHELASTIC_RUN_ID" in environ and environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    return INTERRUPTED_STATUS if restarts in (False, "0") else 0


def explain(error: BaseException, who: str = "") -> int:
    """Say on the terminal what ended a run, a bug with its traceback; the exit status.

    `who` is put before it, such as "rank 1".
    """
    status = exit_status(error)
    _print(_text(error, who, status))
    return status


def log_failure(error: BaseException, who: str = "") -> None:
    """What `explain` says, to the log files alone."""
    root, status = logging.getLogger(), exit_status(error)
    level = logging.WARNING if status == INTERRUPTED_STATUS else logging.ERROR
    text = _text(error, who, status)
    record = logging.LogRecord(__name__, level, __file__, 0, text, None, None)
    for handler in root.handlers:
        if isinstance(handler, logging.FileHandler):
            handler.handle(record)


def end_process(status: int) -> NoReturn:
    """End this process whatever its threads and collectives wait for, and its workers."""
    try:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for child in multiprocessing.active_children():
            child.kill()
    finally:
        os._exit(status)


@dataclass(frozen=True)
class Failure:
    """The first failure of a run, as the others learn of it.

    lost: another process is gone, or does not answer: it is the one that failed.
    """

    who: str
    host: str
    terminal: str
    text: str
    status: int
    lost: bool

    def __str__(self) -> str:
        if self.lost:
            return self.text
        return f"{self.who or 'another process'} on {self.host} failed: {self.text}"


class Failures:
    """What the processes of a run tell each other when one fails, through the run's store.

    Args:
        store: the run's; a connection that nothing else uses.
        placement: of the command that this process belongs to.
        who: this process, such as "rank 1"; "" for a command before its processes run.
        hosts: whether the store ends with this process.
        silent: leaves it to the process that has started this one to say that others failed.
    """

    def __init__(
        self,
        store: dist.Store,
        placement: Placement,
        who: str = "",
        *,
        hosts: bool = False,
        silent: bool = False,
    ) -> None:
        self._store, self._placement, self._who = store, placement, who
        self._hosts, self._silent = hosts, silent
        self._over = threading.Event()
        self._lock = threading.Lock()

    def watch(self, store: dist.Store) -> None:
        """From now on, end this process when another fails, a few seconds after that one.

        A collective that waits for a process that is gone may wait for very long. `store` is
        another connection to the same, so that a look that gets no answer holds up nothing.
        """
        threading.Thread(target=self._watch, args=(store,), name="failures", daemon=True).start()

    def leave(self, rank: int, seconds: float) -> None:
        """Wait until all processes of the run are through, and watch no more.

        Otherwise whoever starts them could take one that has ended for a reason to end those that
        are still writing. Rank 0 goes last, as it may host the store.

        Raises:
            ElsewhereError: another process failed before it was through.
        """
        deadline, size = time.monotonic() + seconds, self._placement.size
        with suppress(dist.DistError):  # the host of the store is through
            if self._store.add("through", 1) == size:
                self._store.set("end", "")
            self._wait_for_end(deadline)
            if self._store.add("through", 0) < size and (first := self.first()):
                raise ElsewhereError(str(first))
            self._over.set()
            self._store.add("gone", 1)
            if rank == 0:
                self._wait_for("gone", size, min(deadline, time.monotonic() + GRACE_SECONDS))
        self._over.set()

    def _wait_for_end(self, deadline: float) -> None:
        """Until all are through or one has failed; a question every few seconds, as a signal's
        handler does not run meanwhile."""
        while (left := deadline - time.monotonic()) > 0:
            with suppress(dist.DistStoreError):  # the time was up
                self._store.wait(["end"], timedelta(seconds=min(left, _WAIT_SECONDS)))
                return

    def report(self, error: BaseException) -> int:
        """Say, once for all processes, why this one ends; its exit status.

        The first to fail says so with its rank, a bug with the traceback; what follows from it
        in others, they say in their own log files, and once on every other terminal.
        """
        with self._lock:
            self._over.set()
            self._store.set_timeout(_ANSWER)
            log_failure(error, self._who)
            if isinstance(error, StrangerError):
                return explain(error)
            own = self._describe(error)
            try:
                status = self._tell(error, own)
                self._wait_for_others()
            except dist.DistError:
                status = self._without_store(error, own)
            return status

    def first(self) -> Failure | None:
        """The first failure of the run, if there is one."""
        try:
            if not self._store.check(["failure"]):
                return None
            return Failure(**json.loads(self._store.get("failure")))
        except dist.DistError:
            return None

    def killed(self, who: str, text: str) -> int:
        """Say that a process of this command was ended from outside; the exit status."""
        own = Failure(who, socket.gethostname(), self._placement.terminal, text, _BUG, False)
        with suppress(dist.DistError):
            first = self._register(own)
            if first.lost:  # somebody noticed, and does not know why
                self._store.set("failure", json.dumps(asdict(own)))
            elif first != own:
                return self.echo(first)
        _print(f"error: {who} {text}")
        return own.status

    def echo(self, first: Failure | None) -> int:
        """Say on this terminal that another process failed, if nothing was said; the status."""
        if first is None:
            _print("error: a process of the run was lost; the log files in OUTPUT_DIR say more")
            return _BUG
        with suppress(dist.DistError):
            on_this = first.terminal == self._placement.terminal and not first.lost
            if not on_this and self._store.add(f"said/{self._placement.terminal}", 1) == 1:
                _print(f"error: {first}")
        return first.status

    def _describe(self, error: BaseException) -> Failure:
        lost = isinstance(error, RuntimeError) and _LOST.search(str(error)) is not None
        lost = lost and not isinstance(error, _MISTAKES)
        text, status = _line(error), exit_status(error)
        if lost:
            text = f"{self._who or 'this one'} has lost another process of the run ({_cause(text)})"
        elif status == _BUG:
            text = f"{type(error).__name__}: {text}"
        return Failure(
            self._who, socket.gethostname(), self._placement.terminal, text, status, lost
        )

    def _register(self, own: Failure) -> Failure:
        """The first failure of the run: this one, if none was before it."""
        mine = json.dumps(asdict(own))
        first = self._store.compare_set("failure", "", mine)
        self._store.set("end", "")  # to wake those that wait for the others to be through
        return Failure(**json.loads(first))

    def _tell(self, error: BaseException, own: Failure) -> int:
        """Register a failure, say it where it is the first, and let the others know; the status."""
        first = self.first() if isinstance(error, ElsewhereError) else self._register(own)
        if first == own and not own.lost:
            explain(error, self._who)
        elif not self._silent:
            self.echo(first)
        self._store.add("noticed", 1 if self._who else self._placement.count)
        if first == own:
            return own.status
        time.sleep(_LOOK_SECONDS)  # who watches the processes names the first that ends
        return first.status if first else own.status

    def _wait_for_others(self) -> None:
        """The host of the store goes last, within reason: the others look there why they end."""
        if self._hosts:
            time.sleep(_LOOK_SECONDS)  # for those that have not arrived, and are not counted
            there = self._store.add("arrived", 0)
            self._wait_for("noticed", there, time.monotonic() + GRACE_SECONDS + 2 * _LOOK_SECONDS)

    def _wait_for(self, name: str, count: int, deadline: float) -> None:
        while self._store.add(name, 0) < count and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _without_store(self, error: BaseException, own: Failure) -> int:
        """The host of the store is gone, rank 0 or what has started it."""
        if not own.lost and not isinstance(error, ElsewhereError):
            explain(error, self._who)
        elif not self._silent and self._speaks_without_store():
            _print(f"error: {own.text}")
        return _BUG if isinstance(error, ElsewhereError) else own.status

    def _speaks_without_store(self) -> bool:
        """One process for each terminal, that is not rank 0."""
        if self._placement.launcher == "srun":
            return self._placement.first_rank == 1
        return self._placement.speaks

    def _watch(self, store: dist.Store) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            if reason := _reason_to_end(store):
                if not self._over.wait(GRACE_SECONDS):
                    end_process(self.report(ElsewhereError(reason)))
                return


def _reason_to_end(store: dist.Store) -> str:
    """What another process failed of; "" while none has."""
    try:
        if not store.check(["failure"]):
            return ""
        return str(Failure(**json.loads(store.get("failure"))))
    except dist.DistError as error:
        return f"another process of the run was lost ({_line(error)})"


def _text(error: BaseException, who: str, status: int) -> str:
    before = f"{who}: " if who else ""
    if status == INTERRUPTED_STATUS:
        return f"interrupted: {error}"
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if status == _BUG:
        return f"error: {before}{''.join(traceback.format_exception(error))}".rstrip()
    return f"error: {before}{_line(error)}"


def _line(error: BaseException | None) -> str:
    """What an error says, with the notes that it was given on its way."""
    return "\n".join([str(error) or type(error).__name__, *getattr(error, "__notes__", ())])


def _cause(text: str) -> str:
    """What gloo says without the line of its source and its advice; the notes after it."""
    first, *notes = text.splitlines()
    return "; ".join([re.sub(r"^\[\S+:\d+\] ", "", first).partition(". ")[0], *notes])


def _print(text: str) -> None:
    """In one piece, as several processes may write to the terminal."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
