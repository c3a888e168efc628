"""Division of a training into the phases of a `Schedule` (paper §3).

There is one phase for each long-cycle shape in each learning-rate stage, and one or two for
fine-tuning. Each phase corresponds to an interval of epochs of the baseline, and takes its learning
rate from the policy of the baseline in this interval, scaled to its batch size (`lr_scale`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from multigrid.cycles import GENTLE, Cycles
from multigrid.errors import MultigridError
from multigrid.learning_rate import LearningRate, batch_rate_factor
from multigrid.schedule import Phase, Schedule
from multigrid.shapes import BASE_FACTORS, CostPerClip, Factors, Shape, scale_shape
from multigrid.stages import Stage, StagedRate, check_stages

_LEVEL_GROUP = 8
"""Without BN groups, batches that keep a cost constant are multiples of this number of clips."""

_UNPLACED = {"start": 0, "stop": 0, "first_clip": 0}
"""Place of a phase whose iterations and clips `_place_phases` has not determined yet."""

_DEFAULTS = (GENTLE, 8, 1, "linear", False, False, True, None)
"""Defaults of the arguments of `make_schedule` that have no effect with stages."""


class _Part(NamedTuple):
    """Phase whose number of iterations is not known yet.

    Attributes:
        epochs: Epochs (start, stop) of the baseline's training that correspond to the phase.
        stage: Index of the learning-rate stage.
        factors: (t/T, h/H) of the long-cycle shape.
        fine_tuning: Whether the phase belongs to the fine-tuning stage.
    """

    epochs: tuple[float, float]
    stage: int
    factors: Factors
    fine_tuning: bool


def make_schedule(
    base: Shape,
    num_videos: int,
    learning_rate: LearningRate | None = None,
    cycles: Cycles | None = GENTLE,
    *,
    stages: Sequence[Stage] | None = None,
    bn_group_size: int | None = 8,
    size_divisor: int = 1,
    batch_rate_rule: str = "linear",
    equal_time: bool = False,
    warmup_in_epochs: bool = False,
    fine_tuning: bool = True,
    cost_per_clip: CostPerClip | None = None,
) -> Schedule:
    """Make the schedule of a training (paper §3).

    Each learning-rate stage except the last contains one long cycle. The lengths of the stages have
    the same ratios as in the baseline. The last stage is fine-tuning at the baseline's shape. The
    first half of fine-tuning keeps the learning rate of the previous stage. The training has
    epoch_factor × epochs × num_videos clips, to within one mini-batch.

    With `stages`, the schedule is a table instead: each row is a stage with a shape, an end, a rate
    and a BN group size. The other arguments are then `base`, `num_videos` and `learning_rate`.

    Args:
        base: The shape of the baseline's mini-batch over all processes. Evaluations use its frames
            and crop.
        num_videos: Number of training videos. An epoch is one clip of each video.
        learning_rate: The baseline's learning-rate policy. It also defines the length and the
            stages of the baseline's training. With `stages`, it is the policy of the stages without
            a rate, and not needed if all stages have one.
        cycles: `GENTLE` for short trainings, `PAPER` for long trainings (see `recommend_cycles`),
            cycles of your own, or None for the baseline. Give `cycles.sampling` to the data set.
        stages: Stages in the order of the training, instead of cycles.
        bn_group_size: Number of clips that share BN statistics at a long-cycle shape. None means
            that each process normalises its clips together.
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
        cost_per_clip: Function of (frames, crop) that returns the cost of one clip, such as its
            FLOPs. The batch of each shape keeps this cost constant, to within half a BN group (8
            clips without `bn_group_size`). None keeps the number of pixels constant, as in the
            paper.

    Raises:
        ValueError: An argument is out of range, a batch cannot be divided into BN groups, or the
            training is so short that a phase has no iteration.
    """
    if bn_group_size is not None and bn_group_size < 1:
        raise MultigridError(
            f"bn_group_size is {bn_group_size}, but must be at least 1 clip, or None"
        )
    if stages is not None:
        others = (
            cycles,
            bn_group_size,
            size_divisor,
            batch_rate_rule,
            equal_time,
            warmup_in_epochs,
        )
        if (*others, fine_tuning, cost_per_clip) != _DEFAULTS:
            raise MultigridError(
                "with stages, make_schedule takes only base, num_videos and learning_rate. Write "
                "shapes, rates and BN group sizes into the stages"
            )
        return _staged_schedule(base, num_videos, learning_rate, tuple(stages))
    if not isinstance(learning_rate, LearningRate):
        raise MultigridError(
            f"learning_rate is {learning_rate!r}, but must be a policy such as CosineRate, or "
            "SteppedRate((40.0, 50.0), (0.1, 0.01)) for 50 epochs"
        )
    used = cycles or Cycles()
    long_cycle = used.long_cycle
    if not long_cycle and used.short_cycle and learning_rate.drops:
        long_cycle = (BASE_FACTORS,)
    late = long_cycle and fine_tuning
    policy = learning_rate.with_late_last_drop() if late else learning_rate
    scale = partial(
        scale_shape,
        base,
        size_divisor=size_divisor,
        batch_exponent=used.batch_exponent,
        cost_per_clip=cost_per_clip,
        group=bn_group_size or _LEVEL_GROUP,
    )
    drafts = [
        _draft(
            part,
            _short_cycle(scale, part.factors, used.short_cycle),
            base,
            bn_group_size,
            batch_rate_rule,
        )
        for part in _divide_training(policy, learning_rate.stage_ends, long_cycle, fine_tuning)
    ]
    epochs = used.epoch_factor * learning_rate.stage_ends[-1]
    shares = _shares(drafts, equal_time)
    phases = _place_phases(drafts, [Fraction(epochs) * num_videos * share for share in shares])
    made = Schedule(base, num_videos, epochs, policy, phases, cycles)
    return _with_warmup_in_epochs(made) if warmup_in_epochs else made


def _draft(
    part: _Part,
    shapes: tuple[Shape, ...],
    base: Shape,
    bn_group_size: int | None,
    batch_rate_rule: str,
) -> Phase:
    """Return a phase without its iterations and clips, which `_place_phases` determines."""
    last = shapes[-1]
    return Phase(
        **_UNPLACED,
        baseline_epochs=part.epochs,
        stage=part.stage,
        lr_scale=batch_rate_factor(last.batch / base.batch, batch_rate_rule),
        shapes=shapes,
        bn_group_sizes=tuple(_bn_group_size(bn_group_size, shape, last, base) for shape in shapes),
        fine_tuning=part.fine_tuning,
    )


def _divide_training(
    policy: LearningRate,
    stage_ends: tuple[float, ...],
    long_cycle: tuple[Factors, ...],
    fine_tuning: bool,
) -> list[_Part]:
    """Return one part for each long-cycle shape in each stage that has a long cycle.

    The remaining stages are divided where the learning rate of the policy drops.
    """
    *cycled, end = stage_ends
    cycled += [] if fine_tuning else [end]
    if long_cycle and not cycled:
        raise MultigridError(
            "the learning rate has one stage, but a long cycle needs at least two: the last stage "
            "is fine-tuning, and each other stage contains one long cycle. Add a learning-rate "
            "step, or use no long cycle"
        )
    starts = (0.0, *cycled) if long_cycle else (0.0,)
    parts = list[_Part]()
    for stage, (start, stop) in enumerate(pairwise(starts)):
        cuts = [start + (stop - start) * j / len(long_cycle) for j in range(len(long_cycle))]
        for epochs, factors in zip(pairwise((*cuts, stop)), long_cycle, strict=True):
            parts.append(_Part(epochs, stage, factors, False))
    last = starts[-1]
    cuts = sorted({last, *(drop for drop in policy.drops if last < drop < end), end})
    for count, epochs in enumerate(pairwise(cuts)):
        stage = len(starts) - 1 if long_cycle else count
        parts.append(_Part(epochs, stage, BASE_FACTORS, bool(long_cycle)))
    return parts


def _short_cycle(
    scale: Callable[[Factors], Shape], factors: Factors, short_cycle: Sequence[float]
) -> tuple[Shape, ...]:
    """Return the shapes of the short cycle for a long-cycle shape.

    The crops are H · factor for each factor of the short cycle, and finally the long-cycle crop. No
    crop is larger than the long-cycle crop. If the long-cycle crop is H/√2, two of the paper's
    three shapes are therefore equal.
    """
    time, space = factors
    crops = (*(min(factor, space) for factor in short_cycle), space)
    return tuple(scale((time, crop)) for crop in crops)


def _staged_schedule(
    base: Shape,
    num_videos: int,
    policy: LearningRate | None,
    stages: tuple[Stage, ...],
) -> Schedule:
    """Return the schedule of a table of stages.

    Raises:
        ValueError: See `check_stages`. Or a batch cannot be divided into BN groups, or a stage has
            no iteration.
    """
    check_stages(stages, policy)
    drafts = list[Phase]()
    start = 0.0
    for number, stage in enumerate(stages):
        shapes = stage.shapes
        draft = Phase(
            **_UNPLACED,
            baseline_epochs=(start, stage.until),
            stage=number,
            lr_scale=1.0,
            shapes=shapes,
            bn_group_sizes=tuple(
                _bn_group_size(stage.bn_group_size, shape, shapes[-1], base) for shape in shapes
            ),
            fine_tuning=False,
        )
        drafts.append(draft)
        start = stage.until
    ends = [Fraction(stage.until) * num_videos for stage in stages]
    rate = StagedRate(stages, policy)
    return Schedule(base, num_videos, stages[-1].until, rate, _place_phases(drafts, ends))


def _shares(drafts: Sequence[Phase], equal_time: bool) -> list[Fraction]:
    """Return the share of the clips that are trained until the end of each phase.

    The numbers of iterations are in proportion to the baseline's epochs of the phases. With
    `equal_time`, the numbers of pixels are in proportion instead. The computation uses fractions,
    because sums of floats depend on the Python version, and ties could then be rounded up or down.
    """
    weights = list[Fraction]()
    for draft in drafts:
        begin, end = map(Fraction, draft.baseline_epochs)
        cost = sum(s.volume for s in draft.shapes) if equal_time else len(draft.shapes)
        weights.append((end - begin) * sum(s.batch for s in draft.shapes) / cost)
    total = sum(weights, Fraction(0))
    return [reached / total for reached in accumulate(weights)]


def _place_phases(drafts: Sequence[Phase], ends: Sequence[Fraction]) -> tuple[Phase, ...]:
    """Return the phases with the iterations at which they start and stop.

    Each phase stops at the iteration whose number of clips is nearest to its end, so rounding
    errors do not accumulate over phases.

    Args:
        drafts: The phases, without `start`, `stop` and `first_clip`.
        ends: Number of clips that are trained until the end of each phase.

    Raises:
        ValueError: A phase has no iteration.
    """
    phases = list[Phase]()
    i = seen = 0
    for count, (draft, wanted) in enumerate(zip(drafts, ends, strict=True), 1):
        batches = [shape.batch for shape in draft.shapes]
        whole = max(0, (wanted - seen) // sum(batches) - 1)  # short cycles
        stop = i + whole * len(batches)
        trained = seen + whole * sum(batches)
        while abs(trained + batches[stop % len(batches)] - wanted) <= abs(trained - wanted):
            trained += batches[stop % len(batches)]
            stop += 1
        if stop == i:
            raise MultigridError(
                f"the training is too short: with {float(ends[-1]):.0f} clips, phase {count} of "
                f"{len(drafts)} (shape {draft.base_shape}) has no iteration. Train for more epochs "
                "or with a smaller batch"
            )
        phases.append(replace(draft, start=i, stop=stop, first_clip=seen))
        i, seen = stop, trained
    return tuple(phases)


def _with_warmup_in_epochs(schedule: Schedule) -> Schedule:
    """Return a copy of a schedule whose warm-up lasts as many epochs as the baseline's warm-up.

    If the schedule's warm-up is shorter already, it does not change. This happens if the training
    has few epochs or small batches.
    """
    policy: Any = schedule.learning_rate
    end = schedule.first_iteration_after(policy.warmup.epochs * schedule.num_videos)
    if end == schedule.iterations:
        return schedule
    point = schedule.phases[schedule.phase_at(end)].baseline_epoch(end)
    shorter = replace(policy.warmup, epochs=min(policy.warmup.epochs, point))
    return replace(schedule, learning_rate=replace(policy, warmup=shorter))


def _bn_group_size(size: int | None, shape: Shape, long_shape: Shape, base: Shape) -> int | None:
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
        raise MultigridError(
            f"a batch of {shape.batch} clips ({shape}) cannot be divided into BN groups of {clips} "
            "clips. Choose a bn_group_size that divides the baseline's batch size, or another "
            "batch size"
        )
    return clips
