"""Multigrid training in the unchanged training script of a later PySlowFast release."""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from multigrid.batchnorm import average_running_stats
from multigrid.errors import MultigridError
from multigrid.integrations.pyslowfast_arguments import (
    NO_CYCLE,
    check_arguments,
    explained_options,
)
from multigrid.integrations.pyslowfast_checks import check_config
from multigrid.integrations.pyslowfast_keys import (
    add_multigrid_config,
    baseline_config,
    start_stages,
    use_plain_batchnorm,
    uses_multigrid,
)
from multigrid.integrations.pyslowfast_loop import Epoch, PySlowFastMultigrid

logger = logging.getLogger(__name__)


def enable(*, require_cycles: bool = False) -> None:
    """Let the training script of a later PySlowFast release train the multigrid schedule.

    The script, data sets, models, launcher, meters, checkpoints, evaluation and test stay those of
    the fork. The keys of `cfg.MULTIGRID` keep their meaning. Without a cycle, everything is
    unchanged. These names of the package `slowfast` are replaced, in all modules that have them:

    | name | with a cycle |
    |---|---|
    | config.defaults.get_cfg | adds the keys that only multigrid has |
    | config.defaults.assert_and_infer_cfg | refuses keys that multigrid cannot train with |
    | utils.parser.parse_args | refuses keys that the parser takes for config files |
    | utils.multigrid.MultigridSchedule | builds the schedule from config and data set |
    | datasets.loader.construct_loader | training: clips of the schedule; others: the baseline's |
    | datasets.loader.shuffle_dataset | starts the epoch |
    | models.build.build_model | converts the model (`PySlowFastMultigrid.convert`) |
    | models.optimizer.get_epoch_lr | returns the learning rate of the schedule |
    | models.optimizer.set_lr | begins the iteration, with the original's factors by layer |
    | utils.misc.aggregate_sub_bn_stats | averages BN running statistics over processes |
    | visualization.tensorboard_vis.TensorboardWriter.add_scalars | counts iterations |

    Call this before the script imports from `slowfast`. A second call does nothing.

    Args:
        require_cycles: Whether to raise an error before a training without a cycle.

    Raises:
        ImportError: The installed PySlowFast lacks one of these names, other than
            assert_and_infer_cfg, parse_args and add_scalars.
    """
    _Fork(require_cycles).install()


_OPTIONAL = (
    "config.defaults:assert_and_infer_cfg",
    "utils.parser:parse_args",
    "visualization.tensorboard_vis:TensorboardWriter.add_scalars",
)
"""Names that a fork may lack."""


