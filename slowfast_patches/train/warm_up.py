"""Steps of each shape on random clips: dry ones before a training, and timed ones for a pilot.

Dry steps compile and tune the kernels, and measure the memory.
"""

from __future__ import annotations

import logging
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor

from multigrid import (
    Batch,
    Schedule,
    ScheduleStep,
    Shape,
    clip_numbers,
    empty_clips,
    set_group_size,
)
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.tasks import task_of
from slowfast_patches.train.running_stats import keep_buffers
from slowfast_patches.train.step import Stepper, expect_graphs
from slowfast_patches.utils.tables import format_table

logger = logging.getLogger(__name__)

_OUT_OF_MEMORY = ("out of memory", "ALLOC_FAILED", "unable to find an engine")
"""In messages of CUDA's libraries where memory is short."""
_ROUNDS, _STEPS = 2, 3
"""Rounds in which shapes are timed, and the steps of each. Another one before them is not timed."""
_RATE = 1e-4
"""Learning rate of timed steps, so low that activations keep their usual range."""
_STATE = {"sgd": 1, "adam": 2, "adamw": 2}
"""Tensors of a weight's size that the optimizer keeps beside it, from its first update on."""


def kinds_of_steps(schedule: Schedule, start: int = 0) -> list[ScheduleStep]:
    """Return the first step of each shape and BN size from iteration `start` on.

    The largest shape comes first, because all others can reuse its memory.
    """
    kinds = dict[tuple[Shape, int | None], ScheduleStep]()
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
) -> dict[ScheduleStep, float]:
    """Run forward and backward of random clips at each shape of a schedule.

    With TRAIN.COMPILE this compiles the shapes. The model, the optimizer and torch's generators
    are left unchanged. Every process must call this.

    Args:
        stepper: the model with what trains it.
        schedule: the schedule.
        start: number of finished iterations. Shapes that do not occur after it are skipped.
        rank: rank of this process.
        world_size: number of processes.
        begin: called with the name of each step before it.

    Returns:
        The peak GPU memory of the training at each shape, in bytes.

    Raises:
        ValueError: a shape does not fit into the device's memory, or cannot be compiled.
    """
    steps = kinds_of_steps(schedule, start)
    peaks = dict[ScheduleStep, float]()
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


def _log_memory(peaks: Mapping[ScheduleStep, float], world_size: int) -> None:
    rows = [
        [str(step.shape), str(step.shape.batch // world_size), f"{peak / 1e9:.1f}"]
        for step, peak in peaks.items()
    ]
    table = format_table(["shape", "clips here", "GB"], rows)
    logger.info("memory of each shape:\n%s", table)


def _peak(stepper: Stepper, step: ScheduleStep, rank: int, world_size: int) -> float:
    """Return the peak GPU memory of a training step, in bytes, or 0 on the CPU.

    It includes the memory that only a real step needs.
    """
    clips = clip_numbers(step, rank, world_size)
    batch = made_up_batch(stepper.recipe, len(clips), step.shape)
    stepper.forward_backward(step, batch, clips)
    if stepper.device.type != "cuda":
        return 0.0
    # The second: in the first, convolutions are tried in the largest memory that any wants.
    torch.cuda.empty_cache()
    reserved = _reserved(stepper, world_size)
    torch.cuda.reset_peak_memory_stats(stepper.device)
    stepper.forward_backward(step, batch, clips)
    torch.cuda.synchronize(stepper.device)
    del reserved
    return torch.cuda.max_memory_allocated(stepper.device)


def _reserved(stepper: Stepper, world_size: int) -> list[Tensor]:
    """Allocate the memory that a dry step does not use but a training does.

    This is the memory of the gradients that processes exchange, and of the optimizer's state.
    """
    copies = int(world_size > 1)
    if not stepper.optimizer.state:
        copies += _STATE[stepper.recipe.solver.optimizing_method]
    learning = [p for p in stepper.model.parameters() if p.requires_grad]
    return [torch.empty_like(p) for p in learning for _ in range(copies)]


@contextmanager
def _explained(stepper: Stepper, step: ScheduleStep) -> Iterator[None]:
    """Convert out-of-memory and compiler errors in the body to ValueError."""
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
    """Restore buffers, gradients and generators after the body."""
    put_back = keep_buffers(stepper.model)
    try:
        with torch.random.fork_rng([stepper.device] if stepper.device.type == "cuda" else []):
            yield
    finally:
        put_back()
        set_group_size(stepper.model, None)
        stepper.optimizer.zero_grad(set_to_none=True)


def time_steps(
    stepper: Stepper, kinds: Sequence[tuple[Shape, int | None]]
) -> dict[tuple[Shape, int | None], float]:
    """Return the seconds of a training step of each shape and BN size, timed in turns.

    They are the steps of one process, which has its share of the clips. The weights change.

    Raises:
        ValueError: a shape does not fit into the device's memory, or cannot be compiled.
    """
    expect_graphs(len(kinds))
    # CPU time of a single thread excludes the time it waits for a core on a busy machine.
    alone = stepper.device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    times: dict[tuple[Shape, int | None], list[float]] = defaultdict(list)
    for _ in range(_ROUNDS):
        for shape, bn_size in kinds:
            clips = shape.batch // stepper.recipe.world_size
            group = None if bn_size is None else min(bn_size, clips)
            step = ScheduleStep(0, 0, shape, _RATE, group, 0, 0.0)
            batch = made_up_batch(stepper.recipe, clips, shape)
            with _explained(stepper, step):
                for number in range(1 + _STEPS):
                    began = clock()
                    stepper(step, batch)
                    if stepper.device.type == "cuda":
                        torch.cuda.synchronize(stepper.device)
                    if number:
                        times[shape, bn_size].append(clock() - began)
    return {kind: median(seconds) for kind, seconds in times.items()}


def without_compiling() -> AbstractContextManager[Any]:
    """Return a context in which torch raises RuntimeError instead of recompiling."""
    context: AbstractContextManager[Any] = torch.compiler.set_stance("fail_on_recompile")
    return context


def made_up_batch(recipe: Recipe, clips: int, shape: Shape) -> Batch:
    """Return a batch of random clips, as a loader returns it.

    It is in pinned memory if the loader's batches are. torch's global generator is not used.

    Args:
        recipe: the recipe of the model.
        clips: number of clips.
        shape: the frames and crop of the clips.
    """
    noise = torch.Generator().manual_seed(recipe.rng_seed)
    pixels = empty_clips(clips, shape.frames, shape.crop).random_(0, 256, generator=noise)
    flips = torch.rand(clips, generator=noise) < (0.5 if recipe.data.random_flip else 0.0)
    targets = task_of(recipe).made_up_targets(clips, shape.crop, noise)
    tensors = {"clips": pixels, "flips": flips, **targets}
    if recipe.data_loader.pin_memory and recipe.num_gpus > 0:
        tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
    return cast(Batch, {**tensors, "iteration": 0, "failures": []})
