"""A dry step of each shape before the training, which compiles and tunes its kernels and measures
its memory."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

from multigrid import Batch, Schedule, Shape, Step, clip_numbers, empty_clips, set_group_size
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.inputs import blank_head_inputs
from slowfast_patches.train.running_stats import keep_buffers
from slowfast_patches.train.step import Stepper, expect_graphs
from slowfast_patches.utils.tables import format_table

logger = logging.getLogger(__name__)

_OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED", "unable to find an engine")
"""In messages of CUDA's libraries where memory is short."""
_STATE = {"sgd": 1, "adam": 2, "adamw": 2}
"""Tensors of a weight's size that the optimizer keeps beside it, from its first update on."""


def kinds_of_steps(schedule: Schedule, start: int = 0) -> list[Step]:
    """The first step of each shape and BN size from iteration `start` on, the largest first: the
    memory that it claims serves all the others."""
    kinds = dict[tuple[Shape, int | None], Step]()
    for phase in schedule.phases:
        first = max(phase.start, start)
        for step in schedule.steps(first, min(phase.stop, first + len(phase.shapes))):
            kinds.setdefault((step.shape, step.bn_size), step)
    return sorted(kinds.values(), key=lambda step: step.shape.volume, reverse=True)


def dry_run(
    stepper: Stepper,
    schedule: Schedule,
    *,
    start: int = 0,
    rank: int = 0,
    world_size: int = 1,
    begin: Callable[[str], object] = lambda what: None,
) -> dict[Step, float]:
    """Forward and backward of made-up clips at each shape of a schedule, without an update.

    With TRAIN.COMPILE the shapes are compiled. The model, the optimizer and torch's generators are
    left unchanged. Every process must call this.

    Args:
        start: iterations that are done; shapes that do not come again are left out.
        begin: called with the name of each step before it.

    Returns the bytes of a GPU that the training takes at each shape.

    Raises:
        ValueError: a shape does not fit into the device's memory, or cannot be compiled.
    """
    steps = kinds_of_steps(schedule, start)
    peaks = dict[Step, float]()
    if stepper.recipe.train.compile:
        expect_graphs(len(steps))
    with _undone(stepper):
        for step in steps:
            begin(f"the dry step of {step.shape}")
            with _explained(stepper, step):
                peaks[step] = _peak(stepper, step, rank, world_size)
    if stepper.device.type == "cuda":
        torch.cuda.empty_cache()
        _log_memory(peaks, world_size)
    return peaks


def _log_memory(peaks: Mapping[Step, float], world_size: int) -> None:
    rows = [
        [str(step.shape), str(step.shape.batch // world_size), f"{peak / 1e9:.1f}"]
        for step, peak in peaks.items()
    ]
    table = format_table(["shape", "clips here", "GB"], rows)
    logger.info("memory of each shape:\n%s", table)


def _peak(stepper: Stepper, step: Step, rank: int, world_size: int) -> float:
    """Bytes that tensors on a GPU take at most while a dry step is done, with those that a training
    has besides; 0 on the CPU."""
    clips = clip_numbers(step, rank, world_size)
    batch = made_up_batch(stepper.recipe, len(clips), step.shape)
    stepper.passes(step, batch, clips)
    if stepper.device.type != "cuda":
        return 0.0
    # The second: in the first, convolutions are tried in the largest memory that any wants.
    torch.cuda.empty_cache()
    reserved = _reserved(stepper, world_size)
    torch.cuda.reset_peak_memory_stats(stepper.device)
    stepper.passes(step, batch, clips)
    torch.cuda.synchronize(stepper.device)
    del reserved
    return torch.cuda.max_memory_allocated(stepper.device)


def _reserved(stepper: Stepper, world_size: int) -> list[Tensor]:
    """The memory of what a dry step does not have: the gradients that processes exchange, and what
    the optimizer keeps from its first update on."""
    copies = int(world_size > 1)
    if not stepper.optimizer.state:
        copies += _STATE[stepper.recipe.solver.optimizing_method]
    learning = [p for p in stepper.model.parameters() if p.requires_grad]
    return [torch.empty_like(p) for p in learning for _ in range(copies)]


@contextmanager
def _explained(stepper: Stepper, step: Step) -> Iterator[None]:
    """Raise ValueError, with what to do, where the body runs out of memory or does not compile."""
    try:
        yield
    except RuntimeError as error:
        train = stepper.recipe.train
        if any(text in str(error) for text in _OUT_OF_MEMORY):
            raise ValueError(
                f"the shape {step.shape} does not fit into the memory of {stepper.device}; set "
                "TRAIN.BATCH_SIZE lower, with SOLVER.BASE_LR in proportion, TRAIN.MIXED_PRECISION "
                "or MODEL.ACT_CHECKPOINT True, or SOLVER.ACCUMULATION_STEPS higher"
            ) from error
        if train.compile and type(error).__module__.startswith("torch._dynamo"):
            raise ValueError(
                f"TRAIN.COMPILE {train.compile}: {step.shape} cannot be compiled "
                f"({textwrap.shorten(str(error), 200)}); set it to False"
            ) from error
        raise


@contextmanager
def _undone(stepper: Stepper) -> Iterator[None]:
    """Undo what the body does to buffers, gradients and generators."""
    put_back = keep_buffers(stepper.model)
    try:
        with torch.random.fork_rng([stepper.device] if stepper.device.type == "cuda" else []):
            yield
    finally:
        put_back()
        set_group_size(stepper.model, None)
        stepper.optimizer.zero_grad(set_to_none=True)


def without_compiling() -> AbstractContextManager[Any]:
    """A context in which a network that would have to be compiled anew raises RuntimeError."""
    context: AbstractContextManager[Any] = torch.compiler.set_stance("fail_on_recompile")
    return context


def made_up_batch(recipe: Recipe, clips: int, shape: Shape) -> Batch:
    """`clips` clips of noise of a shape's frames and crop, as a loader would hand them over, in
    pinned memory where the loader's are; where boxes are scored, one of each whole clip. torch's
    generator stays as it is."""
    noise = torch.Generator().manual_seed(recipe.rng_seed)
    classes = recipe.model.num_classes
    pixels = empty_clips(clips, shape.frames, shape.crop).random_(0, 256, generator=noise)
    flips = torch.rand(clips, generator=noise) < (0.5 if recipe.data.random_flip else 0.0)
    if recipe.multi_label:
        labels = torch.randint(0, 2, (clips, classes), generator=noise).float()
    else:
        labels = torch.randint(0, classes, (clips,), generator=noise)
    if recipe.data_loader.pin_memory and recipe.num_gpus > 0:
        pixels, labels, flips = (tensor.pin_memory() for tensor in (pixels, labels, flips))
    batch = Batch(clips=pixels, labels=labels, flips=flips, iteration=0, failures=[])
    for boxes in blank_head_inputs(recipe, clips, shape.crop):
        batch["boxes"] = boxes
    return batch
