"""Steps of a small network: dry steps, compiled, with recomputed activations, and fused."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from multigrid import (
    PAPER,
    Schedule,
    Shape,
    SteppedRate,
    clip_numbers,
    convert_batchnorm,
    make_schedule,
    set_group_size,
)
from slowfast_patches.config.recipe import Recipe, default_recipe
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.layers.dropout import ClipDropout
from slowfast_patches.models.recompute import checkpoint_blocks
from slowfast_patches.models.solver import load_optimizer
from slowfast_patches.seams import BatchTransform
from slowfast_patches.train import step as step_module
from slowfast_patches.train.dry_run import dry_run, kinds_of_steps, made_up_batch
from slowfast_patches.train.parallel import in_parallel
from slowfast_patches.train.step import Stepper
from slowfast_patches.utils.errors import RunError
from tests.conftest import assert_same_bits

CPU = torch.device("cpu")


class Net(nn.Module):
    """Convolution, BN, pool, dropout and projection: what the host's networks consist of."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(3, 8, (1, 3, 3), stride=(1, 2, 2), bias=False)
        self.bn, self.relu = nn.BatchNorm3d(8), nn.ReLU(inplace=True)
        self.dropout = ClipDropout(0.5, 0, 8)
        self.projection = nn.Linear(8, 4)

    def forward(self, pathways: list[Tensor]) -> Tensor:
        pathways[0] = self.conv(pathways[0])  # as the host's: not a list to keep
        x = self.relu(self.bn(pathways[0])).mean((2, 3, 4))
        return self.projection(self.dropout(x))


def config(**keys: object) -> Recipe:
    """A recipe of 8 clips of 4 × 16²; `TRAIN__COMPILE=True` sets TRAIN.COMPILE."""
    values = {"MODEL.ARCH": "slowonly", "MODEL.NUM_CLASSES": 4, "NUM_GPUS": 0}
    values |= {"TRAIN.BATCH_SIZE": 8, "DATA.NUM_FRAMES": 4, "DATA.TRAIN_CROP_SIZE": 16}
    values |= {"MULTIGRID.LONG_CYCLE": True, "MULTIGRID.SHORT_CYCLE": True}
    return default_recipe().replaced(values | {k.replace("__", "."): v for k, v in keys.items()})


def schedule(bn_group_size: int | None = 8) -> Schedule:
    rate = SteppedRate(ends=(20.0, 30.0), rates=(0.1, 0.01))
    return make_schedule(Shape(8, 4, 16), 400, rate, PAPER, bn_group_size=bn_group_size)


def stepper(**keys: object) -> Stepper:
    torch.manual_seed(0)
    cfg, model = config(**keys), convert_batchnorm(Net())
    if cfg.model.channels_last:
        model.to(memory_format=torch.channels_last_3d)
    return Stepper(cfg, model, CPU)


def take_steps(made: Stepper, plan: Schedule, iterations: range) -> list[float]:
    losses = list[float]()
    for step in map(plan.at, iterations):
        batch = made_up_batch(made.recipe, step.shape.batch, step.shape)
        losses.append(float(made(step, batch, clip_numbers(step, 0, 1)).loss))
    return losses


def state(made: Stepper) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in made.model.state_dict().items()}


# Dry steps.


def test_a_training_after_dry_steps_is_the_training_without():
    plan, ours, plain = schedule(), stepper(), stepper()
    before, drawn = state(ours), torch.get_rng_state()
    steps = list(dry_run(ours, plan))
    assert_same_bits(state(ours), before)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert not ours.optimizer.state
    assert len(steps) == 10
    assert {(s.shape, s.bn_group_size) for s in steps} == {
        (s.shape, s.bn_group_size) for s in plan.steps()
    }
    assert take_steps(ours, plan, range(5)) == take_steps(plain, plan, range(5))
    assert_same_bits(state(ours), state(plain))
    last = plan.phases[-1]  # one that goes on tries only what is still to come
    assert {s.shape for s in kinds_of_steps(plan, last.start + 1)} == set(last.shapes)


# Gradient accumulation.


