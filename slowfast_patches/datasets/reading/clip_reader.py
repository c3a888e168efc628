"""Read planned clips from video files as arrays (T, S, S, 3) uint8.

A clip is read in four steps:

1. Take the frame positions from the plan. They were chosen before anything is read.
2. Seek to the last key frame at or before the first position. Seek again wherever many frames in a
   row are not needed.
3. Decode only the packets that the wanted frames depend on.
4. Crop the planes of the decoded frames, resize the crops, and convert them to RGB.

The reader needs the timestamps of the frames and the positions of the key frames. `scan` collects
them once per video in a `VideoRecord`, which the index stores.
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
from av.container import InputContainer
from av.packet import Packet, PacketSideData
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from multigrid import ClipPlan
from slowfast_patches.datasets.reading.containers import (
    decode_packet,
    open_video,
    read_packets,
    translate_decode_errors,
)
from slowfast_patches.datasets.reading.jpeg import frame_files, read_jpeg
from slowfast_patches.datasets.reading.limits import LIMITS, ReadingLimits, TimeLimit
from slowfast_patches.datasets.reading.pixels import Cropper
from slowfast_patches.datasets.reading.prepared import decode_prepared
from slowfast_patches.datasets.reading.video_record import Kind, UnreadableVideoError, VideoRecord

Clip = NDArray[np.uint8]

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


def read_clip(
    path: str,
    record: VideoRecord,
    plan: ClipPlan,
    out: Clip | None = None,
    *,
    threads: int = 1,
    limits: ReadingLimits = LIMITS,
) -> Clip:
    """Read a planned clip from a video.

    Positions beyond the end of the video give its last frame. The clip is not flipped, even if the
    plan has `flip`.

    Args:
        path: The video file or folder of JPEG files. Ignored if `record` names the frame files.
        record: The result of `scan(path)`.
        plan: The frame positions, in ascending order, and the box to read.
        out: Array into which the clip is written. By default a new array is allocated.
        threads: Number of decoder threads. 0 lets the codec choose.
        limits: Limits on the videos that may be read.

    Returns:
        The clip, (T, crop, crop, 3) uint8 RGB.

    Raises:
        UnreadableVideoError: The file is missing or does not match the record, or a frame is too
            large or does not decode.
    """
    if out is None:
        out = np.empty((len(plan.positions), plan.crop, plan.crop, 3), np.uint8)
    read_clips(path, record, [plan], [out], threads=threads, limits=limits)
    return out


def read_clips(
    path: str,
    record: VideoRecord,
    plans: Sequence[ClipPlan],
    outs: Sequence[Clip],
    *,
    threads: int = 1,
    limits: ReadingLimits = LIMITS,
) -> None:
    """Read several clips of a video in one pass.

    Each frame is decoded once and written to all clips that contain it. Apart from the clips, only
    one decoded frame is kept in memory. The arguments are those of `read_clip`, but with a sequence
    of plans and a sequence of output arrays.

    Raises:
        UnreadableVideoError: As for `read_clip`. The content of the output arrays is then
            undefined.
    """
    limits.check_pixels(record.video.width, record.video.height)
    clock = TimeLimit(limits)
    shown = (record.video.width, record.video.height)
    clips = [
        _ClipTarget(
            np.minimum(plan.positions, record.video.frames - 1).tolist(),
            Cropper(plan.box(record.video), shown, plan.crop, record.orientation),
            out,
        )
        for plan, out in zip(plans, outs, strict=True)
    ]
    wanted = sorted({position for clip in clips for position in clip.positions})
    with translate_decode_errors():
        if record.kind == Kind.FRAMES:
            _read_files(path, record, wanted, clips, limits, clock)
        else:
            if record.kind == Kind.PREPARED:
                frames = decode_prepared(path, record, wanted)
            else:
                frames = _decode_video(path, record, wanted, threads, limits, clock)
            _fill(frames, wanted, clips, clock)
    for clip in clips:
        clip.repeat()


class _ClipTarget:
    """Output array of one clip, together with the frames and the crop that fill it.

    Attributes:
        positions: Index of the video frame for each frame of the clip.
        cropper: Crops and resizes a frame.
        out: The clip, (T, S, S, 3).
        rows: Maps the index of a video frame to the first index in `out` that shows the frame.
    """

    def __init__(self, positions: list[int], cropper: Cropper, out: Clip) -> None:
        self.positions = positions
        self.cropper = cropper
        self.out = out
        self.rows = {position: row for row, position in reversed(list(enumerate(positions)))}

    def repeat(self) -> None:
        """Fill in frames that occur more than once in the clip, after their first copy is written.

        For example, the last frame of the video is repeated if the video is shorter than the clip.
        """
        for row, position in enumerate(self.positions):
            if self.rows[position] != row:
                self.out[row] = self.out[self.rows[position]]


def _fill(
    frames: Iterator[tuple[int, VideoFrame]],
    wanted: list[int],
    clips: Sequence[_ClipTarget],
    clock: TimeLimit,
) -> None:
    """Write each decoded frame to all clips that contain it. Frames may come in any order.

    Raises:
        UnreadableVideoError: A wanted frame is missing.
    """
    missing = set(wanted)
    for number, frame in frames:
        clock.check()
        for clip in clips:
            if (row := clip.rows.get(number)) is not None:
                clip.cropper(frame, clip.out[row])
        missing.discard(number)
    if missing:
        raise UnreadableVideoError(
            f"cannot be decoded: the decoder did not return frame {min(missing)}"
        )


def _decode_video(
    path: str,
    record: VideoRecord,
    wanted: list[int],
    threads: int,
    limits: ReadingLimits,
    clock: TimeLimit,
) -> Iterator[tuple[int, VideoFrame]]:
    """Yield (index, frame) for the wanted frames of a video file, and for some other frames."""
    assert record.keys is not None
    entries = record.keys[np.searchsorted(record.keys, wanted, "right") - 1]
    skipped = [
        entry - before > _SEEK_GAP for before, entry in zip(wanted, entries[1:], strict=False)
    ]
    starts = [number for number, far in enumerate(skipped, start=1) if far]
    for start, stop in pairwise([0, *starts, len(wanted)]):
        yield from _decode_run(path, record, wanted[start:stop], threads, limits, clock)


def _decode_run(
    path: str,
    record: VideoRecord,
    wanted: list[int],
    threads: int,
    limits: ReadingLimits,
    clock: TimeLimit,
) -> Iterator[tuple[int, VideoFrame]]:
    """Seek to the key frame before the first wanted frame, and yield (index, frame) from there on.

    The yielded frames include all wanted frames and may include others. In a container without an
    index, such as an MPEG program stream, a seek may land after the requested key frame. In that
    case, go back by 1, 2, 4, ... further key frames until the seek lands early enough, at most to
    the beginning of the file.
    """
    assert record.keys is not None
    entry = int(np.searchsorted(record.keys, wanted[0], "right")) - 1
    back = 1
    while True:
        opened = open_video(path, threads, streams=record.streams, limits=limits)
        with opened as (container, stream):
            if entry > 0:
                assert record.timestamps is not None
                packets = _seek(container, stream, int(record.timestamps[record.keys[entry]]))
            else:
                packets = read_packets(container, stream)
            frames = _decode_from_here(packets, stream, record, wanted, limits, clock)
            first = next(frames, None)
            if entry == 0 or (first is not None and first[0] <= wanted[0]):
                yield from chain([first] if first else [], frames)
                return
        entry = max(0, entry - back)
        back = 2 * back


def _seek(
    container: InputContainer, stream: VideoStream, timestamp: int
) -> Iterator[Packet[VideoStream]]:
    """Seek to a key frame, and yield the packets from there on.

    FFmpeg attaches the palette of a video to the first packet of the file only. Attach it to the
    first packet after the seek as well.
    """
    palette: Any = None
    if 0 < stream.bits_per_coded_sample <= _PALETTE_BITS:
        first: Any = next(read_packets(container, stream))
        if first.has_sidedata("palette"):
            palette = PacketSideData.from_packet(first, "palette")
    # If the container cannot seek, decode from the beginning.
    with contextlib.suppress(av.FFmpegError):
        container.seek(timestamp, stream=stream)
    for number, packet in enumerate(read_packets(container, stream)):
        if number == 0 and palette is not None:
            palette.to_packet(packet)
        yield packet


def _decode_from_here(
    packets: Iterator[Packet[VideoStream]],
    stream: VideoStream,
    record: VideoRecord,
    wanted: list[int],
    limits: ReadingLimits,
    clock: TimeLimit,
) -> Iterator[tuple[int, VideoFrame]]:
    """Decode packets, and yield (index, frame).

    Skip unwanted frames that no other frame depends on, except the first frame, whose index tells
    where decoding began. Stop as soon as all wanted frames are decoded.
    """
    decoder = stream.codec_context
    stamps = range(record.video.frames) if record.timestamps is None else record.timestamps.tolist()
    numbers = dict(zip(stamps, count(), strict=False))
    # In AVI files with B-frames, packet timestamps are in decoding order, so they do not ascend in
    # display order. The timestamp of a packet then does not tell which frames will follow.
    ordered = record.timestamps is not None and all(map(lt, stamps, stamps[1:]))
    skips = decoder.name in _CAN_SKIP and decoder.thread_count == 1 and ordered
    due = {stamps[number] for number in wanted}
    left = set(due)
    missing = set(wanted)
    counted = count()
    began = False
    for packet in packets:
        clock.check()
        if skips:
            decoder.skip_frame = "NONREF" if began and packet.pts not in due else "DEFAULT"
        left.discard(cast(int, packet.pts))
        frames = decode_packet(stream, packet, limits)
        drained = ordered and not left
        if drained and packet.size:
            decoder.skip_frame = "DEFAULT"
            frames += decode_packet(stream, None, limits)
        for frame in frames:
            if frame is None:  # the packet is damaged
                continue
            began = True
            stamp = next(counted) if record.timestamps is None else frame.pts
            if (number := numbers.get(cast(int, stamp))) is not None:
                yield number, frame
                missing.discard(number)
        if drained or not missing:
            return


def _read_files(
    path: str,
    record: VideoRecord,
    wanted: list[int],
    clips: Sequence[_ClipTarget],
    limits: ReadingLimits,
    clock: TimeLimit,
) -> None:
    """Read the wanted frames from JPEG files, and write them to all clips that contain them.

    Decode at a half, a quarter or an eighth of the image size if that is large enough for the crop.
    """
    folder, files = ("", record.files) if record.files is not None else (path, frame_files(path))
    if len(files) != record.video.frames:
        raise UnreadableVideoError(
            f"has {len(files)} frames, but the index says {record.video.frames}"
        )
    for number in wanted:
        clock.check()
        images = dict[int, Clip]()
        for clip in clips:
            if (row := clip.rows.get(number)) is None:
                continue
            modes = (mode for by, mode in _REDUCED.items() if clip.cropper.shrinks >= by)
            mode = next(modes, cv2.IMREAD_COLOR)
            if mode not in images:
                images[mode] = read_jpeg(folder, files[number], mode, limits=limits)
            clip.cropper.image(images[mode], clip.out[row])
            clip.out[row] = clip.out[row][..., ::-1]
