"""Training steps with any clip shape: forward, backward and optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from multigrid import Batch, ScheduleStep
from multigrid.compiled import check_cuda_graphs
from multigrid.micro_batches import MicroBatch, divide
from multigrid.step_state import StepState
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.average import AverageUpdate, start_average
from slowfast_patches.models.freeze import freeze
from slowfast_patches.models.inputs import InputTransform, send_together
from slowfast_patches.models.layers.dropout import ClipDropout, seed_masks
from slowfast_patches.models.recompute import checkpoint_blocks
from slowfast_patches.models.solver import (
    LoweredWeights,
    autocast,
    build_optimizer,
    clip_gradients,
    grad_scaler,
    half_type,
    is_mixed,
    load_optimizer,
)
from slowfast_patches.seams import BATCH_TRANSFORMS
from slowfast_patches.tasks import task_of
from slowfast_patches.train.parallel import check_gradients, gradient_exchange


class Outcome(NamedTuple):
    """Loss, logits and labels of a training step, on the device of the model.

    Attributes:
        loss: Sum of the losses of this process's rows, divided by the mean number of rows per
            process. A scalar. By default, each clip has one row.
        logits: Logits of the N rows, (N, C), by micro-batch.
        labels: Class indices (N,). Multi-hot or weighted labels have the shape (N, C).
        failures: (path, reason) of each unreadable video.
        resampled: Number of clips whose crop was drawn again, because it showed no target.
        failed_epochs: The epoch of each of the failures, if the data set gives them.
    """

    loss: Tensor
    logits: Tensor
    labels: Tensor
    failures: Sequence[tuple[str, str]] = ()
    resampled: int = 0
    failed_epochs: Sequence[int] = ()


def _unmarked(stage: str) -> None:
    """Do nothing. This is the default of `mark`, for steps that are not timed."""


class Stepper:
    """A model together with its loss, optimizer, gradient scaler and averaged weights.

    Each step may have a different clip shape.

    Attributes:
        model: The model on `device`. With MODEL.ACT_CHECKPOINT, its blocks recompute activations.
            Parameters that TRAIN.FREEZE names have no gradients. The names in the state dict do not
            depend on these settings.
        network: The module to call in a forward pass: `model`, the compiled model, or a DDP wrapper
            of either.
        accumulation_steps: Number of micro-batches into which the clips of this process are
            divided. Each consists of whole BN groups (`multigrid.micro_batches.divide`).
        state: Owner of what changes in the model and the optimizer from step to step.
        average: Model with the exponential moving average of the weights, or None without
            MODEL.EMA_DECAY.
        models: `model`, followed by `average` if there is one.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        device: torch.device,
        label_counts: Sequence[int] | None = None,
    ) -> None:
        """Prepare a model for training.

        Args:
            recipe: The recipe of the training.
            model: The model, on `device`.
            device: The device to train on.
            label_counts: Number of training videos of each class, for SOLVER.CLASS_WEIGHTS. If
                None, classes have equal weights.
        """
        self.recipe = recipe
        self.model = model
        self.device = device
        self.accumulation_steps: int = recipe.solver.accumulation_steps
        freeze(model, recipe.train.freeze)
        self.state = StepState(model, is_compiled=bool(recipe.train.compile))
        self.average: nn.Module | None = None
        self._update_average: AverageUpdate | None = None
        if decay := recipe.model.ema_decay:
            self.average = start_average(model)
            self._update_average = AverageUpdate(self.average, model, decay)
        self.models = nn.ModuleList(filter(None, [model, self.average]))
        if recipe.model.act_checkpoint:
            checkpoint_blocks(model)
        # A compiled model casts its weights itself, because the compiler fuses the casts.
        casts = is_mixed(recipe) and recipe.model.spec.is_cast and not recipe.train.compile
        self._lowered = LoweredWeights(self.state.modules if casts else (), half_type(device))
        self.network = compiled(model, recipe.train.compile) if recipe.train.compile else model
        self.transform = InputTransform.of_recipe(recipe, device)
        self.scaler = grad_scaler(recipe, device)
        # Other implementations wait for the GPU to check that the scaled gradients are finite.
        self.optimizer = build_optimizer(recipe, model, fused=self.scaler.is_enabled())
        self._task = task_of(recipe)
        self._loss_function = self._task.loss(label_counts).to(device)
        self._transforms = [t.build(recipe) for t in BATCH_TRANSFORMS if recipe[t.switch]]
        self._has_batchnorm = recipe.model.has_batchnorm
        self._unit = torch.ones((), device=device)  # the gradient of the loss

    def __call__(
        self,
        step: ScheduleStep,
        batch: Batch,
        clips: Sequence[int] | None = None,
        mark: Callable[[str], None] = _unmarked,
    ) -> Outcome:
        """Train for one iteration on the clips of this process.

        On a GPU, the call returns when all kernels are queued, before they have finished.

        Args:
            step: The shape, learning rate and BN group size of the iteration.
            batch: The mini-batch of this process, from the loader.
            clips: Indices of the clips in the data stream, which seed dropout and the changes of
                mini-batches. By default, those from `step.first_clip` on.
            mark: Function to call with the name of each stage whose kernels have been queued. The
                names are "input", "forward" and "backward" for each micro-batch, then "optimizer".

        Returns:
            The loss, logits and labels of this process.
        """
        outcome = self.forward_backward(step, batch, clips, mark)
        self.update()
        mark("optimizer")
        return outcome

    def update(self) -> None:
        """Take the optimizer step with the gradients of `forward_backward`, and average."""
        self.scaler.unscale_(self.optimizer)
        clip_gradients(self.recipe, self.model)
        self.scaler.step(self.optimizer)  # skips the update if a scaled gradient overflowed
        self.scaler.update()
        if self._update_average is not None:
            self._update_average()

    def forward_backward(
        self,
        step: ScheduleStep,
        batch: Batch,
        clips: Sequence[int] | None = None,
        mark: Callable[[str], None] = _unmarked,
    ) -> Outcome:
        """Run the forward and backward passes of a step without the optimizer step.

        Gradients and running statistics change. See `__call__` for the arguments.
        """
        self.state.prepare(step, self.optimizer)
        self.state.train(self.network)
        # Free the gradients before the forward pass to lower the peak memory.
        self.optimizer.zero_grad(set_to_none=True)
        rows = self._task.loss_normalizer(batch, self.device)
        count = len(batch["clips"])
        clips = clips or range(step.first_clip, step.first_clip + count)
        size = step.bn_group_size if self._has_batchnorm else None
        outcomes = list[tuple[Tensor, Tensor, Tensor]]()
        with self.state.step(), self._lowered.lowered():
            gradients = _GradientSum(self.optimizer)
            for micro_batch in self._micro_batches(batch, size):
                numbers = [clips[i] for i in micro_batch.clips]
                outcomes.append(self._pass(micro_batch, numbers, rows, mark))
                is_parallel = isinstance(self.network, DistributedDataParallel)
                if self.accumulation_steps > 1 and not is_parallel:
                    gradients.add(is_last=micro_batch.is_last)
        if isinstance(self.network, DistributedDataParallel):
            check_gradients(self.model)
        losses, logits, labels = map(_joined, zip(*outcomes, strict=True))
        loss = losses.mean() if len(outcomes) > 1 else losses[0]
        told = cast(Any, batch)
        counts = (told.get("resampled", 0), told.get("failed_epochs", ()))
        return Outcome(loss, logits, labels, batch["failures"], *counts)

    def _micro_batches(self, batch: Batch, group_size: int | None) -> Iterable[MicroBatch]:
        count = len(batch["clips"])
        if self.accumulation_steps == 1:
            return [MicroBatch(dict(batch), 1.0, True, list(range(count)))]
        return divide(batch, count, group_size, self.accumulation_steps, self.state.modules)

    def _pass(
        self,
        micro_batch: MicroBatch,
        clips: Sequence[int],
        rows: Tensor | int,
        mark: Callable[[str], None],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the forward and backward pass of a micro-batch.

        Args:
            micro_batch: The micro-batch.
            clips: Indices of its clips in the data stream.
            rows: Number of rows of the mini-batch, averaged over the processes.
            mark: See `__call__`.

        Returns:
            The loss (1,), scaled so that its mean over the micro-batches is that of the mini-batch.
            The logits and the targets.
        """
        micro = self._send_small(micro_batch.batch, clips)
        arguments = self._task.arguments(micro, self.transform, self.device)
        targets = self._task.targets(micro, self.device)
        for transform in self._transforms:
            targets = transform(arguments[0], targets, clips)
        seed_masks(self.model, clips[0])
        self.state.set_coverage(micro.get("coverage"))
        mark("input")
        # DDP all-reduces the gradients in the backward pass of the last micro-batch only.
        exchange: AbstractContextManager[None] = nullcontext()
        if isinstance(self.network, DistributedDataParallel):
            exchange = gradient_exchange(self.network, is_last=micro_batch.is_last)
        with exchange:
            with autocast(self.recipe, self.device):
                with self.state.forward(len(clips)):
                    logits = self.network(*arguments)
                loss = self._loss_function(logits, targets)
            mark("forward")
            # The gradients of the micro-batches add up to the gradient of the mini-batch.
            divisor = rows / len(targets)
            is_mean = not isinstance(divisor, Tensor) and divisor == 1
            loss_share = self.scaler.scale(loss if is_mean else loss / divisor)
            unit = self._unit
            is_like = (loss_share.shape, loss_share.dtype) == (unit.shape, unit.dtype)
            loss_share.backward(unit if is_like else None)
            mark("backward")
        detached = loss.detach()
        if not is_mean:
            detached = detached * (self.accumulation_steps / divisor)
        return detached.view(1), logits.detach(), targets

    def _send_small(self, micro: Mapping[str, Any], clips: Sequence[int]) -> dict[str, Any]:
        """Copy everything but the clips to the device: flips, labels, coverage and dropout masks.

        Returns:
            The micro-batch with the copies.
        """
        names = [n for n in ("flips", "labels", "coverage") if isinstance(micro.get(n), Tensor)]
        if not micro["flips"].numpy().any():
            names.remove("flips")  # nothing will be flipped
        layers = self.state.of_kind(ClipDropout)
        counts = self._task.rows_of_clips(micro)
        masks = [layer.draw(clips, counts) for layer in layers]
        sent = send_together([*(micro[name] for name in names), *masks], self.device)
        self.state.set_masks(dict(zip(layers, sent[len(names) :], strict=True)))
        return {**micro, **dict(zip(names, sent, strict=False))}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the training. The keys are names of fields of `Checkpoint`."""
        return {
            "model_state": self.model.state_dict(),
            "ema_state": None if self.average is None else self.average.state_dict(),
            "optimizer_state": self.optimizer.state_dict(),
            "scaler_state": self.scaler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state. It may have been saved with another memory format."""
        self.model.load_state_dict(state["model_state"])
        if self.average is not None:
            self.average.load_state_dict(state["ema_state"])
        load_optimizer(self.optimizer, state["optimizer_state"])
        if state["scaler_state"]:
            self.scaler.load_state_dict(state["scaler_state"])


class _GradientSum:
    """Sum of the gradients of micro-batches. One operation adds all gradients of a micro-batch.

    Autograd would add them one by one. With DDP, autograd must do so, because DDP exchanges the
    sums that autograd computes.

    Args:
        optimizer: The optimizer of the parameters.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        groups = optimizer.param_groups
        self._parameters: list[nn.Parameter] = [p for group in groups for p in group["params"]]
        self._sums = dict[nn.Parameter, Tensor]()

    def add(self, *, is_last: bool) -> None:
        """Add the gradients of a micro-batch, and remove them from the parameters.

        After the last micro-batch, the gradients of the parameters are the sums.
        """
        new = {p: p.grad for p in self._parameters if p.grad is not None}
        both = [p for p in new if p in self._sums]
        if both:
            torch._foreach_add_([self._sums[p] for p in both], [new[p] for p in both])
        self._sums = new | self._sums
        for parameter in self._parameters:
            parameter.grad = self._sums.get(parameter) if is_last else None


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors, unless there is only one."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))


def compiled(model: nn.Module, mode: bool | str) -> nn.Module:
    """Compile a model into one graph for each clip shape and BN group size.

    The compiled model shares parameters and buffers with `model`.

    Args:
        model: The model.
        mode: Name of a mode of torch.compile, or True for the mode "default".

    Raises:
        ValueError: The mode, or a setting of torch's compiler, would replay CUDA graphs.
    """
    name = mode if isinstance(mode, str) else "default"
    network = cast(nn.Module, torch.compile(model, dynamic=False, fullgraph=True, mode=name))
    check_cuda_graphs(network)
    return network


def expect_graphs(count: int) -> None:
    """Raise dynamo's recompile limit to `count` (the default is 8)."""
    import torch._dynamo.config as dynamo  # imports the compiler

    dynamo.recompile_limit = max(dynamo.recompile_limit, count)