def accumulated(parts: int, plan: Schedule, **keys: object) -> tuple[list[float], dict]:
    """Losses and state, in double, after a short cycle and a step, whose clips pass in parts."""
    made = stepper(SOLVER__ACCUMULATION_STEPS=parts, **keys)
    made.model.double()
    pathways = InputTransform.__call__
    with mock.patch.object(
        InputTransform, "__call__", lambda *a: [p.double() for p in pathways(*a)]
    ):
        losses = take_steps(made, plan, range(plan.phases[3].start, plan.phases[3].start + 4))
    return losses, state(made)


def test_a_training_in_parts_is_the_training_in_one():
    assert_same_in_parts()


def assert_same_in_parts(**more: object) -> None:
    """Compare weights, masks and running statistics. Mini-batches have groups of 8, 4 and 2."""
    plan = schedule(bn_group_size=2)
    keys = {"MODEL__CHANNELS_LAST": True, "SOLVER__CLIP_GRAD_L2NORM": 0.01, **more}
    losses, expected = accumulated(1, plan, **keys)
    for parts in (2, 3, 4):
        found, weights = accumulated(parts, plan, **keys)
        assert found == pytest.approx(losses, rel=1e-12)
        torch.testing.assert_close(weights, expected, rtol=1e-11, atol=1e-12)
        assert int(weights["bn.num_batches_tracked"]) == 4


def test_registered_changes_are_made_to_each_micro_batch_and_its_targets(monkeypatch):
    seen = list[list[int]]()

    def blacken(pathways: list[Tensor], targets: Tensor, clips: list[int]) -> Tensor:
        seen.append(clips)
        assert len(pathways[0].zero_()) == len(clips)
        return targets + 1

    def fail(recipe: Recipe) -> None:
        raise AssertionError("the key is not set")

    on = BatchTransform("MULTIGRID.LONG_CYCLE", lambda recipe: blacken, lambda recipe: False)
    off = BatchTransform("TRAIN.COMPILE", fail, fail)
    monkeypatch.setattr(step_module, "BATCH_TRANSFORMS", [on, off])
    made, plan = stepper(SOLVER__ACCUMULATION_STEPS=2), schedule(bn_group_size=2)
    step = plan.at(0)
    batch = made_up_batch(made.recipe, step.shape.batch, step.shape)
    batch["labels"].zero_()
    outcome = made.forward_backward(step, batch)
    assert (outcome.labels == 1).all()
    assert sorted(chain(*seen)) == list(range(step.shape.batch))
    assert len(seen) == 2
    assert made.model.conv.weight.grad.count_nonzero() == 0, "black clips have no gradient"


@pytest.mark.parametrize("parts", [1, 4])
def test_processes_exchange_the_gradients_of_parts_once(parts):
    made, exchanged = stepper(SOLVER__ACCUMULATION_STEPS=parts), list[int]()
    plan, alone = schedule(bn_group_size=2), stepper(SOLVER__ACCUMULATION_STEPS=parts)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        made.network = in_parallel(made.network, CPU)

        def count(_, bucket):
            exchanged.append(bucket.index())
            done = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        made.network.register_comm_hook(None, count)
        assert take_steps(made, plan, range(3)) == take_steps(alone, plan, range(3))
    finally:
        dist.destroy_process_group()
    assert exchanged == [0] * 3
    assert_same_bits(state(made), state(alone))


class Extra(Net):
    """A network with a layer that is used in some forward passes."""

    def __init__(self, *uses: bool) -> None:
        super().__init__()
        self.extra = nn.Linear(4, 4)
        self._uses = list(uses)

    def forward(self, pathways: list[Tensor]) -> Tensor:
        scores = super().forward(pathways)
        return self.extra(scores) if self._uses.pop(0) else scores


