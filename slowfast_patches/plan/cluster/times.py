"""How long training takes on a cluster: an iteration, a phase, a whole schedule."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from multigrid import Shape
from multigrid.cost import SecondsPerIteration
from multigrid.schedule import Phase
from slowfast_patches.plan.cluster.gradients import BACKWARD, Exchange, overlapped_seconds
from slowfast_patches.plan.cluster.network import Cluster

__all__ = ["WAYS", "ClipRate", "Machine", "Times", "add_up", "bn_sharers", "clip_rate"]

ClipRate = Callable[[int, int], float]
"""Clips of (frames, crop) that the loaders of one node read in a second."""

WAYS = ("files", "prepared")
"""What a loader reads: videos as they are, or those of tools/prepare_data.py."""

_FLOAT, _DOUBLE = 4, 8
"""Bytes of a statistic."""


class Times(NamedTuple):
    """Seconds of some iterations, and what they are made of; `clips` are those of all nodes.

    - compute: forward, backward and optimizer.
    - all_reduce: the exchange of gradients, hidden behind backward or not; `exposed` is what is
      left of it after backward.
    - shared_bn: the exchange of statistics where a BN group is on several GPUs.
    - reading: of a node's clips, 0 where the loaders' speed is not known; `waiting` is for clips.
    """

    iterations: int
    clips: int
    compute: float
    all_reduce: float
    exposed: float
    shared_bn: float
    reading: float = 0.0
    waiting: float = 0.0

    @property
    def busy(self) -> float:
        """Seconds without waiting for clips."""
        return self.compute + self.exposed + self.shared_bn

    @property
    def seconds(self) -> float:
        return self.busy + self.waiting

    @property
    def efficiency(self) -> float:
        """Share of the time in which the GPUs compute."""
        return self.compute / self.seconds

    @property
    def limit(self) -> str:
        """What would take longest if it were alone: nothing else limits more."""
        exchange = self.all_reduce + self.shared_bn
        alone = {"compute": self.compute, "all-reduce": exchange, "reading": self.reading}
        return max(alone, key=lambda name: alone[name])

    @property
    def clips_per_second(self) -> float:
        """What storage and loaders of all nodes must give for nothing to wait for them."""
        return self.clips / self.busy


@dataclass(frozen=True)
class Machine:
    """A cluster, a model's exchange on it, and how fast clips are read: None if not known."""

    cluster: Cluster
    exchange: Exchange
    clip_rate: ClipRate | None = None

    def iteration(self, shape: Shape, bn_size: int | None, seconds: SecondsPerIteration) -> Times:
        """One iteration of a global shape, not waiting for its clips."""
        gpus = self.cluster.gpus
        if shape.batch % gpus:
            raise ValueError(
                f"a batch of {shape.batch} clips ({shape}) does not divide over {gpus} GPUs"
            )
        local = Shape(shape.batch // gpus, shape.frames, shape.crop)
        compute, reading = seconds(local), 0.0
        all_reduce, exposed = overlapped_seconds(
            self.exchange.buckets(shape.frames, shape.crop),
            BACKWARD * compute,
            self.cluster.all_reduce_seconds,
        )
        if self.clip_rate is not None:
            of_node = local.batch * self.cluster.gpus_of_node
            reading = of_node / self.clip_rate(shape.frames, shape.crop)
        shared_bn = self._shared_bn(local.batch, bn_size)
        return Times(1, shape.batch, compute, all_reduce, exposed, shared_bn, reading)

    def phase(self, phase: Phase, seconds: SecondsPerIteration) -> Times:
        """Of the iterations of a phase. Loaders read ahead, so that clips are waited for only where
        a whole short cycle takes longer to read than to train."""
        total = add_up(
            (self.iteration(shape, bn_size, seconds), phase.count(j))
            for j, (shape, bn_size) in enumerate(zip(phase.shapes, phase.bn_sizes, strict=True))
        )
        return total._replace(waiting=max(0.0, total.reading - total.busy))

    def _shared_bn(self, clips: int, bn_size: int | None) -> float:
        """Seconds of the two small all-reduces of each BN layer, which nothing is done beside.

        Forward sums two moments of each channel in double precision, backward two sums in single.
        """
        sharers = bn_sharers(clips, bn_size, self.cluster.gpus)
        if sharers == 1:
            return 0.0
        reduce = self.cluster.neighbours(sharers).all_reduce_seconds
        return sum(reduce(2 * _DOUBLE * c) + reduce(2 * _FLOAT * c) for c in self.exchange.norms)


def bn_sharers(clips: int, bn_size: int | None, gpus: int) -> int:
    """GPUs that share a BN group of `bn_size` clips (None: BN is left to each) with `clips` each.

    Raises:
        ValueError: there is no such group.
    """
    if bn_size is None or clips % bn_size == 0:
        return 1
    if bn_size % clips == 0 and gpus % (bn_size // clips) == 0:
        return bn_size // clips
    raise ValueError(
        f"{gpus} GPUs with {clips} clips each cannot form BN groups of {bn_size} clips"
    )


def add_up(parts: Iterable[tuple[Times, int]]) -> Times:
    """The sum of times, each as often as the number beside it says."""
    rows = [[count * value for value in times] for times, count in parts]
    iterations, clips, *seconds = (sum(column) for column in zip(*rows, strict=True))
    return Times(int(iterations), int(clips), *seconds)


def clip_rate(given: str, way: str | None = None, cores: int | None = None) -> ClipRate:
    """The speed of one node's loaders: `given` is clips a second at any shape, or the path of a
    JSON file of benchmarks/loader.py, whose column `way`, one of WAYS, has those of one core for
    each shape; `cores` of a node read.

    Raises:
        ValueError: not a number above 0, or no such file; a shape that the file does not have
            raises it when it is asked for.
    """
    path = Path(given)
    if not path.is_file():
        try:
            number = float(given)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf or way is not None or cores is not None:
            raise ValueError(
                "--loader takes a number of clips a second above 0, or a file with --loader-cores "
                f"and --loader-way, not {given}"
            )
        return lambda frames, crop: number
    if way is None or cores is None or cores < 1:
        raise ValueError(
            f"--loader {path} has the speeds of one core: give --loader-cores N, 1 or more, and "
            f"--loader-way {' or '.join(WAYS)}"
        )
    rates = _read_rates(path, way)

    def rate(frames: int, crop: int) -> float:
        if (frames, crop) not in rates:
            known = ", ".join(f"{f}×{c}²" for f, c in sorted(rates))
            raise ValueError(f"{path} has no clips of {frames}×{crop}²; it has {known}")
        return cores * rates[frames, crop]

    return rate


def _read_rates(path: Path, way: str) -> dict[tuple[int, int], float]:
    """Clips a second of one core for each (frames, crop)."""
    try:
        return {
            (row["frames"], row["crop"]): float(row["clips_per_second"][way]["median"])
            for row in json.loads(path.read_text(encoding="utf-8"))["shapes"]
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no file of benchmarks/loader.py with clips_per_second of {way!r}: {error!r}"
        ) from error
