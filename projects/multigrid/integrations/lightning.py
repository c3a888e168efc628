"""Multigrid training inside Lightning: a callback, whose loader `train_dataloader` returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset

from multigrid.sampler import Batch, MultigridBatchSampler
from multigrid.schedule import Schedule
from multigrid.training import Training

__all__ = ["MultigridCallback"]


_ONE_BY_ONE = (
    "accumulate_grad_batches takes several of the schedule's iterations for one: leave it out, and "
    "choose a smaller batch for make_schedule"
)


class _WholeLoader(DataLoader[Batch]):
    """As long as the whole training, wherever it begins: Lightning counts on from where it was, and
    would stop early. It needs no state: the callback has it."""

    training: Training

    def __iter__(self) -> Any:
        return _refuse() if self.training.model is None else super().__iter__()

    def __len__(self) -> int:
        sampler = self.batch_sampler
        assert isinstance(sampler, MultigridBatchSampler)
        return sampler.schedule.iterations

    def state_dict(self) -> dict[str, Any]:
        """Nothing; that there is one tells Lightning that the loader can go on inside an epoch."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `state_dict`."""


def _refuse() -> Iterator[Batch]:
    """An error at the first mini-batch: what is raised before, Lightning hides behind its own."""
    raise ValueError("give the Trainer the MultigridCallback whose loader this is")
    yield


class MultigridCallback(Callback):
    """Trains a module by a schedule; goes on inside an epoch from Lightning's checkpoints.

        multigrid = MultigridCallback(schedule)
        module.train_dataloader = lambda: multigrid.loader(dataset, num_workers=4)
        Trainer(max_epochs=1, use_distributed_sampler=False, callbacks=[multigrid]).fit(module)

    Lightning's one epoch is the whole training. The callback sets the rates; a scheduler of the
    module must not.

    Args:
        schedule: what to train.
        seed: of the order of clips.
    """

    def __init__(self, schedule: Schedule, seed: int = 0) -> None:
        self.training = Training(schedule, seed=seed)

    def loader(self, dataset: Dataset[Any], **options: Any) -> DataLoader[Batch]:
        """What `train_dataloader` returns; see `Training.loader`."""
        loader = self.training.loader(dataset, loader=_WholeLoader, **options)
        loader.training = self.training
        return loader

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the module, before its loaders are made."""
        self.training.model = pl_module

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse what would train something else than the schedule.

        Raises:
            ValueError: with the argument of the `Trainer` to change.
        """
        sampler = getattr(trainer.train_dataloader, "batch_sampler", None)
        whole = self.training.schedule.iterations
        for wrong, advice in (
            (
                not isinstance(sampler, MultigridBatchSampler),
                "the loader is not the callback's, or Lightning has put a sampler of its own in "
                "it: return multigrid.loader(...) from train_dataloader, and give "
                "use_distributed_sampler=False",
            ),
            (trainer.accumulate_grad_batches != 1, _ONE_BY_ONE),
            (
                trainer.max_epochs != 1 and trainer.max_steps not in range(whole + 1),
                "one epoch is the whole training: give max_epochs=1",
            ),
            (
                # overfit_batches sets its limit, too
                trainer.num_training_batches != whole and not trainer.fast_dev_run,  # type: ignore[attr-defined]
                "limit_train_batches and overfit_batches end before the schedule does: leave them "
                "out, and give make_schedule a shorter learning rate",
            ),
            (
                self.training.iteration != trainer.global_step,
                "the callback has trained already: make a new one for each fit",
            ),
            (len(trainer.optimizers) != 1, "the rates are those of one optimizer"),
            (
                bool(trainer.lr_scheduler_configs),
                "a scheduler of the module's would change the schedule's rates: return the "
                "optimizer alone from configure_optimizers",
            ),
        ):
            if wrong:
                raise ValueError(advice)
        self.training.optimizer = trainer.optimizers[0]

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """See `Training.begin`."""
        if trainer.accumulate_grad_batches != 1:  # a callback may have changed it
            raise ValueError(_ONE_BY_ONE)
        self.training.begin(batch)

    def state_dict(self) -> dict[str, Any]:
        """See `Training.state_dict`."""
        return self.training.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See `Training.load_state_dict`."""
        self.training.load_state_dict(state_dict)
