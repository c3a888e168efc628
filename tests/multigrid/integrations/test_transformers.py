"""Tests of MultigridTrainer: arguments that conflict with the schedule are refused.

tests/test_loops.py checks that it trains the same as a plain loop, on one process and on two.
"""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import ClassVar

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from multigrid import ClipRequest, Cycles, Shape, SteppedRate, convert_positions, make_schedule
from multigrid.integrations.transformers import (
    MultigridTrainer,
    processor_colours,
)
from multigrid.positions import check_transformers
from tests.multigrid.clips import Clips

VIDEOS, SEED = 40, 5
SCHEDULE = make_schedule(
    Shape(4, 4, 16),
    VIDEOS,
    SteppedRate((4.0, 6.0), (0.1, 0.01)),
    Cycles(((0.5, 0.5), (1.0, 1.0))),
    bn_group_size=None,
    size_divisor=8,
)
LATER = 9  # inside the second epoch of forty videos


def new_model(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.VivitConfig(
        image_size=16,
        num_frames=4,
        tubelet_size=[2, 8, 8],
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=0.0,
    )
    return convert_positions(transformers.VivitForVideoClassification(config))


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Losses(transformers.TrainerCallback):
    def __init__(self) -> None:
        self.losses, self.told = list[float](), list[bool]()

    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:
            self.losses.append(logs["loss"])

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.told.append(model.vivit.embeddings.current_coverage is not None)


def arguments(folder, **options):
    common: dict = {
        "use_cpu": True,
        "report_to": [],
        "logging_steps": 1,
        "save_steps": LATER,
        "disable_tqdm": True,
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "seed": SEED,
    }
    return transformers.TrainingArguments(str(folder), **common | options)


def train(folder, checkpoint=None, **options):
    log = Losses()
    trainer = MultigridTrainer(
        schedule=SCHEDULE,
        model=new_model(),
        args=arguments(folder, **options),
        train_dataset=Clips(VIDEOS),
        callbacks=[log],
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    return log, trainer.model


def test_transformers_trainer_goes_on_with_weights_that_are_saved_by_older_names(tmp_path):
    whole, model = train(tmp_path)
    log, trained = train(tmp_path, str(tmp_path / f"checkpoint-{LATER}"))
    assert log.losses == whole.losses[LATER:]
    coarse = [step.shape.frames < 4 for step in SCHEDULE.steps()]
    assert whole.told == coarse, "coarse clips have coverage, which is not given to the model"
    assert len({*coarse}) == 2
    pairs = zip(trained.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_the_best_model_is_loaded_whole_and_a_model_made_later_is_told_of_its_clips(tmp_path):
    """The first evaluation, at LATER, counts as the best.

    Its model is the one that the Trainer creates by model_init when the training begins.
    """
    scores, log = count(0, -1), Losses()
    best = {"load_best_model_at_end": True, "metric_for_best_model": "score"}
    trainer = MultigridTrainer(
        schedule=SCHEDULE,
        model_init=lambda: new_model(),
        args=arguments(tmp_path, eval_steps=LATER, eval_strategy="steps", **best),
        train_dataset=Clips(VIDEOS),
        eval_dataset=[Clips(VIDEOS)[ClipRequest(0, 0, SCHEDULE.base, -1)]],
        compute_metrics=lambda found: {"score": next(scores)},
        callbacks=[log],
    )
    trainer.train()
    best = transformers.VivitForVideoClassification.from_pretrained(
        tmp_path / f"checkpoint-{LATER}"
    )
    pairs = zip(trainer.model.parameters(), best.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert log.told == [step.shape.frames < 4 for step in SCHEDULE.steps()]


def test_clips_have_the_name_that_the_model_gives_them_and_its_processors_colours(tmp_path):
    config = transformers.VJEPA2Config(
        crop_size=16,
        patch_size=8,
        frames_per_clip=4,
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        mlp_ratio=1,
        num_pooler_layers=1,
        pred_hidden_size=12,
        pred_num_hidden_layers=1,
        pred_num_attention_heads=2,
    )
    trainer = MultigridTrainer(
        schedule=SCHEDULE,
        model=convert_positions(transformers.VJEPA2ForVideoClassification(config)),
        args=arguments(tmp_path),
        train_dataset=Clips(VIDEOS),
        processing_class=SimpleNamespace(image_mean=[0.5, 0.5, 0.25], image_std=[0.5, 0.25, 0.5]),
    )
    inputs = trainer.data_collator([Clips(VIDEOS)[ClipRequest(0, 0, SCHEDULE.base, 0)]])
    black = inputs["pixel_values_videos"][0, 0, :, 0, 0]
    assert black.tolist() == [-1.0, -2.0, -0.5]
    loss, _, _ = trainer.prediction_step(trainer.model, inputs, True)
    assert loss.isfinite()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient_accumulation_steps": 2}, "[Ll]eave it out"),
        ({"max_steps": 3}, "max_steps differs from the 18 iterations of the schedule"),
        ({"torch_compile_mode": "reduce-overhead"}, "CUDA graphs are not supported"),
    ],
)
def test_arguments_that_would_train_something_else_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        train(tmp_path, **options)


def test_a_scheduler_beside_the_schedule_is_refused(tmp_path):
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer)
    with pytest.raises(ValueError, match=r"Pass optimizers=\(optimizer, None\)"):
        MultigridTrainer(schedule=SCHEDULE, model=model, args=arguments(tmp_path), optimizers=parts)


def test_arguments_without_effect_are_named(tmp_path):
    settings = arguments(tmp_path, num_train_epochs=7, train_sampling_strategy="group_by_length")
    with pytest.warns(
        UserWarning, match="num_train_epochs, train_sampling_strategy have no effect"
    ):
        MultigridTrainer(schedule=SCHEDULE, model=new_model(), args=settings)


def test_a_transformers_that_loses_weights_is_refused_with_what_to_do(monkeypatch):
    check_transformers()
    monkeypatch.setattr("importlib.metadata.version", lambda _: "5.17.2")
    with pytest.raises(ImportError, match=r"5\.17\.2 is too old.* --upgrade 'transformers>=5\.18'"):
        check_transformers()


def test_vivits_processor_scales_to_minus_one_and_one_first():
    """Black is (-1 - 0.5) / 0.5 and white (1 - 0.5) / 0.5; the video processor has no offset."""
    told = transformers.VivitImageProcessor(image_mean=[0.5] * 3, image_std=[0.5] * 3).to_dict()
    mean, std = processor_colours({key: told[key] for key in told if key != "offset"})
    assert [(value - mean[0]) / std[0] for value in (0, 1)] == pytest.approx([-3, 1])


# Epochs.


class Epochs(transformers.TrainerCallback):
    """Callback that notes the epoch of each step."""

    def __init__(self) -> None:
        self.epochs = list[float]()

    def on_step_end(self, args, state, control, **_):
        self.epochs.append(state.epoch)


@pytest.mark.parametrize(
    ("strategy", "step"),
    [pytest.param("epoch", 6, marks=pytest.mark.slow("trains for seconds")), ("steps", 4)],
)
def test_a_training_by_epochs_is_resumed_anywhere(tmp_path, strategy, step):
    """Its epochs have three steps. Dropout shows that the random numbers go on, too."""

    def fit(checkpoint=None):
        log, epochs = Losses(), Epochs()
        trainer = MultigridTrainer(
            schedule=SCHEDULE,
            model=new_model(0.5),
            args=arguments(tmp_path, eval_strategy="epoch", save_strategy=strategy, save_steps=2),
            train_dataset=Clips(VIDEOS),
            eval_dataset=[Clips(VIDEOS)[ClipRequest(0, 0, SCHEDULE.base, -1)]],
            callbacks=[log, epochs],
        )
        trainer.train(resume_from_checkpoint=checkpoint)
        found = [row["step"] for row in trainer.state.log_history if "eval_loss" in row]
        assert found == [3, 6, 9, 12, 15, 18]
        return log.losses, epochs.epochs

    losses, epochs = fit()
    assert epochs == pytest.approx([step / 3 for step in range(1, 19)])
    assert fit(str(tmp_path / f"checkpoint-{step}")) == (losses[step:], epochs[step:])


# Weights.


def with_adapter(way: str) -> nn.Module:
    """Return a model with LoRA layers and a trained head, by one of peft's ways."""
    model = new_model()
    options = {"r": 2, "target_modules": ["query", "value", "q_proj", "v_proj"]}
    torch.manual_seed(1)
    if way == "get_peft_model":
        return peft.get_peft_model(
            model, peft.LoraConfig(**options, modules_to_save=["classifier"])
        )
    if way == "add_adapter":
        model.add_adapter(peft.LoraConfig(**options))
    else:
        model = peft.inject_adapter_in_model(peft.LoraConfig(**options), model)
    model.classifier.requires_grad_(True)
    return model


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("get_peft_model", marks=pytest.mark.slow("trains for seconds")),
        pytest.param("add_adapter", marks=pytest.mark.slow("trains for seconds")),
        "inject_adapter_in_model",
    ],
)
def test_adapters_and_a_trained_head_are_restored_whole(tmp_path, way):
    best = {"load_best_model_at_end": True, "metric_for_best_model": "score"}

    def fit(checkpoint=None):
        log, scores = Losses(), count(0, -1)
        trainer = MultigridTrainer(
            schedule=SCHEDULE,
            model=with_adapter(way),
            args=arguments(tmp_path, eval_steps=LATER, eval_strategy="steps", **best),
            train_dataset=Clips(VIDEOS),
            eval_dataset=[Clips(VIDEOS)[ClipRequest(0, 0, SCHEDULE.base, -1)]],
            compute_metrics=lambda found: {"score": next(scores)},
            callbacks=[log],
        )
        trainer.add_callback(weights := Weights())
        trainer.train(resume_from_checkpoint=checkpoint)
        return log.losses, trained_of(trainer.model), weights.at_later

    losses, loaded, at_later = fit()
    assert loaded.keys() == at_later.keys()
    assert any("classifier" in name for name in loaded)
    assert all(torch.equal(loaded[name], at_later[name]) for name in loaded), "the best is LATER"
    rest, _, _ = fit(str(tmp_path / f"checkpoint-{LATER}"))
    assert rest == losses[LATER:]


