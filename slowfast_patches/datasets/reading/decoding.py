"""Decode frames of a video file by their indices.

The container tells where to seek and which packets to skip. If seeking does not find a wanted
frame, the video is decoded from the beginning, for this clip and for all later clips of this
process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import chain, count, pairwise
from operator import lt
from typing import Any, cast

import av
import numpy as np
from av.packet import Packet, PacketSideData
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from slowfast_patches.datasets.reading.damage import warn_of_damage
from slowfast_patches.datasets.reading.scanned_video import ScannedVideo
from slowfast_patches.datasets.reading.video_file import (
    CAN_SKIP,
    PALETTE_BITS,
    ErrorLog,
    UnreadableVideoError,
    VideoFile,
    open_video,
)

Frames = Iterator[tuple[int, VideoFrame]]
"""Yields each frame with its index in the video."""

_SEEK_GAP = 250
"""Seek again if more than this number of unneeded frames precede the next key frame to use."""
_AFTER_SEEK = ("mmco", "co located", "reference", "ref with POC", "RefPicSet")
"""Parts of the errors that H.264 and HEVC decoders report after a seek to a key frame that frames
from before the seek are displayed after, although all wanted frames are right."""
_MAX_REPLACED = 0.5
"""Maximum share of the wanted frames that are replaced by the frames before them, because the
decoder does not return them. If more are missing, the clip is unreadable."""

_unreliable = set[str]()
"""Videos that are decoded from the beginning, because a wanted frame did not come after a seek."""


def is_reliable(path: str) -> bool:
    """Return whether seeking has found all wanted frames of a file so far."""
    return path not in _unreliable


def decode_video(path: str, scanned: ScannedVideo, wanted: list[int]) -> Frames:
    """Yield all wanted frames of a video file, and possibly other frames.

    Args:
        path: The video file.
        scanned: The scanned file.
        wanted: The frame indices in ascending order.

    Raises:
        UnreadableVideoError: Too many of the wanted frames cannot be decoded.
    """
    missing = set(wanted)
    if path not in _unreliable:
        for number, frame in _decode_runs(path, scanned, wanted):
            yield number, frame
            missing.discard(number)
    if missing:
        _unreliable.add(path)
        yield from _decode_again(path, scanned, wanted)


def _decode_runs(path: str, scanned: ScannedVideo, wanted: list[int]) -> Frames:
    """Yield the frames, and seek again where many frames in a row are not needed."""
    assert scanned.keys is not None
    entries = scanned.keys[np.searchsorted(scanned.keys, wanted, "right") - 1]
    gaps = (entry - before for before, entry in zip(wanted, entries[1:], strict=False))
    starts = [number for number, gap in enumerate(gaps, start=1) if gap > _SEEK_GAP]
    for start, stop in pairwise([0, *starts, len(wanted)]):
        yield from _decode_run(path, scanned, wanted[start:stop])


def _decode_run(path: str, scanned: ScannedVideo, wanted: list[int]) -> Frames:
    """Seek to the key frame before the first wanted frame, and yield the frames from there on.

    The yielded frames include all wanted frames and may include others. In a container without an
    index, such as an MPEG program stream, a seek may land after the requested key frame. In that
    case, go back by 1, 2, 4, ... further key frames until the seek lands early enough, at most to
    the beginning of the file.
    """
    assert scanned.keys is not None
    entry = int(np.searchsorted(scanned.keys, wanted[0], "right")) - 1
    back = 1
    while True:
        with open_video(path, probes=not scanned.streams) as file:
            packets = file.packets()
            if entry > 0:
                assert scanned.timestamps is not None
                packets = _seek(file, int(scanned.timestamps[scanned.keys[entry]]))
            start = int(scanned.keys[entry])
            frames = _decode_from_here(file, packets, scanned, wanted, start)
            first = next(frames, None)
            if entry == 0 or (first is not None and first[0] <= wanted[0]):
                yield from chain([first] if first else [], frames)
                return
        entry = max(0, entry - back)
        back = 2 * back


def _seek(file: VideoFile, timestamp: int) -> Iterator[Packet[VideoStream]]:
    """Seek to a key frame, and yield the packets from there on.

    FFmpeg attaches the palette of a video to the first packet of the file only. Attach it to the
    first packet after the seek as well.
    """
    palette: Any = None
    if 0 < file.stream.bits_per_coded_sample <= PALETTE_BITS:
        first: Any = next(file.packets())
        if first.has_sidedata("palette"):
            palette = PacketSideData.from_packet(first, "palette")
    # If the container cannot seek, decode from the beginning.
    with contextlib.suppress(av.FFmpegError):
        file.container.seek(timestamp, stream=file.stream)
    for number, packet in enumerate(file.packets()):
        if number == 0 and palette is not None:
            palette.to_packet(packet)
        yield packet


def _decode_again(path: str, scanned: ScannedVideo, wanted: list[int]) -> Frames:
    """Yield the wanted frames, decoded from the beginning, and possibly other frames.

    A frame that the decoder does not return is replaced by the frame before it, which players show
    in its place. At the beginning of the video, it is replaced by the frame after it.
    """
    left = list(wanted)
    replaced = list[int]()
    before: VideoFrame | None = None
    for number, frame in decode_all(path, scanned):
        while left and left[0] < number:
            replaced.append(left.pop(0))
            yield replaced[-1], before or frame
        if left[:1] == [number]:
            left.pop(0)
        yield number, frame
        before = frame
        if not left:
            break
    if before is not None:
        for number in left:
            replaced.append(number)
            yield number, before
    lost = replaced or left
    if before is None or len(lost) > _MAX_REPLACED * len(wanted):
        raise UnreadableVideoError(f"cannot be decoded: the decoder did not return frame {lost[0]}")
    if replaced:
        warn_of_damage(path, f"frame {replaced[0]} does not decode, so the one before it is shown")


def decode_all(path: str, scanned: ScannedVideo) -> Frames:
    """Yield all frames of a video file, decoded from the beginning. Warn if it is damaged."""
    log = ErrorLog()
    for number, frame in decode_from(path, scanned, 0):
        if error := log.new():
            warn_of_damage(path, f"FFmpeg reports {error!r}")
        if frame.is_corrupt:
            warn_of_damage(path, f"frame {number} is damaged")
        yield number, frame
    if error := log.new():
        warn_of_damage(path, f"FFmpeg reports {error!r}")


def decode_from(path: str, scanned: ScannedVideo, entry: int) -> Frames:
    """Yield all frames of a video file from a key frame on, and possibly frames before it.

    Args:
        path: The video file.
        scanned: The scanned file.
        entry: Index of the key frame. If it is 0, decode from the beginning.
    """
    numbers = _numbers(scanned)
    counted = count()
    with open_video(path, probes=not scanned.streams) as file:
        packets = file.packets()
        if entry:
            assert scanned.timestamps is not None
            packets = _seek(file, int(scanned.timestamps[entry]))
        for frame in filter(None, chain.from_iterable(map(file.decode, packets))):
            stamp = next(counted) if scanned.timestamps is None else frame.pts
            if (number := numbers.get(cast(int, stamp))) is not None:
                yield number, frame


def _numbers(scanned: ScannedVideo) -> dict[int, int]:
    """Return the index of each frame by its timestamp, or by its position without timestamps."""
    if scanned.timestamps is None:
        return {number: number for number in range(scanned.video.frames)}
    return dict(zip(scanned.timestamps.tolist(), count(), strict=False))


def _decode_from_here(
    file: VideoFile,
    packets: Iterator[Packet[VideoStream]],
    scanned: ScannedVideo,
    wanted: list[int],
    entry: int,
) -> Frames:
    """Decode packets, and yield the frames. Warn if they are damaged.

    Skip unwanted frames that no other frame depends on, except the first frame, whose index tells
    where decoding began. Stop as soon as all wanted frames are decoded.
    """
    decoder = file.stream.codec_context
    counted = count()
    by_count = scanned.timestamps is None
    numbers = _numbers(scanned)
    stamps: Sequence[int] = list(numbers)
    # In AVI files with B-frames, packet timestamps are in decoding order.
    # The timestamp of a packet then does not show which frames will follow.
    ordered = not by_count and scanned.is_in_step and all(map(lt, stamps, stamps[1:]))
    skips = decoder.name in CAN_SKIP and ordered
    due = {stamps[number] for number in wanted}
    left = set(due)
    missing = set(wanted)
    began = False
    log = ErrorLog()
    # After a seek, frames before the first key frame may lack their reference frames.
    # FFmpeg reports errors for such frames, but they are not wanted.
    begin = None if entry else min(stamps)
    latest = -1
    for packet in packets:
        if skips:
            decoder.skip_frame = "NONREF" if began and packet.pts not in due else "DEFAULT"
        if file.is_shown(packet):
            left.discard(cast(int, packet.pts))
        frames = file.decode(packet)
        drained = ordered and not left
        if drained and packet.size:
            decoder.skip_frame = "DEFAULT"
            frames += file.decode(None)
        if begin is None and packet.is_keyframe:
            begin = packet.pts
        error = log.new()
        if entry and any(part in error for part in _AFTER_SEEK):
            error = ""
        is_before = begin is None or (ordered and packet.pts is not None and packet.pts < begin)
        if error and not is_before:
            warn_of_damage(file.path, f"FFmpeg reports {error!r}")
        for frame in filter(None, frames):  # None means a damaged packet
            began = True
            stamp = next(counted) if by_count else frame.pts
            if (number := numbers.get(cast(int, stamp))) is not None:
                if frame.is_corrupt and number in missing:
                    warn_of_damage(file.path, f"frame {number} is damaged")
                if ordered and number < latest:
                    warn_of_damage(file.path, f"frame {number} has a wrong timestamp")
                latest = number
                yield number, frame
                missing.discard(number)
        if drained or not missing:
            return
