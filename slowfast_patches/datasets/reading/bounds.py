"""Check what the header of a video file announces before FFmpeg opens the file.

From an MP4 or MOV file (ISO 14496-12), FFmpeg allocates memory for each sample that a track
announces. A file of a few kB can announce so many samples that they exhaust the memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from slowfast_patches.datasets.reading.video_file import UnreadableVideoError, check_regular
from slowfast_patches.utils.storage import is_remote, open_file

MAX_SAMPLES = 1 << 22
"""Maximum number of samples of an MP4 file, which is 38 hours at 30 frames per second. For each
sample, FFmpeg needs about 70 bytes of memory, and the scan needs about 250 bytes."""
_BRANDS = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp", b"moof", b"sidx")
"""Types of the atoms with which an MP4 or MOV file may begin."""
_BEGIN = 4096
"""Number of bytes at the beginning of a file, or of the description of a track, that are read."""
_MATROSKA = b"\x1a\x45\xdf\xa3"
_CROP_CODES = (b"\x54\xaa", b"\x54\xbb", b"\x54\xcc", b"\x54\xdd")
"""The first bytes of a Matroska file (RFC 8794), and of its elements PixelCrop (RFC 9559)."""
_PARENTS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf")
_COUNTS = {b"stsz": 8, b"stz2": 8, b"trun": 4}
"""Offset of the sample count in the content of an atom, by type of the atoms that have one."""
_HEAD = 28
"""Number of bytes of an atom that are read: a long header, and the first fields of its content."""
_CHUNK = 1024
"""FFmpeg reads uncompressed sound in chunks of up to this many samples."""


class Header(NamedTuple):
    """Properties of a video file that its first bytes suggest.

    Attributes:
        is_mp4: Whether the file is an MP4 or MOV file.
        crops: Whether the container may crop the pictures. `crop_of` returns the exact crop.
    """

    is_mp4: bool = False
    crops: bool = False


def check_header(path: str) -> Header:
    """Check how many samples an MP4 or MOV file announces. Accept files of other formats.

    Raises:
        UnreadableVideoError: The path is not a file, or the file announces more samples than it has
            bytes, or more than `MAX_SAMPLES`.
    """
    check_regular(path)
    try:
        with open_file(path) as file:
            begin = file.read(_BEGIN)
            if begin[4:8] not in _BRANDS:
                is_matroska = begin[:4] == _MATROSKA
                return Header(crops=is_matroska and any(code in begin for code in _CROP_CODES))
            size = file.seek(0, os.SEEK_END) if is_remote(path) else os.fstat(file.fileno()).st_size
            atoms = _Atoms(file, size)
            bound = min(size, MAX_SAMPLES)
            total = 0
            for count in atoms.counts():
                total += count
                if total > bound:
                    raise UnreadableVideoError(
                        f"announces more than {bound} frames or audio samples, which is more than "
                        f"{'its bytes' if bound == size else 'the maximum'}"
                    )
            return Header(is_mp4=True, crops=atoms.has_aperture)
    except OSError:
        return Header()  # `open_video` will give the reason


class _Atoms:
    """Atoms of an MP4 file.

    Attributes:
        has_aperture: Whether `counts` has seen a track with a clean aperture.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.has_aperture = False
        self._file = file
        self._size = size

    def counts(self) -> Iterator[int]:
        """Yield the number of samples of each atom with a sample count, and 1 for other atoms."""
        file = self._file
        is_sound = False
        ends = [self._size]
        position = 0
        while ends:
            if position + 8 > ends[-1]:
                position = ends.pop()
                continue
            file.seek(position)
            head = file.read(_HEAD)
            length, kind = int.from_bytes(head[:4]), head[4:8]
            header = 8
            if length == 1:
                length, header = int.from_bytes(head[8:16]), 16
            end = min(ends[-1], position + length) if length else ends[-1]
            if 0 < length < header:
                position = ends[-1]  # FFmpeg also skips the rest of the parent after such an atom
                continue
            content = head[header:]
            count = 1
            if kind == b"hdlr":
                is_sound = content[8:12] == b"soun"
            elif kind == b"stsd":
                file.seek(position)
                self.has_aperture |= b"clap" in file.read(min(end - position, _BEGIN))
            elif kind in _COUNTS:
                count = int.from_bytes(content[_COUNTS[kind] :][:4])
                if is_sound and kind == b"stsz" and any(content[4:8]):  # all samples have one size
                    count //= _CHUNK
            yield count
            if kind in _PARENTS:
                ends.append(end)
                position += header
            else:
                position = end
