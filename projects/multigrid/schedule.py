"""The multigrid schedule: shape, learning rate and BN size as a pure function of the iteration.

`make_schedule` divides a training into phases: one for each long-cycle shape in each learning-rate
stage, and one or two for fine-tuning. It returns an immutable `Schedule`. The shape, the learning
rate and the clips of iteration i depend on i alone, so a checkpoint only needs to store i.
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
    """Consecutive iterations with the same long-cycle shape.

    Attributes:
        start: First iteration of the phase.
        stop: First iteration after the phase.
        baseline_epochs: Epochs (start, stop) of the baseline's training that correspond to the
            phase. They determine the learning rate.
        stage: Index of the learning-rate stage, from 0.
        lr_scale: Learning-rate multiplier for the batch size of the phase.
        shapes: Iteration i has the shape `shapes[i % len(shapes)]`. The paper's short cycle has
            three shapes. Without a short cycle, there is one shape.
        bn_sizes: Clips per BN group for each of `shapes`. None means that each process normalises
            its clips together.
        first_clip: Number of clips trained before the phase.
        fine_tuning: Whether the phase belongs to the fine-tuning stage.
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
        """Long-cycle shape of the phase. It is also the last shape of the short cycle."""
        return self.shapes[-1]

    @property
    def clips(self) -> int:
        return self.clips_until(self.stop)

    def baseline_epoch(self, iteration: int) -> float:
        """Return the epoch of the baseline's training that corresponds to an iteration."""
        start, stop = self.baseline_epochs
        return start + (stop - start) * (iteration - self.start) / self.iterations

    def count(self, which: int, stop: int | None = None) -> int:
        """Return how many iterations of the phase before `stop` use the shape `shapes[which]`.

        Args:
            which: Index into `shapes`.
            stop: Iteration to count up to, exclusive. None means the end of the phase.
        """
        stop = self.stop if stop is None else stop
        period = len(self.shapes)
        return (stop - which - 1) // period - (self.start - which - 1) // period

    def clips_until(self, stop: int) -> int:
        """Return how many clips the phase trains before iteration `stop`."""
        return sum(shape.batch * self.count(j, stop) for j, shape in enumerate(self.shapes))


class ScheduleStep(NamedTuple):
    """Settings of one iteration.

    Attributes:
        iteration: Index of the iteration, from 0.
        phase: Index of the phase, from 0.
        shape: Shape of the mini-batch over all processes.
        lr: Learning rate.
        bn_size: Clips per BN group. None means that each process normalises its clips together.
        first_clip: Number of clips trained before the iteration.
        epoch: Number of epochs trained before the iteration, `first_clip` / number of videos.
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
    """Schedule of a training. Build it with `make_schedule`.

    Attributes:
        base: The baseline's shape.
        num_videos: Number of training videos.
        epochs: Length of the training, in epochs.
        learning_rate: Learning-rate policy, as a function of the baseline's epoch.
        phases: Phases of the training, in order.
    """

    base: Shape
    num_videos: int
    epochs: float
    learning_rate: LearningRate
    phases: tuple[Phase, ...]
    cycles: Cycles | None = field(default=None, compare=False)
    """Cycles that the schedule was made from, or None for the baseline.

    Comparisons of schedules ignore `cycles`, because different cycles may give the same phases.
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
        """Number of iterations that the baseline trains, rounded to the nearest integer."""
        return max(1, int(self.learning_rate.epochs * self.num_videos / self.base.batch + 0.5))

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """All distinct shapes of the training, in order of first appearance."""
        return tuple(dict.fromkeys(s for phase in self.phases for s in phase.shapes))

    def phase_at(self, iteration: int) -> int:
        """Return the index of the phase that contains an iteration.

        Raises:
            IndexError: The schedule has no such iteration.
        """
        if not 0 <= iteration < self.iterations:
            raise IndexError(
                f"there is no iteration {iteration} in a schedule of {self.iterations} iterations"
            )
        return bisect_right(self.phases, iteration, key=lambda p: p.start) - 1

    def at(self, iteration: int) -> ScheduleStep:
        """Return the settings of an iteration.

        Args:
            iteration: Index of the iteration, from 0.

        Raises:
            IndexError: The schedule has no such iteration.
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
        """Return an iterator over the settings of the iterations from `start` to `stop`, exclusive.

        Args:
            start: The first iteration.
            stop: The first iteration to leave out. None means the end of the schedule.
        """
        return (self.at(i) for i in range(start, self.iterations if stop is None else stop))

    def phase_lines(self) -> tuple[str, ...]:
        """Describe each phase by a line of text. Two schedules can be compared by these lines."""
        return tuple(
            f"iterations {phase.start} to {phase.stop}: {', '.join(map(str, phase.shapes))}"
            for phase in self.phases
        )

    def first_iteration_after(self, clips: float) -> int:
        """Return the first iteration that starts after at least `clips` clips.

        If there is no such iteration, return the number of iterations of the schedule.
        """
        low = 0
        high = self.iterations
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.at(middle).first_clip >= clips else (middle + 1, high)
        return low


class _Plan(NamedTuple):
    """Plan of a phase, made before its number of iterations is known.

    Attributes:
        start: Start of the corresponding part of the baseline's training, in epochs.
        stop: End of that part, in epochs.
        stage: Index of the learning-rate stage.
        factors: (t/T, h/H) of the long-cycle shape.
        fine_tuning: Whether the phase belongs to the fine-tuning stage.
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

    Each learning-rate stage except the last contains one long cycle. The lengths of the stages have
    the same ratios as in the baseline. The last stage is fine-tuning at the baseline's shape. The
    first half of fine-tuning keeps the learning rate of the previous stage. The training has
    epoch_factor × epochs × num_videos clips, to within one mini-batch.

    Args:
        base: The shape of the baseline's mini-batch over all processes.
        num_videos: Number of training videos. An epoch is one clip of each video.
        learning_rate: The baseline's learning-rate policy. It also defines the length and the
            stages of the baseline's training.
        cycles: `GENTLE` for short trainings, `PAPER` for long trainings (see `recommend_cycles`),
            cycles of your own, or None for the baseline. Give `cycles.sampling` to the data set.
        bn_size: Number of clips that share BN statistics at a long-cycle shape. None means that
            each process normalises its clips together.
        size_divisor: Crops smaller than the baseline's are rounded to a multiple of this number
            (see `scale_shape`). The paper uses 1.
        batch_rate_rule: How the learning rate scales with the batch size (see `batch_rate_factor`).
            The paper uses "linear".
        equal_time: If False, the ratios between phases apply to their numbers of iterations, as in
            the paper. If True, the ratios apply to the numbers of pixels trained.
        warmup_in_epochs: If False, the warm-up takes the same share of the training as in the
            baseline. If True, it ends after the baseline's number of warm-up epochs, as in later
            releases of PySlowFast, but never takes a larger share. The paper does not specify this.
        fine_tuning: If True, the last learning-rate stage is fine-tuning, as in the paper. If
            False, the last stage also contains a long cycle (our reading of §4.2).

    Raises:
        ValueError: An argument is out of range, a batch cannot be divided into BN groups, or the
            training is so short that a phase has no iteration.
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
            f"learning_rate is {rate!r}, but it must be a learning-rate policy. Use CosineRate, or "
            "SteppedRate such as SteppedRate((40.0, 50.0), (0.1, 0.01)) for 50 epochs"
        )
    if num_videos < 1:
        raise ValueError(f"num_videos is {num_videos}, but a training needs at least one video")
    if epoch_factor <= 0:
        raise ValueError(f"epoch_factor is {epoch_factor}, but it must be above 0")
    if not has_cycle and epoch_factor != 1:
        raise ValueError(
            f"epoch_factor is {epoch_factor}, but it must be 1 without a long or short cycle"
        )


