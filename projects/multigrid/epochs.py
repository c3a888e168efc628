"""Epochs of a training: equal shares of its iterations, one for each pass over a loader."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

from torch.utils.data import DataLoader

from multigrid.sampler import Batch, MultigridBatchSampler
from multigrid.schedule import Schedule
from multigrid.user_warning import warn_user


class Progress(Protocol):
    """Protocol with the attributes of `Training` that a loader needs."""

    schedule: Schedule
    seed: int
    iteration: int
    epoch_iterations: int


def divide_epochs(schedule: Schedule) -> tuple[int, int]:
    """Divide the iterations of a schedule into epochs of equal length.

    There is about one epoch for each pass over the data. Passes themselves differ in their number
    of iterations, because the number of clips in a mini-batch changes. The last epoch may be
    shorter.

    Returns:
        The number of epochs, and the number of iterations in each epoch but the last.
    """
    passes = max(1, round(schedule.epochs))
    length = math.ceil(schedule.iterations / passes)
    return math.ceil(schedule.iterations / length), length


class EpochLoader(DataLoader[Batch]):
    """Data loader whose `iter()` yields the mini-batches of one epoch of a training.

    An epoch starts at the iteration that the training has reached, so a resumed epoch is shorter.
    The worker processes continue from one epoch to the next. They are only restarted if the loop
    left an epoch before its end, or if the training was set to another iteration.

    Attributes:
        training: The training. `Training.loader` sets it.
    """

    training: Progress
    _batches: Iterator[Batch] | None = None
    _position = 0

    def __len__(self) -> int:
        """Return the number of iterations in an epoch. The last epoch may be shorter."""
        return self.training.epoch_iterations

    def __iter__(self) -> Any:
        """Yield the remaining mini-batches of the current epoch."""
        length = self.training.epoch_iterations
        yield from self.read((self.training.iteration // length + 1) * length)

    def read(self, stop: int) -> Iterator[Batch]:
        """Yield the mini-batches from the current iteration of the training to `stop`, exclusive.

        A warning is issued if the training is complete.
        """
        start = self.training.iteration
        stop = min(stop, self.training.schedule.iterations)
        if start >= stop:
            warn_user(
                "the training is complete, so the loader has no mini-batches. For another "
                "training, create another Training"
            )
            return
        if self._batches is None or self._position != start:
            self._batches = None  # ends the workers of an epoch that was left
            assert isinstance(self.batch_sampler, MultigridBatchSampler)
            self.batch_sampler.start = start
            if self.generator is not None:  # seeds the workers
                self.generator.manual_seed(self.training.seed + start)
            self._batches = super().__iter__()
        batches = self._batches
        for number in range(start, stop):
            try:
                batch = next(batches)
            except BaseException:
                self._batches = None
                raise
            self._position = number + 1
            yield batch
        if stop == self.training.schedule.iterations:
            self._batches = None
