"""Read JPEG files. All sizes that a file announces are checked before the picture is decoded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import av
import cv2
import numpy as np
from av.video.codeccontext import VideoCodecContext
from cv2.typing import MatLike
from numpy.typing import NDArray
from PIL import ExifTags, Image

from slowfast_patches.datasets.reading.scanned_video import UPRIGHT, Orientation
from slowfast_patches.datasets.reading.video_file import (
    MAX_PIXELS,
    ErrorLog,
    UnreadableVideoError,
    check_pixels,
    check_regular,
)
from slowfast_patches.utils.storage import read_range

MAX_BYTES = 1 << 28
"""Maximum size of a JPEG file, which is read into memory as a whole."""
MAX_SCANS = 256
"""Maximum number of scans of a picture. Each scan of a progressive picture changes all pixels, even
if it has only a few bytes. Encoders write about ten."""
MAX_SCANNED = 16 * MAX_PIXELS
"""Maximum number of pixels of a picture times the number of its scans."""
_CORNER = 4
"""Side in pixels of the corner of a picture that tells whether its last block is missing. The
colours of other blocks are mixed into a larger corner."""
_EARLY_END = ("overread", "error y=")
"""Parts of FFmpeg's errors about the data of a truncated scan."""
_MAX_SEGMENTS = 1 << 12
"""Maximum number of segments of a file."""

# Markers of ITU-T T.81, table B.1. A marker is the byte 0xFF and one of these.
_START = b"\xff\xd8"
_END = b"\xff\xd9"
_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")  # neither a stuffed byte nor a restart
_EXIF = 0xE1
_SCAN = 0xDA
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = (0x01, _START[1])
_EXIF_HEADER = b"Exif\0\0"
_ORIENTATIONS = {
    2: Orientation(0, True),
    3: Orientation(2),
    4: Orientation(2, True),
    5: Orientation(1, True),
    6: Orientation(3),
    7: Orientation(3, True),
    8: Orientation(1),
}
"""How to show a picture with an Exif orientation (TIFF 6.0, tag 274)."""


def read_jpeg(folder: str, name: str, mode: int = cv2.IMREAD_COLOR) -> NDArray[np.uint8]:
    """Decode a JPEG file, and rotate and mirror the picture according to its Exif orientation.

    A picture without an end marker is read if all its data are there.

    Args:
        folder: The folder of the file.
        name: The name of the file in the folder, or an absolute path.
        mode: An OpenCV read mode, which may request a reduced size.

    Returns:
        The picture, (H, W, 3) uint8 BGR.

    Raises:
        UnreadableVideoError: The file is not a JPEG, is truncated, or exceeds a limit.
    """
    content, header = _read(folder, name)
    if not header.has_end:
        # Zeros may stand for parts of the file that could not be copied.
        if not header.is_refined or not _is_complete(content.rstrip(b"\0")):
            raise _incomplete(name)
        content += _END
    # OpenCV would read the orientation from other places of the file than `jpeg_size` does.
    mode |= cv2.IMREAD_IGNORE_ORIENTATION
    image = cv2.imdecode(np.frombuffer(content, np.uint8), mode)
    # An end marker may also follow truncated data. OpenCV then fills a part of the picture.
    is_doubtful = header.scans > 1 or (image is not None and _ends_flat(image, header))
    if image is None or (header.has_end and is_doubtful and _lacks_data(content)):
        raise _incomplete(name)
    shown = header.orientation.shown(cast(NDArray[np.uint8], image))
    return np.ascontiguousarray(shown)


def jpeg_size(path: str) -> tuple[int, int]:
    """Return the displayed width and height of a JPEG file, read from its header.

    Raises:
        UnreadableVideoError: The file is not a JPEG file, or exceeds a limit.
    """
    _, header = _read("", path)
    return header.orientation.turned_size(header.width, header.height)


@dataclass
class _Header:
    """What a JPEG file announces.

    Attributes:
        width: Width of the stored picture in pixels. 0 if the file announces no picture.
        height: Height of the stored picture in pixels.
        orientation: How to show the stored picture.
        scans: Number of scans.
        components: The colour components of the picture.
        refined: The components whose last bit is in one of the scans.
        has_end: Whether the picture has an end marker.
    """

    width: int = 0
    height: int = 0
    orientation: Orientation = UPRIGHT
    scans: int = 0
    components: set[int] = field(default_factory=set)
    refined: set[tuple[int, int]] = field(default_factory=set)
    has_end: bool = False

    @property
    def is_refined(self) -> bool:
        """Whether the scans contain all coefficients of all components to the last bit."""
        return self.refined >= {(c, k) for c in self.components for k in range(64)}