class Weights(transformers.TrainerCallback):
    """Callback that copies the trained weights after LATER steps."""

    at_later: ClassVar[dict[str, torch.Tensor]] = {}

    def on_step_end(self, args, state, control, model=None, **_):
        if state.global_step == LATER:
            self.at_later = {name: one.clone() for name, one in trained_of(model).items()}


def trained_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: one.data for name, one in model.named_parameters() if one.requires_grad}


def test_a_folder_that_lacks_weights_is_refused(tmp_path):
    train(tmp_path)
    folder = tmp_path / f"checkpoint-{LATER}"
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file({n: t for n, t in tensors.items() if "classifier" not in n}, file, {"format": "pt"})
    with pytest.raises(ValueError, match=r"does not contain 2 trained weights.*classifier"):
        train(tmp_path, str(folder))


def test_a_checkpoint_of_weights_alone_tells_the_seed(tmp_path):
    train(tmp_path, save_only_model=True)
    with pytest.raises(ValueError, match="has seed 5, but this training has seed 6"):
        train(tmp_path, str(tmp_path / f"checkpoint-{LATER}"), seed=6)


@pytest.mark.parametrize("way", ["is_fsdp_enabled", "is_deepspeed_enabled"])
def test_divided_weights_are_loaded_by_the_trainer_alone(tmp_path, monkeypatch, way):
    trainer = MultigridTrainer(
        schedule=SCHEDULE, model=new_model(), args=arguments(tmp_path), train_dataset=Clips(VIDEOS)
    )
    monkeypatch.setattr(trainer, way, True)
    called = []
    for name in ("_load_from_checkpoint", "_load_best_model"):
        monkeypatch.setattr(
            transformers.Trainer, name, lambda self, *given, name=name: called.append((name, given))
        )
    trainer._load_from_checkpoint(str(tmp_path), None)
    trainer._load_best_model()
    assert called == [
        ("_load_from_checkpoint", (str(tmp_path), None)),
        ("_load_best_model", ()),
    ]


