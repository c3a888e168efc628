"""Scan videos for their records (`VideoRecord`): one, or many in several processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise

import numpy as np
from av.codec.context import CodecContext
from av.container import InputContainer
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream
from numpy.typing import NDArray

from multigrid import Video
from slowfast_patches.datasets.reading.files import (
    MAX_PIXELS,
    frame_files,
    open_video,
    read_jpeg,
    readable,
)
from slowfast_patches.datasets.reading.prepared import GROUP, TAG, split_group
from slowfast_patches.datasets.reading.video_record import Kind, UnreadableVideoError, VideoRecord
from slowfast_patches.utils.machine import available_cores
from slowfast_patches.utils.processes import Died, run_each

__all__ = ["FEW", "KILLER", "missing_frames", "scan", "scan_each"]

FEW = 64
"""Fewer videos are scanned by this process before others have started, which takes 1 to 2 s."""
KILLER = "cannot be scanned: the process that tried was killed, twice; it is not tried again"
"""The reason of a video that no process survives."""

_TRUSTED = {"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"}
"""Containers whose packets carry the time at which their frame is shown. The packets of others may
carry the time of decoding, or none: there, all frames are decoded once to see what comes out."""

_FRAMES_PER_SECOND = 30.0
"""Of a folder of JPEG files, which says nothing of it: the rate at which SSv2's were taken."""


def scan(path: str, max_pixels: int = MAX_PIXELS) -> VideoRecord:
    """The record of a video file or of a folder of JPEG files.

    A video file is read through but not decoded, except for its key frames; containers that say
    when to decode and not when to show are decoded. Frames of more than `max_pixels` are refused.

    Raises:
        UnreadableVideoError: it is no video, is damaged, or too large.
    """
    with readable():
        if os.path.isdir(path):
            return _scan_folder(path, max_pixels)
        with open_video(path, max_pixels=max_pixels) as (container, stream):
            if container.metadata.get("comment") == TAG:
                return _scan_prepared(path, container, stream)
            packets = _Packets(path, container, stream, max_pixels)
        if not packets.trusted or not packets.say_when_shown:
            return _scan_by_decoding(packets)
        timestamps = np.sort(packets.shown)
        keys = np.searchsorted(timestamps, packets.shown[packets.is_key])
        return _record(packets, timestamps, keys)


def missing_frames(path: str) -> int:
    """Frames of a video file that its index puts behind the file's end, as of an MP4 that was not
    copied to its end; 0 for a folder, and for a format without such an index."""
    if os.path.isdir(path):
        return 0
    with open_video(path) as (_, stream):
        size = os.path.getsize(path)
        return sum(entry.pos + entry.size > size for entry in stream.index_entries)


def scan_each(
    paths: Sequence[str], *, workers: int | None = None, max_pixels: int
) -> Generator[tuple[str, VideoRecord | str]]:
    """(path, what `scan` finds or why it cannot) of every path, in no certain order.

    Few videos are scanned by this process; else by `workers` processes, as many as there are cores
    if that is None. A video that kills the process that scans it is unreadable.
    """
    jobs = [(path, max_pixels) for path in paths]
    others = 0 if len(jobs) < FEW else workers or available_cores()
    each = run_each(_try_scan, jobs, others, jobs_per_worker=4)
    with contextlib.closing(each):
        for (path, _), record in each:
            yield path, KILLER if isinstance(record, Died) else record


def _try_scan(job: tuple[str, int]) -> VideoRecord | str:
    """A record, or why there is none: never an error, since hours of others hang on it."""
    try:
        return scan(*job)
    except UnreadableVideoError as error:
        return str(error) or "cannot be read"
    except Exception as error:  # a fault of ours or a library's, in the one place that shows it
        return f"cannot be scanned: {type(error).__name__}: {error}"


class _Packets:
    """The packets of a stream: when their frames are shown, and which of these are key frames."""

    def __init__(
        self, path: str, container: InputContainer, stream: VideoStream, max_pixels: int
    ) -> None:
        stamps = [
            (packet.pts, packet.is_keyframe)
            for packet in container.demux(stream)
            if packet.size and not packet.is_discard
        ]
        if not stamps:
            raise UnreadableVideoError("has no frames")
        self.rate = stream.average_rate or stream.guessed_rate
        self.time_base = stream.time_base
        self.trusted = container.format.name in _TRUSTED
        self.streams = len(container.streams) if self.trusted else 0  # others find them by reading
        self.say_when_shown = None not in (shown := [shown for shown, _ in stamps])
        self.shown = np.array([s or 0 for s in shown], np.int64)
        self.say_when_shown &= len(np.unique(self.shown)) == len(stamps)
        self.is_key = np.array([is_key for _, is_key in stamps])
        self.opened = partial(open_video, path, streams=self.streams, max_pixels=max_pixels)
        """Opens the file anew."""