@pytest.mark.parametrize(
    ("uses", "parts", "taken", "message"),
    [
        (
            [False],
            1,
            0,
            r"2 parameters .* no gradient: extra.weight and extra.bias\. .* requires_grad to False",
        ),
        (
            [True, False],
            1,
            1,
            r"2 parameters .* no gradient: extra.weight and extra.bias\. .* parameter.sum",
        ),
        (
            [True, False, True, True],
            2,
            1,
            r"last micro-batch .* all parameters .* requires_grad to False",
        ),
    ],
)
def test_a_parameter_that_is_not_used_ends_a_training_of_several_processes(
    uses, parts, taken, message
):
    """DDP would take a step with gradients that are not added, before it raises an error."""
    plan = schedule(bn_group_size=2)
    recipe = config(SOLVER__ACCUMULATION_STEPS=parts)
    made = Stepper(recipe, convert_batchnorm(Extra(*uses)), CPU)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        made.network = in_parallel(made.network, CPU)
        take_steps(made, plan, range(taken))
        before = {name: value.clone() for name, value in made.model.named_parameters()}
        with pytest.raises(RunError, match=message):
            take_steps(made, plan, range(taken, taken + 1))
    finally:
        dist.destroy_process_group()
    assert_same_bits(dict(made.model.named_parameters()), before)


# Compiling. The compiler itself is torch's: what is traced runs as it is.


@pytest.mark.slow("compiles a network")
def test_a_compiled_training_is_the_plain_one_and_compiles_nothing_after_the_dry_steps(monkeypatch):
    torch.compiler.reset()
    trace = partial(torch.compile, dynamic=False, fullgraph=True, backend="aot_eager")
    monkeypatch.setattr(step_module, "compiled", lambda model, mode: trace(model))
    rate = SteppedRate(ends=(30.0,), rates=(0.1,))
    plan = make_schedule(Shape(8, 4, 16), 400, rate, replace(PAPER, long_cycle=()), bn_group_size=4)
    plain = stepper(SOLVER__ACCUMULATION_STEPS=2)
    made = stepper(SOLVER__ACCUMULATION_STEPS=2, TRAIN__COMPILE=True)
    dry_run(made, plan)
    with torch.compiler.set_stance("fail_on_recompile"):
        losses = take_steps(made, plan, range(6))
    assert losses == take_steps(plain, plan, range(6))
    assert_same_bits(state(made), state(plain))


# Activation checkpointing.


def test_recomputed_blocks_give_the_same_numbers_and_move_statistics_once():
    from slowfast.models.resnet_helper import BottleneckTransform, ResBlock

    passes = list[bool]()

    def block(recomputed: bool) -> tuple[nn.Module, list[Tensor]]:
        torch.manual_seed(1)
        made = convert_batchnorm(nn.Sequential(ResBlock(8, 16, 3, 2, BottleneckTransform, 4)))
        if recomputed:
            checkpoint_blocks(made)
        set_group_size(made, 2)
        made[0].branch2.register_forward_pre_hook(lambda *_: passes.append(recomputed))
        x = torch.randn(4, 8, 3, 6, 6, requires_grad=True)
        out = made(x)
        out.square().sum().backward()
        return made, [out, x.grad, *(weight.grad for weight in made.parameters())]

    (plain, numbers), (ours, same) = block(False), block(True)
    assert passes == [False, True, True]
    assert all(map(torch.equal, same, numbers))
    assert_same_bits(ours.state_dict(), plain.state_dict())
    assert int(ours.state_dict()["0.branch1_bn.num_batches_tracked"]) == 1


# The optimizer.


def test_a_training_goes_on_with_another_optimizer_and_memory_format():
    """Checkpoints depend neither on the fused optimizer nor on the memory format."""
    plan, first = schedule(), stepper()
    take_steps(first, plan, range(3))
    ours = stepper(SOLVER__FUSED=True, MODEL__CHANNELS_LAST=True)
    ours.model.load_state_dict(first.model.state_dict())
    load_optimizer(ours.optimizer, first.optimizer.state_dict())
    weight = ours.model.conv.weight
    assert ours.optimizer.state[weight]["momentum_buffer"].stride() == weight.stride()
    losses = take_steps(ours, plan, range(3, 6))
    assert losses == pytest.approx(take_steps(first, plan, range(3, 6)), rel=1e-4)
