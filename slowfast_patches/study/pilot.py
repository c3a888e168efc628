"""A pilot: minutes of training that tell whether multigrid pays for a model on its data, and which.

race       the baseline and a few cycles, each from scratch, for equal seconds, loading included
score      each on the same validation videos, after precise BN: at the coarse grid when two thirds
           of its seconds are spent, at the baseline's grid in the end
judge      do coarse shapes teach faster, does it carry over to the baseline's grid, how sure is it
propose    the keys of the best cycle, and how many times faster as many clips pass through it

A cycle spends two thirds of its seconds on coarse shapes, in equal parts, and the last third at the
baseline's, where the rate falls to zero, as the baseline's does. The last part is needed: a network
that was trained on 32² pixels alone knows nothing at 64², where it learns it again within some
dozen iterations (docs/proof.md). That change costs the same in a long training, where it hardly
counts, and in a pilot, where it may cost all that coarse shapes gained: so both are looked at.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import torch

from multigrid import Phase, Schedule, Shape, SteppedRate, scale_shape
from multigrid.shapes import Factors
from slowfast_patches.config import check_recipe
from slowfast_patches.config.check import check_frames
from slowfast_patches.config.metrics import metric_names
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import rates_of_batch, schedule_of, without_multigrid
from slowfast_patches.datasets.loader import build_dataset, precise_bn_loader, training_loader
from slowfast_patches.launch.launch import for_processes, processes_of
from slowfast_patches.models.build import build_model
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.solver import Precision
from slowfast_patches.train.evaluate import evaluate
from slowfast_patches.train.running_stats import update_precise_bn
from slowfast_patches.train.step import Stepper
from slowfast_patches.utils.distributed import World

__all__ = ["CYCLES", "Arm", "Cycle", "Pilot", "Stage", "Verdict", "run_pilot"]

logger = logging.getLogger(__name__)

_COARSE = 2 / 3
"""Part of a cycle's seconds that is spent on coarse shapes."""
_WARMUP = 0.1
"""Part of an arm's seconds in which the rate rises."""
_MOST_VIDEOS = 400
"""Videos that arms are scored on."""
_SMALLEST_CROP = 32
"""Pixels of the input to one of the last feature map's."""
_TRIED = 3.0
"""Seconds in which a step is timed, and the least that an arm gets."""
_SURE = 0.95


@dataclass(frozen=True)
class Cycle:
    """A way to train: `factors` of the long cycle's shapes, and further keys of MULTIGRID."""

    name: str
    factors: tuple[Factors, ...]
    keys: Mapping[str, object] = field(default_factory=dict)

    @property
    def overrides(self) -> dict[str, object]:
        """The keys that train so."""
        if not self.keys:
            return {}
        shapes = [list(pair) for pair in (*self.factors, (1.0, 1.0))]
        return {"MULTIGRID.LONG_CYCLE": True, "MULTIGRID.LONG_CYCLE_FACTORS": shapes, **self.keys}


_GENTLE = {"MULTIGRID.BATCH_EXPONENT": 0.5, "MULTIGRID.KEEP_FIELD_OF_VIEW": True}
_HALF = math.sqrt(0.5)

