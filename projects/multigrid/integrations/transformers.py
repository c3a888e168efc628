"""Multigrid training with Hugging Face transformers: a subclass of its Trainer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from multigrid.batchnorm import average_running_stats
from multigrid.compiled import GRAPH_MODES, REMEDY
from multigrid.contract import require
from multigrid.errors import MultigridError
from multigrid.gradient_layout import fix_gradient_layout
from multigrid.positions import check_transformers
from multigrid.prepare_step import MultigridLR
from multigrid.sampler import Batch, collate, network_input
from multigrid.schedule import Schedule
from multigrid.training import Training
from multigrid.user_warning import warn_user

check_transformers()

_IDENTITY = "multigrid.json"
"""File of a checkpoint with the state of the training."""

_TRAINED = "multigrid_trained.pt"
"""File of a checkpoint with the trained weights of a model with adapters."""

_KEYS_OF_BEGIN = ("iteration", "coverage")
"""Keys of a mini-batch that are passed to `Training.begin`, not to the model."""
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)
_NO_EFFECT = (
    "num_train_epochs",
    "per_device_train_batch_size",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "train_sampling_strategy",
    "auto_find_batch_size",
    "dataloader_drop_last",
    "ignore_data_skip",
)
"""Training arguments that the schedule replaces."""


def video_inputs(
    samples: Sequence[Mapping[str, Any]] | Batch,
    name: str = "pixel_values",
    mean: Sequence[float] = _MEAN,
    std: Sequence[float] = _STD,
) -> dict[str, Any]:
    """Collate the samples of one iteration into inputs for a video model of transformers.

    Args:
        samples: Samples, as for `collate`.
        name: Name of the model's argument for clips: "pixel_values" for most models,
            "pixel_values_videos" for V-JEPA 2.
        mean: Mean of each colour channel, for pixels in [0, 1]. The default is ImageNet's, which is
            right for VideoMAE and V-JEPA 2, but not for ViViT and TimeSformer. `processor_colours`
            returns the values for a model.
        std: Standard deviation of each colour channel, for pixels in [0, 1].

    Returns:
        A dictionary with these keys:

        - `name`: normalised clips (N, T, 3, H, W). Some of them are mirrored.
        - "labels": labels, as returned by `collate`.
        - "iteration", and "coverage" if the samples have it: arguments of `Training.begin`.
    """
    batch = collate(samples)
    pixels = network_input(batch, mean, std).transpose(1, 2)
    begun = {key: value for key, value in batch.items() if key in _KEYS_OF_BEGIN}
    return {name: pixels, "labels": batch["labels"], **begun}


def processor_colours(values: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Return the mean and standard deviation with which a processor normalises each colour channel.

    Most processors first scale pixels from [0, 255] to [0, 1]. The processor of ViViT scales them
    to [-1, 1] (rescale_factor 1 / 127.5), so its image_mean and image_std refer to that range. This
    function converts them to the range [0, 1].

    Args:
        values: The configuration of an image or video processor.

    Returns:
        Mean and standard deviation of each channel, for pixels in [0, 1].
    """
    scale = 255 * (values.get("rescale_factor") or 1 / 255)
    shift = float(values.get("offset", scale > 1.5))
    mean = values.get("image_mean") or _MEAN
    std = values.get("image_std") or _STD
    return [(m + shift) / scale for m in mean], [s / scale for s in std]


class _ResumableLR(MultigridLR):
    """Learning-rate scheduler that also saves the state of the training.

    When a training resumes, `Training.load_state_dict` then checks that the schedule and the seed
    are the same.
    """

    def __init__(self, optimizer: Optimizer, training: Training) -> None:
        self.training = training
        super().__init__(optimizer, training.schedule)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"training": self.training.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = dict(state_dict)
        self.training.load_state_dict(state.pop("training"))
        super().load_state_dict(state)


class _Epochs(TrainerCallback):
    """Callback that sets the first iteration of each epoch, and the epoch shown after a step."""

    def __init__(self, training: Training) -> None:
        self.training = training

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Let the loader start at the iteration that the Trainer has reached."""
        self.training.iteration = state.global_step

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Count epochs from the start of the training, also in a resumed epoch."""
        state.epoch = state.global_step / self.training.epoch_iterations


