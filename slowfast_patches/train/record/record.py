"""The record of a training: log lines, metrics.jsonl, TensorBoard, unreadable videos."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import simplejson
import torch
from torch import Tensor

from multigrid import Schedule, Step
from slowfast_patches.config.metrics import COUNTS, format_metrics
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.items import TooManyUnreadableError
from slowfast_patches.train.checkpoint import DivergedError, writes
from slowfast_patches.train.record.clock import Clock, Forecast, TimeSpent
from slowfast_patches.train.step import Outcome
from slowfast_patches.utils.distributed import World, sum_over_ranks
from slowfast_patches.utils.files import write_text
from slowfast_patches.utils.tables import format_duration

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["Record", "TooManyUnreadableError", "Unreadable", "check_count"]

logger = logging.getLogger(__name__)

_LIMIT = 0.15
_SECONDS = 5.0
"""Share of a phase's time spent waiting for data above which loading is the limit, and the seconds
that a phase must last to say so."""
_NOT_DRAWN = {"type", "iteration", "epoch", "seconds", "phase", "seconds_left", "shape", *COUNTS}


def check_count(count: int, videos: int, fraction: float, where: str) -> None:
    """Raise TooManyUnreadableError for more videos than DATA.MAX_BAD_FRACTION, `fraction`, in every
    process: they count together."""
    if count > fraction * videos:
        raise TooManyUnreadableError(
            f"{count} of {videos} videos of {where} could not be read, more than "
            f"DATA.MAX_BAD_FRACTION {fraction:g}; mend the files or the list, or raise the fraction"
        )


class Record:
    """Sums up iterations over all processes; in the main one, writes metrics.jsonl, events for
    TensorBoard, and the progress lines of the log.

    Each phase ends with a report. `done` iterations are done; `advice` says what to do where
    loading is the limit. What writes raises TrainingStoppedError where the disk refuses.
    """

    def __init__(self, recipe: Recipe, world: World, schedule: Schedule, advice: str) -> None:
        self._output_dir = recipe.output_dir
        self._world = world
        self._schedule = schedule
        self._advice = advice
        self._forecast = Forecast(schedule)
        self._several_labels = recipe.data.multi_label
        self._has_batchnorm = recipe.model.has_batchnorm
        alone = world.size == 1 and world.device.type == "cpu"
        self.clock = Clock(alone)
        self.start = 0
        self.done = 0
        self.unreadable = Unreadable(schedule, recipe.data.max_bad_fraction)
        self._iterations = list[tuple[Step, Tensor, Tensor, int]]()  # since the last report
        self._seconds = torch.zeros(2, dtype=torch.float64)  # of training and loading, since then
        self._phase: TimeSpent | None = None
        self._lines: TextIO | None = None
        self._events: SummaryWriter | None = None

    def open(self, start: int, evaluation_due: bool) -> None:
        """Open the files after `start` iterations, dropping later records and those of an
        evaluation that is still due."""
        self.start = self.done = start
        if not self._world.is_main:
            return
        from torch.utils.tensorboard import SummaryWriter  # a second: for who writes

        path = Path(self._output_dir, "metrics.jsonl")
        with self._writing():
            _keep_lines_until(path, start, start - evaluation_due)
            self._lines = path.open("a", encoding="utf-8")
            events = path.with_name("tensorboard")
            self._events = SummaryWriter(str(events), purge_step=start + 1)  # it drops from there

    def close(self) -> None:
        """Close the files."""
        with self._writing():
            for file in (self._lines, self._events):
                if file is not None:
                    file.close()

    def enter_phase(self, step: Step) -> None:
        """Log the shapes, batch, rate and BN size of a new phase."""
        if step.iteration == self.start:
            self.clock.lap()  # the wait for the first mini-batch is no evidence
        if not self._world.is_main:
            return
        phase = self._schedule.phases[step.phase]
        shapes = ", ".join(map(str, phase.shapes)) + " (fine-tuning)" * phase.fine_tuning
        sizes = "/".join(str(size or "its own") for size in phase.bn_sizes)
        logger.info(
            "phase %d of %d from iteration %d: %s; global batch %s, LR %.4g%s",
            *(step.phase + 1, len(self._schedule.phases), step.iteration, shapes),
            *("/".join(str(shape.batch) for shape in phase.shapes), step.lr),
            f", BN over {sizes} clips" if self._has_batchnorm else "",
        )

    def add(self, step: Step, outcome: Outcome, failures: Sequence[tuple[str, str]]) -> None:
        """Note an iteration; its loss is left on the device until the next report."""
        self.unreadable.log(failures)
        labels = outcome.labels
        if not self._several_labels:  # of mixed ones, the larger counts
            wanted = labels if labels.ndim == 1 else labels.argmax(1)
            right = (outcome.scores.argmax(1) == wanted).sum()
        else:  # of several labels there is no accuracy
            right = torch.full_like(outcome.loss, math.nan)
        self._iterations.append((step, outcome.loss, right, len(failures)))
        self.done = step.iteration + 1
        seconds = torch.tensor(self.clock.lap(), dtype=torch.float64)
        self._seconds += seconds
        self._forecast.observe(step.shape, float(seconds.sum()))

    def report(self, step: Step) -> None:
        """Sum up the iterations since the last report, if there are any. All processes call this.

        Raises:
            DivergedError: a loss is not finite.
            TooManyUnreadableError: too many videos of an epoch could not be read.
            TrainingStoppedError: the disk refuses.
        """
        if not self._iterations:
            return
        loss, top1, time = self._sum_up()
        self._phase = time if self._phase is None else self._phase + time
        if self._world.is_main:
            self._log_progress(step, loss, top1, time)
        if self.done == self._schedule.phases[step.phase].stop:
            if self._world.is_main:
                self._log_phase(step, self._phase)
            self._phase = None

    def evaluated(self, record: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Note a validation and its metrics, which the record has too."""
        self._write({"type": "val", **record})
        logger.info(
            "validation after iteration %d (epoch %.2f): %s",
            *(record["iteration"], record["epoch"], format_metrics(metrics)),
        )

    def _sum_up(self) -> tuple[float, float, TimeSpent]:
        """Mean loss, top-1 in per cent, and time since the last report, in one reduction;
        unreadable videos are counted."""
        steps, losses, rights, failures = zip(*self._iterations, strict=True)
        size = self._world.size
        count = len(steps)
        values = torch.stack([torch.stack(losses).double(), torch.stack(rights).double()])
        bad = values.new_tensor(failures)
        seconds = values.new_zeros(size, 2)
        seconds[self._world.rank] = self._seconds.to(seconds)  # each rank fills in its own
        total = sum_over_ranks(torch.cat([values.flatten(), bad, seconds.flatten()])).cpu()
        values = total[: 2 * count].view(2, count)
        bad = total[2 * count : 3 * count]
        self._iterations = []
        self._seconds = torch.zeros_like(self._seconds)
        mean = values[0] / size
        _check_finite(steps, mean)
        for step, number in zip(steps, bad.long().tolist(), strict=True):
            self.unreadable.count(step, number)
        clips = sum(step.shape.batch for step in steps)
        time = TimeSpent(count, clips, total[3 * count :].view(size, 2))
        return float(mean.mean()), 100 * float(values[1].sum()) / clips, time

    def _log_progress(self, step: Step, loss: float, top1: float, time: TimeSpent) -> None:
        """Log loss, speed and, if there is one, accuracy since the last report."""
        left = self._forecast.remaining(self.done)
        has_top1 = not math.isnan(top1)
        record = {
            "type": "train",
            "iteration": self.done,
            "epoch": round(step.epoch, 4),
            "phase": step.phase,
            "shape": [step.shape.batch, step.shape.frames, step.shape.crop],
            "lr": step.lr,
            "bn_size": step.bn_size,
            "loss": round(loss, 6),
            **({"top1": round(top1, 3)} if has_top1 else {}),
            "clips_per_second": round(time.clips / time.seconds, 2),
            "loading_share": round(time.loading_share, 4),
            "seconds": round(self.clock.working, 3),
            "seconds_left": round(left, 1),
        }
        self._write(record)
        logger.info(
            "iteration %d/%d epoch %.2f phase %d/%d %s LR %.4g loss %.4f%s %.1f clips/s (%s), "
            "%s left",
            *(self.done, self._schedule.iterations, step.epoch),
            *(step.phase + 1, len(self._schedule.phases), step.shape, step.lr, loss),
            f" top-1 {top1:.1f}" if has_top1 else "",
            *(record["clips_per_second"], time.waiting, format_duration(left)),
        )

    def _log_phase(self, step: Step, time: TimeSpent) -> None:
        """Log what a phase's time went to, and what to do if it went to waiting for data."""
        share = time.loading_share
        self._write(
            {
                "type": "phase",
                "iteration": self.done,
                "phase": step.phase,
                "iterations": time.iterations,
                "clips": time.clips,
                "seconds": round(time.seconds, 3),
                "loading_share": round(share, 4),
            }
        )
        name = f"phase {step.phase + 1} of {len(self._schedule.phases)}"
        logger.info("%s: %s", name, time)
        if share > _LIMIT and time.seconds > _SECONDS:
            logger.warning("loading was the limit of %s, not the model: %s", name, self._advice)

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._lines is None or self._events is None:
            return
        with self._writing():
            self._lines.write(simplejson.dumps(record) + "\n")
            self._lines.flush()
            for name, value in _curves(record).items():
                # Over the relative time, TensorBoard shows them over the seconds of training.
                self._events.add_scalar(name, value, record["iteration"], record["seconds"])

    def _writing(self) -> AbstractContextManager[None]:
        when = f" after iteration {self.done}"
        return writes("the record of the run", self._output_dir, when)


