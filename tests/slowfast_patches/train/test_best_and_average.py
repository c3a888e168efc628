"""The best checkpoint beside the last, and averaged weights, of runs that do not evaluate."""

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from slowfast_patches.datasets.items import TooManyUnreadableError
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.models.average import start_average, update_average
from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train import evaluate as evaluate_module
from slowfast_patches.train.resume import Resumable
from slowfast_patches.train.run import _prepare_folder
from slowfast_patches.train.same_recipe import check_same_recipe
from slowfast_patches.train.trainer import Trainer
from slowfast_patches.train.warm_up import made_up_batch
from slowfast_patches.utils.distributed import World
from tests.slowfast_patches.train.test_transformer import KEYS as TRANSFORMER

Start = Callable[..., Trainer]


@pytest.fixture
def start(tiny_config: Callable, tmp_path: Path) -> Start:
    """`start("KEY", value, ..., top1=[...], found=Resumable(...))`: a run whose evaluations give
    these, evaluated every second iteration and saved every fourth."""

    def make(*keys: object, top1: Iterable[float] = (), found=None) -> Trainer:
        world = World(0, 1, torch.device("cpu"))
        run = Trainer(tiny_config(tmp_path, *keys), world, StopRequest(world), found)
        values, names = iter(top1), ("top1", "top1_ema")[: len(run.models)]
        if top1:
            run.validation = lambda *_: {name: next(values) for name in names}
        run.evaluated_after = frozenset(range(2, 20, 2))
        run.saved_after = frozenset(range(4, 20, 4))
        return run

    return make


def leave(run: Trainer, done: int) -> None:
    """As if `done` iterations had been trained, each of which moved the weights by 1."""
    for weight in run.models[-1].parameters():
        nn.init.constant_(weight, done)
    run.progress.iteration = done
    run.after_step(run.schedule.at(done - 1))


def save(run: Trainer, done: int) -> None:
    run.progress.iteration = done
    run.save()


def best(folder: Path) -> tuple[int, float]:
    """The iteration of the best checkpoint, and its weights."""
    path = checkpoints.best_checkpoint(folder)
    assert path is not None
    content = checkpoints.load(path)
    assert content.optimizer_state is None
    return content.iteration, float(content.model_state["head.projection.bias"][0])


def last(folder: Path) -> Resumable:
    path = checkpoints.last_checkpoint(folder)
    assert path is not None
    return Resumable(path, checkpoints.load(path))


@pytest.mark.slow
@pytest.mark.parametrize("average", [False, True])
def test_the_best_stays_of_equals_the_first_and_a_continued_run_knows_it(start, tmp_path, average):
    keys = ["TRAIN.KEEP_BEST", True, "MODEL.EMA_DECAY", 0.5 * average]
    scores = [50, 70, 70, 60, 71]
    if average:  # those of the weights, between them, say something else
        scores = [value for score in scores for value in (100 - score, score)]
    run = start(*keys, top1=scores)
    for done, expected in ((2, 2), (4, 4), (6, 4)):
        leave(run, done)
        assert best(tmp_path) == (expected, expected)
    before_validation = last(tmp_path)
    assert before_validation.checkpoint.iteration == 6
    assert before_validation.checkpoint.last_evaluation == 4
    before_validation.path.unlink()
    content = last(tmp_path)
    assert content.checkpoint.iteration == content.checkpoint.last_evaluation == 4
    run = start(*keys, top1=scores[2 * (1 + average) :], found=content)
    for done, expected in ((6, 4), (8, 4), (10, 10)):
        leave(run, done)
        assert best(tmp_path) == (expected, expected)
    assert run.progress.best["iteration"] == 10
    assert run.progress.best["top1_ema" if average else "top1"] == 71


@pytest.mark.slow
def test_a_best_checkpoint_of_later_iterations_that_were_given_up_is_deleted(start, tmp_path):
    run = start("TRAIN.KEEP_BEST", True, top1=[50, 70])
    for done in (2, 4):
        leave(run, done)
    assert best(tmp_path) == (4, 4)
    while last(tmp_path).checkpoint.iteration > 2:
        last(tmp_path).path.unlink()
    run = start("TRAIN.KEEP_BEST", True, top1=[60, 40], found=last(tmp_path))
    _prepare_folder(run)
    assert checkpoints.best_checkpoint(tmp_path) is None


