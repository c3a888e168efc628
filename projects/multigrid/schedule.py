"""The multigrid schedule: shape, learning rate and BN size as a pure function of the iteration.

`make_schedule` lays out phases (one per LR stage and long-cycle shape, two for fine-tuning) and
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

__all__ = ["Phase", "Schedule", "Step", "make_schedule"]


@dataclass(frozen=True)
class Phase:
    """A run of iterations on one long-cycle shape.

    Iteration i takes `shapes[i % len(shapes)]`: three shapes with the short cycle, one without.
    `first_clip` is the number of clips that the training has seen before the phase;
    `baseline_epochs` is the part of the baseline's training, in its epochs, that the phase stands
    for: from it comes the learning rate.
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
        """The long cycle's own shape, which is the last of a short cycle."""
        return self.shapes[-1]

    @property
    def clips(self) -> int:
        return self.clips_until(self.stop)

    def baseline_epoch(self, iteration: int) -> float:
        """The point of the baseline's training, in its epochs, that an iteration stands for."""
        start, stop = self.baseline_epochs
        return start + (stop - start) * (iteration - self.start) / self.iterations

    def count(self, which: int, stop: int | None = None) -> int:
        """How many iterations from the phase's start to `stop` take `shapes[which]`."""
        stop = self.stop if stop is None else stop
        period = len(self.shapes)
        return (stop - which - 1) // period - (self.start - which - 1) // period

    def clips_until(self, stop: int) -> int:
        """Clips seen from the phase's start to iteration `stop`, exclusive."""
        return sum(shape.batch * self.count(j, stop) for j, shape in enumerate(self.shapes))


class Step(NamedTuple):
    """Everything about one iteration. `epoch` is the number of passes over the data so far."""

    iteration: int
    phase: int
    shape: Shape
    lr: float
    bn_size: int | None
    first_clip: int
    epoch: float


@dataclass(frozen=True)
class Schedule:
    """A training of `iterations` iterations. Build it with `make_schedule`."""

    base: Shape
    num_videos: int
    epochs: float
    learning_rate: LearningRate
    phases: tuple[Phase, ...]
    cycles: Cycles | None = field(default=None, compare=False)
    """What it was made of; None for the baseline. Two may give the same phases."""

    @property
    def iterations(self) -> int:
        return self.phases[-1].stop

    @property
    def clips(self) -> int:
        """Clips seen in the whole training."""
        return self.phases[-1].first_clip + self.phases[-1].clips

    @property
    def baseline_iterations(self) -> int:
        """Iterations of the same recipe without multigrid: a half more counts as one, as there."""
        return max(1, int(self.learning_rate.epochs * self.num_videos / self.base.batch + 0.5))

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Every shape that the training meets, in the order of first appearance."""
        return tuple(dict.fromkeys(s for phase in self.phases for s in phase.shapes))

    def phase_at(self, iteration: int) -> int:
        """Index of the phase of an iteration."""
        if not 0 <= iteration < self.iterations:
            raise IndexError(f"iteration {iteration} of a schedule of {self.iterations}")
        return bisect_right(self.phases, iteration, key=lambda p: p.start) - 1

    def at(self, iteration: int) -> Step:
        """What happens in an iteration (from 0).

        Raises:
            IndexError: the schedule has no such iteration.
        """
        index = self.phase_at(iteration)
        phase = self.phases[index]
        which = iteration % len(phase.shapes)
        first_clip = phase.first_clip + phase.clips_until(iteration)
        return Step(
            iteration=iteration,
            phase=index,
            shape=phase.shapes[which],
            lr=self.learning_rate.at(phase.baseline_epoch(iteration)) * phase.lr_scale,
            bn_size=phase.bn_sizes[which],
            first_clip=first_clip,
            epoch=first_clip / self.num_videos,
        )

    def steps(self, start: int = 0, stop: int | None = None) -> Iterator[Step]:
        """The steps from `start` to `stop`, exclusive."""
        return (self.at(i) for i in range(start, self.iterations if stop is None else stop))

    def phase_lines(self) -> tuple[str, ...]:
        """Return a line of text for each phase, by which two schedules can be compared."""
        return tuple(
            f"iterations {phase.start} to {phase.stop}: {', '.join(map(str, phase.shapes))}"
            for phase in self.phases
        )

    def first_iteration_after(self, clips: float) -> int:
        """The first iteration before which `clips` clips were seen; `iterations` if none."""
        low = 0
        high = self.iterations
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.at(middle).first_clip >= clips else (middle + 1, high)
        return low


class _Plan(NamedTuple):
    """A phase before its iterations are counted: its part of the baseline and what it trains on."""

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
    """The schedule of a training (paper §3).

    Args:
        base: the baseline's mini-batch over all processes.
        num_videos: videos in the training set; one clip of each is an epoch.
        learning_rate: the baseline's policy, which also gives its length and stages.
        cycles: `GENTLE` for short trainings, `PAPER` for long ones (`recommend_cycles`), your own,
            or None for the baseline. Give the data set their `sampling`.
        bn_size: clips that share BN statistics at a long-cycle shape; None: those of a process.
        size_divisor: crops of coarser grids are multiples of it (`scale_shape`; paper: 1).
        batch_rate_rule: how rates follow the batch (`batch_rate_factor`; paper: "linear").
        equal_time: phases keep the baseline's proportions in pixels, not in iterations (paper).
        warmup_in_epochs: end the warm-up after as many epochs as the baseline's (later PySlowFast),
            or earlier, where its scaled share ends; False scales it as all lengths are. The paper
            gives neither.
        fine_tuning: the last LR stage fine-tunes (paper), else has a long cycle (as we read §4.2).

    Each LR stage but the last holds one long cycle; stages keep the baseline's proportions. The
    last is fine-tuning at the baseline shape; its first half keeps the rate of the stage before.
    Clips are epoch_factor × epochs × num_videos to within one mini-batch.

    Raises:
        ValueError: an argument out of range, a batch that BN groups do not divide, or a training
            too short for each phase to have an iteration.
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
            f"the learning rate {rate!r} is no policy: give one as SteppedRate((40.0, 50.0), "
            "(0.1, 0.01)), which ends after 50 epochs, or CosineRate"
        )
    if num_videos < 1:
        raise ValueError(f"a training needs videos, not {num_videos}")
    if epoch_factor <= 0:
        raise ValueError(f"the epoch factor must be above 0, not {epoch_factor}")
    if not has_cycle and epoch_factor != 1:
        raise ValueError(f"an epoch factor of {epoch_factor} needs a long or a short cycle")