class Unreadable:
    """Unreadable videos by epoch, over all processes; `fraction` of an epoch's may be."""

    def __init__(self, schedule: Schedule, fraction: float) -> None:
        self._schedule = schedule
        self._fraction = fraction
        self.counts = Counter[int]()
        self._named: set[str] = set()

    def log(self, failures: Sequence[tuple[str, str]]) -> None:
        """Log each unreadable video (path, reason) of this process once."""
        for path, reason in failures:
            if path not in self._named:
                logger.warning("%s %s; another video takes its place", path, reason)
                self._named.add(path)

    def count(self, step: Step, count: int) -> None:
        """Count an iteration's unreadable videos, over all processes, for the epoch it starts in,
        and log their number after the epoch. Raises as `check_count`, of all that was read:
        mini-batches may be as large as an epoch, and end in another."""
        schedule = self._schedule
        videos = schedule.num_videos
        epoch = step.first_clip // videos
        stop = step.first_clip + step.shape.batch
        self.counts[epoch] += count
        if count:
            first = schedule.at(schedule.first_iteration_after(epoch * videos)).first_clip
            where = f"epoch {epoch + 1} (iteration {step.iteration})"
            check_count(self.counts[epoch], max(videos, stop - first), self._fraction, where)
        is_last = step.iteration + 1 == schedule.iterations
        is_over = is_last or stop // videos > epoch
        if is_over and (bad := self.counts.pop(epoch)):
            logger.info("epoch %d done: %d videos could not be read", epoch + 1, bad)


