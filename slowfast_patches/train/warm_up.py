"""A dry step of each shape before the training: what has to be compiled, tuned or recorded is, and
the memory that each shape takes is known."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from multigrid import Batch, Schedule, Shape, Step, clip_numbers, set_group_size
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import possible_parts
from slowfast_patches.train.compiled import expect_graphs
from slowfast_patches.train.made_up import made_up_batch
from slowfast_patches.train.running_stats import keep_buffers
from slowfast_patches.train.step import Stepper
from slowfast_patches.utils.report import format_list, format_table

__all__ = ["Memory", "Peak", "dry_run", "format_peaks", "kinds_of_steps"]

logger = logging.getLogger(__name__)

_GB = 1e9
_STATE = {"sgd": 1, "lars": 1, "adam": 2, "adamw": 2}
"""Tensors of a weight's size that the optimizer keeps beside it, from its first update on."""


class Peak(NamedTuple):
    """The most memory that a step at a shape takes, in bytes, on a process with `clips` of it: what
    a dry step took, the optimizer's state and the mini-batch that follows. None where it is not
    measured."""

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
        """Bytes that tensors took at most while some work was done.

        Raises:
            torch.OutOfMemoryError: it does not fit.
        """
        if self._device.type != "cuda":
            work()
            return None
        torch.cuda.reset_peak_memory_stats(self._device)
        work()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device)

    def forget(self) -> None:
        """Give back what work that broke off has left behind."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()


def kinds_of_steps(schedule: Schedule, start: int = 0) -> list[Step]:
    """The first step of each shape and BN size from iteration `start` on, those with the most
    pixels first.

    Memory that the largest has claimed serves all the others.
    """
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

    With TRAIN.COMPILE the shapes are compiled in it, with TRAIN.CUDA_GRAPHS they are recorded.
    Weights, running statistics, the optimizer's state and torch's generators are afterwards as they
    were before. Every process must call this.

    Args:
        start: iterations that are done; shapes that do not come again are left out.
        begin: told what is tried next.

    Raises:
        ValueError: a shape does not fit into the device's memory, or cannot be compiled; says what
            to do.
    """
    memory, steps = memory or Memory(stepper.device), kinds_of_steps(schedule, start)
    if stepper.recipe.train.compile:
        expect_graphs(len(steps))
    parts = [n for n in possible_parts(schedule, world_size) if n > stepper.parts]
    tried = [_Dry(step, clip_numbers(step, rank, world_size), world_size, parts) for step in steps]
    peaks = list[Peak]()
    with _undone(stepper):
        for dry in tried:
            begin(f"the dry step of {dry.step.shape}")
            peaks.append(_measure(stepper, dry, memory))
        if stepper.recipe.train.cuda_graphs:
            _record(stepper, tried, memory, begin)
    memory.forget()
    if any(peak.memory is not None for peak in peaks):
        logger.info("memory of each shape:\n%s", format_peaks(peaks, memory.capacity()))
    return peaks


class _Dry(NamedTuple):
    """A step to be tried, with the numbers of this process's clips, and of more parts than now that
    they could pass in."""

    step: Step
    clips: Sequence[int]
    world_size: int
    more_parts: Sequence[int]


def _measure(stepper: Stepper, dry: _Dry, memory: Memory) -> Peak:
    attempt = _try(stepper, dry, memory)
    if not attempt.fits:
        raise ValueError(_advise(stepper, dry, memory))
    return Peak(dry.step.shape, len(dry.clips), dry.step.bn_size, attempt.memory)


def _record(
    stepper: Stepper, tried: Sequence[_Dry], memory: Memory, begin: Callable[[str], object]
) -> None:
    """Record all shapes, after all have run: what recordings keep is in nobody's way before."""
    memory.forget()
    try:
        for dry in tried:
            begin(f"the graph of {dry.step.shape}")
            batch = made_up_batch(stepper.recipe, len(dry.clips), dry.step.shape)
            stepper.record(dry.step, batch, dry.clips)
    except RuntimeError as error:
        stepper.forget_graphs()
        raise ValueError(
            f"TRAIN.CUDA_GRAPHS True: {dry.step.shape} could not be recorded "
            f"({_first_line(error)}); set it to False, or TRAIN.BATCH_SIZE lower where the memory "
            "is short: graphs keep what the largest shape needs"
        ) from error


def format_peaks(peaks: Iterable[Peak], capacity: int | None) -> str:
    """A table of what dry steps took of a device's bytes."""
    rows = [
        [str(peak.shape), str(peak.clips), str(peak.bn_size or "batch"), _gb(peak.memory)]
        for peak in peaks
    ]
    table = format_table(["shape", "clips here", "BN clips", "GB"], rows)
    return f"{table}\nThere are {_gb(capacity)} GB."


class _Attempt(NamedTuple):
    fits: bool
    memory: int | None = None


