"""Machine errors are reported with cause and remedy, and not as bugs."""

import errno
import multiprocessing
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch

from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.errors import explain_machine_error


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
