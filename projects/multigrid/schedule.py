"""The multigrid schedule: shape, learning rate and BN size as a pure function of the iteration.

`make_schedule` plans the phases, one per LR stage and long-cycle shape and two for fine-tuning, and
returns frozen data. Everything about iteration i is computed from i, so a checkpoint needs only i.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from multigrid.cycles import GENTLE, Cycles
from multigrid.learning_rate import LearningRate, batch_rate_factor
from multigrid.shapes import BASE_FACTORS, Factors, Shape, scale_shape

__all__ = ["Phase", "Schedule", "ScheduleStep", "make_schedule"]


@dataclass(frozen=True)
class Phase:
    """Consecutive iterations on one long-cycle shape.

    Iteration i has the shape `shapes[i % len(shapes)]`. There are three shapes with the short
    cycle, and one without. `first_clip` is the number of clips seen before the phase.
    `baseline_epochs` is the corresponding part of the baseline's training, in epochs; it determines
    the learning rate.
    """

    start: int
    stop: int
    baseline_epochs: tuple[float, float]
    stage: int
    lr_scale: float
    shapes: tuple[Shape, ...]
    bn_sizes: tuple[int | None, ...]
    first_clip: int
    fine_tuning: bool = False

    @property
    def iterations(self) -> int:
        return self.stop - self.start

    @property
    def base_shape(self) -> Shape:
        """Shape of the long cycle, the last one of a short cycle."""
        return self.shapes[-1]

    @property
    def clips(self) -> int:
        return self.clips_until(self.stop)

    def baseline_epoch(self, iteration: int) -> float:
        """Return the epoch of the baseline's training that corresponds to an iteration."""
        start, stop = self.baseline_epochs
        return start + (stop - start) * (iteration - self.start) / self.iterations

    def count(self, which: int, stop: int | None = None) -> int:
        """Count the iterations from the phase's start to `stop` with the shape `shapes[which]`."""
        stop = self.stop if stop is None else stop
        period = len(self.shapes)
        return (stop - which - 1) // period - (self.start - which - 1) // period

    def clips_until(self, stop: int) -> int:
        """Count the clips from the phase's start to iteration `stop`, exclusive."""
        return sum(shape.batch * self.count(j, stop) for j, shape in enumerate(self.shapes))


class ScheduleStep(NamedTuple):
    """Shape, rate, BN size and position of one iteration.

    `first_clip` is the number of clips seen before it, and `epoch` the same in passes over the
    data.
    """

    iteration: int
    phase: int
    shape: Shape
    lr: float
    bn_size: int | None
    first_clip: int
    epoch: float


@dataclass(frozen=True)
class Schedule:
    """Schedule of a training; build it with `make_schedule`."""

    base: Shape
    num_videos: int
    epochs: float
    learning_rate: LearningRate
    phases: tuple[Phase, ...]
    cycles: Cycles | None = field(default=None, compare=False)
    """Cycles that the schedule was made with, or None for the baseline.

    They are ignored when schedules are compared: different cycles may give the same phases.
    """

    @property
    def iterations(self) -> int:
        return self.phases[-1].stop

    @property
    def clips(self) -> int:
        """Total number of clips in the training."""
        return self.phases[-1].first_clip + self.phases[-1].clips

    @property
    def baseline_iterations(self) -> int:
        """Number of iterations of the same recipe without multigrid, halves rounded up."""
        return max(1, int(self.learning_rate.epochs * self.num_videos / self.base.batch + 0.5))

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """All distinct shapes of the training, in order of first appearance."""
        return tuple(dict.fromkeys(s for phase in self.phases for s in phase.shapes))

    def phase_at(self, iteration: int) -> int:
        """Return the index of the phase that contains an iteration.

        Raises:
            IndexError: the schedule has no such iteration.
        """
        if not 0 <= iteration < self.iterations:
            raise IndexError(f"iteration {iteration} of a schedule of {self.iterations}")
        return bisect_right(self.phases, iteration, key=lambda p: p.start) - 1

    def at(self, iteration: int) -> ScheduleStep:
        """Return the step of an iteration, counted from 0.

        Raises:
            IndexError: the schedule has no such iteration.
        """
        index = self.phase_at(iteration)
        phase = self.phases[index]
        which = iteration % len(phase.shapes)
        first_clip = phase.first_clip + phase.clips_until(iteration)
        return ScheduleStep(
            iteration=iteration,
            phase=index,
            shape=phase.shapes[which],
            lr=self.learning_rate.at(phase.baseline_epoch(iteration)) * phase.lr_scale,
            bn_size=phase.bn_sizes[which],
            first_clip=first_clip,
            epoch=first_clip / self.num_videos,
        )

    def steps(self, start: int = 0, stop: int | None = None) -> Iterator[ScheduleStep]:
        """Iterate over the steps from `start` to `stop`, exclusive."""
        return (self.at(i) for i in range(start, self.iterations if stop is None else stop))

    def phase_lines(self) -> tuple[str, ...]:
        """Return a line of text for each phase, to compare two schedules."""
        return tuple(
            f"iterations {phase.start} to {phase.stop}: {', '.join(map(str, phase.shapes))}"
            for phase in self.phases
        )

    def first_iteration_after(self, clips: float) -> int:
        """Return the first iteration that starts after `clips` clips, or `iterations` if none."""
        low = 0
        high = self.iterations
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.at(middle).first_clip >= clips else (middle + 1, high)
        return low


