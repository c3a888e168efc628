"""The host's own model and a plain loop around it, which everything else is relative to.

The code of pyslowfast 1.0 as it is: its model with nn.BatchNorm3d over the batch, its head, its
loss, its optimizer, from float clips that are copied to the device in each step. Its head pools
over a window that the config's crop and frames fix, so it trains at one shape only: here every
shape has its own model, built for it.
"""

from __future__ import annotations

import torch
from common import Mark
from torch import Tensor, nn

from multigrid import Batch, Shape, Step
from slowfast_patches import patching
from slowfast_patches.config.recipe import Recipe, host_config
from slowfast_patches.models.inputs import InputTransform, head_inputs
from steps.case import Steps

__all__ = ["HostBench", "host_problem"]

_STRIDE = 32
"""What the host's head takes the strides of its network to be, in pixels."""


def host_problem(recipe: Recipe) -> str | None:
    """Why the host's own code cannot train a recipe; None where it can."""
    patching.apply()
    from slowfast.models.losses import _LOSSES
    from slowfast.models.model_builder import _MODEL_TYPES

    method = recipe.solver.optimizing_method
    loss = recipe.model.loss_func
    if _builder_name(recipe) not in _MODEL_TYPES:
        return f"the host has no model {recipe.model.arch}"
    if loss not in _LOSSES or method not in ("sgd", "adam"):
        return f"the host does not have both the loss {loss} and the optimizer {method}"
    return None


def _builder_name(recipe: Recipe) -> str:
    """The name that the host has in its table of builders: it leaves out those without a pool."""
    return recipe.model.arch.removesuffix("_nopool")


class HostBench(Steps):
    """The host's models, by (frames, crop), and a plain loop on float clips, kept by their size."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        from slowfast.models.losses import get_loss_func

        super().__init__(recipe, device)
        self._trained = dict[tuple[int, int], tuple[nn.Module, torch.optim.Optimizer]]()
        self._inputs = dict[tuple[int, ...], list[Tensor]]()
        self._to_floats = InputTransform.of_recipe(recipe, torch.device("cpu"))
        self._loss_function: nn.Module = get_loss_func(recipe.model.loss_func)(reduction="mean")

    def trained(self, step: Step) -> tuple[nn.Module, torch.optim.Optimizer]:
        key = (step.shape.frames, step.shape.crop)
        if key not in self._trained:
            self._trained[key] = self._build(step.shape)
        return self._trained[key]

    def _build(self, shape: Shape) -> tuple[nn.Module, torch.optim.Optimizer]:
        from slowfast.models.model_builder import _MODEL_TYPES
        from slowfast.models.optimizer import construct_optimizer

        config = host_config(self.recipe)
        config.DATA.NUM_FRAMES = shape.frames
        # Strided convolutions round up where the head's window rounds down: 158 pixels are 5 at the
        # end, and so are 160.
        config.DATA.CROP_SIZE = -(-shape.crop // _STRIDE) * _STRIDE
        model = _MODEL_TYPES[_builder_name(self.recipe)](config).to(self.device).train()
        return model, construct_optimizer(model, config)

    def _floats(self, batch: Batch) -> list[Tensor]:
        """The clips of a batch as the host's loader gives them: float, a tensor each pathway."""
        key = tuple(batch["clips"].shape)
        if key not in self._inputs:
            tensors = self._to_floats(batch["clips"], batch["flips"])
            pinned = batch["clips"].is_pinned()
            self._inputs[key] = [x.pin_memory() if pinned else x for x in tensors]
        return self._inputs[key]

    def take(self, step: Step, batch: Batch, mark: Mark) -> None:
        model, optimizer = self.trained(step)
        inputs = [x.to(self.device, non_blocking=True) for x in self._floats(batch)]
        labels = batch["labels"].to(self.device, non_blocking=True)
        mark("input")
        for group in optimizer.param_groups:
            group["lr"] = step.lr
        scores = model(inputs, *head_inputs(batch, self.device))
        classes = self.recipe.model.num_classes
        assert scores.shape[1] == classes, "the head's window is not the map's"
        loss = self._loss_function(scores, labels)
        mark("forward")
        optimizer.zero_grad()
        loss.backward()
        mark("backward")
        optimizer.step()
        mark("optimizer")
