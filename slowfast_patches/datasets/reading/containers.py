"""Open video files and JPEG files. Raise UnreadableVideoError if that fails."""

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

from slowfast_patches.datasets.reading.formats import CONTAINERS
from slowfast_patches.datasets.reading.limits import LIMITS, ReadingLimits
from slowfast_patches.datasets.reading.video_record import UnreadableVideoError

_DECODE_ERRORS = (av.FFmpegError, cv2.error, OSError, EOFError, MemoryError)
"""Error types that a damaged file can cause. All other errors, such as TypeError, are bugs and end
the run."""
_LENIENT: dict[str, Any] = (
    {"metadata_errors": "replace"} if av.__version__.startswith("18.") else {}
)
"""Arguments for `av.open` that make PyAV 18 accept metadata that is not UTF-8. PyAV 19 always
accepts such metadata."""
_JPEG = (".jpg", ".jpeg")
_FFMPEG_MAX_PIXELS = 2**31 - 1
"""Largest value of FFmpeg's `max_pixels` option. Its default is lower."""
_FRAME_HEADERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = frozenset([0x00, 0x01, *range(0xD0, 0xDA), 0xFF])
_JPEG_BEGIN = b"\xff\xd8"
_JPEG_SCAN = b"\xff\xda"
_MAX_SCANS = 256
"""Maximum number of scans in a JPEG file. Progressive JPEG files have about ten scans, and decoding
each scan takes a pass over the whole picture."""
_JPEG_END = b"\xff\xd9"
"""Marker at the end of every complete JPEG file (ITU-T T.81).

A decoder does not report a truncated file, but fills the missing part with grey.
"""


@contextlib.contextmanager
def translate_decode_errors() -> Iterator[None]:
    """Re-raise errors of PyAV, OpenCV and the operating system as `UnreadableVideoError`."""
    try:
        yield
    except UnreadableVideoError:
        raise
    except _DECODE_ERRORS as error:
        raise UnreadableVideoError(f"cannot be decoded: {_reason(error)}") from error


@contextlib.contextmanager
def open_video(
    path: str, threads: int = 1, *, streams: int = 0, limits: ReadingLimits = LIMITS
) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a video file and yield the container and its first video stream.

    All streams except the first video stream are discarded. FFmpeg accepts only the formats in
    `CONTAINERS` and does not open other files. Frames with more pixels than `limits` allows are not
    decoded, even if the frame size changes within the stream.

    Args:
        path: The video file.
        threads: Number of decoder threads. 0 lets the codec choose.
        streams: Number of streams in the file, or 0 if unknown. If the number is known, FFmpeg does
            not decode frames to find the streams. For large frames, this saves as much time as
            reading half a clip takes.
        limits: Limits on what may be decoded.

    Raises:
        UnreadableVideoError: The file cannot be opened, has no video stream, or has too large
            frames.
    """
    check_regular(path)
    bound = {"max_pixels": str(min(limits.pixels, _FFMPEG_MAX_PIXELS))}
    allowed = {"protocol_whitelist": "file", "format_whitelist": ",".join(CONTAINERS)}
    # This option affects only the decoders with which FFmpeg probes the streams.
    probing = {"skip_frame": "all"} if streams else {}
    try:
        # Without the prefix "file:", FFmpeg would take the part of a file name before a colon for a
        # protocol.
        container = av.open(
            f"file:{path}",
            options=allowed | bound | probing,
            **_LENIENT,
        )
    except av.ArgumentError as error:
        raise UnreadableVideoError(
            "cannot be opened: the file is not in a supported video format (see docs/data.md)"
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
            raise UnreadableVideoError("uses a codec that FFmpeg cannot decode")
        limits.check_pixels(stream.width, stream.height)
        stream.codec_context.thread_count = threads
        stream.codec_context.options = bound
        yield container, stream


def check_regular(path: str, name: str = "") -> None:
    """Check that `path` is a regular file.

    Opening a pipe or a device could block forever.

    Args:
        path: The file to check.
        name: Text to put before the error message.

    Raises:
        UnreadableVideoError: The file does not exist or is not a regular file.
    """
    try:
        is_regular = stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError) as error:
        raise UnreadableVideoError(f"{name}cannot be opened: {_reason(error)}") from error
    if not is_regular:
        raise UnreadableVideoError(f"{name}cannot be opened: the path is not a regular file")


def frame_files(folder: str) -> list[str]:
    """Return the sorted names of the JPEG files in a folder."""
    return sorted(name for name in os.listdir(folder) if name.lower().endswith(_JPEG))


def read_jpeg(
    folder: str, name: str, mode: int = cv2.IMREAD_COLOR, *, limits: ReadingLimits = LIMITS
) -> NDArray[np.uint8]:
    """Decode a JPEG file.

    Args:
        folder: The folder of the file.
        name: The name of the file in the folder.
        mode: An OpenCV read mode, which may request a reduced size.
        limits: Limits on the file size and the number of pixels.

    Returns:
        The picture, (H, W, 3) uint8 BGR.

    Raises:
        UnreadableVideoError: The file is not a JPEG, is truncated, or exceeds a limit.
    """
    content, _ = _read_head(folder, name, limits)
    image = None
    if content.rstrip(b"\0").endswith(_JPEG_END):
        buffer = np.frombuffer(content, np.uint8)
        image = cv2.imdecode(buffer, mode | cv2.IMREAD_IGNORE_ORIENTATION)
    if image is None:
        raise UnreadableVideoError(f"cannot be decoded: {name} is not a complete JPEG file")
    return cast(NDArray[np.uint8], image)


def jpeg_size(folder: str, name: str, *, limits: ReadingLimits = LIMITS) -> tuple[int, int]:
    """Return the width and height of a JPEG file, read from its header.

    Raises:
        UnreadableVideoError: The file is not a JPEG, or exceeds a limit.
    """
    with translate_decode_errors():
        return _read_head(folder, name, limits)[1]


def _read_head(folder: str, name: str, limits: ReadingLimits) -> tuple[bytes, tuple[int, int]]:
    """Return the content of a JPEG file and its (width, height)."""
    path = os.path.join(folder, name)
    check_regular(path, f"{name} ")
    limits.check_bytes(os.path.getsize(path), name)
    with open(path, "rb") as file:
        content = file.read()
    width, height = _sides(content) if content.startswith(_JPEG_BEGIN) else (0, 0)
    if not width or not height:
        raise UnreadableVideoError(f"cannot be decoded: {name} is not a JPEG file")
    limits.check_pixels(width, height)
    if (scans := content.count(_JPEG_SCAN)) > _MAX_SCANS:
        raise UnreadableVideoError(
            f"cannot be decoded: the JPEG file {name} has {scans} scans, but at most {_MAX_SCANS} "
            "are allowed"
        )
    return content, (width, height)


def _sides(jpeg: bytes) -> tuple[int, int]:
    """Read the width and height from the frame header of a JPEG file (ITU-T T.81, B.2.2).

    Getting the size from an image library would take a third of the time of decoding the picture.

    Returns:
        The width and height in pixels, or (0, 0) if the file has no frame header.
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
    """Return the error message on one line, without the error number and the path."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(reason.split())
