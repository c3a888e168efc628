"""Run a PySlowFast model on every shape of a schedule, and adapt its average pools to them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.modules.utils import _triple

from multigrid.schedule import Schedule
from multigrid.shapes import Shape

logger = logging.getLogger(__name__)


def fit_model(model: nn.Module, cfg: Any, schedule: Schedule) -> None:
    """Make a model accept clips of every shape of a schedule.

    The model is run on one clip of each shape, in training mode and without gradients. An
    `nn.AvgPool3d` whose window covers its whole input at the baseline's shape is replaced by a pool
    for inputs of any size. Weights, buffers and random generators do not change.

    If the model cannot be run at the baseline's shape, its inputs probably have another format. In
    this case, log a warning and leave the model unchanged.

    Args:
        model: The model, which may be in a DistributedDataParallel.
        cfg: The config of the baseline.
        schedule: The schedule to train.

    Raises:
        ValueError: A module does not accept a shape of the schedule. The message names the module.
    """
    network = getattr(model, "module", model)
    latest: nn.Module = network
    pools = dict[nn.Module, nn.Module]()

    def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        nonlocal latest
        latest = module
        if type(module) is nn.AvgPool3d and _covers(module, inputs[0]):
            pools[module] = _TrainingPool(module.kernel_size, module.stride)

    with _training_without_updates(network), register_module_forward_pre_hook(note):
        try:
            _run(network, cfg, schedule.base)
        except Exception as error:
            logger.warning(
                "The model could not be run on a clip of the baseline's shape, so it was not "
                f"checked for the other shapes: {type(error).__name__}: {error}"
            )
            return
        for module in list(network.modules()):
            for name, child in module.named_children():
                setattr(module, name, pools.get(child, child))
        for shape in schedule.shapes:
            try:
                _run(network, cfg, shape)
            except Exception as error:
                names = {module: name for name, module in network.named_modules()}
                raise ValueError(
                    f"the model does not accept clips of {shape.frames} frames of {shape.crop}² "
                    f"pixels, a shape of the multigrid schedule: {error}. The last module called "
                    f"was {names[latest]} ({type(latest).__name__}). Use a model for clips of any "
                    "shape, or change the factors of the cycles in MULTIGRID"
                ) from error


def _covers(pool: nn.AvgPool3d, x: Tensor) -> bool:
    """Return whether the window of a pool covers each axis of its input, or a single value."""
    window = _triple(pool.kernel_size)
    axes = zip(window, x.shape[2:], strict=True)
    pools_without_padding = window != (1, 1, 1) and _triple(pool.padding) == (0, 0, 0)
    return pools_without_padding and all(side in (1, whole) for side, whole in axes)


@contextmanager
def _training_without_updates(network: nn.Module) -> Iterator[None]:
    """Context manager: training mode, but no gradients, BN updates or changes of generators."""
    modes = {module: module.training for module in network.modules()}
    for module in modes:
        module.training = not isinstance(module, _BatchNorm)
    try:
        with torch.no_grad(), torch.random.fork_rng():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _run(network: nn.Module, cfg: Any, shape: Shape) -> None:
    """Run a model on a clip."""
    counts = [shape.frames]
    if cfg.MODEL.ARCH in cfg.MODEL.MULTI_PATHWAY_ARCH:
        counts.insert(0, shape.frames // cfg.SLOWFAST.ALPHA)
    weight = next(network.parameters())
    pairs = zip(cfg.DATA.INPUT_CHANNEL_NUM, counts, strict=False)
    network([weight.new_zeros(1, planes, count, shape.crop, shape.crop) for planes, count in pairs])


class _TrainingPool(nn.AvgPool3d):
    """`nn.AvgPool3d` that pools over the whole feature map in training mode.

    Axes with a window of 1 are not pooled.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        sides = zip(input.shape[2:], _triple(self.kernel_size), strict=True)
        return F.avg_pool3d(input, [whole if side > 1 else 1 for whole, side in sides], 1)