def _lengths(
    plans: Sequence[_Plan], cycles: Sequence[tuple[Shape, ...]], equal_time: bool
) -> list[Fraction]:
    """Return the relative number of iterations of each phase.

    It is the phase's part of the baseline. With `equal_time` it is divided by the pixels of an
    iteration.
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
    """What a plan is after the phases before it."""
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
    """Cut each stage into its long-cycle shapes, and the rest where the rate drops."""
    *cycled, end = baseline.stage_ends
    cycled += [] if fine_tuning else [end]
    if long_cycle and not cycled:
        raise ValueError(
            "a long cycle needs two LR stages or more: all but the last hold one, the last "
            "fine-tunes; add a step or leave the long cycle out"
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
    """The shapes of the short cycle at a long-cycle shape: crops of H · factor, then its own.

    A crop never exceeds the long cycle's own: there, two of the paper's three coincide.
    """
    time, space = factors
    crops = (*(min(factor, space) for factor in short_cycle), space)
    return tuple(scale_shape(base, (time, crop), size_divisor, batch_exponent) for crop in crops)


def _count_iterations(
    lengths: Sequence[Fraction], cycles: Sequence[tuple[Shape, ...]], clips: Fraction
) -> list[int]:
    """Return where each phase stops: iterations in the ratio of `lengths`, `clips` clips in all.

    Each boundary is placed so that the clips seen by then are nearest to what the exact schedule
    would have seen. Rounding errors therefore never add up over phases. The arithmetic is exact:
    sums of floats depend on the version of Python, and a tie would fall either way.
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
                f"{len(lengths)} (shape {shapes[-1]}) without an iteration; train for more epochs "
                "or with a smaller batch"
            )
        stops.append(i)
    return stops


def _bn_size(size: int | None, shape: Shape, long_shape: Shape, base: Shape) -> int | None:
    """Clips per BN group: `size`, times 2 or 4 where the short cycle multiplies the batch (§3.2).

    A batch smaller than the group is its own group. Where the batch is multiplied by other numbers
    (`batch_exponent`) and such groups do not divide it, they keep their `size`, or the baseline's
    batch where that is smaller: 12 clips are three groups of 4.
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
            f"a batch of {shape.batch} clips ({shape}) cannot be split into BN groups of {clips}; "
            f"choose a bn_size that divides the baseline's batch, or another batch"
        )
    return clips
