"""Training step of PySlowFast 1.0 in a plain loop, with which all other variants are compared.

The step uses the unchanged model, head, loss and optimizer of pyslowfast 1.0. BN is nn.BatchNorm3d
over the whole batch, and float clips are copied to the device in each step. The head of a model
pools over a window whose size is fixed by the crop and the frames in the config, so each model can
be trained at one shape only. A separate model is therefore built for each shape.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from multigrid import Batch, ScheduleStep, Shape
from slowfast_patches import patching
from slowfast_patches.config.recipe import Recipe, pyslowfast_config
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.tasks import task_of
from slowfast_patches.train.step_timer import Mark
from steps.case import Steps

_STRIDE = 32
"""Factor by which PySlowFast's head assumes that the model downsamples the crop."""


def host_problem(recipe: Recipe) -> str | None:
    """Return the reason why PySlowFast cannot train a recipe, or None if PySlowFast can."""
    patching.apply()
    from slowfast.models.losses import _LOSSES
    from slowfast.models.model_builder import _MODEL_TYPES

    method = recipe.solver.optimizing_method
    loss = recipe.model.loss_func
    if _builder_name(recipe) not in _MODEL_TYPES:
        return f"pyslowfast 1.0 has no model {recipe.model.arch}"
    if loss not in _LOSSES or method not in ("sgd", "adam"):
        return f"pyslowfast 1.0 does not have both the loss {loss} and the optimizer {method}"
    return None


def _builder_name(recipe: Recipe) -> str:
    """Return the name of the model builder in PySlowFast.

    PySlowFast has no builders for the `_nopool` variants, so remove this suffix.
    """
    return recipe.model.arch.removesuffix("_nopool")


class HostBench(Steps):
    """Training step of PySlowFast 1.0, with a separate model for each (frames, crop)."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        from slowfast.models.losses import get_loss_func

        super().__init__(recipe, device)
        self._trained = dict[tuple[int, int], tuple[nn.Module, torch.optim.Optimizer]]()
        self._inputs = dict[tuple[int, ...], list[Tensor]]()
        self._to_floats = InputTransform.of_recipe(recipe, torch.device("cpu"))
        self._loss_function: nn.Module = get_loss_func(recipe.model.loss_func)(reduction="mean")

    def model_and_optimizer(self, step: ScheduleStep) -> tuple[nn.Module, torch.optim.Optimizer]:
        key = (step.shape.frames, step.shape.crop)
        if key not in self._trained:
            self._trained[key] = self._build(step.shape)
        return self._trained[key]

    def _build(self, shape: Shape) -> tuple[nn.Module, torch.optim.Optimizer]:
        from slowfast.models.model_builder import _MODEL_TYPES
        from slowfast.models.optimizer import construct_optimizer

        config = pyslowfast_config(self.recipe)
        config.DATA.NUM_FRAMES = shape.frames
        # Convolutions with a stride round the size of feature maps up.
        # PySlowFast rounds the window of the head down.
        # For crops of 158 and of 160, the last feature map is 5 pixels wide.
        # So build the head for 160 in both cases.
        config.DATA.CROP_SIZE = -(-shape.crop // _STRIDE) * _STRIDE
        model = _MODEL_TYPES[_builder_name(self.recipe)](config).to(self.device).train()
        return model, construct_optimizer(model, config)

    def _floats(self, batch: Batch) -> list[Tensor]:
        """Return the clips in the form of PySlowFast's loader: one float tensor per pathway."""
        key = tuple(batch["clips"].shape)
        if key not in self._inputs:
            tensors = self._to_floats(batch["clips"], batch["flips"])
            pinned = batch["clips"].is_pinned()
            self._inputs[key] = [x.pin_memory() if pinned else x for x in tensors]
        return self._inputs[key]

    def take(self, step: ScheduleStep, batch: Batch, mark: Mark) -> None:
        model, optimizer = self.model_and_optimizer(step)
        inputs = [x.to(self.device, non_blocking=True) for x in self._floats(batch)]
        task = task_of(self.recipe)
        labels = task.targets(batch, self.device)
        mark("input")
        for group in optimizer.param_groups:
            group["lr"] = step.lr
        scores = model(*task.arguments(batch, lambda clips, flips: inputs, self.device))
        classes = self.recipe.model.num_classes
        assert scores.shape[1] == classes, "the head's window must cover the feature map"
        loss = self._loss_function(scores, labels)
        mark("forward")
        optimizer.zero_grad()
        loss.backward()
        mark("backward")
        optimizer.step()
        mark("optimizer")
