"""Open and decode video files. Raise UnreadableVideoError if that fails."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import Any, cast

import av
import cv2
from av.container import InputContainer
from av.packet import Packet
from av.stream import Discard, Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from slowfast_patches.datasets.reading.formats import CONTAINERS
from slowfast_patches.datasets.reading.limits import LIMITS, ReadingLimits
from slowfast_patches.datasets.reading.video_record import UnreadableVideoError
from slowfast_patches.utils.storage import is_remote, open_file

_DECODE_ERRORS = (av.FFmpegError, cv2.error, OSError, EOFError, MemoryError)
"""Error types that a damaged file can cause. All other errors, such as TypeError, are bugs and end
the run."""
_LENIENT: dict[str, Any] = (
    {"metadata_errors": "replace"} if av.__version__.startswith("18.") else {}
)
"""Arguments for `av.open` that make PyAV 18 accept metadata that is not UTF-8. PyAV 19 always
accepts such metadata."""
_DEFAULT_FLAG = 5_000_000
"""Number of pixels that the default flag of a stream is worth in FFmpeg's choice of a stream."""
_FFMPEG_MAX_PIXELS = 2**31 - 1
"""Largest value of FFmpeg's `max_pixels` option. Its default is lower."""


@contextlib.contextmanager
def translate_decode_errors() -> Iterator[None]:
    """Re-raise errors of PyAV, OpenCV and the operating system as `UnreadableVideoError`."""
    try:
        yield
    except UnreadableVideoError:
        raise
    except FileNotFoundError as error:
        raise UnreadableVideoError(f"cannot be opened: {_reason(error)}") from error
    except _DECODE_ERRORS as error:
        raise UnreadableVideoError(f"cannot be decoded: {_reason(error)}") from error


@contextlib.contextmanager
def open_video(
    path: str, threads: int = 1, *, streams: int = 0, limits: ReadingLimits = LIMITS
) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a video file and yield the container and the video stream that FFmpeg would choose.

    All other streams are discarded. FFmpeg accepts only the formats in `CONTAINERS` and does not
    open other files. Frames with more pixels than `limits` allows are not decoded, even if the
    frame size changes within the stream.

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
    with _open_container(path, allowed | bound | probing) as container:
        if not container.streams.video:
            raise UnreadableVideoError("has no video stream")
        stream = max(container.streams.video, key=_preference)
        for other in container.streams:
            if other is not stream:
                other.discard = Discard.all
        if stream.codec_context is None:
            raise UnreadableVideoError("uses a codec that FFmpeg cannot decode")
        limits.check_pixels(stream.width, stream.height)
        stream.codec_context.thread_count = threads
        stream.codec_context.options = bound
        yield container, stream


def _preference(stream: VideoStream) -> tuple[bool, int]:
    """Return the rank of a video stream. Of equal ranks, the first stream is chosen.

    The order is that of the ffmpeg program. Streams that FFmpeg can decode come before others,
    videos before cover art, and large pictures before small ones. A stream with the default flag
    ranks as if it had 5 million more pixels.
    """
    if stream.codec_context is None:
        return False, 0
    if stream.disposition & Disposition.attached_pic:
        return True, 1
    is_default = bool(stream.disposition & Disposition.default)
    return True, stream.width * stream.height + _DEFAULT_FLAG * is_default


def read_packets(container: InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream]]:
    """Yield the packets of a stream up to the end or to the first damage of the container.

    The last packet is empty, so that decoding it returns the frames that the decoder still holds.
    """
    try:
        yield from container.demux(stream)
    except av.InvalidDataError:
        yield cast("Packet[VideoStream]", Packet())


def decode_packet(
    stream: VideoStream, packet: Packet[VideoStream] | None, limits: ReadingLimits
) -> list[VideoFrame | None]:
    """Decode a packet. Return [None] if the packet is damaged.

    If `packet` is None or empty, return the frames that the decoder still holds.

    Raises:
        UnreadableVideoError: The frames have become too large.
    """
    decoder = stream.codec_context
    try:
        return [*decoder.decode(packet)]
    except av.InvalidDataError:
        limits.check_pixels(decoder.width, decoder.height)
        return [None]


def decode_packets(
    container: InputContainer, stream: VideoStream, limits: ReadingLimits
) -> Iterator[VideoFrame | None]:
    """Yield the frames of a stream in display order, and None for each damaged packet."""
    for packet in read_packets(container, stream):
        yield from decode_packet(stream, packet, limits)


def decode_frames(
    container: InputContainer, stream: VideoStream, limits: ReadingLimits = LIMITS
) -> Iterator[VideoFrame]:
    """Yield the frames of a stream in display order, and skip damaged packets."""
    return filter(None, decode_packets(container, stream, limits))


@contextlib.contextmanager
def _open_container(path: str, options: dict[str, str]) -> Iterator[InputContainer]:
    """Context manager: open a local or remote file with FFmpeg."""
    with contextlib.ExitStack() as stack:
        try:
            # Without the prefix "file:", FFmpeg would take the part of a file name before a colon
            # for a protocol.
            file = stack.enter_context(open_file(path)) if is_remote(path) else f"file:{path}"
            container = stack.enter_context(av.open(file, options=options, **_LENIENT))
        except av.ArgumentError as error:
            raise UnreadableVideoError(
                "cannot be opened: the file is not in a supported video format (see docs/data.md)"
            ) from error
        except (av.FFmpegError, OSError, ValueError) as error:
            raise UnreadableVideoError(f"cannot be opened: {_reason(error)}") from error
        yield container


def check_regular(path: str, name: str = "") -> None:
    """Check that `path` is a regular file. Remote files are checked when they are opened.

    Opening a pipe or a device could block forever.

    Args:
        path: The file to check.
        name: Text to put before the error message.

    Raises:
        UnreadableVideoError: The file does not exist or is not a regular file.
    """
    if is_remote(path):
        return
    try:
        is_regular = stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError) as error:
        raise UnreadableVideoError(f"{name}cannot be opened: {_reason(error)}") from error
    if not is_regular:
        raise UnreadableVideoError(f"{name}cannot be opened: the path is not a regular file")


def _reason(error: Exception) -> str:
    """Return the error message on one line, without the error number and the path."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(reason.split())
