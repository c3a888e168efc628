"""The runs of the test of equivalence: `python equivalence_worker.py FOLDER SIZE...`.

For each SIZE, that many processes train FOLDER/single.yaml through the trainer, over gloo; the
first and the last SIZE train FOLDER/double.yaml, too, in float64. Rank r of n writes
FOLDER/{single,double}/{n}/rank{r}.pt, and in FOLDER/{plain,double}/{n}/precise{r}.pt precise BN of
the weights that these recipes start from. They are forked from one that has imported everything, so
that all of it takes little longer than its iterations.
"""

from __future__ import annotations

import importlib
import multiprocessing
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from multigrid import ClipPlan, ClipRequest, Step, average_running_stats
from slowfast_patches import patching
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets import clips
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.models.build import build_model
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.solver import build_optimizer
from slowfast_patches.train import loop
from slowfast_patches.train import state as state_module
from slowfast_patches.train.state import Run
from slowfast_patches.utils.distributed import World

__all__ = ["build_small", "main"]


def build_small(cfg: Recipe, *, grouped_bn: bool = False) -> torch.nn.Module:
    """The model with one block in each stage, so that it is trained in no time."""
    patching.apply()
    from slowfast.models import video_model_builder

    with mock.patch.dict(video_model_builder._MODEL_STAGE_DEPTH, {50: (1, 1, 1, 1)}):
        return build_model(cfg, grouped_bn=grouped_bn)


@contextmanager
def in_double() -> Iterator[None]:
    """Models and clips are float64."""
    transform = InputTransform.__call__

    def build(cfg: Recipe, *, grouped_bn: bool) -> torch.nn.Module:
        return build_small(cfg, grouped_bn=grouped_bn).double()

    def doubled(*args: Any) -> list[torch.Tensor]:
        return [pathway.double() for pathway in transform(*args)]

    with (
        mock.patch.object(state_module, "build_model", build),
        mock.patch.object(InputTransform, "__call__", doubled),
    ):
        yield


class Recording(Run):
    """Keeps the model's state before and after each evaluation."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.states = list[dict[str, torch.Tensor]]()

    def validate(self, step: Step) -> None:
        average_running_stats(self.model)
        self._keep()
        super().validate(step)
        self._keep()

    def save(self) -> None:
        """What is saved is tested elsewhere."""

    def _keep(self) -> None:
        self.states.append({k: v.clone() for k, v in self.model.state_dict().items()})


def train_all(cfgs: dict[str, Recipe], rank: int, size: int, folder: Path) -> None:
    """What each rank does."""
    if size > 1:
        store = dist.FileStore(str(folder / f"store{size}"), size)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    state_module.build_model = build_small
    world = World(rank, size, torch.device("cpu"))
    for name, cfg in cfgs.items():
        with in_double() if name != "single" else nullcontext():
            train(name, cfg, world, folder / name / str(size))
    if size > 1:
        dist.destroy_process_group()


def train(name: str, cfg: Recipe, world: World, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    cfg = cfg.replaced({"OUTPUT_DIR": str(folder)})
    if name != "single":
        run = started(cfg, world)
        run.validation(run.models, run.schedule.at(0))
        torch.save(run.model.state_dict(), folder / f"precise{world.rank}.pt")
    if name == "plain":
        return
    with recorded_clips() as seen:
        run = started(cfg, world)
        with run.opened():
            run.prepare()
            loop.train(run)
    torch.save({"clips": seen, "states": run.states}, folder / f"rank{world.rank}.pt")


def started(cfg: Recipe, world: World) -> Recording:
    with mock.patch.object(state_module, "Run", Recording):
        return state_module.build_run(cfg, world, StopRequest(world), None)


@contextmanager
def recorded_clips() -> Iterator[list[tuple[Any, ...]]]:
    """A list that grows by what is read of each clip: where in the training, and which pixels."""
    seen = list[tuple[Any, ...]]()
    read_training, plan_train = clips.ClipDataset._read_training, clips.plan_train
    requests = list[ClipRequest]()

    def read(self: clips.ClipDataset, request: ClipRequest, out: Any) -> dict[str, Any]:
        requests[:] = [request]
        return read_training(self, request, out)

    def plan(*args: Any) -> ClipPlan:
        made = plan_train(*args)
        request = requests[0]
        if request.iteration >= 0:  # not one of precise BN
            where = (made.positions.tolist(), made.size, made.corner, made.crop, made.flip)
            shape = (request.shape.batch, request.shape.frames, request.shape.crop)
            seen.append((request.iteration, request.video, request.epoch, shape, where))
        return made

    with (
        mock.patch.object(clips.ClipDataset, "_read_training", read),
        mock.patch.object(clips, "plan_train", plan),
    ):
        yield seen


def main(folder: Path, sizes: list[int]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    # The plain one first, which finds no groups of processes that another has formed.
    cfgs = {name: load_recipe(folder / f"{name}.yaml") for name in ("plain", "single", "double")}
    cfg = cfgs["double"]
    build_optimizer(cfg, build_small(cfg))  # imports what is imported late
    importlib.import_module("torch.utils.tensorboard")
    context = multiprocessing.get_context("fork")
    ranks = []
    for size in sizes:
        own = cfgs if size in (sizes[0], sizes[-1]) else {"single": cfgs["single"]}
        for rank in range(size):
            ranks.append(context.Process(target=train_all, args=(own, rank, size, folder)))
            ranks[-1].start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0] * len(ranks), ranks


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(size) for size in sys.argv[2:]])
