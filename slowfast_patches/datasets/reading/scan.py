"""Scan videos to make their `VideoRecord`s, either one video or many in parallel."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import gt

import av
import numpy as np
from av.codec.context import CodecContext
from av.container import InputContainer
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from multigrid import Video
from slowfast_patches.datasets.reading.containers import (
    check_regular,
    decode_frames,
    decode_packets,
    open_video,
    translate_decode_errors,
)
from slowfast_patches.datasets.reading.damage import describe_damage, is_intact, looks_whole
from slowfast_patches.datasets.reading.jpeg import frame_files, read_jpeg
from slowfast_patches.datasets.reading.limits import LIMITS, ReadingLimits, TimeLimit
from slowfast_patches.datasets.reading.mp4 import count_samples
from slowfast_patches.datasets.reading.orientation import orientation_of
from slowfast_patches.datasets.reading.prepared import GROUP, TAG
from slowfast_patches.datasets.reading.timing import (
    JOINABLE,
    Timing,
    avi_times,
    moments_of,
    timing_of,
)
from slowfast_patches.datasets.reading.truncation import share_present
from slowfast_patches.datasets.reading.video_record import (
    Ints,
    Kind,
    UnreadableVideoError,
    VideoRecord,
)
from slowfast_patches.utils.machine import available_cores
from slowfast_patches.utils.processes import WorkerCrashed, run_each
from slowfast_patches.utils.storage import as_path

FEW = 64
"""Minimum number of videos for which worker processes are started. Starting the processes takes 1
to 2 s, so fewer videos are scanned in the calling process."""
KILLER = "cannot be scanned: the scanning process crashed twice and will not try the video again"
"""Reason given for a video that crashes the process that scans it."""

_TRUSTED = {"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"}
"""Names of the containers whose packets have presentation timestamps.

