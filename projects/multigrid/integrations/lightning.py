"""Multigrid training in Lightning: a callback, and the loader that `train_dataloader` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset

from multigrid.sampler import Batch, MultigridBatchSampler
from multigrid.schedule import Schedule
from multigrid.training import Training

__all__ = ["MultigridCallback"]


_NO_ACCUMULATION = (
    "accumulate_grad_batches would merge several iterations of the schedule into one: leave it "
    "out, and choose a smaller batch for make_schedule"
)


class _WholeLoader(DataLoader[Batch]):
    """Data loader whose length is that of the whole training, even when it resumes.

    Lightning counts batches from the start of the training, and would stop a shorter loader early.
    The state of the training is in the callback.
    """

    training: Training

    def __iter__(self) -> Any:
        return _refuse() if self.training.model is None else super().__iter__()

    def __len__(self) -> int:
        sampler = self.batch_sampler
        assert isinstance(sampler, MultigridBatchSampler)
        return sampler.schedule.iterations

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state.

        The method's presence tells Lightning that the loader can resume inside an epoch.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing; see `state_dict`."""


def _refuse() -> Iterator[Batch]:
    """Raise ValueError at the first mini-batch; Lightning would hide an earlier error."""
    raise ValueError(
        "the loader's callback is missing: give the Trainer the MultigridCallback that made it"
    )
    yield


class MultigridCallback(Callback):
    """Callback that trains a module by a schedule.

        multigrid = MultigridCallback(schedule)
        module.train_dataloader = lambda: multigrid.loader(dataset, num_workers=4)
        Trainer(max_epochs=1, use_distributed_sampler=False, callbacks=[multigrid]).fit(module)

    The whole training is one epoch of Lightning, and resumes inside it from Lightning's
    checkpoints. The callback sets the learning rates, so the module must not return a scheduler.

    Args:
        schedule: the schedule to train.
        seed: seed of the order of clips.
    """

    def __init__(self, schedule: Schedule, seed: int = 0) -> None:
        self.training = Training(schedule, seed=seed)

    def loader(self, dataset: Dataset[Any], **options: Any) -> DataLoader[Batch]:
        """Return the loader for `train_dataloader`; see `Training.loader`."""
        loader = self.training.loader(dataset, loader=_WholeLoader, **options)
        loader.training = self.training
        return loader

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Keep the module before its loaders are created."""
        self.training.model = pl_module

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that the Trainer will train exactly the schedule.

        Raises:
            ValueError: it will not. The message names the argument of the `Trainer` to change.
        """
        sampler = getattr(trainer.train_dataloader, "batch_sampler", None)
        whole = self.training.schedule.iterations
        for wrong, advice in (
            (
                not isinstance(sampler, MultigridBatchSampler),
                "the loader is not the callback's, or Lightning has replaced its sampler: return "
                "multigrid.loader(...) from train_dataloader, and give "
                "use_distributed_sampler=False",
            ),
            (trainer.accumulate_grad_batches != 1, _NO_ACCUMULATION),
            (
                trainer.max_epochs != 1 and trainer.max_steps not in range(whole + 1),
                "one epoch is the whole training: give max_epochs=1",
            ),
            (
                # overfit_batches sets this limit, too.
                trainer.num_training_batches != whole and not trainer.fast_dev_run,  # type: ignore[attr-defined]
                "limit_train_batches and overfit_batches end before the schedule does: leave them "
                "out, and give make_schedule a shorter learning rate",
            ),
            (
                self.training.iteration != trainer.global_step,
                "the callback has trained already: make a new one for each fit",
            ),
            (
                len(trainer.optimizers) != 1,
                "the schedule sets the rates of one optimizer: return one from "
                "configure_optimizers",
            ),
            (
                bool(trainer.lr_scheduler_configs),
                "the module's scheduler would change the schedule's rates: return the optimizer "
                "alone from configure_optimizers",
            ),
        ):
            if wrong:
                raise ValueError(advice)
        self.training.optimizer = trainer.optimizers[0]

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Begin the iteration; see `Training.begin`.

        Raises:
            ValueError: a callback has turned on gradient accumulation.
        """
        if trainer.accumulate_grad_batches != 1:
            raise ValueError(_NO_ACCUMULATION)
        self.training.begin(batch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the training; see `Training.state_dict`."""
        return self.training.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of the training; see `Training.load_state_dict`."""
        self.training.load_state_dict(state_dict)
