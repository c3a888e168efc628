"""A data set is read, or it is prepared: never both at once.

The folder of a prepared data set has a file `.lock`. The run that prepares holds it alone, from
before it changes anything until its lists are whole; whoever reads holds it together with others.
The lists themselves cannot be held: they are replaced by files of the same name. A lock ends with
the processes that have it, however they end: with a training's data workers too, which follow a
killed training within seconds.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, TextIO

__all__ = ["hold_alone", "reading"]

logger = logging.getLogger(__name__)

_LOCK = ".lock"
_READERS = "a training or an evaluation reads the data set there (`lsof .lock` names its process)"


def hold_alone(folder: Path) -> TextIO:
    """Hold a folder to prepare a data set in it, until the file that this returns is closed.

    Raises:
        ValueError: another run prepares there, or a training or an evaluation reads what is there.
    """
    lock = (folder / _LOCK).open("a+", encoding="utf-8")
    if not _take(lock, fcntl.LOCK_EX):
        with lock:
            who = _READERS if _take(lock, fcntl.LOCK_SH) else _writer(lock)
            raise ValueError(f"{folder}: {who}; wait until it is done, or choose another folder")
    lock.truncate(0)
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    lock.write(f"process {os.getpid()} on {socket.gethostname()} since {since}\n")
    lock.flush()
    return lock


@contextmanager
def reading(lists: Iterable[Path]) -> Iterator[None]:
    """Keep the data sets of some lists from being prepared anew while the body lasts.

    A folder in which nothing was ever prepared has no `.lock` and is left alone.

    Raises:
        ValueError: one of them is being prepared.
    """
    with ExitStack() as held:
        for folder in {Path(os.path.realpath(path)).parent for path in lists}:
            try:
                lock = held.enter_context((folder / _LOCK).open(encoding="utf-8"))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                _warn(folder / _LOCK, error)
                continue
            if not _take(lock, fcntl.LOCK_SH):
                writer = _writer(lock)
                raise ValueError(f"{folder} is being prepared: {writer}; wait until it is done")
        yield


def _take(lock: IO[Any], kind: int) -> bool:
    """Take a lock, unless others have one that excludes it; where there are none, so it is said."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        _warn(Path(lock.name), error)
    return True


def _warn(path: Path, error: OSError) -> None:
    said = "%s cannot be locked (%s): do not prepare the data set anew while a training reads it"
    logger.warning(said, path, error.strerror)


def _writer(lock: TextIO) -> str:
    lock.seek(0)
    return f"another run is at work there ({lock.read().strip()})"
