"""Scan videos for their records (`VideoRecord`): one, or many in several processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from av.codec.context import CodecContext
from av.container import InputContainer
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream
from numpy.typing import NDArray

from multigrid import Video
from slowfast_patches.datasets.reading.damage import missing_frames, whole_units
from slowfast_patches.datasets.reading.files import (
    check_regular,
    frame_files,
    open_video,
    read_jpeg,
    readable,
)
from slowfast_patches.datasets.reading.limits import LIMITS, ReadingLimits, TimeLimit
from slowfast_patches.datasets.reading.mp4 import count_samples
from slowfast_patches.datasets.reading.prepared import GROUP, TAG
from slowfast_patches.datasets.reading.video_record import Kind, UnreadableVideoError, VideoRecord
from slowfast_patches.utils.machine import available_cores
from slowfast_patches.utils.processes import Died, run_each

__all__ = ["FEW", "KILLER", "scan", "scan_each"]

FEW = 64
"""Fewer videos are scanned by this process before others have started, which takes 1 to 2 s."""
KILLER = "cannot be scanned: the process that tried was killed, twice; it is not tried again"
"""The reason of a video that no process survives."""

_TRUSTED = {"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"}
"""Containers whose packets carry the time at which their frame is shown. The packets of others may
carry the time of decoding, or none: there, all frames are decoded once to see what comes out."""

_FRAMES_PER_SECOND = 30.0
"""Of a folder of JPEG files, which says nothing of it: the rate at which SSv2's were taken."""


def scan(path: str, limits: ReadingLimits = LIMITS) -> VideoRecord:
    """The record of a video file or of a folder of JPEG files.

    A video file is read through but not decoded, except for its key frames; containers that say
    when to decode and not when to show are decoded. What is beyond the limits is refused.

    Raises:
        UnreadableVideoError: it is no video, is damaged, or too large.
    """
    record = _scan(path, limits)
    if record.video.frames == 1:
        return replace(record, damage="has one frame, of which every clip is made")
    return record


def _scan(path: str, limits: ReadingLimits) -> VideoRecord:
    with readable():
        if os.path.isdir(path):
            return _scan_folder(path, limits)
        check_regular(path)
        limits.check_frames(count_samples(path, limits.frames))
        with open_video(path, limits=limits) as (container, stream):
            if container.metadata.get("comment") == TAG:
                return _scan_prepared(container, stream, limits)
            return _scan_video(path, container, stream, limits)


def scan_each(
    paths: Sequence[str], *, workers: int | None = None, limits: ReadingLimits
) -> Generator[tuple[str, VideoRecord | str]]:
    """(path, what `scan` finds or why it cannot) of every path, in no certain order.

    Few videos are scanned by this process; else by `workers` processes, as many as there are cores
    if that is None. A video that kills the process that scans it is unreadable.
    """
    jobs = [(path, limits) for path in paths]
    others = 0 if len(jobs) < FEW else workers or available_cores()
    each = run_each(_try_scan, jobs, others, jobs_per_worker=4)
    with contextlib.closing(each):
        for (path, _), record in each:
            yield path, KILLER if isinstance(record, Died) else record


def _try_scan(job: tuple[str, ReadingLimits]) -> VideoRecord | str:
    """Return the record of a video, or why it cannot be read."""
    try:
        return scan(*job)
    except UnreadableVideoError as error:
        return str(error) or "cannot be read"


