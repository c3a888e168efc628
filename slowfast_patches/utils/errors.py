"""Errors that end a program: mistakes of the user, faults of the machine, and bugs.

A mistake of the user is a `MultigridError`, of which `UserError` and `RunError` are subclasses. It
is raised where the mistake is known. A fault of the machine, such as a full disk, is an exception
that `explain_machine_error` recognizes. Both are reported in one line. All other exceptions, of
whatever class, are bugs in the package or in code of the user. They are reported with their
traceback, after a line that says where to look.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import textwrap
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from multigrid.errors import MultigridError
from slowfast_patches.utils.blame import where_to_look
from slowfast_patches.utils.interruption import (
    BUG_STATUS,
    BY_HAND_STATUS,
    MISTAKE_STATUS,
    TrainingInterruptedError,
    interrupted_status,
)

_CONTROL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Matches control characters except tabs and line ends, and file-name bytes that are not UTF-8."""


class UserError(MultigridError):
    """Error raised for a mistake of the user. The message says what is wrong and what to do.

    A DataLoader worker may also raise this error.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(_own_message(str(message), type(self)))


class RunError(UserError):
    """Error that ends a run because the user has to change something, such as a file or a key.

    Raise this error for mistakes that are found only during the run. The run can resume from its
    last checkpoint, which the report names.

    Attributes:
        everywhere: Whether all ranks raise this error. In this case, only one of them reports it.
    """

    def __init__(self, message: object, *, everywhere: bool = False) -> None:
        super().__init__(message)
        self.everywhere = everywhere


def _own_message(text: str, kind: type[BaseException]) -> str:
    """Return the message of an error without the traceback of a DataLoader worker.

    DataLoader re-raises an error of a worker with the traceback before the message.
    """
    if "Original Traceback" not in text:
        return text
    return re.split(rf"^(?:[\w.]+\.)?{kind.__name__}: ", text, flags=re.MULTILINE)[-1].strip()


def exit_status(error: BaseException) -> int:
    """Return the exit status with which a program must end because of an error."""
    if isinstance(error, KeyboardInterrupt):
        return BY_HAND_STATUS
    if isinstance(error, TrainingInterruptedError):
        return interrupted_status()
    return BUG_STATUS if is_bug(error) else MISTAKE_STATUS


def is_bug(error: BaseException) -> bool:
    """Return whether an error is neither a mistake of the user nor a fault of the machine."""
    mistakes = (MultigridError, TrainingInterruptedError)
    return not isinstance(error, mistakes) and not explain_machine_error(error)


def report(error: BaseException, who: str = "", *, terminal: bool = True) -> int:
    """Write the error that ended a program to the log files and to the terminal.

    If the error is a bug, its traceback is written as well, after a line that says where to look.

    Args:
        error: The error.
        who: Prefix of the message, such as "rank 1: ".
        terminal: Whether to write to the terminal. Log files are always written.

    Returns:
        The exit status.
    """
    status = exit_status(error)
    interrupted = isinstance(error, TrainingInterruptedError)
    text = explain_machine_error(error) or _own_message(str(error), type(error))
    text = "\n".join([text or type(error).__name__, *getattr(error, "__notes__", ())])
    if status == BUG_STATUS:
        text = "\n".join([where_to_look(error), *traceback.format_exception(error)]).rstrip()
    text = printable(f"interrupted: {text}" if interrupted else f"error: {who}{text}")
    if terminal:
        sys.stderr.write(text + "\n")  # Write in one call, because other ranks may also write.
        sys.stderr.flush()
    level = logging.WARNING if interrupted else logging.ERROR
    record = logging.LogRecord(__name__, level, __file__, 0, text, None, None)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            handler.handle(record)
    return status


def printable(text: str) -> str:
    """Escape control characters, which a terminal would execute. File names may contain them."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


