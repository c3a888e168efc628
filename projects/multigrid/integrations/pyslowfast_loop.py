"""Multigrid training in a training loop like PySlowFast's.

The schedule is built from the config. Its sampler requests clips from the data set, whose config is
adapted to the shape of each clip. The items of the data set keep their format, and are collated as
in PySlowFast. In each iteration, `begin` sets the learning rate, the BN group size and the config.

This module does not import PySlowFast.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from multigrid.batchnorm import GroupedBatchNorm3d, convert_batchnorm, set_group_size
from multigrid.integrations.pyslowfast_clips import ConfiguredClips
from multigrid.integrations.pyslowfast_epochs import EpochTable
from multigrid.integrations.pyslowfast_keys import (
    changed,
    cycles_off,
    get_key,
    schedule_of,
    set_keys,
    use_plain_batchnorm,
    uses_multigrid,
)
from multigrid.integrations.pyslowfast_model import CoarseEvaluationHook, fit_model
from multigrid.keys import phase_evaluations, phase_keys
from multigrid.learning_rate import LearningRate
from multigrid.sampler import MultigridBatchSampler
from multigrid.schedule import ScheduleStep
from multigrid.training import Training


class PySlowFastMultigrid:
    """Multigrid training in a training loop like PySlowFast's, with a PySlowFast config.

        multigrid = PySlowFastMultigrid(cfg, num_videos=len(dataset))
        model = multigrid.convert(build_model(cfg))
        loader = multigrid.loader(dataset)
        for inputs, labels, index, meta in loader:
            step = multigrid.begin(cfg, optimizer)
            ...                                       # forward, backward, optimizer.step()

    One pass over the loader is the whole training. `epochs` divides this pass into epochs. With
    several processes, create the object after torch.distributed has started.

    The constructor sets SOLVER.MAX_EPOCH to `num_epochs`, MULTIGRID.DEFAULT_B, T and S to the
    baseline's shape, and BN.NORM_TYPE to batchnorm, whose layers `convert` replaces. If both cycles
    are off, only SOLVER.MAX_EPOCH is set, `convert` changes no layer, and the loader returns the
    mini-batches of the baseline.

    Args:
        cfg: The config as it was loaded.
        num_videos: Number of videos in the training set.
        learning_rate: Learning rate of the baseline. By default, it follows the keys of SOLVER.

    Attributes:
        schedule: The multigrid schedule.
        training: The `Training` object, which counts the iterations.
        epoch_table: First iteration and length of each epoch.

    Raises:
        ValueError: The config describes no valid schedule, or a training has changed its values.
    """

    def __init__(
        self, cfg: Any, num_videos: int, learning_rate: LearningRate | None = None
    ) -> None:
        self.schedule = schedule_of(cfg, num_videos, learning_rate)
        self.training = Training(self.schedule, seed=cfg.RNG_SEED)
        self._is_on = uses_multigrid(cfg)
        self.epoch_table = EpochTable.of(self.schedule)
        if self._is_on:
            use_plain_batchnorm(cfg)
        self._loaded = copy.deepcopy(cfg)
        base = self.schedule.base
        self._coarse_evaluation = CoarseEvaluationHook(base, current=base)
        self._given = -1
        self._phase: int | None = None
        set_keys(cfg, self._constant_keys())

    def _constant_keys(self) -> dict[str, Any]:
        epochs = {"SOLVER.MAX_EPOCH": self.num_epochs}
        base = {
            "MULTIGRID.DEFAULT_B": self._loaded.TRAIN.BATCH_SIZE,
            "MULTIGRID.DEFAULT_T": self._loaded.DATA.NUM_FRAMES,
            "MULTIGRID.DEFAULT_S": self._loaded.DATA.TRAIN_CROP_SIZE,
        }
        return epochs | base if self._is_on else epochs

    @property
    def num_epochs(self) -> int:
        """Number of epochs."""
        return len(self.epoch_table)

    def convert(self, model: nn.Module) -> nn.Module:
        """Convert the BN layers and the average pools of a model for clips of any shape.

        BN layers compute statistics over a fixed number of clips. Average pools over a whole
        feature map fit any map (see `fit_model`). Both are unchanged in evaluation mode. Parameters
        and buffers stay the same objects, so an optimizer or a DistributedDataParallel that holds
        them remains valid.

        Returns:
            The model, which is changed in place.

        Raises:
            ValueError: The model has no `nn.BatchNorm3d` where the schedule has BN sizes, or
                batch normalisation of another kind. Or a module does not accept a shape.
        """
        if self._is_on:
            fit_model(model, self._loaded, self.schedule)
            model = convert_batchnorm(model)
            grouped = any(isinstance(module, GroupedBatchNorm3d) for module in model.modules())
            if not grouped and self.schedule.at(0).bn_size is not None:
                raise ValueError("The model has no nn.BatchNorm3d. Set MULTIGRID.BN_BASE_SIZE 0.")
            if isinstance(model, DistributedDataParallel):
                model.broadcast_buffers = False  # average_running_stats takes all processes' stats
            model.register_forward_pre_hook(self._coarse_evaluation)
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
            "num_workers": get_key(self._loaded, "DATA_LOADER.NUM_WORKERS", 0),
            "pin_memory": get_key(self._loaded, "DATA_LOADER.PIN_MEMORY", False),
        }
        if not by_request:
            dataset = ConfiguredClips(dataset, self._loaded, self.schedule.base)
            defaults["collate_fn"] = None
        loader = self.training.loader(dataset, loader=_Loader, **{**defaults, **options})
        assert isinstance(loader, _Loader)
        loader.multigrid = self
        return loader

    def begin(
        self,
        cfg: Any,
        optimizer: Optimizer,
        set_lr: Callable[[Optimizer, float], Any] | None = None,
    ) -> ScheduleStep:
        """Prepare the model, the optimizer and the config for the latest mini-batch of the loader.

        Call this before the forward pass. At the start of a phase, this method sets the config
        to the values of `config_at`, unless both cycles are off.

        Args:
            cfg: The config to change.
            optimizer: The optimizer.
            set_lr: `set_lr` of PySlowFast, if it scales the learning rates of layers.

        Returns:
            The step of the schedule, with shape and learning rate.

        Raises:
            ValueError: `convert` was not called, or the mini-batch is not there or was begun.
        """
        iteration = self.training.iteration
        if self.training.model is None:
            raise ValueError("Call convert(model) before the first begin.")
        if self._given != iteration:
            raise ValueError(
                f"The loader has not returned the mini-batch of iteration {iteration}. Call begin "
                "once for each mini-batch of the loader."
            )
        if set_lr is not None:
            rates = [group["lr"] for group in optimizer.param_groups]
            set_lr(optimizer, 1.0)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr_scale"] = group["lr"]
                group["lr"] = rate
        self.training.optimizer = optimizer
        step = self.training.begin(iteration)
        if self._is_on and step.phase != self._phase:
            set_keys(cfg, self.config_at(iteration))
            self._phase = step.phase
            self._coarse_evaluation.current = self.schedule.phases[step.phase].base_shape
        return step

    @property
    def lr(self) -> float:
        """Learning rate of the latest mini-batch of the loader."""
        return self.schedule.at(max(0, self._given)).lr

    def config_at(self, iteration: int) -> dict[str, Any]:
        """Return the config values of an iteration's phase as a dictionary from key to value.

        The values are the shape of the long cycle, the learning rates, the distribution of BN
        groups over processes, the baseline's shape (MULTIGRID.DEFAULT_B, T and S), and `num_epochs`
        as SOLVER.MAX_EPOCH. `begin` does not add keys that the config lacks.
        """
        loaded = self._loaded
        phase = self.schedule.phases[self.schedule.phase_at(iteration)]
        batch = phase.base_shape.batch
        clips = max(1, batch // (loaded.NUM_SHARDS * max(1, loaded.NUM_GPUS)))
        size = phase.bn_sizes[-1] or clips
        values = {
            **self._constant_keys(),
            **phase_keys(phase, loaded.NUM_SHARDS, lambda key: get_key(loaded, key, 0.0)),
            "BN.NUM_SPLITS": max(1, clips // size),
            "BN.NUM_SYNC_DEVICES": max(1, size // clips),
        }
        if loaded.SOLVER.LR_POLICY == "steps_with_lrs":
            values["SOLVER.LRS"] = [lr * phase.lr_scale for lr in loaded.SOLVER.LRS]
        return values

    @contextmanager
    def evaluation(self, cfg: Any) -> Iterator[None]:
        """Restore the original config values, except SOLVER.MAX_EPOCH, within a context.

        Iterate over validation loaders within the context. In training mode, as for precise BN, BN
        layers then compute statistics over all clips of the process, not over BN groups.
        """
        if self.training.model is not None:
            set_group_size(self.training.model, None)
        with changed(cfg, self._baseline_keys()):
            yield

    def baseline_config(self, cfg: Any) -> Any:
        """Return a copy of a config with the baseline's shape and the multigrid cycles off.

        Loaders for validation, test and precise BN that are built with this copy need no
        `evaluation` context. All other keys have their current values.
        """
        baseline = cycles_off(cfg)
        set_keys(baseline, self._baseline_keys())
        return baseline

    def _baseline_keys(self) -> dict[str, Any]:
        names = self.config_at(0).keys() - {"SOLVER.MAX_EPOCH"}
        return {name: get_key(self._loaded, name) for name in names}

    def evaluates_after(self, step: ScheduleStep) -> bool:
        """Return whether one of the MULTIGRID.EVAL_FREQ evaluations of a phase is due."""
        phase = self.schedule.phases[step.phase]
        return step.iteration + 1 in phase_evaluations(phase, self._loaded.MULTIGRID.EVAL_FREQ)

    def resume(self, *, iteration: int | None = None, epoch: int | None = None) -> None:
        """Resume at an iteration or at the start of an epoch. Call it before creating the loader.

        Raises:
            ValueError: Neither or both are given, or the value is outside the schedule.
        """
        start = iteration if epoch is None else self.epoch_table.start(epoch)
        is_one = (iteration is None) != (epoch is None)
        if start is None or not is_one or not 0 <= start <= self.schedule.iterations:
            raise ValueError(
                f"Cannot resume at iteration {iteration} or epoch {epoch}. Pass one of the two, "
                f"within the {self.schedule.iterations} iterations of the schedule."
            )
        self.training.iteration = start

    def epochs(self, loader: DataLoader[Any]) -> Iterator[tuple[int, _Epoch]]:
        """Yield (index of the epoch, its mini-batches) for the rest of the training."""
        batches = iter(loader)
        for epoch, end in enumerate(self.epoch_table.ends):
            left = end - self.training.iteration
            if left > 0:
                yield epoch, _Epoch(batches, left)


@dataclass(frozen=True)
class _Epoch:
    """The next `length` mini-batches of a loader that is being iterated over."""

    batches: Iterator[Any]
    length: int

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        return islice(self.batches, self.length)


class _Loader(DataLoader[Any]):
    """Loader that requires a call of `begin` for each mini-batch before the next one."""

    multigrid: PySlowFastMultigrid

    def __iter__(self) -> Any:
        assert isinstance(self.batch_sampler, MultigridBatchSampler)
        for iteration, batch in enumerate(super().__iter__(), self.batch_sampler.start):
            next_one = self.multigrid.training.iteration
            if iteration != next_one:
                raise ValueError(
                    f"The loader is at iteration {iteration}, but {next_one} is the next to begin. "
                    "Call begin for each mini-batch, and resume before the loader is created. For "
                    "precise BN, create another loader with baseline_config(cfg)."
                )
            self.multigrid._given = iteration
            yield batch
