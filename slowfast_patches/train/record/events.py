"""Scalars of a training for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slowfast_patches.config.metrics import COUNTS

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["Events"]

_SHAPE = ("batch", "frames", "crop")
_TOLD = {
    "train": ("loss", "top1", "lr", "clips_per_second", "loading_share", "worst_loading_share"),
    "phase": ("loading_share", "worst_loading_share"),
}
"""What is drawn of a record of each type; of "val" all that is not in `_PLACES`."""
_PLACES = {"type", "iteration", "epoch", "seconds", *COUNTS}


class Events:
    """The curves of a run, over iterations and over seconds.

    TensorBoard draws a scalar over its step. The events in `folder` have as step the iterations
    done; those in `folder`/seconds are the same scalars with the seconds of training, waiting for
    data included and evaluation not, in whole ones. `tensorboard --logdir folder` shows them as the
    runs "." and "seconds": choose one of the two, and "step" as the horizontal axis. Phases are
    over iterations alone.

    A continued run draws nothing twice: TensorBoard drops what has a step from the checkpoint's on,
    and those of the records kept that have that very step, or second, are drawn again. At it, there
    may be others: an evaluation that is yet to come, or what else happened in that second.

    Args:
        folder: of the events; made if need be.
        start: iterations done before.
        seconds: of training before.
        kept: the records of metrics.jsonl from before, none of them of a later iteration.
    """

    def __init__(
        self, folder: Path, start: int, seconds: float, kept: Iterable[Mapping[str, Any]]
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter  # a second: for who writes them

        self._iterations = SummaryWriter(str(folder), purge_step=start)
        self._seconds = SummaryWriter(str(folder / "seconds"), purge_step=int(seconds))
        for record in kept:
            if record["iteration"] == start:
                self._add(self._iterations, record, start)
            if _has_time(record) and int(record["seconds"]) >= int(seconds):
                self._add(self._seconds, record, int(record["seconds"]))

    def write(self, record: Mapping[str, Any]) -> None:
        """Draw what there is to draw of a record of metrics.jsonl."""
        self._add(self._iterations, record, record["iteration"])
        if _has_time(record):
            self._add(self._seconds, record, int(record["seconds"]))

    def close(self) -> None:
        self._iterations.close()
        self._seconds.close()

    def _add(self, writer: SummaryWriter, record: Mapping[str, Any], step: int) -> None:
        for name, value in _scalars(record):
            writer.add_scalar(name, value, step)


def _has_time(record: Mapping[str, Any]) -> bool:
    """Whether its seconds are those of the run; a phase's are its own."""
    return str(record["type"]) != "phase"


def _scalars(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Names and values; those that a recipe does not have, such as the accuracy of clips with
    several labels, are left out."""
    kind = record["type"]
    for name in _TOLD.get(kind, record.keys() - _PLACES):
        if name in record:
            yield f"{kind}/{name}", record[name]
    if kind == "train":
        yield from zip((f"shape/{side}" for side in _SHAPE), record["shape"], strict=True)
        if record["bn_size"] is not None:
            yield "shape/bn_size", record["bn_size"]
