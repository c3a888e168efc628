"""Multigrid training in the unchanged training script of a later PySlowFast release."""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from multigrid.batchnorm import average_running_stats
from multigrid.integrations.pyslowfast_keys import (
    add_multigrid_config,
    baseline_config,
    use_plain_batchnorm,
    uses_multigrid,
)
from multigrid.integrations.pyslowfast_loop import Epoch, PySlowFastMultigrid

logger = logging.getLogger(__name__)


def enable() -> None:
    """Let the training script of a later PySlowFast release train the multigrid schedule.

    The script, data sets, models, launcher, meters, checkpoints, evaluation and test stay those of
    the fork. The keys of `cfg.MULTIGRID` keep their meaning. Without a cycle, everything is
    unchanged. These names of the package `slowfast` are replaced, in all modules that have them:

    | name | with a cycle |
    |---|---|
    | config.defaults.get_cfg | adds the keys that only multigrid has |
    | utils.multigrid.MultigridSchedule | builds the schedule from config and data set |
    | datasets.loader.construct_loader | training: clips of the schedule; others: the baseline's |
    | datasets.loader.shuffle_dataset | starts the epoch |
    | models.build.build_model | converts the model (`PySlowFastMultigrid.convert`) |
    | models.optimizer.get_epoch_lr | returns the learning rate of the schedule |
    | models.optimizer.set_lr | begins the iteration, with the original's factors by layer |
    | utils.misc.aggregate_sub_bn_stats | averages BN running statistics over processes |

    Call this before the script imports from `slowfast`. A second call does nothing.

    Raises:
        ImportError: The installed PySlowFast has not all of these names.
    """
    _Fork().install()


class _Fork:
    """State of multigrid training in a fork, and the functions that replace those of the fork."""

    def __init__(self) -> None:
        self._multigrid: PySlowFastMultigrid | None = None
        self._loader: Any = None
        self._replacements: dict[str, Callable[..., Any]] = {
            "config.defaults.get_cfg": self._get_cfg,
            "utils.multigrid.MultigridSchedule": lambda: self,
            "datasets.loader.construct_loader": self._construct_loader,
            "datasets.loader.shuffle_dataset": self._shuffle_dataset,
            "models.build.build_model": self._build_model,
            "models.optimizer.get_epoch_lr": self._get_epoch_lr,
            "models.optimizer.set_lr": self._set_lr,
            "utils.misc.aggregate_sub_bn_stats": self._aggregate_sub_bn_stats,
        }
        self._host = {name: _find(name) for name in self._replacements}

    def install(self) -> None:
        """Replace the functions of the fork, unless `enable` has done so before."""
        if isinstance(getattr(self._host["models.build.build_model"], "__self__", None), _Fork):
            return
        for name, replacement in self._replacements.items():
            for module in [m for m in sys.modules.values() if isinstance(m, ModuleType)]:
                for alias, value in list(vars(module).items()):
                    if value is self._host[name]:
                        setattr(module, alias, replacement)

    def _get_cfg(self) -> Any:
        cfg = self._host["config.defaults.get_cfg"]()
        add_multigrid_config(cfg)
        return cfg

    def init_multigrid(self, cfg: Any) -> Any:
        """Build the schedule and the training loader for a config, and return the config."""
        use_plain_batchnorm(cfg)
        loader = self._host["datasets.loader.construct_loader"](baseline_config(cfg), "train")
        self._multigrid = PySlowFastMultigrid(cfg, len(loader.dataset))
        self._loader = _EpochLoader(self._multigrid, loader)
        logger.info("Multigrid replaces in PySlowFast: %s.", ", ".join(self._replacements))
        return cfg

    @property
    def schedule(self) -> list[tuple[int, list[int], int]]:
        """For each phase: learning-rate stage, [batch size, frames, crop], epochs until its end.

        The batch size is over all machines. Of the phases that end in one epoch, the first is
        listed.
        """
        assert self._multigrid is not None
        phases = dict[int, tuple[int, list[int], int]]()
        for phase in self._multigrid.schedule.phases:
            shape = phase.base_shape
            end = bisect_left(self._multigrid.epoch_ends, phase.stop) + 1
            phases.setdefault(end, (phase.stage, [shape.batch, shape.frames, shape.crop], end))
        return list(phases.values())

    def update_long_cycle(self, cfg: Any, cur_epoch: int) -> tuple[Any, bool]:
        """Return the config, and False because nothing has to be rebuilt for another shape."""
        return cfg, False

    def _construct_loader(
        self, cfg: Any, split: str, is_precise_bn: bool = False, **options: Any
    ) -> Any:
        if self._multigrid is not None:
            if split == "train" and not is_precise_bn:
                return self._loader
            cfg = baseline_config(cfg)
        construct = self._host["datasets.loader.construct_loader"]
        return construct(cfg, split, is_precise_bn=is_precise_bn, **options)

    def _shuffle_dataset(self, loader: Any, cur_epoch: int) -> None:
        if isinstance(loader, _EpochLoader):
            loader.start(cur_epoch)
        else:
            self._host["datasets.loader.shuffle_dataset"](loader, cur_epoch)

    def _build_model(self, cfg: Any, *place: Any, **options: Any) -> nn.Module:
        if uses_multigrid(cfg):
            use_plain_batchnorm(cfg)
        model: nn.Module = self._host["models.build.build_model"](cfg, *place, **options)
        if self._multigrid is None or self._multigrid.training.model is not None:
            return model
        return self._multigrid.convert(model)

    def _get_epoch_lr(self, cur_epoch: float, cfg: Any) -> float:
        if self._multigrid is None:
            rate: float = self._host["models.optimizer.get_epoch_lr"](cur_epoch, cfg)
            return rate
        schedule = self._multigrid.schedule
        return schedule.at(min(self._multigrid.training.iteration, schedule.iterations - 1)).lr

    def _set_lr(self, optimizer: Optimizer, new_lr: float) -> None:
        set_lr = self._host["models.optimizer.set_lr"]
        if self._multigrid is None:
            set_lr(optimizer, new_lr)
        else:
            self._multigrid.begin(optimizer, set_lr)

    def _aggregate_sub_bn_stats(self, module: nn.Module) -> Any:
        if self._multigrid is not None:
            average_running_stats(module)
        return self._host["utils.misc.aggregate_sub_bn_stats"](module)


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


def _find(name: str) -> Callable[..., Any]:
    """Return an object of the package `slowfast`.

    Raises:
        ImportError: There is no such object.
    """
    module, _, attribute = name.rpartition(".")
    try:
        found: Callable[..., Any] = resolve_name(f"slowfast.{module}:{attribute}")
    except (AttributeError, ModuleNotFoundError) as error:
        raise ImportError(
            f"This PySlowFast has no slowfast.{name} ({error}), so multigrid cannot replace it. "
            "Edit the training loop by hand, as docs/pyslowfast_by_hand.md shows."
        ) from error
    return found
