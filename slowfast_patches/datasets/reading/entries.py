"""Find the frames of a video at which decoding can start."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Sequence

import av
import numpy as np
from av.video.frame import VideoFrame

from slowfast_patches.datasets.reading.decoding import decode_from
from slowfast_patches.datasets.reading.scanned_video import Ints, ScannedVideo
from slowfast_patches.datasets.reading.survey import Survey, new_decoder
from slowfast_patches.datasets.reading.video_file import DEMUX_ERRORS, VideoFile, open_video

_INDEXED = {"avi", "mxf"}
"""Names of the containers whose packets have no timestamps. After a seek, timestamps depend on the
index of the file. If the index or a packet is damaged, they differ from those before the seek."""


def find_entries(
    path: str, scanned: ScannedVideo, found: Survey, *, is_known: bool, is_trusted: bool
) -> Ints:
    """Return the indices of the frames at which decoding can start. The first one is 0.

    Args:
        path: The video file.
        scanned: The result of the scan, except for the field `keys`.
        found: The survey of the file.
        is_known: Whether the decoder marks key frames, or all frames are key frames.
        is_trusted: Whether the survey checked the key frames.
    """
    timestamps = scanned.timestamps
    if timestamps is None or found.palettes > 1:  # a seek skips the latest palette
        return np.zeros(1, np.int64)
    decodes_keys = is_known and found.is_full
    stamps = found.frames if decodes_keys else found.packets
    keys = {time for time, is_key in stamps if is_key}
    is_odd = found.overlaps or found.has_false_keys or (is_trusted and not scanned.is_in_step)
    marked = [number for number, time in enumerate(timestamps.tolist()) if time in keys]
    if is_odd or not is_known:
        entries = _equal_entries(path, scanned, marked)
    elif found.checks_keys:
        times = timestamps.tolist()
        entries = [number for number in marked if times[number] in found.entries]
    else:
        with open_video(path, probes=not scanned.streams) as file:
            if file.container.format.name in _INDEXED:
                marked = [n for n in marked if _lands_right(file, int(timestamps[n]), found)]
            entries = marked
            if not file.stream.codec_context.codec.intra_only:
                entries = [n for n in marked if n and _is_entry(file, int(timestamps[n]))]
    return np.array(sorted({0, *entries}), np.int64)


def _lands_right(file: VideoFile, timestamp: int, found: Survey) -> bool:
    """Return whether the packet after a seek is one of the packets that the survey has seen."""
    with contextlib.suppress(*DEMUX_ERRORS, av.FFmpegError):
        file.container.seek(timestamp, stream=file.stream)
        packet = next(file.container.demux(file.stream))
        return (packet.dts, packet.pos) in found.places
    return False


def _is_entry(file: VideoFile, timestamp: int) -> bool:
    """Return whether decoding can start at the key frame with this timestamp.

    In some files, frames that depend on earlier frames are marked as key frames. Test the frame
    with a new decoder, because a decoder that has decoded other frames does not notice missing
    references. Do not open the container again, because opening takes longer the more frames it
    has.
    """
    decoder = new_decoder(file.stream)
    with contextlib.suppress(*DEMUX_ERRORS, av.PermissionError):  # the container cannot seek
        file.container.seek(timestamp, stream=file.stream)
        for packet in file.container.demux(file.stream):
            for frame in decoder.decode(packet):
                if frame.pts is None or frame.pts >= timestamp:
                    return bool(frame.key_frame) and not frame.is_corrupt
    return False


def _equal_entries(path: str, scanned: ScannedVideo, marked: Sequence[int]) -> list[int]:
    """Return the marked frames at which decoding can start without changing the frames.

    Compare the frames up to the next marked frame with those decoded from the beginning.
    """
    later = [number for number in marked if number]
    if not later:
        return []
    right = {number: _checksum(frame) for number, frame in decode_from(path, scanned, 0)}
    entries = list[int]()
    for number, stop in zip(later, [*later[1:], scanned.video.frames], strict=True):
        left = set(range(number, stop)) & right.keys()
        for shown, frame in decode_from(path, scanned, number):
            if shown >= stop or (shown in left and _checksum(frame) != right[shown]):
                break
            left.discard(shown)
            if not left:
                break
        if not left:
            entries.append(number)
    return entries


def _checksum(frame: VideoFrame) -> int:
    checksum = 0
    for plane in frame.planes:
        checksum = zlib.crc32(memoryview(plane), checksum)
    return checksum