class MultigridTrainer(Trainer):
    """Trainer of transformers that trains with a multigrid schedule.

    The schedule sets the mini-batches, the learning rates and the size of BN groups. Training
    arguments for these, such as num_train_epochs and learning_rate, have no effect. The epochs are
    those of `Training.epochs`, so evaluate, save and log by epochs or by steps. A training can be
    resumed from the Trainer's checkpoints, also within an epoch, without reading earlier clips
    again. When resuming, all weights are restored, or an error is raised. The running statistics of
    BN are averaged over the processes in each step.

    Args:
        schedule: The schedule to train.
        weights: Sampling weight of each video, as for `Training`.
        options: Arguments of the Trainer. `train_dataset` must accept a `ClipRequest` as index.
            `data_collator` must return "iteration" beside the inputs of the model. It defaults to
            `video_inputs` with the model's name for clips. If `processing_class` is an image
            processor, its mean and standard deviation are used.

    Raises:
        ValueError: An argument conflicts with the schedule.
    """

    def __init__(
        self, *, schedule: Schedule, weights: Sequence[float] | None = None, **options: Any
    ) -> None:
        own_collator = options.get("data_collator")
        # Copy the arguments, because some are changed below.
        args = copy(options.get("args") or TrainingArguments("tmp_trainer"))
        require(
            args.max_steps in (-1, schedule.iterations),
            f"max_steps differs from the {schedule.iterations} iterations of the schedule, so "
            "leave it out. The learning rate passed to make_schedule sets the length",
        )
        require(
            args.gradient_accumulation_steps == 1,
            "gradient_accumulation_steps would merge several iterations of the schedule into one. "
            "Leave it out, and choose a smaller batch for make_schedule",
        )
        require(
            args.n_gpu <= 1,
            "nn.DataParallel is not supported. Start one process per GPU with torchrun",
        )
        require(
            (options.get("optimizers") or (None, None))[1] is None,
            "the schedule sets the learning rates, so a scheduler would have no effect. Pass "
            "optimizers=(optimizer, None), and the learning rate to make_schedule",
        )
        require(
            args.torch_compile_mode not in GRAPH_MODES,
            f"torch_compile_mode is {args.torch_compile_mode}. {REMEDY}",
        )
        defaults = {field.name: field.default for field in fields(TrainingArguments)}
        if unused := [name for name in _NO_EFFECT if getattr(args, name) != defaults[name]]:
            warn_user(f"{', '.join(unused)} have no effect. The schedule replaces them")
        args.max_steps = schedule.iterations
        args.ignore_data_skip = True  # The loader starts at the right iteration.
        args.remove_unused_columns = False
        super().__init__(**options | {"args": args, "data_collator": own_collator or video_inputs})
        self._network: nn.Module | None = None
        seed = args.data_seed if args.data_seed is not None else args.seed
        self.training = Training(schedule, self.model, seed=seed, weights=weights)
        self.callback_handler.callbacks.insert(0, _Epochs(self.training))
        name = getattr(self.model, "main_input_name", "")
        if own_collator is None and name.startswith("pixel_values"):
            processor = options.get("processing_class")
            mean, std = processor_colours(vars(processor) if processor else {})
            self.data_collator = partial(video_inputs, name=name, mean=mean, std=std)

    def get_train_dataloader(self) -> DataLoader[Batch]:
        """Return a data loader. Each `iter()` of it yields the mini-batches of one epoch."""
        self.training.iteration = 0
        # The optimizer of an earlier `train` is accelerate's wrapper, which has no hooks.
        self.training.optimizer = None
        dataset: Any = self.train_dataset
        return self.training.loader(
            dataset,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
        )

    def create_scheduler(
        self, num_training_steps: int, optimizer: Optimizer | None = None
    ) -> MultigridLR:
        """Create the learning-rate scheduler, which the Trainer steps and saves.

        Args:
            num_training_steps: Ignored. The schedule has the number of iterations.
            optimizer: Optimizer to schedule. None means the optimizer of the Trainer.
        """
        chosen: Any = self.optimizer if optimizer is None else optimizer
        scheduler = _ResumableLR(chosen, self.training)
        self.lr_scheduler: Any = scheduler
        return scheduler

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **options: Any
    ) -> Tensor:
        """Call `Training.begin`, train on the mini-batch as the base class does, and average BN."""
        # If model_init is given, the Trainer creates a new model at the start of the training.
        self.training.model = self.model
        self.training.optimizer = self.optimizer
        self.training.iteration = self.state.global_step
        if model is not self._network:
            self._network = model
            fix_gradient_layout(model)
        self.training.begin({name: inputs.pop(name) for name in _KEYS_OF_BEGIN if name in inputs})
        loss: Tensor = super().training_step(model, inputs, *arguments, **options)
        # The model can then be evaluated or saved at any time, also if DDP broadcasts buffers.
        average_running_stats(model)
        return loss

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **options: Any
    ) -> Any:
        """Evaluate a mini-batch as the base class does, without the keys for `Training.begin`."""
        taken = {name: value for name, value in inputs.items() if name not in _KEYS_OF_BEGIN}
        return super().prediction_step(model, taken, *arguments, **options)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save the model as the base class does, and what a checkpoint needs to be resumed.

        For a model with adapters, save_pretrained saves the adapters alone. Other trained weights,
        such as those of a new head, would be lost.
        """
        super()._save(output_dir, state_dict)
        folder = Path(output_dir or self.args.output_dir or ".")
        if not (self.args.should_save and folder.name.startswith(PREFIX_CHECKPOINT_DIR)):
            return
        (folder / _IDENTITY).write_text(json.dumps(self.training.state_dict()))
        model: Any = self.model
        if getattr(model, "peft_config", None) is not None:
            torch.save(_trained_tensors(model), folder / _TRAINED)

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        """Load all weights of a checkpoint.

        For some models, such as VideoMAE and ViViT, save_pretrained writes older names of tensors.
        from_pretrained translates these names. The Trainer of transformers 5.23 does not: it only
        warns, and such tensors keep their initial values.

        Raises:
            ValueError: The checkpoint is of another training, or lacks a trained weight.
        """
        folder = Path(resume_from_checkpoint)
        chosen: Any = self.model if model is None else model
        if (folder / _IDENTITY).exists():
            self.training.check_state(json.loads((folder / _IDENTITY).read_text()))
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        before, missing = _versions(chosen), list[str]()
        if (folder / _TRAINED).exists():
            _restore(chosen, torch.load(folder / _TRAINED, map_location="cpu", weights_only=True))
        elif not _load_pretrained(chosen, resume_from_checkpoint, missing):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
        after = _versions(chosen)
        if kept := [name for name, version in before.items() if after.get(name) == version]:
            lost = [name for name in kept if name in missing] or kept
            raise MultigridError(
                f"{resume_from_checkpoint} does not contain {len(lost)} trained weights of the "
                f"model, such as {lost[0]}. The model would keep its current values for them. "
                "Resume with the model that was saved, from a folder that is complete"
            )

    def _load_best_model(self) -> None:
        """Load the best checkpoint at the end of the training, with `_load_from_checkpoint`."""
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            super()._load_best_model()
            return
        assert self.state.best_model_checkpoint is not None
        self._load_from_checkpoint(self.state.best_model_checkpoint)


def _trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the trained parameters and the buffers of a model."""
    frozen = {name for name, one in model.named_parameters() if not one.requires_grad}
    return {name: one for name, one in model.state_dict().items() if name not in frozen}


def _restore(model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Copy saved tensors to a model, which must have the same trained tensors."""
    differ = sorted(set(saved) ^ set(_trained_tensors(model)))
    require(
        not differ,
        f"the checkpoint and the model train different weights, such as {', '.join(differ[:3])}. "
        "Create the model as when it was saved",
    )
    model.load_state_dict(saved, strict=False)


def _load_pretrained(model: Any, folder: str, missing: list[str]) -> bool:
    """Load a checkpoint by from_pretrained, and return whether it has all weights of the model.

    Args:
        model: The model.
        folder: Folder of the checkpoint.
        missing: List to which the names of missing weights are added.
    """
    if not isinstance(model, PreTrainedModel) or getattr(model, "peft_config", None) is not None:
        return False
    kind: Any = type(model)
    loaded, found = kind.from_pretrained(folder, output_loading_info=True)
    state = loaded.state_dict()
    missing += [*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])]
    if missing or set(state) != set(model.state_dict()):
        return False
    model.load_state_dict(state)
    return True


def _versions(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Return the identity and version of each trained parameter, which loading changes."""
    trained = ((n, p) for n, p in model.named_parameters() if p.requires_grad)
    return {name: (id(one), one._version) for name, one in trained}
