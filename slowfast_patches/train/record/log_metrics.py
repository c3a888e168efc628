"""Log the progress of a training, and write metrics.jsonl and TensorBoard events."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import torch
from torch import Tensor

from multigrid import ScheduleStep
from slowfast_patches.config.metrics import COUNTS, format_metrics
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.recipe_cycles import changed_keys
from slowfast_patches.tasks import task_of
from slowfast_patches.train.hooks import is_due
from slowfast_patches.train.step import Outcome
from slowfast_patches.train.trainer import Hook, Trainer
from slowfast_patches.utils.clock import format_duration
from slowfast_patches.utils.distributed import max_over_ranks, sum_over_ranks
from slowfast_patches.utils.errors import raise_unwritable, writing
from slowfast_patches.utils.files import write_text

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger(__name__)

_LIMIT = 0.15
"""Warn if a phase waits for data for more than this share of its time."""
_SECONDS = 5.0
"""Only warn about phases that take more than this number of seconds."""
_NOT_DRAWN = {"type", "iteration", "epoch", "seconds", "phase", "seconds_left", "shape", *COUNTS}
_SIDES = ("shape/batch", "shape/frames", "shape/crop")


@dataclass
class _Spent:
    """Iterations, clips and seconds since the last report or the start of a phase."""

    iterations: int = 0
    clips: int = 0
    training: float = 0.0
    loading: float = 0.0

    @property
    def seconds(self) -> float:
        return self.training + self.loading

    def loading_share(self, device: torch.device) -> float:
        """Return the share of the time spent waiting for data. Every process must call this.

        It is the maximum over the ranks, because all ranks wait for the slowest one.
        """
        share = torch.tensor(self.loading / max(self.seconds, 1e-9), device=device)
        return round(float(max_over_ranks(share)), 4)


class LogMetrics(Hook):
    """Log the metrics of a training, reduced over all processes.

    The main process writes metrics.jsonl, TensorBoard events and lines of the log. If the disk is
    full or not writable, OSError is raised.

    Args:
        recipe: The recipe of the training.
        after: Numbers of finished iterations after which to report, besides LOG_PERIOD.

    Attributes:
        latest: The last loss and learning rate, for the progress bar.
    """

    def __init__(self, recipe: Recipe, after: Collection[int]) -> None:
        self._recipe = recipe
        self._task = task_of(recipe)
        self._after = after
        self.latest = ""
        # Values of each step since the last report: loss, correct clips, and clips drawn again.
        self._steps = list[tuple[Tensor, Tensor, int]]()
        self._seconds = dict[str, float]()  # the clock at the last iteration
        self._report_spent = _Spent()
        self._phase_spent = _Spent()
        self._path = Path(recipe.output_dir, "metrics.jsonl")
        self._files: tuple[TextIO, SummaryWriter] | None = None

    def before_train(self, trainer: Trainer) -> None:
        """Open the files, and delete old entries after iteration `progress.iteration`.

        Such entries are from a previous attempt that was killed after its last checkpoint.
        """
        self._seconds = trainer.clock.seconds
        if trainer.world.is_main:
            done = trainer.progress.iteration
            _keep_lines_until(self._path, done, trainer.progress.last_evaluation)
        self._open(trainer)

    def _open(self, trainer: Trainer) -> None:
        """Open metrics.jsonl and TensorBoard events in the main process."""
        if not trainer.world.is_main:
            return
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import

        # With `purge_step`, TensorBoard ignores later events of a previous attempt.
        purged = trainer.progress.iteration + 1
        events = SummaryWriter(str(self._path.with_name("tensorboard")), purge_step=purged)
        with writing(self._path):
            self._files = self._path.open("a", encoding="utf-8"), events

    def after_step(self, trainer: Trainer, step: ScheduleStep, outcome: Outcome) -> None:
        """Store the results of an iteration, and report if this is due.

        The loss stays on the device until the report, so that other iterations do not wait for the
        GPU.
        """
        self._take_time(trainer, step)
        right = self._task.count_right(outcome.logits, outcome.labels)
        self._steps.append((outcome.loss, right, outcome.resampled))
        is_due_here = trainer.progress.iteration % self._recipe.log_period == 0
        if is_due_here or is_due(trainer, self._after):
            self._report(trainer, step)

    def after_train(self, trainer: Trainer) -> None:
        """Close the files."""
        with writing(self._path):
            for file in self._files or ():
                file.close()

    def after_test(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Write the metrics of the test to the files, which are opened again."""
        done = trainer.progress.iteration
        where = {"iteration": done, "epoch": round(trainer.schedule.at(done - 1).epoch, 4)}
        self._open(trainer)
        record = {"type": "test", **where, "seconds": round(trainer.clock.working, 3)}
        self._write(record | {name: round(value, 4) for name, value in metrics.items()})
        self.after_train(trainer)

    def log_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        """Log an entry of `Progress.evaluations`."""
        self._write({"type": "val", **evaluation})
        metrics = dict(evaluation)
        done, epoch, _ = (metrics.pop(name) for name in ("iteration", "epoch", "seconds"))
        text = "validation after iteration %d (epoch %.2f): %s"
        logger.info(text, done, epoch, format_metrics(metrics))

    def _take_time(self, trainer: Trainer, step: ScheduleStep) -> None:
        """Add an iteration to the report and to its phase, and log the start of a phase."""
        before = self._seconds
        self._seconds = now = trainer.clock.seconds
        training, loading = (now[name] - before[name] for name in ("training", "loading"))
        is_first = not self._phase_spent.iterations
        if is_first:
            loading = 0.0  # Leave out the wait for the first mini-batch, which every run has.
        if is_first or step.iteration == trainer.schedule.phases[step.phase].start:
            self._phase_spent = _Spent()
            self._log_phase(trainer, step)
        for spent in (self._report_spent, self._phase_spent):
            spent.iterations += 1
            spent.clips += step.shape.batch
            spent.training += training
            spent.loading += loading

    def _log_phase(self, trainer: Trainer, step: ScheduleStep) -> None:
        """Log the shapes, learning rate and BN group sizes of the phase of `step`."""
        schedule = trainer.schedule
        sizes = (
            schedule.phases[step.phase].bn_group_sizes if self._recipe.model.has_batchnorm else ()
        )
        named = "/".join(str(size) for size in sizes if size)
        logger.info(
            "phase %d of %d: %s; LR %.4g%s",
            *(step.phase + 1, len(schedule.phases), schedule.phase_lines()[step.phase]),
            *(step.lr, f", BN over {named} clips" if named else ""),
        )
        start = schedule.phases[step.phase].start
        if keys := changed_keys(self._recipe, schedule, start, start - 1 if start else None):
            logger.info("Recipe keys from this iteration on: %s", keys)

    def _report(self, trainer: Trainer, step: ScheduleStep) -> None:
        """Reduce and log the metrics since the last report. Every process must call this.

        Raises:
            OSError: The files cannot be written.
        """
        spent = self._report_spent
        self._report_spent = _Spent()
        metrics = self._sum_up(trainer, spent.clips)
        self._log_progress(trainer, step, metrics, spent)
        if trainer.progress.iteration == trainer.schedule.phases[step.phase].stop:
            self._log_time_of_phase(trainer, step)

    def _sum_up(self, trainer: Trainer, clips: int) -> dict[str, float]:
        """Reduce the metrics since the last report over all processes, in one all-reduce.

        Returns:
            The mean loss and, if the task has an accuracy, the top-1 accuracy in percent. If clips
            were drawn again, their number.
        """
        losses, rights, redraws = zip(*self._steps, strict=True)
        self._steps = []
        loss = torch.stack(losses).double() / trainer.world.size
        total = sum_over_ranks(torch.stack([loss, torch.stack(rights), loss.new_tensor(redraws)]))
        metrics = {"loss": round(float(total[0].mean()), 6)}
        right, resampled = float(total[1].sum()), int(total[2].sum())
        if not math.isnan(right):
            metrics["top1"] = round(100 * right / clips, 3)
        return metrics | ({"resampled": resampled} if resampled else {})

    def _log_progress(
        self,
        trainer: Trainer,
        step: ScheduleStep,
        metrics: Mapping[str, float],
        spent: _Spent,
    ) -> None:
        """Log the metrics and the speed since the last report.

        Args:
            trainer: The trainer.
            step: The last iteration.
            metrics: Result of `_sum_up`.
            spent: Clips and seconds since the last report.
        """
        share = spent.loading_share(trainer.world.device)
        done = trainer.progress.iteration
        total = trainer.schedule.iterations
        # Extrapolate from this phase: iterations of all phases take about the same time.
        left = self._phase_spent.seconds / self._phase_spent.iterations * (total - done)
        speed = spent.clips / max(spent.seconds, 1e-9)
        self._write(
            {
                "type": "train",
                "iteration": done,
                "epoch": round(step.epoch, 4),
                "phase": step.phase,
                "shape": [step.shape.batch, step.shape.frames, step.shape.crop],
                "lr": step.lr,
                "bn_group_size": step.bn_group_size,
                **metrics,
                "clips_per_second": round(speed, 2),
                "loading_share": share,
                "seconds": round(trainer.clock.working, 3),
                "seconds_left": round(left, 1),
            }
        )
        loss, rate = f"loss {metrics['loss']:.4f}", f"LR {step.lr:.4g}"
        self.latest = f", {loss}, {rate}"
        top1 = f" top-1 {metrics['top1']:.1f}" if "top1" in metrics else ""
        logger.info(
            f"iteration {done}/{total} epoch {step.epoch:.2f} "
            f"phase {step.phase + 1}/{len(trainer.schedule.phases)} {step.shape} {rate} "
            f"{loss}{top1} {speed:.1f} clips/s ({100 * share:.0f} % waiting for data), "
            f"{format_duration(left)} left",
            extra={"is_on_bar": True},
        )

    def _log_time_of_phase(self, trainer: Trainer, step: ScheduleStep) -> None:
        """Log the time of a phase, and advice if too much of the time was spent on loading."""
        spent = self._phase_spent
        share = spent.loading_share(trainer.world.device)
        name = f"phase {step.phase + 1} of {len(trainer.schedule.phases)}"
        logger.info(
            f"{name}: {spent.iterations} iterations took {format_duration(spent.seconds)}, "
            f"{100 * share:.0f} % waiting for data"
        )
        if share > _LIMIT and spent.seconds > _SECONDS:
            logger.warning(
                "Data loading limited the speed of %s. Prepare the data set with multigrid-prepare "
                "(docs/data.md), or raise DATA_LOADER.NUM_WORKERS (%s)",
                *(name, self._recipe.data_loader.num_workers),
            )

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._files is None:
            return
        lines, events = self._files
        try:
            lines.write(json.dumps(record) + "\n")
            lines.flush()
        except OSError as error:
            raise_unwritable(error, self._path)
        for name, value in curves(record).items():
            # Pass the training time as wall time. TensorBoard shows it as relative time.
            events.add_scalar(name, value, record["iteration"], record["seconds"])


