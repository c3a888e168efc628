"""Tests of warnings about loops that do not train the schedule, and of correct unusual loops."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from itertools import islice

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import ExponentialLR

from multigrid import (
    PAPER,
    Batch,
    MultigridLR,
    Shape,
    SteppedRate,
    Training,
    convert_batchnorm,
    make_schedule,
    network_input,
)
from multigrid.watch import untrained
from tests.multigrid.clips import Clips

VIDEOS = 100
BASE, RATE = Shape(4, 4, 8), SteppedRate((6.0, 8.0), (0.1, 0.01))
SCHEDULE = make_schedule(BASE, VIDEOS, RATE, replace(PAPER, epoch_factor=0.5), bn_group_size=2)


def new_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv3d(3, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU()]
    return convert_batchnorm(
        nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 2))
    )


def new_training(model: nn.Module | None = None, schedule=SCHEDULE, optimizer=SGD) -> Training:
    model = model or new_model()
    return Training(schedule, model, optimizer(model.parameters(), lr=0.0), seed=3)


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(model(network_input(batch)), batch["labels"])


def train(training, model=None, optimizer=None, after=lambda step: None, stop=None) -> None:
    """Train as the README's loop does."""
    model = model or training.model
    optimizer = optimizer or training.optimizer
    for batch in islice(training.batches(training.loader(Clips(VIDEOS))), stop):
        step = training.begin(batch)
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after(step)


