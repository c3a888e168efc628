"""The multigrid schedule: shape, rate and BN group size as a pure function of the iteration.

`Schedule.at` returns the settings of iteration i. They depend on i alone, so a checkpoint only
needs to store i. `make_schedule` in phases.py builds a `Schedule`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from multigrid.cycles import Cycles
from multigrid.learning_rate import LearningRate
from multigrid.shapes import Shape


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
        bn_group_sizes: Clips per BN group for each of `shapes`. None means that each process
            normalises its clips together.
        first_clip: Number of clips trained before the phase.
        fine_tuning: Whether the phase belongs to the fine-tuning stage.
    """

    start: int
    stop: int
    baseline_epochs: tuple[float, float]
    stage: int
    lr_scale: float
    shapes: tuple[Shape, ...]
    bn_group_sizes: tuple[int | None, ...]
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
        bn_group_size: Clips per BN group. None means that each process normalises its clips
            together.
        first_clip: Number of clips trained before the iteration.
        epoch: Number of epochs trained before the iteration, `first_clip` / number of videos.
        lr_scale: Factor by which the batch size multiplies the learning rate. Included in `lr`.
        growth: Batch size of the long-cycle shape as a multiple of the baseline's.
    """

    iteration: int
    phase: int
    shape: Shape
    lr: float
    bn_group_size: int | None
    first_clip: int
    epoch: float
    lr_scale: float = 1.0
    growth: float = 1.0


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
        return max(
            1, int(self.learning_rate.stage_ends[-1] * self.num_videos / self.base.batch + 0.5)
        )

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
            bn_group_size=phase.bn_group_sizes[which],
            first_clip=first_clip,
            epoch=first_clip / self.num_videos,
            lr_scale=phase.lr_scale,
            growth=phase.base_shape.batch / self.base.batch,
        )

    def steps(self, start: int = 0, stop: int | None = None) -> Iterator[ScheduleStep]:
        """Return an iterator over the settings of the iterations from `start` to `stop`, exclusive.

        Args:
            start: The first iteration.
            stop: The first iteration to leave out. None means the end of the schedule.
        """
        return (self.at(i) for i in range(start, self.iterations if stop is None else stop))

    def phase_lines(self) -> tuple[str, ...]:
        """Describe each phase by a line of text, to compare two schedules."""
        return tuple(
            f"iterations {phase.start} to {phase.stop}: {', '.join(map(str, phase.shapes))}"
            for phase in self.phases
        )

    def first_iteration_after(self, clips: float) -> int:
        """Return the first iteration that starts after at least `clips` clips.

        If there is no such iteration, return the number of iterations of the schedule.
        """
        return bisect_left(range(self.iterations), clips, key=lambda i: self.at(i).first_clip)
