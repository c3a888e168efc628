"""Read frames of videos that are stored as JPEG files. Raise UnreadableVideoError if that fails."""

from __future__ import annotations

import contextlib
import os
import re
import struct
from typing import NamedTuple, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from slowfast_patches.datasets.reading.unreadable import (
    LIMITS,
    ReadingLimits,
    UnreadableVideoError,
    translate_decode_errors,
)
from slowfast_patches.datasets.reading.video_file import check_regular
from slowfast_patches.utils.storage import is_remote, list_files, read_range

_NUMBER = re.compile("([0-9]+)")
_JPEG = (".jpg", ".jpeg")
_FRAME_HEADERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = frozenset([0x00, 0x01, *range(0xD0, 0xDA), 0xFF])
_JPEG_BEGIN = b"\xff\xd8"
_JPEG_SCAN = b"\xff\xda"
_SCAN = 0xDA
_EXIF = 0xE1
_ORIENTATION = 0x0112
"""Tag of the orientation in Exif."""
_TRANSPOSED = range(5, 9)
"""Exif orientations that swap the width and the height."""
_MAX_SCANS = 256
"""Maximum number of scans in a JPEG file. Progressive JPEG files have about ten scans, and decoding
each scan takes a pass over the whole picture."""
_JPEG_END = b"\xff\xd9"
"""Marker at the end of every complete JPEG file (ITU-T T.81). Other bytes may follow it."""


def frame_files(folder: str) -> list[str]:
    """Return the names of the JPEG files in a folder, in natural order: 1, 2, 10.

    Hidden files are left out. macOS writes a hidden file `._a.jpg` beside each file `a.jpg`.
    """
    files = list_files(folder) if is_remote(folder) else os.listdir(folder)
    names = [name for name in files if name.lower().endswith(_JPEG)]
    return sorted((name for name in names if name[0] != "."), key=_natural)


def read_jpeg(
    folder: str, name: str, mode: int = cv2.IMREAD_COLOR, *, limits: ReadingLimits
) -> NDArray[np.uint8]:
    """Decode a JPEG file, and rotate and mirror the picture according to its Exif orientation.

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
    content, head = _read_head(folder, name, limits)
    image = None
    # A decoder does not report a truncated file, but fills the missing part with grey.
    if content.find(_JPEG_END, head.scan) >= 0:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), mode)
    if image is None:
        raise UnreadableVideoError(f"cannot be decoded: {name} is not a complete JPEG file")
    return cast(NDArray[np.uint8], image)


def jpeg_size(folder: str, name: str, *, limits: ReadingLimits = LIMITS) -> tuple[int, int]:
    """Return the displayed width and height of a JPEG file, read from its header.

    Raises:
        UnreadableVideoError: The file is not a JPEG, or exceeds a limit.
    """
    with translate_decode_errors():
        head = _read_head(folder, name, limits)[1]
    return (head.height, head.width) if head.orientation in _TRANSPOSED else head[:2]


def _natural(name: str) -> tuple[list[str | int], str]:
    """Return a sort key that compares the numbers in names by their values."""
    parts = _NUMBER.split(name)  # every other part is a number
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], name


class _Head(NamedTuple):
    """Properties of a JPEG file, read from the segments before its first scan.

    Attributes:
        width: Width of the stored picture in pixels. 0 if the file has no frame header.
        height: Height of the stored picture in pixels.
        orientation: Exif orientation, from 1 to 8.
        scan: Byte offset of the first scan.
    """

    width: int = 0
    height: int = 0
    orientation: int = 1
    scan: int = 0


def _read_head(folder: str, name: str, limits: ReadingLimits) -> tuple[bytes, _Head]:
    """Return the content of a JPEG file and the properties in its header."""
    path = os.path.join(folder, name)
    check_regular(path, f"{name} ")
    if is_remote(path):  # asking for the size would take another request
        content = read_range(path, 0, limits.bytes + 1)
    else:
        limits.check_bytes(os.path.getsize(path), name)
        content = read_range(path, 0, None)
    limits.check_bytes(len(content), name)
    head = _parse_head(content) if content.startswith(_JPEG_BEGIN) else _Head()
    if not head.width or not head.height:
        raise UnreadableVideoError(f"cannot be decoded: {name} is not a JPEG file")
    limits.check_pixels(head.width, head.height)
    if (scans := content.count(_JPEG_SCAN)) > _MAX_SCANS:
        raise UnreadableVideoError(
            f"cannot be decoded: the JPEG file {name} has {scans} scans, but at most {_MAX_SCANS} "
            "are allowed"
        )
    return content, head


def _parse_head(jpeg: bytes) -> _Head:
    """Read the segments of a JPEG file up to the first scan (ITU-T T.81, B.2).

    Getting the size from an image library would take a third of the time of decoding the picture.
    """
    width = height = 0
    orientation = 1
    position = jpeg.find(b"\xff", len(_JPEG_BEGIN))
    while 0 <= position < len(jpeg) - 8:
        marker, length = struct.unpack_from(">BH", jpeg, position + 1)
        if marker == _SCAN:
            break
        if marker in _FRAME_HEADERS and not width:
            height, width = struct.unpack_from(">HH", jpeg, position + 5)
        elif marker == _EXIF:
            orientation = _exif_orientation(jpeg[position + 4 : position + 2 + length])
        position = jpeg.find(b"\xff", position + (1 if marker in _WITHOUT_LENGTH else 2 + length))
    return _Head(width, height, orientation, max(position, 0))


def _exif_orientation(segment: bytes) -> int:
    """Return the orientation in an Exif segment (TIFF 6.0, section 2), or 1 if there is none."""
    tiff = segment.removeprefix(b"Exif\0\0")
    order = ">" if tiff.startswith(b"MM") else "<"
    with contextlib.suppress(struct.error):
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (fields,) = struct.unpack_from(f"{order}H", tiff, start)
        for number in range(fields):
            tag, _, _, value = struct.unpack_from(f"{order}HHIH", tiff, start + 2 + 12 * number)
            if tag == _ORIENTATION:
                return int(value)
    return 1
