"""Open video files and JPEG files; whatever is wrong with them is an UnreadableVideoError."""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterator
from typing import Any, cast

import av
import cv2
import numpy as np
from av.container import InputContainer
from av.stream import Discard
from av.video.stream import VideoStream
from numpy.typing import NDArray

from slowfast_patches.datasets.reading.limits import LIMITS, ReadingLimits
from slowfast_patches.datasets.reading.video_record import UnreadableVideoError

__all__ = [
    "CONTAINERS",
    "check_regular",
    "frame_files",
    "jpeg_size",
    "open_video",
    "read_jpeg",
    "readable",
    "video_files",
    "video_name",
]

CONTAINERS = (
    *("mov", "matroska", "avi", "mpeg", "mpegts", "asf", "flv", "ogg", "mxf", "gxf", "nut", "rm"),
    *("wtv", "dv", "ivf", "obu", "gif", "mjpeg", "mpegvideo", "m4v", "h264", "hevc", "vc1"),
    "yuv4mpegpipe",
)
"""FFmpeg demuxers of self-contained files. The others follow playlists to other files, draw the
letters of a text, or take a file's name for a pattern."""

_RAISED = (av.FFmpegError, cv2.error, OSError, EOFError, MemoryError)
"""Errors that damaged files cause. Others, such as TypeError, are bugs and end the run."""
_LENIENT: dict[str, Any] = (
    {"metadata_errors": "replace"} if av.__version__.startswith("18.") else {}
)
"""Arguments of `av.open` that accept metadata of no known encoding; PyAV 19 always does."""
_JPEG = (".jpg", ".jpeg")
_VIDEOS = (
    *(".3gp", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts"),
    *(".ogv", ".ts", ".webm", ".wmv"),
)
_FFMPEG_PIXELS = 2**31 - 1
"""The largest bound that it takes; its own is lower."""
_FRAME_HEADERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = frozenset([0x00, 0x01, *range(0xD0, 0xDA), 0xFF])
_JPEG_BEGIN = b"\xff\xd8"
_JPEG_SCAN = b"\xff\xda"
_MOST_SCANS = 256
"""Progressive files have about ten; each is a pass over all of the picture."""
_JPEG_END = b"\xff\xd9"
"""Its last marker (ITU-T T.81): a file without it was cut off, which decoders fill with grey."""


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """Turn what PyAV, OpenCV and the system raise inside into `UnreadableVideoError`."""
    try:
        yield
    except UnreadableVideoError:
        raise
    except _RAISED as error:
        raise UnreadableVideoError(f"cannot be decoded: {_reason(error)}") from error


@contextlib.contextmanager
def open_video(
    path: str, threads: int = 1, *, streams: int = 0, limits: ReadingLimits = LIMITS
) -> Iterator[tuple[InputContainer, VideoStream]]:
    """An open video file and its first video stream; other streams are not even read.

    This file alone is opened, as one of CONTAINERS. Frames of more pixels than `limits` allow are
    not decoded, where the stream grows to them neither. Where the number of `streams` is known, no
    frame is decoded to find out what is in them, which for a large picture takes as long as half a
    clip.

    Raises:
        UnreadableVideoError: it cannot be opened, holds no video or one too large.
    """
    check_regular(path)
    bound = {"max_pixels": str(min(limits.pixels, _FFMPEG_PIXELS))}
    allowed = {"protocol_whitelist": "file", "format_whitelist": ",".join(CONTAINERS)}
    # For the decoders that FFmpeg opens to probe the streams, not for the one that decodes here.
    probing = {"skip_frame": "all"} if streams else {}
    try:
        # "file:" keeps a colon in a name from being taken for a protocol.
        container = av.open(
            f"file:{path}",
            options=allowed | bound | probing,
            **_LENIENT,
        )
    except av.ArgumentError as error:
        raise UnreadableVideoError(
            "cannot be opened: is none of the formats that hold a video (see docs/data.md)"
        ) from error
    except (av.FFmpegError, OSError, ValueError) as error:
        raise UnreadableVideoError(f"cannot be opened: {_reason(error)}") from error
    with container:
        if not container.streams.video:
            raise UnreadableVideoError("has no video stream")
        stream = container.streams.video[0]
        for other in container.streams:
            if other is not stream:
                other.discard = Discard.all
        if stream.codec_context is None:
            raise UnreadableVideoError("is of a codec that cannot be decoded")
        limits.check_pixels(stream.width, stream.height)
        stream.codec_context.thread_count = threads
        stream.codec_context.options = bound
        yield container, stream


def check_regular(path: str, name: str = "") -> None:
    """Raise UnreadableVideoError unless `path` is a regular file: a pipe or a device would be
    waited for, perhaps for ever. `name` is put before the message."""
    try:
        is_regular = stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError) as error:
        raise UnreadableVideoError(f"{name}cannot be opened: {_reason(error)}") from error
    if not is_regular:
        raise UnreadableVideoError(f"{name}cannot be opened: is not a regular file")


