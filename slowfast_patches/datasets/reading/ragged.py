"""Rows of any length, one after another in one array: processes that are forked share it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ragged"]


@dataclass(frozen=True, eq=False)
class Ragged:
    """`values` one row after another; `ends` (rows + 1,) parts them and begins with 0."""

    values: NDArray[Any]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Iterable[NDArray[np.int64]]) -> Ragged:
        parts = [np.zeros(0, np.int64), *rows]
        return cls(np.concatenate(parts), np.cumsum([len(part) for part in parts]))

    @classmethod
    def of_bytes(cls, rows: Iterable[bytes]) -> Ragged:
        parts = [b"", *rows]
        values = np.frombuffer(b"".join(parts), np.uint8)
        return cls(values, np.cumsum([len(part) for part in parts]))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, row: int) -> NDArray[Any]:
        return self.values[self.ends[row] : self.ends[row + 1]]

    def to_bytes(self) -> list[bytes]:
        """The rows that `of_bytes` was given."""
        content = self.values.tobytes()
        return [content[start:end] for start, end in pairwise(self.ends.tolist())]
