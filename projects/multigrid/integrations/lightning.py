"""Multigrid training in Lightning: a callback, and the loader that `train_dataloader` returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    EarlyStopping,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.utilities import rank_zero_info
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from multigrid.batchnorm import average_running_stats
from multigrid.contract import refuse
from multigrid.sampler import Batch, MultigridBatchSampler
from multigrid.schedule import Schedule
from multigrid.training import Training

_ONE_EPOCH = "for Lightning, the whole training is one epoch"
_BY_STEPS = "Pass val_check_interval=N to the Trainer, where N is a number of iterations"
_UNSUITABLE = (
    BackboneFinetuning,
    BatchSizeFinder,
    LearningRateFinder,
    StochasticWeightAveraging,
)
"""Callbacks that act by epochs, or change the batch size or the learning rate."""


class _WholeLoader(DataLoader[Batch]):
    """Data loader whose length is the number of iterations in the whole training.

    The length does not change when a training resumes. Lightning counts mini-batches from the start
    of the training, so it would stop too early if the length were the number of remaining
    iterations. The loader has no state of its own, because the callback saves the iteration.
    """

    training: Training

    def __iter__(self) -> Any:
        # Raised when the first mini-batch is read. Lightning would hide an earlier error.
        refuse(
            self.training.model is None,
            "the Trainer has no MultigridCallback. Pass the callback that created the loader to "
            "the Trainer: Trainer(callbacks=[multigrid])",
        )
        yield from super().__iter__()

    def __len__(self) -> int:
        return self.training.schedule.iterations

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state.

        Lightning resumes within an epoch only if the loader has this method.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing, because `state_dict` is empty."""


