"""The same recipe trains on the same clips to the same weights with 1, 2 and 4 processes.

Groups of 8, 16 and 32 clips lie within a process, fill one, or span 2 or 4, see `OPTIONS`; dropout,
precise BN and the registered changes of mini-batches are on. What differs is the order of sums, so
rounding.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from multigrid import ClipPlan, ClipRequest, Schedule, average_running_stats, sampling
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.clip_dataset import ClipDataset
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.models.build_model import build_model
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.seams import BATCH_TRANSFORMS
from slowfast_patches.train import build_trainer as build_module
from slowfast_patches.train.hooks import SaveCheckpoint, Validate
from slowfast_patches.train.trainer import Trainer
from slowfast_patches.utils.distributed import World
from tests.conftest import switched_on

pytestmark = pytest.mark.slow("trains for seconds")

# 32 or 16 clips at the coarse shape, 32, 16 or 8 at the baseline's.
OPTIONS = (
    *("TRAIN.BATCH_SIZE", 8, "MULTIGRID.BN_BASE_SIZE", 8, "MODEL.DROPOUT_RATE", 0.5),
    *("MULTIGRID.LONG_CYCLE_FACTORS", [[1, 0.71], [1, 1]], "MULTIGRID.EPOCH_FACTOR", 1.0),
    *("DATA.NUM_FRAMES", 4, "SOLVER.MAX_EPOCH", 8.5, "SOLVER.STEPS", [0, 5.6]),
    *("SOLVER.WARMUP_EPOCHS", 0.0, "LOG_PERIOD", 7, "DATA_LOADER.NUM_WORKERS", 0),
    *("MODEL.ARCH", "slow", "DATA.INPUT_CHANNEL_NUM", [3]),
    *("RESNET.SPATIAL_STRIDES", [[1], [2], [2], [2]], "RESNET.SPATIAL_DILATIONS", [[1]] * 4),
    *("RESNET.NUM_BLOCK_TEMP_KERNEL", [[1]] * 4),
    *("NONLOCAL.LOCATION", [[[]]] * 4, "NONLOCAL.GROUP", [[1]] * 4),
    *("BN.USE_PRECISE_STATS", True, *switched_on(BATCH_TRANSFORMS)),
)
SIZES = (1, 2, 4)
RUNS = [("single", 2), ("single", 4), ("double", 4)]

# Of the SlowFast recipe for Kinetics, whose rates are for 64 clips: 0.1 after the warm-up, which
# these iterations of the whole recipe are the very beginning of, at 0.00025.
RATES = {"double": 0.1 / 8, "single": 0.00025 / 8}


# What each process does.


@contextmanager
def recorded_states() -> Iterator[list[dict[str, Tensor]]]:
    """A list that grows by the model's state before and after each evaluation; nothing is saved,
    which is tested elsewhere."""
    states = list[dict[str, Tensor]]()
    validate = Validate.after_step

    def keep(trainer: Trainer) -> None:
        states.append({k: v.clone() for k, v in trainer.stepper.model.state_dict().items()})

    def recording(hook: Validate, trainer: Trainer, *given: Any) -> None:
        if trainer.progress.iteration in hook._after:
            average_running_stats(trainer.stepper.model)
            keep(trainer)
            validate(hook, trainer, *given)
            keep(trainer)

    with (
        mock.patch.object(Validate, "after_step", recording),
        mock.patch.object(SaveCheckpoint, "_save"),
    ):
        yield states


@contextmanager
def in_double() -> Iterator[None]:
    """Models and clips are float64."""
    transform = InputTransform.__call__

    def build(cfg: Recipe, *, grouped_bn: bool) -> nn.Module:
        return build_model(cfg, grouped_bn=grouped_bn).double()

    def doubled(*args: Any) -> list[Tensor]:
        return [pathway.double() for pathway in transform(*args)]

    with (
        mock.patch.object(build_module, "build_model", build),
        mock.patch.object(InputTransform, "__call__", doubled),
    ):
        yield


def train_all(rank: int, cfgs: dict[str, Recipe], size: int, folder: Path) -> None:
    if size > 1:
        dist.init_process_group("gloo")
    world = World(rank, size, torch.device("cpu"))
    for name, cfg in cfgs.items():
        if name == "single" or size != 2:
            with nullcontext() if name == "single" else in_double():
                train_one(cfg, world, folder / name / str(size))
    if size > 1:
        dist.destroy_process_group()


def train_one(cfg: Recipe, world: World, folder: Path) -> None:
    """Record what is seen and learned."""
    folder.mkdir(parents=True, exist_ok=True)
    cfg = cfg.replaced({"OUTPUT_DIR": str(folder)})
    with recorded_clips() as seen, recorded_states() as states:
        build_module.build_trainer(cfg, world, StopRequest(world)).train()
        torch.save({"clips": seen, "states": states}, folder / f"rank{world.rank}.pt")


@contextmanager
def recorded_clips() -> Iterator[list[tuple[Any, ...]]]:
    """A list that grows by what is read of each clip: where in the training, and which pixels."""
    seen = list[tuple[Any, ...]]()
    read, plan_train = ClipDataset._read_training, sampling.plan_train

    def recording(self: ClipDataset, request: ClipRequest, out: Any) -> Any:
        def plan(*args: Any, **options: Any) -> ClipPlan:
            made = plan_train(*args, **options)
            if request.iteration >= 0:  # not one of precise BN
                where = (made.frame_indices.tolist(), made.size, made.corner, made.crop, made.flip)
                of_video = (request.iteration, request.video, request.epoch, str(request.shape))
                seen.append((*of_video, where))
            return made

        with mock.patch.object(sampling, "plan_train", plan):
            return read(self, request, out)

    with mock.patch.object(ClipDataset, "_read_training", recording):
        yield seen


# What is compared.


@pytest.fixture(scope="module")
def folder(_one_block, tiny_config, run_ranks, tmp_path_factory) -> Path:
    """What the ranks of all runs recorded, by name of the run and number of processes."""
    folder = tmp_path_factory.mktemp("equivalence")
    weights = folder / "weights.pyth"
    torch.save({"model_state": trained_weights(tiny_config(folder, *OPTIONS))}, weights)
    start = ("TRAIN.CHECKPOINT_FILE_PATH", weights)
    cfgs = {
        name: tiny_config(folder, *OPTIONS, *start, "SOLVER.BASE_LR", rate)
        for name, rate in RATES.items()
    }
    importlib.import_module("torch.utils.tensorboard")  # once, for all that are forked
    for size in SIZES:
        run_ranks(size, train_all, cfgs, size, folder)
    return folder


def trained_weights(cfg: Recipe) -> dict[str, Tensor]:
    """Weights away from 0, as after a training: what starts at 0 is all updates. NumPy draws the
    same on every processor, other than torch."""
    model, generator = build_model(cfg), np.random.default_rng(0)
    for name, weights in model.named_parameters():
        if weights.ndim == 1:
            drawn = generator.uniform(0.1, 0.5, weights.shape)
            drawn *= 1 if name.endswith("weight") else generator.choice([-1, 1], weights.shape)
        else:
            drawn = generator.normal(0, (2 / weights[0].numel()) ** 0.5, weights.shape)
        weights.data.copy_(torch.from_numpy(drawn))
    return model.state_dict()


def runs(folder: Path, name: str, size: int) -> list[dict[str, Any]]:
    return [torch.load(folder / name / str(size) / f"rank{r}.pt") for r in range(size)]


@pytest.fixture(scope="module")
def schedule(tiny_config, folder) -> Schedule:
    return schedule_of(tiny_config(folder, *OPTIONS), num_videos=24)


@pytest.mark.parametrize("size", SIZES[1:])
def test_the_same_clips_come_in_the_same_order_with_the_same_crops(folder, schedule, size):
    [alone] = runs(folder, "single", 1)
    ranks = runs(folder, "single", size)
    assert len(alone["clips"]) == schedule.clips
    for step in schedule.steps():
        parts = [[c for c in rank["clips"] if c[0] == step.iteration] for rank in ranks]
        whole = [c for c in alone["clips"] if c[0] == step.iteration]
        assert [len(part) for part in parts] == [step.shape.batch // size] * size
        assert sorted(chain(*parts), key=repr) == sorted(whole, key=repr)
    flips = {clip[-1][-1] for clip in alone["clips"]}
    assert flips == {True, False}


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """The largest difference in each tensor, relative to the tensor's largest value.

    A mean may be near 0 by chance: it is relative to the deviation that it is the centre of.
    """
    off = {}
    for name, values in expected.items():
        scale = values.abs().max()
        if name.endswith("running_mean"):
            scale = expected[name.replace("mean", "var")].sqrt().max()
        off[name] = float((found[name] - values).abs().max() / scale)
    return off


@pytest.mark.parametrize(("name", "size"), RUNS)
def test_weights_and_statistics_are_the_same(folder, schedule, name, size):
    """Before and after precise BN at the end of each phase.

    Running statistics are measured on activations, where rounding adds up over the layers.
    """
    bar = {"single": 1e-5, "double": 1e-11}[name]
    statistics = {"single": 1e-4, "double": 1e-11}[name]
    [alone] = runs(folder, name, 1)
    for rank in runs(folder, name, size):
        assert len(rank["states"]) == len(alone["states"]) == 2 * len(schedule.phases)
        for found, expected in zip(rank["states"], alone["states"], strict=True):
            off = difference(found, expected)
            for key, value in off.items():
                assert value < (statistics if "running" in key else bar), key


def test_the_weights_had_moved_by_far_more(folder):
    start = torch.load(folder / "weights.pyth")["model_state"]
    [single], [double] = (runs(folder, name, 1) for name in ("single", "double"))
    moved = difference(single["states"][-1], start)
    assert max(value for key, value in moved.items() if "running" not in key) > 1e-3
    assert min(difference(double["states"][-1], start).values()) > 1e-3
