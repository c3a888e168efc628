"""Count the samples of an MP4 or MOV file (ISO 14496-12) before FFmpeg opens the file.

FFmpeg allocates memory for all samples that a file announces, so a malicious file could exhaust the
memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

from slowfast_patches.utils.storage import open_file

_CONTAINERS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf")
_COUNTS = {b"stsz": 16, b"stz2": 16, b"trun": 12}
"""Byte offset of the sample count, by type of the boxes that have one."""


def count_samples(path: str, enough: int) -> int:
    """Count the samples of all tracks of an MP4 or MOV file.

    A box without a sample count is counted as one sample, so that files with very many small boxes
    also reach the limit. For files of other formats, the result is small.

    Args:
        path: The file.
        enough: Stop counting as soon as the count exceeds this number.
    """
    total = 0
    with open_file(path) as file:
        for count in _counts(file, file.seek(0, os.SEEK_END)):
            total += count
            if total > enough:
                break
    return total


def _counts(file: BinaryIO, size: int) -> Iterator[int]:
    """Yield the number of samples in each box, or 1 for a box without a sample count."""
    ends = [size]
    position = 0
    while ends:
        if position + 8 > ends[-1]:
            position = ends.pop()
            continue
        file.seek(position)
        head = file.read(20)
        length, kind = int.from_bytes(head[:4]), head[4:8]
        header = 16 if length == 1 else 8
        if length == 1:
            length = int.from_bytes(head[8:16])
        end = min(ends[-1], position + length) if length else ends[-1]
        if 0 < length < header:
            position = ends[-1]  # FFmpeg also skips the rest of the parent box after such a box
        elif kind in _CONTAINERS:
            yield 1
            ends.append(end)
            position += header
        else:
            place = _COUNTS.get(kind, len(head))
            yield int.from_bytes(head[place : place + 4]) or 1
            position = end
