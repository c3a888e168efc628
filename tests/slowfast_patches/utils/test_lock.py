"""One run at a time writes to a folder: the second is refused, and says which is the first."""

import contextlib
import errno
import fcntl
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from unittest.mock import Mock

import pytest

from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.lock import locked

HOLDER = """
import os, sys
from slowfast_patches.utils.lock import locked
with locked(sys.argv[1]):
    if os.fork() == 0:  # as a DataLoader's worker: it outlives its parent for a while
        sys.stdin.read()
        os._exit(0)
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds `tmp_path`."""
    command = [sys.executable, "-c", HOLDER, tmp_path]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout.readline() == "locked\n"
        yield process
        process.stdin.close()


@pytest.mark.slow("starts processes")
def test_a_second_run_is_refused_until_the_first_is_killed(tmp_path, holder):
    first = f"OUTPUT_DIR {tmp_path} is in use by another run: process {holder.pid} on"
    said = re.escape(first) + r".* since 20\d\d-\d\d-\d\dT[\d:+]+: .*python"
    for _ in range(2):  # to look does not set it free
        with pytest.raises(ValueError, match=said), locked(tmp_path):
            pytest.fail("locked twice")
    holder.send_signal(signal.SIGKILL)
    holder.wait(60)
    with locked(tmp_path):  # its child still lives
        assert f"process {os.getpid()} on" in (tmp_path / "run.lock").read_text()


@pytest.mark.slow("starts programs")
def test_a_training_is_refused_before_it_changes_anything(command_line, tmp_path, holder):
    before = {path: path.read_bytes() for path in tmp_path.rglob("*")}
    status, said = command_line(tmp_path)
    assert status == 2
    assert f"OUTPUT_DIR {tmp_path} is in use by another run: process {holder.pid}" in said
    assert {path: path.read_bytes() for path in tmp_path.rglob("*")} == before


def test_without_locks_a_run_goes_on_with_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(fcntl, "lockf", Mock(side_effect=OSError(errno.ENOLCK, "no locks")))
    with locked(tmp_path):
        assert "cannot be locked" in caplog.text


def test_the_file_says_who_writes_to_a_new_folder_and_is_empty_afterwards(tmp_path):
    folder = tmp_path / "new" / "run"
    with locked(folder):
        text = (folder / "run.lock").read_text()
        assert text.startswith(f"process {os.getpid()} on {socket.gethostname()}, since 20")
        assert text.endswith(shlex.join(sys.orig_argv))
    with contextlib.suppress(KeyError), locked(folder):
        raise KeyError
    assert (folder / "run.lock").read_text() == ""


@pytest.mark.parametrize("error", [PermissionError, BlockingIOError])
def test_a_folder_of_another_run_is_refused_with_what_its_file_says(tmp_path, monkeypatch, error):
    (tmp_path / "run.lock").write_text("process 7 on there")
    monkeypatch.setattr(fcntl, "lockf", Mock(side_effect=error(errno.EAGAIN, "locked")))
    said = re.escape(f"--output {tmp_path} is in use by another run: process 7 on there. Wait")
    with pytest.raises(UserError, match=said), locked(tmp_path, "--output"):
        pytest.fail("locked twice")
    assert (tmp_path / "run.lock").read_text() == "process 7 on there"


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"OUTPUT_DIR .*file/a is not writable: Not a directory"):
        locked(tmp_path / "file" / "a").__enter__()