# What the Trainer takes from its arguments.


def trainer_of(folder, **options) -> MultigridTrainer:
    given = {"model": new_model(), "args": arguments(folder), "train_dataset": Clips(VIDEOS)}
    return MultigridTrainer(schedule=SCHEDULE, **given | options)


def test_several_gpus_in_one_process_are_refused(tmp_path):
    args = arguments(tmp_path)
    args._n_gpu = 2
    with pytest.raises(ValueError, match="Start one process per GPU with torchrun"):
        trainer_of(tmp_path, args=args)
    args._n_gpu = 1
    trainer_of(tmp_path, args=args)


def test_the_arguments_of_the_caller_stay_and_the_schedule_s_length_may_be_among_them(tmp_path):
    args = arguments(tmp_path, max_steps=SCHEDULE.iterations)
    trainer = trainer_of(tmp_path, args=args)
    assert (args.ignore_data_skip, args.remove_unused_columns) == (False, True)
    assert (trainer.args.ignore_data_skip, trainer.args.remove_unused_columns) == (True, False)
    assert trainer_of(tmp_path).args.max_steps == SCHEDULE.iterations


def test_the_seed_of_the_clips_is_the_data_s_if_there_is_one(tmp_path):
    assert trainer_of(tmp_path).training.seed == SEED
    assert trainer_of(tmp_path, args=arguments(tmp_path, data_seed=0)).training.seed == 0


