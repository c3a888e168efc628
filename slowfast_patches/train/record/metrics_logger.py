"""Log the progress of a training, and write metrics.jsonl and TensorBoard events."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from operator import sub
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import torch
from torch import Tensor

from multigrid import Schedule, ScheduleStep
from slowfast_patches.config.metrics import format_metrics
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.unreadable import count_unreadable, log_unreadable
from slowfast_patches.tasks import task_of
from slowfast_patches.train.checkpoint import DivergedError, Progress, explain_write_errors
from slowfast_patches.train.record.clock import Clock
from slowfast_patches.train.record.progress_bar import ProgressBar
from slowfast_patches.train.record.tracker import Tracker, curves
from slowfast_patches.train.step import Outcome
from slowfast_patches.utils.distributed import World, max_over_ranks, sum_over_ranks
from slowfast_patches.utils.files import write_text
from slowfast_patches.utils.tables import format_duration

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger(__name__)

_LIMIT = 0.15
"""Warn if a phase waits for data for more than this share of its time."""
_SECONDS = 5.0
"""Only warn about phases that take more than this number of seconds."""


class MetricsLogger:
    """Log the metrics of a training, reduced over all processes.

    The main process writes metrics.jsonl, TensorBoard events and lines of the log. Methods that
    write files raise TrainingStoppedError if the disk is full or not writable.

    Args:
        recipe: The recipe of the training.
        world: Rank, world size and device of this process.
        schedule: The schedule of the training.
        advice: Advice to log if a phase spends too much time on waiting for data.

    Attributes:
        bar: Shows the progress on a terminal.
        clock: Measures the time of each activity.
    """

    def __init__(self, recipe: Recipe, world: World, schedule: Schedule, advice: str) -> None:
        self._recipe = recipe
        self._task = task_of(recipe)
        self._world = world
        self._schedule = schedule
        self._advice = advice
        self.bar = ProgressBar(schedule, world.is_main)
        self.clock = Clock()
        self._progress = Progress()
        self._iterations = list[tuple[Tensor, Tensor, int, int]]()  # since the last report
        # Each of these is (finished iterations, seconds of training, seconds of loading).
        self._now: tuple[float, ...] = ()
        self._report_start: tuple[float, ...] = ()
        self._phase_start: tuple[float, ...] = ()
        self._lines: TextIO | None = None
        self._events: SummaryWriter | None = None
        self._tracker: Tracker | None = None

    def open(self, progress: Progress) -> None:
        """Open the log files, and delete old entries after iteration `progress.iteration`.

        Such entries are from a previous attempt that was killed after its last checkpoint.
        """
        self._progress = progress
        self.clock.load(progress.seconds)
        if not self._world.is_main:
            return
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import

        done = progress.iteration
        path = Path(self._recipe.output_dir, "metrics.jsonl")
        with self._writing():
            _keep_lines_until(path, done, progress.last_evaluation)
            self._lines = path.open("a", encoding="utf-8")
            # With `purge_step`, TensorBoard ignores later events of a previous attempt.
            self._events = SummaryWriter(str(path.with_name("tensorboard")), purge_step=done + 1)
            if self._recipe.train.tracker:
                self._tracker = Tracker(self._recipe, resumes=done > 0)
        self.saved()

    def saved(self) -> None:
        """Send the metrics to TRAIN.TRACKER, after a checkpoint was written."""
        if self._tracker is not None:
            with self._writing():
                self._tracker.send()

    def close(self) -> None:
        """Close the progress bar and the files, and end the run of TRAIN.TRACKER."""
        self.bar.close()
        if self._tracker is not None:
            finished = self._progress.iteration == self._schedule.iterations
            self._tracker.close(finished=finished)
        with self._writing():
            for file in (self._lines, self._events):
                if file is not None:
                    file.close()

    def enter_phase(self, step: ScheduleStep) -> None:
        """Log the shapes, batch, learning rate and BN group sizes of the phase of `step`."""
        if not self._now:  # leave out the first mini-batch, for which every run waits
            self._take_time()
            self._report_start = self._now
        self._phase_start = self._now
        if not self._world.is_main:
            return
        phase = self._schedule.phases[step.phase]
        sizes = "/".join(str(size) for size in phase.bn_sizes if size)
        logger.info(
            "phase %d of %d from iteration %d: %s%s; global batch %s, LR %.4g%s",
            *(step.phase + 1, len(self._schedule.phases), step.iteration),
            *(", ".join(map(str, phase.shapes)), " (fine-tuning)" * phase.fine_tuning),
            *("/".join(str(shape.batch) for shape in phase.shapes), step.lr),
            f", BN over {sizes} clips" if sizes and self._recipe.model.has_batchnorm else "",
        )

    def add(
        self,
        step: ScheduleStep,
        outcome: Outcome,
        failures: Sequence[tuple[str, str]],
        redrawn: int = 0,
    ) -> None:
        """Store the results of an iteration for the next report.

        The loss stays on the device until the report, so that `add` does not wait for the GPU.

        Args:
            step: The iteration.
            outcome: The loss, logits and labels of the iteration.
            failures: Pairs of the path of an unreadable video and the reason.
            redrawn: Number of clips whose crop was drawn again, because it showed no box.
        """
        for path, reason in failures:
            log_unreadable(path, reason, "another video is used instead")
        right = self._task.count_right(outcome.scores, outcome.labels)
        self._iterations.append((outcome.loss, right, len(failures), redrawn))
        self.bar.advance(step)
        self._take_time()

    def _take_time(self) -> None:
        seconds = self.clock.seconds
        self._now = (self._progress.iteration, seconds["training"], seconds["loading"])

    def report(self, step: ScheduleStep) -> None:
        """Reduce and log the metrics since the last report. Every process must call this.

        Raises:
            DivergedError: A loss is not finite.
            TooManyUnreadableError: Too many videos of an epoch cannot be read.
            TrainingStoppedError: The files cannot be written.
        """
        if not self._iterations:
            return
        steps = list(self._schedule.steps(int(self._report_start[0]), self._progress.iteration))
        loss, right, redrawn = self._sum_up(steps)
        spent = self._spent(self._report_start)
        if redrawn:
            spent["redrawn"] = redrawn
        self._report_start = self._now
        self._write_progress(step, loss, 100 * right / spent["clips"], spent)
        if self._progress.iteration == self._schedule.phases[step.phase].stop:
            self._write_phase(step, self._spent(self._phase_start))

    def evaluated(self, record: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Log a validation.

        Args:
            record: Dict with the keys "iteration", "epoch" and "seconds" and the metrics.
            metrics: The metrics only.
        """
        if self._world.is_main:
            self._write({"type": "val", **record})
            logger.info(
                "validation after iteration %d (epoch %.2f): %s",
                *(record["iteration"], record["epoch"], format_metrics(metrics)),
            )

    def _sum_up(self, steps: Sequence[ScheduleStep]) -> tuple[float, float, int]:
        """Reduce the metrics since the last report over all processes, in one all-reduce.

        Returns:
            The mean loss, the number of correctly classified clips, and the number of clips whose
            crop was drawn again.

        Raises:
            DivergedError: A loss is not finite.
            TooManyUnreadableError: Too many videos of an epoch cannot be read.
        """
        losses, rights, *numbers = zip(*self._iterations, strict=True)
        self._iterations = []
        loss = torch.stack(losses).double() / self._world.size
        total = sum_over_ranks(
            torch.stack([loss, torch.stack(rights), *map(loss.new_tensor, numbers)])
        )
        for step, (value, _, number, _) in zip(steps, total.T.tolist(), strict=True):
            if not math.isfinite(value):
                raise DivergedError(
                    f"The loss of iteration {step.iteration} is {value} (shape {step.shape}, LR "
                    f"{step.lr:.4g})"
                )
            fraction = self._recipe.data.max_bad_fraction
            counts = self._progress.unreadable
            count_unreadable(counts, self._schedule, step, int(number), fraction)
        return float(total[0].mean()), float(total[1].sum()), int(total[3].sum())

    def _spent(self, start: Sequence[float]) -> dict[str, float]:
        """Return the iterations, clips, seconds and share of loading time since `start`.

        The share of loading time is the maximum over the ranks, because in each iteration all ranks
        wait for the slowest one.

        Args:
            start: Finished iterations, seconds of training and seconds of loading at the start.
        """
        iterations, training, loading = map(sub, self._now, start)
        seconds = max(training + loading, 1e-9)
        share = torch.tensor(loading / seconds, device=self._world.device)
        last = self._schedule.at(self._progress.iteration - 1)
        first_clip = self._schedule.at(int(start[0])).first_clip
        return {
            "iterations": iterations,
            "clips": last.first_clip + last.shape.batch - first_clip,
            "seconds": seconds,
            "loading_share": round(float(max_over_ranks(share)), 4),
        }

    def _write_progress(
        self, step: ScheduleStep, loss: float, top1: float, spent: Mapping[str, float]
    ) -> None:
        """Log the loss, speed and accuracy since the last report.

        Args:
            step: The last iteration.
            loss: The mean loss.
            top1: The top-1 accuracy in percent, or NaN for tasks without accuracy.
            spent: Result of `_spent` since the last report.
        """
        if not self._world.is_main:
            return
        # Extrapolate from this phase: iterations of all phases take about the same time.
        iterations, *seconds = map(sub, self._now, self._phase_start)
        left = sum(seconds) / iterations * (self._schedule.iterations - self._progress.iteration)
        has_top1 = not math.isnan(top1)
        record = {
            "type": "train",
            "iteration": self._progress.iteration,
            "epoch": round(step.epoch, 4),
            "phase": step.phase,
            "shape": [step.shape.batch, step.shape.frames, step.shape.crop],
            "lr": step.lr,
            "bn_size": step.bn_size,
            "loss": round(loss, 6),
            **({"top1": round(top1, 3)} if has_top1 else {}),
            **({"redrawn": spent["redrawn"]} if "redrawn" in spent else {}),
            "clips_per_second": round(spent["clips"] / spent["seconds"], 2),
            "loading_share": spent["loading_share"],
            "seconds": round(self.clock.working, 3),
            "seconds_left": round(left, 1),
        }
        self._write(record)
        self.bar.describe(loss, step.lr)
        waiting = f"{100 * spent['loading_share']:.0f} %% waiting for data"
        logger.info(
            f"iteration %(iteration)d/{self._schedule.iterations} epoch %(epoch).2f "
            f"phase {step.phase + 1}/{len(self._schedule.phases)} {step.shape} LR %(lr).4g "
            f"loss %(loss).4f{' top-1 %(top1).1f' * has_top1} %(clips_per_second).1f clips/s "
            f"({waiting}), {format_duration(left)} left",
            record,
            extra={"is_on_bar": self.bar.is_shown},
        )

    def _write_phase(self, step: ScheduleStep, spent: dict[str, float]) -> None:
        """Log the time of a phase, and advice if too much of the time was spent on loading."""
        if not self._world.is_main:
            return
        name = f"phase {step.phase + 1} of {len(self._schedule.phases)}"
        share = spent["loading_share"]
        record = {"type": "phase", "iteration": self._progress.iteration, "phase": step.phase}
        self._write(record | spent | {"seconds": round(spent["seconds"], 3)})
        reading = spent["clips"] / spent["seconds"]
        logger.info(
            f"{name}: {spent['iterations']} iterations took {format_duration(spent['seconds'])}, "
            f"{100 * share:.0f} % waiting for data (reading gave {reading:.1f} clips/s, training "
            f"could take {reading / max(1 - share, 1e-9):.1f})"
        )
        if share > _LIMIT and spent["seconds"] > _SECONDS:
            logger.warning("Data loading limited the speed of %s: %s", name, self._advice)

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._lines is None or self._events is None:
            return
        with self._writing():
            self._lines.write(json.dumps(record) + "\n")
            self._lines.flush()
            for name, value in curves(record).items():
                # Pass the training time as wall time. TensorBoard shows it as relative time.
                self._events.add_scalar(name, value, record["iteration"], record["seconds"])

    def _writing(self) -> AbstractContextManager[None]:
        when = f" after iteration {self._progress.iteration}"
        return explain_write_errors("The metrics of the run", self._recipe.output_dir, when)


def _keep_lines_until(path: Path, iteration: int, evaluation: int) -> None:
    """Delete entries of metrics.jsonl after an iteration. Delete invalid lines with a warning.

    Args:
        path: The file metrics.jsonl, which need not exist.
        iteration: Last iteration whose training entries are kept.
        evaluation: Last iteration whose validation entry is kept.
    """
    lines = path.read_bytes().splitlines() if path.exists() else []
    kept = list[str]()
    invalid = 0
    for line in lines:
        try:
            record = json.loads(line)
            if record["iteration"] <= (evaluation if record["type"] == "val" else iteration):
                kept.append(line.decode() + "\n")
        except (ValueError, KeyError, TypeError):
            invalid += 1
    if invalid:
        logger.warning("%s: deleted %d invalid lines of %d.", path, invalid, len(lines))
    write_text(path, "".join(kept))