@contextmanager
def mistake_in(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Convert exceptions that a library raises in the `with` statement to UserError.

    The message is one line, and starts with `what`. Faults of the machine are not converted.

    Args:
        what: Start of the message. It names the file or the key.
        kinds: Classes of the exceptions that the library raises for bad input. By default, those of
            a file that cannot be opened. The body must not raise these for other reasons.
    """
    kinds = kinds or (OSError,)
    try:
        yield
    except kinds as error:
        if explain_machine_error(error):
            raise
        raise UserError(f"{what}: {_reason(error, what)}") from error


def _reason(error: Exception, what: str) -> str:
    """Return an error message on one line, without an error number or a path that is in `what`."""
    text = getattr(error, "strerror", None) or str(error)
    name = getattr(error, "filename", None)
    if name is not None and str(name) not in what:
        text = f"{name}: {text}"
    return textwrap.shorten(printable(text), 300) or type(error).__name__


@contextmanager
def writing(path: str | os.PathLike[str], option: str = "") -> Iterator[None]:
    """Pass OSErrors that the `with` statement raises to `raise_unwritable`."""
    try:
        yield
    except OSError as error:
        raise_unwritable(error, path, option)


def raise_unwritable(error: OSError, path: str | os.PathLike[str], option: str = "") -> NoReturn:
    """Raise the error of a file or a folder that cannot be written.

    It is a RunError, except for faults of the machine. These get the name of the file, which
    errors of a full disk lack.

    Args:
        error: The error of the operating system.
        path: The file or the folder.
        option: Command-line option or config key that sets the path.
    """
    if error.filename is None:
        error.filename = os.fspath(path)
    if explain_machine_error(error):
        raise error
    text = f"{option} {os.fspath(path)} cannot be written".lstrip()
    reason = _reason(error, text)
    if isinstance(error, FileExistsError | NotADirectoryError):
        reason = "a file is in the place of a folder"
    raise RunError(f"{text}: {reason}. Choose another path, or make it writable.") from error


_LOST_RANK = r"Dist\w*Error|/gloo/transport/"  # NCCL and the store, gloo
_LOST_WORKER = r"DataLoader worker \(pid"
_EXPLANATIONS = {
    _LOST_RANK: "Another rank failed, or did not answer within DIST_TIMEOUT_SECONDS ({}). See the "
    "log of that rank.",
    "Too many open files|ancdata": "The limit of open files is reached ({}). Raise it with ulimit "
    "-n, or set a lower DATA_LOADER.NUM_WORKERS.",
    "shared memory|/dev/shm|Bus error": "The shared memory in /dev/shm is full ({}). Enlarge it "
    "(docker run --shm-size 8g), or set a lower DATA_LOADER.NUM_WORKERS. 0 workers need no shared "
    "memory.",
    _LOST_WORKER: "A data loader worker was killed ({}). If the machine was out of memory, set a "
    "lower DATA_LOADER.NUM_WORKERS.",
    "CUDA out of memory": "The GPU is out of memory ({}). End other programs on the GPU, or set "
    "TRAIN.MIXED_PRECISION True or a lower TEST.BATCH_SIZE.",
    "MemoryError|[Cc]an(not|'t) allocate memory": "The machine is out of memory ({}). End other "
    "programs, or set a lower DATA_LOADER.NUM_WORKERS.",
    "can't start new thread|Resource temporarily unavailable": "The limit of processes and threads "
    "is reached ({}). Raise it (ulimit -u, docker run --pids-limit), or set a lower "
    "DATA_LOADER.NUM_WORKERS.",
    "No space left on device|Disk quota exceeded": "A disk is full ({}). Free space on it.",
    "Errno 27]": "A file exceeds the limit of its size ({}). Raise it with ulimit -f.",
    "Errno (5|30|107|116)]": "A disk failed ({}). Check the disk, or the network file system.",
}
"""Cause and remedy of the errors whose text matches a pattern. The text replaces {}."""


def explain_machine_error(error: BaseException) -> str:
    """Return the cause and the remedy of a machine error, or "" for other errors."""
    if not isinstance(error, (RuntimeError, OSError, EOFError, MemoryError)):
        return ""
    # The text of an error in a data loader worker is the traceback. Its last line is the error.
    lines = f"{type(error).__name__}: {error}".strip().splitlines()
    line = lines[-1 if "Original Traceback" in str(error) else 0].rstrip(" .:")
    found = next((text for pattern, text in _EXPLANATIONS.items() if re.search(pattern, line)), "")
    if not found and _is_broken_connection(error):
        found = _EXPLANATIONS[_LOST_WORKER]
    return found.format(line)


def is_lost_rank(error: BaseException) -> bool:
    """Return whether an error, or its explanation, says that the connection to a rank was lost."""
    return re.search(_LOST_RANK, f"{type(error).__name__}: {error}") is not None


def _is_broken_connection(error: BaseException) -> bool:
    """Return whether multiprocessing lost the connection to another process."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    is_lost = isinstance(error, (ConnectionError, EOFError))
    return is_lost and any("multiprocessing" in file for file in files)