def test_the_loader_has_the_options_of_the_arguments(tmp_path):
    options = {
        "dataloader_num_workers": 1,
        "dataloader_pin_memory": False,
        "dataloader_persistent_workers": True,
        "dataloader_prefetch_factor": 3,
    }
    loader = trainer_of(tmp_path, args=arguments(tmp_path, **options)).get_train_dataloader()
    found = {f"dataloader_{name}": getattr(loader, name) for name in LOADER}
    assert found == options


LOADER = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor")


def test_a_collator_of_the_caller_is_kept_and_the_default_is_imagenet_s(tmp_path):
    assert trainer_of(tmp_path, data_collator=list).data_collator is list
    clip = Clips(VIDEOS)[ClipRequest(0, 0, SCHEDULE.base, 7)]
    inputs = trainer_of(tmp_path).data_collator([clip])
    black = inputs["pixel_values"][0, 0, :, 0, 0]
    assert black.tolist() == pytest.approx([-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225])
    assert inputs["pixel_values"].shape == (1, 4, 3, 16, 16)
    assert int(inputs["iteration"]) == 7


@pytest.mark.parametrize(
    ("values", "mean", "std"),
    [
        ({}, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ({"image_mean": [0.5], "image_std": [0.25]}, [0.5], [0.25]),
        # x / 127.5 - 1 lies in [-1, 1]: 0.5 there is 0.75 in [0, 1].
        ({"rescale_factor": 1 / 127.5, "image_mean": [0.5], "image_std": [0.5]}, [0.75], [0.25]),
        # Without the offset, x / 127.5 lies in [0, 2].
        (
            {"rescale_factor": 1 / 127.5, "offset": False, "image_mean": [1], "image_std": [0.5]},
            [0.5],
            [0.25],
        ),
        # A mean of 0 for pixels that are not scaled, x in [0, 255].
        (
            {"rescale_factor": 1, "offset": False, "image_mean": [51], "image_std": [255]},
            [0.2],
            [1],
        ),
    ],
)
def test_colours_of_processors_are_for_pixels_from_0_to_1(values, mean, std):
    assert processor_colours(values) == (pytest.approx(mean), pytest.approx(std))


def test_the_layout_of_gradients_is_fixed_once_and_statistics_are_averaged_in_each_step(
    tmp_path, monkeypatch
):
    fixed, averaged = [], []
    place = "multigrid.integrations.transformers"
    monkeypatch.setattr(f"{place}.fix_gradient_layout", fixed.append)
    monkeypatch.setattr(f"{place}.average_running_stats", averaged.append)
    _, model = train(tmp_path)
    assert fixed == [model]
    assert averaged == [model] * SCHEDULE.iterations


def test_only_checkpoints_have_the_state_of_the_training(tmp_path):
    trainer = trainer_of(tmp_path)
    for name in ("checkpoint-7", "final"):
        trainer.save_model(str(tmp_path / name))
    assert (tmp_path / "checkpoint-7" / "multigrid.json").exists()
    assert (tmp_path / "final" / "config.json").exists()
    assert not (tmp_path / "final" / "multigrid.json").exists()


def test_the_scheduler_is_saved_with_the_state_of_the_training(tmp_path):
    def scheduler():
        trainer = trainer_of(tmp_path)
        optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.0)
        return trainer.create_scheduler(1, optimizer)

    first, second = scheduler(), scheduler()
    first.training.iteration = 3
    for _ in range(3):
        first.optimizer.step()
        first.step()
    state = first.state_dict()
    assert state["training"]["iteration"] == 3
    second.load_state_dict(state)
    assert (second.training.iteration, second.last_epoch) == (3, 3)
    assert second.get_last_lr() == first.get_last_lr() == [SCHEDULE.at(3).lr]
    assert "training" in state, "the state of the caller stays"


def test_a_model_that_is_not_of_transformers_is_loaded_by_the_trainer(tmp_path):
    model = nn.Linear(2, 1)
    before = model.weight.detach().clone()
    trainer = trainer_of(tmp_path, model=model)
    folder = str(tmp_path / "checkpoint-1")
    trainer.save_model(folder)
    nn.init.zeros_(model.weight)
    trainer._load_from_checkpoint(folder)
    assert torch.equal(model.weight, before)