class _Fork:
    """Functions that replace those of a fork.

    Attributes:
        run: The multigrid training of the latest config that a function was called with, or None
            if this config has no cycle or its training has not started.
    """

    def __init__(self, require_cycles: bool) -> None:
        self.run: _Run | None = None
        self._require_cycles = require_cycles
        replacements: dict[str, Callable[..., Any]] = {
            "config.defaults:get_cfg": self._get_cfg,
            "config.defaults:assert_and_infer_cfg": self._assert_and_infer_cfg,
            "utils.parser:parse_args": self._parse_args,
            "utils.multigrid:MultigridSchedule": lambda: _Run(self),
            "datasets.loader:construct_loader": self.construct_loader,
            "datasets.loader:shuffle_dataset": self._shuffle_dataset,
            "models.build:build_model": self._build_model,
            "models.optimizer:get_epoch_lr": self._get_epoch_lr,
            "models.optimizer:set_lr": self._set_lr,
            "utils.misc:aggregate_sub_bn_stats": self._aggregate_sub_bn_stats,
            "visualization.tensorboard_vis:TensorboardWriter.add_scalars": self._add_scalars(),
        }
        found = {name: _find(name) for name in replacements}
        self.host = {name: host for name, host in found.items() if host is not None}
        self.replacements = {name: replacements[name] for name in self.host}

    def install(self) -> None:
        """Replace the functions of the fork, unless `enable` has done so before."""
        if isinstance(getattr(self.host["models.build:build_model"], "__self__", None), _Fork):
            return
        replaced = {id(self.host[name]): new for name, new in self.replacements.items()}
        for place in _places(self.replacements):
            for alias, value in list(vars(place).items()):
                if id(value) in replaced:
                    setattr(place, alias, replaced[id(value)])

    def _get_cfg(self) -> Any:
        cfg = self.host["config.defaults:get_cfg"]()
        add_multigrid_config(cfg)
        return cfg

    def _parse_args(self, *args: Any, **options: Any) -> Any:
        with explained_options(sys.argv):
            parsed = self.host["utils.parser:parse_args"](*args, **options)
        check_arguments(parsed)
        return parsed

    def _assert_and_infer_cfg(self, cfg: Any) -> Any:
        self.run = None
        inferred = self.host["config.defaults:assert_and_infer_cfg"](cfg)
        self._enter(inferred)
        start_stages(inferred)
        return inferred

    def _enter(self, cfg: Any) -> bool:
        """Check a config that a function was called with, and return whether it uses multigrid.

        A config without training is not checked. A config without a cycle ends the training of an
        earlier config, which may have run in this process before.
        """
        is_on = uses_multigrid(cfg)
        if not is_on:
            self.run = None
        if cfg.TRAIN.ENABLE and self.run is None:
            check_config(cfg)
            if self._require_cycles and not is_on:
                raise MultigridError(NO_CYCLE)
        return is_on

    def construct_loader(
        self, cfg: Any, split: str, is_precise_bn: bool = False, **options: Any
    ) -> Any:
        """Return the loader of a split."""
        if self._enter(cfg):
            if split == "train" and not is_precise_bn and self.run is not None:
                return self.run.loader
            cfg = baseline_config(cfg)
        construct = self.host["datasets.loader:construct_loader"]
        return construct(cfg, split, is_precise_bn=is_precise_bn, **options)

    def _shuffle_dataset(self, loader: Any, cur_epoch: int) -> None:
        if isinstance(loader, _EpochLoader):
            loader.start(cur_epoch)
        else:
            self.host["datasets.loader:shuffle_dataset"](loader, cur_epoch)

    def _build_model(self, cfg: Any, *place: Any, **options: Any) -> nn.Module:
        if self._enter(cfg):
            use_plain_batchnorm(cfg)
        model: nn.Module = self.host["models.build:build_model"](cfg, *place, **options)
        if self.run is None or self.run.multigrid.training.model is not None:
            return model
        return self.run.multigrid.convert(model)

    def _get_epoch_lr(self, cur_epoch: float, cfg: Any) -> float:
        if self._enter(cfg):
            if self.run is None:
                raise MultigridError(
                    "the training script did not call MultigridSchedule().init_multigrid(cfg), so "
                    "there is no schedule. Edit the loop by hand, as docs/pyslowfast_by_hand.md "
                    "shows"
                )
            return self.run.rate
        rate: float = self.host["models.optimizer:get_epoch_lr"](cur_epoch, cfg)
        return rate

    def _set_lr(self, optimizer: Optimizer, new_lr: float) -> None:
        set_lr = self.host["models.optimizer:set_lr"]
        if self.run is None:
            set_lr(optimizer, new_lr)
        else:
            self.run.multigrid.begin(optimizer, set_lr)

    def _aggregate_sub_bn_stats(self, module: nn.Module) -> Any:
        if self.run is not None:
            average_running_stats(module)
        return self.host["utils.misc:aggregate_sub_bn_stats"](module)

    def _add_scalars(self) -> Callable[..., Any]:
        """Return a method for the class of TensorBoard writers."""

        def add_scalars(writer: Any, data: Any, global_step: int | None = None) -> Any:
            step = global_step if self.run is None else self.run.latest_iteration
            name = "visualization.tensorboard_vis:TensorboardWriter.add_scalars"
            return self.host[name](writer, data, global_step=step)

        return add_scalars


