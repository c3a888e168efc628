"""Multigrid training with the Trainer of transformers: a thin subclass."""

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

_KEYS_OF_BEGIN = ("iteration", "extents")
"""Batch keys consumed by `Training.begin`, not passed to the model."""
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)


def video_inputs(
    samples: Sequence[Mapping[str, Any]] | Batch,
    name: str = "pixel_values",
    mean: Sequence[float] = _MEAN,
    std: Sequence[float] = _STD,
) -> dict[str, Any]:
    """What video models of transformers are given, of the samples of one iteration.

    Args:
        samples: as `collate` takes them.
        name: what the model calls its clips; V-JEPA 2 calls them pixel_values_videos.
        mean: of each colour, in [0, 1], as the model's image processor has it
            (`processor_colours`): ImageNet's for VideoMAE and V-JEPA 2, not for ViViT and
            TimeSformer.
        std: standard deviation of each colour, likewise.

    Returns:
        under that name the clips, (N, T, 3, H, W), with mean and standard deviation taken out and
        some of them mirrored; labels; and for `Training.begin` the number of the iteration and, if
        the samples have them, their extents.
    """
    batch = collate(samples)
    pixels = network_input(batch, mean, std).transpose(1, 2)
    begun = {key: value for key, value in batch.items() if key in _KEYS_OF_BEGIN}
    return {name: pixels, "labels": batch["labels"], **begun}


def processor_colours(values: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each colour, in [0, 1], that an image or video processor takes
    out; `values` are those of its configuration.

    Most scale bytes to [0, 1] first. ViViT's scale them to [-1, 1] (rescale_factor 1 / 127.5), of
    which they take image_mean.
    """
    scale = 255 * (values.get("rescale_factor") or 1 / 255)
    shift = float(values.get("offset", scale > 1.5))
    mean = values.get("image_mean") or _MEAN
    std = values.get("image_std") or _STD
    return [(m + shift) / scale for m in mean], [s / scale for s in std]


class _Rates(MultigridLR):
    """Rates that are saved and loaded with what tells one training from another."""

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
    """The Trainer, whose mini-batches, rates and BN groups are a schedule's.

    `train_dataset` takes a `ClipRequest` as index. `data_collator` makes the model's inputs of the
    samples, with "iteration" among them: unless given, it is `video_inputs`, with the model's name
    for its clips and, if `processing_class` is its image processor, mean and deviation of that.
    num_train_epochs, per_device_train_batch_size and learning_rate of the arguments are not looked
    at, nor is their scheduler: the schedule has them. A checkpoint of the Trainer's goes on inside
    an epoch.

    Args:
        schedule: what to train.
        options: as the Trainer's.

    Raises:
        ValueError: arguments that would train something else than the schedule.
    """

    def __init__(self, *, schedule: Schedule, **options: Any) -> None:
        own_collator = options.get("data_collator")
        args = options.get("args") or TrainingArguments("tmp_trainer")
        for wrong, advice in (
            (
                args.max_steps not in (-1, schedule.iterations),
                f"max_steps is not the {schedule.iterations} iterations of the schedule: leave it "
                "out, and give make_schedule another learning rate",
            ),
            (
                args.gradient_accumulation_steps != 1,
                "gradient_accumulation_steps takes several of the schedule's iterations for one: "
                "leave it out, and choose a smaller batch for make_schedule",
            ),
            (
                args.n_gpu > 1,
                "start a process for each GPU (torchrun): nn.DataParallel is not used",
            ),
            (args.ignore_data_skip, "ignore_data_skip would train other clips: leave it out"),
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
        """This process's mini-batches, all of them: the Trainer skips those that were trained."""
        self.training.iteration = 0
        if self.train_dataset is None:
            raise ValueError("give the MultigridTrainer a train_dataset")
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
        """The rates as a scheduler, which the Trainer steps, logs and saves."""
        chosen: Any = self.optimizer if optimizer is None else optimizer
        scheduler = _Rates(chosen, self.training)
        self.lr_scheduler: Any = scheduler
        return scheduler

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **options: Any
    ) -> Tensor:
        """Begin the iteration, then what the Trainer does."""
        # A model of model_init is made anew when the training begins.
        self.training.model = self.model
        self.training.optimizer = self.optimizer
        self.training.iteration = self.state.global_step
        self.training.begin({name: inputs.pop(name) for name in _KEYS_OF_BEGIN if name in inputs})
        loss: Tensor = super().training_step(model, inputs, *arguments, **options)
        return loss

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], *arguments: Any, **options: Any
    ) -> Any:
        """What the Trainer does, with what the model takes."""
        taken = {name: value for name, value in inputs.items() if name not in _KEYS_OF_BEGIN}
        return super().prediction_step(model, taken, *arguments, **options)

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        """Load what was saved, whatever names it was saved under.

        save_pretrained writes the older names of some models (VideoMAE, ViViT), which
        from_pretrained knows and the Trainer (5.23) does not: it leaves such tensors at their
        initial values, with a warning.
        """
        chosen = self.model if model is None else model
        if not isinstance(chosen, PreTrainedModel):
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        loaded = type(chosen).from_pretrained(resume_from_checkpoint)
        chosen.load_state_dict(loaded.state_dict())

    def _load_best_model(self) -> None:
        """What load_best_model_at_end loads, as `_load_from_checkpoint` does."""
        if isinstance(self.model, PreTrainedModel):
            assert self.state.best_model_checkpoint is not None
            self._load_from_checkpoint(self.state.best_model_checkpoint)
        else:
            super()._load_best_model()