def _curves(record: Mapping[str, Any]) -> dict[str, float]:
    """The values of a record that TensorBoard plots, by name; none of a phase."""
    kind = record["type"]
    shape = ("batch", "frames", "crop")
    if kind == "phase":
        return {}
    curves = {f"{kind}/{name}": v for name, v in record.items() if name not in _NOT_DRAWN}
    if kind == "train":
        curves |= {f"shape/{n}": v for n, v in zip(shape, record["shape"], strict=True)}
    return {name: value for name, value in curves.items() if value is not None}


def _check_finite(steps: Sequence[Step], losses: Tensor) -> None:
    for step, loss in zip(steps, losses.tolist(), strict=True):
        if not math.isfinite(loss):
            raise DivergedError(
                f"the loss of iteration {step.iteration} is {loss} (shape {step.shape}, LR "
                f"{step.lr:.4g})"
            )


def _keep_lines_until(path: Path, iteration: int, evaluation: int) -> None:
    """Drop records after `iteration`, evaluations after `evaluation` and, with a warning, invalid
    lines."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    kept = list[str]()
    unreadable = 0
    for line in lines:
        try:
            record = simplejson.loads(line)
            if record["iteration"] <= (evaluation if record["type"] == "val" else iteration):
                kept.append(line.decode() + "\n")
        except (ValueError, KeyError, TypeError):
            unreadable += 1
    if unreadable:
        logger.warning("%s: %d of %d lines unreadable and dropped", path, unreadable, len(lines))
    write_text(path, "".join(kept))