def frame_files(folder: str) -> list[str]:
    """Names of the JPEG files in a folder, in order."""
    return sorted(name for name in os.listdir(folder) if name.lower().endswith(_JPEG))


def video_name(path: str) -> str:
    """The name of a video file without its ending, and that of the file it was prepared from."""
    name = os.path.basename(path)
    while name.lower().endswith(_VIDEOS):
        name = os.path.splitext(name)[0]
    return name


def video_files(folder: str | os.PathLike[str]) -> list[str]:
    """Paths of the video files in a folder, by their names, in order."""
    paths = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name[0] != ".")
    return [path for path in paths if path.lower().endswith(_VIDEOS)]


def read_jpeg(
    folder: str, name: str, mode: int = cv2.IMREAD_COLOR, *, limits: ReadingLimits = LIMITS
) -> NDArray[np.uint8]:
    """The picture in a JPEG file, (H, W, 3) BGR; `mode` may ask for a smaller one.

    Raises:
        UnreadableVideoError: it is no JPEG, is cut off, or is beyond the limits.
    """
    content, _ = _read_head(folder, name, limits)
    image = None
    if content.rstrip(b"\0").endswith(_JPEG_END):
        buffer = np.frombuffer(content, np.uint8)
        image = cv2.imdecode(buffer, mode | cv2.IMREAD_IGNORE_ORIENTATION)
    if image is None:
        raise UnreadableVideoError(f"cannot be decoded: {name} is not a whole JPEG")
    return cast(NDArray[np.uint8], image)


def jpeg_size(folder: str, name: str, *, limits: ReadingLimits = LIMITS) -> tuple[int, int]:
    """Width and height of the picture in a JPEG file, by its head.

    Raises:
        UnreadableVideoError: it is no JPEG, or is beyond the limits.
    """
    with readable():
        return _read_head(folder, name, limits)[1]


def _read_head(folder: str, name: str, limits: ReadingLimits) -> tuple[bytes, tuple[int, int]]:
    """The content of a JPEG file, and its width and height."""
    path = os.path.join(folder, name)
    check_regular(path, f"{name} ")
    limits.check_bytes(os.path.getsize(path), name)
    with open(path, "rb") as file:
        content = file.read()
    width, height = _sides(content) if content.startswith(_JPEG_BEGIN) else (0, 0)
    if not width or not height:
        raise UnreadableVideoError(f"cannot be decoded: {name} is not a JPEG")
    limits.check_pixels(width, height)
    if (scans := content.count(_JPEG_SCAN)) > _MOST_SCANS:
        raise UnreadableVideoError(
            f"cannot be decoded: {name} has {scans} scans, more than {_MOST_SCANS}"
        )
    return content, (width, height)


def _sides(jpeg: bytes) -> tuple[int, int]:
    """Width and height by the frame header (ITU-T T.81, B.2.2); 0 without one.

    A library that opens the picture for it takes a third of the time of decoding it.
    """
    position = jpeg.find(b"\xff", len(_JPEG_BEGIN))
    while 0 <= position < len(jpeg) - 8:
        marker, length = struct.unpack_from(">BH", jpeg, position + 1)
        if marker in _FRAME_HEADERS:
            height, width = struct.unpack_from(">HH", jpeg, position + 5)
            return width, height
        position = jpeg.find(b"\xff", position + (1 if marker in _WITHOUT_LENGTH else 2 + length))
    return 0, 0


def _reason(error: Exception) -> str:
    """What is wrong, on one line, without the number of the error and the path once more."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(reason.split())
