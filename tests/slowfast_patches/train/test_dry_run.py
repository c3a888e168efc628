"""Dry steps: which shapes they try, what they leave, the memory they count, and their errors."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from multigrid import GroupedBatchNorm3d, Shape, clip_numbers
from slowfast_patches.train import dry_run as dry_runs
from slowfast_patches.train.dry_run import (
    DryRun,
    dry_run,
    explain_failures,
    kinds_of_steps,
    made_up_batch,
)
from slowfast_patches.utils.clock import Clock
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.errors import UserError
from tests.slowfast_patches.train.test_stepper import config, schedule, state, stepper
from tests.slowfast_patches.train.test_trainer import plan

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_the_largest_shapes_are_tried_first_and_each_kind_once():
    whole = schedule()
    steps = kinds_of_steps(whole)
    volumes = [step.shape.volume for step in steps]
    assert volumes == sorted(volumes, reverse=True)
    kinds = [(step.shape, step.bn_group_size) for step in steps]
    assert len(set(kinds)) == len(kinds)
    assert set(kinds) == {(step.shape, step.bn_group_size) for step in whole.steps()}
    for step in steps:
        assert step == whole.at(step.iteration), "a step of the schedule"


def test_a_dry_run_announces_each_shape_and_leaves_the_model_as_it_was():
    made, whole, begun = stepper(), schedule(), list[str]()
    before = {name: value.clone() for name, value in state(made).items()}
    peaks = dry_run(made, whole, begin=begun.append)
    assert begun == [f"the dry step of {step.shape}" for step in kinds_of_steps(whole)]
    assert list(peaks) == kinds_of_steps(whole)
    assert set(peaks.values()) == {0.0}
    assert all(before[name].equal(value) for name, value in state(made).items())
    assert all(parameter.grad is None for parameter in made.model.parameters())
    norms = [m for m in made.model.modules() if isinstance(m, GroupedBatchNorm3d)]
    assert norms
    assert all(norm.group_size is None for norm in norms)


def test_each_process_tries_its_own_clips():
    taken, whole, made = list[tuple[int, list[int]]](), schedule(), stepper()
    made.forward_backward = lambda step, batch, clips: taken.append(
        (len(batch["clips"]), list(clips))
    )
    dry_run(made, whole, rank=1, world_size=2)
    for (count, clips), step in zip(taken, kinds_of_steps(whole), strict=True):
        assert count == step.shape.batch // 2
        assert clips == list(clip_numbers(step, 1, 2))


def test_compiling_needs_two_graphs_for_each_kind(monkeypatch):
    expected, made, whole = list[int](), stepper(), schedule()
    monkeypatch.setattr(dry_runs, "expect_graphs", expected.append)
    made.forward_backward = lambda *_: None
    dry_run(made, whole)
    assert expected == []
    made.recipe = config(TRAIN__COMPILE=True)
    dry_run(made, whole)
    assert expected == [2 * len(kinds_of_steps(whole))]


@pytest.mark.parametrize(("device", "freed"), [(CPU, 0), (GPU, 1)])
def test_memory_and_generators_are_those_of_the_device(monkeypatch, device, freed):
    forked, calls = list[Any](), list[str]()
    made = stepper()
    made.device = device
    monkeypatch.setattr(dry_runs, "_peak", lambda *_: 0.0)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("freed"))
    monkeypatch.setattr(
        torch.random, "fork_rng", lambda devices: forked.append(devices) or nullcontext()
    )
    dry_run(made, plan())
    assert forked == [[GPU] * freed]
    assert calls == ["freed"] * freed


@pytest.mark.parametrize(
    ("keys", "processes", "state", "copies"),
    [
        ({}, 1, {}, 1),
        ({}, 2, {}, 2),
        ({"SOLVER__OPTIMIZING_METHOD": "adamw"}, 1, {}, 2),
        ({"SOLVER__OPTIMIZING_METHOD": "adam"}, 2, {}, 3),
        ({"SOLVER__OPTIMIZING_METHOD": "adamw"}, 1, {"a": 1}, 0),
        ({}, 2, {"a": 1}, 1),
    ],
)
def test_the_memory_on_a_gpu_counts_what_a_dry_step_does_not_allocate(
    monkeypatch, caplog, keys, processes, state, copies
):
    """Gradients of several processes and the state of the optimizer, of parameters that learn."""
    calls, reserved = list[str](), list[torch.Size]()
    model = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Linear(2, 7))
    model[1].weight.requires_grad_(False)
    for name in ("empty_cache", "reset_peak_memory_stats", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, n=name: calls.append(n))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: calls.append("peak") or 7e9)
    monkeypatch.setattr(torch, "empty_like", lambda given: reserved.append(given.shape) or given)
    made: Any = SimpleNamespace(
        recipe=config(**keys),
        device=GPU,
        model=model,
        optimizer=SimpleNamespace(state=state),
        forward_backward=lambda *_: calls.append("step"),
    )
    step = plan().at(0)
    assert dry_runs._peak(made, step, 0, processes) == 7e9
    assert calls == [
        *("step", "empty_cache", "reset_peak_memory_stats", "step", "synchronize", "peak"),
    ]
    assert sorted(reserved) == sorted([model[0].weight.shape, model[1].bias.shape] * copies)


def test_the_memory_of_each_shape_is_logged_on_a_gpu_alone(monkeypatch, caplog):
    caplog.set_level("INFO")
    made, whole = stepper(), plan()
    monkeypatch.setattr(dry_runs, "_peak", lambda *_: 0.0)
    dry_run(made, whole)
    assert "GPU memory" not in caplog.text
    monkeypatch.setattr(dry_runs, "_peak", lambda *_: 7.25e9)
    (peak,) = dry_run(made, whole).values()
    assert peak == 7.25e9
    assert "The shape 8×4×16² takes 7.2 GB of GPU memory." in caplog.text


# The hook.


class Stop(SimpleNamespace):
    def begin(self, name: str) -> None:
        """Ask for nothing."""


def trainer_of(compiles: bool | str, world: World) -> Any:
    recipe = config(TRAIN__COMPILE=compiles)
    return SimpleNamespace(
        stepper=SimpleNamespace(recipe=recipe, device=world.device),
        schedule=plan(),
        progress=SimpleNamespace(iteration=3),
        world=world,
        clock=Clock(),
        stop=Stop(),
    )


@pytest.mark.parametrize(
    ("compiles", "device", "runs"), [(False, CPU, 0), (False, GPU, 1), (True, CPU, 1)]
)
def test_the_hook_tries_what_is_left_on_a_gpu_or_if_it_compiles(
    monkeypatch, caplog, compiles, device, runs
):
    calls = list[object]()
    world = World(1, 2, device)
    trainer = trainer_of(compiles, world)

    def dry_run(stepper, schedule, **options) -> None:
        calls.append(options)
        assert (stepper, schedule) == (trainer.stepper, trainer.schedule)
        assert trainer.clock._activity == "preparing"

    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda size, device: zeros(size))
    monkeypatch.setattr(dry_runs, "dry_run", dry_run)
    monkeypatch.setattr(dry_runs, "sum_over_ranks", lambda tensor: calls.append(len(tensor)))
    monkeypatch.setattr(torch.compiler, "set_stance", calls.append)
    caplog.set_level("INFO")
    DryRun().before_train(trainer)
    options = {"start": 3, "rank": 1, "world_size": 2, "begin": trainer.stop.begin}
    stances = ["fail_on_recompile"] * compiles
    assert calls == [1, options] * runs + stances
    assert ("Running a dry step" in caplog.text) == bool(runs)
    calls.clear()
    DryRun().after_train(trainer)
    assert calls == ["default"] * compiles


# Errors and clips.


class CompilerError(RuntimeError):
    """An error of torch's compiler."""


