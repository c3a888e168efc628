"""Log the progress of a training, and write metrics.jsonl and TensorBoard events."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from operator import sub
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import torch
from torch import Tensor

from multigrid import ScheduleStep
from slowfast_patches.config.metrics import COUNTS, format_metrics
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.count_unreadable import count_unreadable, log_unreadable
from slowfast_patches.tasks import task_of
from slowfast_patches.train.checkpoint import diverged
from slowfast_patches.train.hooks import is_due
from slowfast_patches.train.step import Outcome
from slowfast_patches.train.trainer import Hook, Trainer
from slowfast_patches.utils.distributed import max_over_ranks, sum_over_ranks
from slowfast_patches.utils.files import write_text
from slowfast_patches.utils.tables import format_duration

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger(__name__)

_LIMIT = 0.15
"""Warn if a phase waits for data for more than this share of its time."""
_SECONDS = 5.0
"""Only warn about phases that take more than this number of seconds."""


_NOT_DRAWN = {"type", "iteration", "epoch", "seconds", "phase", "seconds_left", "shape", *COUNTS}


class LogMetrics(Hook):
    """Log the metrics of a training, reduced over all processes.

    The main process writes metrics.jsonl, TensorBoard events and lines of the log. If the disk is
    full or not writable, OSError is raised.

    Args:
        recipe: The recipe of the training.
        after: Numbers of finished iterations after which to report, besides LOG_PERIOD.
        advice: Advice to log if a phase spends too much time on waiting for data.

    Attributes:
        latest: The last loss and learning rate, for the progress bar.
    """

    def __init__(self, recipe: Recipe, after: Collection[int], advice: str) -> None:
        self._recipe = recipe
        self._task = task_of(recipe)
        self._after = after
        self._advice = advice
        self.latest = ""
        self._iterations = list[tuple[Tensor, Tensor, int, int]]()  # since the last report
        self._unreadable = dict[int, int]()  # number of unreadable videos by epoch
        # Each of these is (finished iterations, seconds of training, seconds of loading).
        self._now: tuple[float, ...] = ()
        self._report_start: tuple[float, ...] = ()
        self._phase_start: tuple[float, ...] = ()
        self._lines: TextIO | None = None
        self._events: SummaryWriter | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"unreadable": dict(self._unreadable)} if self._unreadable else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._unreadable = dict(state["unreadable"])

    def before_train(self, trainer: Trainer) -> None:
        """Open the files, and delete old entries after iteration `progress.iteration`.

        Such entries are from a previous attempt that was killed after its last checkpoint.
        """
        self._take_time(trainer)
        if not trainer.world.is_main:
            return
        from torch.utils.tensorboard import SummaryWriter  # takes a second to import

        done = trainer.progress.iteration
        path = Path(self._recipe.output_dir, "metrics.jsonl")
        _keep_lines_until(path, done, trainer.progress.last_evaluation)
        self._lines = path.open("a", encoding="utf-8")
        # With `purge_step`, TensorBoard ignores later events of a previous attempt.
        self._events = SummaryWriter(str(path.with_name("tensorboard")), purge_step=done + 1)

    def after_step(self, trainer: Trainer, step: ScheduleStep, outcome: Outcome) -> None:
        """Store the results of an iteration, and report if this is due.

        The loss stays on the device until the report, so that other iterations do not wait for the
        GPU.
        """
        phase = trainer.schedule.phases[step.phase]
        if not self._report_start:
            # Leave out the wait for the first mini-batch, because every run has this wait.
            self._now = (*self._now[:2], trainer.clock.seconds["loading"])
            self._report_start = self._phase_start = self._now
            self._log_phase(trainer, step)
        elif step.iteration == phase.start:
            self._phase_start = self._now
            self._log_phase(trainer, step)
        for path, reason in outcome.failures:
            log_unreadable(path, reason, "another video is used instead")
        right = self._task.count_right(outcome.scores, outcome.labels)
        counts = (len(outcome.failures), outcome.redrawn)
        self._iterations.append((outcome.loss, right, *counts))
        self._take_time(trainer)
        is_due_here = trainer.progress.iteration % self._recipe.log_period == 0
        if is_due_here or is_due(trainer, self._after):
            self._report(trainer, step)

    def after_train(self, trainer: Trainer) -> None:
        """Close the files."""
        if trainer.should_save and self._iterations:  # a hook has failed
            self._report(trainer, trainer.schedule.at(trainer.progress.iteration - 1))
        for file in (self._lines, self._events):
            if file is not None:
                file.close()

    def log_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        """Log an entry of `Progress.evaluations`."""
        self._write({"type": "val", **evaluation})
        when = ("iteration", "epoch", "seconds")
        metrics = {name: value for name, value in evaluation.items() if name not in when}
        if self._lines is not None:
            logger.info(
                "validation after iteration %d (epoch %.2f): %s",
                *(evaluation["iteration"], evaluation["epoch"], format_metrics(metrics)),
            )

    def _log_phase(self, trainer: Trainer, step: ScheduleStep) -> None:
        """Log the shapes, learning rate and BN group sizes of the phase of `step`."""
        if trainer.world.is_main:
            schedule = trainer.schedule
            sizes = schedule.phases[step.phase].bn_sizes if self._recipe.model.has_batchnorm else ()
            named = "/".join(str(size) for size in sizes if size)
            logger.info(
                "phase %d of %d: %s; LR %.4g%s",
                *(step.phase + 1, len(schedule.phases), schedule.phase_lines()[step.phase]),
                *(step.lr, f", BN over {named} clips" if named else ""),
            )

    def _take_time(self, trainer: Trainer) -> None:
        seconds = trainer.clock.seconds
        self._now = (trainer.progress.iteration, seconds["training"], seconds["loading"])

    def _report(self, trainer: Trainer, step: ScheduleStep) -> None:
        """Reduce and log the metrics since the last report. Every process must call this.

        Raises:
            RunError: A loss is not finite, or too many videos of an epoch cannot be read.
            OSError: The files cannot be written.
        """
        loss, right, redrawn = self._sum_up(trainer)
        spent = self._spent(trainer, self._report_start)
        self._report_start = self._now
        top1 = 100 * right / spent["clips"]  # NaN for tasks without accuracy
        more = ({} if math.isnan(top1) else {"top1": round(top1, 3)}) | (
            {"redrawn": redrawn} if redrawn else {}
        )
        self._write_progress(trainer, step, loss, more, spent)
        if trainer.progress.iteration == trainer.schedule.phases[step.phase].stop:
            self._write_phase(trainer, step, self._spent(trainer, self._phase_start))

    def _sum_up(self, trainer: Trainer) -> tuple[float, float, int]:
        """Reduce the metrics since the last report over all processes, in one all-reduce.

        Returns:
            The mean loss, the number of correctly classified clips, and the number of clips whose
            crop was drawn again.

        Raises:
            RunError: A loss is not finite, or too many videos of an epoch cannot be read.
        """
        losses, rights, *numbers = zip(*self._iterations, strict=True)
        self._iterations = []
        schedule = trainer.schedule
        steps = schedule.steps(int(self._report_start[0]), trainer.progress.iteration)
        loss = torch.stack(losses).double() / trainer.world.size
        total = sum_over_ranks(
            torch.stack([loss, torch.stack(rights), *map(loss.new_tensor, numbers)])
        )
        for step, (value, _, number, _) in zip(steps, total.T.tolist(), strict=True):
            if not math.isfinite(value):
                raise diverged(
                    f"The loss of iteration {step.iteration} is {value} (shape {step.shape}, LR "
                    f"{step.lr:.4g})"
                )
            fraction = self._recipe.data.max_bad_fraction
            count_unreadable(self._unreadable, schedule, step, int(number), fraction)
        return float(total[0].mean()), float(total[1].sum()), int(total[3].sum())

    def _spent(self, trainer: Trainer, start: Sequence[float]) -> dict[str, float]:
        """Return the iterations, clips, seconds and share of loading time since `start`.

        The share of loading time is the maximum over the ranks, because in each iteration all ranks
        wait for the slowest one.

        Args:
            trainer: The trainer.
            start: Finished iterations, seconds of training and seconds of loading at the start.
        """
        iterations, training, loading = map(sub, self._now, start)
        seconds = max(training + loading, 1e-9)
        share = torch.tensor(loading / seconds, device=trainer.world.device)
        last = trainer.schedule.at(trainer.progress.iteration - 1)
        first_clip = trainer.schedule.at(int(start[0])).first_clip
        return {
            "iterations": iterations,
            "clips": last.first_clip + last.shape.batch - first_clip,
            "seconds": seconds,
            "loading_share": round(float(max_over_ranks(share)), 4),
        }

    def _write_progress(
        self,
        trainer: Trainer,
        step: ScheduleStep,
        loss: float,
        more: Mapping[str, float],
        spent: Mapping[str, float],
    ) -> None:
        """Log the loss, speed and accuracy since the last report.

        Args:
            trainer: The trainer.
            step: The last iteration.
            loss: The mean loss.
            more: Values that not every training has, such as the top-1 accuracy in percent.
            spent: Result of `_spent` since the last report.
        """
        if not trainer.world.is_main:
            return
        done = trainer.progress.iteration
        total = trainer.schedule.iterations
        # Extrapolate from this phase: iterations of all phases take about the same time.
        iterations, *seconds = map(sub, self._now, self._phase_start)
        left = sum(seconds) / iterations * (total - done)
        record = {
            "type": "train",
            "iteration": done,
            "epoch": round(step.epoch, 4),
            "phase": step.phase,
            "shape": [step.shape.batch, step.shape.frames, step.shape.crop],
            "lr": step.lr,
            "bn_size": step.bn_size,
            "loss": round(loss, 6),
            **more,
            "clips_per_second": round(spent["clips"] / spent["seconds"], 2),
            "loading_share": spent["loading_share"],
            "seconds": round(trainer.clock.working, 3),
            "seconds_left": round(left, 1),
        }
        self._write(record)
        self.latest = f", loss {loss:.4f}, LR {step.lr:.4g}"
        top1 = " top-1 %(top1).1f" * ("top1" in more)
        waiting = f"{100 * spent['loading_share']:.0f} %% waiting for data"
        logger.info(
            f"iteration %(iteration)d/{total} epoch %(epoch).2f "
            f"phase {step.phase + 1}/{len(trainer.schedule.phases)} {step.shape} LR %(lr).4g "
            f"loss %(loss).4f{top1} %(clips_per_second).1f clips/s "
            f"({waiting}), {format_duration(left)} left",
            record,
            extra={"is_on_bar": True},
        )

    def _write_phase(self, trainer: Trainer, step: ScheduleStep, spent: dict[str, float]) -> None:
        """Log the time of a phase, and advice if too much of the time was spent on loading."""
        if not trainer.world.is_main:
            return
        name = f"phase {step.phase + 1} of {len(trainer.schedule.phases)}"
        share = spent["loading_share"]
        record = {"type": "phase", "iteration": trainer.progress.iteration, "phase": step.phase}
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
        self._lines.write(json.dumps(record) + "\n")
        self._lines.flush()
        for name, value in curves(record).items():
            # Pass the training time as wall time. TensorBoard shows it as relative time.
            self._events.add_scalar(name, value, record["iteration"], record["seconds"])


def curves(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the values to plot from a line of metrics.jsonl, by names such as "train/loss"."""
    kind = record["type"]
    if kind == "phase":
        return {}
    values = {f"{kind}/{name}": value for name, value in record.items() if name not in _NOT_DRAWN}
    if kind == "train":
        sides = ("shape/batch", "shape/frames", "shape/crop")
        values |= zip(sides, record["shape"], strict=True)
    return {name: value for name, value in values.items() if value is not None}


def _keep_lines_until(path: Path, iteration: int, evaluation: int) -> None:
    """Delete the entries of metrics.jsonl after an iteration, and an incomplete last line.

    Args:
        path: The file metrics.jsonl, which need not exist.
        iteration: Last iteration whose training entries are kept.
        evaluation: Last iteration whose validation entry is kept.
    """
    kept = list[str]()
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError):
            record = json.loads(line)
            if record["iteration"] <= (evaluation if record["type"] == "val" else iteration):
                kept.append(line + "\n")
    write_text(path, "".join(kept))
