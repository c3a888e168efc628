"""Learning-rate policies as pure functions of the baseline's epoch.

A policy describes the baseline recipe only: its length, its rate at every epoch, and where its
stages end. The schedule applies what multigrid changes: the scaling with the batch and the late
last drop.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Protocol

__all__ = ["CosineRate", "LearningRate", "SteppedRate", "Warmup", "batch_rate_factor"]


def batch_rate_factor(growth: float, rule: str = "linear") -> float:
    """Return the factor of the learning rate for a mini-batch with `growth` times the clips.

    Args:
        growth: clips of the mini-batch as a multiple of the baseline's.
        rule: "linear" returns `growth` (Goyal et al., 2017); use it with SGD. "sqrt" returns its
            square root (Krizhevsky, 2014); use it with Adam and RMSprop (Malladi et al., "On the
            SDEs and Scaling Rules for Adaptive Gradient Algorithms", 2022). The decay rates of
            their moments stay unchanged here.

    Raises:
        ValueError: `rule` is unknown.
    """
    if rule not in ("linear", "sqrt"):
        raise ValueError(f"the batch rate rule is {rule!r}, but it must be linear or sqrt")
    return growth if rule == "linear" else math.sqrt(growth)


class LearningRate(Protocol):
    """Protocol of a learning-rate policy."""

    @property
    def epochs(self) -> float:
        """Length of the baseline training, in epochs."""

    @property
    def stage_ends(self) -> tuple[float, ...]:
        """Ends of the stages, in epochs, ascending. The last one is `epochs`.

        Each stage but the last holds one long cycle. The last stage is the fine-tuning phase.
        """

    @property
    def drops(self) -> tuple[float, ...]:
        """Epochs at which the rate drops; empty for a smooth policy."""

    def at(self, epoch: float) -> float:
        """Return the rate at an epoch, possibly fractional, of the baseline training."""

    @property
    def warmup(self) -> Warmup:
        """Warm-up that `at` includes."""

    def with_late_last_drop(self) -> LearningRate:
        """Return a policy whose last drop comes in the middle of its last stage (paper §3)."""

    def with_warmup(self, warmup: Warmup) -> LearningRate:
        """Return a policy with another warm-up."""


@dataclass(frozen=True)
class Warmup:
    """Linear warm-up from `start` to the policy's rate at `epochs` (Goyal et al., 2017)."""

    start: float = 0.0
    epochs: float = 0.0


class _Policy(ABC):
    """Base class of the policies, which adds the warm-up to their `rate`."""

    warmup: Warmup

    @abstractmethod
    def rate(self, epoch: float) -> float:
        """Return the rate without the warm-up."""

    def at(self, epoch: float) -> float:
        start = self.warmup.start
        epochs = self.warmup.epochs
        if epoch >= epochs:
            return self.rate(epoch)
        return start + (self.rate(epochs) - start) * epoch / epochs

    def with_warmup(self: Any, warmup: Warmup) -> Any:
        return replace(self, warmup=warmup)


@dataclass(frozen=True)
class SteppedRate(_Policy):
    """Policy of constant rates: `rates[j]` until epoch `ends[j]`.

    The last end is the length of the training.

    Raises:
        ValueError: the lists differ in length, the ends do not ascend, or a rate is negative.
    """

    ends: tuple[float, ...]
    rates: tuple[float, ...]
    warmup: Warmup = Warmup()

    def __post_init__(self) -> None:
        if not self.ends or len(self.ends) != len(self.rates):
            raise ValueError(
                f"there are {len(self.ends)} stage ends for {len(self.rates)} learning rates. Give "
                "one end for each rate"
            )
        if any(b <= a for a, b in zip((0.0, *self.ends), self.ends, strict=False)):
            raise ValueError(f"stage ends must ascend from 0, not {self.ends}")
        if min(self.rates) < 0:
            raise ValueError(f"learning rates cannot be negative: {self.rates}")

    @property
    def epochs(self) -> float:
        return self.ends[-1]

    @property
    def stage_ends(self) -> tuple[float, ...]:
        return self.ends

    @property
    def drops(self) -> tuple[float, ...]:
        return self.ends[:-1]

    def rate(self, epoch: float) -> float:
        stage = sum(epoch >= end for end in self.ends[:-1])
        return self.rates[stage]

    def with_late_last_drop(self) -> SteppedRate:
        if len(self.ends) == 1:
            return self
        *earlier, last_drop, end = self.ends
        return replace(self, ends=(*earlier, (last_drop + end) / 2, end))


@dataclass(frozen=True)
class CosineRate(_Policy):
    """Policy of half a cosine from `base` to `end` over `epochs` (Loshchilov and Hutter, 2017).

    A cosine has no drops that could delimit stages. By default three long cycles of equal length
    take the first four fifths of the training, and fine-tuning takes the last fifth. This rule is
    ours. The paper's rule is in its supplement, which was not available.

    Raises:
        ValueError: there are no epochs, no cycles, or no time left for one of the two parts.
    """

    base: float
    epochs: float
    end: float = 0.0
    warmup: Warmup = Warmup()
    cycles: int = 3
    fine_tuning: float = 0.2

    def __post_init__(self) -> None:
        if self.epochs <= 0 or self.cycles < 1 or not 0 < self.fine_tuning < 1:
            raise ValueError(
                f"{self} has no place for cycles and fine-tuning. epochs must be positive, cycles "
                "at least 1, and fine_tuning between 0 and 1"
            )

    @property
    def stage_ends(self) -> tuple[float, ...]:
        cycled = self.epochs * (1 - self.fine_tuning)
        return (*(cycled * (j + 1) / self.cycles for j in range(self.cycles)), self.epochs)

    @property
    def drops(self) -> tuple[float, ...]:
        return ()

    def rate(self, epoch: float) -> float:
        share = (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        return self.end + (self.base - self.end) * share

    def with_late_last_drop(self) -> CosineRate:
        return self  # it has no drop to delay
