"""What a saved training must have in common with the one that resumes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from multigrid import LearningRate, Schedule, Shape, Warmup, make_schedule
from multigrid.schedule_identity import describe


@dataclass(frozen=True)
class Spike(LearningRate):
    """Policy of one epoch with a rate of 0.1, but 0.2 at one epoch."""

    place: float | None = None
    warmup: Warmup = field(default_factory=Warmup)

    @property
    def stage_ends(self) -> tuple[float, ...]:
        return (1.0,)

    def rate(self, epoch: float) -> float:
        return 0.2 if self.place is not None and abs(epoch - self.place) < 1e-9 else 0.1


def with_spike(iterations: int, iteration: int | None = None) -> Schedule:
    """Return a baseline schedule in which one iteration may have another learning rate."""
    place = None if iteration is None else iteration / iterations
    return make_schedule(Shape(1, 1, 8), iterations, Spike(place), None, bn_group_size=None)


def differing(iterations: int, places: list[int]) -> list[int]:
    """Return the iterations at which another rate changes the description of a schedule."""
    plain = describe(with_spike(iterations))
    return [place for place in places if describe(with_spike(iterations, place)) != plain]


def test_every_rate_of_a_short_training_is_compared():
    assert differing(9, list(range(9))) == list(range(9))


def test_a_long_training_is_compared_at_a_thousand_iterations_and_at_the_end():
    """Every second of 2500 iterations."""
    assert differing(2500, [0, 1, 2, 2497, 2498, 2499]) == [0, 2, 2498, 2499]


def test_weights_are_compared_with_their_order():
    schedule = with_spike(9)
    found = [describe(schedule, weights) for weights in (None, [1.0, 2.0], [2.0, 1.0])]
    assert len({each.pop("checksum of the weights") for each in found}) == 3
    assert found[0] == found[1] == found[2]
    assert found[0]["number of videos"] == 9