def _read(folder: str, name: str) -> tuple[bytes, _Header]:
    """Return the content and the header of a JPEG file."""
    path = os.path.join(folder, name)
    check_regular(path, f"{name} ")
    content = read_range(path, 0, MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise UnreadableVideoError(
            f"cannot be decoded: {name} has more than the maximum of {MAX_BYTES} bytes"
        )
    header = _Header()
    if content.startswith(_START):
        for number, (marker, segment) in enumerate(_segments(content)):
            _add(header, marker, segment)
            work = header.scans * header.width * header.height
            if header.scans > MAX_SCANS or work > MAX_SCANNED or number > _MAX_SEGMENTS:
                raise UnreadableVideoError(
                    f"cannot be decoded: {name} has {header.width}×{header.height} pixels in "
                    f"{header.scans} or more scans, and {number} segments. The maximum is "
                    f"{MAX_SCANS} scans, {MAX_SCANNED} pixels times scans, and {_MAX_SEGMENTS} "
                    "segments"
                )
    if not header.width * header.height:
        raise UnreadableVideoError(f"cannot be decoded: {name} is not a JPEG file")
    return content, header


def _segments(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the marker and the content of each segment, up to the end of the first picture."""
    place = len(_START)
    while found := _MARKER.search(content, place):
        marker = found[1][0]
        place = found.end()
        length = 0
        if marker not in (*_WITHOUT_LENGTH, _END[1]):
            length = int.from_bytes(content[place : place + 2])
        if place + length > len(content):
            return
        yield marker, content[place + 2 : place + length]
        if marker == _END[1]:
            return
        place += length


def _add(header: _Header, marker: int, segment: bytes) -> None:
    """Add a segment to a header, and check the size of the picture."""
    if marker in _FRAMES and len(segment) >= 6:
        header.height = int.from_bytes(segment[1:3])
        header.width = int.from_bytes(segment[3:5])
        header.components = set(segment[6::3])
        check_pixels(header.width, header.height)
    elif marker == _SCAN and len(segment) >= 6:
        header.scans += 1
        first, last, bits = segment[-3:]
        if bits & 15 == 0:
            parts = segment[1 : 1 + 2 * segment[0] : 2]
            header.refined |= {(c, k) for c in parts for k in range(first, min(last, 63) + 1)}
    elif marker == _EXIF and segment.startswith(_EXIF_HEADER) and header.orientation == UPRIGHT:
        header.orientation = _orientation(segment)
    elif marker == _END[1]:
        header.has_end = True


def _orientation(exif: bytes) -> Orientation:
    known = Image.Exif()
    try:
        known.load(exif)
        return _ORIENTATIONS.get(known.get(ExifTags.Base.Orientation, 1), UPRIGHT)
    except Exception:  # Pillow's errors for damaged metadata have no common base
        return UPRIGHT


def _ends_flat(image: MatLike, header: _Header) -> bool:
    """Return whether the last pixels are equal. OpenCV may then have filled a missing part."""
    rows = max(1, _CORNER * image.shape[0] // header.height)  # fewer if the size is reduced
    corner = image[-rows:, -_CORNER:]
    return bool((corner == corner[0, 0]).all())


def _lacks_data(content: bytes) -> bool:
    """Return whether FFmpeg reports that the data of a picture end too early.

    All other errors are ignored, because FFmpeg does not decode all pictures that OpenCV decodes.
    """
    log = ErrorLog()
    if _is_complete(content):
        return False
    error = log.new()
    return any(text in error for text in _EARLY_END)


def _is_complete(content: bytes) -> bool:
    """Return whether FFmpeg decodes a picture to its end, even if the end marker is missing.

    OpenCV does not report a truncated picture, but fills the missing part with grey.
    """
    decoder = av.CodecContext.create("mjpeg", "r")
    assert isinstance(decoder, VideoCodecContext)
    decoder.options = {"err_detect": "explode", "lowres": "3"}  # only whether it decodes matters
    decoder.thread_count = 1
    try:
        return bool(decoder.decode(av.Packet(content)) or decoder.decode(None))
    except av.FFmpegError:
        return False


def _incomplete(name: str) -> UnreadableVideoError:
    return UnreadableVideoError(f"cannot be decoded: {name} is not a complete JPEG file")