class MultigridCallback(Callback):
    """Lightning callback that trains a module with a multigrid schedule.

        multigrid = MultigridCallback(schedule)
        module.train_dataloader = lambda: multigrid.loader(dataset, num_workers=4)
        Trainer(
            max_epochs=1,
            use_distributed_sampler=False,
            val_check_interval=1000,
            callbacks=[multigrid, ModelCheckpoint(every_n_train_steps=1000)],
        ).fit(module)

    For Lightning, the whole training is one epoch. It can be resumed from Lightning's checkpoints,
    also within the epoch. The callback sets the learning rates, so `configure_optimizers` must not
    return a scheduler. Unless checkpoints are turned off by `enable_checkpointing=False`, the
    callback saves the last iteration. Without a `ModelCheckpoint` by steps or time, it adds one
    that saves about once per pass over the data set. It validates after the last iteration. It
    averages the running statistics of BN over the devices in each iteration.

    Args:
        schedule: The schedule to train.
        seed: Seed of the order of clips.
    """

    def __init__(self, schedule: Schedule, seed: int = 0) -> None:
        self.training = Training(schedule, seed=seed)
        self._trainer: Trainer | None = None

    def loader(self, dataset: Dataset[Any], **options: Any) -> DataLoader[Batch]:
        """Return the data loader for `train_dataloader`.

        The arguments are those of `Training.loader`.
        """
        loader = self.training.loader(dataset, loader=_WholeLoader, **options)
        loader.training = self.training
        return loader

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Store the module, check the Trainer, and add a ModelCheckpoint if needed.

        Lightning calls this before it creates the data loaders.

        Raises:
            ValueError: An argument or another callback does not agree with the schedule. The
                message says what to change.
        """
        self.training.model = pl_module
        self._trainer = trainer
        if stage == "fit":
            _check_trainer(trainer, self.training.schedule.iterations)
            _save_by_steps(trainer, self.training.schedule)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that the loader and the optimizers agree with the schedule.

        Raises:
            ValueError: One does not agree. The message says what to change.
        """
        lightning: Any = trainer
        sampler = getattr(trainer.train_dataloader, "batch_sampler", None)
        refuse(
            not isinstance(sampler, MultigridBatchSampler),
            "the data loader was not created by the callback, or Lightning has replaced its "
            "sampler. Return multigrid.loader(...) from train_dataloader, and pass "
            "use_distributed_sampler=False to the Trainer",
        )
        is_whole = lightning.num_training_batches == self.training.schedule.iterations
        refuse(  # overfit_batches sets this limit, too.
            not (is_whole or lightning.fast_dev_run),
            "limit_train_batches and overfit_batches would end the training before the end of the "
            "schedule. Leave them out. For a shorter training, pass a shorter learning rate to "
            "make_schedule",
        )
        refuse(
            self.training.iteration != trainer.global_step,
            "the callback was already used for a training. Create a new callback for each fit",
        )
        refuse(
            len(trainer.optimizers) != 1,
            "the schedule sets the learning rates of a single optimizer. Return a single optimizer "
            "from configure_optimizers",
        )
        self.training.optimizer = trainer.optimizers[0]

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Call `Training.begin` for the mini-batch.

        Raises:
            ValueError: Gradient accumulation is on, or there is a learning-rate scheduler. The
                module or a callback may have turned them on after the start.
        """
        refuse(
            trainer.accumulate_grad_batches != 1,
            "accumulate_grad_batches would merge several iterations of the schedule into one. "
            "Leave it out, and choose a smaller batch for make_schedule",
        )
        refuse(
            bool(trainer.lr_scheduler_configs),
            "a scheduler would override the learning rates of the schedule. Return only the "
            "optimizer from configure_optimizers",
        )
        self.training.begin(batch)

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Average the running statistics of BN over the devices.

        The model is then right whenever it is evaluated or saved. DDP's broadcast of the buffers of
        rank 0 changes nothing, because they are equal on all ranks.
        """
        average_running_stats(pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop after the last iteration. Lightning then validates, for any validation interval."""
        iterations = self.training.schedule.iterations
        if trainer.max_steps >= 0:
            iterations = min(iterations, trainer.max_steps)
        if self.training.iteration == iterations:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: LightningModule) -> None:
        """Save the last iteration if no other callback has saved it.

        This replaces the file of `ModelCheckpoint(save_last=True)` if there is one.
        """
        step = trainer.global_step
        savers = [one for one in trainer.checkpoint_callbacks if isinstance(one, ModelCheckpoint)]
        is_saved = any(saver._last_global_step_saved == step for saver in savers)
        if savers and not is_saved and not trainer.fast_dev_run:
            last = [saver.last_model_path for saver in savers if saver.last_model_path]
            trainer.save_checkpoint((*last, f"{savers[0].dirpath}/multigrid-step={step}.ckpt")[0])

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the training, as returned by `Training.state_dict`.

        Lightning may save within an iteration, for example when an exception is raised or a SLURM
        job is requeued. A resumed training then repeats this iteration.
        """
        state = self.training.state_dict()
        return state if self._trainer is None else {**state, "iteration": self._trainer.global_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of the training with `Training.load_state_dict`."""
        self.training.load_state_dict(state_dict)


def _check_trainer(trainer: Any, iterations: int) -> None:
    """Raise ValueError if the Trainer or a callback conflicts with the schedule."""
    refuse(
        trainer.max_epochs != 1 and trainer.max_steps not in range(iterations + 1),
        f"{_ONE_EPOCH}. Pass max_epochs=1 to the Trainer",
    )
    refuse(
        trainer.check_val_every_n_epoch not in (None, 1),
        f"{_ONE_EPOCH}, so check_val_every_n_epoch={trainer.check_val_every_n_epoch} would never "
        f"validate. {_BY_STEPS}",
    )
    refuse(
        trainer.reload_dataloaders_every_n_epochs != 0,
        f"{_ONE_EPOCH}, so reload_dataloaders_every_n_epochs has no effect. Leave it out",
    )
    for callback in trainer.callbacks:
        by_epochs = isinstance(callback, ModelCheckpoint) and (callback.every_n_epochs or 0) > 1
        at_the_end = isinstance(callback, EarlyStopping) and (
            callback._check_on_train_epoch_end or trainer.val_check_interval == 1.0
        )
        refuse(
            by_epochs or at_the_end or isinstance(callback, _UNSUITABLE),
            f"{_ONE_EPOCH}, and the schedule sets batch size and learning rate, so "
            f"{type(callback).__name__} cannot act as it should. Leave it out, or let it act by "
            f"steps, as ModelCheckpoint(every_n_train_steps=N). {_BY_STEPS}, so that callbacks act "
            "after validations",
        )


def _save_by_steps(trainer: Any, schedule: Schedule) -> None:
    """Add a ModelCheckpoint if no other saves by steps or time, unless checkpoints are off."""
    savers = [one for one in trainer.checkpoint_callbacks if isinstance(one, ModelCheckpoint)]
    # A saver that monitors a metric waits for a validation.
    if not savers or any(one.every_n_epochs == 0 and one.monitor is None for one in savers):
        return
    interval = max(1, round(schedule.iterations / schedule.epochs))
    trainer.callbacks.append(
        ModelCheckpoint(
            savers[0].dirpath, filename="multigrid-{step}", every_n_train_steps=interval
        )
    )
    rank_zero_info(
        f"{_ONE_EPOCH}. A checkpoint is saved every {interval} iterations. For another interval, "
        "pass ModelCheckpoint(every_n_train_steps=N) to the Trainer."
    )
