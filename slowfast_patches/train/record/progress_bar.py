"""Show the progress of a training on a terminal."""

from __future__ import annotations

from collections.abc import Collection

from tqdm import tqdm

from multigrid import ScheduleStep
from slowfast_patches.train.record.log import terminal_bar
from slowfast_patches.train.record.log_metrics import LogMetrics
from slowfast_patches.train.step import Outcome
from slowfast_patches.train.trainer import Hook, Trainer


class ProgressBar(Hook):
    """Show a progress bar of the training, in place of the lines of the log about iterations.

    Args:
        metrics: The hook that logs the loss and the learning rate.
        closes_after: Numbers of finished iterations after which a validation runs, which shows its
            own bar. The next iteration opens the bar of the training again.
    """

    def __init__(self, metrics: LogMetrics, closes_after: Collection[int]) -> None:
        self._metrics = metrics
        self._closes_after = closes_after
        self._bar: tqdm[None] | None = None

    def after_step(self, trainer: Trainer, step: ScheduleStep, outcome: Outcome) -> None:
        name = f"phase {step.phase + 1}/{len(trainer.schedule.phases)}"
        done = trainer.progress.iteration
        if self._bar is None:
            total = trainer.schedule.iterations
            self._bar = terminal_bar(name, total, done, is_main=trainer.world.is_main)
        self._bar.set_description_str(name, refresh=False)
        self._bar.set_postfix_str(f"{step.shape}{self._metrics.latest}", refresh=False)
        self._bar.update(done - self._bar.n)
        if done in self._closes_after:
            self.after_train(trainer)

    def after_train(self, trainer: Trainer) -> None:
        """Remove the bar from the terminal."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