@pytest.fixture
def silent() -> None:
    """Turn all warnings into errors, except those about the short schedule."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "the (training ends|baseline has)")
        yield


# Gradient accumulation.


@pytest.mark.usefixtures("silent")
def test_gradients_that_are_accumulated_now_and_then_are_no_reason_to_refuse():
    """Of any 8 iterations, 3 at most add to the gradients of the one before."""
    training = new_training()
    for batch in training.batches(training.loader(Clips(VIDEOS))):
        step = training.begin(batch)
        if step.iteration % 8 not in (3, 5, 7):
            training.optimizer.zero_grad()
        loss_of(training.model, batch).backward()
        if step.iteration % 8 not in (2, 4, 6):
            training.optimizer.step()


@pytest.mark.usefixtures("silent")
def test_two_backward_passes_in_an_iteration_are_no_accumulation_over_iterations():
    training = new_training()
    for batch in training.batches(training.loader(Clips(VIDEOS))):
        training.begin(batch)
        training.optimizer.zero_grad()
        for _ in range(2):
            loss_of(training.model, batch).backward()
        training.skip()


def test_hooks_of_a_training_do_not_stay_on_the_parameters():
    model = new_model()
    new_training(model).begin(0)
    assert not any(parameter._backward_hooks for parameter in model.parameters())
    training = new_training(model)
    training.begin(0)
    training.begin(1)
    assert all(len(parameter._backward_hooks) == 1 for parameter in model.parameters())


def accumulate(training: Training, every: int, scaler: torch.amp.GradScaler) -> None:
    for batch in training.batches(training.loader(Clips(VIDEOS))):
        training.begin(batch)
        scaler.scale(loss_of(training.model, batch) / every).backward()
        if training.iteration % every == 0:
            scaler.step(training.optimizer)
            scaler.update()
            training.optimizer.zero_grad()


@pytest.mark.filterwarnings("ignore:the first 4 iterations")
@pytest.mark.parametrize(
    ("every", "scales", "iteration"),
    [
        (2, True, 8),  # iterations 1, 3, 5 and 7 add to the gradients of the one before
        (3, True, 6),  # 1, 2, 4 and 5
        (9, False, 5),  # 1, 2, 3 and 4
    ],
)
def test_gradients_accumulated_over_four_iterations_are_noticed(every, scales, iteration):
    training = new_training()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=scales)
    with pytest.raises(ValueError, match=r"accumulation_steps=k.*micro_batches\(batch\)"):
        accumulate(training, every, scaler)
    assert training.iteration == iteration


@pytest.mark.usefixtures("silent")
def test_steps_that_a_scaler_skips_are_not_missing():
    training = new_training()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for batch in training.batches(training.loader(Clips(VIDEOS))):
        step = training.begin(batch)
        training.optimizer.zero_grad()
        scaler.scale(loss_of(training.model, batch)).backward()
        if step.iteration < 6 or step.iteration == SCHEDULE.iterations - 1:
            training.model[0].weight.grad[0] = torch.inf
        scaler.step(training.optimizer)
        scaler.update()
    assert training.state_dict()["iteration"] == SCHEDULE.iterations


@pytest.mark.parametrize("copies_model", [False, True])
def test_a_loop_that_steps_another_optimizer_is_warned(copies_model):
    training = new_training()
    model = copy.deepcopy(training.model) if copies_model else training.model
    with pytest.warns(UserWarning, match="the model and the optimizer that the loop trains"):
        train(training, model, SGD(model.parameters(), lr=0.1))


# Skipped steps, and what a saved state counts.


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("zeroes", ["next", "at once"])
def test_a_loop_may_skip_steps(zeroes):
    training = new_training()
    optimizer = training.optimizer
    for batch in training.batches(training.loader(Clips(VIDEOS))):
        step = training.begin(batch)
        loss = loss_of(training.model, batch)
        if zeroes == "next":
            optimizer.zero_grad()
        loss.backward()
        if step.iteration % 4:
            training.skip()
            if not training.is_complete:
                with pytest.raises(ValueError, match=r"Call training.begin\(batch\)"):
                    optimizer.step()
        else:
            optimizer.step()
        assert training.state_dict()["iteration"] == step.iteration + 1
        if zeroes == "at once":
            optimizer.zero_grad()


def test_a_state_counts_the_iterations_that_were_trained():
    """A skipped step counts, once the loop has said so or thrown the gradients away."""
    training = new_training()
    model, optimizer = training.model, training.optimizer
    counts = list[int]()

    def save() -> None:
        counts.append(training.state_dict()["iteration"])

    batches = training.batches(training.loader(Clips(VIDEOS)))
    save()
    for act in ("step", "zero", "inf", "skip", "nothing"):
        batch = next(batches)
        training.begin(batch)
        save()
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        save()
        if act == "step":
            optimizer.step()
        elif act == "zero":
            optimizer.zero_grad()
        elif act == "inf":
            model[0].weight.grad[0] = torch.inf
        elif act == "skip":
            training.skip()
        save()
    training.begin(next(batches))
    save()
    assert counts == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 5]


def test_a_step_that_calls_no_hooks_counts_if_it_changes_the_weights():
    """So does a step that torch.compile has compiled."""
    training = new_training(optimizer=AdamW)
    step = AdamW.step.__wrapped__  # without the hooks
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "the (training ends|baseline has|linear rule)")
        for batch in islice(training.batches(training.loader(Clips(VIDEOS))), 6):
            training.begin(batch)
            training.optimizer.zero_grad()
            loss_of(training.model, batch).backward()
            step(training.optimizer)
            assert training.state_dict()["iteration"] == training.iteration


# Several optimizers.


@pytest.mark.usefixtures("silent")
def test_several_optimizers_share_a_schedule_each_with_its_rate_and_rule():
    """The first shape has 8 times the clips, so the rates are 0.8 and 0.1 · √8 / 100."""
    model = new_model()
    head = {"params": [*model[5].parameters()], "lr_scale": 0.01, "batch_rate_rule": "sqrt"}
    optimizers = [SGD(model[:3].parameters(), lr=0.0), AdamW([head])]
    training = Training(SCHEDULE, model, optimizers, seed=3)
    for batch in training.batches(training.loader(Clips(VIDEOS))):
        step = training.begin(batch)
        rates = [one.param_groups[0]["lr"] for one in optimizers]
        if step.iteration == 0:
            assert rates == pytest.approx([0.8, 0.001 * 8**0.5])
        assert rates == pytest.approx([step.lr, 0.01 * step.lr / step.growth**0.5])
        loss = loss_of(model, batch)
        for one in optimizers:
            one.zero_grad()
        loss.backward()
        for one in optimizers:
            one.step()
            assert training.state_dict()["iteration"] == step.iteration + 1
        if not training.is_complete:
            with pytest.raises(ValueError, match=r"Call training.begin\(batch\)"):
                optimizers[1].step()
    assert {step.growth for step in SCHEDULE.steps()} == {1, 2, 4, 8}


def test_a_parameter_that_no_optimizer_has_is_named():
    model = new_model()
    training = Training(SCHEDULE, model, SGD(model[:3].parameters(), lr=0.0))
    with pytest.warns(UserWarning, match=r"parameters 5\.weight, 5\.bias \(2 in all\)"):
        training.begin(0)
    with pytest.raises(ValueError, match="the optimizer is a str"):
        Training(SCHEDULE, model, ["sgd"]).begin(0)


@pytest.mark.parametrize(("count", "listed"), [(5, "0, 1, 2, 3, 4 "), (6, "0, 1, 2, 3, 4, ... ")])
def test_five_parameters_at_most_are_named(count, listed):
    model = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(count))
    model.append(nn.Parameter(torch.zeros(1)))
    model.append(nn.Parameter(torch.zeros(1), requires_grad=False))
    texts = untrained(model, [SGD([model[count]], lr=0.0)])
    assert len(texts) == 1
    assert f"has the parameters {listed}({count} in all)" in texts[0]
    assert untrained(model, [SGD([one], lr=0.0) for one in model]) == ()


def test_the_latest_training_of_a_model_watches_it():
    model = new_model()
    first, second = new_training(model), new_training(model)
    first.begin(0)
    second.begin(0)
    model(torch.zeros(8, 3, 1, 4, 4))
    second.skip()
    with pytest.raises(ValueError, match=r"Call training.begin\(batch\)"):
        model(torch.zeros(8, 3, 1, 4, 4))
    first.begin(1)
    model(torch.zeros(8, 3, 1, 4, 4))


@pytest.mark.usefixtures("silent")
def test_parameters_that_are_unfrozen_or_added_later_are_watched():
    """Each time, the gradients of one iteration are not applied, and count as skipped."""
    model = new_model()
    model[0].requires_grad_(False)
    training = Training(SCHEDULE, model, SGD(model[1].parameters(), lr=0.0))
    model[5].requires_grad_(False)
    for number, batch in enumerate(islice(training.batches(training.loader(Clips(VIDEOS))), 4)):
        if number == 1:
            model[1].requires_grad_(False)
            model[5].requires_grad_(True)
            training.optimizer.add_param_group({"params": model[5].parameters()})
        training.begin(batch)
        loss_of(model, batch).backward()
        training.optimizer.zero_grad()
        assert training.state_dict()["iteration"] == number + 1


def test_a_rate_in_a_tensor_stays_in_the_tensor():
    model = new_model()
    rate = torch.tensor(0.0)
    training = Training(SCHEDULE, model, SGD(model.parameters(), lr=rate))
    training.begin(0)
    assert training.optimizer.param_groups[0]["lr"] is rate
    assert rate == pytest.approx(0.8)


# Evaluation mode.


class Whole(nn.Module):
    """A network from elsewhere, in evaluation mode, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = new_model().eval()
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


