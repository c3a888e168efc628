"""A list type whose memory forked worker processes share without copying it."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T", covariant=True)


class SharedList(Sequence[T]):
    """Read-only list that stores all its items, pickled, in one byte array.

    If a forked worker reads an ordinary Python list, the reference counts of the items change, so
    the operating system copies the memory pages for each worker. Lists of videos may have millions
    of items, so the copies would need too much memory.
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
