"""A pilot: minutes of training that tell whether multigrid pays for a model on its data, and which.

race       the baseline and a few cycles, all from the same weights, each for as many seconds
           of training with loading
score      each on the same validation videos, after precise BN: at the coarse grid when these
           seconds are spent, at the baseline's grid in the end
judge      do coarse shapes teach faster, does it carry over to the baseline's grid, how sure is it
propose    the keys of the best cycle, and how many times faster as many clips pass through it

A cycle spends three fifths of its seconds on coarse shapes, in equal parts, and the rest at the
baseline's, where the rate falls to zero, as the baseline's does. The last part is needed: a network
that was trained on 32² pixels alone may know nothing at 64², where it learns it again within some
dozen iterations (docs/proof.md). That change costs the same in a long training, where it hardly
counts, and in a pilot, where it may cost all that coarse shapes gained: so both are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from multigrid import Schedule, Shape
from multigrid.shapes import Factors
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.plan.plan import MIN_FINAL_ITERATIONS

__all__ = ["Arm", "Cycle", "Pilot", "Stage", "Verdict"]

_SURE, _LIKELY = 0.95, 2 / 3
_SEEDS = 3.0
"""Points by which scores of several seeds spread at least; in steep parts of a curve by 15 and more
(docs/proof.md)."""


@dataclass(frozen=True)
class Cycle:
    """A way to train: `factors` of the long cycle's shapes, and further keys of MULTIGRID."""

    name: str
    factors: tuple[Factors, ...]
    keys: Mapping[str, object] = field(default_factory=dict)

    @property
    def overrides(self) -> dict[str, object]:
        """The keys that train so for as many clips as the baseline, whatever a recipe has."""
        if not self.keys:
            return {}
        return {
            "MULTIGRID.LONG_CYCLE": True,
            "MULTIGRID.LONG_CYCLE_FACTORS": [list(pair) for pair in (*self.factors, (1.0, 1.0))],
            "MULTIGRID.SHORT_CYCLE": False,
            **self.keys,
            "MULTIGRID.EPOCH_FACTOR": 1.0,
        }


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
class Arm:
    """A cycle's stages, and its scores, per cent of the videos: `own` at the grid of its last
    coarse shape, before the last stage, and `score` at the baseline's grid, in the end."""

    cycle: Cycle
    stages: tuple[Stage, ...]
    own: float
    score: float


@dataclass(frozen=True)
class Verdict:
    """What the race says: the best arm, or None where no cycle is to be used; in words, and `sure`,
    the probability of what it rests on, by the number of videos and the usual spread of seeds."""

    best: Arm | None
    sure: float
    text: str


@dataclass(frozen=True)
class Pilot:
    """A race that was run.

    arms: the baseline first; none where time was too short.
    metric: the name of the scores.
    videos: how many were scored; the commonest class has `chance` per cent of them.
    processes: how many the baseline asks for.
    baseline_seconds: what the whole baseline takes on them, without evaluation, if that many
        processes are that many times as fast as one.
    seconds: what the pilot took.
    """

    recipe: Recipe
    schedule: Schedule
    arms: tuple[Arm, ...]
    metric: str
    videos: int
    chance: float
    processes: int
    baseline_seconds: float
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """What to do.

        The baseline at three fifths of its seconds is what cycles are held against: coarse shapes
        teach faster if they reach more on their own grid in as many; what they taught carries over
        if the two fifths at the baseline's shape end above what it reached in three from scratch.
        Against a cycle speaks only one that had `MIN_FINAL_ITERATIONS` there.
        """
        if not self.arms:
            text = (
                "do not use multigrid here on this evidence: the time is too short to try anything;"
                " the whole baseline is quickly trained, or give more --minutes"
            )
            return Verdict(None, 0.5, text)
        baseline, *others = self.arms
        if not others:
            text = "do not use multigrid here on this evidence: with every cycle the loss diverged"
            return Verdict(None, 0.5, text)
        found = [(self._better(arm.score, baseline.score), arm) for arm in others]
        most, best = max(found, key=lambda pair: pair[0])
        at_once = self._of_several(most)
        if at_once >= _SURE:
            return Verdict(best, at_once, f"use multigrid ({best.cycle.name})")
        carried, likely = max(((self._carries_over(a), a) for a in others), key=lambda p: p[0])
        if carried >= _LIKELY:
            text = (
                f"use multigrid ({likely.cycle.name}) in a training as long as the baseline's: its "
                "coarse shapes teach faster, and it seems to carry over; in one as short as this, "
                "the change of shape still costs what they gain"
            )
            return Verdict(likely, carried, text)
        if max(baseline.own, baseline.score, best.score) < self._learned:
            text = (
                "do not use multigrid here on this evidence: nothing was learned in so short a "
                "time, by the baseline neither; more --minutes may tell more"
            )
            return Verdict(None, 0.5, text)
        if (final := best.stages[-1].iterations) < MIN_FINAL_ITERATIONS:
            minutes = math.ceil(self.seconds / 60 * MIN_FINAL_ITERATIONS / final)
            text = (
                f"undecided: in {final} iterations after its change of shape a cycle cannot show "
                f"what it taught, in {MIN_FINAL_ITERATIONS} it may; give --minutes {minutes}"
            )
            return Verdict(None, 0.5, text)
        if most <= 1 - _SURE:
            text = "do not use multigrid here: the baseline learns faster"
            return Verdict(None, 1 - most, text)
        text = "do not use multigrid here: no cycle is clearly better than the baseline"
        return Verdict(None, 1 - at_once, f"{text}; more --minutes would tell more")

    def _of_several(self, probability: float) -> float:
        """The probability of the best of several cycles, each of which had a chance to be it."""
        return max(0.0, 1 - (len(self.arms) - 1) * (1 - probability))

    def _carries_over(self, arm: Arm) -> float:
        """The probability that it does; 0 where its coarse shapes do not surely teach faster."""
        before = self.arms[0].own
        if self._of_several(self._better(arm.own, before)) < _SURE:
            return 0.0
        return self._of_several(self._better(arm.score, max(before, self.chance)))

    @property
    def _learned(self) -> float:
        """The score from which on something was learned: two standard errors above chance."""
        return self.chance + 2 * self.error(self.chance)

    def _better(self, score: float, other: float) -> float:
        """The probability that a score would be above another with other videos and seeds; of the
        same videos, as here, it is surer."""
        spread = math.hypot(self.error(score), self.error(other), _SEEDS, _SEEDS)
        return 0.5 * (1 + math.erf((score - other) / spread / math.sqrt(2)))

    def error(self, score: float) -> float:
        """The standard error of a score in per cent, as of a proportion of the videos."""
        part = min(max(score / 100, 1 / self.videos), 1 - 1 / self.videos)
        return 100 * math.sqrt(part * (1 - part) / self.videos)

    def speed_up(self, arm: Arm) -> float:
        """The baseline's seconds over those of an arm's cycle with as many clips, by the seconds of
        a clip of the race."""
        per_clip = {stage.shape: stage.seconds_per_clip for a in self.arms for stage in a.stages}
        phases = schedule_of(self.advised(arm), self.schedule.num_videos).phases
        seconds = sum(phase.clips * per_clip[phase.base_shape] for phase in phases)
        return self.processes * self.baseline_seconds / seconds

    def advised(self, arm: Arm) -> Recipe:
        """The recipe that trains with an arm's cycle for as many clips as the baseline."""
        return self.recipe.replaced(arm.cycle.overrides)
