"""Multigrid training in Lightning: a callback, and the loader that `train_dataloader` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.utilities import rank_zero_warn
from torch.utils.data import DataLoader, Dataset

from multigrid.batchnorm import average_running_stats
from multigrid.contract import require
from multigrid.epochs import EpochLoader
from multigrid.gradient_layout import fix_gradient_layout
from multigrid.sampler import Batch, MultigridBatchSampler
from multigrid.schedule import Schedule
from multigrid.training import Training

_CHANGES_RATE = (BackboneFinetuning, LearningRateFinder, StochasticWeightAveraging)
"""Callbacks that set learning rates."""

_CHANGES_BATCH = (BatchSizeFinder, GradientAccumulationScheduler)
"""Callbacks that change the number of clips of an optimizer step."""

_DEFAULT_EPOCHS = 1000
"""Lightning's max_epochs if the user gives none."""


class _LightningLoader(EpochLoader):
    """Data loader that Lightning can resume within an epoch.

    For this, Lightning requires that the loader has a state. The state is empty, because the
    callback saves the iteration.
    """

    training: Training

    def __iter__(self) -> Any:
        # Raised when the first mini-batch is read. Lightning would hide an earlier error.
        require(
            self.training.model is not None,
            "the Trainer has no MultigridCallback. Pass the callback that created the loader to "
            "the Trainer: Trainer(callbacks=[multigrid])",
        )
        yield from super().__iter__()

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing, because `state_dict` is empty."""


class MultigridCallback(Callback):
    """Lightning callback that trains a module with a multigrid schedule.

        multigrid = MultigridCallback(schedule)
        module.train_dataloader = lambda: multigrid.loader(dataset, num_workers=4)
        Trainer(
            max_epochs=multigrid.epochs, use_distributed_sampler=False, callbacks=[multigrid]
        ).fit(module)

    The epochs are those of `Training`: equal shares of the iterations, about as long as a pass over
    the data. Callbacks and settings that count epochs or steps work as usual. A training can be
    stopped at any time and resumed from Lightning's checkpoints, also within an epoch. The callback
    sets the learning rates, so `configure_optimizers` must not return a scheduler. If the Trainer
    saves checkpoints, the callback also saves one after the last iteration. In each iteration, it
    averages the running statistics of BN over the devices.

    Args:
        schedule: The schedule to train.
        seed: Seed of the order of clips.
        weights: Sampling weight of each video, as for `Training`.
    """

    def __init__(
        self, schedule: Schedule, seed: int = 0, weights: Sequence[float] | None = None
    ) -> None:
        self.training = Training(schedule, seed=seed, weights=weights)

    @property
    def epochs(self) -> int:
        """Number of epochs of the schedule, for `Trainer(max_epochs=...)`."""
        return self.training.epochs

    def loader(self, dataset: Dataset[Any], **options: Any) -> DataLoader[Batch]:
        """Return the data loader for `train_dataloader`.

        The arguments are those of `Training.loader`.
        """
        return self.training.loader(dataset, loader=_LightningLoader, **options)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Store the module, and check the Trainer.

        Lightning calls this before it creates the data loaders.

        Raises:
            ValueError: An argument or another callback does not agree with the schedule. The
                message says what to change.
        """
        self.training.model = pl_module
        if stage == "fit":
            _check_trainer(trainer, self.training)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that the loader agrees with the schedule, and store the optimizers.

        Also fix the layout of DDP's gradients (see `fix_gradient_layout`).

        Raises:
            ValueError: The loader does not agree. The message says what to change.
        """
        lightning: Any = trainer
        sampler = getattr(trainer.train_dataloader, "batch_sampler", None)
        require(
            isinstance(sampler, MultigridBatchSampler),
            "the data loader was not created by the callback, or Lightning has replaced its "
            "sampler. Return multigrid.loader(...) from train_dataloader, and pass "
            "use_distributed_sampler=False to the Trainer",
        )
        is_whole = lightning.num_training_batches == self.training.epoch_iterations
        require(  # overfit_batches sets this limit, too.
            is_whole or lightning.fast_dev_run,
            "limit_train_batches and overfit_batches would leave out iterations of the schedule. "
            "Leave them out. For a shorter training, pass a shorter learning rate to "
            "make_schedule, or max_epochs or max_steps to the Trainer",
        )
        trained = lightning.fit_loop.epoch_loop.batch_progress.total.processed
        require(
            self.training.iteration <= 0 or trained != 0,
            "the callback was already used for a training. Create a new callback for each fit",
        )
        self.training.optimizer = trainer.optimizers
        fix_gradient_layout(lightning.strategy.model)
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell Lightning the number of iterations in the last epoch, which may be shorter."""
        length = self.training.epoch_iterations
        left = self.training.schedule.iterations - trainer.current_epoch * length
        trainer.fit_loop.max_batches = min(trainer.fit_loop.max_batches, left)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Call `Training.begin` for the mini-batch.

        Raises:
            ValueError: Gradient accumulation is on, or there is a learning-rate scheduler. The
                module or a callback may have turned them on after the start.
        """
        require(
            trainer.accumulate_grad_batches == 1,
            "accumulate_grad_batches would merge several iterations of the schedule into one. "
            "Leave it out, and choose a smaller batch for make_schedule",
        )
        require(
            not trainer.lr_scheduler_configs,
            "a scheduler would override the learning rates of the schedule. Return only the "
            "optimizer from configure_optimizers",
        )
        self.training.begin(batch)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the iteration, average the running statistics of BN, and stop after the last one.

        The module may have skipped the optimizer step. Because the statistics are averaged in each
        iteration, the model can be evaluated or saved at any time, and DDP's broadcast of the
        buffers of rank 0 has no effect. After the stop, Lightning validates, whatever
        val_check_interval is.
        """
        self.training.skip()
        average_running_stats(pl_module)
        is_last = 0 <= trainer.max_steps <= trainer.global_step
        if self.training.is_complete or is_last:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: LightningModule) -> None:
        """Save the last iteration if no ModelCheckpoint has saved it.

        This replaces the file of `ModelCheckpoint(save_last=True)` if there is one.
        """
        step = trainer.global_step
        savers = [one for one in trainer.checkpoint_callbacks if isinstance(one, ModelCheckpoint)]
        is_saved = any(saver._last_global_step_saved == step for saver in savers)
        if not trainer.checkpoint_callbacks or is_saved or trainer.fast_dev_run:
            return
        last = [saver.last_model_path for saver in savers if saver.last_model_path]
        folders = [
            getattr(one, "dirpath", None) for one in (*savers, *trainer.checkpoint_callbacks)
        ]
        folder = next(filter(None, folders), Path(trainer.default_root_dir, "checkpoints"))
        trainer.save_checkpoint((*last, f"{folder}/multigrid-step={step}.ckpt")[0])

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the training, as returned by `Training.state_dict`.

        Lightning may save within an iteration, for example when an exception is raised or a SLURM
        job is requeued. A resumed training then repeats this iteration.
        """
        return self.training.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of the training with `Training.load_state_dict`."""
        self.training.load_state_dict(state_dict)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Let Lightning resume in the epoch and at the mini-batch of the saved iteration.

        Lightning counts an epoch that was stopped early as a whole one, and would start the next.

        Raises:
            ValueError: The checkpoint was saved without this callback.
        """
        state = checkpoint.get("callbacks", {}).get(self.state_key)
        require(
            state is not None or not trainer.training,
            "the checkpoint was saved without MultigridCallback, so it does not tell where the "
            "training continues. To start from its weights, load them into the module",
        )
        if state is not None and "loops" in checkpoint:
            _place_loops(checkpoint["loops"]["fit_loop"], state["iteration"], self.training)


def _place_loops(loops: dict[str, Any], iteration: int, training: Training) -> None:
    """Change the saved progress of Lightning's loops, if it does not agree with an iteration."""
    epoch, batch = divmod(iteration, training.epoch_iterations)
    epochs, batches = loops["epoch_progress"], loops["epoch_loop.batch_progress"]
    is_over = epochs["current"]["ready"] == epochs["current"]["processed"]
    agrees = epochs["current"]["processed"] == epoch and batches["current"]["processed"] == batch
    if iteration == training.schedule.iterations or (batch == 0 and not is_over):
        return
    if batch == 0 or not agrees:
        for progress in (epochs["total"], epochs["current"]):
            progress.update(processed=epoch, completed=epoch)
            progress.update(dict.fromkeys(("ready", "started"), epoch + (batch > 0)))
        counted = ("ready", "started", "processed", "completed")
        batches["total"].update(dict.fromkeys(counted, iteration))
        batches["current"].update(dict.fromkeys(counted, batch))
        batches["is_last_batch"] = False
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] = iteration


