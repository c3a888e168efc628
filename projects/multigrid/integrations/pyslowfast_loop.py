"""Multigrid training in a training loop like PySlowFast's.

The schedule is built from the config. Its sampler requests clips from the data set, whose config is
adapted to the shape of each clip. The items of the data set keep their format, and are collated as
in PySlowFast. In each iteration, `begin` sets the learning rate and the BN group size.

This module does not import PySlowFast.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from multigrid.batchnorm import convert_batchnorm, set_group_size
from multigrid.errors import MultigridError
from multigrid.gradient_layout import fix_gradient_layout
from multigrid.integrations.pyslowfast_clips import ConfiguredClips
from multigrid.integrations.pyslowfast_keys import (
    set_keys,
    use_plain_batchnorm,
    uses_multigrid,
)
from multigrid.integrations.pyslowfast_model import fit_model
from multigrid.integrations.pyslowfast_schedule import schedule_of
from multigrid.learning_rate import LearningRate
from multigrid.positions import check_patches, convert_mvit
from multigrid.sampler import MultigridBatchSampler
from multigrid.schedule import Schedule, ScheduleStep
from multigrid.training import Training

_LOOP_STREAM = 1
"""Last part of the seeds of the loop. The seeds of the clips are shorter."""


class PySlowFastMultigrid:
    """Multigrid training in a training loop like PySlowFast's, with a PySlowFast config.

        multigrid = PySlowFastMultigrid(cfg, num_videos=len(dataset))
        model = multigrid.convert(build_model(cfg))
        loader = multigrid.loader(dataset)
        for epoch, batches in multigrid.epochs(loader):
            for inputs, labels, index, meta in batches:
                step = multigrid.begin(optimizer)
                ...                                       # forward, backward, optimizer.step()

    One pass over the loader is the whole training. `epochs` divides this pass into epochs. With
    several processes, create the object after torch.distributed has started.

    The constructor sets SOLVER.MAX_EPOCH to the number of epochs, MULTIGRID.DEFAULT_B, T and S to
    the baseline's shape, and BN.NORM_TYPE to batchnorm, whose layers `convert` replaces. Nothing
    else in the config changes. If both cycles are off, only SOLVER.MAX_EPOCH is set, `convert`
    changes no layer, and the loader returns the mini-batches of the baseline.

    Args:
        cfg: The config as it was loaded, with the keys of `add_multigrid_config`.
        num_videos: Number of videos in the training set.
        learning_rate: Learning rate of the baseline. By default, it follows the keys of SOLVER.

    Attributes:
        schedule: The multigrid schedule.
        training: The `Training` object, which counts the iterations.
        epoch_ends: The iterations at which the epochs end, in ascending order.

    Raises:
        ValueError: The config describes no valid schedule, or multigrid cannot train with it
            (`check_config`).
    """

    def __init__(
        self, cfg: Any, num_videos: int, learning_rate: LearningRate | None = None
    ) -> None:
        self.schedule = schedule_of(cfg, num_videos, learning_rate)
        self.training = Training(self.schedule, seed=cfg.RNG_SEED)
        self.epoch_ends = epoch_ends(self.schedule)
        self._cfg = cfg
        self._is_on = uses_multigrid(cfg)
        set_keys(cfg, {"SOLVER.MAX_EPOCH": len(self.epoch_ends)})
        if self._is_on:
            use_plain_batchnorm(cfg)
            base = {
                "MULTIGRID.DEFAULT_B": cfg.TRAIN.BATCH_SIZE,
                "MULTIGRID.DEFAULT_T": cfg.DATA.NUM_FRAMES,
                "MULTIGRID.DEFAULT_S": cfg.DATA.TRAIN_CROP_SIZE,
            }
            set_keys(cfg, base)

    def convert(self, model: nn.Module) -> nn.Module:
        """Convert a model for clips of any shape.

        BN layers compute statistics over a fixed number of clips. Average pools over a whole
        feature map fit any map (see `fit_model`). An MViT interpolates its position embeddings (see
        `convert_mvit`). For clips of the baseline's shape, evaluation is unchanged. Parameters and
        buffers stay the same objects, so an optimizer or a DistributedDataParallel that holds them
        remains valid.

        Returns:
            The model, which is changed in place.

        Raises:
            ValueError: The model has batch normalisation of another kind than `nn.BatchNorm3d`, or
                a module does not accept a shape.
        """
        if self._is_on:
            convert_mvit(model)
            check_patches(model, self.schedule.shapes)
            fit_model(model, self._cfg, self.schedule)
            model = convert_batchnorm(model)
            if isinstance(model, DistributedDataParallel):
                model.broadcast_buffers = False  # average_running_stats takes all processes' stats
            fix_gradient_layout(model)
        self.training.model = model
        return model

    def loader(
        self, dataset: Dataset[Any], *, by_request: bool = False, **options: Any
    ) -> DataLoader[Any]:
        """Return a loader of the remaining mini-batches of this process.

        Args:
            dataset: Data set that reads the config in `__getitem__` (see `ConfiguredClips`).
            by_request: Whether the data set takes a `ClipRequest`, as `VideoClips` does.
            options: Options of `DataLoader`. By default, num_workers and pin_memory are taken from
                the config. The default collate_fn is PyTorch's or, with `by_request`,
                `multigrid.collate`.

        Raises:
            ValueError: See `Training.loader` and `ConfiguredClips`.
        """
        defaults: dict[str, Any] = {
            "num_workers": self._cfg.DATA_LOADER.NUM_WORKERS,
            "pin_memory": self._cfg.DATA_LOADER.PIN_MEMORY,
        }
        if not by_request:
            dataset = ConfiguredClips(dataset, self._cfg, self.schedule.base)
            defaults["collate_fn"] = None
        loader = self.training.loader(dataset, loader=_Loader, **{**defaults, **options})
        assert isinstance(loader, _Loader)
        loader.training = self.training
        return loader

    def begin(
        self, optimizer: Optimizer, set_lr: Callable[[Optimizer, float], Any] | None = None
    ) -> ScheduleStep:
        """Prepare the model and the optimizer for the latest mini-batch of the loader.

        Call this before the forward pass.

        Args:
            optimizer: The optimizer.
            set_lr: `set_lr` of PySlowFast, if it scales the learning rates of layers. It is called
                in the first iteration, to find the factors.

        Returns:
            The step of the schedule, with shape and learning rate.

        Raises:
            ValueError: `convert` was not called.
        """
        if optimizer is not self.training.optimizer:
            self.training.optimizer = optimizer
            if set_lr is not None:
                set_lr(optimizer, 1.0)
                for group in optimizer.param_groups:
                    group["lr_scale"] = group["lr"]
        return self.training.begin(self.training.iteration)

    def resume(self, *, iteration: int = 0, epoch: int | None = None) -> None:
        """Resume at an iteration, or at the start of an epoch. Call it before creating the loader.

        Raises:
            IndexError: The training has no such epoch.
        """
        self.training.iteration = iteration if epoch is None else (0, *self.epoch_ends)[epoch]

    @property
    def longest_epoch(self) -> int:
        """Number of iterations in the longest epoch, for meters that need a single number."""
        return max(end - start for start, end in pairwise((0, *self.epoch_ends)))

    def epochs(self, loader: DataLoader[Any]) -> Iterator[tuple[int, Epoch]]:
        """Yield (index of the epoch, its mini-batches) for the rest of the training."""
        batches = iter(loader)
        for epoch, end in enumerate(self.epoch_ends):
            left = end - self.training.iteration
            if left > 0:
                yield epoch, Epoch(batches, left, self.training)


def epoch_ends(schedule: Schedule) -> tuple[int, ...]:
    """Return the iterations at which the epochs of a schedule end, in ascending order.

    An epoch is a pass over the data. An epoch begins with the first iteration that has no clips of
    earlier passes. If a mini-batch has more clips than the data set, some passes contain no
    beginning of an iteration. Such a pass belongs to the epoch before, so each epoch has at least
    one iteration. The last epoch may be incomplete.
    """
    passes = range(1, math.ceil(round(schedule.epochs, 6)))
    ends = {schedule.first_iteration_after(count * schedule.num_videos) for count in passes}
    return tuple(sorted(ends | {schedule.iterations}))


@dataclass(frozen=True)
class Epoch:
    """The next `length` mini-batches of a loader.

    After the last one, BN layers in training mode compute statistics over all clips of the process,
    as precise BN expects. The next `begin` sets the size of the BN groups again.
    """

    batches: Iterator[Any]
    length: int
    training: Training

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        yield from islice(self.batches, self.length)
        assert self.training.model is not None
        set_group_size(self.training.model, None)


class _Loader(DataLoader[Any]):
    """Loader that requires a call of `begin` for each mini-batch before the next one.

    Before it yields a mini-batch, it seeds the global random generators (`_seed_generators`).
    """

    training: Training

    def __iter__(self) -> Any:
        assert isinstance(self.batch_sampler, MultigridBatchSampler)
        for iteration, batch in enumerate(super().__iter__(), self.batch_sampler.start):
            if iteration != self.training.iteration:
                raise MultigridError(
                    f"The loader is at iteration {iteration}, but {self.training.iteration} is the "
                    "next to begin. Call begin once for each mini-batch, and resume before the "
                    "loader is created. For precise BN, create another loader."
                )
            _seed_generators(self.training.seed, iteration, self.batch_sampler.rank)
            yield batch


def _seed_generators(seed: int, iteration: int, rank: int) -> None:
    """Seed the global random generators of Python, NumPy and PyTorch for an iteration.

    The random numbers of an iteration, such as dropout masks and mixup pairs, then depend only on
    the seed, the iteration and the rank. A resumed training therefore draws the same numbers as an
    uninterrupted one.
    """
    seeds = np.random.SeedSequence((seed, iteration, rank, _LOOP_STREAM)).generate_state(3)
    python, numpy, pytorch = seeds.tolist()
    random.seed(python)
    np.random.seed(numpy)
    torch.manual_seed(pytorch)
