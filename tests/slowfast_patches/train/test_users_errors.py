"""A bug in the user's code is reported with its traceback, after a line that says where to look."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slowfast_patches.registry import AUGMENTATIONS, DATASETS, MODELS, TASKS
from slowfast_patches.utils.blame import where_to_look
from slowfast_patches.utils.errors import RunError, UserError, report

MODULE = """
import numpy as np
import torch
from torch import nn
from slowfast_patches.registry import *
from slowfast_patches.datasets import LabelledVideo
from slowfast_patches.tasks import Task
from slowfast_patches.train.trainer import Hook
from slowfast_patches.utils.errors import UserError


def fail():
    {raises}


@register_augmentation("shake")
def shake(clip, rng):
    fail()


@register_model("net")
class Net(nn.Module):
    def __init__(self, recipe):
        super().__init__()
        self.layer = nn.Linear(3, recipe.model.num_classes)

    def forward(self, pathways):
        fail()


@register_model("broken")
def build(recipe):
    fail()


class Focal(nn.modules.loss._Loss):
    def forward(self, scores, targets):
        fail()


@register_task("own")
class Own(Task):
    def loss(self, label_counts=None):
        return Focal()


@register_task("judged")
class Judged(Task):
    def compute_metrics(self, scores, labels):
        fail()


class Noise:
    def __init__(self, recipe, split):
        self.videos = range(24)

    def __len__(self):
        return len(self.videos)

    def __getitem__(self, request):
        fail()


def read(recipe, path, split):
    fail()


register_dataset("noise", DatasetSpec(build=Noise))
register_dataset("lists", DatasetSpec(read=read))
register_dataset("own", DatasetSpec(task="own"))
register_dataset("judged", DatasetSpec(task="judged"))


class Stop(Hook):
    def after_step(self, trainer, step, outcome):
        fail()
"""
LINE = MODULE[: MODULE.index("{raises}")].count("\n") + 1
OFF = (
    *("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False, "TEST.ENABLE", False),
    *("SOLVER.MAX_EPOCH", 2, "SOLVER.STEPS", [0], "SOLVER.LRS", [1], "SOLVER.WARMUP_EPOCHS", 0),
    *("BN.USE_PRECISE_STATS", False, "IMPORTS", "mine"),
)


@pytest.fixture
def module(tmp_path, monkeypatch) -> Iterator[Path]:
    """Return mine.py, which the test writes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    registries = (AUGMENTATIONS, DATASETS, MODELS, TASKS)
    for registry in registries:
        len(list(registry))  # imports the entries of the package
        monkeypatch.setattr(registry, "entries", dict(registry.entries))
    yield tmp_path / "mine.py"
    sys.modules.pop("mine", None)


def data(name: str) -> tuple[str, ...]:
    return ("TRAIN.DATASET", name, "TEST.DATASET", name)


@pytest.mark.parametrize("kind", ["ValueError", "KeyError", "TypeError", "OSError"])
@pytest.mark.parametrize(
    ("keys", "role"),
    [
        (("MODEL.ARCH", "net"), "model 'net'"),
        (("MODEL.ARCH", "broken"), "model 'broken'"),
        (data("noise"), "data set 'noise'"),
        (data("lists"), "data set 'lists'"),
        (data("own"), "loss Focal"),
        (data("judged"), "task 'judged'"),
    ],
    ids=str,
)
def test_a_bug_is_told_with_its_place_and_traceback(command_line, module, kind, keys, role):
    assert_told(command_line, module, kind, keys, role)


def assert_told(command_line, module, kind, keys, role):
    module.write_text(MODULE.format(raises=f"raise {kind}('too many values')"))
    status, said = command_line(module.parent / "run", *OFF, *keys)
    assert status == 1
    told = f"error: {kind} in your {role} of the module mine: {module}, line {LINE}. "
    assert f"\n{told}" in f"\n{said}"
    assert f'mine.py", line {LINE}, in fail' in said
    if (log := module.parent / "run" / "train.log").exists():
        assert told in log.read_text()
        assert f'mine.py", line {LINE}, in fail' in log.read_text()


def test_a_mistake_that_a_worker_raises_is_one_line(command_line, module):
    module.write_text(MODULE.format(raises="raise UserError('the file of masks is missing')"))
    keys = (*data("noise"), "DATA_LOADER.NUM_WORKERS", 1)
    status, said = command_line(module.parent / "run", *OFF, *keys)
    assert status == 2
    assert "\nerror: the file of masks is missing\n" in f"\n{said}"
    assert "Traceback" not in said
    assert "worker process" not in said


def test_a_module_that_fails_is_told_with_its_traceback(command_line, module):
    module.write_text("a, b = 1, 2, 3\n")
    status, said = command_line(module.parent / "run", *OFF)
    assert status == 1
    assert f"ValueError in your code of the module mine: {module}, line 1" in said
    assert "Traceback" in said


# Without a training.


def test_a_hook_is_named_with_its_class(module, capsys):
    module.write_text(MODULE.format(raises="{}['missing']"))
    import mine

    from slowfast_patches.train.trainer import Trainer

    trainer = Trainer.__new__(Trainer)
    trainer.hooks = [mine.Stop()]
    with pytest.raises(KeyError) as caught:
        trainer.hooks[0].after_step(trainer, None, None)
    told = f"KeyError in your hook Stop of the module mine: {module}, line {LINE}. "
    assert where_to_look(caught.value).startswith(told)
    assert report(caught.value, "rank 1: ") == 1
    assert capsys.readouterr().err.startswith(f"error: rank 1: {told}")


@pytest.mark.parametrize("kind", [UserError, RunError])
def test_the_message_of_a_worker_is_kept_whole(kind):
    text = (
        f"Caught {kind.__name__} in DataLoader worker process 0.\n"
        'Original Traceback (most recent call last):\n  File "x.py", line 1, in f\n'
        f"slowfast_patches.utils.errors.{kind.__name__}: a.csv: UserError: is no number\nRepair it"
    )
    assert str(kind(text)) == "a.csv: UserError: is no number\nRepair it"
