"""Find out that only a part of a video can be decoded, and say which."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from av.packet import Packet
from av.video.stream import VideoStream

from slowfast_patches.datasets.reading.files import open_video, readable
from slowfast_patches.datasets.reading.limits import ReadingLimits
from slowfast_patches.datasets.reading.video_record import Kind, UnreadableVideoError, VideoRecord

__all__ = ["find_damage", "missing_frames", "whole_units"]

_MOST = 3000
"""Frames of the longest video that `find_damage` decodes: seconds of work."""
_HEADS = {"h264": (1, 4), "hevc": (1, 21)}
"""By codec, how a header of units with lengths begins, and the byte with the bytes of a length."""


def whole_units(stream: VideoStream) -> Callable[[Packet[VideoStream]], bool]:
    """Return a test whether the units of a packet fill it, as those of an undamaged one do.

    H.264 and HEVC in mp4 and Matroska have the length of each unit before it. Packets of other
    streams pass.
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
    """Frames that the index of an MP4 or MOV file puts behind the file's end."""
    size = os.path.getsize(path)
    return sum(entry.pos + entry.size > size for entry in stream.index_entries)


def find_damage(path: str, record: VideoRecord, limits: ReadingLimits) -> str:
    """Say what of a scanned video cannot be decoded; empty where nothing is wrong.

    A video file of up to 3,000 frames is decoded whole. Of others the damage is what `scan` saw.
    """
    frames = record.video.frames
    if record.damage or record.kind != Kind.VIDEO or frames > _MOST:
        return record.damage
    decoded = 0
    opened = open_video(path, limits=limits)
    with contextlib.suppress(UnreadableVideoError), readable(), opened as (container, stream):
        for _ in container.decode(stream):
            decoded += 1
    return f"has {frames} frames, of which {decoded} decode" if decoded < frames else ""
