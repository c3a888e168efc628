"""A dry step of each shape before the training: what has to be compiled, tuned or recorded is, and
the memory that each shape takes is known."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch

from multigrid import Batch, Schedule, Shape, Step, clip_numbers, empty_clips, set_group_size
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.train.running_stats import keep_buffers
from slowfast_patches.train.step import Stepper, expect_graphs
from slowfast_patches.utils.tables import format_table

__all__ = ["Memory", "Peak", "dry_run", "kinds_of_steps", "made_up_batch", "without_compiling"]

logger = logging.getLogger(__name__)

_STATE = {"sgd": 1, "lars": 1, "adam": 2, "adamw": 2}
"""Tensors of a weight's size that the optimizer keeps beside it, from its first update on."""
_OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED", "unable to find an engine")
"""What CUDA's libraries say where memory is short; torch's allocator has an error of its own."""
_ADVICE = (
    "set TRAIN.BATCH_SIZE lower, with SOLVER.BASE_LR in proportion, TRAIN.MIXED_PRECISION or "
    "MODEL.ACT_CHECKPOINT True, or SOLVER.ACCUMULATION_STEPS higher"
)


class Peak(NamedTuple):
    """Bytes that a training takes at a shape, with `clips` on a process; None: not measured."""

    shape: Shape
    clips: int
    bn_size: int | None
    memory: int | None


class Memory:
    """The memory of the device that a process computes on; the CPU's is not looked at."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def capacity(self) -> int | None:
        """Bytes that this process has or could have; the rest is other programs'."""
        if self._device.type != "cuda":
            return None
        free, _ = torch.cuda.mem_get_info(self._device)
        return free + torch.cuda.memory_reserved(self._device)

    def peak(self, work: Callable[[], object]) -> int | None:
        """Bytes that tensors took at most while some work was done."""
        if self._device.type != "cuda":
            work()
            return None
        torch.cuda.reset_peak_memory_stats(self._device)
        work()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device)


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
    memory: Memory | None = None,
    begin: Callable[[str], object] = lambda what: None,
) -> list[Peak]:
    """Forward and backward of made-up clips at each shape of a schedule, without an update.

    With TRAIN.COMPILE the shapes are compiled, with TRAIN.CUDA_GRAPHS they are recorded. The model,
    the optimizer and torch's generators are afterwards as they were. Every process must call this.

    Args:
        start: iterations that are done; shapes that do not come again are left out.
        begin: told what is tried next.

    Raises:
        ValueError: a shape does not fit into the device's memory, or cannot be compiled.
    """
    memory, steps = memory or Memory(stepper.device), kinds_of_steps(schedule, start)
    if stepper.recipe.train.compile:
        expect_graphs(len(steps))
    tried = [(step, clip_numbers(step, rank, world_size)) for step in steps]
    peaks = list[Peak]()
    with _undone(stepper):
        for step, clips in tried:
            begin(f"the dry step of {step.shape}")
            peaks.append(_measure(stepper, step, clips, world_size, memory))
        torch.cuda.empty_cache()
        if stepper.recipe.train.cuda_graphs:
            for (
                step,
                clips,
            ) in tried:  # after all have run: what recordings keep was in no one's way
                begin(f"the graph of {step.shape}")
                _record(stepper, step, clips)
    torch.cuda.empty_cache()
    if any(peak.memory is not None for peak in peaks):
        rows = [
            [str(p.shape), str(p.clips), str(p.bn_size or "batch"), _gb(p.memory)] for p in peaks
        ]
        table = format_table(["shape", "clips here", "BN clips", "GB"], rows)
        there = _gb(memory.capacity())
        logger.info("memory of each shape:\n%s\nThere are %s GB.", table, there)
    return peaks


