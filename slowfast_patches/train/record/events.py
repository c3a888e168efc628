"""Scalars of a training for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slowfast_patches.config.metrics import COUNTS

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["Events"]

_DRAWN = {
    "train": ("loss", "top1", "lr", "clips_per_second", "loading_share", "worst_loading_share"),
    "phase": ("loading_share", "worst_loading_share"),
}
"""What is drawn of a record of each type; of "val" all its metrics."""
_NO_METRICS = {"type", "iteration", "epoch", "seconds", *COUNTS}


class Events:
    """The curves of a run: in `folder` over iterations, in `folder`/seconds over whole seconds of
    training, waiting for data included and evaluation not; phases are over iterations alone.

    A run that continues after `start` iterations and so many seconds draws nothing twice:
    TensorBoard drops what is there from that step on, and what the `kept` records have at that very
    step, or second, is drawn again.
    """

    def __init__(
        self, folder: Path, start: int, seconds: float, kept: Iterable[Mapping[str, Any]]
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter  # a second: for who writes them

        self._iterations = SummaryWriter(str(folder), purge_step=start)
        self._seconds = SummaryWriter(str(folder / "seconds"), purge_step=int(seconds))
        for record in kept:
            self._write(record, start, int(seconds))

    def write(self, record: Mapping[str, Any]) -> None:
        """Draw what there is to draw of a record of metrics.jsonl."""
        self._write(record, 0, 0)

    def close(self) -> None:
        self._iterations.close()
        self._seconds.close()

    def _write(self, record: Mapping[str, Any], iteration: int, second: int) -> None:
        """Draw a record as far as it is not before an iteration, or a second."""
        if record["iteration"] >= iteration:
            _draw(self._iterations, record, record["iteration"])
        if record["type"] != "phase" and int(record["seconds"]) >= second:  # a phase has its own
            _draw(self._seconds, record, int(record["seconds"]))


def _draw(writer: SummaryWriter, record: Mapping[str, Any], step: int) -> None:
    for name, value in _scalars(record):
        writer.add_scalar(name, value, step)


def _scalars(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Names and values of what a record has: clips with several labels have no accuracy."""
    kind = record["type"]
    for name in _DRAWN.get(kind, record.keys() - _NO_METRICS):
        if name in record:
            yield f"{kind}/{name}", record[name]
    if kind == "train":
        sides = ("batch", "frames", "crop")
        yield from ((f"shape/{side}", n) for side, n in zip(sides, record["shape"], strict=True))
        if record["bn_size"] is not None:
            yield "shape/bn_size", record["bn_size"]