def test_what_cannot_be_evaluated_was_saved_before_and_is_evaluated_again(
    start, tmp_path, monkeypatch
):
    """Iteration 2 is evaluated and not due to be saved; the average's evaluation is what fails."""
    run = start("MODEL.EMA_DECAY", 0.5)
    before = {name: value.clone() for name, value in run.models.state_dict().items()}
    evaluated = []

    def evaluate(model, *_):
        evaluated.append(model)
        if len(evaluated) == 2:
            raise TooManyUnreadableError("2 of 8 videos")
        return SimpleNamespace(metrics={"top1": 50.0})

    monkeypatch.setattr(evaluate_module, "evaluate", evaluate)
    run.progress.iteration = 2
    with pytest.raises(TooManyUnreadableError):
        run.after_step(run.schedule.at(1))
    assert list(evaluated) == list(run.models)
    found = last(tmp_path)
    assert (found.checkpoint.iteration, found.checkpoint.last_evaluation) == (2, 0)
    mended = start("MODEL.EMA_DECAY", 0.5, "DATA.MAX_BAD_FRACTION", 0.5, found=found)
    assert all(torch.equal(before[n], v) for n, v in mended.models.state_dict().items())
    check_same_recipe(found.checkpoint.cfg, mended.recipe, found.path)


# The average.


def test_an_average_moves_by_what_the_decay_leaves_and_counts_as_its_model():
    model = nn.BatchNorm3d(2)
    average = start_average(model)
    nn.init.constant_(model.weight, 3.0)
    model.running_mean.fill_(4.0)
    model.num_batches_tracked += 1
    for value in (1.5, 1.875):  # 1, 1.5, 1.875 with decay 0.75 on the way to 3
        update_average(average, model, 0.75)
        assert average.weight.tolist() == pytest.approx([value] * 2)
    assert average.running_mean.tolist() == pytest.approx([1.75] * 2)  # of 4, 7/16
    assert int(average.num_batches_tracked) == 1
    assert average.state_dict().keys() == model.state_dict().keys()
    assert not any(weight.requires_grad for weight in average.parameters())


FROZEN = ("TRAIN.FREEZE", "s1,s2,s3,s[1-3]_fuse", "SOLVER.WEIGHT_DECAY", 0.1)
"""The optimizer has no state of frozen weights."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [("MODEL.ACT_CHECKPOINT", True, "MIXUP.ENABLE", True), FROZEN, TRANSFORMER],
    ids=["recomputed and mixed", "frozen", "transformer"],
)
def test_a_continued_run_trains_and_averages_as_one_that_was_not_stopped(start, tmp_path, keys):
    def take(run: Trainer, iterations: range) -> None:
        for step in map(run.schedule.at, iterations):
            clips = range(step.first_clip, step.first_clip + step.shape.batch)
            run.stepper(step, made_up_batch(run.recipe, len(clips), step.shape), clips)

    keys = (*keys, "MODEL.EMA_DECAY", 0.9)
    whole = start(*keys)
    scratch = {name: value.clone() for name, value in whole.model.state_dict().items()}
    take(whole, range(2))
    save(whole, 2)
    continued = start(*keys, found=last(tmp_path))
    for run in (whole, continued):
        take(run, range(2, 4))
    ours, theirs = continued.models.state_dict(), whole.models.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    name = next(name for name in reversed(scratch) if name.endswith("weight"))
    weights, average = whole.model.state_dict()[name], whole.models[1].state_dict()[name]
    assert 0 < (average - scratch[name]).norm() < 0.5 * (weights - scratch[name]).norm()


def test_an_average_starts_at_the_weights_that_are_given(start, tmp_path):
    first = start()
    save(first, 4)
    path = last(tmp_path).path
    nn.init.ones_(first.model.head.projection.bias)
    given = start("RNG_SEED", 5, "MODEL.EMA_DECAY", 0.9, "TRAIN.CHECKPOINT_FILE_PATH", path)
    states = [model.state_dict() for model in given.models]
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())
    name = "s1.pathway0_stem.conv.weight"
    assert torch.equal(states[1][name], first.model.state_dict()[name])