def _measure(
    stepper: Stepper, step: Step, clips: Sequence[int], world_size: int, memory: Memory
) -> Peak:
    """Two dry steps, and the bytes that the second took with those that the training adds.

    In the first, convolutions are tried in the largest memory that any of them wants.
    """
    batch, peak = made_up_batch(stepper.recipe, len(clips), step.shape), None
    capacity, short = memory.capacity(), False
    try:
        stepper.passes(step, batch, clips)
        torch.cuda.empty_cache()
        peak = memory.peak(lambda: stepper.passes(step, batch, clips))
    except RuntimeError as error:
        short = isinstance(error, torch.OutOfMemoryError)
        short = short or any(text in str(error) for text in _OUT_OF_MEMORY)
        if not short:
            _explain_compiler(stepper, step, error)
            raise
    if peak is not None and capacity is not None:
        peak += _bytes_to_come(stepper, batch, world_size)
        short = peak > capacity
    if short:
        raise ValueError(
            f"the shape {step.shape}, {len(clips)} clips on each of {world_size} process(es), does "
            f"not fit into the {_gb(capacity)} GB of {stepper.device}; {_ADVICE}"
        )
    return Peak(step.shape, len(clips), step.bn_size, peak)


def _explain_compiler(stepper: Stepper, step: Step, error: RuntimeError) -> None:
    """Raise ValueError where an error is the compiler's."""
    if not stepper.recipe.train.compile:
        return
    from torch._dynamo.exc import TorchDynamoException  # imports the compiler

    if isinstance(error, TorchDynamoException):
        raise ValueError(
            f"TRAIN.COMPILE True: the network cannot be compiled for {step.shape} "
            f"({_first_line(error)}); set it to False"
        ) from error


def _record(stepper: Stepper, step: Step, clips: Sequence[int]) -> None:
    try:
        stepper.record(step, made_up_batch(stepper.recipe, len(clips), step.shape), clips)
    except RuntimeError as error:
        stepper.forget_graphs()
        raise ValueError(
            f"TRAIN.CUDA_GRAPHS True: {step.shape} could not be recorded ({_first_line(error)}); "
            "set it to False, or TRAIN.BATCH_SIZE lower where memory is short"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _bytes_to_come(stepper: Stepper, batch: Batch, world_size: int) -> int:
    """Bytes that the training takes beside a dry step: the optimizer's state, the gradients that
    processes exchange, and the next mini-batch, or part of it, as uint8 and as pathways."""
    weights = sum(p.numel() * p.element_size() for p in stepper.model.parameters())
    copies = int(world_size > 1)
    if not stepper.optimizer.state:
        copies += _STATE[stepper.recipe.solver.optimizing_method]
    transform, values = stepper.transform, batch["clips"].numel() // stepper.parts
    slow = values // transform.alpha if transform.alpha else 0
    return copies * weights + values + (values + slow) * transform.dtype.itemsize


def _gb(memory: int | None) -> str:
    return "?" if memory is None else f"{memory / 1e9:.1f}"


@contextmanager
def _undone(stepper: Stepper) -> Iterator[None]:
    """What the body does to buffers, gradients and generators is undone."""
    put_back = keep_buffers(stepper.model)
    try:
        with torch.random.fork_rng([stepper.device] if stepper.device.type == "cuda" else []):
            yield
    finally:
        put_back()
        set_group_size(stepper.model, None)
        if not stepper.has_graphs:  # they have the gradients' place
            stepper.optimizer.zero_grad(set_to_none=True)


def without_compiling() -> AbstractContextManager[Any]:
    """A context in which a network that would have to be compiled anew raises RuntimeError."""
    context: AbstractContextManager[Any] = torch.compiler.set_stance("fail_on_recompile")
    return context


def made_up_batch(recipe: Recipe, clips: int, shape: Shape) -> Batch:
    """`clips` clips of noise of a shape's frames and crop, as a loader would hand them over, in
    pinned memory where the loader's are. torch's generator stays as it is."""
    noise, classes = torch.Generator().manual_seed(recipe.rng_seed), recipe.model.num_classes
    pixels = empty_clips(clips, shape.frames, shape.crop).random_(0, 256, generator=noise)
    flips = torch.rand(clips, generator=noise) < (0.5 if recipe.data.random_flip else 0.0)
    if recipe.data.multi_label:
        labels = torch.randint(0, 2, (clips, classes), generator=noise).float()
    else:
        labels = torch.randint(0, classes, (clips,), generator=noise)
    if recipe.data_loader.pin_memory and recipe.num_gpus > 0:
        pixels, labels, flips = (tensor.pin_memory() for tensor in (pixels, labels, flips))
    return Batch(clips=pixels, labels=labels, flips=flips, iteration=0, failures=[])
