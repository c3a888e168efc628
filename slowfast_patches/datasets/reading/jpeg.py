"""Read frames of videos that are stored as JPEG files. Raise UnreadableVideoError if that fails."""

from __future__ import annotations

import os
import re
from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from slowfast_patches.datasets.reading.errors import UnreadableVideoError
from slowfast_patches.datasets.reading.video_file import check_pixels, check_regular
from slowfast_patches.utils.errors import RunError
from slowfast_patches.utils.storage import is_remote, list_files, open_file, read_range

_NUMBER = re.compile("([0-9]+)")
_JPEG = (".jpg", ".jpeg")
_BEGIN = b"\xff\xd8\xff"
_END = b"\xff\xd9"
"""Markers at the beginning and the end of a picture in a JPEG file (ITU-T T.81)."""
_TRANSPOSED = range(5, 9)
"""Exif orientations that swap the width and the height."""


def frame_files(folder: str) -> list[str]:
    """Return the names of the JPEG files in a folder, in natural order: 1, 2, 10.

    Hidden files are left out. macOS writes a hidden file `._a.jpg` beside each file `a.jpg`.
    """
    files = list_files(folder) if is_remote(folder) else os.listdir(folder)
    names = [name for name in files if name.lower().endswith(_JPEG)]
    return sorted((name for name in names if name[0] != "."), key=_natural)


def _natural(name: str) -> tuple[list[str | int], str]:
    """Return a sort key that compares the numbers in names by their values."""
    parts = _NUMBER.split(name)  # every other part is a number
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], name


def read_jpeg(folder: str, name: str, mode: int = cv2.IMREAD_COLOR) -> NDArray[np.uint8]:
    """Decode a JPEG file, and rotate and mirror the picture according to its Exif orientation.

    Args:
        folder: The folder of the file.
        name: The name of the file in the folder.
        mode: An OpenCV read mode, which may request a reduced size.

    Returns:
        The picture, (H, W, 3) uint8 BGR.

    Raises:
        UnreadableVideoError: The file is not a JPEG, is truncated, or has too many pixels.
    """
    path = os.path.join(folder, name)
    check_regular(path, f"{name} ")
    content = read_range(path, 0, None)
    image = None
    # A decoder does not report a truncated file, but fills the missing part with grey. Count the
    # ends, because the Exif data may contain a small picture, and other bytes may follow the end.
    if content.count(_END) >= max(1, content.count(_BEGIN)):
        image = cv2.imdecode(np.frombuffer(content, np.uint8), mode)
    if image is None:
        raise UnreadableVideoError(f"cannot be decoded: {name} is not a complete JPEG file")
    check_pixels(image.shape[1], image.shape[0])
    return cast(NDArray[np.uint8], image)


def jpeg_size(path: str) -> tuple[int, int]:
    """Return the displayed width and height of a JPEG file, read from its header.

    Raises:
        UnreadableVideoError: The file is not a JPEG file.
    """
    check_regular(path)
    try:
        with open_file(path) as file, Image.open(file, formats=["JPEG"]) as image:
            turned = image.getexif().get(ExifTags.Base.Orientation) in _TRANSPOSED
            return image.size[::-1] if turned else image.size
    except RunError:
        raise
    except Exception as error:  # Pillow's errors for damaged files have no common base
        raise UnreadableVideoError(
            f"cannot be decoded: {os.path.basename(path)} is not a JPEG file"
        ) from error
