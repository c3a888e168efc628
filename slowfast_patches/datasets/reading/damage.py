"""Detect videos that can be decoded only in part: truncated files, and files with damage."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import BinaryIO

from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from slowfast_patches.datasets.reading.scanned_video import Kind, ScannedVideo
from slowfast_patches.datasets.reading.unreadable import (
    ReadingLimits,
    UnreadableVideoError,
    translate_decode_errors,
)
from slowfast_patches.datasets.reading.video_file import open_video
from slowfast_patches.utils.storage import open_file

_MAX_DECODED_FRAMES = 3000
"""Maximum number of frames of a video that `find_damage` decodes. Decoding them takes seconds."""
_HEADS = {"h264": (1, 4), "hevc": (1, 21)}
"""How to recognize streams of length-prefixed units, by the name of the codec.

The first number is the value of the header's first byte in such streams. The second is the offset
of the header byte that contains the size of the length field.
"""
_BEGIN = 6
"""Number of bytes at the beginning of a packet that `_BEGINS` checks."""
_BEGINS: dict[str, Callable[[bytes], bool]] = {
    "mpeg1video": lambda data: data[:3] == b"\0\0\1",
    "mpeg2video": lambda data: data[:3] == b"\0\0\1",
    "mpeg4": lambda data: data[:3] == b"\0\0\1",
    "mjpeg": lambda data: data[:2] == b"\xff\xd8",
    "vp8": lambda data: data[0] & 1 == 1 or data[3:6] == b"\x9d\x01\x2a",
    "vp9": lambda data: data[0] >> 6 == 2,
    "libdav1d": lambda data: data[0] & 0x81 == 0 and data[0] >> 3 in (1, 2, 3, 5, 6),
}
"""How the packets of a codec begin: start codes, fixed bits, or in AV1 a known type of unit."""
_MAX_CHUNKS = 1 << 20
"""Maximum number of chunks of a file that are read."""
_HEAD = 384
"""Number of bytes to read of each chunk: enough for any header, or for the first bytes of two
transport stream packets."""
_BLOCK = 1 << 12
"""Size in bytes of the blocks that are checked for zeros."""
_SEGMENT = b"\x18\x53\x80\x67"
_TS_PACKETS = ((0, 188), (4, 192), (0, 204))
"""Offsets of the synchronization byte in a packet of a transport stream, and packet sizes."""


def looks_whole(stream: VideoStream) -> Callable[[Packet[VideoStream]], bool]:
    """Return a function that guesses whether a packet is undamaged, without decoding it.

    In mp4 and Matroska files, each unit of H.264 and HEVC begins with its length. The packets of
    some other codecs begin with fixed bits. For all other streams, the function checks only whether
    the file contains the whole packet.
    """
    codec = stream.codec_context.name
    header = stream.codec_context.extradata or b""
    begin, place = _HEADS.get(codec, (None, 0))
    if len(header) > place and header[0] == begin:
        size = (header[place] & 3) + 1
        return lambda packet: _has_whole_units(memoryview(packet), size)
    begins = _BEGINS.get(codec, bool)
    return lambda packet: not packet.is_corrupt and begins(bytes(memoryview(packet)[:_BEGIN]))


def _has_whole_units(data: memoryview, size: int) -> bool:
    """Return whether a packet consists of complete units with length fields of `size` bytes."""
    position = 0
    while position < len(data):
        length = int.from_bytes(data[position : position + size])
        if length == 0:
            return False
        position += size + length
    return position == len(data)


def describe_damage(damaged: int, frames: int) -> str:
    """Describe how many frames of a video are damaged or missing. Return "" if none are."""
    if damaged <= 0:
        return ""
    return f"cannot be decoded completely: {damaged} of {frames} frames are damaged"


def find_damage(path: str, scanned: ScannedVideo, limits: ReadingLimits) -> str:
    """Describe which part of a scanned video cannot be decoded.

    Decode a video file of up to 3,000 frames completely. For longer videos, prepared files and
    JPEG files, return the damage that `scan` found.

    Returns:
        A description, or an empty string if no damage was found.
    """
    total = scanned.video.frames
    if scanned.damage or scanned.kind != Kind.VIDEO or total > _MAX_DECODED_FRAMES:
        return scanned.damage
    intact = 0
    with (
        contextlib.suppress(UnreadableVideoError),
        translate_decode_errors(),
        open_video(path, limits) as file,
    ):
        for packet in file.packets():
            intact += sum(map(is_intact, file.decode(packet)))
    return describe_damage(total - intact, total)


def is_intact(frame: VideoFrame | None) -> bool:
    """Return whether a frame was decoded without errors. None stands for a damaged packet."""
    return frame is not None and not frame.is_corrupt


def share_present(path: str) -> float:
    """Return the share of a file that is present, according to the sizes in its chunk headers.

    Return 1 if the file is complete, or if its format does not store the sizes of chunks. If no
    chunk contains the whole file, the share is that of the file up to the end of the chunk that is
    incomplete.
    """
    with open_file(path) as file:
        size = _size_without_zeros(file)
        head = file.read(_HEAD)
        for place, packet in _TS_PACKETS:
            if head[place : place + 1] == head[place + packet : place + packet + 1] == b"\x47":
                return size / (-(-size // packet) * packet)
        begins = {b for b in _MEASURES if head.startswith(b, 4 if b == b"ftyp" else 0)}
        measure = _MEASURES[begins.pop()] if begins else lambda head: 0
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
    """Return the size of a file without zeros that an interrupted download leaves at the end."""
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
    """Return the size of the head or the segment of a Matroska file (RFC 8794, 4 and 5)."""
    if not head.startswith((b"\x1a\x45\xdf\xa3", _SEGMENT)) or len(head) < 12 or not head[4]:
        return 0
    bits = 7 * (9 - head[4].bit_length())
    size = int.from_bytes(head[4 : 4 + bits // 7]) & ((1 << bits) - 1)
    is_known = size < (1 << bits) - 1
    return (4 + bits // 7 + size) * is_known


def _iso(head: bytes) -> int:
    """Return the size of an atom of an mp4 or MOV file (ISO 14496-12)."""
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
    """Return the size of a pack header or packet of an MPEG program stream (ISO 13818-1, 2.5)."""
    if not head.startswith(b"\0\0\1") or len(head) < 14:
        return 0
    if head[3] == 0xBA:
        return 14 + (head[13] & 7) if head[4] >> 6 == 1 else 12
    return 4 if head[3] == 0xB9 else 6 + int.from_bytes(head[4:6])


def _ivf(head: bytes) -> int:
    if head.startswith(b"DKIF"):
        return int.from_bytes(head[6:8], "little")
    return 12 + int.from_bytes(head[:4], "little")


_MEASURES: dict[bytes, Callable[[bytes], int]] = {
    b"RIFF": _riff,
    b"\x1a\x45\xdf\xa3": _ebml,
    b"\x30\x26\xb2\x75\x8e\x66\xcf\x11": _asf,
    b"ftyp": _iso,
    b"\0\0\1\xba": _mpeg,
    b"FLV": _flv,
    b"OggS": _ogg,
    b"DKIF": _ivf,
}
"""Maps the first bytes of a file to a function from the header of a chunk to its size in bytes.

In mp4 files, four bytes with a length come before these bytes. The size is 0 if the header is
invalid.
"""
