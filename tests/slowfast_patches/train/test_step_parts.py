"""Parts of a step: what it sends, in which order it marks, how it sums, and what it gives back."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from multigrid import Shape, convert_batchnorm
from slowfast_patches.registry import MODELS
from slowfast_patches.tasks import Task
from slowfast_patches.train import parallel
from slowfast_patches.train import step as steps
from slowfast_patches.train.dry_run import made_up_batch
from slowfast_patches.train.step import Stepper, _GradientSum, _joined
from slowfast_patches.utils.errors import RunError
from tests.slowfast_patches.train.test_stepper import CPU, Net, config, schedule, stepper
from tests.slowfast_patches.train.test_trainer import plan


def batch_of(made: Stepper, **more: Any) -> Any:
    return {**made_up_batch(made.recipe, 8, Shape(8, 4, 16)), **more}


@pytest.mark.parametrize("parts", [1, 2])
def test_each_part_of_a_step_is_marked_when_it_is_queued(parts):
    made, marks = stepper(SOLVER__ACCUMULATION_STEPS=parts), list[str]()
    made(plan().at(0), batch_of(made), mark=marks.append)
    assert marks == ["input", "forward", "backward"] * parts + ["optimizer"]


def test_a_step_tells_what_the_loader_told():
    made = stepper()
    outcome = made.forward_backward(plan().at(0), batch_of(made))
    assert (outcome.failures, outcome.resampled, outcome.failed_epochs) == ([], 0, ())
    told = {"failures": [("a", "b")], "resampled": 3, "failed_epochs": [1]}
    outcome = made.forward_backward(plan().at(0), batch_of(made, **told))
    assert outcome[3:] == ([("a", "b")], 3, [1])
    assert outcome.loss.ndim == 0
    assert (outcome.logits.shape, outcome.labels.shape) == ((8, 4), (8,))
    assert not outcome.loss.requires_grad
    assert not outcome.logits.requires_grad


@pytest.mark.parametrize(("flips", "sent"), [([True] + [False] * 7, 3), ([False] * 8, 2)])
def test_flips_are_sent_only_if_a_clip_is_flipped(monkeypatch, flips, sent):
    """Labels and the masks of one dropout layer are always sent."""
    counts, send = list[int](), steps.send_together
    monkeypatch.setattr(
        steps,
        "send_together",
        lambda tensors, device: counts.append(len(tensors)) or send(tensors, device),
    )
    made = stepper()
    made.forward_backward(plan().at(0), batch_of(made, flips=torch.tensor(flips)))
    assert counts == [sent]


class OneElement(nn.CrossEntropyLoss):
    """A loss of a user with the shape (1,)."""

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return super().forward(logits, labels).view(1)


def test_a_loss_with_one_element_is_like_a_scalar(monkeypatch):
    scalar = stepper()
    monkeypatch.setattr(Task, "loss", lambda *_: OneElement())
    vector = stepper()
    losses = [made.forward_backward(plan().at(0), batch_of(made)).loss for made in (scalar, vector)]
    assert losses[0] == losses[1]
    gradients = [made.model.conv.weight.grad for made in (scalar, vector)]
    assert gradients[0].equal(gradients[1])


def test_layers_are_told_which_part_of_its_video_a_clip_covers(monkeypatch):
    seen, made = list[Any](), stepper()
    monkeypatch.setattr(made.state, "set_coverage", seen.append)
    covered = torch.linspace(0, 1, 8)
    made.forward_backward(plan().at(0), batch_of(made))
    made.forward_backward(plan().at(0), batch_of(made, coverage=covered))
    unknown, known = seen
    assert unknown is None
    assert known.equal(covered)


def test_dropout_is_seeded_by_the_clips_of_the_process(monkeypatch):
    seeds = list[int]()
    monkeypatch.setattr(steps, "seed_masks", lambda model, seed: seeds.append(seed))
    made, step = stepper(SOLVER__ACCUMULATION_STEPS=2), schedule(bn_group_size=2).at(2)
    batch = made_up_batch(made.recipe, step.shape.batch, step.shape)
    made.forward_backward(step, batch)
    first = step.first_clip
    assert seeds == [first, first + 1], "groups of two parts have clips in turn"
    seeds.clear()
    made.forward_backward(step, batch, range(900, 900 + step.shape.batch))
    assert seeds == [900, 901]


@pytest.mark.parametrize(
    ("parts", "added"), [(1, []), (2, [False, True]), (3, [False, False, True])]
)
def test_gradients_are_summed_where_there_are_several(monkeypatch, parts, added):
    calls = list[bool]()
    monkeypatch.setattr(_GradientSum, "add", lambda self, is_last: calls.append(is_last))
    made = stepper(SOLVER__ACCUMULATION_STEPS=parts)
    step = schedule(bn_group_size=2).at(0)
    made.forward_backward(step, made_up_batch(made.recipe, step.shape.batch, step.shape))
    assert calls == added


def test_sums_of_gradients_by_hand():
    """The second parameter has a gradient in the second micro-batch only, the third in none."""
    parameters = [nn.Parameter(torch.zeros(1)) for _ in range(3)]
    optimizer = torch.optim.SGD(parameters, 0.1)
    sums = _GradientSum(optimizer)
    for values in ((1.0, None), (2.0, 5.0), (4.0, None)):
        for parameter, value in zip(parameters, values, strict=False):
            parameter.grad = None if value is None else torch.tensor([value])
        is_last = values[0] == 4.0
        sums.add(is_last=is_last)
        if not is_last:
            assert all(parameter.grad is None for parameter in parameters)
    assert [p.grad and float(p.grad) for p in parameters] == [7.0, 5.0, None]


def test_one_tensor_is_not_copied():
    one = torch.ones(2)
    assert _joined([one]) is one
    assert _joined([one, 2 * one]).tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("mode", "name"),
    [(True, "default"), ("max-autotune-no-cudagraphs", "max-autotune-no-cudagraphs")],
)
def test_a_model_is_compiled_to_one_graph_without_replay(monkeypatch, mode, name):
    calls = list[Any]()
    monkeypatch.setattr(torch, "compile", lambda model, **options: calls.append(options) or model)
    monkeypatch.setattr(steps, "check_cuda_graphs", calls.append)
    model = nn.Linear(2, 2)
    assert steps.compiled(model, mode) is model
    assert calls == [{"dynamic": False, "fullgraph": True, "mode": name}, model]


def test_the_limit_of_graphs_is_raised_and_never_lowered():
    import torch._dynamo.config as dynamo

    limits = list[int]()
    with dynamo.patch(recompile_limit=8):  # monkeypatch would hide the setting when it undoes this
        for count in (5, 20, 10):
            steps.expect_graphs(count)
            limits.append(dynamo.recompile_limit)
    assert limits == [8, 20, 20]


def test_a_stepper_compiles_and_recomputes_if_it_is_told_to(monkeypatch):
    calls = list[Any]()
    monkeypatch.setattr(steps, "compiled", lambda model, mode: calls.append(mode) or "compiled")
    monkeypatch.setattr(steps, "checkpoint_blocks", calls.append)
    monkeypatch.setattr(steps, "freeze", lambda model, names: calls.append(names))
    model = convert_batchnorm(Net())
    plain = Stepper(config(), model, CPU)
    assert (plain.network, calls) == (model, [()])
    calls.clear()
    keys = {"TRAIN__COMPILE": "default", "MODEL__ACT_CHECKPOINT": True, "TRAIN__FREEZE": ("conv",)}
    made = Stepper(config(**keys), model, CPU)
    assert calls == [("conv",), model, "default"]
    assert (made.network, made.model) == ("compiled", model)


@pytest.mark.parametrize(
    ("keys", "is_cast", "cast"),
    [
        ({"TRAIN__MIXED_PRECISION": True}, True, True),
        ({"TRAIN__MIXED_PRECISION": True, "TRAIN__COMPILE": True}, True, False),
        ({"TRAIN__MIXED_PRECISION": True}, False, False),
        ({"TRAIN__MIXED_PRECISION": False}, True, False),
    ],
)
def test_weights_are_cast_once_a_step_unless_the_compiler_fuses_the_casts(
    monkeypatch, keys, is_cast, cast
):
    given = list[Any]()
    spec = replace(MODELS["slowonly"], is_cast=is_cast)
    monkeypatch.setitem(MODELS.entries, "slowonly", spec)
    monkeypatch.setattr(steps, "compiled", lambda model, mode: model)
    monkeypatch.setattr(steps, "LoweredWeights", lambda *options: given.append(options))
    made = Stepper(config(**keys), convert_batchnorm(Net()), CPU)
    assert given == [(made.state.modules if cast else (), torch.bfloat16)]


def test_the_average_moves_half_of_the_way_with_each_step():
    made = stepper(MODEL__EMA_DECAY=0.5)
    before = made.average.conv.weight.clone()
    made(plan().at(0), batch_of(made))
    after = made.model.conv.weight.detach()
    assert not after.equal(before)
    torch.testing.assert_close(made.average.conv.weight.detach(), (before + after) / 2)


def test_a_state_has_an_average_only_if_there_is_one():
    plain, averaged = stepper(), stepper(MODEL__EMA_DECAY=0.5)
    assert plain.state_dict()["ema_state"] is None
    assert len(plain.models) == 1
    state = averaged.state_dict()
    assert list(state) == ["model_state", "ema_state", "optimizer_state", "scaler_state"]
    state["ema_state"] = {n: torch.full_like(v, 3) for n, v in state["ema_state"].items()}
    averaged.load_state_dict(state)
    assert averaged.average.conv.weight.unique().tolist() == [3.0]
    plain.load_state_dict(state | {"ema_state": None})


# Several processes.


@pytest.fixture
def _group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_group")
def test_statistics_are_not_broadcast_and_gradients_are_views_of_buckets():
    wrapped = parallel.in_parallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), CPU)
    assert wrapped.broadcast_buffers is False
    assert wrapped.gradient_as_bucket_view is True
    assert wrapped.device_ids is None


@pytest.mark.parametrize("device", [CPU, torch.device("cuda", 1)])
def test_the_layout_of_gradients_is_fixed_and_a_renamed_option_is_not_warned_of(
    monkeypatch, recwarn, device
):
    fixed = list[Any]()

    class Wrapped:
        def __init__(self, network: nn.Module, device_ids: Any, **options: object) -> None:
            self.given = network, device_ids
            warnings.warn("`broadcast_buffers` is deprecated: forward", FutureWarning, stacklevel=2)
            warnings.warn("a slow network", UserWarning, stacklevel=2)

    monkeypatch.setattr(parallel, "DistributedDataParallel", Wrapped)
    monkeypatch.setattr(parallel, "fix_gradient_layout", fixed.append)
    network = nn.Linear(2, 2)
    made = parallel.in_parallel(network, device)
    assert made.given == (network, None if device == CPU else [device])
    assert fixed == [made]
    assert [str(warning.message) for warning in recwarn] == ["a slow network"]


@pytest.mark.usefixtures("_group")
def test_gradients_are_exchanged_in_the_last_part_alone():
    wrapped = parallel.in_parallel(nn.Linear(2, 2), CPU)
    found = list[bool]()
    for is_last in (False, True):
        with parallel.gradient_exchange(wrapped, is_last=is_last):
            found.append(wrapped.require_backward_grad_sync)
    assert found == [False, True]
    for error in (RuntimeError("another"), KeyError("a")):
        with (
            pytest.raises(type(error)) as failed,
            parallel.gradient_exchange(wrapped, is_last=True),
        ):
            raise error
        assert failed.value is error
    unused = RuntimeError("Expected to have finished reduction in the prior iteration before")
    with (
        pytest.raises(RunError, match=r"did not use all parameters of the model\. With several"),
        parallel.gradient_exchange(wrapped, is_last=True),
    ):
        raise unused


def test_parameters_without_a_gradient_are_named_unless_they_are_frozen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    parallel.check_gradients(model)
    model[1].bias.grad = None
    with pytest.raises(RunError, match=r"^1 parameters of the model have no gradient: 1\.bias\."):
        parallel.check_gradients(model)
    model[1].bias.requires_grad_(False)
    parallel.check_gradients(model)
