"""What tests of data sets share."""

import pytest

from slowfast_patches.datasets.preparing import prepare
from slowfast_patches.utils.processes import run_each


@pytest.fixture
def run(load_program, capsys, monkeypatch):
    """`run("--csv", path, ...)`: the exit status of tools/prepare_data.py and what it printed.

    It starts no processes, which takes seconds.
    """
    tool = load_program("tools/prepare_data.py")
    monkeypatch.setattr(prepare, "run_each", lambda work, jobs, _: run_each(work, jobs, 0))

    def run_tool(*args):
        try:
            status = tool.main([str(arg) for arg in args])
        except SystemExit as error:
            status = error.code
        return status, "".join(capsys.readouterr())

    return run_tool


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The user's cache folder, of this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "multigrid"