class _Plan(NamedTuple):
    """Planned phase whose iterations are not counted yet.

    `start` and `stop` are its part of the baseline, in epochs.
    """

    start: float
    stop: float
    stage: int
    factors: Factors
    fine_tuning: bool


def make_schedule(
    base: Shape,
    num_videos: int,
    learning_rate: LearningRate,
    cycles: Cycles | None = GENTLE,
    *,
    bn_size: int | None = 8,
    size_divisor: int = 1,
    batch_rate_rule: str = "linear",
    equal_time: bool = False,
    warmup_in_epochs: bool = False,
    fine_tuning: bool = True,
) -> Schedule:
    """Make the schedule of a training (paper §3).

    Each LR stage but the last holds one long cycle, and stages keep the baseline's proportions. The
    last stage is fine-tuning at the baseline's shape, and its first half keeps the rate of the
    stage before. The training has epoch_factor × epochs × num_videos clips, to within one
    mini-batch.

    Args:
        base: the baseline's mini-batch over all processes.
        num_videos: videos in the training set. An epoch is one clip of each.
        learning_rate: the baseline's policy, which also gives its length and stages.
        cycles: `GENTLE` for short trainings, `PAPER` for long ones (`recommend_cycles`), your own,
            or None for the baseline. Give their `sampling` to the data set.
        bn_size: clips that share BN statistics at a long-cycle shape, or None for statistics over
            the clips of each process.
        size_divisor: crops of coarser grids are multiples of it (`scale_shape`). The paper's is 1.
        batch_rate_rule: how the rate scales with the batch (`batch_rate_factor`). The paper's is
            "linear".
        equal_time: if True, phases keep the baseline's proportions in pixels. If False, they keep
            them in iterations, as in the paper.
        warmup_in_epochs: if True, the warm-up ends after as many epochs as the baseline's, as in
            later releases of PySlowFast, or when its scaled share of the training ends, whichever
            comes first. If False, it is scaled like all other lengths. The paper does not say.
        fine_tuning: if True, the last LR stage is fine-tuning, as in the paper. If False, it holds
            a long cycle too (our reading of §4.2).

    Raises:
        ValueError: an argument is out of range, BN groups do not divide a batch, or the training is
            too short for every phase to have an iteration.
    """
    used = cycles or Cycles()
    long_cycle = used.long_cycle
    short_cycle = used.short_cycle
    _check(learning_rate, num_videos, used.epoch_factor, bool(long_cycle or short_cycle))
    stepped = bool(learning_rate.stage_ends[1:] and learning_rate.drops)
    if not long_cycle and short_cycle and stepped:
        long_cycle = (BASE_FACTORS,)
    late = long_cycle and fine_tuning
    policy = learning_rate.with_late_last_drop() if late else learning_rate
    plans = _plan_phases(learning_rate, policy, tuple(long_cycle), fine_tuning)
    short = (short_cycle, size_divisor, used.batch_exponent)
    grids = [_short_shapes(base, plan.factors, *short) for plan in plans]
    epochs = used.epoch_factor * learning_rate.epochs
    clips = Fraction(epochs) * num_videos
    stops = _count_iterations(_lengths(plans, grids, equal_time), grids, clips)
    phases = list[Phase]()
    for plan, shapes, stop in zip(plans, grids, stops, strict=True):
        lr_scale = batch_rate_factor(shapes[-1].batch / base.batch, batch_rate_rule)
        sizes = tuple(_bn_size(bn_size, shape, shapes[-1], base) for shape in shapes)
        phases.append(_next_phase(phases, plan, shapes, stop, lr_scale, sizes))
    made = Schedule(base, num_videos, epochs, policy, tuple(phases), cycles)
    return _with_warmup_in_epochs(made) if warmup_in_epochs else made


