"""What a plan says is what a training does, for random recipes."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from multigrid import Shape
from multigrid.errors import MultigridError
from slowfast_patches.config import check_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.plan.training_plan import plan_of
from slowfast_patches.train.trainer import Hook
from tests.conftest import SMALL

VIDEOS = 24


def random_keys(rng: random.Random) -> list[object]:
    """Return the keys of a short training: its cycles, batch, shapes, rates and length."""
    epochs = rng.choice([1.5, 2, 3])
    keys: dict[str, object] = {
        "MULTIGRID.LONG_CYCLE": rng.random() < 0.6,
        "MULTIGRID.SHORT_CYCLE": rng.random() < 0.6,
        "MULTIGRID.EPOCH_FACTOR": rng.choice([0.75, 1, 1.5]),
        "MULTIGRID.BN_BASE_SIZE": rng.choice([1, 2, 4]),
        "TRAIN.BATCH_SIZE": rng.choice([2, 4]),
        "DATA.NUM_FRAMES": rng.choice([4, 8]),
        "SOLVER.MAX_EPOCH": epochs,
        "SOLVER.BASE_LR": rng.choice([0.01, 0.003]),
        "SOLVER.WARMUP_EPOCHS": rng.choice([0.25, 0.5]),
        "SOLVER.ACCUMULATION_STEPS": rng.choice([1, 1, 2]),
        "RNG_SEED": rng.randrange(100),
    }
    if rng.random() < 0.3:
        keys |= {"SOLVER.LR_POLICY": "cosine", "MULTIGRID.LONG_CYCLE": False}
    else:
        keys |= {"SOLVER.STEPS": [0, rng.choice([0.5, 0.7]) * epochs], "SOLVER.LRS": [1, 0.1]}
    return [part for pair in keys.items() for part in pair]


class Watch(Hook):
    """Notes what each step of a training used."""

    def __init__(self) -> None:
        self.shapes = list[Shape]()
        self.rates = list[float]()
        self.groups = list[set[int | None]]()
        self.videos = list[int]()

    def after_backward(self, trainer: Any, step: object, outcome: object) -> None:
        stepper = trainer.stepper
        self.rates.append(stepper.optimizer.param_groups[0]["lr"])
        sizes = {getattr(m, "group_size", None) for m in stepper.model.modules()}
        self.groups.append(sizes - {None})

    def before_step(self, trainer: object, step: object, batch: Any) -> None:
        clips, frames, height, width, _ = batch["clips"].shape
        assert height == width
        self.shapes.append(Shape(clips, frames, height))
        self.videos += batch["videos"].tolist()


def score(*_: object) -> dict[str, float]:
    return {"top1": 0.0}


SEEDS = [
    0,
    1,
    2,
    *(
        pytest.param(seed, marks=pytest.mark.slow("the quick tests have three seeds"))
        for seed in range(3, 15)
    ),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_training_is_that_of_its_plan(run_small, tiny_config, tmp_path, monkeypatch, seed):
    rng = random.Random(seed)
    while True:
        keys = [*random_keys(rng), "TEST.ENABLE", False]
        recipe: Recipe = tiny_config(tmp_path, *SMALL, *keys)
        try:
            check_recipe(recipe)
            plan = plan_of(recipe)
            break
        except MultigridError:
            pass
        with pytest.raises(MultigridError):  # the checks of a run are in another order
            run_small(tmp_path / "refused", *keys)
    monkeypatch.setattr("slowfast_patches.train.build_trainer.Validation.__call__", score)
    watch = Watch()
    folder = run_small(tmp_path / "out", *keys, hooks=[watch])
    said = plan.to_json()
    assert len(watch.shapes) == said["iterations"] == folder.result["iterations"]
    for phase in said["phases"]:
        steps = range(phase["start"], phase["start"] + phase["iterations"])
        shapes = [Shape(**shape) for shape in phase["shapes"]]
        assert [watch.shapes[i] for i in steps] == [shapes[i % len(shapes)] for i in steps]
        assert (watch.rates[steps[0]], watch.rates[steps[-1]]) == tuple(phase["lr"])
        sizes = [phase["bn_group_sizes"][i % len(shapes)] for i in steps]
        assert [watch.groups[i] for i in steps] == [{size} - {None} for size in sizes]
    assert len(watch.videos) == said["clips"] == folder.result["clips"]
    assert said["epochs"] == pytest.approx(len(watch.videos) / VIDEOS)
    counts = Counter(watch.videos)
    epochs, more = divmod(len(watch.videos), VIDEOS)
    assert sorted(counts.values()) == [epochs] * (VIDEOS - more) + [epochs + 1] * more, (
        "each epoch visits every video once"
    )
    assert len(folder.metrics("val")) == said["evaluations"]
    assert folder.result["flops"] == said["flops"]
    assert folder.result["baseline_iterations"] == said["baseline"]["iterations"]
