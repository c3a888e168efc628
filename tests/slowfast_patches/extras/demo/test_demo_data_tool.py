"""Tests of multigrid-demo-data: the output folder is locked, and a mistake is one line."""

import pytest

from slowfast_patches.utils.lock import locked


@pytest.fixture
def demo(load_program, capsys):
    tool = load_program("tools/demo_data.py")

    def call(output):
        counts = ("--train", "0", "--val", "0", "--test", "0")
        status = tool.main(["--output", str(output), *counts, "--workers", "1"])
        return status, "".join(capsys.readouterr())

    return call


def test_two_runs_do_not_write_into_one_folder(demo, tmp_path, monkeypatch):
    held = []
    monkeypatch.setattr("fcntl.lockf", lambda *_: held.append(1) or _raise())
    status, output = demo(tmp_path / "d")
    assert (status, held, "is in use by another run" in output) == (2, [1], True)
    assert not (tmp_path / "d/train.csv").exists()
    monkeypatch.undo()
    assert demo(tmp_path / "d")[0] == 0
    assert (tmp_path / "d/train.csv").exists()


def _raise():
    raise BlockingIOError


@pytest.mark.parametrize("content", ["", "{}", "[]", "\0"])
def test_damaged_settings_are_named(demo, tmp_path, content):
    (tmp_path / "demo_data.json").write_text(content)
    status, output = demo(tmp_path)
    assert (status, str(tmp_path) in output, "Traceback" in output) == (2, True, False)


def test_an_output_that_is_a_file_is_named(demo, tmp_path):
    (tmp_path / "file").touch()
    for output in (tmp_path / "file", tmp_path / "file/deeper"):
        status, said = demo(output)
        assert (status, f"--output {output}" in said, "Traceback" in said) == (2, True, False)


def test_the_lock_is_free_afterwards(demo, tmp_path):
    assert demo(tmp_path)[0] == 0
    with locked(tmp_path):
        pass
