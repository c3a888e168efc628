"""A dry step of each shape before the training, which compiles and tunes its kernels and measures
its memory."""

from __future__ import annotations

import logging
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from multigrid import Batch, Schedule, Shape, Step, clip_numbers, empty_clips, set_group_size
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.train.running_stats import keep_buffers
from slowfast_patches.train.step import Stepper, expect_graphs
from slowfast_patches.utils.tables import format_table

__all__ = ["dry_run", "kinds_of_steps", "made_up_batch", "without_compiling"]

logger = logging.getLogger(__name__)

_OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED", "unable to find an engine")
"""What CUDA's libraries say where memory is short; torch's allocator has an error of its own."""
_STATE = {"sgd": 1, "lars": 1, "adam": 2, "adamw": 2}
"""Tensors of a weight's size that the optimizer keeps beside it, from its first update on."""
_ADVICE = (
    "set TRAIN.BATCH_SIZE lower, with SOLVER.BASE_LR in proportion, TRAIN.MIXED_PRECISION or "
    "MODEL.ACT_CHECKPOINT True, or SOLVER.ACCUMULATION_STEPS higher"
)


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
    recipe = stepper.recipe
    steps = kinds_of_steps(schedule, start)
    peaks = dict[Step, float]()
    if recipe.train.compile:
        expect_graphs(len(steps))
    clips = {step: clip_numbers(step, rank, world_size) for step in steps}
    capacity = _capacity(stepper.device)
    with _undone(stepper):
        for step in steps:
            begin(f"the dry step of {step.shape}")
            peaks[step] = _measured(stepper, step, clips[step], world_size)
            if peaks[step] >= capacity:
                raise ValueError(
                    f"the shape {step.shape}, {len(clips[step])} clips on each of {world_size} "
                    f"process(es), does not fit into the {capacity / 1e9:.1f} GB of "
                    f"{stepper.device}; {_ADVICE}"
                )
    torch.cuda.empty_cache()
    if math.isfinite(capacity):
        _log_memory(peaks, clips, capacity)
    return peaks


def _log_memory(
    peaks: Mapping[Step, float], clips: Mapping[Step, Sequence[int]], capacity: float
) -> None:
    rows = [
        [str(step.shape), str(len(clips[step])), str(step.bn_size or "batch"), f"{peak / 1e9:.1f}"]
        for step, peak in peaks.items()
    ]
    table = format_table(["shape", "clips here", "BN clips", "GB"], rows)
    logger.info("memory of each shape:\n%s\nThere are %.1f GB.", table, capacity / 1e9)


def _measured(stepper: Stepper, step: Step, clips: Sequence[int], world_size: int) -> float:
    """Bytes that a dry step takes, with those that the training adds; infinitely many where there
    are not enough. It is the second: in the first, convolutions are tried in the largest memory
    that any of them wants."""
    batch = made_up_batch(stepper.recipe, len(clips), step.shape)
    try:
        stepper.passes(step, batch, clips)
        torch.cuda.empty_cache()
        peak = _peak(stepper.device, lambda: stepper.passes(step, batch, clips))
    except RuntimeError as error:
        is_short = any(text in str(error) for text in _OUT_OF_MEMORY)
        if is_short or isinstance(error, torch.OutOfMemoryError):
            return math.inf
        if stepper.recipe.train.compile:
            from torch._dynamo.exc import TorchDynamoException  # imports the compiler

            if isinstance(error, TorchDynamoException):
                raise ValueError(
                    f"TRAIN.COMPILE {stepper.recipe.train.compile}: {step.shape} cannot be "
                    f"compiled ({textwrap.shorten(str(error), 200)}); set it to False"
                ) from error
        raise
    # What processes exchange and, from its first update on, the optimizer keeps of each weight,
    # and the next mini-batch, or part of it, as bytes and, at most, in two whole pathways.
    weights = sum(p.numel() * p.element_size() for p in stepper.model.parameters())
    copies = int(world_size > 1)
    if not stepper.optimizer.state:
        copies += _STATE[stepper.recipe.solver.optimizing_method]
    values = batch["clips"].numel() // stepper.parts
    return peak + copies * weights + values * (1 + 2 * stepper.transform.dtype.itemsize)


def _capacity(device: torch.device) -> float:
    """Bytes that this process has or could have on a GPU; the rest is other programs'."""
    if device.type != "cuda":
        return math.inf
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device)


def _peak(device: torch.device, work: Callable[[], object]) -> int:
    """Bytes that tensors on a GPU took at most while some work was done."""
    if device.type != "cuda":
        work()
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)


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
    pinned memory where the loader's are. torch's generator stays as it is."""
    noise = torch.Generator().manual_seed(recipe.rng_seed)
    classes = recipe.model.num_classes
    pixels = empty_clips(clips, shape.frames, shape.crop).random_(0, 256, generator=noise)
    flips = torch.rand(clips, generator=noise) < (0.5 if recipe.data.random_flip else 0.0)
    if recipe.data.multi_label:
        labels = torch.randint(0, 2, (clips, classes), generator=noise).float()
    else:
        labels = torch.randint(0, classes, (clips,), generator=noise)
    if recipe.data_loader.pin_memory and recipe.num_gpus > 0:
        pixels, labels, flips = (tensor.pin_memory() for tensor in (pixels, labels, flips))
    return Batch(clips=pixels, labels=labels, flips=flips, iteration=0, failures=[])
