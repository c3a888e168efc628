"""Detect videos that can be decoded only in part."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from slowfast_patches.datasets.reading.containers import (
    decode_packets,
    open_video,
    translate_decode_errors,
)
from slowfast_patches.datasets.reading.limits import ReadingLimits
from slowfast_patches.datasets.reading.video_record import Kind, UnreadableVideoError, VideoRecord

_MAX_DECODED_FRAMES = 3000
"""Maximum number of frames of a video that `find_damage` decodes. Decoding them takes seconds."""
_HEADS = {"h264": (1, 4), "hevc": (1, 21)}
"""How to recognize streams of length-prefixed units, by codec.

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
    begins = _BEGINS.get(codec, _anything)
    return lambda packet: not packet.is_corrupt and begins(bytes(memoryview(packet)[:_BEGIN]))


def _anything(data: bytes) -> bool:
    return True


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


def find_damage(path: str, record: VideoRecord, limits: ReadingLimits) -> str:
    """Describe which part of a scanned video cannot be decoded.

    Decode a video file of up to 3,000 frames completely. For longer videos, prepared files and
    JPEG files, return the damage that `scan` found.

    Returns:
        A description, or an empty string if no damage was found.
    """
    total = record.video.frames
    if record.damage or record.kind != Kind.VIDEO or total > _MAX_DECODED_FRAMES:
        return record.damage
    intact = 0
    opened = open_video(path, limits=limits)
    with (
        contextlib.suppress(UnreadableVideoError),
        translate_decode_errors(),
        opened as (container, stream),
    ):
        for frame in decode_packets(container, stream, limits):
            intact += is_intact(frame)
    return describe_damage(total - intact, total)


def is_intact(frame: VideoFrame | None) -> bool:
    """Return whether a frame was decoded without errors. None stands for a damaged packet."""
    return frame is not None and not frame.is_corrupt
