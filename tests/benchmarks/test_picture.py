"""Test that the picture on the first page shows every run on the word data set."""

from pathlib import Path

import picture
import pytest


def test_it_shows_three_seeds_of_five_lengths_each_and_what_they_reach(tmp_path: Path):
    runs = picture.read_runs()
    assert set(runs.groupby(["label", "length"]).size()) == {3}
    means = runs.groupby(["label", "length"])[["minutes", "top1"]].mean()
    # docs and README name these
    assert means.loc["baseline", 1.0].tolist() == pytest.approx([10.9, 96.0], abs=0.05)
    assert means.loc["multigrid", 4.0].tolist() == pytest.approx([15.6, 97.3], abs=0.05)
    picture.draw(runs, tmp_path / "accuracy.png")
    assert (tmp_path / "accuracy.png").stat().st_size > 10_000
