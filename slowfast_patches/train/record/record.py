"""What a training says of itself: log lines, metrics.jsonl, TensorBoard."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import simplejson
import torch
from torch import Tensor

from multigrid import Schedule, Step
from slowfast_patches.config.metrics import format_metrics
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.stopping import TrainingStoppedError
from slowfast_patches.train.checkpoints.writer import writes
from slowfast_patches.train.record.clock import Clock, Forecast, TimeSpent
from slowfast_patches.train.record.events import Events
from slowfast_patches.train.record.log import check_log_files
from slowfast_patches.train.record.unreadable import Unreadable
from slowfast_patches.train.step import Outcome
from slowfast_patches.utils.distributed import World, sum_over_ranks
from slowfast_patches.utils.files import written_whole
from slowfast_patches.utils.tables import format_duration

__all__ = ["Record"]

logger = logging.getLogger(__name__)


class _Iteration(NamedTuple):
    """Of one process: `right` counts its clips that are classified rightly, where a clip has one
    label, and `failures` its unreadable videos."""

    step: Step
    loss: Tensor
    right: Tensor | None
    failures: int


class Record:
    """Sums up iterations over all processes; in the main one, writes metrics.jsonl, events for
    TensorBoard, and the progress lines of the log.

    Each phase ends with a report. `done` iterations are done; `advice` says what to do where
    loading is the limit. What writes raises TrainingStoppedError where the disk refuses.
    """

    def __init__(self, recipe: Recipe, world: World, schedule: Schedule, advice: str) -> None:
        self._output_dir, self._world, self._schedule = recipe.output_dir, world, schedule
        self._advice, self._forecast = advice, Forecast(schedule)
        self.clock, self.done = Clock(), 0
        self.unreadable = Unreadable(schedule, recipe.data.max_bad_fraction)
        self._iterations = list[_Iteration]()
        self._seen: dict[str, float] | None = None  # the clock, when it was looked at last
        self._seconds = {"training": 0.0, "loading": 0.0}  # since the last report
        nothing = TimeSpent(0, 0, torch.zeros(world.size, 2, dtype=torch.float64))
        self._nothing = self._phase = self._training = nothing
        self._lines: TextIO | None = None
        self._events: Events | None = None

    def open(self, evaluation_due: bool) -> None:
        """Go on after `done` iterations; what was written later, or of an evaluation that is yet to
        come, goes."""
        if not self._world.is_main:
            return
        path, start = Path(self._output_dir, "metrics.jsonl"), self.done
        with self._writing():
            kept = _keep_lines_until(path, start, start - evaluation_due)
            self._lines = path.open("a", encoding="utf-8")
            self._events = Events(path.with_name("tensorboard"), start, self.clock.working, kept)

    def close(self) -> None:
        """Close the files."""
        with self._writing():
            for file in (self._lines, self._events):
                if file is not None:
                    file.close()
            check_log_files()

    def enter_phase(self, step: Step) -> None:
        """Say what holds from here on; the time of the first counts from here."""
        if self._seen is None:
            self._seen = self.clock.seconds
        if not self._world.is_main:
            return
        phase = self._schedule.phases[step.phase]
        shapes = ", ".join(map(str, phase.shapes)) + " (fine-tuning)" * phase.fine_tuning
        logger.info(
            "phase %d of %d from iteration %d: %s; global batch %s, LR %.4g, BN over %s clips",
            *(step.phase + 1, len(self._schedule.phases), step.iteration, shapes),
            *("/".join(str(shape.batch) for shape in phase.shapes), step.lr),
            "/".join(str(size or "its own") for size in phase.bn_sizes),
        )

    def add(self, step: Step, outcome: Outcome, failures: Sequence[tuple[str, str]]) -> None:
        """Note an iteration; its loss is left on the device until the next report."""
        self.unreadable.name(failures)
        right = None
        if outcome.labels.ndim == 1:
            right = (outcome.scores.argmax(1) == outcome.labels).sum()
        self._iterations.append(_Iteration(step, outcome.loss, right, len(failures)))
        self.done = step.iteration + 1
        self._forecast.observe(step.shape, self._take_time())

    def report(self, step: Step) -> None:
        """Sum up the iterations since the last report, if there are any. All processes call this.

        Raises:
            TrainingStoppedError: a loss is not finite, too many videos of an epoch could not be
                read, or the disk refuses.
        """
        if not self._iterations:
            return
        loss, top1, time = self._sum_up()
        self._phase, self._training = self._phase + time, self._training + time
        if self._world.is_main:
            self._say_progress(step, loss, top1, time)
        if self.done == self._schedule.phases[step.phase].stop:
            if self._world.is_main:
                self._say_phase(step, self._phase)
            self._phase = self._nothing
        # Where the work of some iterations was waited for, it was the last one's.
        self._forecast.observe(step.shape, self._take_time(), iterations=0)
        with self._writing():
            check_log_files()

    def evaluated(self, record: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Note a validation and its metrics, which the record has too."""
        self._write({"type": "val", **record})
        logger.info(
            "validation after iteration %d (epoch %.2f): %s",
            *(record["iteration"], record["epoch"], format_metrics(metrics)),
        )

    def _take_time(self) -> float:
        """Seconds of training and loading since this was last asked."""
        assert self._seen is not None
        now, before = self.clock.seconds, self._seen
        self._seen = now
        for activity in self._seconds:
            self._seconds[activity] += now[activity] - before[activity]
        return sum(now[activity] - before[activity] for activity in self._seconds)

    def _sum_up(self) -> tuple[float, float | None, TimeSpent]:
        """Mean loss, top-1 in per cent, and time since the last report, in one reduction;
        unreadable videos are counted."""
        steps, losses, rights, failures = zip(*self._iterations, strict=True)
        size, count = self._world.size, len(steps)
        rows = [torch.stack(losses).double()]
        rows.append(rows[0].new_tensor(failures))
        if rights[0] is not None:
            rows.append(torch.stack(rights).double())
        seconds = rows[0].new_zeros(size, 2)  # of each rank, that it fills in
        seconds[self._world.rank] = seconds.new_tensor(list(self._seconds.values()))
        self._iterations, self._seconds = [], dict.fromkeys(self._seconds, 0.0)
        total = sum_over_ranks(torch.cat([*rows, seconds.flatten()])).cpu()
        values = total[: len(rows) * count].view(len(rows), count)
        mean = values[0] / size
        _check_finite(steps, mean)
        for step, number in zip(steps, values[1].long().tolist(), strict=True):
            self.unreadable.count(step, number)
        clips = sum(step.shape.batch for step in steps)
        top1 = 100 * float(values[2].sum()) / clips if rights[0] is not None else None
        return float(mean.mean()), top1, TimeSpent(count, clips, total[-2 * size :].view(size, 2))

    def _say_progress(self, step: Step, loss: float, top1: float | None, time: TimeSpent) -> None:
        """A line for some iterations: their loss, speed and, if there is one, accuracy."""
        left = self._forecast.remaining(self.done)
        record = {
            "type": "train",
            "iteration": self.done,
            "epoch": round(step.epoch, 4),
            "phase": step.phase,
            "shape": [step.shape.batch, step.shape.frames, step.shape.crop],
            "lr": step.lr,
            "bn_size": step.bn_size,
            "loss": round(loss, 6),
            **({} if top1 is None else {"top1": round(top1, 3)}),
            "clips_per_second": round(time.clips / time.seconds, 2),
            **time.to_json(),
            "seconds": round(self.clock.working, 3),
            "seconds_left": round(left, 1),
        }
        self._write(record)
        logger.info(
            "iteration %d/%d epoch %.2f phase %d/%d %s LR %.4g loss %.4f%s "
            "%.1f clips/s (%s), %s left",
            *(self.done, self._schedule.iterations, step.epoch),
            *(step.phase + 1, len(self._schedule.phases), step.shape, step.lr, loss),
            "" if top1 is None else f" top-1 {top1:.1f}",
            *(record["clips_per_second"], time.waiting("waiting for data"), format_duration(left)),
        )

    def _say_phase(self, step: Step, time: TimeSpent) -> None:
        """What a phase's time went to, and what to do if it went to waiting."""
        self._write(
            {
                "type": "phase",
                "iteration": self.done,
                "phase": step.phase,
                "iterations": time.iterations,
                "clips": time.clips,
                "seconds": round(time.seconds, 3),
                **time.to_json(),
            }
        )
        name = f"phase {step.phase + 1} of {len(self._schedule.phases)}"
        logger.info("%s: %s", name, time)
        if (limit := time.limit) is not None:
            logger.warning(
                "loading was the limit of %s, not the model: %s of the time; %s",
                *(name, limit, self._advice),
            )
        if self.done == self._schedule.iterations:
            logger.info("training: %s", self._training)

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._lines is None or self._events is None:
            return
        with self._writing():
            self._lines.write(simplejson.dumps(record) + "\n")
            self._lines.flush()
            self._events.write(record)

    def _writing(self) -> AbstractContextManager[None]:
        when = f" after iteration {self.done}"
        return writes("the record of the run", self._output_dir, when)


def _check_finite(steps: Sequence[Step], losses: Tensor) -> None:
    for step, loss in zip(steps, losses.tolist(), strict=True):
        if not math.isfinite(loss):
            raise TrainingStoppedError(
                f"the loss of iteration {step.iteration} is {loss} (shape {step.shape}, LR "
                f"{step.lr:.4g}); the last checkpoint is from before; lower SOLVER.BASE_LR"
            )


def _keep_lines_until(path: Path, iteration: int, evaluation: int) -> list[dict[str, Any]]:
    """Drop the records after `iteration` iterations, evaluations after `evaluation`, and a last
    line that was not written whole; the records that are kept."""
    if not path.exists():
        return []
    records = list[dict[str, Any]]()
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = simplejson.loads(line)
        except simplejson.JSONDecodeError:
            continue
        if record["iteration"] <= (evaluation if record["type"] == "val" else iteration):
            records.append(record)
    with written_whole(path) as file:
        file.write("".join(simplejson.dumps(record) + "\n" for record in records).encode())
    return records