CompilerError.__module__ = "torch._dynamo.exc"


@pytest.mark.parametrize(
    ("compiles", "error", "said"),
    [
        (False, RuntimeError("CUDA out of memory"), "does not fit into the memory of cpu. Set"),
        (False, RuntimeError("CUDNN_STATUS_ALLOC_FAILED"), "does not fit"),
        (True, RuntimeError("unable to find an engine to execute"), "does not fit"),
        (True, CompilerError("a break"), r"COMPILE is True, but the shape .* \(a break\)\. Set"),
        ("max-autotune", CompilerError("a " * 200), r"COMPILE is max-autotune.*\[\.\.\.\]\)"),
    ],
)
def test_a_shape_that_cannot_be_trained_is_a_mistake_with_advice(compiles, error, said):
    made = stepper()
    made.recipe = config(TRAIN__COMPILE=compiles)
    with pytest.raises(UserError, match=said) as failed, explain_failures(made, plan().at(0)):
        raise error
    assert "8×4×16²" in str(failed.value)
    assert failed.value.__cause__ is error


@pytest.mark.parametrize(
    ("compiles", "error"),
    [(False, CompilerError("a break")), (True, RuntimeError("shapes differ")), (True, KeyError())],
)
def test_other_errors_of_a_dry_step_stay_as_they_are(compiles, error):
    made = stepper()
    made.recipe = config(TRAIN__COMPILE=compiles)
    with pytest.raises(type(error)) as failed, explain_failures(made, plan().at(0)):
        raise error
    assert failed.value is error


def test_made_up_clips_are_those_of_a_loader_and_depend_on_the_seed_alone():
    drawn, shape = torch.get_rng_state(), Shape(64, 4, 16)
    first, again = (made_up_batch(config(RNG_SEED=3), 64, shape) for _ in range(2))
    other = made_up_batch(config(RNG_SEED=4), 64, shape)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert (first["clips"].shape, first["clips"].dtype) == ((64, 4, 16, 16, 3), torch.uint8)
    assert (int(first["clips"].min()), int(first["clips"].max())) == (0, 255)
    assert (first["flips"].shape, first["flips"].dtype) == ((64,), torch.bool)
    assert 16 < int(first["flips"].sum()) < 48
    assert set(first["labels"].tolist()) == set(range(4))
    assert (first["iteration"], first["failures"]) == (0, [])
    for name in ("clips", "flips", "labels"):
        assert first[name].equal(again[name])
        assert not first[name].equal(other[name])
    assert not made_up_batch(config(DATA__RANDOM_FLIP=False), 64, shape)["flips"].any()


@pytest.mark.parametrize(
    ("gpus", "pin", "pinned"), [(1, True, True), (0, True, False), (1, False, False)]
)
def test_made_up_clips_are_pinned_as_those_of_the_loader(monkeypatch, gpus, pin, pinned):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: f"pinned {tensor.ndim}")
    keys = {"NUM_GPUS": gpus, "DATA_LOADER__PIN_MEMORY": pin}
    batch = made_up_batch(config(**keys), 2, Shape(2, 2, 4))
    found = [isinstance(batch[name], str) for name in ("clips", "flips", "labels")]
    assert found == [pinned] * 3
