"""Learning-rate policies as pure functions of the baseline's epoch.

A policy describes only the baseline: the number of epochs, the learning rate at each epoch, and the
ends of the learning-rate stages. `make_schedule` then adapts the policy to multigrid: it scales the
learning rate with the batch size and delays the last drop.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise

from multigrid.errors import MultigridError


def batch_rate_factor(growth: float, rule: str = "linear") -> float:
    """Return the learning-rate multiplier for a larger batch.

    Args:
        growth: Batch size as a multiple of the baseline's.
        rule: "linear" returns `growth` (Goyal et al., 2017). Use it with SGD. "sqrt" returns the
            square root of `growth` (Krizhevsky, 2014). Use it with Adam and RMSprop (Malladi et
            al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", 2022). Malladi et
            al. also change the optimizer's betas, which this package does not.

    Raises:
        ValueError: `rule` is unknown.
    """
    if rule not in ("linear", "sqrt"):
        raise MultigridError(f"batch_rate_rule is {rule!r}, but it must be 'linear' or 'sqrt'")
    return growth if rule == "linear" else math.sqrt(growth)


def is_adaptive(optimizer: str) -> bool:
    """Return whether a class of optimizers is adaptive, like Adam, judged by its name."""
    return any(name in optimizer.lower() for name in ("ada", "lamb", "lion", "rmsprop"))


def suits_linear_rule(optimizer: type) -> bool:
    """Return whether a class of optimizers is a kind of SGD, judged by its name.

    The step of such an optimizer is proportional to the gradient, so the rule "linear" suits it.
    """
    name = optimizer.__name__.lower()
    return any(part in name for part in ("sgd", "lars", "momentum", "nesterov"))


@dataclass(frozen=True)
class Warmup:
    """Linear warm-up of the learning rate (Goyal et al., 2017).

    Attributes:
        start: Learning rate at the start of the training.
        epochs: Length of the warm-up, in epochs of the baseline.
    """

    start: float = 0.0
    epochs: float = 0.0


class LearningRate(ABC):
    """Base class of learning-rate policies. A policy is a frozen dataclass.

    Attributes:
        warmup: Warm-up, which `at` adds to the rates of the subclass.
    """

    warmup: Warmup

    @property
    @abstractmethod
    def stage_ends(self) -> tuple[float, ...]:
        """Ends of the learning-rate stages in epochs, ascending. The last is the training's length.

        Each stage except the last contains one long cycle. The last stage is fine-tuning.
        """

    @property
    def drops(self) -> tuple[float, ...]:
        """Epochs at which the learning rate drops. Empty for a smooth policy."""
        return ()

    @abstractmethod
    def rate(self, epoch: float) -> float:
        """Return the learning rate at an epoch of the baseline, ignoring the warm-up."""

    def at(self, epoch: float) -> float:
        """Return the learning rate at an epoch of the baseline. The epoch may be fractional."""
        start = self.warmup.start
        epochs = self.warmup.epochs
        if epoch >= epochs:
            return self.rate(epoch)
        return start + (self.rate(epochs) - start) * epoch / epochs

    def with_late_last_drop(self) -> LearningRate:
        """Return a policy that delays the last drop to the middle of the last stage (paper §3)."""
        return self


@dataclass(frozen=True)
class SteppedRate(LearningRate):
    """Step policy: the learning rate is `rates[j]` until epoch `ends[j]`.

    Args:
        ends: Ends of the stages in epochs, ascending. The last end is the length of the training.
        rates: Learning rate of each stage.
        warmup: Warm-up at the start of the training.

    Raises:
        ValueError: `ends` and `rates` differ in length, `ends` do not ascend, or a rate is
            negative.
    """

    ends: tuple[float, ...]
    rates: tuple[float, ...]
    warmup: Warmup = Warmup()

    def __post_init__(self) -> None:
        ascend = all(a < b for a, b in pairwise((0.0, *self.ends)))
        if not (len(self.ends) == len(self.rates) > 0 and ascend and min(self.rates) >= 0):
            raise MultigridError(
                f"{self} is not valid: give one end for each learning rate. Ends must be above 0 "
                "and ascend, and rates must not be negative"
            )

    @property
    def stage_ends(self) -> tuple[float, ...]:
        return self.ends

    @property
    def drops(self) -> tuple[float, ...]:
        return self.ends[:-1]

    def rate(self, epoch: float) -> float:
        return self.rates[bisect_right(self.drops, epoch)]

    def with_late_last_drop(self) -> SteppedRate:
        if len(self.ends) == 1:
            return self
        *earlier, last_drop, end = self.ends
        return replace(self, ends=(*earlier, (last_drop + end) / 2, end))


@dataclass(frozen=True)
class CosineRate(LearningRate):
    """Cosine policy (Loshchilov and Hutter, 2017).

    A cosine has no drops that could separate stages. By default, three long cycles of equal length
    take the first 80 % of the training, and fine-tuning takes the last 20 %. This rule is ours. The
    paper's rule is in its supplement, which was not available.

    Args:
        base: Learning rate at the start of the cosine.
        epochs: Length of the training, in epochs.
        end: Learning rate at the end of the training.
        warmup: Warm-up at the start of the training.
        cycles: Number of long cycles.
        fine_tuning: Fraction of the training for fine-tuning.
        after_warmup: If True, the cosine starts with `base` at the end of the warm-up. If False, it
            starts at epoch 0, so that the warm-up ends below `base`.

    Raises:
        ValueError: `epochs` or `cycles` is not positive, `fine_tuning` is not between 0 and 1, or
            `after_warmup` is True and the warm-up leaves no epochs.
    """

    base: float
    epochs: float
    end: float = 0.0
    warmup: Warmup = Warmup()
    cycles: int = 3
    fine_tuning: float = 0.2
    after_warmup: bool = False

    def __post_init__(self) -> None:
        if self.epochs <= 0 or self.cycles < 1 or not 0 < self.fine_tuning < 1:
            raise MultigridError(
                f"{self} is not valid: epochs must be above 0, cycles at least 1, and fine_tuning "
                "between 0 and 1"
            )
        if self.after_warmup and self.warmup.epochs >= self.epochs:
            raise MultigridError(
                f"the warm-up has {self.warmup.epochs} epochs of {self.epochs}, so no cosine "
                "follows. Choose a shorter warm-up, or after_warmup=False"
            )

    @property
    def stage_ends(self) -> tuple[float, ...]:
        cycled = self.epochs * (1 - self.fine_tuning)
        return (*(cycled * (j + 1) / self.cycles for j in range(self.cycles)), self.epochs)

    def rate(self, epoch: float) -> float:
        start = self.warmup.epochs if self.after_warmup else 0.0
        share = (1 + math.cos(math.pi * (epoch - start) / (self.epochs - start))) / 2
        return self.end + (self.base - self.end) * share
