"""A plain loop, Lightning, accelerate, the Trainer of transformers, run_net: one seed, one stream
of clips, on one process and on two."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import pytest
import torch
import torch.distributed as dist
import transformers
from accelerate import Accelerator
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from multigrid import PAPER, Schedule, Training, average_running_stats, convert_batchnorm
from multigrid.integrations.lightning import MultigridCallback
from multigrid.integrations.transformers import MultigridTrainer, video_inputs
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets import VideoClips
from slowfast_patches.datasets.clips import ClipDataset
from slowfast_patches.datasets.loader import training_loader
from slowfast_patches.plan.recipe_schedule import schedule_of

pytestmark = pytest.mark.slow

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
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    training = Training(task.schedule, net, optimizer, task.seed)
    parts, file = (net, optimizer, training), task.folder / f"{os.environ.get('RANK', 0)}.pt"
    if goes_on:
        for part, state in zip(parts, torch.load(file), strict=True):
            part.load_state_dict(state)
    for batch in training.loader(task.clips, collate_fn=video_inputs):
        training.begin(batch)
        optimizer.zero_grad()
        network(batch["pixel_values"], batch["labels"])["loss"].backward()
        optimizer.step()
        if training.iteration == LATER:
            torch.save([part.state_dict() for part in parts], file)
    average_running_stats(net)
    return net


def in_accelerate(task: Task, goes_on: bool) -> Net:
    """The loop of docs/integrations.md."""
    net, accelerator = Net(), Accelerator(cpu=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    network, stepped = accelerator.prepare(net, optimizer)
    training = Training(task.schedule, net, optimizer, task.seed)
    accelerator.register_for_checkpointing(training)
    if goes_on:
        accelerator.load_state(str(task.folder / "state"))
    for batch in training.loader(task.clips, collate_fn=video_inputs):
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


def in_lightning(task: Task, _: bool) -> Net:
    module, multigrid = Module(), MultigridCallback(task.schedule, task.seed)
    module.train_dataloader = lambda: multigrid.loader(task.clips, collate_fn=video_inputs)
    saves = ModelCheckpoint(
        task.folder, filename="{step}", every_n_train_steps=LATER, save_top_k=-1
    )
    quiet = ("logger", "enable_progress_bar", "enable_model_summary", "use_distributed_sampler")
    trainer = L.Trainer(
        max_epochs=1,
        callbacks=[multigrid, saves],
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", 1)),
        strategy="ddp" if dist.is_initialized() else "auto",
        **dict.fromkeys(quiet, False),
    )
    trainer.fit(module)
    return module.net


def in_transformers(task: Task, _: bool) -> Net:
    args = transformers.TrainingArguments(
        str(task.folder),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        optim="sgd",
        max_grad_norm=0.0,
        save_steps=LATER,
        seed=task.seed,
    )
    trainer = MultigridTrainer(
        schedule=task.schedule, model=Net(), args=args, train_dataset=task.clips
    )
    trainer.train()
    return trainer.model


LOOPS = {
    "plain": plain,
    "accelerate": in_accelerate,
    "lightning": in_lightning,
    "transformers": in_transformers,
}
SAVED = {
    "accelerate": "state/model.safetensors",
    "lightning": f"step={LATER}.ckpt",
    "transformers": f"checkpoint-{LATER}/model.safetensors",
}
"""What each loop saves after iteration LATER."""
RESUMED = ("plain", "accelerate")
"""Loops that go on here. The tests of the other integrations resume on one process."""


class Trained(NamedTuple):
    """Of each iteration what the model was given, and the loss; and the weights at the end."""

    seen: list[str]
    losses: list[float]
    weights: dict[str, Tensor]


def train_all(task: Task, file: Path) -> None:
    """Every loop, and some of them from where they saved; by (loop, whether it went on)."""
    found = dict[tuple[str, bool], Trained]()
    for name, loop in LOOPS.items():
        own = task._replace(folder=task.folder / name)
        own.folder.mkdir(parents=True, exist_ok=True)
        for goes_on in (False, True)[: 1 + (name in RESUMED)]:
            net = loop(own, goes_on)
            found[name, goes_on] = Trained(net.seen, net.losses, net.state_dict())
    torch.save(found, file)


def train_as_rank(rank: int, task: Task) -> None:
    dist.init_process_group("gloo")
    train_all(task, task.folder / f"rank{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def recipe(tiny_config: Callable[..., Recipe], tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    keys = ("RNG_SEED", 5, "SOLVER.BASE_LR", 0.001, "MULTIGRID.EPOCH_FACTOR", 1.5)
    return tiny_config(tmp_path_factory.mktemp("run_net"), *keys)


@pytest.fixture(scope="module")
def task(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Task:
    data = recipe.data
    clips = VideoClips(
        Path(data.path_to_data_dir) / "train.csv",
        recipe.base_shape,
        stride=data.sampling_rate,
        short_sides=data.train_jitter_scales,
        seed=5,
        sampling=PAPER.sampling,
    )
    return Task(clips, schedule_of(recipe, len(clips)), 5, tmp_path_factory.mktemp("saved"))


@pytest.fixture(scope="module")
def trained(task: Task, run_ranks: Callable[..., None]) -> dict[int, list[Any]]:
    """What one process trained, and what each of two."""
    folder = task.folder
    run_ranks(1, lambda _: train_all(task._replace(folder=folder / "one"), folder / "one.pt"))
    run_ranks(2, train_as_rank, task)
    files = {1: ["one.pt"], 2: ["rank0.pt", "rank1.pt"]}
    return {
        count: [torch.load(folder / name, weights_only=False) for name in names]
        for count, names in files.items()
    }


@pytest.mark.parametrize("processes", [1, 2])
def test_all_loops_train_the_same_clips_in_the_same_order(recipe, task, trained, processes):
    data = ClipDataset.of_recipe(recipe, "train")
    for rank, found in enumerate(trained[processes]):
        loader = training_loader(recipe, data, task.schedule, 0, rank, processes)
        batches = [video_inputs(batch) for batch in loader]
        expected = [mark_of(batch["pixel_values"], batch["labels"]) for batch in batches]
        assert len(set(expected)) == task.schedule.iterations > 2 * LATER
        assert [found[name, False].seen == expected for name in LOOPS] == [True] * 4


def test_one_process_trains_the_same_numbers_in_all_loops(trained):
    found = [trained[1][0][name, False] for name in LOOPS]
    for other in found[1:]:
        assert other.losses == found[0].losses
        for name, tensor in found[0].weights.items():
            assert torch.equal(other.weights[name], tensor)


@pytest.mark.parametrize("name", LOOPS)
def test_two_processes_train_what_one_does(trained, name):
    whole, *ranks = (found[name, False].losses for found in (*trained[1], *trained[2]))
    means = [sum(both) / 2 for both in zip(*ranks, strict=True)]
    assert means == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize("name", LOOPS)
def test_two_processes_have_the_running_statistics_of_one(task, trained, name):
    """Each process has the average at the end, and saves it in the middle."""
    (alone,), ranks = trained[1], trained[2]
    pairs = [(alone[name, False].weights, rank[name, False].weights) for rank in ranks]
    if name in SAVED:
        files = (task.folder / one / name / SAVED[name] for one in ("one", ""))
        pairs.append(tuple(map(saved_weights, files)))
    for expected, found in pairs:
        stats = [key for key in expected if key.endswith(("running_mean", "running_var"))]
        assert len(stats) == 2
        for key in stats:
            torch.testing.assert_close(found[key], expected[key], rtol=1e-5, atol=1e-6)


def saved_weights(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        return load_file(file)
    return torch.load(file, weights_only=False)["state_dict"]


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("name", RESUMED)
def test_a_loop_goes_on_inside_an_epoch_bit_for_bit(task, trained, name, processes):
    assert task.schedule.at(LATER).first_clip % len(task.clips) != 0
    for found in trained[processes]:
        whole, rest = found[name, False], found[name, True]
        assert rest.seen == whole.seen[LATER:]
        assert rest.losses == whole.losses[LATER:]
        for key, tensor in whole.weights.items():
            assert torch.equal(rest.weights[key], tensor), key
