"""Frameworks that keep the loop: the same clips as a plain loop's, and going on inside an epoch."""

from __future__ import annotations

import lightning as L
import numpy as np
import pytest
import torch
import transformers
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import Dataset

from multigrid import Shape, SteppedRate, Training, convert_positions, make_schedule
from multigrid.integrations.lightning import MultigridCallback
from multigrid.integrations.transformers import MultigridTrainer, video_inputs

pytestmark = pytest.mark.slow

VIDEOS, SEED = 40, 5
SCHEDULE = make_schedule(
    Shape(4, 4, 16),
    VIDEOS,
    SteppedRate((4.0, 6.0), (0.1, 0.01)),
    bn_size=None,
    size_divisor=8,
    epoch_factor=1.0,
    long_cycle=((0.5, 0.5), (1.0, 1.0)),
    short_cycle=(),
)
LATER = 9  # inside the second epoch of forty videos


class Clips(Dataset[dict[str, object]]):
    """Every pixel of a clip is its video's number."""

    def __len__(self) -> int:
        return VIDEOS

    def __getitem__(self, request):
        shape = request.shape
        return {
            "clip": np.full((shape.frames, shape.crop, shape.crop, 3), request.video, np.uint8),
            "label": request.video % 2,
            "flip": request.epoch % 2 == 1,
            "iteration": request.iteration,
        }


def new_model() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.VivitConfig(
        image_size=16,
        num_frames=4,
        tubelet_size=[2, 8, 8],
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return convert_positions(transformers.VivitForVideoClassification(config))


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def plain() -> tuple[list[float], nn.Module]:
    """The losses of a plain loop, and what it trained."""
    torch.set_num_threads(1)
    model, losses = new_model(), list[float]()
    training = Training(SCHEDULE, model, torch.optim.SGD(model.parameters(), lr=0.0), SEED)
    for batch in training.loader(Clips(), collate_fn=video_inputs):
        training.begin(batch.pop("iteration"))
        loss = model(**batch).loss
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()
        losses.append(loss.item())
    return losses, model


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


class Module(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model, self.losses = new_model(), list[float]()

    def training_step(self, batch, number):
        loss = self.model(pixel_values=batch["pixel_values"], labels=batch["labels"]).loss
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def fit(folder, checkpoint=None, **options) -> Module:
    module, multigrid = Module(), MultigridCallback(SCHEDULE, SEED)
    module.train_dataloader = lambda: multigrid.loader(Clips(), collate_fn=video_inputs)
    saves = ModelCheckpoint(folder, every_n_train_steps=LATER, save_top_k=-1, filename="{step}")
    settings = {"max_epochs": 1, "callbacks": [multigrid, saves], "accelerator": "cpu"}
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(**{**settings, **quiet, **options})
    trainer.fit(module, ckpt_path=checkpoint)
    return module


def test_lightning_trains_what_a_plain_loop_trains(tmp_path, plain):
    losses, model = plain
    module = fit(tmp_path)
    assert module.losses == losses
    assert same(module.model, model)


def test_lightning_goes_on_inside_an_epoch(tmp_path, plain):
    losses, model = plain
    fit(tmp_path)
    module = fit(tmp_path, tmp_path / f"step={LATER}.ckpt")
    assert module.losses == losses[LATER:]
    assert same(module.model, model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate_grad_batches": 2}, "leave it out"),
        ({"max_epochs": 2}, "max_epochs=1"),
    ],
)
def test_lightnings_options_that_would_train_something_else_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        fit(tmp_path, **options)


def test_another_loader_is_refused(tmp_path):
    module, multigrid = Module(), MultigridCallback(SCHEDULE, SEED)
    module.train_dataloader = lambda: torch.utils.data.DataLoader(list(range(4)))
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(max_epochs=1, callbacks=[multigrid], accelerator="cpu", **quiet)
    with pytest.raises(ValueError, match="use_distributed_sampler=False"):
        trainer.fit(module)


class Losses(transformers.TrainerCallback):
    def __init__(self) -> None:
        self.losses, self.rates = list[float](), list[float]()

    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:
            self.losses.append(logs["loss"])
            self.rates.append(logs["learning_rate"])


def train(folder, checkpoint=None, **options):
    log = Losses()
    arguments = {
        "output_dir": str(folder),
        "use_cpu": True,
        "report_to": [],
        "logging_steps": 1,
        "save_steps": LATER,
        "disable_tqdm": True,
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "seed": SEED,
    }
    trainer = MultigridTrainer(
        schedule=SCHEDULE,
        model=new_model(),
        args=transformers.TrainingArguments(**{**arguments, **options}),
        train_dataset=Clips(),
        callbacks=[log],
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    return log, trainer.model


def test_transformers_trainer_trains_what_a_plain_loop_trains(tmp_path, plain):
    losses, model = plain
    log, trained = train(tmp_path)
    assert log.losses == losses
    assert same(trained, model)


def test_transformers_trainer_goes_on_inside_an_epoch(tmp_path, plain):
    losses, model = plain
    train(tmp_path)
    log, trained = train(tmp_path, str(tmp_path / f"checkpoint-{LATER}"))
    assert log.losses == losses[LATER:]
    assert same(trained, model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient_accumulation_steps": 2}, "leave it out"),
        ({"ignore_data_skip": True}, "leave it out"),
    ],
)
def test_arguments_that_would_train_something_else_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        train(tmp_path, **options)
