"""A plain loop, Lightning, accelerate, the Trainer of transformers, run_net: one seed, one stream
of clips, on one process and on two. Three processes resume as if they had not been interrupted."""

from __future__ import annotations

import gc
import hashlib
import os
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import pytest
import torch
import torch.distributed as dist
import transformers
from accelerate import Accelerator
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from multigrid import (
    PAPER,
    Schedule,
    Shape,
    SteppedRate,
    Training,
    average_running_stats,
    convert_batchnorm,
    fix_gradient_layout,
    make_schedule,
)
from multigrid.integrations.lightning import MultigridCallback
from multigrid.integrations.transformers import MultigridTrainer, video_inputs
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets import VideoClips
from slowfast_patches.datasets.clip_dataset import ClipDataset
from slowfast_patches.datasets.loader import training_loader
from slowfast_patches.plan.recipe_schedule import schedule_of
from tests.multigrid.clips import Clips

pytestmark = pytest.mark.slow("starts programs")

LATER = 5  # iterations, which end inside an epoch


class Net(nn.Module):
    """Notes what it is given, and the loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Conv3d(3, 4, 3, (1, 2, 2), 1), nn.BatchNorm3d(4), nn.ReLU()]
        layers += [nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 8)]
        self.layers = convert_batchnorm(nn.Sequential(*layers))
        self.seen, self.losses = list[str](), list[float]()

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.seen.append(mark_of(pixel_values, labels))
        loss = nn.functional.cross_entropy(self.layers(pixel_values.transpose(1, 2)), labels)
        self.losses.append(loss.item())
        return {"loss": loss}


def mark_of(pixels: Tensor, labels: Tensor) -> str:
    return hashlib.sha256(pixels.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()


class Task(NamedTuple):
    """What every loop trains, and where it saves."""

    clips: VideoClips
    schedule: Schedule
    seed: int
    folder: Path


def plain(task: Task, goes_on: bool) -> Net:
    net = Net()
    network = net
    if dist.is_initialized():
        network = DistributedDataParallel(net, broadcast_buffers=False)
        fix_gradient_layout(network)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    training = Training(task.schedule, net, optimizer, task.seed)
    parts = {"net": net, "optimizer": optimizer, "training": training}
    if goes_on:
        for name, state in torch.load(task.folder / "state.pt").items():
            parts[name].load_state_dict(state)
    for batch in training.batches(training.loader(task.clips, collate_fn=video_inputs)):
        training.begin(batch)
        optimizer.zero_grad()
        network(batch["pixel_values"], batch["labels"])["loss"].backward()
        optimizer.step()
        average_running_stats(net)
        if training.iteration == LATER and is_main():
            states = {name: part.state_dict() for name, part in parts.items()}
            torch.save(states, task.folder / "state.pt")
    return net


def is_main() -> bool:
    return int(os.environ.get("RANK", 0)) == 0


def in_accelerate(task: Task, goes_on: bool) -> Net:
    """The loop of docs/integrations.md."""
    net, accelerator = Net(), Accelerator(cpu=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    network, stepped = accelerator.prepare(net, optimizer)
    fix_gradient_layout(network)
    training = Training(task.schedule, net, optimizer, task.seed)
    accelerator.register_for_checkpointing(training)
    if goes_on:
        accelerator.load_state(str(task.folder / "state"))
    elif dist.is_initialized():
        with pytest.raises(ValueError, match=r"Do not pass the loader to accelerator\.prepare"):
            list(accelerator.prepare(training.loader(task.clips)))
    for batch in training.batches(training.loader(task.clips, collate_fn=video_inputs)):
        training.begin(batch)
        stepped.zero_grad()
        accelerator.backward(network(batch["pixel_values"], batch["labels"])["loss"])
        stepped.step()
        average_running_stats(net)
        if training.iteration == LATER:
            accelerator.save_state(str(task.folder / "state"))
    return net


class Module(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch: dict[str, Tensor], number: int) -> Tensor:
        return self.net(batch["pixel_values"], batch["labels"])["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def in_lightning(task: Task, goes_on: bool) -> Net:
    module, multigrid = Module(), MultigridCallback(task.schedule, task.seed)
    module.train_dataloader = lambda: multigrid.loader(task.clips, collate_fn=video_inputs)
    saver = ModelCheckpoint(task.folder, "at-{step}", every_n_train_steps=LATER, save_top_k=-1)
    quiet = ("logger", "enable_progress_bar", "enable_model_summary", "use_distributed_sampler")
    trainer = L.Trainer(
        max_epochs=multigrid.epochs,
        callbacks=[multigrid, saver],
        default_root_dir=task.folder,
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", 1)),
        strategy="ddp" if dist.is_initialized() else "auto",
        **dict.fromkeys(quiet, False),
    )
    path = task.folder / f"at-step={LATER}.ckpt"
    trainer.fit(module, ckpt_path=path if goes_on else None)
    return module.net


def in_transformers(task: Task, goes_on: bool) -> Net:
    settings = {"use_cpu": True, "report_to": [], "disable_tqdm": True}
    # By default, DDP finds unused parameters, and then always keeps its first layout.
    settings |= {"save_steps": LATER, "ddp_find_unused_parameters": False}
    args = transformers.TrainingArguments(
        str(task.folder), optim="sgd", max_grad_norm=0.0, seed=task.seed, **settings
    )
    trainer = MultigridTrainer(
        schedule=task.schedule, model=Net(), args=args, train_dataset=task.clips
    )
    path = task.folder / f"checkpoint-{LATER}"
    trainer.train(resume_from_checkpoint=str(path) if goes_on else None)
    return trainer.model


LOOPS = {
    "plain": plain,
    "accelerate": in_accelerate,
    "lightning": in_lightning,
    "transformers": in_transformers,
}
RESUMED = {1: ["accelerate"], 2: ["accelerate"], 3: [*LOOPS]}
"""The loops that go on, by number of processes. Other tests resume the others on one process."""


class Trained(NamedTuple):
    """Of each iteration what the model was given, and the loss; and the weights at the end."""

    seen: list[str]
    losses: list[float]
    weights: dict[str, Tensor]


def train_as_rank(rank: int, task: Task, processes: int) -> None:
    """Train with every loop, and with some of them from where they saved.

    Save what they trained by (loop, whether it went on).
    """
    if processes > 1:
        dist.init_process_group("gloo")
    found = dict[tuple[str, bool], Trained]()
    twice = [(name, True) for name in RESUMED[processes]]
    for name, goes_on in [*((name, False) for name in LOOPS), *twice]:
        folder = task.folder / f"{name}_{processes}"
        folder.mkdir(exist_ok=True)
        net = LOOPS[name](task._replace(folder=folder), goes_on)
        found[name, goes_on] = Trained(net.seen, net.losses, net.state_dict())
    torch.save(found, task.folder / f"{rank}_of_{processes}.pt")
    if processes > 1:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def recipe(tiny_config: Callable[..., Recipe], tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    keys = ("RNG_SEED", 5, "SOLVER.BASE_LR", 0.001, "MULTIGRID.EPOCH_FACTOR", 1.5)
    return tiny_config(tmp_path_factory.mktemp("run_net"), *keys)


def task_of(recipe: Recipe, folder: Path) -> Task:
    data = recipe.data
    clips = VideoClips(
        Path(data.path_to_data_dir) / "train.csv",
        recipe.base_shape,
        stride=data.sampling_rate,
        short_sides=data.train_jitter_scales,
        seed=5,
        sampling=PAPER.sampling,
    )
    return Task(clips, schedule_of(recipe, len(clips)), 5, folder)


@pytest.fixture(scope="module")
def task(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Task:
    return task_of(recipe, tmp_path_factory.mktemp("saved"))


def train_in_ranks(run_ranks: Callable[..., None], task: Task, processes: int) -> list[Any]:
    run_ranks(processes, train_as_rank, task, processes)
    paths = [task.folder / f"{rank}_of_{processes}.pt" for rank in range(processes)]
    return [torch.load(path, weights_only=False) for path in paths]


@pytest.fixture(scope="module")
def trained(task: Task, run_ranks: Callable[..., None]) -> dict[int, list[Any]]:
    """What one process trained, and what each of two."""
    return {count: train_in_ranks(run_ranks, task, count) for count in (1, 2)}


@pytest.fixture(scope="module")
def trained_by_three(
    recipe: Recipe, run_ranks: Callable[..., None], tmp_path_factory: pytest.TempPathFactory
) -> list[Any]:
    """What each of three processes trained. They need mini-batches that three divides.

    At high rates, rounding errors of gradients change the weights.
    """
    keys = {"TRAIN.BATCH_SIZE": 6, "MULTIGRID.BN_BASE_SIZE": 2, "MULTIGRID.EPOCH_FACTOR": 0.7}
    keys |= {"MULTIGRID.LONG_CYCLE": False, "SOLVER.BASE_LR": 1.0}
    task = task_of(recipe.replaced(keys), tmp_path_factory.mktemp("by_three"))
    return train_in_ranks(run_ranks, task, 3)


@pytest.mark.parametrize("processes", [1, 2])
def test_all_loops_train_the_same_clips_in_the_same_order(recipe, task, trained, processes):
    data = ClipDataset.of_recipe(recipe, "train")
    for rank, found in enumerate(trained[processes]):
        loader = training_loader(recipe, data, task.schedule, 0, rank, processes)
        batches = [video_inputs(batch) for batch in loader]
        expected = [mark_of(batch["pixel_values"], batch["labels"]) for batch in batches]
        assert len(set(expected)) == task.schedule.iterations > LATER
        assert [found[name, False].seen == expected for name in LOOPS] == [True] * 4


def test_one_process_trains_the_same_numbers_in_all_loops(trained):
    first, *others = (trained[1][0][name, False] for name in LOOPS)
    for other in others:
        assert other.losses == first.losses
        assert all(torch.equal(other.weights[name], first.weights[name]) for name in first.weights)


@pytest.mark.parametrize("name", LOOPS)
def test_two_processes_train_what_one_does_and_have_its_running_statistics(trained, name):
    whole, *ranks = (found[name, False] for found in (*trained[1], *trained[2]))
    means = [sum(both) / 2 for both in zip(*(rank.losses for rank in ranks), strict=True)]
    assert means == pytest.approx(whole.losses, abs=1e-6)
    stats = [key for key in whole.weights if key.endswith(("running_mean", "running_var"))]
    assert len(stats) == 2
    for rank in ranks:
        for key in stats:
            torch.testing.assert_close(rank.weights[key], whole.weights[key], rtol=1e-5, atol=1e-6)


def assert_goes_on(found: dict[tuple[str, bool], Trained], name: str) -> None:
    whole, rest = found[name, False], found[name, True]
    assert rest.seen == whole.seen[LATER:]
    assert rest.losses == whole.losses[LATER:]
    assert all(torch.equal(rest.weights[key], whole.weights[key]) for key in whole.weights)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_loop_goes_on_inside_an_epoch_bit_for_bit(task, trained, processes):
    assert task.schedule.at(LATER).first_clip % len(task.clips) != 0
    for found in trained[processes]:
        for name in RESUMED[processes]:
            assert_goes_on(found, name)


@pytest.mark.parametrize("name", LOOPS)
def test_three_processes_go_on_bit_for_bit(trained_by_three, name):
    for found in trained_by_three:
        assert_goes_on(found, name)


def count_warnings(rank: int, folder: Path, way: str) -> None:
    """Train on two processes, in a right way or with a mistake, and save what is warned of."""
    dist.init_process_group("gloo")
    (folder / f"{way}_{rank}").write_text("\n".join(warnings_of(way)))
    # If DDP is freed after this group, it frees the group while it holds Python's lock, and waits
    # forever for a thread that needs the lock.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def warnings_of(way: str) -> list[str]:
    """Train in a right way or with a mistake, and return what is warned of."""
    schedule = make_schedule(
        Shape(4, 4, 16), 40, SteppedRate((4.0, 6.0), (0.1, 0.01)), bn_group_size=2
    )
    net = Net()
    network = DistributedDataParallel(net, broadcast_buffers=way != "right")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    training = Training(schedule, net, optimizer, 0)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        loader = training.loader(Clips(40), collate_fn=video_inputs)
        for batch in islice(training.batches(loader), 4):
            training.begin(batch)
            optimizer.zero_grad()
            called = net if way == "net alone" else network
            called(batch["pixel_values"], batch["labels"])["loss"].backward()
            optimizer.step()
            if way == "averaged":
                average_running_stats(net)
    return [str(one.message) for one in found]


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("right", None),
        ("averaged", None),
        ("net alone", "the processes have different weights"),
        ("copied", "broadcast_buffers=False"),
    ],
)
def test_mistakes_with_several_processes_are_warned_of(tmp_path, run_ranks, way, message):
    run_ranks(2, count_warnings, tmp_path, way)
    for rank in range(2):
        text = (tmp_path / f"{way}_{rank}").read_text()
        for expected in ("the processes have different weights", "broadcast_buffers=False"):
            assert (expected in text) == (expected == message)
