"""Detect videos that can be decoded only in part."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from av.packet import Packet
from av.video.stream import VideoStream

from slowfast_patches.datasets.reading.containers import open_video, translate_decode_errors
from slowfast_patches.datasets.reading.limits import ReadingLimits
from slowfast_patches.datasets.reading.video_record import Kind, UnreadableVideoError, VideoRecord

_MAX_DECODED_FRAMES = 3000
"""Maximum number of frames of a video that `find_damage` decodes. Decoding them takes seconds."""
_HEADS = {"h264": (1, 4), "hevc": (1, 21)}
"""How to recognize streams of length-prefixed units, by codec.

The first number is the value of the header's first byte in such streams. The second is the offset
of the header byte that contains the size of the length field.
"""


def whole_units(stream: VideoStream) -> Callable[[Packet[VideoStream]], bool]:
    """Return a function that checks whether a packet consists of complete H.264 or HEVC units.

    In mp4 and Matroska files, each unit begins with its length, so damage can be detected without
    decoding the packet. For all other streams, the function returns True.
    """
    header = stream.codec_context.extradata or b""
    begin, place = _HEADS.get(stream.codec_context.name, (None, 0))
    if len(header) <= place or header[0] != begin:
        return lambda packet: True
    size = (header[place] & 3) + 1

    def is_whole(packet: Packet[VideoStream]) -> bool:
        data = memoryview(packet)
        position = 0
        while position < len(data):
            length = int.from_bytes(data[position : position + size])
            if length == 0:
                return False
            position += size + length
        return position == len(data)

    return is_whole


def missing_frames(path: str, stream: VideoStream) -> int:
    """Return how many frames extend beyond the end of a file, according to its MP4 or MOV index."""
    size = os.path.getsize(path)
    return sum(entry.pos + entry.size > size for entry in stream.index_entries)


def find_damage(path: str, record: VideoRecord, limits: ReadingLimits) -> str:
    """Describe which part of a scanned video cannot be decoded.

    Decode a video file of up to 3,000 frames completely. For longer videos, prepared files and
    JPEG files, return the damage that `scan` found.

    Returns:
        A description, or an empty string if no damage was found.
    """
    frames = record.video.frames
    if record.damage or record.kind != Kind.VIDEO or frames > _MAX_DECODED_FRAMES:
        return record.damage
    decoded = 0
    opened = open_video(path, limits=limits)
    with (
        contextlib.suppress(UnreadableVideoError),
        translate_decode_errors(),
        opened as (container, stream),
    ):
        for _ in container.decode(stream):
            decoded += 1
    return f"has {frames} frames, but only {decoded} can be decoded" if decoded < frames else ""
