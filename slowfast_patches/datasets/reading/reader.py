"""Read planned clips from video files as arrays (T, S, S, 3) uint8.

A clip is read in four steps:

1. Take the frame positions from the plan. They were chosen before anything is read.
2. Seek to the last key frame at or before the first position. Seek again wherever many frames in a
   row are not needed.
3. Decode only the packets that the wanted frames depend on.
4. Crop the planes of the decoded frames, resize the crops, and convert them to RGB.

The reader needs the timestamps of the frames and the positions of the key frames. `scan` collects
them once per video in a `ScannedVideo`, which the index stores.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import chain, count, pairwise
from operator import lt
from typing import Any, cast

import av
import cv2
import numpy as np
from av.packet import Packet, PacketSideData
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from multigrid import ClipPlan
from slowfast_patches.datasets.reading.errors import (
    UnreadableVideoError,
    translate_decode_errors,
)
from slowfast_patches.datasets.reading.frames import frame_files
from slowfast_patches.datasets.reading.jpeg import read_jpeg
from slowfast_patches.datasets.reading.pixels import Cropper
from slowfast_patches.datasets.reading.prepared import decode_prepared
from slowfast_patches.datasets.reading.scanned_video import Kind, ScannedVideo
from slowfast_patches.datasets.reading.video_file import VideoFile, check_pixels, open_video

Clip = NDArray[np.uint8]
_Frames = Iterator[tuple[int, VideoFrame | Clip]]
"""Yields each frame with its index in the video, in any order."""

_SEEK_GAP = 250
"""Seek again if more than this number of unneeded frames precede the next key frame to use."""
_PALETTE_BITS = 8
"""Maximum number of bits per pixel of videos with a palette."""
_CAN_SKIP = frozenset({"h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4"})
"""Names of the decoders that can skip individual non-reference frames."""
_REDUCED = {
    8: cv2.IMREAD_REDUCED_COLOR_8,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    2: cv2.IMREAD_REDUCED_COLOR_2,
}


def read_clip(path: str, scanned: ScannedVideo, plan: ClipPlan) -> Clip:
    """Read a planned clip from a video. Arguments and errors are those of `read_clips`.

    Returns:
        The clip, (T, crop, crop, 3) uint8 RGB.
    """
    out = np.empty((len(plan.positions), plan.crop, plan.crop, 3), np.uint8)
    read_clips(path, scanned, [plan], [out])
    return out


def read_clips(
    path: str, scanned: ScannedVideo, plans: Sequence[ClipPlan], outs: Sequence[Clip]
) -> None:
    """Read planned clips of a video in one pass.

    Each frame is decoded once and written to all clips that contain it. Apart from the clips, only
    one decoded frame is kept in memory. Positions beyond the end of a video give its last frame.
    Clips are not flipped, even if their plan has `flip`.

    Args:
        path: The video file or folder of JPEG files. Ignored if `scanned` names the files.
        scanned: The result of `scan(path)`.
        plans: The frame positions of each clip, in ascending order, and the window to read.
        outs: Array of each clip, (T, crop, crop, 3) uint8, to which RGB is written.

    Raises:
        UnreadableVideoError: The file is missing or does not match `scanned`, or a frame is too
            large or does not decode. The content of the arrays is then undefined.
    """
    video = scanned.video
    check_pixels(video.width, video.height)
    clips = list[_Clip]()
    for plan, out in zip(plans, outs, strict=True):
        shown = (video.width, video.height)
        cropper = Cropper(plan.window(video), shown, plan.crop, scanned.orientation)
        clips.append(_Clip(cropper, out, plan.positions.clip(max=video.frames - 1).tolist()))
    missing = {number for clip in clips for number in clip.rows}
    wanted = sorted(missing)
    with translate_decode_errors():
        if scanned.kind == Kind.PREPARED:
            frames: _Frames = decode_prepared(path, scanned, wanted)
        elif scanned.kind == Kind.FRAMES:
            shrinks = min(clip.cropper.shrinks for clip in clips)
            frames = _decode_files(path, scanned, wanted, shrinks)
        else:
            frames = _decode_video(path, scanned, wanted)
        for number, frame in frames:
            for clip in clips:
                clip.write(number, frame)
            missing.discard(number)
    if missing:
        raise UnreadableVideoError(
            f"cannot be decoded: the decoder did not return frame {min(missing)}"
        )


class _Clip:
    """Output array of one clip, together with the crop and the frames that fill it.

    Attributes:
        cropper: Crops and resizes a frame.
        rows: Maps the index of a video frame to the indices in the clip that show the frame.
    """

    def __init__(self, cropper: Cropper, out: Clip, positions: list[int]) -> None:
        self.cropper = cropper
        self.rows = dict[int, list[int]]()
        self._out = out
        for row, position in enumerate(positions):
            self.rows.setdefault(position, []).append(row)

    def write(self, number: int, frame: VideoFrame | Clip) -> None:
        """Write a frame of the video to all places in the clip that show it."""
        if rows := self.rows.get(number):
            self.cropper(frame, self._out[rows[0]])
            self._out[rows[1:]] = self._out[rows[0]]


def _decode_files(path: str, scanned: ScannedVideo, wanted: list[int], shrinks: float) -> _Frames:
    """Yield the wanted pictures of a video that is stored as JPEG files.

    Decode at a half, a quarter or an eighth of the image size if that is large enough for crops
    that are downscaled by the factor `shrinks`.
    """
    files = scanned.files if scanned.files is not None else frame_files(path)
    if len(files) != scanned.video.frames:
        raise UnreadableVideoError(
            f"has {len(files)} frames, but the index says {scanned.video.frames}"
        )
    mode = next((m for by, m in _REDUCED.items() if shrinks >= by), cv2.IMREAD_COLOR)
    for number in wanted:
        yield number, read_jpeg("", files[number], mode)


def _decode_video(path: str, scanned: ScannedVideo, wanted: list[int]) -> _Frames:
    """Yield all wanted frames of a video file, and possibly other frames."""
    assert scanned.keys is not None
    entries = scanned.keys[np.searchsorted(scanned.keys, wanted, "right") - 1]
    gaps = (entry - before for before, entry in zip(wanted, entries[1:], strict=False))
    starts = [number for number, gap in enumerate(gaps, start=1) if gap > _SEEK_GAP]
    for start, stop in pairwise([0, *starts, len(wanted)]):
        yield from _decode_run(path, scanned, wanted[start:stop])


def _decode_run(path: str, scanned: ScannedVideo, wanted: list[int]) -> _Frames:
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
        with open_video(path, streams=scanned.streams) as file:
            packets = file.packets()
            if entry > 0:
                assert scanned.timestamps is not None
                packets = _seek(file, int(scanned.timestamps[scanned.keys[entry]]))
            frames = _decode_from_here(file, packets, scanned, wanted)
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
    if 0 < file.stream.bits_per_coded_sample <= _PALETTE_BITS:
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


def _decode_from_here(
    file: VideoFile,
    packets: Iterator[Packet[VideoStream]],
    scanned: ScannedVideo,
    wanted: list[int],
) -> _Frames:
    """Decode packets, and yield the frames.

    Skip unwanted frames that no other frame depends on, except the first frame, whose index tells
    where decoding began. Stop as soon as all wanted frames are decoded.
    """
    decoder = file.stream.codec_context
    counted = count()
    by_count = scanned.timestamps is None
    stamps: Sequence[int] = range(scanned.video.frames)
    if scanned.timestamps is not None:
        stamps = scanned.timestamps.tolist()
    numbers = dict(zip(stamps, count(), strict=False))
    # In AVI files with B-frames, packet timestamps are in decoding order, so they do not ascend in
    # display order. The timestamp of a packet then does not tell which frames will follow.
    ordered = not by_count and all(map(lt, stamps, stamps[1:]))
    skips = decoder.name in _CAN_SKIP and ordered
    due = {stamps[number] for number in wanted}
    left = set(due)
    missing = set(wanted)
    began = False
    for packet in packets:
        if skips:
            decoder.skip_frame = "NONREF" if began and packet.pts not in due else "DEFAULT"
        left.discard(cast(int, packet.pts))
        frames = file.decode(packet)
        drained = ordered and not left
        if drained and packet.size:
            decoder.skip_frame = "DEFAULT"
            frames += file.decode(None)
        for frame in filter(None, frames):  # None stands for a damaged packet
            began = True
            stamp = next(counted) if by_count else frame.pts
            if (number := numbers.get(cast(int, stamp))) is not None:
                yield number, frame
                missing.discard(number)
        if drained or not missing:
            return
