"""Clips of random damaged videos equal a decode from the beginning, or a word is said.

Each run has new cases. `python tests/faults/damaged_videos.py --seed N` repeats them.
"""

import random

from tests.faults.damaged_videos import run_case

CASES = 15


def test_a_clip_is_that_of_a_whole_decode_or_a_word_is_said(tmp_path):
    first = random.SystemRandom().randrange(2**32)
    outcomes = {seed: run_case(seed, tmp_path) for seed in range(first, first + CASES)}
    wrong = [f"seed {seed}: {outcome.wrong}" for seed, outcome in outcomes.items() if outcome.wrong]
    assert not wrong, "\n".join(wrong)
    assert any(outcome.word == "right" for outcome in outcomes.values())
