"""Crop and resize decoded frames, and only then convert them to RGB.

decoded frame             Y  ▒▒▒▒▒▒▒▒   U ▒▒▒▒  V ▒▒▒▒     planes as the codec stores them
crop and resize planes       ▒[████]▒     ▒[██]   ▒[██]    OpenCV, on views of the decoder's memory
convert to RGB            RGB (S, S, 3)                    swscale, for all YUV formats
"""

from __future__ import annotations

from typing import Any, cast

import cv2
import numpy as np
from av.video.format import VideoFormat
from av.video.frame import VideoFrame
from av.video.plane import VideoPlane
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from multigrid import Box
from slowfast_patches.datasets.reading.orientation import UPRIGHT, Orientation

Image = NDArray[np.uint8]

_Region = tuple[slice, slice]
"""Slice of rows and slice of columns of a plane."""

_AVERAGED = 2.0
"""Minimum downscaling factor for which areas are averaged. Bilinear interpolation would skip
samples from this factor on."""


class Cropper:
    """Crops a box from frames and resizes the crop to (size, size, 3) uint8 RGB.

    The box is rounded to whole samples of the chroma planes, so that luma and chroma stay aligned.
    If the frame size changes within a stream, the box keeps its position relative to the frame.
    Downscaling by a factor of 2 or more averages areas. All other resizing is bilinear.

    Args:
        box: The box in pixels of the displayed picture.
        shown: Width and height of the displayed picture in pixels.
        size: Side of the output in pixels.
        orientation: How the stored picture is shown.
    """

    def __init__(
        self,
        box: Box,
        shown: tuple[int, int],
        size: int,
        orientation: Orientation = UPRIGHT,
    ) -> None:
        width, height = shown
        part = Box(box.x / width, box.y / height, box.width / width, box.height / height)
        self._size = size
        self._orientation = orientation
        self._part = orientation.stored(part)
        self.shrinks = min(box.width, box.height) / size
        """Downscaling factor: the shorter side of the box divided by the side of the output."""
        self._source: tuple[str, int, int, int, int] | None = None
        self._reformatter = VideoReformatter()

    def __call__(self, frame: VideoFrame, out: Image) -> None:
        """Crop and resize a decoded frame into `out`, (size, size, 3) RGB."""
        source = (frame.format.name, frame.width, frame.height, frame.colorspace, frame.color_range)
        if source != self._source:
            self._adapt(frame)
            self._source = source
        if self._small is None:
            whole = self._reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray()
            image: Image = np.empty((self._size, self._size, 3), np.uint8)
            _resize(whole[self._regions[0]], image)
        else:
            for plane, region, target in zip(
                frame.planes, self._regions, self._targets, strict=True
            ):
                _resize(_samples(plane, self._depth)[region], target)
            # One thread, because a thread pool per frame costs several times the conversion.
            small = self._reformatter.reformat(self._small, format="rgb24", threads=1)
            image = cast(Image, small.to_ndarray())
        out[:] = self._orientation.shown(image)

    def image(self, image: Image, out: Image) -> None:
        """Crop and resize a picture (H, W, 3) into `out`, (size, size, 3).

        The order of the channels stays the same. The picture is neither rotated nor mirrored.
        """
        _resize(image[_region(self._part, (image.shape[1], image.shape[0]), (1, 1))], out)

    def _adapt(self, frame: VideoFrame) -> None:
        """Compute the crop of each plane and allocate the resized planes, for frames like `frame`.

        Frames are alike if they have the same size, pixel format and colour space.
        """
        size = self._size
        fmt = frame.format
        width = frame.width
        height = frame.height
        self._small: VideoFrame | None = None
        if not _is_planar_yuv(fmt):
            self._regions = [_region(self._part, (width, height), (1, 1))]
            return
        steps = [(round(width / c.width), round(height / c.height)) for c in fmt.components]
        luma = _region(self._part, (width, height), max(steps))
        self._regions = [_subsample(luma, step) for step in steps]
        self._small = VideoFrame(size, size, fmt.name)
        self._small.colorspace = frame.colorspace
        self._small.color_range = frame.color_range
        self._depth = np.dtype(np.uint8 if fmt.components[0].bits == 8 else np.uint16)
        self._targets = [_samples(plane, self._depth) for plane in self._small.planes]


def _is_planar_yuv(fmt: VideoFormat) -> bool:
    """Return whether a format stores Y, U and V in separate planes, in native byte order."""
    planes = [component.plane for component in fmt.components]
    return planes == [0, 1, 2] and not fmt.is_rgb and not fmt.is_big_endian


def _region(part: Box, sides: tuple[int, int], step: tuple[int, int]) -> _Region:
    """Return the slices of a plane that contain a box.

    Args:
        part: The box, in coordinates from 0 to 1 relative to the width and height of the plane.
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