def curves(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the values to plot from a line of metrics.jsonl, by names such as "train/loss"."""
    values = {f"{record['type']}/{name}": record[name] for name in record.keys() - _NOT_DRAWN}
    values |= zip(_SIDES, record.get("shape", ()), strict=False)
    return {name: value for name, value in values.items() if value is not None}


def record_of(line: bytes) -> dict[str, Any] | None:
    """Return the entry in a line of metrics.jsonl, or None if the line is damaged."""
    with suppress(ValueError):
        record = json.loads(line)
        needed = ("type", "iteration", "epoch", "seconds")
        if isinstance(record, dict) and all(name in record for name in needed):
            return record
    return None


def _keep_lines_until(path: Path, iteration: int, evaluation: int) -> None:
    """Delete damaged lines of metrics.jsonl, and all entries after an iteration.

    Args:
        path: The file metrics.jsonl, which need not exist.
        iteration: Last iteration whose training entries are kept.
        evaluation: Last iteration whose validation entry is kept. Entries of a test are deleted,
            because a test follows.
    """
    lines = path.read_bytes().splitlines() if path.exists() else []
    records = [record_of(line) for line in lines]
    damaged = records[:-1].count(None)  # a kill may leave an incomplete last line
    if damaged:
        logger.warning("%d damaged lines of %s are removed.", damaged, path)
    last = {"train": iteration, "val": evaluation, "test": -1}
    kept = [
        line + b"\n"
        for line, record in zip(lines, records, strict=True)
        if record and record["iteration"] <= last.get(record["type"], iteration)
    ]
    write_text(path, b"".join(kept).decode())