@pytest.mark.parametrize(("model", "name"), [(new_model().eval(), "0"), (Whole(), r"backbone\.0")])
def test_trained_modules_in_evaluation_mode_are_warned_of(model, name):
    with pytest.warns(UserWarning, match=rf"2 trained modules .* as {name}\. .* model.train\(\)"):
        train(new_training(model), stop=1)


def test_a_missing_train_after_an_evaluation_is_warned_of():
    training = new_training()
    with pytest.warns(UserWarning, match=r"Call model.train\(\)"):
        train(training, after=lambda step: training.model.train(step.iteration < 3))


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("part", ["norm", "backbone", "probe"])
def test_parts_in_evaluation_mode_on_purpose_pass_without_a_word(part):
    model = Whole()
    trained = model
    if part == "norm":
        model.train().backbone[1].eval()
    elif part == "backbone":
        model.backbone.requires_grad_(False)
    else:
        model.backbone.requires_grad_(False)
        trained = model.head
    train(Training(SCHEDULE, model, SGD(trained.parameters(), lr=0.0)))


# Hooks of a user.


@pytest.mark.usefixtures("silent")
def test_hooks_of_a_user_survive_the_last_iteration():
    training = new_training()
    seen = list[str]()
    training.optimizer.register_step_post_hook(lambda *_: seen.append("step"))
    training.model.register_forward_pre_hook(lambda *_: seen.append("forward"))
    train(training)
    assert seen == ["forward", "step"] * SCHEDULE.iterations


# Learning rates.


@pytest.mark.parametrize("moment", ["before the step", "after the step"])
def test_a_scheduler_beside_begin_is_warned_of(moment):
    training = new_training()
    optimizer = training.optimizer
    optimizer.param_groups[0]["lr"] = 0.1
    scheduler = ExponentialLR(optimizer, 0.5)
    if moment == "before the step":
        training.model[1].register_full_backward_hook(lambda *_: scheduler.step())
    with pytest.warns(UserWarning, match="remove the scheduler"):
        train(training, after=lambda _: moment == "after the step" and scheduler.step())


def test_the_same_warning_is_given_once():
    training = new_training()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for iteration in range(3):
            training.begin(iteration)
            training.optimizer.param_groups[0]["lr"] = 7.0
    assert len([one for one in told if "remove the scheduler" in str(one.message)]) == 1


