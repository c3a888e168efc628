"""Scan videos, one video or many in parallel. Clips are read from scanned videos."""

from __future__ import annotations

import contextlib
import math
import re
import struct
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import gt
from typing import Any, cast

import av
import numpy as np
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from multigrid import Video
from slowfast_patches.datasets.reading.bounds import Header, check_header
from slowfast_patches.datasets.reading.damage import (
    describe_damage,
    describe_damaged_frames,
    describe_error,
    describe_truncation,
)
from slowfast_patches.datasets.reading.entries import find_entries
from slowfast_patches.datasets.reading.frames import frame_files, is_frames
from slowfast_patches.datasets.reading.jpeg import read_jpeg
from slowfast_patches.datasets.reading.prepared import TAG, group_offsets
from slowfast_patches.datasets.reading.scanned_video import (
    UPRIGHT,
    WHOLE,
    Ints,
    Kind,
    Orientation,
    Part,
    ScannedVideo,
)
from slowfast_patches.datasets.reading.survey import MARKS_KEYS, Stamp, Survey
from slowfast_patches.datasets.reading.timing import (
    JOINABLE,
    FrameTiming,
    avi_times,
    moments_of,
    timing_of,
)
from slowfast_patches.datasets.reading.video_file import (
    ErrorLog,
    UnreadableVideoError,
    VideoFile,
    open_video,
    translate_decode_errors,
)
from slowfast_patches.utils.machine import available_cores
from slowfast_patches.utils.processes import WorkerCrashed, run_each

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
FULLY_DECODED = 1 << 21
"""Maximum number of pixels of all frames of a video that is always decoded completely. This takes
about 10 ms."""
_FRAMES_PER_SECOND = 30.0
"""Assumed frame rate of a folder of JPEG files, which is that of Something-Something V2."""
_CROPPING = re.compile(r"Frame Cropping: (\d+)/(\d+)/(\d+)/(\d+)")
"""Left, right, top and bottom margin, in FFmpeg's description of a stream."""


def scan(path: str) -> ScannedVideo:
    """Scan a video file, or the JPEG files that `frame_files` finds.

    Read all packets of a video file, but decode only the key frames. Decode all frames if the
    container does not store presentation timestamps, if it contradicts its content, or if the video
    is small.

    Raises:
        UnreadableVideoError: The path is not a video, or the video is damaged or too large.
    """
    with translate_decode_errors():
        scanned = _scan_folder(path) if is_frames(path) else _scan_file(path)
    if scanned.video.frames == 1:
        return replace(scanned, damage="has only one frame, so all frames of a clip are the same")
    return scanned


def scan_each(
    paths: Sequence[str], workers: int | None = None
) -> Generator[tuple[str, ScannedVideo | str]]:
    """Scan videos in several processes, and yield the results in any order.

    Fewer than 64 videos are scanned in the calling process. A video that crashes the scanning
    process is reported as unreadable.

    Args:
        paths: The videos.
        workers: Number of processes. None means one per core.

    Yields:
        The path of a video, and either the scanned video or the reason why it cannot be read.
    """
    others = 0 if len(paths) < FEW else workers or available_cores()
    with contextlib.closing(run_each(_try_scan, paths, others, jobs_per_worker=4)) as each:
        for path, scanned in each:
            yield path, KILLER if isinstance(scanned, WorkerCrashed) else scanned


def _try_scan(path: str) -> ScannedVideo | str:
    """Scan a video. If it is unreadable, return the reason instead."""
    try:
        return scan(path)
    except UnreadableVideoError as error:
        return str(error)


def _scan_file(path: str) -> ScannedVideo:
    header = check_header(path)
    log = ErrorLog()
    with _open(path, header) as file:
        if file.container.metadata.get("comment") != TAG:
            return _scan_video(file, log, may_be_cropped=header.crops)
        prepared = _scan_prepared(file, log)
        if prepared is not None:
            return prepared
    with _open(path, header) as file:
        # Other programs copy the tag of a prepared file to the files that they make from it.
        return _scan_video(file, log, may_be_cropped=header.crops)


