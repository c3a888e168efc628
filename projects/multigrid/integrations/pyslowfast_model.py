"""Run a PySlowFast model on every shape of a schedule, and adapt its average pools to them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.modules.utils import _triple

from multigrid.integrations.pyslowfast_clips import arrays
from multigrid.integrations.pyslowfast_keys import get_key
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
    latest = list[nn.Module]()
    pools = dict[nn.Module, nn.Module]()

    def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        latest[:] = [module]
        if type(module) is nn.AvgPool3d and _covers(module, inputs[0]):
            pools[module] = _TrainingPool(module)

    with _training_without_updates(network), register_module_forward_pre_hook(note):
        try:
            expected = _run(network, cfg, schedule.base)
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
            clips = f"clips of {shape.frames} frames of {shape.crop}² pixels"
            try:
                scores = _run(network, cfg, shape)
            except Exception as error:
                names = {module: name for name, module in network.named_modules()}
                raise ValueError(
                    f"the model does not accept {clips}, a shape of the multigrid schedule: "
                    f"{error}. The last module called was {names[latest[0]]} "
                    f"({type(latest[0]).__name__}). Use a model for clips of any shape, or change "
                    "the factors of the cycles in MULTIGRID"
                ) from error
            if scores != expected:
                raise ValueError(
                    f"the model returns scores of shape {scores} for {clips}, but {expected} at "
                    "the baseline's shape. Pool over the whole feature map in its head"
                )


@dataclass
class CoarseEvaluationHook:
    """Forward pre-hook that warns if a model in evaluation mode gets clips of a coarse shape.

    Attributes:
        base: The baseline's shape.
        current: Shape of the current phase.
    """

    base: Shape
    current: Shape

    def __call__(self, model: nn.Module, inputs: Any) -> None:
        shape = self.current
        clips = (array.shape[2:] for array in arrays(inputs) if array.ndim == 5)
        sides = (shape.frames, shape.crop, shape.crop)
        is_coarse = sides[:2] != (self.base.frames, self.base.crop)
        if not model.training and is_coarse and max(clips, default=()) == sides:
            warnings.warn(
                f"The model is evaluated on clips of {shape.frames} frames of {shape.crop}² pixels "
                f"instead of the baseline's {self.base.frames} frames of {self.base.crop}². "
                "Iterate over validation loaders within evaluation(cfg) of PySlowFastMultigrid.",
                stacklevel=2,
            )


def _covers(pool: nn.AvgPool3d, x: Tensor) -> bool:
    """Return whether the window of a pool covers each axis of its input, or a single value."""
    window = _triple(pool.kernel_size)
    axes = zip(window, x.shape[2:], strict=True)
    unpadded = _triple(pool.padding) == (0, 0, 0) and window != (1, 1, 1)
    return unpadded and all(side in (1, whole) for side, whole in axes)


@contextmanager
def _training_without_updates(network: nn.Module) -> Iterator[None]:
    """Context manager: training mode, but no gradients, BN updates or changes of generators."""
    modes = {module: module.training for module in network.modules()}
    device = next(network.parameters()).device
    for module in modes:
        module.training = not isinstance(module, _BatchNorm)
    try:
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _run(network: nn.Module, cfg: Any, shape: Shape) -> tuple[int, ...] | None:
    """Run a model on a clip, and return the shape of its output if that is a tensor."""
    weight = next(network.parameters())
    counts = [shape.frames]
    if get_key(cfg, "MODEL.ARCH") in get_key(cfg, "MODEL.MULTI_PATHWAY_ARCH", ()):
        counts.insert(0, shape.frames // cfg.SLOWFAST.ALPHA)
    channels = get_key(cfg, "DATA.INPUT_CHANNEL_NUM", [3, 3])
    pathways = [
        weight.new_zeros(1, planes, count, shape.crop, shape.crop)
        for planes, count in zip(channels, counts, strict=False)
    ]
    regions = [weight.new_tensor([[0, 0, 0, shape.crop, shape.crop]])]
    detects = get_key(cfg, "DETECTION.ENABLE", False)
    scores = network(pathways, *regions if detects else ())
    return tuple(scores.shape) if isinstance(scores, Tensor) else None


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
