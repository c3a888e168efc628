"""What tests of data sets share."""

from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture
def run(
    load_program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """`run("--csv", path, ...)`: the exit status of tools/prepare_data.py and what it printed."""
    tool = load_program("tools/prepare_data.py")

    def run_tool(*args: object) -> tuple[int, str]:
        try:
            status = tool.main([str(arg) for arg in args])
        except SystemExit as error:
            status = error.code
        output = capsys.readouterr()
        return status, output.out + output.err

    return run_tool
