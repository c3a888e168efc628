"""What a training says of itself: log lines, one JSON line per logged iteration, TensorBoard."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import simplejson
from torch.utils.tensorboard import SummaryWriter

from multigrid import Schedule, Step
from slowfast_patches.engine.forecast import Forecast

__all__ = ["Clock", "Monitor", "setup_logging"]

logger = logging.getLogger(__name__)

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def setup_logging(output_dir: str | None) -> None:
    """Log to the terminal and to OUTPUT_DIR/train.log; warnings only without a folder.

    Only the main process has a folder.
    """
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if output_dir is not None:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(Path(output_dir) / "train.log"))
    logging.basicConfig(
        level=logging.WARNING if output_dir is None else logging.INFO,
        format=_FORMAT,
        datefmt="%H:%M:%S",
        handlers=handlers,
    )
    logging.getLogger("fvcore").setLevel(logging.WARNING)
    logging.captureWarnings(True)


class Clock:
    """Seconds spent on each activity over the whole life of a run, restarts included."""

    def __init__(self, seconds: Mapping[str, float] | None = None) -> None:
        self.seconds = {"training": 0.0, "loading": 0.0, "evaluating": 0.0} | dict(seconds or {})

    @contextmanager
    def time(self, activity: str) -> Iterator[None]:
        """Count the body's time as an activity's."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[activity] += time.perf_counter() - start

    @property
    def working(self) -> float:
        """Seconds of training and of waiting for data."""
        return self.seconds["training"] + self.seconds["loading"]


class Monitor:
    """Writes OUTPUT_DIR/metrics.jsonl, events for TensorBoard, and the progress lines.

    "iteration" counts the iterations done. A continued run drops the lines that were written after
    the checkpoint it continues from.
    """

    def __init__(self, output_dir: str, schedule: Schedule, clock: Clock, start: int) -> None:
        folder = Path(output_dir)
        self._schedule, self._clock = schedule, clock
        self._forecast = Forecast(schedule)
        self._path = folder / "metrics.jsonl"
        _keep_lines_until(self._path, start)
        self._lines = self._path.open("a", encoding="utf-8")
        self._events = SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)
        self._before = dict(clock.seconds)

    def close(self) -> None:
        self._lines.close()
        self._events.close()

    def observe(self, step: Step, seconds: float) -> None:
        """Note the time of an iteration, its loading included."""
        self._forecast.observe(step.shape, seconds)

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

    def progress(self, step: Step, loss: float, top1: float, clips: int) -> None:
        """One line for the iterations since the last: their loss, accuracy and speed."""
        now = dict(self._clock.seconds)
        spent = {key: now[key] - self._before[key] for key in ("training", "loading")}
        self._before = now
        seconds = max(sum(spent.values()), 1e-9)
        left = self._forecast.remaining(step.iteration + 1)
        record = {
            "type": "train",
            "iteration": step.iteration + 1,
            "epoch": round(step.epoch, 4),
            "phase": step.phase,
            "shape": list(_numbers(step)),
            "lr": step.lr,
            "bn_size": step.bn_size,
            "loss": round(loss, 6),
            "top1": round(top1, 3),
            "clips_per_second": round(clips / seconds, 2),
            "loading_share": round(spent["loading"] / seconds, 4),
            "seconds": round(self._clock.working, 3),
            "seconds_left": round(left, 1),
        }
        self._write(record, ("loss", "top1", "lr", "clips_per_second", "loading_share"))
        logger.info(
            "iteration %d/%d epoch %.2f phase %d/%d %s LR %.4g loss %.4f top-1 %.1f "
            "%.1f clips/s (%.0f %% waiting for data), %s left",
            step.iteration + 1,
            self._schedule.iterations,
            step.epoch,
            step.phase + 1,
            len(self._schedule.phases),
            step.shape,
            step.lr,
            loss,
            top1,
            record["clips_per_second"],
            100 * spent["loading"] / seconds,
            timedelta(seconds=round(left)),
        )

    def evaluated(self, record: Mapping[str, Any]) -> None:
        """Note a validation."""
        line = {"type": "val", **record}
        self._write(line, ("top1", "top5"))
        logger.info(
            "validation after iteration %d (epoch %.2f): top-1 %.2f, top-5 %.2f",
            record["iteration"],
            record["epoch"],
            record["top1"],
            record["top5"],
        )

    def epoch(self, epoch: int, unreadable: int) -> None:
        """Say that a pass over the data is done."""
        logger.info("epoch %d done: %d videos could not be read", epoch, unreadable)

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


def _keep_lines_until(path: Path, iteration: int) -> None:
    """Drop the records after `iteration` iterations, and a last line that was not written whole."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = simplejson.loads(line)
        except simplejson.JSONDecodeError:
            continue
        if record["iteration"] <= iteration:
            kept.append(line + "\n")
    path.write_text("".join(kept), encoding="utf-8")
