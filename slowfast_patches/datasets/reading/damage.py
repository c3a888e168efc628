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
"""Longest video that `find_damage` decodes, in frames. Decoding it takes seconds."""
_HEADS = {"h264": (1, 4), "hevc": (1, 21)}
"""Per codec: first byte of a header that announces length-prefixed units, and offset of the byte
with the size of the length field."""


def whole_units(stream: VideoStream) -> Callable[[Packet[VideoStream]], bool]:
    """Return a function that checks whether the units of a packet fill it exactly.

    In mp4 and Matroska files, H.264 and HEVC units begin with their length, so a damaged packet can
    be detected without decoding it. Packets of other streams always pass.
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
    """Count the frames that the index of an MP4 or MOV file places beyond the end of the file."""
    size = os.path.getsize(path)
    return sum(entry.pos + entry.size > size for entry in stream.index_entries)


def find_damage(path: str, record: VideoRecord, limits: ReadingLimits) -> str:
    """Describe which part of a scanned video cannot be decoded.

    Video files of up to 3,000 frames are decoded completely. For longer videos, and for other
    kinds, return the damage that `scan` found.

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
    return f"has {frames} frames, of which {decoded} decode" if decoded < frames else ""