@contextlib.contextmanager
def _open(path: str, header: Header) -> Iterator[VideoFile]:
    """Open a video file. Probe its streams only if the header does not describe them."""
    if header.is_mp4:
        with open_video(path, probes=False) as file:
            stream = file.stream
            is_described = bool(stream.average_rate and stream.width and stream.height)
            if is_described and file.container.format.name in _TRUSTED:
                yield file
                return
    with open_video(path) as file:
        yield file


def _scan_video(file: VideoFile, log: ErrorLog, *, may_be_cropped: bool) -> ScannedVideo:
    """Scan a video file that is not prepared.

    Take the timestamps of the frames from the packets if a quick survey finds no contradiction.
    Otherwise decode the video, and include only frames that can be decoded.
    """
    container = file.container.format.name
    is_trusted = container in _TRUSTED
    # In other containers, the number of streams is known only after reading part of the file.
    streams = len(file.container.streams) if is_trusted else 0
    decoder = file.stream.codec_context
    is_known = decoder.name in MARKS_KEYS or decoder.codec.intra_only
    full = not is_trusted or not is_known or _is_small(file)
    found = Survey(file, log, full=full, checks_keys=is_trusted)
    if not found.is_full and (found.has_doubts or not _are_in_order(found, file)):
        log = ErrorLog()
        with open_video(file.path, probes=not streams) as again:
            found = Survey(again, log, full=True, checks_keys=is_trusted)
    shown = found.frames if found.is_full else sorted(found.packets)
    first = found.first or _first_frame(file.path, streams)
    if first is None or not shown:
        raise UnreadableVideoError(f"has no frame that decodes{_because(found.error)}")
    timestamps: Ints | None = None  # then identify frames by counting from the beginning
    if _are_distinct(shown):
        timestamps = np.array([time for time, _ in shown], np.int64)
    times = timestamps
    if container == "avi" and timestamps is not None:
        times = avi_times(found.decoding_times, timestamps, reorders=file.reorders)
    timing = _timing(file, times)
    if is_trusted and timestamps is not None and np.any(np.diff(timestamps) < 0):
        order = "has timestamps that contradict the order of its frames"
        timing = timing._replace(remark=" and ".join(filter(None, [order, timing.remark])))
    orientation = orientation_of(first)
    crop = crop_of(file, first) if may_be_cropped else WHOLE
    size = orientation.turned_size(*crop.size(first.width, first.height))
    end = found.last * float(file.stream.time_base or 0) + 1 / timing.fps
    scanned = ScannedVideo(
        Kind.VIDEO,
        Video(len(shown), timing.fps, *size, moments_of(timing.times, timing.fps)),
        orientation,
        timestamps,
        keys=np.zeros(1, np.int64),
        streams=streams,
        times=timing.times,
        crop=crop,
        is_in_step=_is_in_step(found),
        damage=describe_truncation(file, found, end) or describe_damage(found),
        timing=timing.remark,
    )
    return replace(
        scanned,
        keys=find_entries(file.path, scanned, found, is_known=is_known, is_trusted=is_trusted),
    )


def _is_small(file: VideoFile) -> bool:
    """Return whether a video has so few pixels that decoding all of them takes little time."""
    stream = file.stream
    seconds = (file.container.duration or 0) / av.time_base
    frames = stream.frames or seconds * float(stream.average_rate or 0)
    return 0 < frames * stream.width * stream.height <= FULLY_DECODED


def _are_in_order(found: Survey, file: VideoFile) -> bool:
    """Return whether sorting packets by timestamp gives the order in which frames are shown.

    Some programs write decoding timestamps in place of presentation timestamps. If the codec
    reorders frames, timestamps that ascend in decoding order are therefore not trusted. For
    MPEG-4, such programs also write other wrong timestamps.
    """
    if not _are_distinct(found.packets):
        return False
    times = [time for time, _ in found.packets if time is not None]
    if any(map(gt, times, times[1:])) and file.stream.codec_context.name != "mpeg4":
        return True
    if not file.reorders or file.is_probed:
        return not file.reorders
    with open_video(file.path) as probed:
        return not probed.reorders


