"""The clip reader: from (file, frame positions, box, size) to (T, S, S, 3) uint8.

    positions     the frames of the plan, decided before anything is read
    entry         the last key frame at or before the first of them: seek there, and again where
                  many frames lie between two of them
    packets       decode those that a wanted frame depends on, no more
    pixels        cut the box out of the decoder's planes, resize it, convert it to RGB

What a video is (its frames' timestamps, where decoding may start) is in its record, found once by
`scan` and kept in the index.
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
from slowfast_patches.datasets.reading.files import (
    frame_files,
    open_video,
    read_jpeg,
    readable,
)
from slowfast_patches.datasets.reading.limits import LIMITS, ReadingLimits, TimeLimit
from slowfast_patches.datasets.reading.pixels import Cropper
from slowfast_patches.datasets.reading.prepared import decode_prepared
from slowfast_patches.datasets.reading.video_record import Kind, UnreadableVideoError, VideoRecord

__all__ = ["read_clip", "read_clips"]

Clip = NDArray[np.uint8]

_GAP = 250
"""Minimum gap of unneeded frames that triggers a new seek."""

_SKIPPING = frozenset({"h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4"})
"""Decoders that can skip a single frame that no other frame refers to."""

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
    """The planned clip of a video, (T, crop, crop, 3) uint8 RGB, not yet flipped.

    Exactly the frames at `plan.positions` are read, which ascend; a position beyond the end is the
    last frame. `record` is that of `scan(path)`; where it names the frames' files itself, `path`
    is not looked at. `out`, if given, receives the clip. `threads` other than 1 let a codec use
    several for one clip. What is beyond the limits is not decoded.

    Raises:
        UnreadableVideoError: the file is gone, is not what the record says, or a frame is too large
            or does not decode; the message says which.
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
    """Read several clips of a video in one pass, as `read_clip` reads each of them.

    A frame that several clips have is decoded once and written to all of them: no more than one is
    kept beside the clips.

    Raises:
        UnreadableVideoError: as `read_clip`; then all clips are undefined.
    """
    limits.check_pixels(record.video.width, record.video.height)
    clock = TimeLimit(limits)
    shown = (record.video.width, record.video.height)
    clips = [
        _Reading(
            np.minimum(plan.positions, record.video.frames - 1).tolist(),
            Cropper(plan.box(record.video), shown, plan.crop, record.turns),
            out,
        )
        for plan, out in zip(plans, outs, strict=True)
    ]
    wanted = sorted({position for clip in clips for position in clip.positions})
    with readable():
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


class _Reading:
    """A clip that is being read: the frames at its positions, the part of them that it shows, and
    its rows, (T, S, S, 3)."""

    def __init__(self, positions: list[int], cropper: Cropper, out: Clip) -> None:
        self.positions = positions
        self.cropper = cropper
        self.out = out
        self.rows = {position: row for row, position in reversed(list(enumerate(positions)))}

    def repeat(self) -> None:
        """Copy frames that the clip shows again: beyond the end of a short video it is the last."""
        for row, position in enumerate(self.positions):
            if self.rows[position] != row:
                self.out[row] = self.out[self.rows[position]]


def _fill(
    frames: Iterator[tuple[int, VideoFrame]],
    wanted: list[int],
    clips: Sequence[_Reading],
    clock: TimeLimit,
) -> None:
    """Write each frame, in whatever order they come, to all clips that have it."""
    missing = set(wanted)
    for number, frame in frames:
        clock.check()
        for clip in clips:
            if (row := clip.rows.get(number)) is not None:
                clip.cropper(frame, clip.out[row])
        missing.discard(number)
    if missing:
        raise UnreadableVideoError(f"cannot be decoded: frame {min(missing)} does not come out")


def _decode_video(
    path: str,
    record: VideoRecord,
    wanted: list[int],
    threads: int,
    limits: ReadingLimits,
    clock: TimeLimit,
) -> Iterator[tuple[int, VideoFrame]]:
    """(number, frame) of each wanted frame of a video file."""
    assert record.keys is not None
    entries = record.keys[np.searchsorted(record.keys, wanted, "right") - 1]
    skipped = [entry - before > _GAP for before, entry in zip(wanted, entries[1:], strict=False)]
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
    """(number, frame) of frames, the wanted ones among them, from the key frame before the first
    wanted one on.

    A container without an index (MPEG program streams) may land behind the key frame it was asked
    for; then an earlier one is tried, in doubling steps, at last the beginning.
    """
    assert record.keys is not None
    entry = int(np.searchsorted(record.keys, wanted[0], "right")) - 1
    back = 1
    while True:
        opened = open_video(path, threads, streams=record.streams, limits=limits)
        with opened as (container, stream):
            if entry > 0:
                assert record.timestamps is not None
                with contextlib.suppress(av.FFmpegError):  # cannot seek: the beginning will do
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
    """(number, frame) of what comes out of the decoder from where the container stands.

    Frames that no frame refers to and that are not wanted are skipped, but for the first, which
    says where decoding began. Once the packets of all wanted frames are in, no more are read.
    """
    decoder = stream.codec_context
    stamps = range(record.video.frames) if record.timestamps is None else record.timestamps.tolist()
    numbers = dict(zip(stamps, count(), strict=False))
    # Where timestamps do not ascend in the order shown (AVI with B-frames counts packets), a
    # packet's timestamp says nothing about which frames are still to come.
    ordered = record.timestamps is not None and all(map(lt, stamps, stamps[1:]))
    skips = decoder.name in _SKIPPING and decoder.thread_count == 1 and ordered
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
    clips: Sequence[_Reading],
    limits: ReadingLimits,
    clock: TimeLimit,
) -> None:
    """Read JPEG files, decoded at a half, a quarter or an eighth where that still is enough."""
    folder, files = ("", record.files) if record.files is not None else (path, frame_files(path))
    if len(files) != record.video.frames:
        raise UnreadableVideoError(f"has {len(files)} frames, the index says {record.video.frames}")
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
