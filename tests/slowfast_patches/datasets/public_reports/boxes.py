"""Change the headers of video files: boxes of mp4 files, elements of Matroska files."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

Change = Callable[[bytes], bytes]
"""Function that returns the new content of a box."""

_HEADS = {b"stsd": 8, b"avc1": 78}
"""Number of bytes before the first box inside a box."""
_TRACK = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd", b"avc1")
_CROP_IDS = {"top": b"\x54\xbb", "bottom": b"\x54\xaa", "left": b"\x54\xcc", "right": b"\x54\xdd"}
_VIDEO = (b"\x18\x53\x80\x67", b"\x16\x54\xae\x6b", b"\xae", b"\xe0")
"""Matroska: Segment, Tracks, TrackEntry, Video."""
_PLACES = (b"\x11\x4d\x9b\x74", b"\x1c\x53\xbb\x6b")
"""Matroska: SeekHead and Cues, which contain positions in the file."""


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), kind) + content


def change_boxes(path: Path, changes: dict[bytes, Change]) -> Path:
    """Change boxes of the track of an mp4 file whose index is at its end."""
    path.write_bytes(_changed(path.read_bytes(), changes))
    return path


def _changed(data: bytes, changes: dict[bytes, Change]) -> bytes:
    parts, position = [], 0
    while position + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, position)
        content = data[position + 8 : position + size]
        if kind in _TRACK:
            head = _HEADS.get(kind, 0)
            content = content[:head] + _changed(content[head:], changes)
        if kind in changes:
            content = changes[kind](content)
        parts.append(box(kind, content))
        position += size
    return b"".join(parts)


def set_edits(path: Path, *edits: tuple[int, int]) -> Path:
    """Write an edit list: the duration and the start of each edit, in milliseconds.

    FFmpeg's muxer gives movies a time scale of milliseconds, and 25 fps tracks one of 12,800.
    """
    rows = b"".join(struct.pack(">IiI", d, start * 12_800 // 1000, 1 << 16) for d, start in edits)
    elst = box(b"elst", struct.pack(">II", 0, len(edits)) + rows)

    def change(content: bytes) -> bytes:
        position = content.index(b"edts") - 4
        size = int.from_bytes(content[position : position + 4])
        return content[:position] + box(b"edts", elst) + content[position + size :]

    return change_boxes(path, {b"trak": change})


def mark_all_as_keys(path: Path) -> Path:
    """Remove the list of key frames from an mp4 file. All frames then count as key frames."""
    return change_boxes(path, {b"stbl": lambda content: content.replace(b"stss", b"free")})


def set_aperture(path: Path, width: int, height: int, x: int, y: int) -> Path:
    """Write a clean aperture (ISO 14496-12, clap), whose centre is moved by (x, y) pixels."""
    fields = (width, 1, height, 1, x, 1, y, 1)
    return change_boxes(path, {b"avc1": lambda c: c + box(b"clap", struct.pack(">8i", *fields))})


def set_crop(path: Path, **margins: int) -> Path:
    """Write a crop into a Matroska file."""
    elements = b"".join(_CROP_IDS[s] + b"\x81" + bytes([size]) for s, size in margins.items())
    path.write_bytes(_with_crop(path.read_bytes(), 0, elements))
    return path


def _with_crop(data: bytes, depth: int, elements: bytes) -> bytes:
    parts, position = [], 0
    while position < len(data):
        start = position
        position += _length(data[position])
        kind = data[start:position]
        length = _length(data[position])
        size = int.from_bytes(data[position : position + length]) & ((1 << 7 * length) - 1)
        position += length
        content = data[position : position + size]
        position += size
        if depth < len(_VIDEO) and kind == _VIDEO[depth]:
            content = _with_crop(content, depth + 1, elements)
            content += elements * (depth + 1 == len(_VIDEO))
            parts.append(kind + (1 << 56 | len(content)).to_bytes(8) + content)
        elif kind not in _PLACES:
            parts.append(data[start:position])
    return b"".join(parts)


def _length(first: int) -> int:
    """Return the number of bytes of an identifier or a size, from its first byte."""
    return 9 - first.bit_length()
