"""Turn, crop and resize decoded frames, and only then convert them to RGB.

decoded frame             Y  ▒▒▒▒▒▒▒▒   U ▒▒▒▒  V ▒▒▒▒     planes as the codec stores them
crop and resize planes       ▒[████]▒     ▒[██]   ▒[██]    OpenCV, on views of the decoder's memory
convert to RGB            RGB (S, S, 3)                    swscale, for all YUV formats
"""

from __future__ import annotations

import math
import re
import struct
from typing import Any, NamedTuple, cast

import av
import cv2
import numpy as np
from av.video.frame import VideoFrame
from av.video.plane import VideoPlane
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from multigrid import Window
from slowfast_patches.datasets.reading.video_file import VideoFile

Image = NDArray[np.uint8]

_Region = tuple[slice, slice]
"""Slice of rows and slice of columns of a plane."""

_AVERAGED = 2.0
"""Minimum downscaling factor for which areas are averaged. At such factors, bilinear interpolation
would skip samples."""


class Orientation(NamedTuple):
    """How to show a stored picture: mirror it left to right if `mirrored`, and then rotate it."""

    turns: int = 0  # quarter turns counterclockwise
    mirrored: bool = False

    def shown(self, image: Image) -> Image:
        """Rotate and mirror a stored picture (H, W, ...) for display. The result is a view."""
        if not any(self):  # np.rot90 is slow
            return image
        return np.rot90(image[:, ::-1] if self.mirrored else image, self.turns)

    def turned_size(self, width: int, height: int) -> tuple[int, int]:
        """Swap the width and height if a rotation swaps them."""
        return (height, width) if self.turns % 2 else (width, height)

    def stored(self, window: Window) -> Window:
        """Transform a window from the shown to the stored picture.

        Both windows are in coordinates from 0 to 1 relative to the sides of the picture.
        """
        x, y, w, h = window.x, window.y, window.width, window.height
        for _ in range(self.turns):
            x, y, w, h = 1 - y - h, x, h, w
        return Window(1 - x - w if self.mirrored else x, y, w, h)


UPRIGHT = Orientation()


def orientation_of(frame: VideoFrame) -> Orientation:
    """Return the orientation in the display matrix of a frame.

    The matrix (a b u, c d v, x y w) moves a stored point (p, q) to (ap + cq + x, bp + dq + y). Its
    rotation is rounded to a multiple of 90 degrees.
    """
    matrix: Any = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return UPRIGHT
    a, b, _, c, d = struct.unpack_from("=5i", matrix)
    mirrored = a * d < b * c
    sign = -1 if mirrored else 1
    return Orientation(round(math.atan2(-sign * b, sign * a) / (math.pi / 2)) % 4, mirrored)


class Part(NamedTuple):
    """Part of a stored picture, in coordinates from 0 to 1 relative to the sides of the picture."""

    x: float = 0.0
    y: float = 0.0
    width: float = 1.0
    height: float = 1.0

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Return the width and height in pixels of the part of a picture."""
        return max(1, round(self.width * width)), max(1, round(self.height * height))

    def slices(self, width: int, height: int) -> tuple[slice, slice]:
        """Return the rows and the columns of the part of a picture."""
        columns, rows = self.size(width, height)
        left, top = round(self.x * width), round(self.y * height)
        return slice(top, top + rows), slice(left, left + columns)

    def within(self, window: Window) -> Window:
        """Convert a window of the part, in coordinates from 0 to 1, to the whole picture."""
        return Window(
            self.x + window.x * self.width,
            self.y + window.y * self.height,
            window.width * self.width,
            window.height * self.height,
        )


WHOLE = Part()
_CROPPING = re.compile(r"Frame Cropping: (\d+)/(\d+)/(\d+)/(\d+)")
"""Left, right, top and bottom margin, in FFmpeg's description of a stream."""


def crop_of(file: VideoFile, frame: VideoFrame) -> Part:
    """Return the part of the stored picture that is shown according to the container.

    mp4 files have a clean aperture, and Matroska files have a crop. PyAV gives access to them only
    through FFmpeg's description of the file.
    """
    level = av.logging.get_level()
    av.logging.set_level(av.logging.INFO)
    try:
        container: Any = file.container  # PyAV's type stubs lack this method
        text = container.dumps_format()
    finally:
        av.logging.set_level(level)
    _, _, described = text.partition(f"Stream #0:{file.stream.index}")
    margins = _CROPPING.search(described.partition("Stream #")[0])
    if margins is None:
        return WHOLE
    left, right, top, bottom = map(int, margins.groups())
    width, height = frame.width - left - right, frame.height - top - bottom
    if width <= 0 or height <= 0:
        return WHOLE
    return Part(left / frame.width, top / frame.height, width / frame.width, height / frame.height)


