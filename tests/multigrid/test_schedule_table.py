"""Schedules are the same on all Python versions: compare them with a stored table.

    python tests/multigrid/test_schedule_table.py    # writes the table anew

Changing this table breaks the resuming of older trainings, so it needs a reason.
"""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path

from multigrid import (
    PAPER,
    CosineRate,
    Cycles,
    Schedule,
    Shape,
    SteppedRate,
    Warmup,
    make_schedule,
)

TABLE = Path(__file__).with_name("schedules.json")
RATES = {
    "stepped": SteppedRate((94.0, 154.0, 196.0, 239.0), (0.8, 0.08, 0.008, 0.0008)),
    "uneven": SteppedRate((13 / 3, 7.1, 10.7), (1.0, 0.1, 0.01), Warmup(0.01, 0.7)),
    "cosine": CosineRate(0.1, 196.0),
    "short cosine": CosineRate(0.1, 30.5, cycles=2, fine_tuning=0.3),
}
CYCLES = {
    "both": (PAPER.long_cycle, PAPER.short_cycle),
    "long": (PAPER.long_cycle, ()),
    "short": ((), PAPER.short_cycle),
    "thirds": (((0.5, 0.5), (1.0, 0.5), (1.0, 1.0)), ()),
}
VIDEOS = (240_000, 86_017, 3_000)
FACTORS = (1.5, 0.75, 1 / 3)


@functools.cache
def schedules() -> dict[str, Schedule]:
    """Return schedules of every kind by a description of their arguments."""
    made = {}
    kinds = itertools.product(RATES, CYCLES, VIDEOS, FACTORS, (1.0, 0.5), (False, True))
    for rate, cycles, videos, factor, exponent, equal_time in kinds:
        name = f"{rate}, {cycles}, {videos} × {factor:.3g}, {exponent}, {equal_time}"
        made[name] = make_schedule(
            Shape(8, 16, 64),
            videos,
            RATES[rate],
            Cycles(*CYCLES[cycles], epoch_factor=factor, batch_exponent=exponent),
            bn_group_size=None,
            equal_time=equal_time,
        )
    return made


def rows() -> dict[str, list[int]]:
    """Return where the phases of each schedule stop."""
    return {name: [phase.stop for phase in made.phases] for name, made in schedules().items()}


def test_phases_stop_where_they_did():
    expected = json.loads(TABLE.read_text())
    actual = rows()
    assert actual.keys() == expected.keys()
    assert [name for name in actual if actual[name] != expected[name]] == []


def test_rates_are_the_same_to_the_last_bit():
    made = schedules()["uneven, thirds, 3000 × 0.75, 0.5, False"]
    lrs = [made.at(phase.start + 1).lr for phase in made.phases]
    assert [lr.hex() for lr in lrs] == [
        "0x1.c384ed9b3b10fp-5",
        *("0x1.0000000000000p+1", "0x1.0000000000000p+0"),
        *("0x1.3333333333334p-2", "0x1.999999999999ap-3", "0x1.999999999999ap-4"),
        *("0x1.999999999999ap-4", "0x1.47ae147ae147bp-7"),
    ]


if __name__ == "__main__":
    lines = [
        f"{json.dumps(name, ensure_ascii=False)}: {json.dumps(stops)}"
        for name, stops in rows().items()
    ]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
