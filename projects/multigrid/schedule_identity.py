"""Identity of a schedule: what a resumed training must have in common with the saved one."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from multigrid.schedule import Schedule

_MOST_RATES = 1000
"""Number of iterations, spread over the training, whose learning rates are compared."""


def describe(schedule: Schedule, weights: Sequence[float] | None = None) -> dict[str, int | str]:
    """Describe all properties of a schedule and of sampling weights that determine a result.

    Returns:
        A value for each aspect. Checksums stand for long values.
    """
    every = max(1, schedule.iterations // _MOST_RATES)
    # Keep six digits, because the last digits depend on the C library.
    rates = "\n".join(f"{step.lr:.6g}" for step in map(schedule.at, _spread(schedule, every)))
    groups = "\n".join(str(phase.bn_group_sizes) for phase in schedule.phases)
    return {
        "checksum of the phases": crc32("\n".join(schedule.phase_lines()).encode()),
        "checksum of the learning rates": crc32(rates.encode()),
        "checksum of the BN group sizes": crc32(groups.encode()),
        "number of videos": schedule.num_videos,
        "checksum of the weights": 0 if weights is None else crc32(str(list(weights)).encode()),
    }


def _spread(schedule: Schedule, every: int) -> list[int]:
    """Return every n-th iteration, and the first and last iteration of each phase."""
    ends = {i for phase in schedule.phases for i in (phase.start, phase.stop - 1)}
    return sorted({*range(0, schedule.iterations, every), *ends})
