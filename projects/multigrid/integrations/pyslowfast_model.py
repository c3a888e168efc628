"""Run a PySlowFast model on every shape of a schedule, and adapt its average pools to them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.nn.modules.utils import _triple

from multigrid.integrations.pyslowfast_clips import arrays
from multigrid.integrations.pyslowfast_keys import get_key
from multigrid.schedule import Schedule
from multigrid.shapes import Shape

__all__ = ["fit_model", "warn_about_evaluation"]

logger = logging.getLogger(__name__)


def fit_model(model: nn.Module, cfg: Any, schedule: Schedule) -> None:
    """Make a model accept clips of every shape of a schedule.

    The model is run on one clip of each shape, in training mode and without gradients. An
    `nn.AvgPool3d` whose window covers its whole input at the baseline's shape is replaced by a pool
    for inputs of any size. Weights, buffers and random generators do not change.

    If the model cannot be run at the baseline's shape, it takes inputs of another kind. It then
    stays as it is, with a warning.

    Args:
        model: The model, which may be in a DistributedDataParallel.
        cfg: The config of the baseline.
        schedule: The schedule to train.

    Raises:
        ValueError: A module does not accept a shape of the schedule. The message names it.
    """
    network = getattr(model, "module", model)
    base = schedule.base
    sizes = {(shape.frames, shape.crop) for shape in schedule.shapes} - {(base.frames, base.crop)}
    trace = _Trace()
    with _training_without_updates(network), trace.recorded():
        try:
            expected = _run(network, cfg, base.frames, base.crop)
        except Exception as error:
            logger.warning(
                "The model could not be run on a clip of the baseline's shape, so it was not "
                f"checked for the other shapes: {type(error).__name__}: {error}"
            )
            return
        _replace(network, {pool: _TrainingPool(pool) for pool in trace.covering})
        for frames, crop in sorted(sizes):
            trace.running.clear()
            try:
                scores = _run(network, cfg, frames, crop)
            except Exception as error:
                raise ValueError(
                    f"{_described(network, trace.running)} does not accept clips of {frames} "
                    f"frames of {crop}² pixels, a shape of the multigrid schedule: {error}. Use a "
                    "model for clips of any shape, or change MULTIGRID.LONG_CYCLE_FACTORS and "
                    "SHORT_CYCLE_FACTORS"
                ) from error
            if scores != expected:
                raise ValueError(
                    f"the model returns scores of shape {scores} for clips of {frames} frames of "
                    f"{crop}² pixels, but {expected} at the baseline's shape. Pool over the whole "
                    "feature map in its head"
                )


def warn_about_evaluation(inputs: Any, coarse: Shape, base: Shape) -> None:
    """Warn if inputs of a model in evaluation mode have a coarse shape, not the baseline's."""
    clips = (tuple(array.shape[2:]) for array in arrays(inputs) if array.ndim == 5)
    sides = (coarse.frames, coarse.crop, coarse.crop)
    if sides != (base.frames, base.crop, base.crop) and max(clips, default=()) == sides:
        warnings.warn(
            f"The model is evaluated on clips of {coarse.frames} frames of {coarse.crop}² pixels "
            f"instead of the baseline's {base.frames} frames of {base.crop}². Iterate over "
            "validation loaders within evaluation(cfg) of PySlowFastMultigrid.",
            stacklevel=2,
        )


class _Trace:
    """Record of a forward pass.

    Attributes:
        running: Modules whose forward has begun and not ended, innermost last.
        covering: Average pools whose window covered their whole input.
    """

    def __init__(self) -> None:
        self.running = list[nn.Module]()
        self.covering = dict[nn.AvgPool3d, None]()

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Context manager: record the forward passes of all modules."""
        with (
            register_module_forward_pre_hook(self._begin),
            register_module_forward_hook(lambda *_: self._end()),
        ):
            yield

    def _begin(self, module: nn.Module, inputs: Any) -> None:
        self.running.append(module)
        if type(module) is nn.AvgPool3d:
            window = _triple(module.kernel_size)
            sides = zip(window, inputs[0].shape[2:], strict=True)
            unpadded = _triple(module.padding) == (0, 0, 0) and window != (1, 1, 1)
            if unpadded and all(side in (1, whole) for side, whole in sides):
                self.covering[module] = None

    def _end(self) -> None:
        self.running.pop()


@contextmanager
def _training_without_updates(network: nn.Module) -> Iterator[None]:
    """Context manager: training mode, but no gradients, BN updates or changes of generators."""
    modes = {module: module.training for module in network.modules()}
    device = next(network.parameters()).device
    network.train()
    for module in modes:
        if isinstance(module, _BatchNorm):
            module.eval()
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.no_grad(), torch.random.fork_rng(devices):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _run(network: nn.Module, cfg: Any, frames: int, crop: int) -> tuple[int, ...] | None:
    """Run a model on a clip, and return the shape of its output if that is a tensor.

    Raises:
        ValueError: The slow pathway has no frame.
    """
    weight = next(network.parameters())
    counts = [frames]
    if get_key(cfg, "MODEL.ARCH") in get_key(cfg, "MODEL.MULTI_PATHWAY_ARCH", ()):
        alpha = cfg.SLOWFAST.ALPHA
        if frames < alpha:
            raise ValueError(f"SLOWFAST.ALPHA {alpha} leaves no frame to the slow pathway")
        counts = [frames // alpha, frames]
    channels = get_key(cfg, "DATA.INPUT_CHANNEL_NUM", [3, 3])
    pathways = [
        weight.new_zeros(1, planes, count, crop, crop)
        for planes, count in zip(channels, counts, strict=False)
    ]
    boxes = [weight.new_tensor([[0, 0, 0, crop, crop]])]
    detects = get_key(cfg, "DETECTION.ENABLE", False)
    scores = network(pathways, *boxes if detects else ())
    return tuple(scores.shape) if isinstance(scores, Tensor) else None


def _replace(network: nn.Module, replacements: dict[Any, nn.Module]) -> None:
    for module in list(network.modules()):
        for name, child in module.named_children():
            if child in replacements:
                setattr(module, name, replacements[child])


def _described(network: nn.Module, running: list[nn.Module]) -> str:
    """Return the name and the class of the innermost running module."""
    innermost = running[-1] if running else network
    names = {module: name for name, module in network.named_modules()}
    name = f"module {names[innermost]}" if names.get(innermost) else "the model"
    return f"{name} ({type(innermost).__name__})"


class _TrainingPool(nn.AvgPool3d):
    """`nn.AvgPool3d` that pools over the whole feature map in training mode.

    Axes with a window of 1 are not pooled.
    """

    def __init__(self, pool: nn.AvgPool3d) -> None:
        super().__init__(pool.kernel_size, pool.stride)

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        sides = zip(input.shape[2:], _triple(self.kernel_size), strict=True)
        return F.avg_pool3d(input, [whole if side > 1 else 1 for whole, side in sides], 1)
