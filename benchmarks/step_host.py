"""The host's own model and a plain loop around it, which everything else is relative to.

The code of pyslowfast 1.0 as it is: its model with nn.BatchNorm3d over the batch, its head, its
loss, its optimizer, from float clips that are copied to the device in each step. Its head pools
over a window that the config's crop and frames fix, so it trains at one shape only: here every
shape has its own model, built for it.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import torch
from fvcore.common.config import CfgNode
from step_bench import Steps, kept_bytes
from step_clock import Mark
from torch import Tensor, nn

from multigrid import Batch, Shape, Step
from slowfast_patches import patching
from slowfast_patches.models.inputs import InputTransform

__all__ = ["HostBench", "HostModels", "host_problem"]

_STRIDE = 32
"""What the host's head takes the strides of its network to be, in pixels."""


def host_problem(cfg: CfgNode) -> str | None:
    """Why the host's own code cannot train a recipe; None where it can."""
    patching.apply()
    from slowfast.models.losses import _LOSSES
    from slowfast.models.model_builder import _MODEL_TYPES

    if _builder_name(cfg) not in _MODEL_TYPES:
        return f"the host has no model {cfg.MODEL.ARCH}"
    if cfg.MODEL.LOSS_FUNC not in _LOSSES:
        return f"the host has no loss {cfg.MODEL.LOSS_FUNC}"
    if cfg.SOLVER.OPTIMIZING_METHOD not in ("sgd", "adam"):
        return f"the host has no optimizer {cfg.SOLVER.OPTIMIZING_METHOD}"
    # The stem halves the sides twice.
    if any(
        4 * prod(pathway) != _STRIDE for pathway in zip(*cfg.RESNET.SPATIAL_STRIDES, strict=True)
    ):
        return f"the host's head counts on strides of {_STRIDE} pixels in all"
    return None


def _builder_name(cfg: CfgNode) -> str:
    """The name that the host has in its table of builders: it leaves out those without a pool."""
    return str(cfg.MODEL.ARCH).removesuffix("_nopool")


class _Trained(NamedTuple):
    model: nn.Module
    optimizer: torch.optim.Optimizer


class HostModels:
    """The host's models of a recipe, one for each shape, with optimizers and clips."""

    def __init__(self, cfg: CfgNode, device: torch.device) -> None:
        self.cfg, self.device = cfg, device
        self._trained: dict[tuple[int, int], _Trained] = {}
        self._inputs: dict[tuple[int, ...], list[Tensor]] = {}
        self._to_floats = InputTransform.from_config(cfg, torch.device("cpu"))

    def at(self, shape: Shape) -> _Trained:
        """The model that trains on (frames, crop) of a shape, and its optimizer."""
        key = (shape.frames, shape.crop)
        if key not in self._trained:
            self._trained[key] = self._build(shape)
        return self._trained[key]

    def _build(self, shape: Shape) -> _Trained:
        from slowfast.models.model_builder import _MODEL_TYPES
        from slowfast.models.optimizer import construct_optimizer

        cfg = self.cfg.clone()
        cfg.defrost()
        cfg.DATA.NUM_FRAMES = shape.frames
        # Strided convolutions round up where the head's window rounds down: 158 pixels are 5 at the
        # end, and so are 160.
        cfg.DATA.CROP_SIZE = -(-shape.crop // _STRIDE) * _STRIDE
        model = _MODEL_TYPES[_builder_name(cfg)](cfg).to(self.device).train()
        return _Trained(model, construct_optimizer(model, cfg))

    def forget(self) -> None:
        """Give back gradients, and what else a step that broke off has left behind."""
        for trained in self._trained.values():
            trained.optimizer.zero_grad()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def inputs(self, batch: Batch) -> list[Tensor]:
        """The clips of a batch as the host's loader gives them: float, a tensor each pathway."""
        key = tuple(batch["clips"].shape)
        if key not in self._inputs:
            tensors = self._to_floats(batch["clips"], batch["flips"])
            if batch["clips"].is_pinned():
                tensors = [tensor.pin_memory() for tensor in tensors]
            self._inputs[key] = tensors
        return self._inputs[key]


class HostBench(Steps):
    """The host's models and a plain loop."""

    def __init__(self, cfg: CfgNode, device: torch.device, models: HostModels) -> None:
        from slowfast.models.losses import get_loss_func

        super().__init__(cfg, device)
        self.models = models
        self.loss_function: nn.Module = get_loss_func(cfg.MODEL.LOSS_FUNC)(reduction="mean")

    def take(self, step: Step, batch: Batch, mark: Mark) -> None:
        model, optimizer = self.models.at(step.shape)
        inputs = [x.to(self.device, non_blocking=True) for x in self.models.inputs(batch)]
        labels = batch["labels"].to(self.device, non_blocking=True)
        mark("input")
        for group in optimizer.param_groups:
            group["lr"] = step.lr
        scores = model(inputs)
        assert scores.shape[1] == self.cfg.MODEL.NUM_CLASSES, "the head's window is not the map's"
        loss = self.loss_function(scores, labels)
        mark("forward")
        optimizer.zero_grad()
        loss.backward()
        mark("backward")
        optimizer.step()
        mark("optimizer")

    def record(self, step: Step, batch: Batch) -> None:
        """Nothing of the host's loop is replayed."""

    def forget(self) -> None:
        self.models.forget()

    def precision_name(self) -> str:
        return "float32"

    def kept_bytes(self, step: Step) -> int:
        return kept_bytes(*self.models.at(step.shape))
