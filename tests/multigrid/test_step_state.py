"""Tests of the owner of a step's state: BN layers together, modules looked up once, rates."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import multigrid as mg
from multigrid.batchnorm import together
from multigrid.step_state import StepState
from multigrid.step_values import ReadsStep

SCHEDULE = mg.make_schedule(mg.Shape(8, 8, 32), 256, mg.SteppedRate((8.0, 10.0), (0.05, 0.005)))


class Net(nn.Module):
    """Layers of several sizes. One is called twice, one is frozen, and one is skipped."""

    def __init__(self, *, recomputes: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4), nn.ReLU(inplace=True))
        self.twice = nn.BatchNorm3d(4, momentum=0.3)
        self.wide = nn.Sequential(nn.Conv3d(4, 6, 1), nn.BatchNorm3d(6), nn.ReLU(inplace=True))
        self.frozen = nn.BatchNorm3d(6)
        self.average = nn.BatchNorm3d(6, momentum=None)
        self.plain = nn.BatchNorm3d(6, affine=False)
        self.skipped = nn.BatchNorm3d(6)
        self.recomputes = recomputes

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.twice(2 * self.twice(x))
        x = checkpoint(self.wide, x, use_reentrant=False) if self.recomputes else self.wide(x)
        return self.plain(self.average(self.frozen(x))).mean((2, 3, 4))


def net(**options: bool) -> Net:
    torch.manual_seed(0)
    made = mg.convert_batchnorm(Net(**options)).double()
    for parameter in made.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    made.train()
    made.frozen.eval()
    return made


def clips(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 2, 3, 3, generator=generator, dtype=torch.float64)


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    ("k", "recomputes"), [(None, False), (2, False), (4, False), (8, False), (2, True), (4, True)]
)
@pytest.mark.parametrize("world", [1, 2])
def test_layers_together_compute_what_they_compute_alone(k, recomputes, world, monkeypatch):
    """Two passes share a step, as two micro-batches do."""
    monkeypatch.setattr(together, "is_distributed", lambda: world > 1)
    monkeypatch.setattr(together, "_LAYERS_AT_ONCE", 2)
    alone, ours = net(), net(recomputes=recomputes)
    mg.set_group_size(alone, k)
    state = StepState(ours)
    state.set_group_size(k)
    for start in (0, 2):
        with state.step():
            for seed in (start, start + 1):
                expected = alone(clips(8, seed))
                expected.square().sum().backward()
                with state.forward(8):
                    found = ours(clips(8, seed))
                found.square().sum().backward()
                torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(ours), gradients(alone), rtol=1e-9, atol=1e-9)
    assert gradients(ours)["skipped.weight"] is None
    torch.testing.assert_close(ours.state_dict(), alone.state_dict(), rtol=1e-12, atol=1e-12)
    assert int(ours.twice.num_batches_tracked) == 8


@pytest.mark.parametrize("k", [None, 4])
def test_pictures_instead_of_clips_are_refused(k):
    """An input (N, C, H, W) would be normalised with its height as the time."""
    model = mg.convert_batchnorm(nn.Sequential(nn.BatchNorm3d(3)))
    state = StepState(model)
    state.set_group_size(k)
    pictures = torch.ones(8, 3, 4, 4)
    with pytest.raises(ValueError, match="expected 5D input"):
        model(pictures)
    with pytest.raises(ValueError, match="expected 5D input"), state.step(), state.forward(8):
        model(pictures)


def test_all_layers_may_be_called_twice_in_a_forward():
    """The statistics of the second call are not those of the first."""
    alone, ours = (mg.convert_batchnorm(nn.Sequential(nn.BatchNorm3d(3))) for _ in range(2))
    mg.set_group_size(alone, 2)
    state = StepState(ours)
    state.set_group_size(2)
    with state.step(), state.forward(8):
        found = ours(5 * ours(clips(8, 0).float()))
    torch.testing.assert_close(found, alone(5 * alone(clips(8, 0).float())))
    torch.testing.assert_close(ours.state_dict(), alone.state_dict())


@pytest.mark.parametrize("model", [nn.Sequential(), nn.Sequential(nn.BatchNorm3d(3, affine=False))])
def test_a_model_may_have_no_layers_that_work_together(model):
    state = StepState(mg.convert_batchnorm(model.train()))
    state.set_group_size(2 if len(model) else None)
    with state.step(), state.forward(8):
        output = model(clips(8, 0).float())
    assert output.shape == (8, 3, 2, 3, 3)


@pytest.mark.parametrize(("world", "parts"), [(1, 1), (2, 3)])
def test_gradients_of_several_processes_become_known_in_parts(world, parts, monkeypatch):
    """DDP exchanges the gradients of two layers while those of earlier layers are computed."""
    monkeypatch.setattr(together, "is_distributed", lambda: world > 1)
    monkeypatch.setattr(together, "_LAYERS_AT_ONCE", 2)
    model = mg.convert_batchnorm(nn.Sequential(*(nn.BatchNorm3d(3) for _ in range(5))))
    state = StepState(model)
    state.set_group_size(4)
    with state.step(), state.forward(8):
        places = [layer.step_values.places[layer] for layer in model]
        assert len({place.weight.grad_fn for place in places}) == parts


@pytest.mark.parametrize(
    ("dtype", "weights", "count", "together"),
    [
        (torch.float32, torch.float32, 8, True),
        (torch.bfloat16, torch.float32, 8, True),
        (torch.float64, torch.float64, 8, True),
        (torch.float64, torch.float32, 8, False),  # statistics are computed in float64
        (torch.float32, torch.float32, 16, False),  # other groups than were announced
    ],
)
def test_layers_work_together_on_the_clips_and_the_precision_that_were_announced(
    dtype, weights, count, together
):
    model = mg.convert_batchnorm(nn.Sequential(nn.BatchNorm3d(3), nn.BatchNorm3d(3))).to(weights)
    state = StepState(model)
    state.set_group_size(4)
    with state.step(), state.forward(8):
        places = [layer.step_values.places[layer] for layer in model]
        output = model(clips(count, 0).to(dtype))
    assert [len(place.calls) for place in places] == [int(together)] * 2
    assert output.dtype == dtype
    assert [int(layer.num_batches_tracked) for layer in model] == [1, 1]


def test_relu_changes_the_output_of_grouped_layers_without_a_copy():
    """An output that is a view would be copied by autograd, in the backward pass of ReLU."""
    layer = mg.convert_batchnorm(nn.Sequential(nn.BatchNorm3d(3), nn.ReLU(inplace=True)))
    mg.set_group_size(layer, 2)
    names = list[str]()
    node = layer(clips(4, 0).float().requires_grad_()).grad_fn
    while node is not None:
        names.append(node.name())
        node = node.next_functions[0][0] if node.next_functions else None
    assert names[0] == "ReluBackward0", names
    assert "CopySlices" not in names


def test_after_an_error_the_layers_work_alone():
    model, x = net(), clips(8, 0)
    state = StepState(model)
    state.set_group_size(4)

    def fail() -> None:
        with state.step(), state.forward(8):
            model(x)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    before = model.wide[1].running_mean.clone()
    model(x)
    assert not torch.equal(model.wide[1].running_mean, before)


@pytest.mark.parametrize("how", ["deepcopy", "save", "part"])
def test_a_copy_keeps_its_group_size_and_shares_nothing(how):
    model = net()
    state = StepState(model)
    state.set_group_size(4)
    with state.step(), state.forward(8):
        model(clips(8, 0))
        if how == "save":
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            copied = torch.load(file, weights_only=False)
        else:
            copied = copy.deepcopy(model if how == "deepcopy" else model.wide)
    state.set_group_size(2)
    norms = [m for m in copied.modules() if isinstance(m, mg.GroupedBatchNorm3d)]
    assert {norm.group_size for norm in norms} == {4}
    mg.set_group_size(copied, 8)
    assert {norm.group_size for norm in norms} == {8}
    assert model.wide[1].group_size == 2
    assert all(not norm.step_values.places for norm in norms)


def test_modules_that_come_later_are_found_and_parts_may_differ_until_then():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    training = mg.Training(SCHEDULE, model, optimizer)
    training.begin(0)
    model.wide.append(mg.GroupedBatchNorm3d(6))
    model.late = mg.convert_batchnorm(nn.Sequential(nn.BatchNorm3d(6)))
    mg.set_group_size(model.stem, 99)
    assert model.wide[1].group_size != 99
    step = training.begin(1)
    norms = [m for m in model.modules() if isinstance(m, mg.GroupedBatchNorm3d)]
    assert {norm.group_size for norm in norms} == {step.bn_group_size}
    del model.late
    training.begin(2)
    model.twice.group_size = 3
    assert (model.twice.group_size, model.wide[1].group_size) == (3, SCHEDULE.at(2).bn_group_size)


@pytest.mark.parametrize(("size", "is_warned"), [(2, True), (None, False)])
def test_a_group_size_without_layers_is_warned_of(size, is_warned):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        StepState(nn.Linear(1, 1)).set_group_size(size)
    assert len(told) == is_warned
    assert all("has no GroupedBatchNorm3d" in str(one.message) for one in told)


def test_train_undoes_what_evaluation_changed_and_keeps_frozen_layers():
    model = net()
    state = StepState(model)
    model.frozen.train = lambda mode=True: model.frozen  # as TRAIN.FREEZE does
    for part in (model, model.wide, model.twice):
        state.train(model)
        part.eval()
        state.train(model)
        assert all(m.training for m in model.modules() if m is not model.frozen)
        assert not model.frozen.training


# Learning rates.


def test_a_rate_that_is_a_tensor_is_changed_in_place():
    """A compiled or captured optimizer step reads the tensor."""
    weights = [nn.Parameter(torch.ones(1)) for _ in range(3)]
    rate = torch.tensor(0.1)
    groups = [{"params": [weights[0]]}, {"params": [weights[1]], "lr_scale": 0.5}]
    groups.append({"params": [weights[2]], "lr": 0.1})
    optimizer = torch.optim.SGD(groups, lr=rate)
    model = mg.convert_batchnorm(nn.Sequential(nn.BatchNorm3d(3)))
    for iteration in (0, 5):
        step = SCHEDULE.at(iteration)
        mg.prepare_step(step, model, optimizer)
        first, second, third = (group["lr"] for group in optimizer.param_groups)
        assert first is rate
        assert float(first) == pytest.approx(step.lr)
        assert float(second) == pytest.approx(step.lr / 2)
        assert isinstance(third, float)
        assert third == step.lr
    for weight in weights:
        weight.grad = torch.ones(1)
    optimizer.step()
    changes = [1 - float(weight.detach()) for weight in weights]
    assert changes == pytest.approx([step.lr, step.lr / 2, step.lr])


# Values that the layers read.


class Reader(ReadsStep):
    """A layer that multiplies by its mask and by the coverage in time, if there are any."""

    def forward(self, x: Tensor) -> Tensor:
        values = self.step_values
        x = x if values.coverage is None else x * values.coverage[:, :1]
        return x * values.masks[self] if self in values.masks else x


class Foreign(nn.Module):
    """A module of a user, which implements `FollowsGrid`."""

    coverage: Tensor | None = None

    def patches(self, frames: int, crop: int) -> mg.Patches:
        return mg.Patches(frames, crop, crop)

    def set_coverage(self, coverage: Tensor | None) -> None:
        self.coverage = coverage


def test_what_changes_from_step_to_step_is_in_one_place():
    first, second, foreign = Reader(), Reader(), Foreign()
    model = nn.Sequential(mg.GroupedBatchNorm3d(3), first, second, foreign)
    state = StepState(model)
    before = [dict(vars(layer)) for layer in (model[0], first, second)]
    coverage = torch.tensor([[0.5, 1.0], [0.25, 1.0]])
    state.set_group_size(4)
    state.set_coverage(coverage)
    state.set_masks({first: torch.tensor([1.0, 0.0])})
    assert [dict(vars(layer)) for layer in (model[0], first, second)] == before
    ones = torch.ones(2, 2)
    assert first(ones).tolist() == [[0.5, 0.0], [0.25, 0.0]]
    assert second(ones).tolist() == [[0.5, 0.5], [0.25, 0.25]]
    assert model[0].group_size == 4
    assert foreign.coverage is coverage
    copied = copy.deepcopy(model)
    state.set_masks({})
    state.set_coverage(None)
    assert torch.equal(first(ones), ones)
    assert foreign.coverage is None
    assert torch.equal(copied[1](ones), ones), "a copy takes no part in the step"
    assert copied[0].group_size == 4


def test_preparing_a_step_alone_keeps_the_coverage_that_a_loop_has_set():
    model = nn.Sequential(mg.GroupedBatchNorm3d(3), Reader())
    model[1].step_values.coverage = torch.tensor([[0.5, 1.0]])
    mg.prepare_step(SCHEDULE.at(0), model)
    assert model[0].group_size == SCHEDULE.at(0).bn_group_size
    assert model[1](torch.ones(1, 1)).item() == 0.5