def test_a_rate_that_only_the_step_has_is_warned_of():
    training = new_training()
    optimizer = training.optimizer
    training.begin(0)
    (group,) = optimizer.param_groups
    group["lr"] *= 2
    with pytest.warns(UserWarning, match="remove the scheduler"):
        optimizer.step()


@pytest.mark.usefixtures("silent")
def test_the_scheduler_of_the_schedule_beside_begin_passes_without_a_word():
    training = new_training()
    scheduler = MultigridLR(training.optimizer, SCHEDULE)
    train(training, after=lambda _: scheduler.step())


class Muon(torch.optim.Optimizer):
    """Optimizer that is not in torch."""

    def __init__(self, params, lr) -> None:
        super().__init__(params, {"lr": lr})


@pytest.mark.parametrize("optimizer", [AdamW, Muon])
def test_the_linear_rule_is_warned_of_with_adaptive_optimizers(optimizer):
    """PAPER has 8 times the clips in its first shape."""
    with pytest.warns(UserWarning, match="by up to 8, .* batch_rate_rule=.sqrt"):
        new_training(optimizer=optimizer).begin(0)


# The end, and what is saved.


@pytest.mark.usefixtures("silent")
def test_a_training_resumes_from_any_step_and_is_complete_after_the_loop():
    whole = new_training()
    train(whole)
    for stop in (1, 5, SCHEDULE.iterations):
        begun = new_training()
        train(begun, stop=stop)
        resumed = new_training(begun.model)
        resumed.load_state_dict(begun.state_dict())
        if stop < SCHEDULE.iterations:
            train(resumed)
        assert resumed.state_dict() == whole.state_dict()
        for name, value in whole.model.state_dict().items():
            assert torch.equal(resumed.model.state_dict()[name], value)
    assert whole.state_dict()["iteration"] == SCHEDULE.iterations


# accelerate.


def accumulate_prepared(accelerator: Accelerator) -> None:
    training = new_training()
    network, training.optimizer = accelerator.prepare(training.model, training.optimizer)
    for batch in training.batches(training.loader(Clips(VIDEOS))):
        training.begin(batch)
        with accelerator.accumulate(network):
            accelerator.backward(loss_of(network, batch))
            training.optimizer.step()
            training.optimizer.zero_grad()


def accumulate_as_rank(_: int) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)  # of earlier tests
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    with pytest.raises(ValueError, match="accumulation_steps=k"):
        accumulate_prepared(accelerator)


@pytest.mark.slow("starts processes")
def test_accumulation_of_accelerate_is_noticed_behind_its_wrappers(run_ranks):
    run_ranks(1, accumulate_as_rank)


# What counts as a missing step.


@pytest.mark.parametrize(("skipped", "warned"), [(None, True), (3, False)])
def test_four_iterations_in_a_row_without_a_step_are_warned_of(skipped, warned):
    """An iteration that the loop skips on purpose begins the count anew."""
    training = new_training()
    batches = training.batches(training.loader(Clips(VIDEOS)))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for number, batch in enumerate(islice(batches, 7 if skipped else 5)):
            training.begin(batch)
            if number == skipped:
                training.skip()
    texts = [str(one.message) for one in told if "did not call step()" in str(one.message)]
    assert len(texts) == warned


def test_three_iterations_without_a_step_are_no_reason_to_warn():
    training = new_training()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the first 4 iterations")
        for batch in islice(training.batches(training.loader(Clips(VIDEOS))), 4):
            training.begin(batch)


@pytest.mark.usefixtures("silent")
def test_a_loop_that_has_stepped_once_trains_its_optimizer():
    """A step without gradients counts as well."""
    training = new_training()
    training.begin(0)
    training.optimizer.step()
    assert training.state_dict()["iteration"] == 1
    for iteration in range(1, 7):
        training.begin(iteration)


class Wrapper(SGD):
    """Optimizer of a framework, which has the optimizer of the user."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__([nn.Parameter(torch.zeros(1))], lr=0.0)
        self.optimizer = inner


def test_the_optimizer_in_any_number_of_wrappers_is_watched():
    training = new_training()
    inner = training.optimizer
    assert training.optimizers == (inner,)
    training.optimizer = [Wrapper(Wrapper(inner)), Wrapper(inner)]
    assert training.optimizers == (inner, inner)
    inner.optimizer = "a name of its own"
    assert training.optimizers == (inner, inner)