def _try(stepper: Stepper, dry: _Dry, memory: Memory) -> _Attempt:
    """Two dry steps, and the bytes that the second took with those that the training adds.

    In the first, convolutions are tried in the largest memory that any of them wants.
    """
    batch = made_up_batch(stepper.recipe, len(dry.clips), dry.step.shape)
    capacity = memory.capacity()
    try:
        stepper.passes(dry.step, batch, dry.clips)
        memory.forget()
        peak = memory.peak(lambda: stepper.passes(dry.step, batch, dry.clips))
    except RuntimeError as error:
        if stepper.recipe.train.compile and _is_of_the_compiler(error):
            raise ValueError(
                f"TRAIN.COMPILE True: the network cannot be compiled for {dry.step.shape} "
                f"({_first_line(error)}); set it to False"
            ) from error
        if not _is_out_of_memory(error):
            raise
        return _Attempt(fits=False)
    if peak is None or capacity is None:
        return _Attempt(fits=True)
    peak += _optimizer_state_to_come(stepper) + _next_batch(stepper, batch)
    if dry.world_size > 1:
        peak += _bytes_of_weights(stepper)  # the gradients' buckets, which stay
    return _Attempt(peak <= capacity, peak)


_OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED", "unable to find an engine")
"""What CUDA's libraries say where they find no room; torch's allocator has an error of its own."""


def _is_out_of_memory(error: RuntimeError) -> bool:
    texts = any(text in str(error) for text in _OUT_OF_MEMORY)
    return isinstance(error, torch.OutOfMemoryError) or texts


def _is_of_the_compiler(error: RuntimeError) -> bool:
    from torch._dynamo.exc import TorchDynamoException

    return isinstance(error, TorchDynamoException) and not _is_out_of_memory(error)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _bytes_of_weights(stepper: Stepper) -> int:
    return sum(p.numel() * p.element_size() for p in stepper.model.parameters())


def _optimizer_state_to_come(stepper: Stepper) -> int:
    if stepper.optimizer.state:
        return 0
    return _bytes_of_weights(stepper) * _STATE[stepper.recipe.solver.optimizing_method]


def _next_batch(stepper: Stepper, batch: Batch) -> int:
    """Bytes of the mini-batch, or of the part of it, that comes to a GPU while this one is trained
    on: as uint8, and as pathways."""
    transform, values = stepper.transform, batch["clips"].numel() // stepper.parts
    slow = values // transform.alpha if transform.alpha else 0
    return values + (values + slow) * transform.dtype.itemsize


def _advise(stepper: Stepper, dry: _Dry, memory: Memory) -> str:
    """What to say of a shape that does not fit."""
    recipe, count = stepper.recipe, len(dry.clips)
    text = (
        f"the shape {dry.step.shape}, {count} clips on each of {dry.world_size} process(es), does "
        f"not fit into the {_gb(memory.capacity())} GB of {stepper.device}"
    )
    fewer, took = _fewer(stepper, dry, memory)
    if fewer:
        batch = _batch_size(recipe, fewer / count, dry.world_size)
        text += (
            f"; {fewer} clips take {_gb(took)} GB. Set TRAIN.BATCH_SIZE {batch}, with "
            "SOLVER.BASE_LR in the same proportion"
        )
    ways = []
    if not recipe.train.mixed_precision:
        ways.append("TRAIN.MIXED_PRECISION True")
    if not recipe.model.act_checkpoint and not recipe.train.compile:
        ways.append("MODEL.ACT_CHECKPOINT True")
    if dry.more_parts and not recipe.train.cuda_graphs:
        ways.append(f"SOLVER.ACCUMULATION_STEPS {dry.more_parts[0]}")
    if ways:
        return f"{text}. It may fit with {format_list(ways, 'or')}"
    return text if fewer else f"{text}. Train on a larger GPU, or on smaller crops or fewer frames"


def _fewer(stepper: Stepper, dry: _Dry, memory: Memory) -> tuple[int, int | None]:
    """A half, a quarter, ... of a step's clips that fits, and the bytes it takes; 0 if none does.

    BN is over them: other processes, whose groups these clips were in, try other numbers.
    """
    parts, alone = stepper.parts, dry.step._replace(bn_size=None)
    count = len(dry.clips) // parts // 2 * parts
    while count:
        stepper.optimizer.zero_grad(set_to_none=True)
        memory.forget()
        attempt = _try(stepper, dry._replace(step=alone, clips=dry.clips[:count]), memory)
        if attempt.fits:
            return count, attempt.memory
        count = count // parts // 2 * parts
    return 0, None


def _batch_size(recipe: Recipe, share: float, world_size: int) -> int:
    """A machine's part of a batch that is `share` of the recipe's at most, for as many processes
    and whole BN groups in each, where it is large enough for these."""
    processes = max(1, world_size // recipe.num_shards)
    group = recipe.multigrid.bn_base_size if recipe.uses_multigrid else recipe.bn.group_size or 1
    most: int = math.floor(recipe.train.batch_size * share)
    unit: int = processes * group if most >= processes * group else processes
    return max(unit, unit * (most // unit))


@contextmanager
def _undone(stepper: Stepper) -> Iterator[None]:
    """What the body does to buffers, gradients and generators is undone."""
    put_back = keep_buffers(stepper.model)
    devices = [stepper.device] if stepper.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        put_back()
        set_group_size(stepper.model, None)
        if not stepper.has_graphs:  # they have the gradients' place
            stepper.optimizer.zero_grad(set_to_none=True)


def _gb(memory: int | None) -> str:
    return "?" if memory is None else f"{memory / _GB:.1f}"
