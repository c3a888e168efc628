"""Multigrid training with a subclass of the Trainer of transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, Trainer, TrainingArguments

from multigrid.sampler import Batch, collate, network_input
from multigrid.schedule import Schedule
from multigrid.training import MultigridLR, Training

__all__ = ["MultigridTrainer", "processor_colours", "video_inputs"]

_KEYS_OF_BEGIN = ("iteration", "coverage")
"""Keys of a batch that `Training.begin` uses and the model does not take."""
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)


def video_inputs(
    samples: Sequence[Mapping[str, Any]] | Batch,
    name: str = "pixel_values",
    mean: Sequence[float] = _MEAN,
    std: Sequence[float] = _STD,
) -> dict[str, Any]:
    """Collate samples of one iteration into the inputs of a video model of transformers.

    Args:
        samples: as in `collate`.
        name: the model's argument for clips. For V-JEPA 2 it is pixel_values_videos.
        mean: mean of each colour, in [0, 1], as in the model's image processor
            (`processor_colours`). The default is ImageNet's, which fits VideoMAE and V-JEPA 2 but
            not ViViT and TimeSformer.
        std: standard deviation of each colour, likewise.

    Returns:
        The normalised clips, (N, T, 3, H, W), some of them mirrored, under `name`. "labels". For
        `Training.begin`, "iteration" and, if the samples have them, "coverage".
    """
    batch = collate(samples)
    pixels = network_input(batch, mean, std).transpose(1, 2)
    begun = {key: value for key, value in batch.items() if key in _KEYS_OF_BEGIN}
    return {name: pixels, "labels": batch["labels"], **begun}


def processor_colours(values: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Return the mean and standard deviation of each colour by which a processor normalises.

    Most processors scale bytes to [0, 1] first. ViViT's scale them to [-1, 1] (rescale_factor
    1 / 127.5), so their image_mean and image_std refer to that range.

    Args:
        values: the configuration of an image or video processor.

    Returns:
        Mean and standard deviation of pixels in [0, 1].
    """
    scale = 255 * (values.get("rescale_factor") or 1 / 255)
    shift = float(values.get("offset", scale > 1.5))
    mean = values.get("image_mean") or _MEAN
    std = values.get("image_std") or _STD
    return [(m + shift) / scale for m in mean], [s / scale for s in std]


class _ResumableLR(MultigridLR):
    """Scheduler whose state includes that of the training, to check it when resuming."""

    def __init__(self, optimizer: Optimizer, training: Training) -> None:
        self.training = training
        super().__init__(optimizer, training.schedule)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"training": self.training.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state = dict(state_dict)
        self.training.load_state_dict(state.pop("training"))
        super().load_state_dict(state)


class MultigridTrainer(Trainer):
    """Trainer whose mini-batches, learning rates and BN groups follow a schedule.

    The schedule replaces num_train_epochs, per_device_train_batch_size, learning_rate and the
    scheduler of the arguments, which are ignored. Training resumes inside an epoch from the
    Trainer's checkpoints.

    Args:
        schedule: the schedule to train.
        options: options of the Trainer. `train_dataset` must take a `ClipRequest` as index.
            `data_collator` must keep "iteration" in the model's inputs. By default it is
            `video_inputs` with the model's name for clips and, if `processing_class` is an image
            processor, with its mean and standard deviation.

    Raises:
        ValueError: an argument conflicts with the schedule.
    """

    def __init__(self, *, schedule: Schedule, **options: Any) -> None:
        own_collator = options.get("data_collator")
        args = options.get("args") or TrainingArguments("tmp_trainer")
        for wrong, advice in (
            (
                args.max_steps not in (-1, schedule.iterations),
                f"max_steps differs from the {schedule.iterations} iterations of the schedule: "
                "leave it out, and set the length by the learning rate given to make_schedule",
            ),
            (
                args.gradient_accumulation_steps != 1,
                "gradient_accumulation_steps would merge several iterations of the schedule into "
                "one: leave it out, and choose a smaller batch for make_schedule",
            ),
            (
                args.n_gpu > 1,
                "nn.DataParallel is not supported: start one process per GPU with torchrun",
            ),
            (
                args.ignore_data_skip,
                "ignore_data_skip would resume with other clips than the schedule's: leave it out",
            ),
            (
                (options.get("optimizers") or (None, None))[1] is not None,
                "the rates are the schedule's: give optimizers=(optimizer, None)",
            ),
        ):
            if wrong:
                raise ValueError(advice)
        args.max_steps = schedule.iterations
        args.remove_unused_columns = False
        super().__init__(**options | {"args": args, "data_collator": own_collator or video_inputs})
        seed = args.data_seed if args.data_seed is not None else args.seed
        self.training = Training(schedule, self.model, seed=seed)
        name = getattr(self.model, "main_input_name", "")
        if own_collator is None and name.startswith("pixel_values"):
            names = ("image_mean", "image_std", "rescale_factor", "offset")
            processor = options.get("processing_class")
            values = {key: getattr(processor, key) for key in names if hasattr(processor, key)}
            mean, std = processor_colours(values)
            self.data_collator = partial(video_inputs, name=name, mean=mean, std=std)

    def get_train_dataloader(self) -> DataLoader[Batch]:
        """Return the loader of all mini-batches; the Trainer skips those already trained."""
        self.training.iteration = 0
        if self.train_dataset is None:
            raise ValueError("MultigridTrainer has no train_dataset: give it one")
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
        """Create the scheduler of the schedule's rates, which the Trainer steps and saves."""
        chosen: Any = self.optimizer if optimizer is None else optimizer
        scheduler = _ResumableLR(chosen, self.training)
        self.lr_scheduler: Any = scheduler
        return scheduler

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **options: Any
    ) -> Tensor:
        """Begin the iteration, then call the Trainer's method."""
        # With model_init, the Trainer creates a new model when the training begins.
        self.training.model = self.model
        self.training.optimizer = self.optimizer
        self.training.iteration = self.state.global_step
        self.training.begin({name: inputs.pop(name) for name in _KEYS_OF_BEGIN if name in inputs})
        loss: Tensor = super().training_step(model, inputs, *arguments, **options)
        return loss

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **options: Any
    ) -> Any:
        """Call the Trainer's method without the keys that the model does not take."""
        taken = {name: value for name, value in inputs.items() if name not in _KEYS_OF_BEGIN}
        return super().prediction_step(model, taken, *arguments, **options)

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        """Load a checkpoint, whose tensors may have older names.

        For some models (VideoMAE, ViViT), save_pretrained writes older names. from_pretrained
        translates them, but the Trainer (5.23) only warns and leaves such tensors at their initial
        values.
        """
        chosen = self.model if model is None else model
        if not isinstance(chosen, PreTrainedModel):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        loaded = type(chosen).from_pretrained(resume_from_checkpoint)
        chosen.load_state_dict(loaded.state_dict())

    def _load_best_model(self) -> None:
        """Load the best checkpoint at the end, by `_load_from_checkpoint`."""
        if isinstance(self.model, PreTrainedModel):
            assert self.state.best_model_checkpoint is not None
            self._load_from_checkpoint(self.state.best_model_checkpoint)
        else:
            super()._load_best_model()
