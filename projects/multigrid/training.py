"""Multigrid training in any loop: the `Training` object, and a learning-rate scheduler."""

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
    """Set the BN group size of a model and the learning rates of an optimizer for a step.

    `Training.begin` calls this for each step in the order of the schedule. Call it directly for
    steps in another order. Each parameter group gets the step's rate times the group's "lr_scale",
    which is 1 by default.
    """
    set_group_size(model, step.bn_size)
    for group in optimizer.param_groups:
        group["lr"] = step.lr * group.get("lr_scale", 1.0)


class Training:
    """Training by a schedule: provides mini-batches and prepares each iteration.

        training = Training(schedule, model, optimizer, seed=0)
        for batch in training.loader(dataset):
            training.begin(batch)
            ...                                # forward, backward, optimizer.step()

    The only state is `iteration`. To resume, even inside an epoch, create an object with the same
    arguments and call `load_state_dict`. The training then goes on with the same clips.

    Warns if too few iterations follow the coarse shapes (`multigrid.cost.short_ends`), or if the
    cycles are not those recommended for the length of the training (`recommend_cycles`).

    Args:
        schedule: the schedule to train.
        model: the model whose BN group sizes are set. If it has BN, convert it by
            `convert_batchnorm`.
        optimizer: the optimizer whose rates are set. Each parameter group gets the step's rate
            times the group's "lr_scale", which is 1 by default. A framework that creates model and
            optimizer later may set both as attributes before the first `begin`.
        seed: seed of the order of clips.
        rank: rank of this process. None means that of torch.distributed, if it is initialised when
            the first loader is made, else 0.
        world_size: the number of processes. None means that of torch.distributed, else 1.
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
        """Return a loader of this process's mini-batches, from `iteration` to the training's end.

        From this call to the end of the training, model and optimizer cannot train without `begin`.
        If no iteration was begun since the last step, `optimizer.step()` and a forward in training
        mode with gradients raise ValueError. The first item of the data set is checked, too.

        Args:
            dataset: a data set that takes a `ClipRequest` as index, with as many videos as the
                schedule.
            loader: `DataLoader` or a subclass.
            options: options of the loader, such as num_workers. collate_fn defaults to `collate`.

        Raises:
            ValueError: the number of videos is not the schedule's, the data set cannot be indexed
                by `ClipRequest`, or the processes cannot train the schedule (`check_processes`).
        """
        if isinstance(dataset, (list, tuple, Subset)):
            raise ValueError(
                f"a {type(dataset).__name__} cannot be indexed by ClipRequest, which holds the "
                "shape of a clip. Give a data set that can, such as VideoClips"
            )
        videos = len(dataset) if hasattr(dataset, "__len__") else self.schedule.num_videos
        if videos != self.schedule.num_videos:
            raise ValueError(
                f"the schedule was made for {self.schedule.num_videos} videos, but the data set "
                f"has {videos}. Give make_schedule num_videos={videos}"
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
        """Prepare model and optimizer for an iteration, before its forward.

        This also increments `iteration`.

        Args:
            batch: a mini-batch of the loader, or the number of its iteration. Its `coverage`, if
                any, are set on the modules that follow the grid.

        Returns:
            The step of the schedule.

        Raises:
            ValueError: the mini-batch is not of the next iteration, because the loop or a framework
                has skipped or repeated mini-batches, or it does not hold its iteration. Or there is
                no model or optimizer. The first call also checks the model: it must take all shapes
                (`check_patches`), and its BN must be converted by `convert_batchnorm`.
        """
        if not isinstance(batch, int) and not (isinstance(batch, Mapping) and "iteration" in batch):
            raise ValueError(
                'the mini-batch has no "iteration". Let the loader\'s collate_fn keep it, as '
                "multigrid.collate does, or give begin the number of the iteration"
            )
        iteration = batch if isinstance(batch, int) else int(batch["iteration"])
        if iteration < 0:
            raise ValueError(
                "the mini-batch has validation clips, not clips of the schedule. Iterate over "
                "training.loader(dataset), not over another DataLoader"
            )
        if iteration != self.iteration:
            raise ValueError(
                f"the mini-batch is of iteration {iteration}, but {self.iteration} is next. Do not "
                "skip or repeat mini-batches of the loader. To resume a training, load its "
                "state_dict before you make the loader"
            )
        if self.model is None or self.optimizer is None:
            raise ValueError(
                "Training has no model and optimizer: give it both, or set both before begin"
            )
        if self._checked is not self.model:
            check_patches(self.model, self.schedule.shapes)
            if any(size for phase in self.schedule.phases for size in phase.bn_sizes):
                check_converted(self.model)
            self._checked = self.model
        step = self.schedule.at(iteration)
        prepare_step(step, self.model, self.optimizer)
        # The baseline's clips have a coverage of 1. None then skips the interpolation.
        own = step.shape
        base = self.schedule.base
        coarse = (own.frames, own.crop) != (base.frames, base.crop)
        values: Mapping[str, Any] = batch if coarse and not isinstance(batch, int) else {}
        set_coverage(self.model, values.get("coverage"))
        self.iteration += 1
        self._begun = True
        return step

    def _register_hooks(self) -> None:
        """Register hooks that check for `begin`; `_end_step` removes them after the last step."""
        if self.model is None or self.optimizer is None or self._hooks:
            return
        self._hooks = [
            self.model.register_forward_pre_hook(WeakHook(self._check_forward)),
            self.optimizer.register_step_pre_hook(WeakHook(self._check_step)),
            self.optimizer.register_step_post_hook(WeakHook(self._end_step)),
        ]

    def _check_forward(self, model: nn.Module, *_: Any) -> None:
        """Raise ValueError for a training forward without a begun iteration.

        Its BN groups would be those of another shape. An iteration may have several forwards.
        """
        if model.training and torch.is_grad_enabled() and not self._begun:
            raise ValueError(
                "the model trains without a begun iteration: call training.begin(batch) for each "
                "mini-batch, before its forward. For a forward that does not train, call "
                "model.eval() or use torch.no_grad()"
            )

    def _check_step(self, *_: Any) -> None:
        """Raise ValueError for an optimizer step without a begun iteration.

        Its rate would be that of another shape.
        """
        if not self._begun:
            raise ValueError(
                "the optimizer steps without a begun iteration: call training.begin(batch) for "
                "each mini-batch, before its forward"
            )

    def _end_step(self, *_: Any) -> None:
        self._begun = False
        if self.iteration == self.schedule.iterations:
            for hook in self._hooks:
                hook.remove()

    def state_dict(self) -> dict[str, int]:
        """Return the state after the iteration begun last. Call this once it is trained."""
        return {"iteration": self.iteration, **self._identity()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Resume from a state. Make the loader afterwards: an earlier one starts elsewhere.

        Raises:
            ValueError: the state is of a training with another schedule or seed, or is not a state
                of `Training`.
        """
        for name, local in self._identity().items():
            if (other := state.get(name)) != local:
                raise ValueError(
                    f"the state is of a training with {name} {other}, and this one has {local}. "
                    "Resume with the same schedule and seed"
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
    """PyTorch scheduler with the rates of a schedule, to be stepped in every iteration.

    `Training.begin` sets the same rates, so use only one of the two. Each parameter group gets the
    step's rate times the group's "lr_scale", which is 1 by default. After the last iteration the
    rate stays constant.
    """

    def __init__(self, optimizer: Optimizer, schedule: Schedule, last_epoch: int = -1) -> None:
        self.schedule = schedule
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """Return the rate of each parameter group in iteration `last_epoch` (PyTorch's name)."""
        lr = self.schedule.at(min(self.last_epoch, self.schedule.iterations - 1)).lr
        return [lr * group.get("lr_scale", 1.0) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's counters, without the schedule and the optimizer."""
        given = ("schedule", "training")
        return {name: value for name, value in super().state_dict().items() if name not in given}
