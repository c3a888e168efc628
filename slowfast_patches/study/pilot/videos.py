"""The videos of a pilot: which are trained on, and which arms are scored on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from multigrid import ClipRequest

__all__ = ["Some", "Split"]


class Some(torch.utils.data.Dataset[Any]):
    """Some videos of a data set, as a data set of its own; `videos` are their numbers there."""

    def __init__(self, dataset: Any, numbers: Sequence[int]) -> None:
        self._dataset, self.videos = dataset, list(numbers)
        self._places = {number: place for place, number in enumerate(self.videos)}

    def __len__(self) -> int:
        return len(self.videos)

    def __getitems__(self, requests: Sequence[ClipRequest | int]) -> Any:
        batch = self._dataset.__getitems__([self._number(request) for request in requests])
        # A video that could not be read was replaced by any other, which may not be among these.
        places = [self._places.get(number, 0) for number in batch["videos"].tolist()]
        return {**batch, "videos": torch.tensor(places, dtype=torch.int64)}

    def _number(self, request: ClipRequest | int) -> ClipRequest | int:
        if isinstance(request, ClipRequest):
            return request._replace(video=self.videos[request.video])
        return self.videos[request]

    def labels(self) -> list[Any]:
        """The label of each video; None where the data set does not say."""
        return [getattr(self._dataset.videos[number], "label", None) for number in self.videos]


@dataclass(frozen=True)
class Split:
    """Numbers of the videos that are trained on, and of those that arms are scored on: of the
    validation set, and where that has few, of the training set, at most a fifth of it."""

    trained: list[int]
    held_out: list[int]
    validated: list[int]

    @classmethod
    def of(cls, train: int, val: int, scored: int, seed: int) -> Split:
        """As many videos `scored` as there are, up to that many."""
        rng = np.random.default_rng(seed)
        validated = rng.permutation(val)[:scored].tolist()
        drawn, count = rng.permutation(train).tolist(), scored - len(validated)
        held_out = drawn[: min(count, train // 5)]
        return cls(sorted(drawn[len(held_out) :]), held_out, validated)
