"""The iterations since the last report, summed up over all processes."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from multigrid import Step
from slowfast_patches.launch.stopping import TrainingStoppedError
from slowfast_patches.train.record.clock import Clock
from slowfast_patches.utils.distributed import World, sum_over_ranks

__all__ = ["Summary", "Window"]


class Summary(NamedTuple):
    """Some iterations over all processes: mean loss, clips, per cent of them classified rightly
    where a clip has one label, how many unreadable videos each iteration met, and each rank's
    seconds of training and of loading."""

    loss: float
    clips: int
    top1: float | None
    unreadable: list[tuple[Step, int]]
    spent: list[tuple[float, float]]


class Window:
    """Iterations since the last report; their losses are left on the device until it.

    Its seconds are those that the clock counted from one summary to the next; the first begin with
    the first iteration's computation, since the workers started in its loading.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[str, float] | None = None
        self._steps: list[Step] = []
        self._losses: list[Tensor] = []
        self._right: list[Tensor] = []
        self._failures: list[int] = []

    def add(self, step: Step, loss: Tensor, right: Tensor | None, failures: int) -> None:
        if self._since is None:
            self._since = dict(self._clock.seconds)
        self._steps.append(step)
        self._losses.append(loss)
        if right is not None:
            self._right.append(right)
        self._failures.append(failures)

    def summarize(self, world: World) -> Summary:
        """What happened since the last summary; empties the window.

        Raises:
            TrainingStoppedError: a loss is not finite; names the iteration.
        """
        steps, rows = self._steps, [torch.stack(self._losses).double()]
        rows.append(rows[0].new_tensor(self._failures))
        if self._right:
            rows.append(torch.stack(self._right).double())
        # One reduction: rows of iterations, and a row of seconds for each rank, that it fills.
        spent = rows[0].new_zeros(world.size, 2)
        spent[world.rank] = spent.new_tensor(self._seconds())
        total = sum_over_ranks(torch.cat([*rows, spent.flatten()]))
        losses, failures, *right = total[: -spent.numel()].view(len(rows), len(steps))
        spent = total[-spent.numel() :].view(spent.shape)
        losses = losses / world.size
        _check_finite(steps, losses)
        self._steps, self._losses, self._right, self._failures = [], [], [], []
        clips = sum(step.shape.batch for step in steps)
        return Summary(
            loss=float(losses.mean()),
            clips=clips,
            top1=100 * float(right[0].sum()) / clips if right else None,
            unreadable=list(zip(steps, failures.long().tolist(), strict=True)),
            spent=[(training, loading) for training, loading in spent.tolist()],
        )

    def _seconds(self) -> tuple[float, float]:
        """This rank's of training and of loading since the last summary."""
        assert self._since is not None
        now, since = self._clock.until_now(), self._since
        self._since = now
        return now["training"] - since["training"], now["loading"] - since["loading"]


def _check_finite(steps: list[Step], losses: Tensor) -> None:
    for step, loss in zip(steps, losses.tolist(), strict=True):
        if not math.isfinite(loss):
            raise TrainingStoppedError(
                f"the loss of iteration {step.iteration} is {loss} (shape {step.shape}, LR "
                f"{step.lr:.4g}); the last checkpoint is from before. A lower SOLVER.BASE_LR, "
                "a longer SOLVER.WARMUP_EPOCHS or SOLVER.CLIP_GRAD_L2NORM may help"
            )
