"""Opening video files and folders of frames, and one error for all that can go wrong with them."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO, cast

import av
import cv2
import numpy as np
from av.container import InputContainer
from av.stream import Discard
from av.video.stream import VideoStream
from numpy.typing import NDArray
from PIL import Image

from slowfast_patches.datasets.reading.video_record import UnreadableVideoError

__all__ = ["check_regular", "frame_files", "jpeg_size", "open_video", "read_jpeg", "readable"]

_RAISED = (
    *(av.FFmpegError, cv2.error, OSError, EOFError, MemoryError),
    *(ValueError, LookupError, ArithmeticError),
)
"""What PyAV, OpenCV and numpy have been seen to raise on damaged files."""
_JPEG = (".jpg", ".jpeg")
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
    path: str, threads: int = 1, *, streams: int = 0
) -> Iterator[tuple[InputContainer, VideoStream]]:
    """An open video file and its first video stream; other streams are not even read.

    Where the number of `streams` is known, no frame is decoded to find out what is in them, which
    for a large picture takes as long as half a clip.

    Raises:
        UnreadableVideoError: it cannot be opened or holds no video.
    """
    check_regular(path)
    try:
        # "file:" keeps a colon in a name from being taken for a protocol.
        container = av.open(
            f"file:{path}",
            options={"protocol_whitelist": "file"},
            stream_options=cast(list[str], [{"skip_frame": "all"}] * streams) or None,
            metadata_errors="replace",
        )
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
        stream.codec_context.thread_count = threads
        yield container, stream


def check_regular(path: str) -> None:
    """Raise UnreadableVideoError unless `path` is a file that holds something.

    A pipe or a device would be waited for, perhaps for ever.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise UnreadableVideoError(f"cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise UnreadableVideoError(f"cannot be opened: is {kind}")
    if status.st_size == 0:
        raise UnreadableVideoError("cannot be opened: the file is empty")


def frame_files(folder: str) -> list[str]:
    """Names of the JPEG files in a folder, in order."""
    return sorted(name for name in os.listdir(folder) if name.lower().endswith(_JPEG))


def read_jpeg(folder: str, name: str, mode: int = cv2.IMREAD_COLOR) -> NDArray[np.uint8]:
    """The picture in a JPEG file, (H, W, 3) BGR; `mode` may ask for a smaller one.

    Raises:
        UnreadableVideoError: it is none, or not all of one.
    """
    with _open_regular(folder, name) as file:
        content = file.read()
    image = None
    if content.rstrip(b"\0").endswith(_JPEG_END):
        buffer = np.frombuffer(content, np.uint8)
        image = cv2.imdecode(buffer, mode | cv2.IMREAD_IGNORE_ORIENTATION)
    if image is None:
        raise UnreadableVideoError(f"cannot be decoded: {name} is not a whole JPEG")
    return cast(NDArray[np.uint8], image)


def jpeg_size(folder: str, name: str) -> tuple[int, int]:
    """Width and height of the picture in a JPEG file, in pixels; no more than its head is read.

    Raises:
        UnreadableVideoError: it is none.
    """
    with _open_regular(folder, name) as file:
        try:
            with Image.open(file, formats=("JPEG",)) as image:
                return image.size
        except (OSError, ValueError, LookupError, SyntaxError, Image.DecompressionBombError):
            raise UnreadableVideoError(f"cannot be decoded: {name} is not a JPEG") from None


@contextlib.contextmanager
def _open_regular(folder: str, name: str) -> Iterator[BinaryIO]:
    """A file of a folder, open for reading; a pipe or a device is refused, not waited for."""
    try:
        number = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise UnreadableVideoError(f"cannot be opened: {name}: {_reason(error)}") from error
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise UnreadableVideoError(f"cannot be opened: {name} is not a regular file")
        with open(number, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(number)


def _reason(error: Exception) -> str:
    """What is wrong, on one line, without the number of the error and the path once more."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(said.split())
