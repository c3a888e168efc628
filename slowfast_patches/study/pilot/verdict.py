"""What a pilot measured, and what follows from it: one claim, and how probable it is.

The claim is that the best cycle is ahead of the baseline after equal time. Its probability counts
with two errors of each score, that of so many videos and that of a single seed. The latter is large
where a curve is steep, as in the minutes of a pilot (projects/real_video/README.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from multigrid import Schedule, Shape
from multigrid.cost import MIN_FINAL_ITERATIONS
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import schedule_of

__all__ = ["Pilot", "PilotArm", "Stage"]

_SEEDS = 40.0
"""The standard deviation of a score p over seeds is this many points times p (1 − p): the root mean
square of the twenty lengths of words and digits (projects/real_video/README.md)."""
_PROBABLE = 0.75
"""Probability from which on there is an advice."""
_SUREST = 0.95
"""No probability is above: one seed on one set does not prove more."""


@dataclass(frozen=True)
class Stage:
    """What was trained at one shape: `seconds` with loading; `loss` the mean of the last tenth."""

    shape: Shape
    seconds: float
    iterations: int
    loss: float

    @property
    def clips(self) -> int:
        return self.iterations * self.shape.batch

    @property
    def seconds_per_clip(self) -> float:
        return self.seconds / self.clips


@dataclass(frozen=True)
class PilotArm:
    """The baseline, which has no `keys`, or a cycle: the shapes that it trained, and its score at
    the baseline's grid in the end, in per cent."""

    name: str
    keys: Mapping[str, object]
    stages: tuple[Stage, ...]
    score: float


@dataclass(frozen=True)
class Pilot:
    """Arms that were trained for equal times, the baseline first, and at least one cycle.

    recipe, schedule: the baseline's, of one process.
    metric: the name of the scores.
    videos: how many were scored; the commonest class has `chance` per cent of them, and 0 where a
        video has several classes.
    processes: how many the baseline asks for.
    baseline_seconds: what the whole baseline takes on them, without evaluation, if that many
        processes are that many times as fast as one.
    seconds: what the pilot took.
    """

    recipe: Recipe
    schedule: Schedule
    arms: tuple[PilotArm, ...]
    metric: str
    videos: int
    chance: float
    processes: int
    baseline_seconds: float
    seconds: float

    @property
    def best(self) -> PilotArm:
        """The cycle with the highest score."""
        return max(self.arms[1:], key=lambda arm: arm.score)

    @property
    def ahead(self) -> float:
        """The probability that the best cycle is ahead of the baseline after equal time, with other
        videos and seeds. Of several cycles, each had a chance to be the best by luck."""
        baseline = self.arms[0].score
        best = self.best.score
        spread = math.hypot(self.error(baseline), self.error(best))
        ahead = 0.5 * (1 + math.erf((best - baseline) / spread / math.sqrt(2)))
        if ahead > 0.5:
            ahead = max(0.5, 1 - (len(self.arms) - 1) * (1 - ahead))
        return min(max(ahead, 1 - _SUREST), _SUREST)

    @property
    def verdict(self) -> str:
        """ "use multigrid", "do not use multigrid" or "undecided"; against a cycle speaks only one
        that had `MIN_FINAL_ITERATIONS` after its change of shape."""
        if self.ahead >= _PROBABLE:
            return "use multigrid"
        if self.ahead <= 1 - _PROBABLE and self.final_iterations >= MIN_FINAL_ITERATIONS:
            return "do not use multigrid"
        return "undecided"

    @property
    def final_iterations(self) -> int:
        """Iterations of the best cycle at the baseline's shape."""
        return self.best.stages[-1].iterations

    def error(self, score: float) -> float:
        """The standard error of a score in per cent: that of a proportion of the videos, and that
        of a single seed."""
        part = min(max(score / 100, 1 / self.videos), 1 - 1 / self.videos)
        variance = part * (1 - part)
        return math.hypot(100 * math.sqrt(variance / self.videos), _SEEDS * variance)

    @property
    def speed_up(self) -> float:
        """The baseline's seconds over those of the best cycle with as many clips, by the seconds of
        a clip in the pilot."""
        stages = (*self.best.stages, *self.arms[0].stages)
        per_clip = {stage.shape: stage.seconds_per_clip for stage in stages}
        schedule = schedule_of(self.recipe.replaced(self.best.keys), self.schedule.num_videos)
        seconds = sum(phase.clips * per_clip[phase.base_shape] for phase in schedule.phases)
        return self.schedule.clips * per_clip[self.schedule.base] / seconds