CYCLES: tuple[Cycle, ...] = (
    Cycle("baseline", ()),
    Cycle("space", ((1.0, 0.5),), _GENTLE),
    Cycle("time and space", ((0.5, 0.5), (1.0, 0.5)), _GENTLE),
    Cycle("time", ((0.5, 1.0),), _GENTLE),
    Cycle("paper", ((0.25, _HALF), (0.5, _HALF), (0.5, 1.0)), {"MULTIGRID.BATCH_EXPONENT": 1.0}),
)
"""What is tried, in this order, as far as the minutes last; the first is what others must beat."""


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
    the probability of what it rests on, by the number of videos that were scored."""

    best: Arm | None
    sure: float
    text: str


@dataclass(frozen=True)
class Pilot:
    """A race that was run: its arms, the baseline first, whose score after a third of its seconds
    is `first_third`. `chance` is the per cent that the commonest class has of the `videos` that
    were scored; `metric` names the score, `baseline_seconds` is what the whole baseline takes,
    without evaluation, and `seconds` what the pilot took."""

    recipe: Recipe
    schedule: Schedule
    arms: tuple[Arm, ...]
    first_third: float
    metric: str
    videos: int
    chance: float
    baseline_seconds: float
    seconds: float

    @property
    def verdict(self) -> Verdict:
        """What to do.

        The baseline at 1/3 and 2/3 of its seconds is what cycles are held against: coarse shapes
        teach faster if they reach more on their own grid in two thirds than the baseline on its;
        what they taught carries over if the last third then ends above the baseline's first.
        """
        baseline, *others = self.arms
        found = [(self._better(arm.score, baseline.score), arm) for arm in others]
        at_once, best = max(found, key=lambda pair: pair[0])
        if at_once >= _SURE:
            return Verdict(best, at_once, f"use multigrid ({best.cycle.name})")
        late, likely = max(((self._promise(arm), arm) for arm in others), key=lambda p: p[0])
        if late >= _SURE:
            text = (
                f"use multigrid ({likely.cycle.name}) in a training as long as the baseline's: its "
                "coarse shapes teach faster, and it carries over; in one as short as this, the "
                "change of shape still costs what they gain"
            )
            return Verdict(likely, late, text)
        if max(self.first_third, baseline.score, best.score) < self._learned:
            text = (
                "do not use multigrid here on this evidence: nothing was learned in so short a "
                "time, by the baseline neither; more --minutes may tell more"
            )
            return Verdict(None, 0.5, text)
        if at_once <= 1 - _SURE:
            text = "do not use multigrid here: the baseline learns faster"
            return Verdict(None, 1 - at_once, text)
        text = "do not use multigrid here: no cycle is clearly better than the baseline"
        return Verdict(None, 1 - at_once, f"{text}; more --minutes would tell more")

    def _promise(self, arm: Arm) -> float:
        """The probability that an arm's coarse shapes teach faster, and that it carries over."""
        faster = self._better(arm.own, self.arms[0].own)
        return min(faster, self._better(arm.score, max(self.first_third, self.chance)))

    @property
    def _learned(self) -> float:
        """The score from which on something was learned: two standard errors above chance."""
        return self.chance + 2 * self.error(self.chance)

    def _better(self, score: float, other: float) -> float:
        """The probability that a score is truly above another, each of as many videos drawn by
        itself: of the same videos it is surer, and what another seed would give is not in it."""
        spread = math.hypot(self.error(score), self.error(other))
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
        return self.baseline_seconds / seconds

    def advised(self, arm: Arm) -> Recipe:
        """The recipe that trains with an arm's cycle for as many clips as the baseline."""
        return self.recipe.replaced({**arm.cycle.overrides, "MULTIGRID.EPOCH_FACTOR": 1.0})


def run_pilot(recipe: Recipe, seconds: float | None, device: torch.device) -> Pilot:
    """Race the baseline of a recipe against `CYCLES`, within `seconds` in all.

    None gives a tenth of the baseline's own time. As many cycles are tried as get a share of at
    least a thirtieth of that, but always one.

    Raises:
        ValueError: the recipe cannot train, or has no shape that is coarser than its own.
    """
    began = time.monotonic()
    race = _Race(one_process(recipe), device)
    cycles = [cycle for cycle in CYCLES if race.fits(cycle)]
    if len(cycles) < 2:
        raise ValueError(
            f"{race.schedule.base} has no coarser shape that the model takes: crops have "
            f"{_SMALLEST_CROP} pixels or more, and frames divide by SLOWFAST.ALPHA"
        )
    # A recipe that has no place for a long cycle is refused before anything is trained.
    schedule_of(race.recipe.replaced(cycles[1].overrides), race.schedule.num_videos)
    step, scoring = race.try_baseline()
    whole = race.schedule.iterations * step
    seconds = whole / 10 if seconds is None else seconds
    count = min(len(cycles), max(2, int(30 * seconds / whole)))
    end, arms = began + seconds, list[Arm]()
    for number, cycle in enumerate(cycles[:count]):
        share = (end - time.monotonic()) / (count - number) - (2 if number else 3) * scoring
        arms.append(race.run(cycle, max(share, _TRIED)))
        logger.info("%s: %.1f %%", cycle.name, arms[-1].score)
    base = arms[0].stages
    clips = race.schedule.clips
    per_clip = sum(stage.seconds for stage in base) / sum(stage.clips for stage in base)
    return Pilot(
        recipe=race.recipe,
        schedule=race.schedule,
        arms=tuple(arms),
        first_third=race.first_third,
        metric=metric_names(recipe)[0],
        videos=len(race.sample.videos),
        chance=race.sample.chance(),
        baseline_seconds=clips * per_clip,
        seconds=time.monotonic() - began,
    )


