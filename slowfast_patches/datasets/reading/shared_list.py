"""Lists that forked processes share."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

__all__ = ["SharedList"]

T = TypeVar("T", covariant=True)


class SharedList(Sequence[T]):
    """A read-only list whose items are pickled into one array.

    Lists of Python objects are copied into every process that reads clips, as their reference
    counts change; lists of videos may have millions.
    """

    def __init__(self, items: Iterable[T]) -> None:
        data = bytearray()
        ends = array("q", [0])
        for item in items:
            data += pickle.dumps(item)
            ends.append(len(data))
        self._ends = np.frombuffer(ends, np.int64)
        self._data = np.frombuffer(data, np.uint8)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: Any) -> Any:
        row = range(len(self))[number]
        if isinstance(row, range):  # of a slice
            return [self[each] for each in row]
        return pickle.loads(self._data[self._ends[row] : self._ends[row + 1]].data)
