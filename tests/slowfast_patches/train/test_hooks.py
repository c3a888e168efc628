"""Hooks of a user: called after each step and each validation, and able to end the training."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.stopping import TrainingStoppedError
from slowfast_patches.train.run import run
from slowfast_patches.train.trainer import Hook
from tests.slowfast_patches.train.conftest import no_pictures
from tests.slowfast_patches.train.test_stops import PLAIN, SHORT

pytestmark = pytest.mark.slow


class Seen(Hook):
    """Notes what it is called with."""

    def __init__(self) -> None:
        self.steps, self.evaluations = [], []

    def after_step(self, trainer, step, outcome) -> None:
        assert outcome.loss.isfinite()
        self.steps.append(step.iteration)

    def after_evaluation(self, trainer, evaluation) -> None:
        self.evaluations.append(evaluation["iteration"])


def test_early_stopping_of_the_documentation_and_the_same_command_goes_on(
    tiny_config: Callable[..., Recipe], tmp_path: Path, opened: type
):
    """The example of docs/training.md, as it stands there."""
    text = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
    code = re.search(r"```python\n(.*?class EarlyStopping.*?)```", text, re.DOTALL)[1]
    example: dict = {}
    exec(code, example)
    keys = ("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False)
    short = ("SOLVER.MAX_EPOCH", 2, "SOLVER.STEPS", [0, 1], "BN.USE_PRECISE_STATS", False)
    recipe = tiny_config(tmp_path, *keys, *short, "TEST.ENABLE", False)
    stopping = example["EarlyStopping"](patience=1)
    stopping.best = (0, 101.0)  # nothing is better: stop at the second validation
    seen = Seen()
    with no_pictures(), pytest.raises(TrainingStoppedError, match="no better"):
        run(recipe, hooks=[seen, stopping])
    assert opened(tmp_path).checkpoint["iteration"] == seen.evaluations[-1]
    first = len(seen.evaluations)
    with no_pictures():
        run(recipe, hooks=[seen])
    assert seen.evaluations == [e["iteration"] for e in opened(tmp_path).result["evaluations"]]
    assert len(seen.evaluations) > first
    assert set(seen.steps) == set(range(opened(tmp_path).result["iterations"]))


class Fails(Hook):
    """Loses its connection once, between two checkpoints."""

    failed = False

    def after_step(self, trainer, step, outcome) -> None:
        if trainer.progress.iteration == 4 and not self.failed:
            self.failed = True
            raise KeyError("no connection")


def test_a_hook_that_fails_is_named_and_loses_nothing(
    tiny_config: Callable[..., Recipe], tmp_path: Path, opened: type
):
    recipe = tiny_config(tmp_path, *PLAIN, *SHORT, "LOG_PERIOD", 3)
    hook = Fails()
    with no_pictures(), pytest.raises(TrainingStoppedError) as caught:
        run(recipe, hooks=[hook])
    message = "\n".join([str(caught.value), *caught.value.__notes__])
    assert "Fails.after_step failed after iteration 4" in message
    assert "KeyError: 'no connection'" in message
    assert f"{tmp_path}/checkpoints/checkpoint_iter_00000004.pyth" in message
    with no_pictures():
        run(recipe, hooks=[hook])
    assert [record["iteration"] for record in opened(tmp_path).metrics()] == [3, 4, 6]