class Cropper:
    """Crops a window from frames and resizes the crop to (size, size, 3) uint8 RGB.

    The window is rounded to whole samples of the chroma planes. Luma and chroma thus stay aligned.
    If the frame size changes within a stream, the window keeps its position relative to the frame.
    Downscaling by a factor of 2 or more averages areas. All other resizing is bilinear.

    Args:
        window: The window in pixels of the displayed picture.
        shown: Width and height of the displayed picture in pixels.
        size: Side of the output in pixels.
        orientation: How the stored picture is shown.
        crop: The part of the stored picture that is shown.
    """

    def __init__(
        self,
        window: Window,
        shown: tuple[int, int],
        size: int,
        orientation: Orientation = UPRIGHT,
        crop: Part = WHOLE,
    ) -> None:
        width, height = shown
        part = Window(
            window.x / width, window.y / height, window.width / width, window.height / height
        )
        self._size = size
        self._orientation = orientation
        self._part = crop.within(orientation.stored(part))
        self.shrinks = min(window.width, window.height) / size
        """Downscaling factor: the shorter side of the window divided by the side of the output."""
        self._source: tuple[str, int, int, int, int] | None = None
        self._crops = list[tuple[_Region, NDArray[Any]]]()
        self._reformatter = VideoReformatter()

    def __call__(self, frame: VideoFrame | Image, out: Image) -> None:
        """Crop and resize a decoded frame into `out`, (size, size, 3) RGB.

        The frame may also be a picture (H, W, 3) BGR, which is neither rotated nor mirrored.
        """
        if isinstance(frame, np.ndarray):
            self.image(frame, out)
            out[:] = out[..., ::-1]
            return
        source = (frame.format.name, frame.width, frame.height, frame.colorspace, frame.color_range)
        if source != self._source:
            self._adapt(frame)
            self._source = source
        if self._crops:
            for plane, (region, target) in zip(frame.planes, self._crops, strict=True):
                _resize(_samples(plane, target.dtype)[region], target)
            image = self._to_rgb(self._small)
        else:
            image = np.empty((self._size, self._size, 3), np.uint8)
            self.image(self._to_rgb(frame), image)
        out[:] = self._orientation.shown(image)

    def image(self, image: Image, out: Image) -> None:
        """Crop and resize a picture (H, W, 3) into `out`, (size, size, 3).

        The order of the channels stays the same. The picture is neither rotated nor mirrored.
        """
        _resize(image[_region(self._part, (image.shape[1], image.shape[0]), (1, 1))], out)

    def _to_rgb(self, frame: VideoFrame) -> Image:
        # Use one thread, because a thread pool per frame takes several times as long.
        rgb = self._reformatter.reformat(frame, format="rgb24", threads=1)
        return cast(Image, rgb.to_ndarray())

    def _adapt(self, frame: VideoFrame) -> None:
        """Compute the crop of each plane and allocate the resized planes, for frames like `frame`.

        Frames are alike if they have the same size, pixel format and colour space. Frames without
        planes Y, U and V have no crops.
        """
        fmt = frame.format
        self._crops = []
        if [part.plane for part in fmt.components] != [0, 1, 2] or fmt.is_rgb or fmt.is_big_endian:
            return
        sides = (frame.width, frame.height)
        steps = [(round(sides[0] / c.width), round(sides[1] / c.height)) for c in fmt.components]
        luma = _region(self._part, sides, max(steps))
        self._small = VideoFrame(self._size, self._size, fmt.name)
        self._small.colorspace = frame.colorspace
        self._small.color_range = frame.color_range
        depth = np.dtype(np.uint8 if fmt.components[0].bits == 8 else np.uint16)
        for step, plane in zip(steps, self._small.planes, strict=True):
            self._crops.append((_subsample(luma, step), _samples(plane, depth)))


def _region(part: Window, sides: tuple[int, int], step: tuple[int, int]) -> _Region:
    """Return the slices of a plane that contain a window.

    Args:
        part: The window, in coordinates from 0 to 1 relative to the width and height of the plane.
        sides: Width and height of the plane.
        step: Alignment (columns, rows). Each slice starts at a multiple of its step, and is at
            least one step long.
    """
    columns = _range(part.x, part.width, sides[0], step[0])
    return _range(part.y, part.height, sides[1], step[1]), columns


def _range(start: float, length: float, side: int, step: int) -> slice:
    last = max(0, (side - 1) // step) * step
    first = min(max(0, round(start * side / step) * step), last)
    count = max(1, round(length * side / step))
    return slice(first, min(first + count * step, side))


def _subsample(region: _Region, step: tuple[int, int]) -> _Region:
    """Convert a region of the luma plane to the region of a plane subsampled by `step`.

    The luma region must start at multiples of `step` (columns, rows).
    """
    rows, columns = (
        slice(part.start // by, -(-part.stop // by))
        for part, by in zip(region, reversed(step), strict=True)
    )
    return rows, columns


def _samples(plane: VideoPlane, depth: np.dtype[Any]) -> NDArray[Any]:
    """Return the samples of a plane as an array (height, width) that shares its memory."""
    rows: NDArray[Any] = np.frombuffer(memoryview(plane), depth).reshape(
        -1, plane.line_size // depth.itemsize
    )
    return rows[: plane.height, : plane.width]


def _resize(samples: NDArray[Any], out: NDArray[Any]) -> None:
    height, width = out.shape[:2]
    shrinks = max(samples.shape[0] / height, samples.shape[1] / width) >= _AVERAGED
    interpolation = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    cv2.resize(samples, (width, height), dst=out, interpolation=interpolation)