def one_process(recipe: Recipe) -> Recipe:
    """The baseline of a recipe, of one process's share of the mini-batch, at the rate of that many
    clips."""
    recipe = for_processes(without_multigrid(recipe))
    processes = processes_of(recipe)
    check_recipe(recipe, processes)
    clips = recipe.base_shape.batch // processes
    share = clips / recipe.base_shape.batch
    return recipe.replaced(
        {
            "NUM_SHARDS": 1,
            "NUM_GPUS": min(1, recipe.num_gpus),
            "TRAIN.BATCH_SIZE": clips,
            "SOLVER.BASE_LR": recipe.solver.base_lr * share,
            "SOLVER.REFERENCE_WORLD_SIZE": 0,
        }
    )


class _Sample:
    """Some of a validation set's videos, evenly spread over the list, as a data set."""

    def __init__(self, dataset: Any) -> None:
        count = min(_MOST_VIDEOS, len(dataset.videos))
        self._dataset = dataset
        self._numbers = np.linspace(0, len(dataset.videos) - 1, count).astype(int)
        self.videos = [dataset.videos[number] for number in self._numbers]

    def __len__(self) -> int:
        return len(self.videos)

    def __getitems__(self, numbers: Sequence[int]) -> Any:
        batch = self._dataset.__getitems__([int(self._numbers[n]) for n in numbers])
        places = {int(number): place for place, number in enumerate(self._numbers)}
        videos = [places[number] for number in batch["videos"].tolist()]
        return {**batch, "videos": torch.tensor(videos, dtype=torch.int64)}

    def chance(self) -> float:
        """Per cent of the videos that the commonest class has; 0 of several labels a video."""
        labels = [getattr(video, "label", None) for video in self.videos]
        counts = [labels.count(label) for label in set(labels) if label is not None]
        return 100 * max(counts, default=0) / len(labels)


