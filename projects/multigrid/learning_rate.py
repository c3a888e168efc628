"""Learning-rate policies as pure functions of the baseline's epoch.

A policy knows the baseline recipe alone: its length, its rate at every epoch, and where its stages
end. What multigrid does to it (the scaling with the batch, the late last drop) is the schedule's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Protocol

__all__ = ["CosineRate", "LearningRate", "SteppedRate", "Warmup", "batch_rate_factor"]


def batch_rate_factor(growth: float, rule: str = "linear") -> float:
    """What a learning rate is multiplied by where its mini-batch has `growth` times the clips.

    "linear" is as much (Goyal et al., 2017), the rule of SGD. "sqrt" is the square root
    (Krizhevsky, 2014), the rule of Adam and RMSprop (Malladi et al., "On the SDEs and Scaling Rules
    for Adaptive Gradient Algorithms", 2022), whose moments' decays stay here.

    Raises:
        ValueError: another rule.
    """
    if rule not in ("linear", "sqrt"):
        raise ValueError(f"rates follow the batch by the rule linear or sqrt, not {rule!r}")
    return growth if rule == "linear" else math.sqrt(growth)


class LearningRate(Protocol):
    """Protocol of a policy: any object with these members serves."""

    @property
    def epochs(self) -> float:
        """Length of the baseline training, in epochs."""

    @property
    def stage_ends(self) -> tuple[float, ...]:
        """Ends of the stages, in epochs, ascending, the last one at `epochs`.

        Each stage but the last holds one long cycle; the last is the fine-tuning phase.
        """

    @property
    def drops(self) -> tuple[float, ...]:
        """Epochs at which the rate jumps; empty for a smooth policy."""

    def at(self, epoch: float) -> float:
        """The rate at a point of the baseline training, in epochs."""

    @property
    def warmup(self) -> Warmup:
        """The warm-up that `at` has in it."""

    def with_late_last_drop(self) -> LearningRate:
        """The policy whose last drop comes in the middle of its last stage (paper §3)."""

    def with_warmup(self, warmup: Warmup) -> LearningRate:
        """The policy with another warm-up."""


@dataclass(frozen=True)
class Warmup:
    """Linear from `start` to the rate that the policy has after `epochs` (Goyal et al., 2017)."""

    start: float = 0.0
    epochs: float = 0.0


class _Policy(ABC):
    """What the policies share: a warm-up before their own `rate`."""

    warmup: Warmup

    @abstractmethod
    def rate(self, epoch: float) -> float:
        """The rate without the warm-up."""

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
    """`rates[j]` until epoch `ends[j]`; the last end is the length of the training.

    Raises:
        ValueError: lists of unequal length, ends that do not ascend, or a rate below zero.
    """

    ends: tuple[float, ...]
    rates: tuple[float, ...]
    warmup: Warmup = Warmup()

    def __post_init__(self) -> None:
        if not self.ends or len(self.ends) != len(self.rates):
            raise ValueError(f"{len(self.ends)} stage ends for {len(self.rates)} learning rates")
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
    """Half a cosine from `base` to `end` over `epochs` (Loshchilov and Hutter, 2017).

    It has no steps to hang the cycles on. By default three long cycles of equal length take the
    first four fifths and fine-tuning takes the last fifth: a rule of ours. The paper's own is with
    its cosine results in the supplement, which is not at hand.
    """

    base: float
    epochs: float
    end: float = 0.0
    warmup: Warmup = Warmup()
    cycles: int = 3
    fine_tuning: float = 0.2

    def __post_init__(self) -> None:
        if self.epochs <= 0 or self.cycles < 1 or not 0 < self.fine_tuning < 1:
            raise ValueError(f"no place for cycles and fine-tuning in {self}")

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
