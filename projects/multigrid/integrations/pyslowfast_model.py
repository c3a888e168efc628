"""Run a PySlowFast model on every shape of a schedule, and adapt its average pools to them."""

from __future__ import annotations

import copy
import logging
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.utils import _triple

from multigrid.errors import MultigridError
from multigrid.schedule import Schedule
from multigrid.shapes import Shape

logger = logging.getLogger(__name__)

_OF_SHAPES = (RuntimeError, ValueError, IndexError, AssertionError)
"""Exceptions by which layers refuse a shape. A model raises others for its own bugs."""


def fit_model(model: nn.Module, cfg: Any, schedule: Schedule) -> None:
    """Make a model accept clips of every shape of a schedule.

    A copy of the model is run on one clip of each shape, in training mode and without gradients. An
    `nn.AvgPool3d` whose window covers its whole input at the baseline's shape is replaced by a pool
    for inputs of any size. Weights, buffers and random generators do not change.

    If the model cannot be run at the baseline's shape, its inputs probably have another format. In
    this case, log a warning and leave the model unchanged.

    Args:
        model: The model, which may be in a DistributedDataParallel.
        cfg: The config of the baseline.
        schedule: The schedule to train.

    Raises:
        ValueError: The model does not accept a shape of the schedule.
    """
    network = getattr(model, "module", model)
    try:
        pools = _whole_map_pools(network, cfg, schedule.base)
    except (MultigridError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # A model may raise any exception for inputs of another format.
        logger.warning(
            "The model could not be run on a clip of the baseline's shape, so it was not "
            f"checked for the other shapes: {type(error).__name__}: {error}"
        )
        return
    for name in pools:
        parent, _, child = name.rpartition(".")
        pool: Any = network.get_submodule(name)
        replacement = _TrainingPool(pool.kernel_size, pool.stride)
        setattr(network.get_submodule(parent), child, replacement)
    probe = _copy_to_probe(network)
    for shape in schedule.shapes:
        try:
            _run(probe, cfg, shape)
        except torch.OutOfMemoryError:
            raise
        except _OF_SHAPES as error:
            raise MultigridError(
                f"the model does not accept clips of {shape.frames} frames of {shape.crop}² "
                f"pixels, a shape of the multigrid schedule: {error}. Use a model for clips of any "
                "shape, or change the factors of the cycles in MULTIGRID"
            ) from error


def _whole_map_pools(network: nn.Module, cfg: Any, shape: Shape) -> list[str]:
    """Return the names of the average pools whose window covers their input at a shape."""
    names = list[str]()

    def note(name: str, pool: nn.AvgPool3d, inputs: tuple[Tensor]) -> None:
        window = _triple(pool.kernel_size)
        axes = zip(window, inputs[0].shape[2:], strict=True)
        pools_without_padding = window != (1, 1, 1) and _triple(pool.padding) == (0, 0, 0)
        if pools_without_padding and all(side in (1, whole) for side, whole in axes):
            names.append(name)

    probe = _copy_to_probe(network)
    for name, module in probe.named_modules():
        if type(module) is nn.AvgPool3d:
            module.register_forward_pre_hook(partial(note, name))
    _run(probe, cfg, shape)
    return names


def _copy_to_probe(network: nn.Module) -> nn.Module:
    """Return a copy of a model in training mode, except BN, which cannot train on a single clip."""
    probe = copy.deepcopy(network)
    for module in probe.modules():
        module.training = not isinstance(module, _BatchNorm)
    return probe


def _run(network: nn.Module, cfg: Any, shape: Shape) -> None:
    """Run a model on a clip, without gradients or changes of the random generators."""
    counts = [shape.frames]
    if cfg.MODEL.ARCH in cfg.MODEL.MULTI_PATHWAY_ARCH:
        counts.insert(0, shape.frames // cfg.SLOWFAST.ALPHA)
    weight = next(network.parameters())
    pairs = zip(cfg.DATA.INPUT_CHANNEL_NUM, counts, strict=False)
    with torch.no_grad(), torch.random.fork_rng():
        network(
            [weight.new_zeros(1, planes, count, shape.crop, shape.crop) for planes, count in pairs]
        )


class _TrainingPool(nn.AvgPool3d):
    """`nn.AvgPool3d` that pools over the whole feature map in training mode.

    Axes with a window of 1 are not pooled.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        sides = zip(input.shape[2:], _triple(self.kernel_size), strict=True)
        return F.avg_pool3d(input, [whole if side > 1 else 1 for whole, side in sides], 1)