def _check(rate: LearningRate, num_videos: int, epoch_factor: float, has_cycle: bool) -> None:
    if not hasattr(rate, "stage_ends"):
        raise ValueError(
            f"the learning rate {rate!r} is not a policy. Give a policy such as "
            "SteppedRate((40.0, 50.0), (0.1, 0.01)), which ends after 50 epochs, or CosineRate"
        )
    if num_videos < 1:
        raise ValueError(f"num_videos is {num_videos}, but a training needs at least one video")
    if epoch_factor <= 0:
        raise ValueError(f"the epoch factor is {epoch_factor}, but it must be above 0")
    if not has_cycle and epoch_factor != 1:
        raise ValueError(f"an epoch factor of {epoch_factor} needs a long or a short cycle")


def _lengths(
    plans: Sequence[_Plan], cycles: Sequence[tuple[Shape, ...]], equal_time: bool
) -> list[Fraction]:
    """Return the relative number of iterations of each phase.

    The length is the phase's part of the baseline. With `equal_time` it is divided by the mean
    number of pixels of an iteration.
    """
    lengths = [Fraction(plan.stop) - Fraction(plan.start) for plan in plans]
    if not equal_time:
        return lengths
    return [n / _mean(s.volume for s in shapes) for n, shapes in zip(lengths, cycles, strict=True)]


def _mean(numbers: Iterable[int]) -> Fraction:
    values = list(numbers)
    return Fraction(sum(values), len(values))


def _with_warmup_in_epochs(schedule: Schedule) -> Schedule:
    """Return the schedule with its warm-up ending after the baseline's number of warm-up epochs.

    The warm-up never exceeds the share of the training that the baseline's has. That share ends
    first where the training is short, or where its batches grow little.
    """
    warmup = schedule.learning_rate.warmup
    phases = schedule.phases
    end = schedule.first_iteration_after(warmup.epochs * schedule.num_videos)
    if end == schedule.iterations:
        return schedule
    point = phases[schedule.phase_at(end)].baseline_epoch(end)
    shorter = replace(warmup, epochs=min(warmup.epochs, point))
    return replace(schedule, learning_rate=schedule.learning_rate.with_warmup(shorter))


def _next_phase(
    phases: Sequence[Phase],
    plan: _Plan,
    shapes: tuple[Shape, ...],
    stop: int,
    lr_scale: float,
    bn_sizes: tuple[int | None, ...],
) -> Phase:
    """Make the phase of a plan, which follows the phases so far."""
    previous = phases[-1] if phases else None
    return Phase(
        start=previous.stop if previous else 0,
        stop=stop,
        baseline_epochs=(plan.start, plan.stop),
        stage=plan.stage,
        lr_scale=lr_scale,
        shapes=shapes,
        bn_sizes=bn_sizes,
        first_clip=previous.first_clip + previous.clips if previous else 0,
        fine_tuning=plan.fine_tuning,
    )


