"""Machine errors are reported with cause and remedy, and not as bugs."""

import errno
import logging
import multiprocessing
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch

from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.errors import (
    RunError,
    UserError,
    exit_status,
    explain_machine_error,
    is_lost_rank,
    mistake_in,
    printable,
    report,
    writing,
)
from slowfast_patches.utils.interruption import TrainingInterruptedError


def lose_worker() -> None:
    reader, writer = multiprocessing.Pipe()
    writer.close()
    reader.recv()


def fail(number: int) -> Callable[[], None]:
    def act() -> None:
        raise OSError(number, os.strerror(number), "a.mp4")

    return act


@pytest.mark.parametrize(
    ("act", "named", "remedy"),
    [
        (lose_worker, "worker was killed (EOFError)", "NUM_WORKERS"),
        (fail(errno.EMFILE), "open files", "ulimit -n"),
        (fail(errno.EAGAIN), "processes", "ulimit -u"),
        (fail(errno.ENOSPC), "disk is full (OSError: [Errno 28] No space", "Free space"),
        (fail(errno.EIO), "disk failed", "Check the disk"),
        (fail(errno.ESTALE), "disk failed", "network file system"),
        (fail(errno.EROFS), "disk failed", "network file system"),
        (fail(errno.EFBIG), "limit of its size", "ulimit -f"),
        (fail(errno.ENOMEM), "out of memory", "NUM_WORKERS"),
        (lambda: torch.empty(1 << 50), "out of memory", "NUM_WORKERS"),
        (lambda: np.empty(1 << 50), "out of memory", "NUM_WORKERS"),
    ],
)
def test_an_error_of_the_machine_is_one_line_with_a_remedy(act, named, remedy, capsys):
    @tool
    def main() -> int:
        act()
        return 0

    assert main() == 2
    said = capsys.readouterr().err
    assert named in said
    assert remedy in said
    assert "bug" not in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shapes do not match"),
        ConnectionError("of the user's data set"),
        ValueError("No space left on device"),
        OSError(errno.ENOENT, "No such file"),
    ],
)
def test_other_errors_are_not_explained_away(error):
    assert explain_machine_error(error) == ""


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[../gloo/transport/tcp/pair.cc:598] Connection closed by peer"), True),
        (type("DistNetworkError", (RuntimeError,), {})("recv failed"), True),
        (RuntimeError("Connection closed by peer"), False),
    ],
)
def test_a_lost_rank_is_told_from_other_errors(error, lost):
    assert is_lost_rank(error) == lost
    assert ("Another rank failed" in explain_machine_error(error)) == lost


def test_of_an_error_in_a_worker_the_last_line_counts():
    """Above it, there may be the text of an error that the worker has handled."""
    text = "Caught RuntimeError in worker 0.\nOriginal Traceback (most recent call last):\n"
    full = "OSError: [Errno 28] No space left on device"
    assert "A disk is full" in explain_machine_error(RuntimeError(f"{text}  f()\n{full}"))
    other = "RuntimeError: shapes do not match"
    assert explain_machine_error(RuntimeError(f"{text}{full}\n{other}")) == ""


@pytest.mark.parametrize("kind", [UserError, RunError])
def test_a_mistake_in_a_worker_is_told_without_its_traceback(kind):
    """torch raises the error of a worker again, with the traceback in place of its message."""
    said = "a.csv has no videos.\nGive another list."
    name = f"{kind.__module__}.{kind.__name__}"
    above = "Caught X in DataLoader worker process 0.\nOriginal Traceback (most recent call last):"
    assert str(kind(f"{above}\n  File 'x'\n{name}: {said}\n")) == said
    assert str(kind(f"{above}\n  File 'x'\n{kind.__name__}: {said}\n")) == said
    assert str(kind(f"{name}: {said}")) == f"{name}: {said}"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EACCES, "Permission denied", "a.csv"), "a.csv: Permission denied"),
        (OSError(errno.EACCES, "Permission denied", "b.csv"), "a.csv: b.csv: Permission denied"),
        (OSError("of a library\nin two lines"), "a.csv: of a library in two lines"),
        (OSError(), "a.csv: OSError"),
    ],
)
def test_a_mistake_in_a_file_is_one_line_that_names_the_file(error, said):
    with pytest.raises(UserError) as caught, mistake_in("a.csv"):
        raise error
    assert str(caught.value) == said
    assert caught.value.__cause__ is error


def test_only_the_errors_of_bad_input_are_mistakes_and_those_of_the_machine_are_not():
    with pytest.raises(KeyError), mistake_in("a.csv"):
        raise KeyError("x")
    with pytest.raises(UserError, match=r"a\.csv: 'x'"), mistake_in("a.csv", KeyError):
        raise KeyError("x")
    full = OSError(errno.ENOSPC, "No space left on device")
    for context in (mistake_in("a.csv"), writing("a.csv")):
        with pytest.raises(OSError, match="No space left") as caught, context:
            raise full
        assert caught.value is full
    assert full.filename == "a.csv"


def test_exit_statuses_and_control_characters(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_MAX_RESTARTS", raising=False)
    stopped = TrainingInterruptedError("stopped")
    errors = (KeyboardInterrupt(), stopped, UserError("x"), MemoryError(), ValueError("x"))
    assert [exit_status(error) for error in errors] == [130, 75, 2, 2, 1]
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    assert exit_status(stopped) == 0
    assert printable("a\x1b[31mb\tc\n\udcff") == "a\\x1b[31mb\tc\n\\udcff"


def test_an_error_is_reported_with_its_rank_and_notes_to_the_log_and_the_terminal(tmp_path, capsys):
    handler = logging.FileHandler(tmp_path / "train.log")
    logging.getLogger().addHandler(handler)
    error = RunError("a disk is slow")
    error.add_note("The last checkpoint is x.")
    try:
        assert report(error, "rank 1: ") == 2
        assert report(TrainingInterruptedError("stopped by SIGTERM"), terminal=False) == 75
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
    said = "error: rank 1: a disk is slow\nThe last checkpoint is x.\n"
    assert capsys.readouterr().err == said
    log = (tmp_path / "train.log").read_text()
    assert log == f"{said}interrupted: stopped by SIGTERM\n"
