"""Steps of gradient descent, for training and for benchmarks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from multigrid import Batch, Step, prepare_step, set_extents
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.average import start_average, update_average
from slowfast_patches.models.freeze import freeze
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.layers.dropout import seed_dropout
from slowfast_patches.models.recompute import checkpoint_blocks
from slowfast_patches.models.solver import (
    Precision,
    build_optimizer,
    clip_gradients,
)
from slowfast_patches.tasks import task_of
from slowfast_patches.train.mixing import Mixing
from slowfast_patches.train.running_stats import MicroBatchStats


class Outcome(NamedTuple):
    """Results of a step, on the device.

    Attributes:
        loss: mean over the clips.
        scores: (N, C).
        labels: (N,), or (N, C) if there are several or they were mixed.
    """

    loss: Tensor
    scores: Tensor
    labels: Tensor


def _unmarked(stage: str) -> None:
    """Ignore a mark: by default, nothing is timed."""


class Stepper:
    """A model with what trains it: loss, optimizer, precision and averaged weights.

    Each step may have its own shape.

    Attributes:
        model: the model on `device`. With MODEL.ACT_CHECKPOINT its blocks recompute their
            activations, and what TRAIN.FREEZE names takes no gradients. Names of weights and
            buffers stay the same.
        network: what computes the scores: the model, the compiled model, or DDP around either.
        parts: number of micro-batches into which a process's clips are divided. Micro-batch p has
            every `parts`-th clip from p on, and consists of whole BN groups.
        average: the moving average of the weights for MODEL.EMA_DECAY, or None.
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
            recipe: what to train.
            model: the model, on `device`.
            device: where to compute.
            label_counts: number of videos of each class, for class weights.
        """
        self.recipe = recipe
        self.model = model
        self.device = device
        self.parts: int = recipe.solver.accumulation_steps
        freeze(model, recipe.train.freeze)
        self.average = start_average(model) if recipe.model.ema_decay else None
        if recipe.model.act_checkpoint:
            checkpoint_blocks(model)
        self.network = compiled(model, recipe.train.compile) if recipe.train.compile else model
        self.transform = InputTransform.of_recipe(recipe, device)
        self.precision = Precision(recipe, device)
        # Others read on the host whether the scaled gradients are finite, which waits for the GPU.
        self.optimizer = build_optimizer(recipe, model, fused=self.precision.scales)
        self._task = task_of(recipe)
        self._loss_function = self._task.loss(label_counts).to(device)
        self._mixing = Mixing(recipe) if recipe.mixup.enable else None

    def __call__(
        self,
        step: Step,
        batch: Batch,
        clips: Sequence[int] | None = None,
        mark: Callable[[str], None] = _unmarked,
    ) -> Outcome:
        """Train on this process's clips of one iteration.

        On a GPU the work is only queued when this returns.

        Args:
            step: the shape, learning rate and BN size.
            batch: a mini-batch of the loader.
            clips: numbers of the clips in the stream, from which dropout and mixing are seeded.
                Without them, dropout uses torch's global generator.
            mark: called with "input", "forward", "backward" and "optimizer" when that work has been
                queued. The first three are called for each micro-batch.
        """
        outcome = self.forward_backward(step, batch, clips, mark)
        self.precision.unscale(self.optimizer)
        clip_gradients(self.recipe, self.model)
        self.precision.step(self.optimizer)
        if self.average is not None:
            update_average(self.average, self.model, self.recipe.model.ema_decay)
        mark("optimizer")
        return outcome

    def forward_backward(
        self,
        step: Step,
        batch: Batch,
        clips: Sequence[int] | None = None,
        mark: Callable[[str], None] = _unmarked,
    ) -> Outcome:
        """Run forward and backward of a step, without an update of the weights.

        Gradients and running statistics change. The arguments are those of `__call__`.
        """
        self.network.train()
        prepare_step(step, self.model, self.optimizer)
        # First, so that the forward's activations do not come on top of them.
        self.optimizer.zero_grad(set_to_none=True)
        task = self._task
        items = task.mean_items(batch, self.device)
        outcomes = list[Outcome]()
        statistics = MicroBatchStats(self.model, self.parts)
        for part in range(self.parts):
            statistics.restart()
            micro = slice(part, None, self.parts)
            of_part = task.slice_batch(batch, micro)
            numbers = None if clips is None else clips[micro]
            seed_dropout(self.model, numbers, self.device, task.items_of_clips(of_part))
            self._set_extents(batch, micro)
            arguments = task.arguments(of_part, self.transform, self.device)
            targets = of_part["labels"].to(self.device, non_blocking=True)
            if self._mixing is not None:
                every = clips or range(step.first_clip, step.first_clip + len(batch["clips"]))
                targets = self._mixing(arguments[0], targets, every[micro])
            mark("input")
            with self._exchange(part):
                outcomes.append(self._pass(arguments, targets, items / len(targets), mark))
            statistics.add()
        statistics.update()
        self._set_extents(None)
        losses, *of_clips = zip(*outcomes, strict=True)
        loss = torch.stack(losses).mean()
        return Outcome(loss, *map(task.join, of_clips))

    def _pass(
        self,
        arguments: Sequence[Any],
        labels: Tensor,
        divisor: Tensor | float,
        mark: Callable[[str], None],
    ) -> Outcome:
        """Run forward and backward of one micro-batch.

        Args:
            arguments: what the network is called with.
            labels: targets of the loss.
            divisor: the loss is divided by this, so that the gradients of all micro-batches add up.
            mark: as for `__call__`.
        """
        with self.precision.autocast():
            scores = self.network(*arguments)
            loss = self._loss_function(scores, labels)
        mark("forward")
        self.precision.backward(loss / divisor)
        mark("backward")
        return Outcome(loss.detach() * (self.parts / divisor), scores.detach(), labels)

    def _set_extents(self, batch: Batch | None, micro: slice = slice(None)) -> None:
        """Set the extents of a transformer's next clips.

        Without extents in the batch, and between steps, they are reset to 1.
        """
        if not self.recipe.model.family.is_transformer:
            return
        extents = cast(Mapping[str, Tensor], batch or {}).get("extents")
        if extents is not None:
            extents = extents[micro].to(self.device, non_blocking=True)
        set_extents(self.model, extents)

    def _exchange(self, part: int) -> AbstractContextManager[None]:
        """Return a context that keeps DDP from exchanging gradients before the last micro-batch."""
        network = self.network
        if isinstance(network, DistributedDataParallel) and part < self.parts - 1:
            return network.no_sync()
        return nullcontext()


def compiled(model: nn.Module, mode: bool | str) -> nn.Module:
    """Compile the model as one graph for each shape and BN size.

    Weights and buffers are shared with the model.

    Args:
        model: the model.
        mode: a mode of torch.compile, or True for the default.
    """
    name = mode if isinstance(mode, str) else "default"
    return cast(nn.Module, torch.compile(model, dynamic=False, fullgraph=True, mode=name))


def expect_graphs(count: int) -> None:
    """Raise dynamo's recompile limit to `count` (the default is 8)."""
    import torch._dynamo.config as dynamo  # imports the compiler

    dynamo.recompile_limit = max(dynamo.recompile_limit, count)


def in_parallel(network: nn.Module, device: torch.device) -> nn.Module:
    """Wrap a network in DistributedDataParallel.

    Buffers are not broadcast: running statistics are averaged where they are used.
    """
    ids = [device] if device.type == "cuda" else None
    with warnings.catch_warnings():
        # torch 2.13 announces another name for it, which earlier releases do not have.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        return DistributedDataParallel(
            network, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True
        )
