"""The examples of docs/extend.md, in a module of the user's own: they train as printed."""

import math
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slowfast_patches import load_model
from slowfast_patches.config.metrics import metric_title
from slowfast_patches.registry import MODELS
from tests.conftest import Folder

PAGE = (Path(__file__).parents[3] / "docs" / "extend.md").read_text()
MODULES = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = re.findall(r"```bash\nmultigrid-train (.*?)\n```", PAGE, re.DOTALL)
SHORT = (
    *("SOLVER.MAX_EPOCH", 1, "SOLVER.STEPS", [0], "SOLVER.LRS", [1], "SOLVER.WARMUP_EPOCHS", 0.0),
    *("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False, "TRAIN.BATCH_SIZE", 12),
    *("MULTIGRID.EPOCH_FACTOR", 1.0, "BN.USE_PRECISE_STATS", False, "TRAIN.EVAL_PERIOD", 1),
)
"""Two iterations of 12 clips, on one shape."""


@pytest.fixture
def folder(own_folder: Path) -> Iterator[Path]:
    """The current folder, with the modules of the page."""
    for name, text in MODULES.items():
        (own_folder / f"{name}.py").write_text(text)
    yield own_folder
    for name in MODULES:
        sys.modules.pop(name, None)


def arguments(command: str) -> list[str]:
    """The words of a command without its recipe, data and output, which are the test's own."""
    words = shlex.split(command.replace("\\\n", " "))
    for left_out in ("--cfg", "DATA.PATH_TO_DATA_DIR", "OUTPUT_DIR"):
        if left_out in words:
            at = words.index(left_out)
            del words[at : at + 2]
    return words


def test_each_module_of_the_page_has_a_command():
    assert len(MODULES) == 6
    assert [re.search(r"--import (\w+)", command)[1] for command in COMMANDS] == list(MODULES)


@pytest.mark.parametrize("command", COMMANDS[1:], ids=list(MODULES)[1:])
def test_an_example_of_the_page_trains(command, folder, command_line):
    status, said = command_line(folder / "run", *SHORT, *arguments(command))
    assert status == 0, said
    run = Folder(folder / "run")
    assert len(run.metrics()) == run.result["iterations"] == 2
    several = "my_noise" in command
    metric = "map" if several else "class_mean" if "my_task" in command else "top1"
    assert run.result["metric"] == metric
    assert metric_title(metric) in run.log
    assert any("top1" in record for record in run.metrics()) != several
    if several:  # logits near 0 say 1/2 of each class
        assert run.metrics()[0]["loss"] == pytest.approx(math.log(2), abs=0.03)


def test_a_registered_model_trains_at_all_shapes_and_predicts_if_its_module_is_trusted(
    folder, command_line, tiny_data
):
    words = arguments(COMMANDS[0])
    status, said = command_line(folder / "run", *words, "BN.USE_PRECISE_STATS", False)
    assert status == 0, said
    assert len({tuple(record["shape"]) for record in Folder(folder / "run").metrics()}) > 3
    del sys.modules["my_model"], MODELS.entries["my_net"]
    with pytest.raises(ValueError, match=r"needs the module my_model.* add --import my_model"):
        load_model(folder / "run")
    predictor = load_model(folder / "run", None, ["IMPORTS", "my_model"])
    video = next(tiny_data.rglob("*.mp4"))
    assert predictor.scores(str(video)).sum().item() == pytest.approx(1)
