"""How long training takes on a cluster: an iteration, a phase, a whole schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from multigrid import Schedule, Shape
from multigrid.cost import SecondsPerIteration
from multigrid.schedule import Phase
from slowfast_patches.plan.cluster.gradients import BACKWARD, Exchange, overlapped_seconds
from slowfast_patches.plan.cluster.network import Cluster

__all__ = ["ClipRate", "Machine", "PhaseTimes", "Times", "TrainingTimes", "bn_sharers"]

ClipRate = Callable[[int, int], float]
"""Clips of (frames, crop) that the loaders of one node read in a second."""

_FLOAT = 4
_DOUBLE = 8
"""Bytes of a statistic."""


@dataclass(frozen=True)
class Times:
    """Seconds of some iterations, and what they are made of.

    - compute: forward, backward and optimizer.
    - all_reduce: the exchange of gradients, hidden behind backward or not; `exposed` is what is
      left of it after backward.
    - shared_bn: the exchange of statistics where a BN group is on several GPUs.
    - reading: of a node's clips, None where the loaders' speed is not known; `waiting` is for
      clips.

    `clips` are those of all nodes.
    """

    iterations: int
    clips: int
    compute: float
    all_reduce: float
    exposed: float
    shared_bn: float
    reading: float | None
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
        alone = {
            "compute": self.compute,
            "all-reduce": self.all_reduce + self.shared_bn,
            "reading": self.reading or 0.0,
        }
        return max(alone, key=lambda name: alone[name])

    @property
    def clips_per_second(self) -> float:
        """What storage and loaders of all nodes must give for nothing to wait for them."""
        return self.clips / self.busy


@dataclass(frozen=True)
class PhaseTimes:
    """A phase of a schedule, `number` from 1, and its seconds."""

    number: int
    phase: Phase
    clips_per_gpu: tuple[int, ...]
    times: Times


@dataclass(frozen=True)
class TrainingTimes:
    """A training: its phases and their sum."""

    schedule: Schedule
    phases: tuple[PhaseTimes, ...]

    @property
    def total(self) -> Times:
        return _sum(phase.times for phase in self.phases)

    @property
    def peak(self) -> PhaseTimes:
        """The phase that needs the most clips a second."""
        return max(self.phases, key=lambda phase: phase.times.clips_per_second)


@dataclass(frozen=True)
class Machine:
    """A cluster, a model's exchange on it, and how fast clips are read: None if not known."""

    cluster: Cluster
    exchange: Exchange
    clip_rate: ClipRate | None = None

    def training(self, schedule: Schedule, seconds: SecondsPerIteration) -> TrainingTimes:
        """The seconds of a schedule.

        Args:
            schedule: of the global mini-batches.
            seconds: of an iteration's computing on one GPU, at shapes with its share of the clips.

        Raises:
            ValueError: a batch or a BN group that this many GPUs cannot share.
        """
        phases = (
            PhaseTimes(
                number,
                phase,
                tuple(self._local(shape).batch for shape in phase.shapes),
                self._phase(phase, seconds),
            )
            for number, phase in enumerate(schedule.phases, start=1)
        )
        return TrainingTimes(schedule, tuple(phases))

    def iteration(self, shape: Shape, bn_size: int | None, seconds: SecondsPerIteration) -> Times:
        """One iteration of a global shape, not waiting for its clips."""
        local = self._local(shape)
        compute = seconds(local)
        all_reduce, exposed = overlapped_seconds(
            self.exchange.buckets(shape.frames, shape.crop),
            BACKWARD * compute,
            self.cluster.all_reduce_seconds,
        )
        reading = None
        if self.clip_rate is not None:
            of_node = local.batch * self.cluster.gpus_of_node
            reading = of_node / self.clip_rate(shape.frames, shape.crop)
        return Times(
            iterations=1,
            clips=shape.batch,
            compute=compute,
            all_reduce=all_reduce,
            exposed=exposed,
            shared_bn=self._shared_bn(local.batch, bn_size),
            reading=reading,
        )

    def _phase(self, phase: Phase, seconds: SecondsPerIteration) -> Times:
        """Loaders read ahead, so that clips are waited for only where a whole short cycle takes
        longer to read than to train."""
        total = _sum(
            _times(phase.count(j), self.iteration(shape, size, seconds))
            for j, (shape, size) in enumerate(zip(phase.shapes, phase.bn_sizes, strict=True))
        )
        waiting = max(0.0, (total.reading or 0.0) - total.busy)
        return replace(total, waiting=waiting)

    def _local(self, shape: Shape) -> Shape:
        """What one GPU has of a shape."""
        gpus = self.cluster.gpus
        if shape.batch % gpus:
            raise ValueError(
                f"a batch of {shape.batch} clips ({shape}) does not divide over {gpus} GPUs"
            )
        return Shape(shape.batch // gpus, shape.frames, shape.crop)

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


def _times(count: int, one: Times) -> Times:
    """`count` iterations like one."""
    return Times(
        iterations=count * one.iterations,
        clips=count * one.clips,
        compute=count * one.compute,
        all_reduce=count * one.all_reduce,
        exposed=count * one.exposed,
        shared_bn=count * one.shared_bn,
        reading=None if one.reading is None else count * one.reading,
    )


def _sum(parts: Iterable[Times]) -> Times:
    parts = list(parts)
    known = [part.reading for part in parts if part.reading is not None]
    return Times(
        iterations=sum(part.iterations for part in parts),
        clips=sum(part.clips for part in parts),
        compute=sum(part.compute for part in parts),
        all_reduce=sum(part.all_reduce for part in parts),
        exposed=sum(part.exposed for part in parts),
        shared_bn=sum(part.shared_bn for part in parts),
        reading=sum(known) if len(known) == len(parts) else None,
        waiting=sum(part.waiting for part in parts),
    )
