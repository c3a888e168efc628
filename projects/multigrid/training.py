"""Multigrid training in any loop: one object for it, and a learning-rate scheduler."""

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
from multigrid.positions import check_patches, set_extents
from multigrid.sampler import Batch, MultigridBatchSampler, collate
from multigrid.schedule import Schedule, Step

__all__ = ["MultigridLR", "Training", "prepare_step"]

_USE = (
    "make_schedule(..., cycles=multigrid.{name}) and "
    "VideoClips(..., sampling=multigrid.{name}.sampling)"
)


def prepare_step(step: Step, model: nn.Module, optimizer: Optimizer) -> None:
    """Set the BN group size of a model and the learning rates of an optimizer for a step.

    `Training.begin` does so in the order of the schedule; this is for steps in any order. The rate
    of a parameter group is the step's times the group's "lr_scale", 1 where it has none.
    """
    set_group_size(model, step.bn_size)
    for group in optimizer.param_groups:
        group["lr"] = step.lr * group.get("lr_scale", 1.0)


class Training:
    """A training by a schedule: its mini-batches, what precedes each forward, and where it is.

        training = Training(schedule, model, optimizer, seed=0)
        for batch in training.loader(dataset):
            training.begin(batch)
            ...                                # forward, backward, optimizer.step()

    Everything but `iteration` is a function of the arguments: another object made from the same,
    after `load_state_dict`, resumes inside an epoch with the same clips. Warns of a schedule whose
    end is too short to show what coarse shapes taught (`multigrid.cost.short_ends`), or whose
    cycles are not those recommended for its length (`recommend_cycles`).

    Args:
        schedule: what to train.
        model: on which BN group sizes are set; converted by `convert_batchnorm`, if it has BN.
        optimizer: whose rates are set: `lr` of each parameter group is the step's times the
            group's "lr_scale", which is 1 where the group has none. A framework that makes model
            and optimizer later may set both as attributes before the first `begin`.
        seed: of the order of clips.
        rank: of this process; that of torch.distributed, if it runs when the first loader is
            made, else 0.
        world_size: the number of processes; that of torch.distributed, else 1.
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
        for text in (*short_ends(schedule), *cycle_advice(schedule, _USE)):
            warnings.warn(text, stacklevel=2)

    def loader(
        self,
        dataset: Dataset[Any],
        *,
        loader: type[DataLoader[Batch]] = DataLoader,
        **options: Any,
    ) -> DataLoader[Batch]:
        """This process's mini-batches, from `iteration` to the end of the training.

        Args:
            dataset: takes a `ClipRequest` as index, and has a video for each of the schedule's.
            loader: a class of `DataLoader`'s kind.
            options: its own, as num_workers; collate_fn is `collate` unless given.

        From now on to the end of the training, a model and an optimizer that were given refuse to
        train without `begin`: a forward in training mode, with gradients, and a step raise
        ValueError where no iteration was begun since the last step. The first item is checked, too.

        Raises:
            ValueError: the data set has another number of videos than the schedule or does not
                take a `ClipRequest`, or the processes cannot train it (`check_processes`).
        """
        if isinstance(dataset, (list, tuple, Subset)):
            raise ValueError(
                f"a {type(dataset).__name__} cannot be indexed by ClipRequest, which has the shape "
                "of a clip: give a data set that can, such as VideoClips"
            )
        videos = len(dataset) if hasattr(dataset, "__len__") else self.schedule.num_videos
        if videos != self.schedule.num_videos:
            raise ValueError(
                f"the schedule was made for {self.schedule.num_videos} videos, and the data set "
                f"has {videos}: give make_schedule its length"
            )
        distributed = dist.is_available() and dist.is_initialized()
        rank, size = self._place
        rank = rank if rank is not None else dist.get_rank() if distributed else 0
        size = size if size is not None else dist.get_world_size() if distributed else 1
        sampler = MultigridBatchSampler(self.schedule, self.seed, rank, size, self.iteration)
        if distributed and size > 1 and not self._formed:
            form_groups(self.schedule)
            self._formed = True
        self._watch()
        options = {"collate_fn": collate, **options}
        return loader(CheckedClips(dataset), batch_sampler=sampler, **options)

    def begin(self, batch: Batch | Mapping[str, Any] | int) -> Step:
        """Prepare model and optimizer for an iteration, before its forward.

        Args:
            batch: the loader's, or the number of its iteration; modules that follow the grid are
                given its `extents`, if it has them.

        Returns:
            the schedule's step. When it is trained, the training is one iteration further.

        Raises:
            ValueError: it is another iteration than the next: the loop, or a framework around it,
                has skipped mini-batches, or trains them again; the mini-batch does not say; there
                is no model or optimizer; or, which the first call checks, the model cannot take all
                shapes (`check_patches`), or has BN that `convert_batchnorm` has not converted.
        """
        if not isinstance(batch, int) and not (isinstance(batch, Mapping) and "iteration" in batch):
            raise ValueError(
                'the mini-batch has no "iteration": have the loader\'s collate_fn keep it, as '
                "multigrid.collate does, or give begin its number"
            )
        iteration = batch if isinstance(batch, int) else int(batch["iteration"])
        if iteration < 0:
            raise ValueError(
                "the mini-batch is of clips for validation, not of the schedule: take those of "
                "training.loader(dataset), not of a DataLoader of your own"
            )
        if iteration != self.iteration:
            raise ValueError(
                f"iteration {iteration} of the schedule came where {self.iteration} was next; do "
                "not skip or repeat the loader's mini-batches: to go on where a training was, load "
                "its state_dict before the loader is made"
            )
        if self.model is None or self.optimizer is None:
            raise ValueError("give the Training its model and optimizer, or set both before begin")
        if self._checked is not self.model:
            check_patches(self.model, self.schedule.shapes)
            if any(size for phase in self.schedule.phases for size in phase.bn_sizes):
                check_converted(self.model)
            self._checked = self.model
        step = self.schedule.at(iteration)
        prepare_step(step, self.model, self.optimizer)
        # The baseline's clips cover 1, and None takes their table as it is.
        own = step.shape
        base = self.schedule.base
        coarse = (own.frames, own.crop) != (base.frames, base.crop)
        values: Mapping[str, Any] = batch if coarse and not isinstance(batch, int) else {}
        set_extents(self.model, values.get("extents"))
        self.iteration += 1
        self._begun = True
        return step

    def _watch(self) -> None:
        """Have the model and the optimizer tell of what they do, until the training ends."""
        if self.model is None or self.optimizer is None or self._hooks:
            return
        self._hooks = [
            self.model.register_forward_pre_hook(WeakHook(self._check_forward)),
            self.optimizer.register_step_pre_hook(WeakHook(self._check_step)),
            self.optimizer.register_step_post_hook(WeakHook(self._end_step)),
        ]

    def _check_forward(self, model: nn.Module, *_: Any) -> None:
        """Raise ValueError for a forward of an iteration that was not begun: its BN groups would be
        those of another shape. Several forwards may share an iteration."""
        if model.training and torch.is_grad_enabled() and not self._begun:
            raise ValueError(
                "the model trains without a begun iteration: call training.begin(batch) for each "
                "mini-batch, before its forward; for a forward that trains nothing, call "
                "model.eval() or use torch.no_grad()"
            )

    def _check_step(self, *_: Any) -> None:
        """Raise ValueError for a step of an iteration that was not begun: its rate would be that of
        another shape."""
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
        """Where the training is after the iteration that was begun last, once that is trained."""
        return {"iteration": self.iteration, **self._identity()}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where a state was taken; loaders made before are of no use.

        Raises:
            ValueError: it is of a training with another schedule or seed, or of something else.
        """
        for name, own in self._identity().items():
            if (its := state.get(name)) != own:
                raise ValueError(
                    f"the state is of a training with {name} {its}, and this one has {own}"
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
    """The rates of a schedule as a PyTorch scheduler, for loops that step one each iteration.

    `Training.begin` sets the same rates: use one of them. The rate of a parameter group is the
    step's times the group's "lr_scale", 1 where it has none; after the last iteration it stays.
    """

    def __init__(self, optimizer: Optimizer, schedule: Schedule, last_epoch: int = -1) -> None:
        self.schedule = schedule
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float | Tensor]:
        """The rate of each parameter group in iteration `last_epoch`, PyTorch's name for it."""
        lr = self.schedule.at(min(self.last_epoch, self.schedule.iterations - 1)).lr
        return [lr * group.get("lr_scale", 1.0) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Its counts; the schedule, as the optimizer, is given anew."""
        given = ("schedule", "training")
        return {name: value for name, value in super().state_dict().items() if name not in given}
