"""A schedule as a table: one row for each stage of the training."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite

from multigrid.errors import MultigridError
from multigrid.learning_rate import LearningRate, Warmup
from multigrid.shapes import Shape


@dataclass(frozen=True)
class Stage:
    """Row of a table of stages (see `make_schedule`).

    Args:
        shape: Shape of the mini-batch over all processes. If it is a tuple of shapes, iteration i
            has the shape `shape[i % len(shape)]`, as in the short cycle of the paper.
        until: Epoch at which the stage ends. The first stage starts at epoch 0, and each other
            stage starts where the stage before it ends. An epoch is one clip of each video.
        rate: Learning rate. A pair (first, last) changes it linearly from the start to the end of
            the stage, for example for a warm-up or a cooldown. None takes the rate of the policy
            `learning_rate` of `make_schedule` at the epoch of the training.
        bn_group_size: Number of clips that share BN statistics at the last of the shapes. Groups of
            the other shapes grow with the batch. None means that each process normalises its clips
            together.
    """

    shape: Shape | tuple[Shape, ...]
    until: float
    rate: float | tuple[float, float] | None = None
    bn_group_size: int | None = 8

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes that the iterations of the stage take in turn."""
        return (self.shape,) if isinstance(self.shape, Shape) else tuple(self.shape)

    @property
    def rates(self) -> tuple[float, float] | None:
        """Learning rate at the start and at the end. None for the policy of `make_schedule`."""
        if self.rate is None:
            return None
        first, last = self.rate if isinstance(self.rate, tuple | list) else (self.rate, self.rate)
        return float(first), float(last)


@dataclass(frozen=True)
class StagedRate(LearningRate):
    """Learning-rate policy of a table of stages, as a function of the epoch of the training.

    Args:
        stages: The stages.
        policy: Policy of the stages that have no rate. None if all stages have one.
    """

    stages: tuple[Stage, ...]
    policy: LearningRate | None = None
    warmup: Warmup = field(default_factory=Warmup)

    @property
    def stage_ends(self) -> tuple[float, ...]:
        return tuple(stage.until for stage in self.stages)

    def rate(self, epoch: float) -> float:
        ends = self.stage_ends
        index = bisect_right(ends[:-1], epoch)
        rates = self.stages[index].rates
        if rates is None:
            assert self.policy is not None
            return self.policy.at(epoch)
        start = ends[index - 1] if index else 0.0
        share = (epoch - start) / (ends[index] - start)
        return rates[0] + (rates[1] - rates[0]) * share


def check_stages(stages: Sequence[Stage], learning_rate: LearningRate | None) -> None:
    """Check a table of stages.

    Raises:
        ValueError: There is no stage, a stage ends before it starts, or has no shape or no valid
            rate. The message names the row.
    """
    if not stages:
        raise MultigridError("stages is empty. Give at least one Stage(shape, until, rate)")
    start = 0.0
    for number, stage in enumerate(stages, 1):
        if problem := _problem(stage, start, learning_rate):
            raise MultigridError(f"stage {number} of {len(stages)} {problem}")
        start = stage.until
    end = stages[-1].until
    if learning_rate is not None and learning_rate.stage_ends[-1] != end:
        raise MultigridError(
            f"the last stage ends at epoch {end:g}, but the learning-rate policy ends at epoch "
            f"{learning_rate.stage_ends[-1]:g}. Give both the same end"
        )


def _problem(stage: Stage, start: float, learning_rate: LearningRate | None) -> str:
    """Return what is wrong with a stage that starts at epoch `start`, or ""."""
    shapes = stage.shapes
    if not shapes or not all(isinstance(shape, Shape) for shape in shapes):
        return f"has the shape {stage.shape!r}. Give a Shape, or a tuple of at least one Shape"
    if not (isfinite(stage.until) and stage.until > start):
        return f"ends at epoch {stage.until:g}, but starts at epoch {start:g}. Ends must ascend"
    size = stage.bn_group_size
    if size is not None and not (isinstance(size, int) and size >= 1):
        return f"has bn_group_size {size!r}. Give a number of clips of at least 1, or None"
    if stage.rate is None:
        missing = "has no rate. Give the stage a rate, or give make_schedule a learning_rate"
        return missing if learning_rate is None else ""
    given = stage.rate if isinstance(stage.rate, tuple | list) else (stage.rate, stage.rate)
    valid = all(isinstance(rate, int | float) and isfinite(rate) and rate >= 0 for rate in given)
    if len(given) != 2 or not valid:
        return f"has the rate {stage.rate!r}. Give a number of at least 0, or a pair (first, last)"
    return ""
