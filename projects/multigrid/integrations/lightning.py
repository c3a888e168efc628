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
    "accumulate_grad_batches would merge several iterations of the schedule into one. Leave it "
    "out, and choose a smaller batch for make_schedule"
)


class _WholeLoader(DataLoader[Batch]):
    """Data loader whose length is the number of iterations in the whole training.

    The length does not change when a training resumes. Lightning counts mini-batches from the start
    of the training, so it would stop too early if the length were the number of remaining
    iterations. The loader has no state of its own, because the callback saves the iteration.
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

        Lightning resumes within an epoch only if the loader has this method.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing, because `state_dict` is empty."""


def _refuse() -> Iterator[Batch]:
    """Raise ValueError when the first mini-batch is read.

    Lightning would hide an error that is raised earlier.
    """
    raise ValueError(
        "the Trainer has no MultigridCallback. Pass the callback that created the loader to the "
        "Trainer: Trainer(callbacks=[multigrid])"
    )
    yield


class MultigridCallback(Callback):
    """Lightning callback that trains a module with a multigrid schedule.

        multigrid = MultigridCallback(schedule)
        module.train_dataloader = lambda: multigrid.loader(dataset, num_workers=4)
        Trainer(max_epochs=1, use_distributed_sampler=False, callbacks=[multigrid]).fit(module)

    For Lightning, the whole training is one epoch. It can be resumed from Lightning's checkpoints,
    also within the epoch. The callback sets the learning rates, so `configure_optimizers` must not
    return a scheduler.

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
        """Store the module. Lightning calls this before it creates the data loaders."""
        self.training.model = pl_module
        self._trainer = trainer

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that the arguments of the Trainer agree with the schedule.

        Raises:
            ValueError: An argument does not agree. The message says how to change it.
        """
        sampler = getattr(trainer.train_dataloader, "batch_sampler", None)
        whole = self.training.schedule.iterations
        for wrong, advice in (
            (
                not isinstance(sampler, MultigridBatchSampler),
                "the data loader was not created by the callback, or Lightning has replaced its "
                "sampler. Return multigrid.loader(...) from train_dataloader, and pass "
                "use_distributed_sampler=False to the Trainer",
            ),
            (trainer.accumulate_grad_batches != 1, _NO_ACCUMULATION),
            (
                trainer.max_epochs != 1 and trainer.max_steps not in range(whole + 1),
                "for Lightning, the whole training is one epoch. Pass max_epochs=1 to the Trainer",
            ),
            (
                # overfit_batches sets this limit, too.
                trainer.num_training_batches != whole and not trainer.fast_dev_run,  # type: ignore[attr-defined]
                "limit_train_batches and overfit_batches would end the training before the end of "
                "the schedule. Leave them out. For a shorter training, pass a shorter learning "
                "rate to make_schedule",
            ),
            (
                self.training.iteration != trainer.global_step,
                "the callback was already used for a training. Create a new callback for each fit",
            ),
            (
                len(trainer.optimizers) != 1,
                "the schedule sets the learning rates of a single optimizer. Return a single "
                "optimizer from configure_optimizers",
            ),
            (
                bool(trainer.lr_scheduler_configs),
                "the scheduler of the module would override the learning rates of the schedule. "
                "Return only the optimizer from configure_optimizers",
            ),
        ):
            if wrong:
                raise ValueError(advice)
        self.training.optimizer = trainer.optimizers[0]

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Call `Training.begin` for the mini-batch.

        Raises:
            ValueError: Another callback has turned on gradient accumulation.
        """
        if trainer.accumulate_grad_batches != 1:
            raise ValueError(_NO_ACCUMULATION)
        self.training.begin(batch)

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
