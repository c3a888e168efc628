"""Read clips: from a file, frame positions, a box and a size to (T, S, S, 3) uint8.

    positions     the frames of the plan, chosen before anything is read
    entry         seek to the last key frame at or before the first position, and seek again
                  wherever many unneeded frames follow
    packets       decode only the packets that a wanted frame depends on
    pixels        crop the decoder's planes, resize the crop, convert it to RGB

`scan` collects what the reader needs to know about a video (frame timestamps, entry points for
decoding) in a `VideoRecord` once, and the index stores it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import chain, count, pairwise
from operator import lt
from typing import cast

import av
import cv2
import numpy as np
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from multigrid import ClipPlan
from slowfast_patches.datasets.reading.containers import (
    frame_files,
    open_video,
    read_jpeg,
    translate_decode_errors,
)
from slowfast_patches.datasets.reading.limits import LIMITS, ReadingLimits, TimeLimit
from slowfast_patches.datasets.reading.pixels import Cropper
from slowfast_patches.datasets.reading.prepared import decode_prepared
from slowfast_patches.datasets.reading.video_record import Kind, UnreadableVideoError, VideoRecord

Clip = NDArray[np.uint8]

_SEEK_GAP = 250
"""Minimum gap of unneeded frames that triggers a new seek."""

_CAN_SKIP = frozenset({"h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4"})
"""Decoders that can skip non-reference frames one by one."""

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
    """Read the planned clip of a video.

    Positions beyond the end of the video repeat its last frame. The clip is not flipped.

    Args:
        path: The video file or folder of JPEG files. Ignored if `record` names the frame files.
        record: The result of `scan(path)`.
        plan: The frames and the box to read. Its positions ascend.
        out: Array that receives the clip. By default a new one is allocated.
        threads: Decoder threads. 0 lets the codec choose.
        limits: Videos beyond these limits are not decoded.

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
    one decoded frame is kept in memory. See `read_clip` for the arguments.

    Raises:
        UnreadableVideoError: As for `read_clip`. The content of all clips is then undefined.
    """
    limits.check_pixels(record.video.width, record.video.height)
    clock = TimeLimit(limits)
    shown = (record.video.width, record.video.height)
    clips = [
        _ClipTarget(
            np.minimum(plan.positions, record.video.frames - 1).tolist(),
            Cropper(plan.box(record.video), shown, plan.crop, record.turns),
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
    """Output array of one clip, with the frames it needs and how to crop them.

    Attributes:
        positions: The frame position of each row.
        cropper: Crops and resizes a frame.
        out: The clip, (T, S, S, 3).
        rows: The first row that shows each position.
    """

    def __init__(self, positions: list[int], cropper: Cropper, out: Clip) -> None:
        self.positions = positions
        self.cropper = cropper
        self.out = out
        self.rows = {position: row for row, position in reversed(list(enumerate(positions)))}

    def repeat(self) -> None:
        """Copy repeated frames, such as the last frame of a video shorter than the clip."""
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
            f"cannot be decoded: the decoder does not return frame {min(missing)}"
        )


def _decode_video(
    path: str,
    record: VideoRecord,
    wanted: list[int],
    threads: int,
    limits: ReadingLimits,
    clock: TimeLimit,
) -> Iterator[tuple[int, VideoFrame]]:
    """Yield (number, frame) for each wanted frame of a video file."""
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
    """Yield (number, frame) from the key frame before the first wanted frame on.

    The frames include all wanted ones. In a container without an index (MPEG program streams), a
    seek may land after the requested key frame. Then retry from earlier key frames in doubling
    steps, and finally from the beginning.
    """
    assert record.keys is not None
    entry = int(np.searchsorted(record.keys, wanted[0], "right")) - 1
    back = 1
    while True:
        opened = open_video(path, threads, streams=record.streams, limits=limits)
        with opened as (container, stream):
            if entry > 0:
                assert record.timestamps is not None
                with contextlib.suppress(av.FFmpegError):  # cannot seek: start at the beginning
                    container.seek(int(record.timestamps[record.keys[entry]]), stream=stream)
            frames = _decode_from_here(container, stream, record, wanted, clock)
            first = next(frames, None)
            if entry == 0 or (first is not None and first[0] <= wanted[0]):
                yield from chain([first] if first else [], frames)
                return
        entry = max(0, entry - back)
        back = 2 * back


def _decode_from_here(
    container: InputContainer,
    stream: VideoStream,
    record: VideoRecord,
    wanted: list[int],
    clock: TimeLimit,
) -> Iterator[tuple[int, VideoFrame]]:
    """Yield (number, frame) from the current position of the container.

    Unwanted frames that no other frame refers to are skipped. The first frame is never skipped
    because it tells where decoding began. Stop reading once the packets of all wanted frames have
    been read.
    """
    decoder = stream.codec_context
    stamps = range(record.video.frames) if record.timestamps is None else record.timestamps.tolist()
    numbers = dict(zip(stamps, count(), strict=False))
    # AVI files with B-frames number their packets, so their timestamps do not ascend in display
    # order. A packet's timestamp then does not tell which frames are still to come.
    ordered = record.timestamps is not None and all(map(lt, stamps, stamps[1:]))
    skips = decoder.name in _CAN_SKIP and decoder.thread_count == 1 and ordered
    due = {stamps[number] for number in wanted}
    left = set(due)
    missing = set(wanted)
    counted = count()
    began = False
    for packet in container.demux(stream):
        clock.check()
        if skips:
            decoder.skip_frame = "NONREF" if began and packet.pts not in due else "DEFAULT"
        left.discard(cast(int, packet.pts))
        frames = decoder.decode(packet)
        drained = ordered and not left
        if drained and packet.size:
            decoder.skip_frame = "DEFAULT"
            frames += decoder.decode(None)
        for frame in frames:
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
    """Read JPEG files.

    Decode at a half, a quarter or an eighth of the size if that is large enough for the crop.
    """
    folder, files = ("", record.files) if record.files is not None else (path, frame_files(path))
    if len(files) != record.video.frames:
        raise UnreadableVideoError(
            f"has {len(files)} frames, but {record.video.frames} in the index"
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
