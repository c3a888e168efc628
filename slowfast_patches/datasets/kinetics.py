"""The Kinetics data set: 400, 600, 700, or any csv of videos."""

from __future__ import annotations

from slowfast_patches.datasets.clips import ClipDataset

__all__ = ["Kinetics"]


class Kinetics(ClipDataset):
    """Clips of the videos of a csv, each with one label."""

    name = "kinetics"
