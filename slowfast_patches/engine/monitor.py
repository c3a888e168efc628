"""What a training says of itself: log lines, one JSON line per logged iteration, TensorBoard."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import simplejson
import torch
from torch.utils.tensorboard import SummaryWriter

from multigrid import Schedule, Step
from slowfast_patches.config.metrics import format_metrics
from slowfast_patches.engine.forecast import Forecast
from slowfast_patches.utils.files import written_whole

__all__ = ["Clock", "Monitor"]

logger = logging.getLogger(__name__)

_LIMIT = 0.15
"""Share of a phase's time spent waiting for data above which loading is the limit."""
_LEAST_ITERATIONS, _LEAST_SECONDS = 10, 5.0
"""Shorter phases say nothing of what limits them."""


class Clock:
    """Seconds spent on each activity over the whole life of a run, restarts included."""

    def __init__(self, seconds: Mapping[str, float] | None = None) -> None:
        nothing = {"training": 0.0, "loading": 0.0, "evaluating": 0.0, "saving": 0.0}
        self.seconds = nothing | dict(seconds or {})

    @contextmanager
    def time(self, activity: str) -> Iterator[None]:
        """Count the body's time as an activity's."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[activity] += time.perf_counter() - start

    @contextmanager
    def wait(self, device: torch.device) -> Iterator[None]:
        """Count the body's time as loading, as far as the device had nothing left to compute.

        Work is queued on a GPU: while the next mini-batch is awaited, it may still be computing,
        and that is training.
        """
        queued, start = _mark(device), time.perf_counter()
        yield
        waited = time.perf_counter() - start
        idle = min(waited, _seconds_since(queued, device))
        self.seconds["loading"] += idle
        self.seconds["training"] += waited - idle

    @property
    def working(self) -> float:
        """Seconds of training and of waiting for data."""
        return self.seconds["training"] + self.seconds["loading"]


@dataclass
class _Spent:
    """Iterations, their clips, and the seconds that went to computing and to waiting for data."""

    iterations: int = 0
    clips: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {"training": 0.0, "loading": 0.0})

    def add(self, clips: int, seconds: Mapping[str, float]) -> None:
        """Note one iteration."""
        self.iterations += 1
        self.clips += clips
        for activity in self.seconds:
            self.seconds[activity] += seconds[activity]

    @property
    def total(self) -> float:
        return max(sum(self.seconds.values()), 1e-9)

    @property
    def loading_share(self) -> float:
        return self.seconds["loading"] / self.total

    @property
    def is_limited_by_loading(self) -> bool:
        """Whether waiting took much of it, and it was long enough to tell."""
        is_long = self.iterations >= _LEAST_ITERATIONS and self.total >= _LEAST_SECONDS
        return is_long and self.loading_share > _LIMIT

    def __str__(self) -> str:
        return (
            f"{self.iterations} iterations took {timedelta(seconds=round(self.total))}, "
            f"{100 * self.loading_share:.0f} % of it waiting for data (reading gave "
            f"{self.clips / self.total:.1f} clips/s, training could take "
            f"{self.clips / max(self.seconds['training'], 1e-9):.1f})"
        )


class Monitor:
    """Writes OUTPUT_DIR/metrics.jsonl, events for TensorBoard, and the progress lines.

    "iteration" counts the iterations done. A continued run drops the lines that were written after
    the checkpoint it continues from. What is said of a phase, and of the training at its end, is
    what this process saw: of a phase that was interrupted, the iterations since. Its share of
    waiting for data is the main process's own.

    Args:
        output_dir: of the run.
        schedule: of the run.
        clock: tells what the time goes to; read, never written.
        start: iterations done before.
        advice: what to do where loading is the limit.
        evaluation_due: the evaluation after `start` iterations is yet to come.
    """

    def __init__(
        self,
        output_dir: str,
        schedule: Schedule,
        clock: Clock,
        start: int,
        advice: str,
        evaluation_due: bool = False,
    ) -> None:
        folder = Path(output_dir)
        self._schedule, self._clock, self._advice = schedule, clock, advice
        self._forecast = Forecast(schedule)
        self._path = folder / "metrics.jsonl"
        _keep_lines_until(self._path, start, start - evaluation_due)
        self._lines = self._path.open("a", encoding="utf-8")
        self._events = SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)
        self._before, self._seen = dict(clock.seconds), dict(clock.seconds)
        self._phase, self._training = _Spent(), _Spent()

    def close(self) -> None:
        self._lines.close()
        self._events.close()

    def observe(self, step: Step) -> None:
        """Note an iteration that is done; its time is what the clock counted since the last.

        The loading of the first is left out: the workers started in it.
        """
        now = dict(self._clock.seconds)
        seconds = {key: now[key] - self._seen[key] for key in ("training", "loading")}
        self._seen = now
        if self._training.iterations == 0:
            seconds["loading"] = 0.0
        self._forecast.observe(step.shape, sum(seconds.values()))
        for spent in (self._phase, self._training):
            spent.add(step.shape.batch, seconds)
        if step.iteration + 1 == self._schedule.phases[step.phase].stop:
            self._finish_phase(step)
        if step.iteration + 1 == self._schedule.iterations:
            logger.info("training: %s", self._training)

    def boundary(self, step: Step) -> None:
        """Say what holds from here on: the shape, the global batch, the rate, BN."""
        phase = self._schedule.phases[step.phase]
        shapes = ", ".join(map(str, phase.shapes))
        logger.info(
            "phase %d of %d from iteration %d: %s%s; global batch %s, LR %.4g, BN over %s clips",
            step.phase + 1,
            len(self._schedule.phases),
            step.iteration,
            shapes,
            " (fine-tuning)" if phase.fine_tuning else "",
            "/".join(str(shape.batch) for shape in phase.shapes),
            step.lr,
            "/".join(str(size or "its own") for size in phase.bn_sizes),
        )

    def progress(self, step: Step, loss: float, top1: float | None, clips: int) -> None:
        """One line for the iterations since the last: their loss, speed and, where a clip has one
        label, accuracy."""
        now = dict(self._clock.seconds)
        spent = {key: now[key] - self._before[key] for key in ("training", "loading")}
        self._before = now
        seconds = max(sum(spent.values()), 1e-9)
        left = self._forecast.remaining(step.iteration + 1)
        accuracy = {} if top1 is None else {"top1": round(top1, 3)}
        record = {
            "type": "train",
            "iteration": step.iteration + 1,
            "epoch": round(step.epoch, 4),
            "phase": step.phase,
            "shape": list(_numbers(step)),
            "lr": step.lr,
            "bn_size": step.bn_size,
            "loss": round(loss, 6),
            **accuracy,
            "clips_per_second": round(clips / seconds, 2),
            "loading_share": round(spent["loading"] / seconds, 4),
            "seconds": round(self._clock.working, 3),
            "seconds_left": round(left, 1),
        }
        self._write(record, ("loss", *accuracy, "lr", "clips_per_second", "loading_share"))
        logger.info(
            "iteration %d/%d epoch %.2f phase %d/%d %s LR %.4g loss %.4f%s "
            "%.1f clips/s (%.0f %% waiting for data), %s left",
            step.iteration + 1,
            self._schedule.iterations,
            step.epoch,
            step.phase + 1,
            len(self._schedule.phases),
            step.shape,
            step.lr,
            loss,
            "" if top1 is None else f" top-1 {top1:.1f}",
            record["clips_per_second"],
            100 * spent["loading"] / seconds,
            timedelta(seconds=round(left)),
        )

    def evaluated(self, record: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Note a validation and its metrics, which the record has too."""
        self._write({"type": "val", **record}, tuple(metrics))
        logger.info(
            "validation after iteration %d (epoch %.2f): %s",
            record["iteration"],
            record["epoch"],
            format_metrics(metrics),
        )

    def _finish_phase(self, step: Step) -> None:
        """Say what a phase's time went to, and what to do if it went to waiting."""
        spent, self._phase = self._phase, _Spent()
        record = {
            "type": "phase",
            "iteration": step.iteration + 1,
            "phase": step.phase,
            "iterations": spent.iterations,
            "clips": spent.clips,
            "seconds": round(spent.total, 3),
            "loading_share": round(spent.loading_share, 4),
        }
        self._write(record, ("loading_share",))
        name = f"phase {step.phase + 1} of {len(self._schedule.phases)}"
        logger.info("%s: %s", name, spent)
        if spent.is_limited_by_loading:
            logger.warning(
                "loading was the limit of %s, not the model: it waited %.0f %% of the time; %s",
                name,
                100 * spent.loading_share,
                self._advice,
            )

    def _write(self, record: Mapping[str, Any], scalars: tuple[str, ...]) -> None:
        self._lines.write(simplejson.dumps(record) + "\n")
        self._lines.flush()
        for name in scalars:
            self._events.add_scalar(f"{record['type']}/{name}", record[name], record["iteration"])
        if record["type"] == "train":
            for name, value in zip(("batch", "frames", "crop"), record["shape"], strict=True):
                self._events.add_scalar(f"shape/{name}", value, record["iteration"])


def _numbers(step: Step) -> tuple[int, int, int]:
    return step.shape.batch, step.shape.frames, step.shape.crop


def _mark(device: torch.device) -> Any:
    """The end of what is queued on a GPU by now; None on the CPU, where nothing is queued."""
    if device.type != "cuda":
        return None
    mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    mark.record()
    return mark


def _seconds_since(mark: Any, device: torch.device) -> float:
    """Seconds for which a device has had nothing left to do, if nothing was queued since."""
    if mark is None:
        return math.inf
    if not mark.query():
        return 0.0
    now = _mark(device)
    now.synchronize()  # at once: nothing is before it
    return float(mark.elapsed_time(now)) / 1000


def _keep_lines_until(path: Path, iteration: int, evaluation: int) -> None:
    """Drop the records after `iteration` iterations, evaluations after `evaluation`, and a last
    line that was not written whole."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = simplejson.loads(line)
        except simplejson.JSONDecodeError:
            continue
        if record["iteration"] <= (evaluation if record["type"] == "val" else iteration):
            kept.append(line + "\n")
    with written_whole(path) as file:
        file.write("".join(kept).encode())
