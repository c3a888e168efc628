"""Detect videos that can be decoded only in part: truncated files, and files with damage."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import av
from av.packet import Packet
from av.stream import Discard
from av.video.stream import VideoStream

from slowfast_patches.datasets.reading.video_file import DEMUX_ERRORS, VideoFile, open_video

if TYPE_CHECKING:
    from slowfast_patches.datasets.reading.survey import Survey

logger = logging.getLogger(__name__)

_LENGTH_SIZES = {"h264": 4, "hevc": 21}
"""Offset of the header byte that contains the size of the length fields, by the name of the codec.

In mp4 and Matroska files, each unit of these codecs begins with its length.
"""
_BEGIN = 8
"""Number of bytes at the beginning of a packet of other codecs, of which one must not be zero."""
_TS_PACKETS = (188, 192, 204)
"""Sizes of the packets in an MPEG transport stream."""
_FRAMES_ONLY = {"yuv4mpegpipe", "dv"}
"""Names of the containers in which nothing follows the last frame."""
_WITHOUT_DURATION = frozenset(
    {"mpegts", "mpeg", "mpegvideo", "h264", "hevc", "m4v", "vc1", "mjpeg"}
)
"""Names of the containers without a duration. FFmpeg computes one from the last timestamps, which
is wrong if timestamps start again from 0."""
_MP4 = "mov,mp4,m4a,3gp,3g2,mj2"
_OF_STREAM = {_MP4, "avi"}
"""Names of the containers whose header states the duration of each stream."""
_NEARLY_ALL = 0.98
"""A video is complete if it lasts at least this share of the duration in the file's header."""
_MIN_MISSING = 0.5
"""A video is complete if less than this many seconds are missing: the sound may be longer."""

_GIF_PICTURE = re.compile(rb"\x21\xf9\x04.{4}\x00[\x21\x2c]", re.DOTALL)

_warned = dict[str, str]()
"""The damage that was found when clips were read, by the path of the file."""


def looks_whole(stream: VideoStream) -> Callable[[Packet[VideoStream]], bool]:
    """Return a function that guesses whether a packet is undamaged, without decoding it."""
    place = _LENGTH_SIZES.get(stream.codec_context.name, 0)
    header = stream.codec_context.extradata or b""
    if place and len(header) > place and header[0] == 1:
        size = (header[place] & 3) + 1
        return lambda packet: _has_whole_units(memoryview(packet), size)
    return lambda packet: not packet.is_corrupt and any(memoryview(packet)[:_BEGIN])


def has_swallowed(packet: Packet[VideoStream]) -> bool:
    """Return whether a damaged GIF picture has absorbed the data of later pictures.

    Each picture of an animation begins with a graphic control extension (GIF89a, 23).
    """
    return len(_GIF_PICTURE.findall(bytes(packet))) > 1


def _has_whole_units(data: memoryview, size: int) -> bool:
    """Return whether a packet consists of complete units with length fields of `size` bytes."""
    position = 0
    while position < len(data):
        length = int.from_bytes(data[position : position + size])
        if length == 0:
            return False
        position += size + length
    return position == len(data)


def describe_truncation(file: VideoFile, found: Survey, end: float) -> str:
    """Describe how many frames a truncated file still has. Return "" if the file looks complete.

    Args:
        file: The video file.
        found: The survey of the file.
        end: Time of the end of the last frame, in seconds.
    """
    count = len(found.packets)
    stated = _stated_duration(file)
    end -= _begin(file, found)
    needed = min(_NEARLY_ALL * stated, stated - _MIN_MISSING)
    if end < needed and not _others_last(file, needed):
        total = round(count * stated / end)
        return f"is truncated: {count} of about {total} frames are there"
    size = file.container.size
    has_part = file.container.format.name == "mpegts" and all(size % each for each in _TS_PACKETS)
    has_part |= file.container.format.name in _FRAMES_ONLY and found.end != size
    # FFmpeg ignores the duration of an ASF file if its size is not the size in its header.
    if has_part or (file.container.format.name == "asf" and not stated):
        return f"is truncated: only {count} frames are there"
    return ""


def describe_damage(found: Survey) -> str:
    """Describe the damage that a survey of a video found. Return "" if it found none."""
    if found.damaged:
        return describe_damaged_frames(found.damaged, len(found.frames) + found.failed)
    if not found.begins_with_key:
        lost = len(found.packets) - len(found.frames)
        return f"begins without a key frame, so {lost} of {len(found.packets)} frames are missing"
    return describe_error(found.error)


def describe_damaged_frames(damaged: int, total: int) -> str:
    """Describe how many frames are damaged. Return "" if none is."""
    if not damaged:
        return ""
    return f"cannot be decoded completely: {damaged} of {total} frames are damaged"


def describe_error(error: str) -> str:
    """Describe an error that FFmpeg has logged. Return "" if there is none."""
    return f"is damaged: FFmpeg reports {error!r}" if error else ""


def warn_of_damage(path: str, what: str) -> None:
    """Warn about damage that was found when a clip was read, once per file and process."""
    if path not in _warned:
        _warned[path] = what
        logger.warning("%s is damaged: %s. Its clips may show wrong pictures", path, what)


def damage_found(path: str) -> str:
    """Return the damage that `warn_of_damage` has described, or "" if there is none."""
    return _warned.get(path, "")


def forget_damage(path: str) -> None:
    """Forget the damage of a file, because the file has changed."""
    _warned.pop(path, None)


def _others_last(file: VideoFile, seconds: float) -> bool:
    """Return whether another stream lasts as long as the stated duration.

    Most headers state only the duration of the longest stream. If that is sound, a video that ends
    earlier may be complete. This reads the file again, so it is only called in doubt.
    """
    if file.format in _OF_STREAM:
        return False
    with open_video(file.path) as again, contextlib.suppress(*DEMUX_ERRORS):
        others = [stream for stream in again.container.streams if stream is not again.stream]
        again.stream.discard = Discard.all
        for stream in others:
            stream.discard = Discard.default
        for packet in again.container.demux(others) if others else ():
            end = (packet.pts or packet.dts or 0) + (packet.duration or 0)
            if end * float(packet.time_base or 0) >= seconds:
                return True
    return False


def _begin(file: VideoFile, found: Survey) -> float:
    """Return the time in seconds from which the stated duration is counted.

    The duration of an mp4 stream counts from its first frame, and that of a container from time 0.
    """
    if file.format != _MP4:
        return 0
    first = min((stamp.time or 0 for stamp in found.packets), default=0)
    return max(0, first * float(file.stream.time_base or 0))


def _stated_duration(file: VideoFile) -> float:
    """Return the duration in seconds that the header of a file states, or 0 if it states none."""
    stream = file.stream
    if file.container.format.name in _WITHOUT_DURATION:
        return 0
    if file.container.format.name == "avi" and stream.average_rate:
        return float(stream.frames / stream.average_rate)
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return (file.container.duration or 0) / av.time_base