def _is_in_step(found: Survey) -> bool:
    """Return whether each packet holds one frame, whose timestamp is that of the packet."""
    if not found.is_full:
        return True
    lost = len(found.packets) - len(found.frames)
    times = {time for time, _ in found.packets}
    return lost <= found.failed and all(time in times for time, _ in found.frames)


def _first_frame(path: str, streams: int) -> VideoFrame | None:
    with open_video(path, probes=not streams) as file:
        return next(file.frames(), None)


def _because(error: str) -> str:
    return f": FFmpeg reports {error!r}" if error else ""


def _are_distinct(stamps: Sequence[Stamp]) -> bool:
    """Return whether all frames have timestamps, and no two timestamps are equal."""
    times = {time for time, _ in stamps}
    return None not in times and len(times) == len(stamps)


def _timing(file: VideoFile, timestamps: Ints | None) -> FrameTiming:
    timing = timing_of(
        timestamps,
        float(file.stream.time_base or 0),
        float(file.stream.average_rate or file.stream.guessed_rate or 0),
        joinable=file.container.format.name in JOINABLE,
    )
    if timing is None:
        raise UnreadableVideoError("has no frame rate")
    return timing


def _scan_prepared(file: VideoFile, log: ErrorLog) -> ScannedVideo | None:
    """Scan a prepared file. Return None if the file is not in the prepared form."""
    stream = file.stream
    packets = [packet for packet in file.packets() if packet.size]
    offsets = group_offsets(stream, packets)
    if offsets is None:
        return None
    timing = _timing(file, np.array(sorted(cast(int, p.pts) for p in packets), np.int64))
    moments = moments_of(timing.times, timing.fps)
    damage = _decode_all(file, packets, log) if _is_small(file) else ""
    return ScannedVideo(
        Kind.PREPARED,
        Video(len(packets), timing.fps, stream.width, stream.height, moments),
        offsets=offsets,
        headers=bytes(stream.codec_context.extradata or b""),
        times=timing.times,
        damage=damage,
        timing=timing.remark,
    )


def _decode_all(file: VideoFile, packets: Iterable[Packet[VideoStream]], log: ErrorLog) -> str:
    """Decode packets, and return a description of their damage, or ""."""
    frames = [frame for packet in (*packets, None) for frame in file.decode(packet)]
    damaged = sum(frame is None or frame.is_corrupt for frame in frames)
    return describe_damaged_frames(damaged, len(frames)) or describe_error(log.new())


def _scan_folder(path: str) -> ScannedVideo:
    files = frame_files(path)
    height, width = read_jpeg("", files[0]).shape[:2]
    return ScannedVideo(Kind.FRAMES, Video(len(files), _FRAMES_PER_SECOND, width, height))


def orientation_of(frame: VideoFrame) -> Orientation:
    """Return the orientation in the display matrix of a frame.

    The matrix (a b u, c d v, x y w) moves a stored point (p, q) to (ap + cq + x, bp + dq + y). Its
    rotation is rounded to a multiple of 90 degrees.
    """
    matrix: Any = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return UPRIGHT
    a, b, _, c, d = struct.unpack_from("=5i", matrix)
    mirrored = a * d < b * c
    sign = -1 if mirrored else 1
    return Orientation(round(math.atan2(-sign * b, sign * a) / (math.pi / 2)) % 4, mirrored)


def crop_of(file: VideoFile, frame: VideoFrame) -> Part:
    """Return the part of the stored picture that is shown according to the container.

    mp4 files have a clean aperture, and Matroska files have a crop. PyAV gives access to them only
    through FFmpeg's description of the file.
    """
    level = av.logging.get_level()
    av.logging.set_level(av.logging.INFO)
    try:
        container: Any = file.container  # PyAV's type stubs lack this method
        text = container.dumps_format()
    finally:
        av.logging.set_level(level)
    _, _, described = text.partition(f"Stream #0:{file.stream.index}")
    margins = _CROPPING.search(described.partition("Stream #")[0])
    if margins is None:
        return WHOLE
    left, right, top, bottom = map(int, margins.groups())
    width, height = frame.width - left - right, frame.height - top - bottom
    if width <= 0 or height <= 0:
        return WHOLE
    return Part(left / frame.width, top / frame.height, width / frame.width, height / frame.height)
