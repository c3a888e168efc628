"""Open a video file, and decode its packets.

FFmpeg only logs some errors. These are often the only sign of damage inside pictures.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, cast

import av
import cv2
from av.container import InputContainer
from av.packet import Packet
from av.stream import Discard, Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from slowfast_patches.datasets.reading.formats import FORMATS
from slowfast_patches.utils.errors import RunError, UserError
from slowfast_patches.utils.storage import is_remote, open_file

_LENIENT: dict[str, Any] = (
    {"metadata_errors": "replace"} if av.__version__.startswith("18.") else {}
)
"""Arguments for `av.open` that make PyAV 18 accept metadata that is not UTF-8. PyAV 19 always
accepts such metadata."""
_DEFAULT_FLAG = 5_000_000
"""Number of pixels that the default flag of a stream is worth in FFmpeg's choice of a stream."""
MAX_PIXELS = 1 << 26
"""Maximum number of pixels of a frame, 8192 × 8192. Larger frames could exhaust the memory. It is
almost twice the largest picture of any level of H.264, HEVC and AV1."""


CAN_SKIP = frozenset({"h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4"})
"""Names of the decoders that can parse the headers of a frame and skip its content."""
_SIZE = re.compile("Picture size ([0-9]+)x([0-9]+)")
PALETTE_BITS = 8
"""Maximum number of bits per pixel of videos with a palette."""
_VP8 = ("vp8", "libvpx")
_VP8_HEADER = b"OVP80"
_THEORA_HEADER = 0x80
"""The first bytes of a VP8 header, and a bit of the first byte of a Theora header, in Ogg files."""
_VP8_SHOWN = 0x10
"""Bit of the first byte of a VP8 frame that tells whether the frame is shown (RFC 6386, 9.1)."""
_DECODE_ERRORS = (av.FFmpegError, cv2.error, OSError, EOFError, MemoryError)
"""Error types that a damaged file can cause. All other errors, such as TypeError, are bugs and end
the run."""


DEMUX_ERRORS = (av.InvalidDataError, IndexError)
"""Errors of `demux` at the damaged end of a file. PyAV raises IndexError for a packet of a stream
that begins within the file, as damage in an MPEG transport stream can seem to show."""
_MAX_KEPT = 4096
"""Number of errors from which on older ones are dropped when a new `ErrorLog` begins."""
_TOO_LARGE = "max pixel count"
_UNSEEN = logging.CRITICAL + 1

_thread = threading.local()


class UnreadableVideoError(UserError):
    """Error raised when a video is missing or cannot be decoded. The message gives the reason."""


@contextlib.contextmanager
def translate_decode_errors() -> Iterator[None]:
    """Re-raise errors of PyAV, OpenCV and the operating system as `UnreadableVideoError`."""
    try:
        yield
    except FileNotFoundError as error:
        raise UnreadableVideoError(f"cannot be opened: {reason_of(error)}") from error
    except _DECODE_ERRORS as error:
        raise UnreadableVideoError(f"cannot be decoded: {reason_of(error)}") from error


def reason_of(error: Exception) -> str:
    """Return an error message on one line, without the error number and the path."""
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(reason.split())


@dataclass(frozen=True)
class VideoFile:
    """Open video file.

    Attributes:
        path: The file.
        container: The container.
        stream: The video stream that the ffmpeg program would choose.
        is_probed: Whether FFmpeg has decoded frames to find the properties of the streams.
        reorders: Whether the decoder may return frames in another order than that of the packets.
            If `is_probed`, the first frames have confirmed this.
    """

    path: str
    container: InputContainer
    stream: VideoStream
    is_probed: bool
    reorders: bool

    def packets(self) -> Iterator[Packet[VideoStream]]:
        """Yield the packets of the stream up to the end or to the first damage of the container.

        The last packet is empty, so that decoding it returns the frames that the decoder still
        holds.
        """
        try:
            yield from self.container.demux(self.stream)
        except DEMUX_ERRORS:
            yield cast("Packet[VideoStream]", Packet())

    def decode(self, packet: Packet[VideoStream] | None) -> list[VideoFrame | None]:
        """Decode a packet. Return [None] if the packet is damaged.

        If `packet` is None or empty, return the frames that the decoder still holds.

        Raises:
            UnreadableVideoError: The frames have become too large.
        """
        decoder = self.stream.codec_context
        if packet is not None and self.is_header(packet):
            return []
        try:
            return [*decoder.decode(packet)]
        except (EOFError, MemoryError):
            raise
        except av.FFmpegError:
            check_pixels(decoder.width, decoder.height)
            return [None]

    def frames(self) -> Iterator[VideoFrame]:
        """Yield the frames in display order, and skip damaged packets."""
        return filter(None, chain.from_iterable(map(self.decode, self.packets())))

    @cached_property
    def format(self) -> str:
        """Name of the demuxer."""
        return self.container.format.name

    @cached_property
    def codec(self) -> str:
        """Name of the decoder."""
        return self.stream.codec_context.name

    def is_shown(self, packet: Packet[VideoStream]) -> bool:
        """Return whether a packet holds a frame that is shown.

        Edits of an mp4 file hide frames, and VP8 has frames that only serve as references.
        """
        if not packet.size or packet.is_discard:
            return False
        return self.codec not in _VP8 or bool(memoryview(packet)[0] & _VP8_SHOWN)

    def is_header(self, packet: Packet[VideoStream]) -> bool:
        """Return whether a packet holds a header and no frame.

        An Ogg file that was joined from several files has headers in its middle (RFC 3533, 4).
        """
        if self.format != "ogg" or not packet.size:
            return False
        begin = bytes(memoryview(packet)[: len(_VP8_HEADER)])
        is_theora = self.codec == "theora"
        return begin == _VP8_HEADER or (is_theora and bool(begin[0] & _THEORA_HEADER))


