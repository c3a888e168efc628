"""Command lines of random words end soon, with status 0 or 2, and never with a traceback.

Half of the commands have values for all required options, so that they reach deeper code. Nothing
is rendered, and no other process is started.
"""

from __future__ import annotations

import random
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from slowfast_patches.utils.errors import UserError
from tests.conftest import kept_logging

ROOT = Path(__file__).parents[1]
TOOLS = sorted(path.stem for path in (ROOT / "tools").glob("[a-z]*.py"))
SECONDS = 120
"""Time in which a command must end. Most take a tenth of a second."""
WORDS = (
    *("", "0", "1", "3", "-1", "-0", "1e9", "1e400", "nan", "0x10", "٣", "a", "a=b", "=", "A.B=1"),
    *(
        "--",
        "-",
        "--nothing",
        "--cfg=",
        "ä ö",
        "x" * 300,
        "[1,",
        "[1, 2]",
        "{",
        "'",
        "None",
        "True",
    ),
    *(
        "MODEL.ARCH",
        "slowfast",
        "MODEL.NUM_CLASSES",
        "DATA.NUM_FRAMES",
        "SOLVER.BASE_LR",
        "NUM_GPUS",
    ),
    *("TRAIN.BATCH_SIZE", "MULTIGRID.LONG_CYCLE", "SOLVER.STEPS", "DATA.PATH_TO_DATA_DIR", "."),
    *(
        "gone.yaml",
        "folder",
        "empty.yaml",
        "list.csv",
        "text.yaml",
        "binary.pyth",
        "s3://",
        "..",
        "/",
    ),
    str(ROOT / "configs/Demo/SLOWFAST_DEMO.yaml"),
    str(ROOT / "configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml"),
)


def random_command(tool: ModuleType, rng: random.Random) -> list[str]:
    """Return up to eight words of the command line of a tool."""
    actions = [action for action in tool.new_parser()._actions if action.option_strings]
    words = list[str]()
    if rng.random() < 0.5:
        for action in actions:
            if action.required:
                words += [rng.choice(action.option_strings), rng.choice(WORDS)]
    options = [name for action in actions for name in action.option_strings]
    for _ in range(rng.randrange(7)):
        words.append(rng.choice(options) if rng.random() < 0.4 else rng.choice(WORDS))
    return words


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with an empty recipe and wrong files of each kind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.yaml").touch()
    (tmp_path / "text.yaml").write_text("MODEL: [")
    (tmp_path / "list.csv").write_text("a.mp4 0\nb.mp4\n")
    (tmp_path / "binary.pyth").write_bytes(bytes(range(256)))
    return tmp_path


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UserError("no process is started in this test")

    monkeypatch.setattr(subprocess, "Popen", refuse)


def end(tool: ModuleType, words: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """Run a tool, and return its exit status."""

    def late(*_: object) -> None:
        pytest.fail("the command does not end")

    monkeypatch.setattr(sys, "argv", [f"{tool.__name__}.py", *words])
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        with kept_logging():
            return tool.main()
    except SystemExit as ended:
        return ended.code or 0
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


MANY = pytest.param(100, marks=pytest.mark.slow("the quick tests have a few words"))


@pytest.mark.parametrize("count", [6, MANY])
@pytest.mark.parametrize("name", TOOLS)
def test_random_words_end_with_a_message(
    name: str,
    count: int,
    load_program: Any,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tool = load_program(f"tools/{name}.py")
    if name == "demo_data":
        monkeypatch.setattr(tool, "FORMS", dict.fromkeys(tool.FORMS, lambda *_: 0))
    for seed in range(count):
        words = random_command(tool, random.Random(f"{name} {seed}"))
        status = end(tool, words, monkeypatch)
        out, err = capsys.readouterr()
        said = f"{name} {shlex.join(words)}\n{err}"
        assert status in (0, 2), said
        assert "Traceback" not in err, said
        assert (err if status else out).strip(), said