def _check_trainer(trainer: Any, training: Training) -> None:
    """Raise ValueError if a callback conflicts with the schedule. Warn of another max_epochs."""
    for callback in trainer.callbacks:
        name = type(callback).__name__
        require(
            not isinstance(callback, _CHANGES_RATE),
            f"{name} sets learning rates, as the schedule does. Leave it out. To unfreeze layers, "
            'use a subclass of BaseFinetuning, and set the "lr_scale" of the new parameter group '
            "for another learning rate. To average weights, use WeightAveraging",
        )
        require(
            not isinstance(callback, _CHANGES_BATCH),
            f"{name} changes the number of clips of an optimizer step, as the schedule does. Leave "
            "it out, and pass another batch to make_schedule",
        )
    epochs, given = training.epochs, trainer.max_epochs
    if given is None or given in (-1, _DEFAULT_EPOCHS, epochs) or trainer.max_steps >= 0:
        return
    if given < epochs:
        rank_zero_warn(
            f"max_epochs={given} stops the training before the {epochs} epochs of the schedule "
            f"end. Pass max_epochs={epochs}, or resume the training later",
        )
    else:
        rank_zero_warn(
            f"max_epochs={given}, but the schedule has {epochs} epochs, after which the training "
            "ends. For a longer training, pass a longer learning rate to make_schedule",
        )