def _scan_video(
    path: str, container: InputContainer, stream: VideoStream, limits: ReadingLimits
) -> VideoRecord:
    """The record of a video file by its packets or, where these do not say when their frames are
    shown, by its decoded frames."""
    clock = TimeLimit(limits)
    is_whole = whole_units(stream)
    packets = list[tuple[int | None, bool]]()
    broken = list[int]()
    seen = 0
    for packet in container.demux(stream):
        clock.check()
        limits.check_bytes(packet.size)
        seen += packet.size > 0
        if packet.size and not packet.is_discard:
            if not is_whole(packet):
                broken.append(len(packets))
            packets.append((packet.pts, packet.is_keyframe))
            limits.check_frames(len(packets))
    if not packets:
        raise UnreadableVideoError("has no frames")
    damage = ""
    if seen < stream.frames and (missing := missing_frames(path, stream)):
        damage = f"is cut off: {missing} of its frames are missing"
    elif broken:
        counts = f"{len(broken)} of {len(packets)} frames"
        damage = f"cannot be decoded whole: {counts} are damaged, the first is frame {broken[0]}"
    trusted = container.format.name in _TRUSTED
    streams = len(container.streams) if trusted else 0  # others find them by reading
    opened = partial(open_video, path, streams=streams, limits=limits)
    if trusted and _are_distinct(packets):
        shown = sorted(packets)
    else:
        with opened() as (again, its_stream):
            shown = []
            for frame in again.decode(its_stream):
                clock.check()
                shown.append((frame.pts, frame.key_frame))
    counted = not _are_distinct(shown)  # then frames can only be counted from the beginning
    if counted:
        shown = [(number, number == 0) for number in range(len(shown))]
    timestamps = np.array([timestamp for timestamp, _ in shown], np.int64)
    keys = np.flatnonzero([is_key for _, is_key in shown])
    with opened() as (again, its_stream):
        first = next(again.decode(its_stream), None)
        if first is None or not shown:
            raise UnreadableVideoError("has no frame that decodes")
        if not all(is_key for _, is_key in packets):
            entries = (
                k for k in keys if k and _is_entry(again, its_stream, int(timestamps[k]), clock)
            )
            keys = np.fromiter(entries, np.int64)
    turns = round(first.rotation / 90) % 4
    width, height = (first.width, first.height)[:: -1 if turns % 2 else 1]
    video = Video(len(shown), _frame_rate(stream, timestamps), width, height)
    keys = np.union1d(keys, np.zeros(1, np.int64))
    stamps = None if counted else timestamps
    return VideoRecord(Kind.VIDEO, video, turns, stamps, keys, streams=streams, damage=damage)


def _are_distinct(stamps: Sequence[tuple[int | None, bool]]) -> bool:
    """Whether there are timestamps that tell the frames apart."""
    times = [timestamp for timestamp, _ in stamps]
    return None not in times and len(set(times)) == len(times)


def _frame_rate(stream: VideoStream, timestamps: NDArray[np.int64]) -> float:
    """Frames per second, as the file says or else from the first to the last."""
    if rate := stream.average_rate or stream.guessed_rate:
        return float(rate)
    ticks = int(np.ptp(timestamps))
    if not ticks or not stream.time_base:
        raise UnreadableVideoError("does not say its frame rate")
    return (len(timestamps) - 1) / (ticks * float(stream.time_base))


def _is_entry(
    container: InputContainer, stream: VideoStream, timestamp: int, clock: TimeLimit
) -> bool:
    """Whether decoding may begin at a key frame: some are none, or lean on what came before.

    The decoder is a new one, since one that saw other frames does not notice what is missing. The
    container is not: opening it takes as long as it has frames.
    """
    known = stream.codec_context
    decoder = CodecContext.create(known.codec, "r")
    assert isinstance(decoder, VideoCodecContext)
    for name in ("extradata", "width", "height", "codec_tag", "bits_per_coded_sample", "options"):
        setattr(decoder, name, getattr(known, name))
    decoder.thread_count = 1
    container.seek(timestamp, stream=stream)
    for packet in container.demux(stream):
        clock.check(frames=0)
        for frame in decoder.decode(packet):
            return not frame.is_corrupt
    return False


def _scan_prepared(
    container: InputContainer, stream: VideoStream, limits: ReadingLimits
) -> VideoRecord:
    """Where the groups of a prepared file lie."""
    packets = [packet for packet in container.demux(stream) if packet.size]
    starts = [number for number, packet in enumerate(packets) if packet.is_keyframe]
    ends = [packet.pos + packet.size for packet in packets if packet.pos is not None]
    headers = stream.codec_context.extradata
    rate = stream.average_rate
    is_whole = starts == list(range(0, len(packets), GROUP)) and len(ends) == len(packets) > 0
    if not headers or not rate or not is_whole:
        raise UnreadableVideoError(
            "is not prepared, as its comment says: prepare it anew, or remove the comment"
        )
    offsets = np.array([ends[number] - packets[number].size for number in starts] + ends[-1:])
    limits.check_bytes(int(np.diff(offsets).max()), "a group of frames")
    video = Video(len(packets), float(rate), stream.width, stream.height)
    return VideoRecord(Kind.PREPARED, video, offsets=offsets, headers=bytes(headers))


def _scan_folder(path: str, limits: ReadingLimits) -> VideoRecord:
    files = frame_files(path)
    if not files:
        raise UnreadableVideoError("is a folder without JPEG files")
    height, width = read_jpeg(path, files[0], limits=limits).shape[:2]
    return VideoRecord(Kind.FRAMES, Video(len(files), _FRAMES_PER_SECOND, width, height))
