"""The record of a training: log lines, metrics.jsonl, TensorBoard, unreadable videos."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import torch
from torch import Tensor

from multigrid import Schedule, Step
from slowfast_patches.config.metrics import COUNTS, format_metrics
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.stopping import TrainingStoppedError
from slowfast_patches.train.checkpoint import Progress
from slowfast_patches.train.checkpoint_files import DivergedError, writes
from slowfast_patches.train.record.clock import Clock, Forecast
from slowfast_patches.train.step import Outcome
from slowfast_patches.utils.distributed import World, sum_over_ranks
from slowfast_patches.utils.files import write_text
from slowfast_patches.utils.tables import format_duration

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["Record", "TooManyUnreadableError", "check_count", "count_unreadable"]

logger = logging.getLogger(__name__)

_LIMIT = 0.15
_SECONDS = 5.0
"""Share of a phase's time spent waiting for data above which loading is the limit, and the seconds
that a phase must last to say so."""
_NOT_DRAWN = {"type", "iteration", "epoch", "seconds", "phase", "seconds_left", "shape", *COUNTS}


class TooManyUnreadableError(TrainingStoppedError):
    """Too many videos cannot be read. Every process raises it: they count together."""


def check_count(count: int, videos: int, fraction: float, where: str) -> None:
    """Raise TooManyUnreadableError for more videos than DATA.MAX_BAD_FRACTION, `fraction`."""
    if count > fraction * videos:
        raise TooManyUnreadableError(
            f"{count} of {videos} videos of {where} could not be read, more than "
            f"DATA.MAX_BAD_FRACTION {fraction:g}; mend the files or the list, or raise the fraction"
        )


def count_unreadable(
    counts: dict[int, int], schedule: Schedule, step: Step, number: int, fraction: float
) -> None:
    """Add an iteration's unreadable videos, over all processes, to the `counts` of the epoch it
    starts in, and log their number after the epoch.

    Raises as `check_count`, of an epoch's videos or, where mini-batches are as large, of all that
    were read from its start on.
    """
    epoch, place = divmod(step.first_clip, schedule.num_videos)
    stop = place + step.shape.batch
    counts[epoch] = counts.get(epoch, 0) + number
    where = f"epoch {epoch + 1} (iteration {step.iteration})"
    check_count(counts[epoch], max(schedule.num_videos, stop), fraction, where)
    is_over = stop >= schedule.num_videos or step.iteration + 1 == schedule.iterations
    if is_over and (bad := counts.pop(epoch)):
        logger.info("epoch %d done: %d videos could not be read", epoch + 1, bad)


class Record:
    """Sums up iterations over all processes; in the main one, writes metrics.jsonl, events for
    TensorBoard, and the progress lines of the log.

    Each phase ends with a report. `progress` has the counts of the run, `advice` says what to do
    where loading is the limit. What writes raises TrainingStoppedError where the disk refuses.
    """

    def __init__(self, recipe: Recipe, world: World, schedule: Schedule, advice: str) -> None:
        self._recipe = recipe
        self._world = world
        self._schedule = schedule
        self._advice = advice
        self._forecast = Forecast(schedule)
        self.clock = Clock(alone=world.size == 1 and world.device.type == "cpu")
        self._progress = Progress()
        self._iterations = list[tuple[Step, Tensor, Tensor, int]]()  # since the last report
        self._lap = dict[str, float]()  # the clock's seconds after the last iteration
        # Of each rank, training and loading: since the last report, and of the phase before it.
        self._seconds = torch.zeros(world.size, 2, dtype=torch.float64)
        self._phase = torch.zeros(world.size, 2, dtype=torch.float64)
        self._start = 0  # of the phase, or of this run in it
        self._named = set[str]()  # unreadable videos that were logged
        self._lines: TextIO | None = None
        self._events: SummaryWriter | None = None

    def open(self, progress: Progress) -> None:
        """Open the files of a run that is so far, dropping later records and those of an evaluation
        that is still due."""
        self._progress = progress
        self.clock.load(progress.seconds)
        if not self._world.is_main:
            return
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import

        done = progress.iteration
        path = Path(self._recipe.output_dir, "metrics.jsonl")
        with self._writing():
            _keep_lines_until(path, done, done - progress.evaluation_due)
            self._lines = path.open("a", encoding="utf-8")
            # TensorBoard drops what an earlier attempt wrote from there on.
            self._events = SummaryWriter(str(path.with_name("tensorboard")), purge_step=done + 1)

    def close(self) -> None:
        """Close the files."""
        with self._writing():
            for file in (self._lines, self._events):
                if file is not None:
                    file.close()

    def enter_phase(self, step: Step) -> None:
        """Log the shapes, batch, rate and BN size of a phase that begins, or goes on, here."""
        self._start = step.iteration
        self._phase.zero_()
        if not self._lap:  # the wait for the first mini-batch is no evidence
            self._lap = self.clock.seconds
        if not self._world.is_main:
            return
        phase = self._schedule.phases[step.phase]
        sizes = "/".join(str(size or "its own") for size in phase.bn_sizes)
        logger.info(
            "phase %d of %d from iteration %d: %s%s; global batch %s, LR %.4g%s",
            *(step.phase + 1, len(self._schedule.phases), step.iteration),
            *(", ".join(map(str, phase.shapes)), " (fine-tuning)" * phase.fine_tuning),
            *("/".join(str(shape.batch) for shape in phase.shapes), step.lr),
            f", BN over {sizes} clips" if self._recipe.model.has_batchnorm else "",
        )

    def add(self, step: Step, outcome: Outcome, failures: Sequence[tuple[str, str]]) -> None:
        """Note an iteration; its loss is left on the device until the next report."""
        for path, reason in failures:
            if path not in self._named:
                logger.warning("%s %s; another video takes its place", path, reason)
        self._named.update(path for path, _ in failures)
        labels = outcome.labels
        if self._recipe.data.multi_label:  # of several labels there is no accuracy
            right = torch.full_like(outcome.loss, math.nan)
        else:  # of mixed ones, the larger counts
            wanted = labels if labels.ndim == 1 else labels.argmax(1)
            right = (outcome.scores.argmax(1) == wanted).sum()
        self._iterations.append((step, outcome.loss, right, len(failures)))
        lap = self.clock.seconds
        spent = [lap[name] - self._lap[name] for name in ("training", "loading")]
        self._lap = lap
        self._seconds[self._world.rank] += torch.tensor(spent, dtype=torch.float64)
        self._forecast.observe(step.shape, sum(spent))

    def report(self, step: Step) -> None:
        """Sum up the iterations since the last report, if there are any. All processes call this.

        Raises:
            DivergedError: a loss is not finite.
            TrainingStoppedError: too many videos of an epoch could not be read, or the disk
                refuses.
        """
        if not self._iterations:
            return
        first = self._iterations[0][0].iteration
        loss, top1, seconds = self._sum_up()
        self._phase += seconds
        if not self._world.is_main:
            return
        self._write_progress(step, loss, top1, *self._spent(first, seconds))
        if self._progress.iteration == self._schedule.phases[step.phase].stop:
            self._write_phase(step, *self._spent(self._start, self._phase))

    def evaluated(self, record: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Note a validation and its metrics, which the record has too."""
        if self._world.is_main:
            self._write({"type": "val", **record})
            logger.info(
                "validation after iteration %d (epoch %.2f): %s",
                *(record["iteration"], record["epoch"], format_metrics(metrics)),
            )

    def _sum_up(self) -> tuple[float, float, Tensor]:
        """Mean loss, top-1 in per cent, and seconds of the ranks since the last report, in one
        reduction; unreadable videos are counted."""
        steps, losses, rights, failures = zip(*self._iterations, strict=True)
        values = torch.stack([torch.stack(losses).double(), torch.stack(rights).double()])
        parts = [*values, values.new_tensor(failures), self._seconds.flatten().to(values)]
        total = sum_over_ranks(torch.cat(parts)).cpu()
        loss, right, bad, seconds = torch.split(total, [len(part) for part in parts])
        self._iterations = []
        self._seconds.zero_()
        loss /= self._world.size
        for step, value, number in zip(steps, loss.tolist(), bad.long().tolist(), strict=True):
            if not math.isfinite(value):
                raise DivergedError(
                    f"the loss of iteration {step.iteration} is {value} (shape {step.shape}, LR "
                    f"{step.lr:.4g})"
                )
            fraction = self._recipe.data.max_bad_fraction
            count_unreadable(self._progress.unreadable, self._schedule, step, number, fraction)
        clips = sum(step.shape.batch for step in steps)
        return float(loss.mean()), 100 * float(right.sum()) / clips, seconds.view(-1, 2)

    def _spent(self, first: int, seconds: Tensor) -> tuple[dict[str, float], str]:
        """The iterations from `first` on, their clips, the main process's seconds, and the largest
        share of them that a rank waited for data, also in words; from seconds of training and of
        loading of each rank. While one waits, so do the others, which counts as training there."""
        done = self._progress.iteration
        share, rank = (seconds[:, 1] / seconds.sum(1).clamp(min=1e-9)).max(0)
        where = f" on rank {int(rank)}" if len(seconds) > 1 else ""
        spent = {
            "iterations": done - first,
            "clips": sum(step.shape.batch for step in self._schedule.steps(first, done)),
            "seconds": max(round(float(seconds[0].sum()), 3), 0.001),
            "loading_share": round(float(share), 4),
        }
        return spent, f"{100 * share:.0f} % waiting for data{where}"

    def _write_progress(
        self, step: Step, loss: float, top1: float, spent: Mapping[str, float], waiting: str
    ) -> None:
        """Log loss, speed and, if there is one, accuracy since the last report."""
        left = self._forecast.remaining(self._progress.iteration)
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
            "clips_per_second": round(spent["clips"] / spent["seconds"], 2),
            "loading_share": spent["loading_share"],
            "seconds": round(self.clock.working, 3),
            "seconds_left": round(left, 1),
        }
        self._write(record)
        logger.info(
            f"iteration %(iteration)d/{self._schedule.iterations} epoch %(epoch).2f "
            f"phase {step.phase + 1}/{len(self._schedule.phases)} {step.shape} "
            f"LR %(lr).4g loss %(loss).4f{' top-1 %(top1).1f' * has_top1} "
            f"%(clips_per_second).1f clips/s ({waiting.replace('%', '%%')}), "
            f"{format_duration(left)} left",
            record,
        )

    def _write_phase(self, step: Step, spent: Mapping[str, float], waiting: str) -> None:
        """Log what a phase's time went to, and what to do if it went to waiting for data."""
        done = self._progress.iteration
        self._write({"type": "phase", "iteration": done, "phase": step.phase, **spent})
        name = f"phase {step.phase + 1} of {len(self._schedule.phases)}"
        reading = spent["clips"] / spent["seconds"]
        share = spent["loading_share"]
        logger.info(
            "%s: %d iterations took %s, %s (reading gave %.1f clips/s, training could take %.1f)",
            *(name, spent["iterations"], format_duration(spent["seconds"]), waiting, reading),
            reading / max(1 - share, 1e-9),
        )
        if share > _LIMIT and spent["seconds"] > _SECONDS:
            logger.warning("loading was the limit of %s, not the model: %s", name, self._advice)

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._lines is None or self._events is None:
            return
        with self._writing():
            self._lines.write(json.dumps(record) + "\n")
            self._lines.flush()
            if record["type"] == "phase":
                return
            curves = {f"{record['type']}/{k}": v for k, v in record.items() if k not in _NOT_DRAWN}
            if record["type"] == "train":
                names = ("shape/batch", "shape/frames", "shape/crop")
                curves |= zip(names, record["shape"], strict=True)
            for name, value in curves.items():
                if value is not None:
                    # TensorBoard's relative time are the seconds of training.
                    self._events.add_scalar(name, value, record["iteration"], record["seconds"])

    def _writing(self) -> AbstractContextManager[None]:
        when = f" after iteration {self._progress.iteration}"
        return writes("the record of the run", self._recipe.output_dir, when)


def _keep_lines_until(path: Path, iteration: int, evaluation: int) -> None:
    """Drop records after `iteration`, evaluations after `evaluation`, and invalid lines."""
    kept = list[str]()
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(ValueError, KeyError, TypeError):  # a line that was not written to its end
            record = json.loads(line)
            if record["iteration"] <= (evaluation if record["type"] == "val" else iteration):
                kept.append(line.decode() + "\n")
    write_text(path, "".join(kept))
