"""One run at a time writes to a folder: the second is refused, and says which is the first."""

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest

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

pytestmark = pytest.mark.slow


@pytest.fixture
def holder(tmp_path):
    """A process that holds `tmp_path`."""
    command = [sys.executable, "-c", HOLDER, tmp_path]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout.readline() == "locked\n"
        yield process
        process.stdin.close()


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