class _Run:
    """Multigrid training of one config. It takes the place of the fork's `MultigridSchedule`.

    Attributes:
        multigrid: Schedule, model and state of the training.
        loader: Loader of the training.
    """

    multigrid: PySlowFastMultigrid
    loader: _EpochLoader

    def __init__(self, fork: _Fork) -> None:
        self._fork = fork

    def init_multigrid(self, cfg: Any) -> Any:
        """Build the schedule and the training loader for a config, and return the config."""
        self._fork.run = None
        loader = self._fork.construct_loader(cfg, "train")
        self.multigrid = PySlowFastMultigrid(cfg, len(loader.dataset))
        self.loader = _EpochLoader(self.multigrid, loader)
        self._fork.run = self
        names = ", ".join(self._fork.replacements).replace(":", ".")
        logger.info("Multigrid replaces in PySlowFast: %s.", names)
        return cfg

    @property
    def schedule(self) -> list[tuple[int, list[int], int]]:
        """For each phase: learning-rate stage, [batch size, frames, crop], epochs until its end.

        The batch size is over all machines. If several phases end in the same epoch, only the first
        is listed.
        """
        phases = dict[int, tuple[int, list[int], int]]()
        for phase in self.multigrid.schedule.phases:
            shape = phase.base_shape
            end = bisect_left(self.multigrid.epoch_ends, phase.stop) + 1
            phases.setdefault(end, (phase.stage, [shape.batch, shape.frames, shape.crop], end))
        return list(phases.values())

    def update_long_cycle(self, cfg: Any, cur_epoch: int) -> tuple[Any, bool]:
        """Return the config, and False because nothing has to be rebuilt for another shape."""
        return cfg, False

    @property
    def rate(self) -> float:
        """Learning rate of the next iteration, or of the last one after the training."""
        schedule = self.multigrid.schedule
        return schedule.at(min(self.multigrid.training.iteration, schedule.iterations - 1)).lr

    @property
    def latest_iteration(self) -> int:
        """Index of the latest iteration that has begun, or 0."""
        return max(0, self.multigrid.training.iteration - 1)


class _EpochLoader:
    """Training loader of a fork. Each iteration over it is one epoch, after `start`.

    Other attributes, such as `dataset`, are those of the fork's loader for the baseline.
    """

    def __init__(self, multigrid: PySlowFastMultigrid, loader: DataLoader[Any]) -> None:
        self._multigrid = multigrid
        self._inner = loader
        self._epochs: Iterator[tuple[int, Epoch]] | None = None
        self._epoch: Epoch | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    def start(self, epoch: int) -> None:
        """Go to the start of an epoch.

        The mini-batches of consecutive epochs come from one pass over one loader, so that the
        workers of the loader stay alive during the whole training.
        """
        start = (0, *self._multigrid.epoch_ends)[epoch]
        if self._epochs is None or start != self._multigrid.training.iteration:
            names = ("collate_fn", "num_workers", "pin_memory", "worker_init_fn")
            options = {name: getattr(self._inner, name) for name in names}
            self._multigrid.resume(iteration=start)
            loader = self._multigrid.loader(self._inner.dataset, **options)
            self._epochs = self._multigrid.epochs(loader)
        _, self._epoch = next(self._epochs)

    def __len__(self) -> int:
        if self._epoch is None:
            return self._multigrid.longest_epoch
        return len(self._epoch)

    def __iter__(self) -> Iterator[Any]:
        assert self._epoch is not None, "shuffle_dataset(train_loader, cur_epoch) starts an epoch"
        return iter(self._epoch)


def _find(name: str) -> Callable[..., Any] | None:
    """Return a function or class of the package `slowfast`, such as "models.build:build_model".

    Returns:
        None if it is missing and in `_OPTIONAL`.

    Raises:
        ImportError: It is missing, and not in `_OPTIONAL`.
    """
    try:
        found: Callable[..., Any] = resolve_name(f"slowfast.{name}")
    except (AttributeError, ImportError) as error:
        if name in _OPTIONAL:
            return None
        missing = getattr(error, "name", None)
        if isinstance(error, ModuleNotFoundError) and not str(missing).startswith("slowfast."):
            raise ImportError(
                f"PySlowFast cannot be imported, because there is no module {missing}. Install it, "
                'or add the checkout to PYTHONPATH if it is slowfast itself. See "What the '
                'checkout needs" in docs/own_pyslowfast.md'
            ) from error
        where = resolve_name("slowfast").__path__[0]
        raise ImportError(
            f"The PySlowFast in {where} has no slowfast.{name.replace(':', '.')} ({error}), so "
            "multigrid cannot replace it. If this is not your checkout, add the checkout to "
            "PYTHONPATH. If it is, edit the training loop by hand, as docs/pyslowfast_by_hand.md "
            "shows"
        ) from error
    return found


def _places(names: Iterable[str]) -> list[Any]:
    """Return the objects whose attributes may be the functions `names` of the fork.

    For a method, this is its class. For functions, these are all modules that are imported.
    """
    owners = [name.rpartition(".")[0] for name in names]
    classes = [resolve_name(f"slowfast.{owner}") for owner in owners if ":" in owner]
    modules = [module for module in sys.modules.values() if isinstance(module, ModuleType)]
    return classes + modules
