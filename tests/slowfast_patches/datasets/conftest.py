"""What tests of data sets share."""

import pytest

from slowfast_patches.datasets.preparing import prepare


def in_this_process(work, jobs, workers):
    """Stand in for `run_each`, whose processes take seconds to start."""
    return ((job, work(job)) for job in jobs)


@pytest.fixture
def run(load_program, capsys, monkeypatch):
    """`run("--csv", path, ...)`: the exit status of tools/prepare_data.py and what it printed."""
    tool = load_program("tools/prepare_data.py")
    monkeypatch.setattr(prepare, "run_each", in_this_process)

    def run_tool(*args: object) -> tuple[int, str]:
        try:
            status = tool.main([str(arg) for arg in args])
        except SystemExit as error:
            status = error.code
        return status, "".join(capsys.readouterr())

    return run_tool
