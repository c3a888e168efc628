"""Run a dry step of each clip shape on random clips before a training.

Dry steps compile and tune the kernels, and measure the memory.
"""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import torch

from multigrid import (
    Batch,
    Schedule,
    ScheduleStep,
    Shape,
    clip_numbers,
    empty_clips,
    set_group_size,
)
from multigrid.micro_batches import keep_buffers
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.tasks import task_of
from slowfast_patches.train.step import Stepper, expect_graphs
from slowfast_patches.train.trainer import Hook, Trainer
from slowfast_patches.utils.distributed import sum_over_ranks
from slowfast_patches.utils.errors import UserError

logger = logging.getLogger(__name__)

_OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED", "unable to find an engine")
"""Parts of the error messages of CUDA libraries that run out of memory."""
_STATE = {"sgd": 1, "adam": 2, "adamw": 2}
"""Number of state tensors that each optimizer allocates per parameter at its first step."""


class DryRun(Hook):
    """Run the dry steps on a GPU or with TRAIN.COMPILE. The run can be stopped before each of them.

    With TRAIN.COMPILE, an iteration that would need another compilation raises an error.
    """

    def before_train(self, trainer: Trainer) -> None:
        world = trainer.world
        compiles = trainer.stepper.recipe.train.compile
        if compiles or world.device.type == "cuda":
            logger.info("Running a dry step of each shape before the training.")
            with trainer.clock.time("preparing"):
                # Open the connections between GPUs first, because they allocate GPU memory.
                sum_over_ranks(torch.zeros(1, device=world.device))
                dry_run(
                    trainer.stepper,
                    trainer.schedule,
                    start=trainer.progress.iteration,
                    rank=world.rank,
                    world_size=world.size,
                    begin=trainer.stop.begin,
                )
        if compiles:
            torch.compiler.set_stance("fail_on_recompile")

    def after_train(self, trainer: Trainer) -> None:
        if trainer.stepper.recipe.train.compile:
            torch.compiler.set_stance("default")


def kinds_of_steps(schedule: Schedule, start: int = 0) -> list[ScheduleStep]:
    """Return the first step of each shape and BN group size, starting at iteration `start`.

    The steps are sorted from the largest shape to the smallest, so that smaller shapes can reuse
    the memory of the largest.
    """
    kinds = dict[tuple[Shape, int | None], ScheduleStep]()
    for phase in schedule.phases:
        first = max(phase.start, start)
        for step in schedule.steps(first, min(phase.stop, first + len(phase.shapes))):
            kinds.setdefault((step.shape, step.bn_group_size), step)
    return sorted(kinds.values(), key=lambda step: step.shape.volume, reverse=True)


def dry_run(
    stepper: Stepper,
    schedule: Schedule,
    *,
    start: int = 0,
    rank: int = 0,
    world_size: int = 1,
    begin: Callable[[str], object] = lambda what: None,
) -> dict[ScheduleStep, float]:
    """Run the forward and backward passes of random clips at each shape of a schedule.

    With TRAIN.COMPILE, this compiles the model for each shape. The model, the optimizer and torch's
    generators are unchanged afterwards. Every process must call this function.

    Args:
        stepper: The model and its optimizer.
        schedule: The schedule.
        start: Number of finished iterations. Shapes that occur only in these are skipped.
        rank: Rank of this process.
        world_size: Number of processes.
        begin: Function to call with the name of each dry step before the step runs.

    Returns:
        Maps one step of each shape and BN group size to its peak GPU memory in bytes. On the CPU,
        all values are 0.

    Raises:
        ValueError: A shape does not fit into the memory of the device, or cannot be compiled.
    """
    steps = kinds_of_steps(schedule, start)
    peaks = dict[ScheduleStep, float]()
    if stepper.recipe.train.compile:
        expect_graphs(2 * len(steps))  # micro-batches of one step have up to two sizes
    with _undone(stepper):
        for step in steps:
            begin(f"the dry step of {step.shape}")
            with explain_failures(stepper, step):
                peaks[step] = peak = _peak(stepper, step, rank, world_size)
            if peak:
                logger.info("The shape %s takes %.1f GB of GPU memory.", step.shape, peak / 1e9)
    if stepper.device.type == "cuda":
        torch.cuda.empty_cache()
    return peaks


