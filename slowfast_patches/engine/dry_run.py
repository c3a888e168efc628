"""A dry step of each shape before the training: what has to be compiled, tuned or recorded is, and
the memory that each shape takes is known."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from fvcore.common.config import CfgNode

from multigrid import Batch, Schedule, Shape, Step, clip_numbers, set_group_size
from slowfast_patches.config.schedule import uses_multigrid
from slowfast_patches.engine.compiled import expect_graphs
from slowfast_patches.engine.made_up import made_up_batch
from slowfast_patches.engine.running_stats import keep_buffers
from slowfast_patches.engine.step import Stepper
from slowfast_patches.utils.report import format_list, format_table

__all__ = ["Memory", "Peak", "dry_run", "format_peaks", "kinds_of_steps"]

logger = logging.getLogger(__name__)

_GB = 1e9
_STATE = {"sgd": 1, "lars": 1, "adam": 2}
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


def kinds_of_steps(schedule: Schedule) -> list[Step]:
    """The first step of each shape and BN size, those with the most pixels first.

    Memory that the largest has claimed serves all the others.
    """
    kinds = dict[tuple[Shape, int | None], Step]()
    for phase in schedule.phases:
        for step in schedule.steps(phase.start, min(phase.stop, phase.start + len(phase.shapes))):
            kinds.setdefault((step.shape, step.bn_size), step)
    return sorted(kinds.values(), key=lambda step: step.shape.volume, reverse=True)


def dry_run(
    stepper: Stepper,
    schedule: Schedule,
    *,
    rank: int = 0,
    world_size: int = 1,
    memory: Memory | None = None,
    begin: Callable[[str], object] = lambda what: None,
) -> list[Peak]:
    """Forward and backward of made-up clips at each shape of a schedule, without an update.

    Weights, running statistics, the optimizer's state and torch's generators are afterwards as they
    were before. Every process must call this.

    Args:
        begin: told what is tried next.

    Raises:
        ValueError: a shape does not fit into the device's memory; says what would.
    """
    memory, steps = memory or Memory(stepper.device), kinds_of_steps(schedule)
    if stepper.cfg.TRAIN.COMPILE:
        expect_graphs(len(steps))
    peaks = list[Peak]()
    with _undone(stepper):
        for step in steps:
            begin(f"the dry step of {step.shape}")
            clips = clip_numbers(step, rank, world_size)
            attempt = _try(stepper, step, clips, memory)
            if not attempt.fits:
                raise ValueError(_advise(stepper, step, clips, memory, world_size))
            peaks.append(Peak(step.shape, len(clips), step.bn_size, attempt.memory))
    if any(peak.memory is not None for peak in peaks):
        logger.info("memory of each shape:\n%s", format_peaks(peaks, memory.capacity()))
    return peaks


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


def _try(stepper: Stepper, step: Step, clips: Sequence[int], memory: Memory) -> _Attempt:
    """One dry step, and the bytes that it will take in the training."""
    batch = made_up_batch(stepper.cfg, len(clips), step.shape)
    capacity = memory.capacity()
    try:
        peak = memory.peak(lambda: stepper.passes(step, batch, clips))
    except torch.OutOfMemoryError:
        return _Attempt(fits=False)
    if peak is None or capacity is None:
        return _Attempt(fits=True)
    peak += _optimizer_state_to_come(stepper) + _next_batch(stepper, batch)
    return _Attempt(peak <= capacity, peak)


def _optimizer_state_to_come(stepper: Stepper) -> int:
    if stepper.optimizer.state:
        return 0
    weights = sum(p.numel() * p.element_size() for p in stepper.model.parameters())
    return weights * _STATE[stepper.cfg.SOLVER.OPTIMIZING_METHOD]


def _next_batch(stepper: Stepper, batch: Batch) -> int:
    """Bytes of the mini-batch that comes to a GPU while this one is trained on: as uint8, and as
    pathways."""
    transform, values = stepper.transform, batch["clips"].numel()
    slow = values // transform.alpha if transform.alpha else 0
    return values + (values + slow) * transform.dtype.itemsize


def _advise(
    stepper: Stepper, step: Step, clips: Sequence[int], memory: Memory, world_size: int
) -> str:
    """What to say of a shape that does not fit."""
    cfg = stepper.cfg
    ways = []
    if not cfg.TRAIN.MIXED_PRECISION:
        ways.append("TRAIN.MIXED_PRECISION True")
    if not cfg.MODEL.ACT_CHECKPOINT and not cfg.TRAIN.COMPILE:
        ways.append("MODEL.ACT_CHECKPOINT True")
    text = (
        f"the shape {step.shape}, {len(clips)} clips on each of {world_size} process(es), does not "
        f"fit into the {_gb(memory.capacity())} GB of {stepper.device}"
    )
    count, took = _fewer(stepper, step, clips, memory)
    if count:
        batch = _batch_size(cfg, count / len(clips), world_size)
        text += f"; {count} clips take {_gb(took)} GB"
        ways.append(f"TRAIN.BATCH_SIZE {batch} with SOLVER.BASE_LR in the same proportion")
    return f"{text}. Set {format_list(ways, 'or')}" if ways else text


def _fewer(
    stepper: Stepper, step: Step, clips: Sequence[int], memory: Memory
) -> tuple[int, int | None]:
    """A half, a quarter, ... of a step's clips that fits, and the bytes it takes; 0 if none does.

    BN is over them: other processes, whose groups these clips were in, try other numbers.
    """
    count = len(clips) // 2
    while count:
        _forget(stepper, memory)
        attempt = _try(stepper, step._replace(bn_size=None), clips[:count], memory)
        if attempt.fits:
            return count, attempt.memory
        count //= 2
    return 0, None


def _batch_size(cfg: CfgNode, share: float, world_size: int) -> int:
    """A machine's part of a batch that is `share` of the recipe's at most, for as many processes
    and whole BN groups in each, where it is large enough for these."""
    processes = max(1, world_size // cfg.NUM_SHARDS)
    group = cfg.MULTIGRID.BN_BASE_SIZE if uses_multigrid(cfg) else cfg.BN.GROUP_SIZE or 1
    most: int = math.floor(cfg.TRAIN.BATCH_SIZE * share)
    unit: int = processes * group if most >= processes * group else processes
    return max(unit, unit * (most // unit))


def _forget(stepper: Stepper, memory: Memory) -> None:
    stepper.optimizer.zero_grad(set_to_none=True)
    memory.forget()


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
        if not stepper.cfg.TRAIN.CUDA_GRAPHS:  # they have the gradients' place
            stepper.optimizer.zero_grad(set_to_none=True)


def _gb(memory: int | None) -> str:
    return "?" if memory is None else f"{memory / _GB:.1f}"
