"""A data set that takes requests, for tests of loops."""

from __future__ import annotations

import numpy as np
from torch.utils.data import Dataset


class Clips(Dataset[dict[str, object]]):
    """Data set of clips whose pixels all have the number of their video."""

    def __init__(self, videos: int) -> None:
        self.videos = videos

    def __len__(self) -> int:
        return self.videos

    def __getitem__(self, request):
        shape = request.shape
        return {
            "clip": np.full((shape.frames, shape.crop, shape.crop, 3), request.video, np.uint8),
            "label": request.video % 2,
            "flip": request.epoch % 2 == 1,
            "iteration": request.iteration,
            "coverage": (0.5, 1.0),
        }