def _scan_by_decoding(packets: _Packets) -> VideoRecord:
    """Timestamps in the order in which frames come out; key frames where that order is kept.

    Without distinct timestamps frames can only be counted from the beginning.
    """
    with packets.opened() as (container, stream):
        came = [(frame.pts, frame.key_frame) for frame in container.decode(stream)]
    if not came:
        raise UnreadableVideoError("has no frame that decodes")
    stamps = [pts for pts, _ in came if pts is not None]
    if len(set(stamps)) < len(came):
        return _record(packets, np.arange(len(came)), np.array([0]), counted=True)
    timestamps = np.array(stamps, np.int64)
    keys = np.flatnonzero([is_key for _, is_key in came])
    return _record(packets, timestamps, keys)


def _record(
    packets: _Packets,
    timestamps: NDArray[np.int64],
    keys: NDArray[np.int64],
    *,
    counted: bool = False,
) -> VideoRecord:
    rate = packets.rate or _rate(timestamps, packets.time_base)
    if not rate:
        raise UnreadableVideoError("does not say its frame rate")
    with packets.opened() as (container, stream):
        first = next(container.decode(stream), None)
        if first is None:
            raise UnreadableVideoError("has no frame that decodes")
        if not packets.is_key.all():
            keys = np.array(
                [k for k in keys if k and _is_entry(container, stream, int(timestamps[k]))],
                np.int64,
            )
    turns = round(first.rotation / 90) % 4
    width, height = (first.width, first.height)[:: -1 if turns % 2 else 1]
    keys = np.union1d(keys, np.zeros(1, np.int64))
    video = Video(len(timestamps), float(rate), width, height)
    stamps = None if counted else timestamps
    return VideoRecord(Kind.VIDEO, video, turns, stamps, keys, streams=packets.streams)


def _is_entry(container: InputContainer, stream: VideoStream, timestamp: int) -> bool:
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
        for frame in decoder.decode(packet):
            return not frame.is_corrupt
    return False


def _rate(timestamps: NDArray[np.int64], time_base: Fraction | None) -> float:
    """Frames per second from the first to the last; 0 if that cannot be said."""
    ticks = int(np.ptp(timestamps))
    return (len(timestamps) - 1) / float(ticks * time_base) if ticks and time_base else 0.0


def _scan_prepared(path: str, container: InputContainer, stream: VideoStream) -> VideoRecord:
    """Where the groups of a prepared file lie; everything its reader relies on is verified."""
    headers = stream.codec_context.extradata
    packets = [p for p in container.demux(stream) if p.size]
    starts = [p.pos for p in packets if p.is_keyframe]
    frames = len(packets)
    rate = stream.average_rate
    if not headers or not rate or None in starts or len(starts) != -(-frames // GROUP):
        raise UnreadableVideoError(
            "is not prepared, as its comment says: prepare it anew, or remove the comment"
        )
    last = packets[-1].pos
    assert last is not None
    offsets = np.array([*starts, last + packets[-1].size], np.int64)
    with open(path, "rb") as file:
        for number, (begin, end) in enumerate(pairwise(offsets.tolist())):
            file.seek(begin)
            numbers = sorted(p.number for p in split_group(file.read(end - begin)))
            if numbers != list(range(min(GROUP, frames - number * GROUP))):
                raise UnreadableVideoError(f"group {number} of its pictures is not whole")
    video = Video(frames, float(rate), stream.width, stream.height)
    return VideoRecord(Kind.PREPARED, video, offsets=offsets, headers=bytes(headers))


def _scan_folder(path: str, max_pixels: int) -> VideoRecord:
    files = frame_files(path)
    if not files:
        raise UnreadableVideoError("is a folder without JPEG files")
    height, width = read_jpeg(path, files[0], max_pixels=max_pixels).shape[:2]
    return VideoRecord(Kind.FRAMES, Video(len(files), _FRAMES_PER_SECOND, width, height))
