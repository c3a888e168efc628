"""Find out from the structure of a video file whether the end of the file is missing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import BinaryIO

from slowfast_patches.utils.storage import open_file

_MAX_CHUNKS = 1 << 20
"""Maximum number of chunks of a file that are read."""
_HEAD = 384
"""Number of bytes that contain the header of every chunk, or the beginnings of two TS packets."""
_BLOCK = 1 << 12
"""Size in bytes of the blocks that are checked for zeros."""
_SEGMENT = b"\x18\x53\x80\x67"
_TS_PACKETS = ((0, 188), (4, 192), (0, 204))
"""Offsets of the synchronization byte in a packet of a transport stream, and packet sizes."""


def share_present(path: str) -> float:
    """Return the share of a file that is there, according to the sizes of its chunks.

    Return 1 if the file is complete, or if its format has no chunks with stated sizes. Formats
    without a chunk for the whole file show only that their last chunk is incomplete.
    """
    with open_file(path) as file:
        size = _size_without_zeros(file)
        head = file.read(_HEAD)
        for place, packet in _TS_PACKETS:
            if head[place : place + 1] == head[place + packet : place + packet + 1] == b"\x47":
                return size / (-(-size // packet) * packet)
        begins = {b for b in _FORMATS if head.startswith(b, 4 if b == b"ftyp" else 0)}
        measure = _FORMATS[begins.pop()] if begins else lambda head: 0
        end = 0
        for _ in range(_MAX_CHUNKS):
            length = measure(head)
            end += length
            if not length or end >= size:
                break
            file.seek(end)
            head = file.read(_HEAD)
    return min(1.0, size / end) if end else 1.0


def _size_without_zeros(file: BinaryIO) -> int:
    """Return the size of a file, less the zeros that an interrupted download leaves at its end."""
    whole = size = file.seek(0, os.SEEK_END)
    left = b""
    while size > _BLOCK and not left:
        file.seek(size - _BLOCK)
        left = file.read(_BLOCK).rstrip(b"\0")
        size -= _BLOCK - len(left)
    file.seek(0)
    return size if whole - size >= _BLOCK else whole


def _riff(head: bytes) -> int:
    return 8 + int.from_bytes(head[4:8], "little") if head.startswith(b"RIFF") else 0


def _asf(head: bytes) -> int:
    length = int.from_bytes(head[16:24], "little")
    return length if length >= 24 else 0


def _ebml(head: bytes) -> int:
    """Measure the head or the segment of a Matroska file (RFC 8794, 4 and 5)."""
    if not head.startswith((b"\x1a\x45\xdf\xa3", _SEGMENT)) or len(head) < 12 or not head[4]:
        return 0
    bits = 7 * (9 - head[4].bit_length())
    size = int.from_bytes(head[4 : 4 + bits // 7]) & ((1 << bits) - 1)
    is_known = size < (1 << bits) - 1
    return (4 + bits // 7 + size) * is_known


def _iso(head: bytes) -> int:
    """Measure a box of an mp4 or MOV file (ISO 14496-12)."""
    length = int.from_bytes(head[:4])
    if not head[4:8].isalnum():
        return 0
    return int.from_bytes(head[8:16]) if length == 1 else length


def _flv(head: bytes) -> int:
    if head.startswith(b"FLV"):
        return int.from_bytes(head[5:9]) + 4
    return 15 + int.from_bytes(head[1:4]) if head[:1] in (b"\x08", b"\x09", b"\x12") else 0


def _ogg(head: bytes) -> int:
    segments = int.from_bytes(head[26:27])
    return 27 + segments + sum(head[27 : 27 + segments]) if head.startswith(b"OggS") else 0


def _mpeg(head: bytes) -> int:
    """Measure a pack header or a packet of an MPEG program stream (ISO 13818-1, 2.5)."""
    if not head.startswith(b"\0\0\1") or len(head) < 14:
        return 0
    if head[3] == 0xBA:
        return 14 + (head[13] & 7) if head[4] >> 6 == 1 else 12
    return 4 if head[3] == 0xB9 else 6 + int.from_bytes(head[4:6])


def _ivf(head: bytes) -> int:
    if head.startswith(b"DKIF"):
        return int.from_bytes(head[6:8], "little")
    return 12 + int.from_bytes(head[:4], "little")


_FORMATS: dict[bytes, Callable[[bytes], int]] = {
    b"RIFF": _riff,
    b"\x1a\x45\xdf\xa3": _ebml,
    b"\x30\x26\xb2\x75\x8e\x66\xcf\x11": _asf,
    b"ftyp": _iso,
    b"\0\0\1\xba": _mpeg,
    b"FLV": _flv,
    b"OggS": _ogg,
    b"DKIF": _ivf,
}
"""Functions that measure chunks, by the first bytes of a file. mp4 files have a length before."""
