"""Lists that forked processes share without copying."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T", covariant=True)


class SharedList(Sequence[T]):
    """Read-only list that stores its pickled items in one array.

    Worker processes get a copy of every ordinary Python list they read, because reading changes the
    reference counts of its objects. Lists of videos may have millions of items.
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
        if isinstance(row, range):  # `number` is a slice
            return [self[each] for each in row]
        return pickle.loads(self._data[self._ends[row] : self._ends[row + 1]].data)
