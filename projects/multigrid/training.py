"""Multigrid training in any training loop: the class `Training`, and a learning-rate scheduler."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.hooks import RemovableHandle

from multigrid.batchnorm import form_groups, set_group_size
from multigrid.contract import CheckedClips, WeakHook, check_converted
from multigrid.cost import cycle_advice, short_ends
from multigrid.positions import check_patches, set_coverage
from multigrid.sampler import Batch, MultigridBatchSampler, collate
from multigrid.schedule import Schedule, ScheduleStep

__all__ = ["MultigridLR", "Training", "prepare_step"]

_CYCLES_CODE = (
    "make_schedule(..., cycles=multigrid.{name}) and "
    "VideoClips(..., sampling=multigrid.{name}.sampling)"
)


def prepare_step(step: ScheduleStep, model: nn.Module, optimizer: Optimizer) -> None:
    """Set the BN group size of a model and the learning rates of an optimizer for an iteration.

    `Training.begin` does this for the iterations of a schedule in order. Call this function
    directly only to train iterations in another order. The learning rate of each parameter group is
    `step.lr` times the group's "lr_scale", which is 1 by default.

    Args:
        step: The iteration, as returned by `Schedule.at`.
        model: The model to change.
        optimizer: The optimizer to change.
    """
    set_group_size(model, step.bn_size)
    for group in optimizer.param_groups:
        group["lr"] = step.lr * group.get("lr_scale", 1.0)


class Training:
    """Provide the mini-batches of a schedule, and prepare model and optimizer for each of them.

        training = Training(schedule, model, optimizer, seed=0)
        for batch in training.loader(dataset):
            training.begin(batch)
            ...                                # forward, backward, optimizer.step()

    The only state is `iteration`, the number of iterations begun. To resume, even within an epoch,
    create a `Training` with the same arguments and call `load_state_dict`. The training then
    continues with the next clips.

    A warning is issued if the training ends with too few iterations at the baseline's shape
    (`multigrid.cost.short_ends`), or if other cycles are recommended for the length of the training
    (`recommend_cycles`).

    Args:
        schedule: The schedule to train.
        model: The model to train. BN layers must have been converted by `convert_batchnorm`.
        optimizer: The optimizer. `begin` sets the learning rate of each parameter group to the
            schedule's learning rate times the group's "lr_scale", which is 1 by default. If a
            framework creates model and optimizer later, set the attributes `model` and `optimizer`
            before the first `begin`.
        seed: Seed of the order of clips.
        rank: Rank of this process. None means the rank in torch.distributed if it is initialised
            when the first loader is created, else 0.
        world_size: Number of processes. None means the world size of torch.distributed if it is
            initialised when the first loader is created, else 1.
    """

    def __init__(
        self,
        schedule: Schedule,
        model: nn.Module | None = None,
        optimizer: Optimizer | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.schedule = schedule
        self.model = model
        self.optimizer = optimizer
        self.seed = seed
        self.iteration = 0
        self._place = (rank, world_size)
        self._formed = False
        self._begun = False
        self._hooks = list[RemovableHandle]()
        self._checked: nn.Module | None = None
        for text in (*short_ends(schedule), *cycle_advice(schedule, _CYCLES_CODE)):
            warnings.warn(text, stacklevel=2)

    def loader(
        self,
        dataset: Dataset[Any],
        *,
        loader: type[DataLoader[Batch]] = DataLoader,
        **options: Any,
    ) -> DataLoader[Batch]:
        """Return a data loader of this rank's mini-batches for the remaining iterations.

        This also registers hooks that raise ValueError if the loop forgets to call `begin`. The
        hooks check each forward in training mode with gradients, and each `optimizer.step()`. They
        are removed after the last iteration. The first item of the data set is checked when it is
        read.

        Args:
            dataset: A data set that accepts a `ClipRequest` as index. It must have as many videos
                as the schedule.
            loader: `DataLoader` or a subclass.
            options: Options of the loader, such as num_workers. collate_fn defaults to `collate`.

        Raises:
            ValueError: The data set has another number of videos than the schedule, the data set
                cannot be indexed by `ClipRequest`, or the mini-batches cannot be divided over the
                processes (`check_processes`).
        """
        if isinstance(dataset, (list, tuple, Subset)):
            raise ValueError(
                f"dataset is a {type(dataset).__name__}, which cannot be indexed by a ClipRequest. "
                "Use a data set that reads a clip in the requested shape, such as VideoClips"
            )
        if self.iteration == self.schedule.iterations:
            warnings.warn(
                "the training is complete, so the loader has no mini-batches. One pass over the "
                "loader is the whole training. For another training, create another Training",
                stacklevel=2,
            )
        videos = len(dataset) if hasattr(dataset, "__len__") else self.schedule.num_videos
        if videos != self.schedule.num_videos:
            raise ValueError(
                f"the schedule was made for {self.schedule.num_videos} videos, but the data set "
                f"has {videos}. Use make_schedule(..., num_videos={videos})"
            )
        distributed = dist.is_available() and dist.is_initialized()
        rank, size = self._place
        rank = rank if rank is not None else dist.get_rank() if distributed else 0
        size = size if size is not None else dist.get_world_size() if distributed else 1
        sampler = MultigridBatchSampler(self.schedule, self.seed, rank, size, self.iteration)
        if distributed and size > 1 and not self._formed:
            form_groups(self.schedule)
            self._formed = True
        self._register_hooks()
        options = {"collate_fn": collate, **options}
        return loader(CheckedClips(dataset), batch_sampler=sampler, **options)

    def begin(self, batch: Batch | Mapping[str, Any] | int) -> ScheduleStep:
        """Prepare model and optimizer for the next iteration. Call this before the forward.

        This sets the BN group size, the learning rates and, for transformers, the coverage of the
        clips (see `set_coverage`). It increments `iteration`.

        Args:
            batch: The mini-batch from the loader, or the index of its iteration.

        Returns:
            The settings of the iteration.

        Raises:
            ValueError: The mini-batch has no "iteration", or is not the next one because
                mini-batches were skipped or repeated. Or there is no model or optimizer. The first
                call also raises ValueError if the model does not accept all shapes
                (`check_patches`), or if its BN layers were not converted by `convert_batchnorm`.
        """
        if not isinstance(batch, int) and not (isinstance(batch, Mapping) and "iteration" in batch):
            raise ValueError(
                'the mini-batch has no "iteration". Use multigrid.collate or another collate_fn '
                "that keeps this key, or call begin with the index of the iteration"
            )
        iteration = batch if isinstance(batch, int) else int(batch["iteration"])
        if iteration < 0:
            raise ValueError(
                "the mini-batch has validation clips, but begin requires training clips. Iterate "
                "over training.loader(dataset) instead of another DataLoader"
            )
        if iteration != self.iteration:
            raise ValueError(
                f"the mini-batch is of iteration {iteration}, but iteration {self.iteration} is "
                "next. Do not skip or repeat mini-batches of the loader. To resume a training, "
                "call load_state_dict before you create the loader"
            )
        if self.model is None or self.optimizer is None:
            raise ValueError(
                "Training has no model or no optimizer. Create it with both, or set the attributes "
                "model and optimizer before you call begin"
            )
        if self._checked is not self.model:
            check_patches(self.model, self.schedule.shapes)
            if any(size for phase in self.schedule.phases for size in phase.bn_sizes):
                check_converted(self.model)
            self._checked = self.model
        step = self.schedule.at(iteration)
        prepare_step(step, self.model, self.optimizer)
        # Clips of the baseline's shape have a coverage of 1. None then skips the interpolation.
        own = step.shape
        base = self.schedule.base
        coarse = (own.frames, own.crop) != (base.frames, base.crop)
        values: Mapping[str, Any] = batch if coarse and not isinstance(batch, int) else {}
        set_coverage(self.model, values.get("coverage"))
        self.iteration += 1
        self._begun = True
        return step

    def _register_hooks(self) -> None:
        """Register hooks that check that `begin` was called.

        `_end_step` removes them after the last iteration.
        """
        finished = self.iteration == self.schedule.iterations
        if self.model is None or self.optimizer is None or self._hooks or finished:
            return
        self._hooks = [
            self.model.register_forward_pre_hook(WeakHook(self._check_forward)),
            self.optimizer.register_step_pre_hook(WeakHook(self._check_step)),
            self.optimizer.register_step_post_hook(WeakHook(self._end_step)),
        ]

    def _check_forward(self, model: nn.Module, *_: Any) -> None:
        """Raise ValueError if a training forward runs without a preceding `begin`.

        Otherwise, the forward would use the BN group size of the previous iteration. Several
        forwards between `begin` and `optimizer.step()` are allowed.
        """
        if model.training and torch.is_grad_enabled() and not self._begun:
            raise ValueError(
                "the model is in training mode, but no iteration has begun. Call "
                "training.begin(batch) for each mini-batch before the forward. For evaluation, "
                "call model.eval() or use torch.no_grad()"
            )

    def _check_step(self, *_: Any) -> None:
        """Raise ValueError if `optimizer.step()` is called without a preceding `begin`.

        Otherwise, the step would use the learning rate of the previous iteration.
        """
        if not self._begun:
            raise ValueError(
                "optimizer.step() was called, but no iteration has begun. Call "
                "training.begin(batch) for each mini-batch before the forward"
            )

    def _end_step(self, *_: Any) -> None:
        self._begun = False
        if self.iteration == self.schedule.iterations:
            for hook in self._hooks:
                hook.remove()

    def state_dict(self) -> dict[str, int]:
        """Return the state to resume from. Call this after the optimizer step of an iteration."""
        return {"iteration": self.iteration, **self._identity()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Resume from a state. Call this before `loader`, which reads the iteration to start at.

        Raises:
            ValueError: The state is not from a `Training`, or from a training with another schedule
                or seed.
        """
        for name, local in self._identity().items():
            if (other := state.get(name)) != local:
                raise ValueError(
                    f"the state has {name} {other}, but this training has {name} {local}. Resume "
                    "with the same schedule and seed"
                )
        self.iteration = state["iteration"]

    def _identity(self) -> dict[str, int]:
        schedule = self.schedule
        return {
            "iterations": schedule.iterations,
            "clips": schedule.clips,
            "checksum of the phases": crc32("\n".join(schedule.phase_lines()).encode()),
            "seed": self.seed,
        }


class MultigridLR(LRScheduler):
    """PyTorch learning-rate scheduler for a multigrid schedule. Call `step()` in every iteration.

    `Training.begin` sets the same learning rates, so use either `MultigridLR` or `Training`. The
    learning rate of a parameter group is the schedule's learning rate times the group's "lr_scale",
    which is 1 by default. It stays constant after the last iteration.

    Args:
        optimizer: The optimizer.
        schedule: The schedule to train.
        last_epoch: As in PyTorch: the iteration before the one to start at.
    """

    def __init__(self, optimizer: Optimizer, schedule: Schedule, last_epoch: int = -1) -> None:
        self.schedule = schedule
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """Return the learning rate of each parameter group for the current iteration.

        PyTorch counts calls of `step()` in `last_epoch`. Here this is the iteration.
        """
        lr = self.schedule.at(min(self.last_epoch, self.schedule.iterations - 1)).lr
        return [lr * group.get("lr_scale", 1.0) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler, excluding the schedule and the optimizer."""
        given = ("schedule", "training")
        return {name: value for name, value in super().state_dict().items() if name not in given}
