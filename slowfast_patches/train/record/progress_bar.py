"""Show the progress of a training or an evaluation on a terminal."""

from __future__ import annotations

import os
import sys

from tqdm import tqdm

from multigrid import Schedule, ScheduleStep


def terminal_bar(name: str, total: int, done: int = 0, *, is_main: bool) -> tqdm[None]:
    """Return a progress bar on standard error that disappears when it is closed.

    The bar is disabled if standard error is not a terminal, outside the main process, and by the
    environment variable TQDM_DISABLE.

    Args:
        name: Text before the bar.
        total: Number of iterations.
        done: Number of iterations that are already finished.
        is_main: Whether this is the main process.
    """
    return tqdm(
        desc=name,
        total=total,
        initial=done,
        disable=not (is_main and sys.stderr.isatty() and not os.environ.get("TQDM_DISABLE")),
        leave=False,
        dynamic_ncols=True,
        smoothing=0.05,
        bar_format="{desc} {percentage:.0f}%|{bar}| {n_fmt}/{total_fmt} [{remaining} left, "
        "{rate_fmt}{postfix}]",
    )


class ProgressBar:
    """Progress bar of a training, in place of the lines of the log about iterations.

    Args:
        schedule: The schedule of the training.
        is_main: Whether this is the main process, which shows the bar.
    """

    def __init__(self, schedule: Schedule, is_main: bool) -> None:
        self._schedule = schedule
        self._is_main = is_main
        self._bar: tqdm[None] | None = None
        self._metrics = ""

    @property
    def is_shown(self) -> bool:
        """Whether the bar is on the terminal now."""
        return self._bar is not None and not self._bar.disable

    def advance(self, step: ScheduleStep) -> None:
        """Show that an iteration has finished. This opens the bar if it is closed."""
        name = f"phase {step.phase + 1}/{len(self._schedule.phases)}"
        done = step.iteration + 1
        if self._bar is None:
            total = self._schedule.iterations
            self._bar = terminal_bar(name, total, done, is_main=self._is_main)
        self._bar.set_description_str(name, refresh=False)
        self._bar.set_postfix_str(f"{step.shape}{self._metrics}", refresh=False)
        self._bar.update(done - self._bar.n)

    def describe(self, loss: float, lr: float) -> None:
        """Set the loss and the learning rate to show from the next iteration on."""
        self._metrics = f", loss {loss:.4f}, LR {lr:.4g}"

    def close(self) -> None:
        """Remove the bar from the terminal."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
