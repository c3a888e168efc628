"""A data set that is read is not prepared, and one that is being prepared is not read."""

import errno
import fcntl
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.in_use import hold_alone, reading
from slowfast_patches.datasets.preparing.prepared_set import Settings, open_set
from slowfast_patches.train import run as run_module

READER = """
import sys, time
from pathlib import Path
from slowfast_patches.datasets.lists.in_use import reading
with reading([Path(sys.argv[1]) / "train.csv"]):
    print("holds", flush=True)
    time.sleep(600)
"""
WRITER = """
import sys, time
from pathlib import Path
from slowfast_patches.datasets.lists.in_use import hold_alone
lock = hold_alone(Path(sys.argv[1]))
print("holds", flush=True)
time.sleep(600)
"""


@pytest.fixture
def folder(demo_data: Path, tmp_path: Path) -> Path:
    """A data set that was prepared once: lists, and the lock that nobody holds."""
    folder = tmp_path / "prepared"
    folder.mkdir()
    for split in ("train", "val", "test"):
        shutil.copy(demo_data / f"{split}.csv", folder)
    hold_alone(folder).close()
    return folder


@contextmanager
def process(program: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the folder, until it is killed."""
    command = [sys.executable, "-c", program, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        try:
            assert other.stdout.readline() == "holds\n"
            yield other
        finally:
            other.kill()


@pytest.mark.slow
def test_what_a_training_reads_is_not_prepared_until_it_is_gone(folder: Path):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with process(READER, folder), reading([folder / "train.csv"]):
        with (
            pytest.raises(ValueError, match=r"a training or an evaluation reads .*lsof"),
            open_set(folder, Settings(), []),
        ):
            pass
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    with open_set(folder, Settings(), []):  # both are gone, one of them by SIGKILL
        pass


@pytest.mark.slow
def test_what_is_being_prepared_is_neither_read_nor_prepared(folder: Path):
    with process(WRITER, folder) as other:
        writer = f"process {other.pid} on {socket.gethostname()} since 20"
        with (
            pytest.raises(ValueError, match=f"is being prepared.*{writer}"),
            reading([folder / "val.csv"]),
        ):
            pass
        with pytest.raises(ValueError, match=f"another run is at work there .{writer}"):
            hold_alone(folder)
    with reading([folder / "val.csv"]):
        pass


@pytest.mark.slow
def test_a_training_is_refused_before_it_starts(
    folder: Path, demo_data: Path, tmp_path: Path, command_line: Callable[..., tuple[int, str]]
):
    paths = ("DATA.PATH_TO_DATA_DIR", folder, "DATA.PATH_PREFIX", demo_data)
    with process(WRITER, folder) as other:
        status, said = command_line(tmp_path / "run", *paths)
    assert status == 2
    assert said.startswith(f"error: {folder} is being prepared")
    assert f"process {other.pid} " in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("enabled", ["TRAIN", "TEST"])
def test_a_run_holds_its_lists_for_as_long_as_it_lasts(
    folder: Path,
    demo_data: Path,
    tmp_path: Path,
    tiny_config: Callable,
    monkeypatch: pytest.MonkeyPatch,
    enabled: str,
):
    refused = []

    def launch(cfg: Recipe, init_method: str, main: Callable, check: Callable) -> None:
        check(cfg)
        with pytest.raises(ValueError, match="a training or an evaluation reads"):
            hold_alone(folder)
        refused.append(True)

    monkeypatch.setattr(run_module, "launch", launch)
    monkeypatch.setattr(run_module, "tested_file", lambda cfg: ("", "pytorch", "TEST"))
    monkeypatch.setattr(run_module, "check_file", lambda *_, **__: None)
    keys = ("TRAIN.ENABLE", enabled == "TRAIN", "TEST.ENABLE", enabled == "TEST")
    paths = ("DATA.PATH_TO_DATA_DIR", folder, "DATA.PATH_PREFIX", demo_data)
    run_module.run(tiny_config(tmp_path / "run", *keys, *paths))
    assert refused == [True]
    hold_alone(folder).close()


def test_without_locks_a_warning_says_so_and_both_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with reading([folder / "train.csv", folder / "val.csv"]):
        pass
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"{folder}/.lock cannot be locked (No locks available)")
    hold_alone(folder).close()