def _peak(stepper: Stepper, step: ScheduleStep, rank: int, world_size: int) -> float:
    """Return the peak GPU memory of a training step in bytes, or 0 on the CPU.

    The peak includes the optimizer state and DDP's gradient buffers, which a dry step does not
    allocate.
    """
    clips = clip_numbers(step, rank, world_size)
    batch = made_up_batch(stepper.recipe, len(clips), step.shape)
    stepper.forward_backward(step, batch, clips)
    if stepper.device.type != "cuda":
        return 0.0
    # Measure a second step, because cuDNN's benchmark needs extra memory in the first step.
    torch.cuda.empty_cache()
    # Allocate what a dry step does not: DDP's gradient buffers and the optimizer state.
    copies = int(world_size > 1)
    if not stepper.optimizer.state:
        copies += _STATE[stepper.recipe.solver.optimizing_method]
    learning = [p for p in stepper.model.parameters() if p.requires_grad]
    reserved = [torch.empty_like(p) for p in learning for _ in range(copies)]
    torch.cuda.reset_peak_memory_stats(stepper.device)
    stepper.forward_backward(step, batch, clips)
    torch.cuda.synchronize(stepper.device)
    del reserved
    return torch.cuda.max_memory_allocated(stepper.device)


@contextmanager
def explain_failures(stepper: Stepper, step: ScheduleStep) -> Iterator[None]:
    """Convert out-of-memory and compiler errors in the `with` statement to ValueError."""
    try:
        yield
    except RuntimeError as error:
        train = stepper.recipe.train
        if any(text in str(error) for text in _OUT_OF_MEMORY):
            raise UserError(
                f"The shape {step.shape} does not fit into the memory of {stepper.device}. Set "
                "TRAIN.MIXED_PRECISION True or MODEL.ACT_CHECKPOINT True, increase "
                "SOLVER.ACCUMULATION_STEPS, or reduce TRAIN.BATCH_SIZE and SOLVER.BASE_LR in "
                "proportion."
            ) from error
        if train.compile and type(error).__module__.startswith("torch._dynamo"):
            raise UserError(
                f"TRAIN.COMPILE is {train.compile}, but the shape {step.shape} cannot be compiled "
                f"({textwrap.shorten(str(error), 200)}). Set TRAIN.COMPILE False."
            ) from error
        raise


@contextmanager
def _undone(stepper: Stepper) -> Iterator[None]:
    """Undo what the `with` statement changes: buffers, gradients and torch's random generators."""
    put_back = keep_buffers(stepper.model.modules())
    try:
        with torch.random.fork_rng([stepper.device] if stepper.device.type == "cuda" else []):
            yield
    finally:
        put_back()
        set_group_size(stepper.model, None)
        stepper.optimizer.zero_grad(set_to_none=True)


def made_up_batch(recipe: Recipe, clips: int, shape: Shape) -> Batch:
    """Return a mini-batch of random clips in the format of the loader.

    The tensors are in pinned memory if the loader pins memory. torch's global generator is not
    used.

    Args:
        recipe: The recipe of the model.
        clips: Number of clips.
        shape: Shape with the number of frames and the crop size of the clips.
    """
    noise = torch.Generator().manual_seed(recipe.rng_seed)
    pixels = empty_clips(clips, shape.frames, shape.crop).random_(0, 256, generator=noise)
    flips = torch.rand(clips, generator=noise) < (0.5 if recipe.data.random_flip else 0.0)
    labels = task_of(recipe).random_labels(clips, shape.crop, noise)
    tensors = {"clips": pixels, "flips": flips, "labels": labels}
    if recipe.data_loader.pin_memory and recipe.num_gpus > 0:
        tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
    return cast(Batch, {**tensors, "iteration": 0, "failures": []})
