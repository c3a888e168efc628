"""Scan videos, one video or many in parallel. Clips are read from scanned videos."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import gt
from typing import NamedTuple

import numpy as np
from av.codec.context import CodecContext
from av.video.codeccontext import VideoCodecContext

from multigrid import Video
from slowfast_patches.datasets.reading.damage import describe_truncation, looks_whole
from slowfast_patches.datasets.reading.errors import (
    DEMUX_ERRORS,
    UnreadableVideoError,
    translate_decode_errors,
)
from slowfast_patches.datasets.reading.frames import frame_files, is_frames
from slowfast_patches.datasets.reading.jpeg import read_jpeg
from slowfast_patches.datasets.reading.pixels import orientation_of
from slowfast_patches.datasets.reading.prepared import GROUP, TAG
from slowfast_patches.datasets.reading.scanned_video import Ints, Kind, ScannedVideo
from slowfast_patches.datasets.reading.timing import (
    JOINABLE,
    Timing,
    avi_times,
    moments_of,
    timing_of,
)
from slowfast_patches.datasets.reading.video_file import VideoFile, open_video
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
_FRAMES_PER_SECOND = 30.0
"""Assumed frame rate of a folder of JPEG files, which is that of Something-Something V2."""

_Stamps = list[tuple[int | None, bool]]
"""Timestamp of each frame, and whether the frame is a key frame."""


def scan(path: str) -> ScannedVideo:
    """Scan a video file, or the JPEG files that `frame_files` finds.

    Read all packets of a video file, but decode only the key frames. If the container does not
    store presentation timestamps, decode all frames.

    Raises:
        UnreadableVideoError: The path is not a video, or the video is damaged or too large.
    """
    with translate_decode_errors():
        if is_frames(path):
            scanned = _scan_folder(path)
        else:
            with open_video(path) as file:
                is_prepared = file.container.metadata.get("comment") == TAG
                scanned = _scan_prepared(file) if is_prepared else _scan_video(file)
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
        workers: Number of processes. None stands for one per core.

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


def _scan_video(file: VideoFile) -> ScannedVideo:
    """Scan a video file that is not prepared.

    Take the timestamps from the packets if they are reliable. Otherwise decode the video, and
    include only frames that can be decoded.
    """
    packets = _read_packets(file)
    container = file.container.format.name
    is_trusted = container in _TRUSTED
    # In other containers, the number of streams is known only after reading part of the file.
    streams = len(file.container.streams) if is_trusted else 0
    again = partial(open_video, file.path, streams=streams)
    damage = ""
    if is_trusted and packets.are_sound and packets.are_in_order(file.stream.codec_context):
        shown = sorted(packets.stamps)
    else:
        with again() as decoded:
            shown, damage = _decode_stamps(decoded)
    timestamps: Ints | None = None  # then identify frames by counting from the beginning
    if _are_distinct(shown):
        timestamps = np.array([timestamp for timestamp, _ in shown], np.int64)
    keys: Ints = np.zeros(1, np.int64)
    with again() as decoded:
        first = next(decoded.frames(), None)
        if first is None or not shown:
            raise UnreadableVideoError("has no frame that decodes")
        if timestamps is not None and packets.palettes <= 1:  # a seek skips the latest palette
            marked = np.flatnonzero([is_key for _, is_key in shown])
            if len(marked) < len(shown):
                marked = _entries(decoded, timestamps, marked)
            keys = np.union1d(keys, marked)
    times = timestamps
    if container == "avi" and timestamps is not None:
        times = avi_times(packets.decoding_times, timestamps, file.stream.codec_context)
    timing = _timing(file, times)
    orientation = orientation_of(first)
    size = orientation.turned_size(first.width, first.height)
    end = packets.last * float(file.stream.time_base or 0) + 1 / timing.fps
    return ScannedVideo(
        Kind.VIDEO,
        Video(len(shown), timing.fps, *size, moments_of(timing.times, timing.fps)),
        orientation,
        timestamps,
        keys=keys,
        streams=streams,
        times=timing.times,
        damage=describe_truncation(file, len(packets.stamps), end) or damage,
        timing=timing.remark,
    )


class _Packets(NamedTuple):
    """Properties of a video stream that can be read from its packets without decoding them.

    Attributes:
        stamps: Presentation timestamps, in decoding order.
        decoding_times: Decoding timestamps.
        last: The largest of all timestamps, or 0 if there are none.
        palettes: Number of packets with a new palette.
        are_sound: Whether all packets look undamaged, up to the end of the file.
    """

    stamps: _Stamps
    decoding_times: list[int | None]
    last: int
    palettes: int
    are_sound: bool

    def are_in_order(self, decoder: VideoCodecContext) -> bool:
        """Return whether sorting frames by timestamp gives the order in which they are shown.

        Some programs write decoding timestamps in place of presentation timestamps. If the codec
        reorders frames, timestamps that ascend in decoding order are therefore not trusted. For
        MPEG-4, such programs also write other wrong timestamps.
        """
        if not _are_distinct(self.stamps):
            return False
        times = [time for time, _ in self.stamps if time is not None]
        is_reordered = any(map(gt, times, times[1:])) and decoder.name != "mpeg4"
        return is_reordered or not decoder.has_b_frames


def _read_packets(file: VideoFile) -> _Packets:
    """Read all packets of a video stream."""
    stamps: _Stamps = []
    decoding_times = list[int | None]()
    last = palettes = 0
    are_sound = True
    is_whole = looks_whole(file.stream)
    has_palettes = file.stream.pix_fmt == "pal8"
    try:
        for packet in file.container.demux(file.stream):
            last = max(last, packet.pts or 0, packet.dts or 0)
            if not packet.size or packet.is_discard:
                continue
            stamps.append((packet.pts, packet.is_keyframe))
            decoding_times.append(packet.dts)
            are_sound = are_sound and is_whole(packet)
            palettes += has_palettes and packet.has_sidedata("palette")
    except DEMUX_ERRORS:
        are_sound = False
    return _Packets(stamps, decoding_times, last, palettes, are_sound)


def _decode_stamps(file: VideoFile) -> tuple[_Stamps, str]:
    """Decode a video to get the timestamps of its frames.

    Returns:
        The timestamps in display order, and a description of the damage or an empty string.
    """
    shown: _Stamps = []
    total = damaged = 0
    for frame in chain.from_iterable(map(file.decode, file.packets())):
        total += 1
        damaged += frame is None or frame.is_corrupt
        if frame is not None:
            shown.append((frame.pts, frame.key_frame))
    if not damaged:
        return shown, ""
    return shown, f"cannot be decoded completely: {damaged} of {total} frames are damaged"


def _are_distinct(stamps: _Stamps) -> bool:
    """Return whether all frames have timestamps, and no two timestamps are equal."""
    times = {timestamp for timestamp, _ in stamps}
    return None not in times and len(times) == len(stamps)


def _timing(file: VideoFile, timestamps: Ints | None) -> Timing:
    timing = timing_of(
        timestamps,
        float(file.stream.time_base or 0),
        float(file.stream.average_rate or file.stream.guessed_rate or 0),
        joinable=file.container.format.name in JOINABLE,
    )
    if timing is None:
        raise UnreadableVideoError("has no frame rate")
    return timing


def _entries(file: VideoFile, timestamps: Ints, keys: Ints) -> Ints:
    """Return the key frames at which decoding can start, except the first frame."""
    return np.array([k for k in keys if k and _is_entry(file, int(timestamps[k]))], np.int64)


def _is_entry(file: VideoFile, timestamp: int) -> bool:
    """Return whether decoding can start at the key frame with this timestamp.

    In some files, frames that depend on earlier frames are marked as key frames. Test the frame
    with a new decoder, because a decoder that has decoded other frames does not notice missing
    references. Do not open the container again, because opening takes longer the more frames it
    has.
    """
    known = file.stream.codec_context
    decoder = CodecContext.create(known.codec, "r")
    assert isinstance(decoder, VideoCodecContext)
    for name in ("extradata", "width", "height", "codec_tag", "bits_per_coded_sample", "options"):
        setattr(decoder, name, getattr(known, name))
    decoder.thread_count = 1
    with contextlib.suppress(*DEMUX_ERRORS):
        file.container.seek(timestamp, stream=file.stream)
        for packet in file.container.demux(file.stream):
            for frame in decoder.decode(packet):
                return not frame.is_corrupt
    return False


def _scan_prepared(file: VideoFile) -> ScannedVideo:
    """Scan a prepared file. The result has the offsets of its groups."""
    stream = file.stream
    packets = [packet for packet in file.container.demux(stream) if packet.size]
    starts = [number for number, packet in enumerate(packets) if packet.is_keyframe]
    stamps = [packet.pts for packet in packets if packet.pts is not None]
    headers = stream.codec_context.extradata
    is_whole = starts == list(range(0, len(packets), GROUP)) and len(packets) == len(stamps) > 0
    if not headers or not is_whole:
        raise UnreadableVideoError(
            "is not a prepared file, although its metadata field `comment` says so. Prepare the "
            "video again, or remove the comment"
        )
    ends = [(packet.pos or 0) + packet.size for packet in packets]
    begins = [ends[number] - packets[number].size for number in starts]
    timing = _timing(file, np.array(sorted(stamps), np.int64))
    moments = moments_of(timing.times, timing.fps)
    return ScannedVideo(
        Kind.PREPARED,
        Video(len(packets), timing.fps, stream.width, stream.height, moments),
        offsets=np.array([*begins, ends[-1]]),
        headers=bytes(headers),
        times=timing.times,
        timing=timing.remark,
    )


def _scan_folder(path: str) -> ScannedVideo:
    files = frame_files(path)
    height, width = read_jpeg("", files[0]).shape[:2]
    return ScannedVideo(Kind.FRAMES, Video(len(files), _FRAMES_PER_SECOND, width, height))