def _plan_phases(
    baseline: LearningRate,
    policy: LearningRate,
    long_cycle: tuple[Factors, ...],
    fine_tuning: bool,
) -> list[_Plan]:
    """Divide each cycled stage by its long-cycle shapes, and the rest at the rate's drops."""
    *cycled, end = baseline.stage_ends
    cycled += [] if fine_tuning else [end]
    if long_cycle and not cycled:
        raise ValueError(
            "a long cycle needs two LR stages or more: the last stage is fine-tuning, and each "
            "other stage holds one long cycle. Add a step or leave the long cycle out"
        )
    starts = (0.0, *cycled) if long_cycle else (0.0,)
    plans = list[_Plan]()
    for stage, (start, stop) in enumerate(pairwise(starts)):
        cuts = [start + (stop - start) * j / len(long_cycle) for j in range(len(long_cycle))]
        for (a, b), factors in zip(pairwise((*cuts, stop)), long_cycle, strict=True):
            plans.append(_Plan(a, b, stage, factors, False))
    if starts[-1] == end:
        return plans
    cuts = [starts[-1], *(drop for drop in policy.drops if starts[-1] < drop < end), end]
    for part, (a, b) in enumerate(pairwise(cuts)):
        stage = len(starts) - 1 if long_cycle else part
        plans.append(_Plan(a, b, stage, BASE_FACTORS, bool(long_cycle)))
    return plans


def _short_shapes(
    base: Shape,
    factors: Factors,
    short_cycle: Sequence[float],
    size_divisor: int,
    batch_exponent: float,
) -> tuple[Shape, ...]:
    """Return the shapes of the short cycle at a long-cycle shape.

    They have crops of H · factor, and last the long cycle's own crop. No crop exceeds the long
    cycle's. Where that is H/√2, two of the paper's three shapes are therefore the same.
    """
    time, space = factors
    crops = (*(min(factor, space) for factor in short_cycle), space)
    return tuple(scale_shape(base, (time, crop), size_divisor, batch_exponent) for crop in crops)


def _count_iterations(
    lengths: Sequence[Fraction], cycles: Sequence[tuple[Shape, ...]], clips: Fraction
) -> list[int]:
    """Return the iteration at which each phase stops.

    Phases have iterations in the ratio of `lengths`, and `clips` clips in all. Each boundary is
    placed where the number of clips seen is nearest to that of the exact schedule, so rounding
    errors do not accumulate over phases. The arithmetic is exact, because sums of floats depend on
    the Python version and could resolve a tie either way.

    Raises:
        ValueError: a phase has no iteration.
    """
    means = [_mean(shape.batch for shape in shapes) for shapes in cycles]
    weights = [length * mean for length, mean in zip(lengths, means, strict=True)]
    stops = list[int]()
    seen = 0
    i = 0
    for phase, shapes in enumerate(cycles):
        wanted = clips * sum(weights[: phase + 1]) / sum(weights)
        first = i
        cycle = sum(s.batch for s in shapes)
        whole = max(0, (wanted - seen) // cycle - 1)
        seen = seen + whole * cycle
        i = i + whole * len(shapes)
        batch = shapes[i % len(shapes)].batch
        while abs(seen + batch - wanted) <= abs(seen - wanted):
            seen = seen + batch
            i = i + 1
            batch = shapes[i % len(shapes)].batch
        if i == first:
            raise ValueError(
                f"the training is too short: {float(clips):.0f} clips leave phase {phase + 1} of "
                f"{len(lengths)} (shape {shapes[-1]}) without an iteration. Train for more epochs "
                "or with a smaller batch"
            )
        stops.append(i)
    return stops


def _bn_size(size: int | None, shape: Shape, long_shape: Shape, base: Shape) -> int | None:
    """Return the number of clips per BN group.

    It is `size`, times 2 or 4 where the short cycle multiplies the batch (§3.2). A batch smaller
    than the group is one group. With a `batch_exponent` the batch may grow by other factors, so
    that such groups do not divide it. Groups then have `size` clips, or as many as the baseline's
    batch if that is smaller: 12 clips at a baseline of 4 are three groups of 4.

    Raises:
        ValueError: no such groups divide the batch.
    """
    if size is None:
        return None
    clips = min(round(size * shape.batch / long_shape.batch), shape.batch)
    if shape.batch % clips and shape.batch % size == 0:
        clips = size
    if shape.batch % clips and base.batch < size:
        clips = base.batch
    if shape.batch % clips:
        raise ValueError(
            f"a batch of {shape.batch} clips ({shape}) cannot be split into BN groups of {clips}. "
            f"Choose a bn_size that divides the baseline's batch, or another batch"
        )
    return clips