def _lengths(
    plans: Sequence[_Plan], cycles: Sequence[tuple[Shape, ...]], equal_time: bool
) -> list[Fraction]:
    """Return the relative number of iterations of each phase.

    This is the length of the corresponding part of the baseline's training. With `equal_time`, the
    length is divided by the mean number of pixels per iteration of the phase.
    """
    lengths = [Fraction(plan.stop) - Fraction(plan.start) for plan in plans]
    if not equal_time:
        return lengths
    return [n / _mean(s.volume for s in shapes) for n, shapes in zip(lengths, cycles, strict=True)]


def _mean(numbers: Iterable[int]) -> Fraction:
    values = list(numbers)
    return Fraction(sum(values), len(values))


def _with_warmup_in_epochs(schedule: Schedule) -> Schedule:
    """Return a copy of a schedule whose warm-up lasts as many epochs as the baseline's warm-up.

    If the schedule's warm-up is shorter already, it does not change. This happens if the training
    has few epochs or small batches.
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
    """Build the phase of `plan`. It starts where the last of `phases` stops."""
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
    """Plan one phase for each long-cycle shape in each stage that has a long cycle.

    The remaining stages are divided where the learning rate drops.
    """
    *cycled, end = baseline.stage_ends
    cycled += [] if fine_tuning else [end]
    if long_cycle and not cycled:
        raise ValueError(
            "the learning rate has one stage, but a long cycle needs at least two: the last stage "
            "is fine-tuning, and each other stage contains one long cycle. Add a learning-rate "
            "step, or use no long cycle"
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
    """Return the shapes of the short cycle for a long-cycle shape.

    The crops are H · factor for each factor of `short_cycle`, and finally the long-cycle crop. No
    crop is larger than the long-cycle crop. If the long-cycle crop is H/√2, two of the paper's
    three shapes are therefore equal.
    """
    time, space = factors
    crops = (*(min(factor, space) for factor in short_cycle), space)
    return tuple(scale_shape(base, (time, crop), size_divisor, batch_exponent) for crop in crops)


def _count_iterations(
    lengths: Sequence[Fraction], cycles: Sequence[tuple[Shape, ...]], clips: Fraction
) -> list[int]:
    """Return the iteration at which each phase stops.

    The numbers of iterations have the ratios of `lengths`, and the phases train `clips` clips in
    total. Each phase stops at the iteration whose number of clips is nearest to the exact value, so
    rounding errors do not accumulate over phases. The computation uses fractions, because sums of
    floats depend on the Python version and could break a tie either way.

    Raises:
        ValueError: A phase has no iteration.
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
                f"the training is too short: with {float(clips):.0f} clips, phase {phase + 1} of "
                f"{len(lengths)} (shape {shapes[-1]}) has no iteration. Train for more epochs or "
                "with a smaller batch"
            )
        stops.append(i)
    return stops


def _bn_size(size: int | None, shape: Shape, long_shape: Shape, base: Shape) -> int | None:
    """Return the number of clips per BN group.

    A group has `size` clips at a long-cycle shape. If the short cycle multiplies the batch by 2 or
    4, groups are larger by the same factor (§3.2). A batch smaller than this is a single group. If
    such groups do not divide the batch, as can happen with a `batch_exponent`, a group has `size`
    clips, or the baseline's batch size if that is smaller. For example, 12 clips form three groups
    of 4 if the baseline's batch size is 4.

    Raises:
        ValueError: The batch cannot be divided into such groups.
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
            f"a batch of {shape.batch} clips ({shape}) cannot be divided into BN groups of {clips} "
            "clips. Choose a bn_size that divides the baseline's batch size, or another batch size"
        )
    return clips