@contextlib.contextmanager
def open_video(path: str, *, probes: bool = True) -> Iterator[VideoFile]:
    """Open a video file. All streams except the chosen video stream are discarded.

    FFmpeg accepts only known formats and does not open other files. Frames with more than
    `MAX_PIXELS` pixels are not decoded, even if the frame size changes within the stream.

    Args:
        path: The video file.
        probes: Whether FFmpeg decodes frames to find the properties of the streams. This takes
            most of the time of opening a file with large frames. A container whose header describes
            all streams needs no probing.

    Raises:
        UnreadableVideoError: The file cannot be opened, has no video stream, or has too large
            frames.
    """
    check_regular(path)
    bound = {"max_pixels": str(MAX_PIXELS)}
    allowed = {"protocol_whitelist": "file", "format_whitelist": ",".join(FORMATS)}
    # These options affect only how FFmpeg probes the streams.
    # With them, FFmpeg reads few packets, and parses only headers.
    # If an H.264 header does not limit the reordering, FFmpeg assumes the maximum.
    probing = {} if probes else {"skip_frame": "all", "strict": "1", "analyzeduration": "1"}
    log = ErrorLog()
    with contextlib.ExitStack() as stack:
        try:
            # Without the prefix "file:", FFmpeg would read `a` in the file name `a:b` as protocol.
            file = stack.enter_context(open_file(path)) if is_remote(path) else f"file:{path}"
            opened = av.open(file, options=allowed | bound | probing, **_LENIENT)
            container = stack.enter_context(opened)
        except av.ArgumentError as error:
            if size := _SIZE.search(log.new()):
                check_pixels(int(size[1]), int(size[2]))
            raise UnreadableVideoError(
                "cannot be opened: the file is not in a supported video format (see docs/data.md)"
            ) from error
        except RunError:  # a bucket that cannot be used affects all videos
            raise
        except (av.FFmpegError, OSError, ValueError) as error:
            raise UnreadableVideoError(f"cannot be opened: {reason_of(error)}") from error
        stream = max(container.streams.video, key=_preference, default=None)
        if stream is None or stream.codec_context is None:
            raise UnreadableVideoError("has no video stream that FFmpeg can decode")
        for other in container.streams:
            if other is not stream:
                other.discard = Discard.all
        check_pixels(stream.width, stream.height)
        stream.codec_context.thread_count = 1
        if stream.codec_context.name == "h264":
            # If the header does not limit the reordering of frames, assume the maximum.
            # Otherwise, FFmpeg would learn the limit while it decodes, and lose frames meanwhile.
            bound |= {"strict": "1"}
        stream.codec_context.options = bound
        reorders = bool(stream.codec_context.has_b_frames)
        yield VideoFile(path, container, stream, is_probed=probes, reorders=reorders)


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
        raise UnreadableVideoError(f"{name}cannot be opened: {reason_of(error)}") from error
    if not is_regular:
        raise UnreadableVideoError(f"{name}cannot be opened: the path is not a regular file")


def check_pixels(width: int, height: int) -> None:
    """Check the size of a frame.

    Raises:
        UnreadableVideoError: The frame has more than `MAX_PIXELS` pixels.
    """
    if width * height > MAX_PIXELS:
        raise UnreadableVideoError(
            f"has frames of {width}×{height} pixels, more than the maximum of {MAX_PIXELS}"
        )


class ErrorLog:
    """Errors that FFmpeg logs from now on in the calling thread.

    FFmpeg decodes in the calling thread, because all decoders have `thread_count` 1. If several
    threads read videos, each sees only the errors of its own videos.
    """

    def __init__(self) -> None:
        self._errors = _errors_of_thread()
        self._seen = len(self._errors)

    def new(self) -> str:
        """Return the latest error since the last call, or "" if there is none.

        Prefer an error about the size of the pictures, because others follow from it.
        """
        seen, self._seen = self._seen, len(self._errors)
        errors = self._errors[seen:]
        if not errors:
            return ""
        sizes = (error for error in errors if _TOO_LARGE in error[2])
        _, name, message = next(sizes, errors[-1])
        return " ".join(f"{name}: {message}".split())


def _errors_of_thread() -> list[tuple[int, str, str]]:
    """Return the list to which PyAV adds the errors of this thread."""
    level = av.logging.get_level()
    if level is None or level < av.logging.ERROR:
        if level is None:  # PyAV shows nothing, so it shows nothing of other threads either
            logging.getLogger("libav").setLevel(_UNSEEN)
        av.logging.set_level(av.logging.ERROR)
    if av.logging.get_skip_repeated():  # the same error in two files counts twice
        av.logging.set_skip_repeated(False)
    errors: list[tuple[int, str, str]] | None = getattr(_thread, "errors", None)
    if errors is None:
        errors = _thread.errors = av.logging.Capture().__enter__()
    if len(errors) > _MAX_KEPT:
        errors.clear()
    return errors
