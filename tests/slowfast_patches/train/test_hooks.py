"""Hooks of a user: called after each step and each validation, and able to end the training."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.train.run import run
from slowfast_patches.train.trainer import Hook
from slowfast_patches.utils.errors import RunError
from tests.slowfast_patches.train.conftest import no_pictures

pytestmark = pytest.mark.slow


class Seen(Hook):
    """Notes what it is called with."""

    def __init__(self) -> None:
        self.steps, self.evaluations = [], 0

    def after_step(self, trainer, step, outcome) -> None:
        assert outcome.loss.isfinite()
        self.steps.append(step.iteration)
        self.evaluations = len(trainer.progress.evaluations)


def test_early_stopping_of_the_documentation_and_the_same_command_goes_on(
    tiny_config: Callable[..., Recipe], tmp_path: Path, opened: type
):
    """Run the example of docs/training.md as printed."""
    text = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
    code = re.search(r"```python\n(.*?class EarlyStopping.*?)```", text, re.DOTALL)[1]
    example: dict = {}
    exec(code, example)
    keys = ("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False)
    short = ("SOLVER.MAX_EPOCH", 2, "SOLVER.STEPS", [0, 1], "BN.USE_PRECISE_STATS", False)
    recipe = tiny_config(tmp_path, *keys, *short, "TEST.ENABLE", False, "TRAIN.EVAL_PERIOD", 1)
    seen = Seen()
    with no_pictures(), pytest.raises(RunError, match="validations without"):
        run(recipe, hooks=[seen, example["EarlyStopping"](patience=0)])
    assert seen.evaluations == 1
    last = opened(tmp_path).checkpoint
    assert (last["iteration"], len(last["evaluations"])) == (seen.steps[-1], 1)
    with no_pictures():
        run(recipe, hooks=[seen])
    result = opened(tmp_path).result
    assert len(result["evaluations"]) == 2
    assert set(seen.steps) == set(range(result["iterations"]))
