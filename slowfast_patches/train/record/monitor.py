"""What a training says of itself: log lines, one JSON line per logged iteration, TensorBoard."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import simplejson

from multigrid import Schedule, Step
from slowfast_patches.config.metrics import format_metrics
from slowfast_patches.train.record.clock import Clock
from slowfast_patches.train.record.events import Events
from slowfast_patches.train.record.forecast import Forecast
from slowfast_patches.train.record.window import Summary
from slowfast_patches.utils.files import written_whole
from slowfast_patches.utils.report import format_duration

__all__ = ["Monitor"]

logger = logging.getLogger(__name__)

_LIMIT = 0.15
"""Share of a phase's time spent waiting for data above which loading is the limit."""
_LEAST_ITERATIONS, _LEAST_SECONDS = 10, 5.0
"""Shorter phases say nothing of what limits them."""


@dataclass
class _Spent:
    """Iterations, their clips, and the seconds that went to computing and to waiting for data:
    those of this process, iteration by iteration, and those of each rank, report by report."""

    iterations: int = 0
    clips: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {"training": 0.0, "loading": 0.0})
    ranks: list[tuple[float, float]] = field(default_factory=list)

    def add(self, clips: int, seconds: Mapping[str, float]) -> None:
        """Note one iteration."""
        self.iterations += 1
        self.clips += clips
        for activity in self.seconds:
            self.seconds[activity] += seconds[activity]

    def add_ranks(self, spent: Sequence[tuple[float, float]]) -> None:
        """Note what each rank trained and loaded since the last report."""
        before = self.ranks or [(0.0, 0.0)] * len(spent)
        self.ranks = [(a + c, b + d) for (a, b), (c, d) in zip(before, spent, strict=True)]

    @property
    def total(self) -> float:
        return max(sum(self.seconds.values()), 1e-9)

    @property
    def loading_share(self) -> float:
        return self.seconds["loading"] / self.total

    @property
    def limit(self) -> str | None:
        """Who waited for data much of the time, and how much, if it was long enough to tell."""
        worst = _worst(self.ranks)
        who, share = ("it", self.loading_share) if worst is None else (f"rank {worst[0]}", worst[1])
        is_long = self.iterations >= _LEAST_ITERATIONS and self.total >= _LEAST_SECONDS
        return f"{who} waited {100 * share:.0f} %" if is_long and share > _LIMIT else None

    def __str__(self) -> str:
        return (
            f"{self.iterations} iterations took {format_duration(self.total)}, "
            f"{100 * self.loading_share:.0f} % of it waiting for data{_most(self.ranks)} (reading "
            f"gave {self.clips / self.total:.1f} clips/s, training could take "
            f"{self.clips / max(self.seconds['training'], 1e-9):.1f})"
        )


def _worst(ranks: Sequence[tuple[float, float]]) -> tuple[int, float] | None:
    """The rank that waits for data most, and its share; None where there is one rank. While it
    waits, the others wait for it in communication, which counts as training."""
    shares = [loading / max(training + loading, 1e-9) for training, loading in ranks]
    return max(enumerate(shares), key=lambda pair: pair[1]) if len(shares) > 1 else None


def _most(ranks: Sequence[tuple[float, float]]) -> str:
    """What a line says of the rank that waits most."""
    worst = _worst(ranks)
    return "" if worst is None else f", rank {worst[0]} most with {100 * worst[1]:.0f} %"


def _worst_record(ranks: Sequence[tuple[float, float]]) -> dict[str, float]:
    """What a record says of it."""
    worst = _worst(ranks)
    if worst is None:
        return {}
    return {"worst_loading_share": round(worst[1], 4), "worst_loading_rank": worst[0]}


class Monitor:
    """Writes OUTPUT_DIR/metrics.jsonl, events for TensorBoard, and the progress lines.

    "iteration" counts the iterations done. A continued run drops the lines that were written after
    the checkpoint it continues from. What is said of a phase, and of the training at its end, is
    what this process saw: of a phase that was interrupted, the iterations since. A share of waiting
    for data is the main process's own; with several processes, that of the rank that waits most is
    beside it, over the reports that fall into the phase.

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
        kept = _keep_lines_until(self._path, start, start - evaluation_due)
        self._lines = self._path.open("a", encoding="utf-8")
        self._events = Events(folder / "tensorboard", start, clock.working, kept)
        self._seen = dict(clock.seconds)
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

    def progress(self, step: Step, summary: Summary) -> None:
        """One line for the iterations since the last: their loss, speed and, where a clip has one
        label, accuracy."""
        for spent_by_all in (self._phase, self._training):
            spent_by_all.add_ranks(summary.spent)
        training, loading = summary.spent[0]  # of this process, as the phase's are
        seconds = max(training + loading, 1e-9)
        left = self._forecast.remaining(step.iteration + 1)
        unknown = not left and step.iteration + 1 < self._schedule.iterations
        accuracy = {} if summary.top1 is None else {"top1": round(summary.top1, 3)}
        record = {
            "type": "train",
            "iteration": step.iteration + 1,
            "epoch": round(step.epoch, 4),
            "phase": step.phase,
            "shape": list(_numbers(step)),
            "lr": step.lr,
            "bn_size": step.bn_size,
            "loss": round(summary.loss, 6),
            **accuracy,
            "clips_per_second": round(summary.clips / seconds, 2),
            "loading_share": round(loading / seconds, 4),
            **_worst_record(summary.spent),
            "seconds": round(self._clock.working, 3),
            "seconds_left": round(left, 1),
        }
        self._write(record)
        logger.info(
            "iteration %d/%d epoch %.2f phase %d/%d %s LR %.4g loss %.4f%s "
            "%.1f clips/s (%.0f %% waiting for data%s), %s",
            step.iteration + 1,
            self._schedule.iterations,
            step.epoch,
            step.phase + 1,
            len(self._schedule.phases),
            step.shape,
            step.lr,
            summary.loss,
            "" if summary.top1 is None else f" top-1 {summary.top1:.1f}",
            record["clips_per_second"],
            100 * loading / seconds,
            _most(summary.spent),
            "not yet known what is left" if unknown else f"{format_duration(left)} left",
        )

    def evaluated(self, record: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Note a validation and its metrics, which the record has too."""
        self._write({"type": "val", **record})
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
            **_worst_record(spent.ranks),
        }
        self._write(record)
        name = f"phase {step.phase + 1} of {len(self._schedule.phases)}"
        logger.info("%s: %s", name, spent)
        if (limit := spent.limit) is not None:
            logger.warning(
                "loading was the limit of %s, not the model: %s of the time; %s",
                *(name, limit, self._advice),
            )

    def _write(self, record: Mapping[str, Any]) -> None:
        self._lines.write(simplejson.dumps(record) + "\n")
        self._lines.flush()
        self._events.write(record)


def _numbers(step: Step) -> tuple[int, int, int]:
    return step.shape.batch, step.shape.frames, step.shape.crop


def _keep_lines_until(path: Path, iteration: int, evaluation: int) -> list[dict[str, Any]]:
    """Drop the records after `iteration` iterations, evaluations after `evaluation`, and a last
    line that was not written whole; the records that are kept."""
    if not path.exists():
        return []
    lines, records = list[str](), list[dict[str, Any]]()
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = simplejson.loads(line)
        except simplejson.JSONDecodeError:
            continue
        if record["iteration"] <= (evaluation if record["type"] == "val" else iteration):
            lines.append(line + "\n")
            records.append(record)
    with written_whole(path) as file:
        file.write("".join(lines).encode())
    return records