class _Race:
    """Trains arms from the same initial weights on the same stream of clips."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self._world = recipe, World(0, 1, device)
        self._data = build_dataset(recipe, "train")
        self.sample = _Sample(build_dataset(recipe, "val"))
        self.schedule = schedule_of(recipe, len(self._data))
        self.first_third = math.nan

    def fits(self, cycle: Cycle) -> bool:
        """Whether the model takes all shapes of a cycle."""
        arch, alpha = self.recipe.model.arch, self.recipe.slowfast.alpha
        base, factors = self.schedule.base, cycle.factors
        try:
            check_frames(arch, base.frames, alpha, [1.0, *(time for time, _ in factors)])
        except ValueError:
            return False
        return all(round(base.crop * space) >= _SMALLEST_CROP for _, space in factors)

    def try_baseline(self) -> tuple[float, float]:
        """Seconds of its step, loading included, and of scoring it."""
        stepper, began = self._stepper(self.recipe), time.monotonic()
        self._score(stepper, self.schedule.base)
        scoring = time.monotonic() - began
        stage = self._train(stepper, self._data, self.schedule.base, _TRIED, 0, lambda _: 0.0)
        return stage.seconds / stage.iterations, scoring

    def run(self, cycle: Cycle, seconds: float) -> Arm:
        """Train a cycle from scratch for some seconds, and score it; the baseline three times."""
        recipe, base = self.recipe.replaced(cycle.overrides), self.schedule.base
        stepper, data = self._stepper(recipe), build_dataset(recipe, "train")
        growth = recipe.multigrid.batch_exponent
        shapes = [scale_shape(base, pair, batch_exponent=growth) for pair in cycle.factors]
        coarse = shapes or [base, base]
        part = _COARSE * seconds / len(coarse)
        stages, done, clips, scores = list[Stage](), 0.0, 0, list[float]()
        for shape in (*coarse, base):
            left = seconds - done if len(stages) == len(coarse) else part
            rate = partial(_rate, done=done, whole=seconds)
            stages.append(self._train(stepper, data, shape, left, clips, rate))
            done, clips = done + left, clips + stages[-1].clips
            if len(stages) >= len(coarse) or not shapes:
                scores.append(self._score(stepper, shape))
        if not shapes:
            self.first_third = scores[0]
        return Arm(cycle, tuple(stages), scores[-2], scores[-1])

    def _stepper(self, recipe: Recipe) -> Stepper:
        torch.manual_seed(recipe.rng_seed)
        device = self._world.device
        return Stepper(recipe, build_model(recipe, grouped_bn=True).to(device), device)

    def _train(
        self,
        stepper: Stepper,
        data: Any,
        shape: Shape,
        seconds: float,
        first_clip: int,
        rate: Callable[[float], float],
    ) -> Stage:
        """Train at a shape for some seconds, from the first mini-batch that is read; `rate` is the
        part of the full learning rate after so many of them."""
        schedule = self._endless(shape, first_clip)
        batches = iter(training_loader(stepper.recipe, data, schedule, 0, 0, 1))
        losses, began = list[float](), math.nan
        for step, batch in zip(schedule.steps(), batches, strict=True):
            began = time.monotonic() if not losses else began
            now = step._replace(lr=step.lr * rate(time.monotonic() - began))
            losses.append(float(stepper(now, batch).loss))
            spent = time.monotonic() - began
            if spent >= seconds:
                break
        last = losses[-max(1, len(losses) // 10) :]
        return Stage(shape, spent, len(losses), fmean(last))

    def _endless(self, shape: Shape, first_clip: int) -> Schedule:
        """One shape for longer than anybody waits, at the recipe's rate for its clips."""
        base, size = self.schedule.base, self.recipe.multigrid.bn_base_size
        phase = Phase(
            start=0,
            stop=10**9,
            baseline_epochs=(0.0, 1.0),
            stage=0,
            lr_scale=shape.batch / base.batch,
            shapes=(shape,),
            bn_sizes=(size if shape.batch % size == 0 else shape.batch,),
            first_clip=first_clip,
        )
        rate = SteppedRate((1.0,), (rates_of_batch(self.recipe).solver.base_lr,))
        return Schedule(base, self.schedule.num_videos, 1.0, rate, (phase,))

    def _score(self, stepper: Stepper, shape: Shape) -> float:
        """Per cent of the sample, at the grid of a shape with precise BN there; the weights and
        statistics that are trained on stay."""
        recipe, world = self._on(shape), self._world
        model = build_model(recipe, grouped_bn=True).to(world.device)
        model.load_state_dict(stepper.model.state_dict())
        data, sample = build_dataset(recipe, "train"), _Sample(build_dataset(recipe, "val"))
        schedule = schedule_of(recipe, self.schedule.num_videos)
        step, batch = schedule.at(0), schedule.base.batch
        loader = precise_bn_loader(recipe, data, schedule, step, world.rank, world.size)
        transform = InputTransform.of_recipe(recipe, world.device)
        autocast = Precision(recipe, world.device).autocast
        update_precise_bn(model, loader, transform, world, autocast, batch)
        return evaluate(model, recipe, sample, batch, world).metrics[metric_names(recipe)[0]]

    def _on(self, shape: Shape) -> Recipe:
        """The baseline's recipe with a shape's grid for its own, and its field of view."""
        base, jitter = self.schedule.base, self.recipe.data.train_jitter_scales
        if (shape.frames, shape.crop) == (base.frames, base.crop):
            return self.recipe
        sides = [max(shape.crop, round(side * shape.crop / base.crop)) for side in jitter]
        return self.recipe.replaced(
            {
                "DATA.NUM_FRAMES": shape.frames,
                "DATA.SAMPLING_RATE": self.recipe.data.sampling_rate * base.frames // shape.frames,
                "DATA.TRAIN_CROP_SIZE": shape.crop,
                "DATA.CROP_SIZE": shape.crop,
                "DATA.TEST_CROP_SIZE": shape.crop,
                "DATA.TRAIN_JITTER_SCALES": sides,
            }
        )


def _rate(seconds: float, *, done: float, whole: float) -> float:
    """The part of the full learning rate, `seconds` into a stage before which `done` of the arm's
    `whole` seconds were spent."""
    part = (done + seconds) / whole
    return max(0.01, min(1.0, part / _WARMUP, (1 - part) / (1 - _COARSE)))