In other containers, packets may have only decoding timestamps or none at all. Their videos are
decoded completely to get the timestamps of the frames.
"""

_NEARLY_ALL = 0.98
"""Share of the frames above which the number of missing frames is not stated."""
_FRAMES_PER_SECOND = 30.0
"""Assumed frame rate of a folder of JPEG files, which is that of Something-Something V2."""


def scan(path: str, limits: ReadingLimits = LIMITS) -> VideoRecord:
    """Scan a video file or a folder of JPEG files, and return its record.

    Read all packets of a video file, but decode only the key frames. If the container does not
    store presentation timestamps, decode all frames.

    Raises:
        UnreadableVideoError: The path is not a video, or the video is damaged or exceeds a limit.
    """
    record = _scan(path, limits)
    if record.video.frames == 1:
        return replace(record, damage="has only one frame, so all frames of a clip are the same")
    return record


def _scan(path: str, limits: ReadingLimits) -> VideoRecord:
    with translate_decode_errors():
        if as_path(path).is_dir():
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
    """Scan videos in several processes, and yield the results in any order.

    Fewer than 64 videos are scanned in the calling process. A video that crashes the scanning
    process is reported as unreadable.

    Args:
        paths: The videos.
        workers: Number of processes. By default one per core.
        limits: Limits on the videos that may be read.

    Yields:
        The path of a video, and either the record of the video or the reason why the video cannot
        be read.
    """
    jobs = [(path, limits) for path in paths]
    others = 0 if len(jobs) < FEW else workers or available_cores()
    each = run_each(_try_scan, jobs, others, jobs_per_worker=4)
    with contextlib.closing(each):
        for (path, _), record in each:
            yield path, KILLER if isinstance(record, WorkerCrashed) else record


def _try_scan(job: tuple[str, ReadingLimits]) -> VideoRecord | str:
    """Return the record of a video, or the reason why the video cannot be read."""
    try:
        return scan(*job)
    except UnreadableVideoError as error:
        return str(error) or "cannot be read"


def _scan_video(
    path: str, container: InputContainer, stream: VideoStream, limits: ReadingLimits
) -> VideoRecord:
    """Return the record of a video file.

    Take the timestamps from the packets if they are reliable. Otherwise decode the video, and
    include only frames that can be decoded.
    """
    clock = TimeLimit(limits)
    packets = _survey(container, stream, limits, clock)
    if not packets.stamps:
        raise UnreadableVideoError("has no frames")
    trusted = container.format.name in _TRUSTED
    # In other containers, the number of streams is known only after reading part of the file.
    streams = len(container.streams) if trusted else 0
    opened = partial(open_video, path, streams=streams, limits=limits)
    damage = ""
    is_sound = packets.are_whole and packets.are_all
    if trusted and is_sound and packets.are_in_order(stream.codec_context):
        shown = sorted(packets.stamps)
    else:
        with opened() as (again, video_stream):
            shown, damage = _decode_stamps(again, video_stream, limits, clock)
    counted = not _are_distinct(shown)  # then identify frames by counting from the beginning
    if counted:
        shown = [(number, number == 0) for number in range(len(shown))]
    timestamps = np.array([timestamp for timestamp, _ in shown], np.int64)
    with opened() as (again, video_stream):
        first = next(decode_frames(again, video_stream, limits), None)
        if first is None or not shown:
            raise UnreadableVideoError("has no frame that decodes")
        keys = np.flatnonzero([is_key for _, is_key in shown])
        if packets.palettes > 1:
            keys = keys[:0]  # a seek would skip the latest palette
        elif not all(is_key for _, is_key in packets.stamps):
            keys = _entries(again, video_stream, timestamps, keys, clock)
    orientation = orientation_of(first)
    size = orientation.turned_size(first.width, first.height)
    stamps = None if counted else timestamps
    timing = _timing(stream, stamps)
    if timing.times is not None and container.format.name == "avi":
        with opened() as (again, video_stream):
            timing = _timing(stream, avi_times(again, video_stream, timing.times))
    moments = moments_of(timing.times, timing.fps)
    return VideoRecord(
        *(Kind.VIDEO, Video(len(shown), timing.fps, *size, moments), orientation, stamps),
        keys=np.union1d(keys, np.zeros(1, np.int64)),
        streams=streams,
        times=timing.times,
        damage=_truncation(path, container, stream, packets, timing.fps) or damage,
        timing=timing.remark,
    )


@dataclass(frozen=True)
class _Packets:
    """What the packets of a video stream tell without being decoded.

    Attributes:
        stamps: Presentation timestamp of each packet, in decoding order, and whether the packet is
            a key frame.
        palettes: Number of packets with a new palette.
        are_whole: Whether all packets look undamaged.
        are_all: Whether the container could be read to the end of the file.
    """

    stamps: list[tuple[int | None, bool]]
    palettes: int
    are_whole: bool
    are_all: bool

    def are_in_order(self, decoder: VideoCodecContext) -> bool:
        """Return whether the order of the timestamps is the order in which frames are shown.

        Some programs write decoding timestamps in place of presentation timestamps. If the codec
        reorders frames, timestamps that ascend in decoding order are therefore not trusted. For
        MPEG-4, such programs also write other wrong timestamps.
        """
        if not _are_distinct(self.stamps):
            return False
        times = [time for time, _ in self.stamps if time is not None]
        is_reordered = any(map(gt, times, times[1:])) and decoder.name != "mpeg4"
        return is_reordered or not decoder.has_b_frames


def _survey(
    container: InputContainer, stream: VideoStream, limits: ReadingLimits, clock: TimeLimit
) -> _Packets:
    """Read all packets of a video stream."""
    stamps = list[tuple[int | None, bool]]()
    palettes = 0
    are_whole = are_all = True
    is_whole = looks_whole(stream)
    has_palettes = stream.pix_fmt == "pal8"
    try:
        for packet in container.demux(stream):
            clock.check()
            limits.check_bytes(packet.size)
            if not packet.size or packet.is_discard:
                continue
            stamps.append((packet.pts, packet.is_keyframe))
            are_whole = are_whole and is_whole(packet)
            palettes += has_palettes and packet.has_sidedata("palette")
            limits.check_frames(len(stamps))
    except av.InvalidDataError:
        are_all = False
    return _Packets(stamps, palettes, are_whole, are_all)


def _decode_stamps(
    container: InputContainer, stream: VideoStream, limits: ReadingLimits, clock: TimeLimit
) -> tuple[list[tuple[int | None, bool]], str]:
    """Decode a video.

    Returns:
        The timestamp of each frame in display order and whether it is a key frame. Also a
        description of the damage, or an empty string.
    """
    shown = list[tuple[int | None, bool]]()
    total = damaged = 0
    for frame in decode_packets(container, stream, limits):
        clock.check()
        total += 1
        damaged += not is_intact(frame)
        if frame is not None:
            shown.append((frame.pts, frame.key_frame))
    return shown, describe_damage(damaged, total)


def _truncation(
    path: str, container: InputContainer, stream: VideoStream, packets: _Packets, fps: float
) -> str:
    """Describe how many frames of a truncated file are there. Return "" if the file is complete."""
    count = len(packets.stamps)
    if 0 < stream.frames <= count:
        return ""
    share = share_present(path)
    if share == 1 and packets.are_all:
        return ""
    total = stream.frames or round((container.duration or 0) / av.time_base * fps)
    if total <= count:
        total = round(count / share)
    # Some files state only that their last chunk is incomplete.
    known = f"{count} of about {total}" if count < _NEARLY_ALL * total else f"only {count}"
    return f"is truncated: {known} frames are there"


def _are_distinct(stamps: Sequence[tuple[int | None, bool]]) -> bool:
    """Return whether all frames have timestamps, and no two timestamps are equal."""
    times = [timestamp for timestamp, _ in stamps]
    return None not in times and len(set(times)) == len(times)


def _timing(stream: VideoStream, timestamps: Ints | None) -> Timing:
    timing = timing_of(
        timestamps,
        float(stream.time_base or 0),
        float(stream.average_rate or stream.guessed_rate or 0),
        joinable=stream.container.format.name in JOINABLE,
    )
    if timing is None:
        raise UnreadableVideoError("has no frame rate")
    return timing


def _entries(
    container: InputContainer, stream: VideoStream, timestamps: Ints, keys: Ints, clock: TimeLimit
) -> Ints:
    """Return the key frames at which decoding can start, except the first frame."""
    can_start = partial(_is_entry, container, stream, clock=clock)
    return np.array([key for key in keys if key and can_start(int(timestamps[key]))], np.int64)


def _is_entry(
    container: InputContainer, stream: VideoStream, timestamp: int, clock: TimeLimit
) -> bool:
    """Return whether decoding can start at the key frame with this timestamp.

    In some files, frames that depend on earlier frames are marked as key frames. Test the frame
    with a new decoder, because a decoder that has decoded other frames does not notice missing
    references. Do not open the container again, because opening takes longer the more frames it
    has.
    """
    known = stream.codec_context
    decoder = CodecContext.create(known.codec, "r")
    assert isinstance(decoder, VideoCodecContext)
    for name in ("extradata", "width", "height", "codec_tag", "bits_per_coded_sample", "options"):
        setattr(decoder, name, getattr(known, name))
    decoder.thread_count = 1
    with contextlib.suppress(av.InvalidDataError):
        container.seek(timestamp, stream=stream)
        for packet in container.demux(stream):
            clock.check(frames=0)
            for frame in decoder.decode(packet):
                return not frame.is_corrupt
    return False


def _scan_prepared(
    container: InputContainer, stream: VideoStream, limits: ReadingLimits
) -> VideoRecord:
    """Return the record of a prepared file, with the offsets of its groups."""
    packets = [packet for packet in container.demux(stream) if packet.size]
    starts = [number for number, packet in enumerate(packets) if packet.is_keyframe]
    ends = [packet.pos + packet.size for packet in packets if packet.pos is not None]
    headers = stream.codec_context.extradata
    is_whole = starts == list(range(0, len(packets), GROUP)) and len(ends) == len(packets) > 0
    stamps = [(packet.pts, packet.is_keyframe) for packet in packets]
    if not headers or not is_whole or not _are_distinct(stamps):
        raise UnreadableVideoError(
            "is not a prepared file, although its metadata field `comment` says so. Prepare the "
            "video again, or remove the comment"
        )
    offsets = np.array([ends[number] - packets[number].size for number in starts] + ends[-1:])
    limits.check_bytes(int(np.diff(offsets).max()), "a group of frames")
    timing = _timing(stream, np.array([stamp for stamp, _ in sorted(stamps)], np.int64))
    moments = moments_of(timing.times, timing.fps)
    video = Video(len(packets), timing.fps, stream.width, stream.height, moments)
    return VideoRecord(
        Kind.PREPARED,
        video,
        offsets=offsets,
        headers=bytes(headers),
        times=timing.times,
        timing=timing.remark,
    )


def _scan_folder(path: str, limits: ReadingLimits) -> VideoRecord:
    files = frame_files(path)
    if not files:
        raise UnreadableVideoError("is a folder that contains no JPEG files")
    height, width = read_jpeg(path, files[0], limits=limits).shape[:2]
    return VideoRecord(Kind.FRAMES, Video(len(files), _FRAMES_PER_SECOND, width, height))
