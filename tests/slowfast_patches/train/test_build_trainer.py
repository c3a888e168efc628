"""The parts of a training: its hooks in their order, its data, its start and its metadata."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.plan.run_identity import Identity
from slowfast_patches.train import build_trainer as builder
from slowfast_patches.train.build_trainer import build_trainer
from slowfast_patches.train.resume import Resumable
from slowfast_patches.train.trainer import Hook, Trainer
from slowfast_patches.utils.distributed import World
from tests.slowfast_patches.train.conftest import ALONE
from tests.slowfast_patches.train.made_checkpoint import made
from tests.slowfast_patches.train.test_stepper import Stepper, config
from tests.slowfast_patches.train.test_trainer import plan

SECOND = World(1, 2, torch.device("cpu"))
IDENTITY = Identity({"KEY": 1}, {})


class Data(SimpleNamespace):
    """16 videos that nobody reads."""

    def __len__(self) -> int:
        return 16


DATA = {"train": Data(videos=range(16)), "val": Data(videos=range(2))}


class Mine(Hook):
    """A hook of the user."""


@pytest.fixture
def build(monkeypatch, tmp_path) -> Any:
    """Return `build(world=..., KEY=value)`: the trainer of a network with one layer."""
    monkeypatch.setattr(builder, "schedule_of", lambda recipe, videos: plan())
    monkeypatch.setattr(builder, "evaluation_iterations", lambda *_: [4, 8])
    monkeypatch.setattr(builder, "checkpoint_iterations", lambda *_: {3})
    monkeypatch.setattr(builder, "phase_ends", lambda schedule: {6})
    monkeypatch.setattr(builder, "names_of_data", lambda recipe: None)
    monkeypatch.setattr(builder, "clock_text", lambda identity: "a clock")
    monkeypatch.setattr(
        builder, "recipe_at", lambda recipe, _, iteration: SimpleNamespace(text=f"at {iteration}")
    )
    monkeypatch.setattr(
        builder,
        "_build_stepper",
        lambda recipe, world, data: Stepper(recipe, nn.Linear(2, 3), world.device),
    )

    def call(world: World = ALONE, resumable: Any = None, hooks: Any = (), **keys: Any) -> Trainer:
        identity = IDENTITY if world.is_main else None
        recipe = config(OUTPUT_DIR=str(tmp_path), BN__USE_PRECISE_STATS=False, **keys)
        stop = StopRequest(ALONE)
        return build_trainer(
            recipe, world, stop, resumable, hooks, identity=identity, datasets=DATA
        )

    return call


def hooks_of(trainer: Trainer) -> list[str]:
    return [type(hook).__name__ for hook in trainer.hooks]


def hook_of(trainer: Trainer, name: str) -> Any:
    return next(hook for hook in trainer.hooks if type(hook).__name__ == name)


FIRST = ["DryRun", "WrapInDDP", "LossGuard", "UnreadableGuard"]
LAST = ["SaveCheckpoint", "StopOnSignal", "Validate"]


def test_hooks_of_a_user_follow_the_guards_and_precede_what_they_may_ask_for(build):
    trainer = build(hooks=[Mine()])
    assert hooks_of(trainer) == [*FIRST, "Mine", "Agree", "LogMetrics", *LAST, "SaveCheckpoint"]
    first, second = (h for h in trainer.hooks if type(h).__name__ == "SaveCheckpoint")
    assert first is second, "it knows what it has saved"


def test_some_hooks_depend_on_the_recipe_and_the_terminal(build, monkeypatch):
    built = list[Any]()
    extra = SimpleNamespace(build=lambda recipe, saved: built.append(saved) or Mine())
    monkeypatch.setattr(builder, "shows_bars", lambda: True)
    monkeypatch.setattr(builder, "used_hooks", lambda recipe: [extra])
    trainer = build(TRAIN__KEEP_BEST=True)
    middle = ["Agree", "LogMetrics", "ProgressBar"]
    assert hooks_of(trainer) == [*FIRST, *middle, *LAST, "KeepBest", "SaveCheckpoint", "Mine"]
    assert built == [{3, 4, 8}]
    assert hook_of(trainer, "ProgressBar")._closes_after == {4, 8}


def test_hooks_are_told_when_they_act_and_what_they_keep(build):
    trainer = build(TRAIN__CHECKPOINTS_KEPT=7, DATA__MAX_BAD_FRACTION=0.125, TRAIN__KEEP_BEST=True)
    save, log = hook_of(trainer, "SaveCheckpoint"), hook_of(trainer, "LogMetrics")
    assert save._after == log._after == {3, 4, 8}
    assert (save._kept, save._milestones) == (7, {6})
    assert hook_of(trainer, "Validate")._after == {4, 8}
    assert hook_of(trainer, "Validate")._log == log.log_evaluation
    assert hook_of(trainer, "UnreadableGuard")._fraction == 0.125
    assert hook_of(trainer, "KeepBest")._metric == "top1"
    averaged = build(TRAIN__KEEP_BEST=True, MODEL__EMA_DECAY=0.5)
    assert hook_of(averaged, "KeepBest")._metric == "top1_ema"


def test_a_validation_is_of_the_models_of_the_training(build, monkeypatch):
    asked = list[Any]()
    monkeypatch.setattr(
        builder, "Validation", lambda *given: lambda *call: asked.append((given, call))
    )
    trainer = build()
    hook_of(trainer, "Validate")._validate("step")
    ((given, call),) = asked
    assert call == (trainer.stepper.models, "step")
    assert given[1:] == (ALONE, trainer.stop, DATA["train"], plan(), DATA["val"])


def test_mini_batches_are_those_of_this_process_from_an_iteration_on(build, monkeypatch):
    asked = list[Any]()
    monkeypatch.setattr(builder, "broadcast_from_main", lambda make: make())
    monkeypatch.setattr(builder, "training_loader", lambda *given: asked.append(given[1:]) or ())
    for world in (ALONE, SECOND):
        build(world).batches(5)
        assert asked.pop() == (DATA["train"], plan(), 5, world.rank, world.size)


@pytest.mark.parametrize("precise", [True, False])
def test_groups_of_processes_are_formed_for_the_schedule(build, monkeypatch, precise):
    formed = list[Any]()
    monkeypatch.setattr(
        builder, "form_groups", lambda schedule, wait: formed.append((schedule, wait))
    )
    monkeypatch.setattr(
        builder, "form_bn_process_groups", lambda size, wait: formed.append((size, wait))
    )
    monkeypatch.setattr(builder, "config", None, raising=False)
    recipe = config(BN__USE_PRECISE_STATS=precise, DIST_TIMEOUT_SECONDS=77)
    build_trainer(recipe, ALONE, StopRequest(ALONE), identity=IDENTITY, datasets=DATA)
    assert [what for what, _ in formed] == [plan(), *[1] * precise]
    assert {wait.total_seconds() for _, wait in formed} == {77.0}


def test_what_a_checkpoint_says_of_the_run_and_of_its_last_iteration(build, monkeypatch):
    trainer = build()
    metadata = hook_of(trainer, "SaveCheckpoint")._metadata
    step = trainer.schedule.at(3)
    found = metadata(step)
    assert found["cfg"].splitlines()
    assert found | {"cfg": ""} == {
        "cfg": "",
        "identity": IDENTITY.to_json(),
        "num_videos": 16,
        "class_names": None,
        "epoch": 1.5,
        "cfg_at_iteration": "at 3",
    }
    assert trainer.progress.clocks == ["a clock"]
    assert len(trainer.progress.training) == 16
    assert build().progress.training != trainer.progress.training
    resumable = Resumable("path", made(class_names=("a", "b")))
    monkeypatch.setattr(builder, "restore", lambda trainer, checkpoint: None)
    again = hook_of(build(resumable=resumable), "SaveCheckpoint")._metadata
    assert again(step)["class_names"] == ("a", "b")
    monkeypatch.setattr(builder, "names_of_data", lambda recipe: ("c", "d"))
    again = hook_of(build(resumable=resumable), "SaveCheckpoint")._metadata
    assert again(step)["class_names"] == ("c", "d"), "those of the data come first"


def test_another_process_has_no_identity_and_gets_the_start_of_the_main_one(build, monkeypatch):
    restored = list[Any]()
    monkeypatch.setattr(builder, "restore", lambda trainer, found: restored.append(found))
    monkeypatch.setattr(builder, "broadcast_from_main", lambda make: "the main one's")
    trainer = build(SECOND)
    assert restored == ["the main one's"]
    assert trainer.progress.clocks == []
    assert hook_of(trainer, "SaveCheckpoint")._metadata(trainer.schedule.at(0))["identity"] == {}


def test_a_run_resumes_and_says_from_where(build, monkeypatch, caplog):
    caplog.set_level("INFO")
    restored = list[Any]()
    monkeypatch.setattr(builder, "restore", lambda trainer, found: restored.append(found))
    monkeypatch.setattr(builder, "load_weights", None)
    checkpoint = made(iteration=3)
    trainer = build(resumable=Resumable("the/path", checkpoint), TRAIN__CHECKPOINT_FILE_PATH="a")
    assert restored == [checkpoint]
    assert trainer.progress.training == ""
    assert "Resuming after iteration 3 from the/path." in caplog.text


@pytest.mark.parametrize("world", [ALONE, SECOND])
def test_given_weights_are_read_once_and_all_models_start_at_them(build, monkeypatch, world):
    loaded, sent = list[Any](), {"weight": torch.full((3, 2), 7.0), "bias": torch.ones(3)}

    def broadcast(make: Any) -> Any:
        made = make()
        return made and sent

    monkeypatch.setattr(builder, "broadcast_from_main", broadcast)
    monkeypatch.setattr(
        builder, "load_weights", lambda model, path, **options: loaded.append((path, options))
    )
    keys = {"TRAIN__CHECKPOINT_INFLATE": True, "TRAIN__CHECKPOINT_SHARE": 0.25}
    trainer = build(world, TRAIN__CHECKPOINT_FILE_PATH="a", MODEL__EMA_DECAY=0.5, **keys)
    assert loaded == [("a", {"inflate": True, "least": 0.25})] * world.is_main
    assert len(trainer.stepper.models) == 2
    for model in trainer.stepper.models:
        assert model.weight.tolist() == [[7.0, 7.0]] * 3


@pytest.mark.parametrize("weighted", [True, False])
def test_a_network_starts_at_the_seed_and_with_grouped_normalisation(monkeypatch, weighted):
    built = list[Any]()

    def build_model(recipe: Any, grouped_bn: bool) -> nn.Module:
        built.append((grouped_bn, float(torch.rand(()))))
        return nn.Linear(2, 4)

    monkeypatch.setattr(builder, "build_model", build_model)
    monkeypatch.setattr(builder, "label_counts", lambda recipe, videos: built.append(videos))
    monkeypatch.setattr(builder, "Stepper", lambda *given: given)
    weights = (1.0, 1.0, 1.0, 1.0) if weighted else ()
    for seed in (3, 3, 4):
        recipe = config(RNG_SEED=seed, SOLVER__CLASS_WEIGHTS=weights)
        made = builder._build_stepper(recipe, ALONE, DATA["train"])
        assert (made[0], made[2:]) == (recipe, (ALONE.device, None))
    drawn = [value for value in built if isinstance(value, tuple)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(grouped for grouped, _ in drawn)
    assert built.count(DATA["train"].videos) == 3 * weighted


def test_without_data_sets_those_of_the_recipe_are_read(monkeypatch):
    read = list[str]()
    monkeypatch.setattr(
        builder, "build_dataset", lambda recipe, split: read.append(split) or DATA[split]
    )
    monkeypatch.setattr(
        builder, "run_identity", lambda recipe, clips: read.append(clips) or IDENTITY
    )
    monkeypatch.setattr(
        builder, "schedule_of", lambda recipe, videos: read.append(videos) or plan()
    )
    monkeypatch.setattr(builder, "Validation", lambda *given: read.append(given[-1]) or print)
    monkeypatch.setattr(builder, "clock_text", lambda identity: "a clock")
    monkeypatch.setattr(
        builder, "_build_stepper", lambda recipe, *_: Stepper(recipe, nn.Linear(2, 3), ALONE.device)
    )
    build_trainer(config(BN__USE_PRECISE_STATS=False), ALONE, StopRequest(ALONE))
    assert read == ["train", False, 16, None]
