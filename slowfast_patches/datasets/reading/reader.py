"""Read planned clips from video files as arrays (T, S, S, 3) uint8.

A clip is read in four steps:

1. Take the frame indices from the plan. They were chosen before anything is read.
2. Seek to the last key frame at or before the first index. Seek again wherever many frames in a
   row are not needed.
3. Decode only the packets that the wanted frames depend on.
4. Crop the planes of the decoded frames, resize the crops, and only then convert them to RGB.

    decoded frame             Y  ▒▒▒▒▒▒▒▒   U ▒▒▒▒  V ▒▒▒▒     planes as the codec stores them
    crop and resize planes       ▒[████]▒     ▒[██]   ▒[██]    OpenCV, on views of decoder memory
    convert to RGB            RGB (S, S, 3)                    swscale, for all YUV formats

The reader needs the timestamps of the frames and the indices of the key frames. `scan` collects
them once per video in a `ScannedVideo`, which the index stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import cv2
import numpy as np
from av.video.frame import VideoFrame
from av.video.plane import VideoPlane
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from multigrid import ClipPlan, Window
from slowfast_patches.datasets.reading.decoding import decode_video
from slowfast_patches.datasets.reading.frames import frame_files
from slowfast_patches.datasets.reading.jpeg import read_jpeg
from slowfast_patches.datasets.reading.prepared import decode_prepared
from slowfast_patches.datasets.reading.scanned_video import (
    UPRIGHT,
    WHOLE,
    Image,
    Kind,
    Orientation,
    Part,
    ScannedVideo,
)
from slowfast_patches.datasets.reading.video_file import (
    UnreadableVideoError,
    check_pixels,
    translate_decode_errors,
)

Clip = NDArray[np.uint8]
_Frames = Iterator[tuple[int, VideoFrame | Clip]]
"""Yields each frame with its index in the video, in any order."""

_Region = tuple[slice, slice]
"""Slice of rows and slice of columns of a plane."""

_AVERAGED = 2.0
"""Minimum downscaling factor for which areas are averaged. At such factors, bilinear interpolation
would skip samples."""
_REDUCED = {
    8: cv2.IMREAD_REDUCED_COLOR_8,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    2: cv2.IMREAD_REDUCED_COLOR_2,
}


def read_clip(path: str, scanned: ScannedVideo, plan: ClipPlan) -> Clip:
    """Read a planned clip from a video. Arguments and errors are those of `read_clips`.

    Returns:
        The clip, (T, crop, crop, 3) uint8 RGB.
    """
    out = np.empty((len(plan.frame_indices), plan.crop, plan.crop, 3), np.uint8)
    read_clips(path, scanned, [plan], [out])
    return out


def read_clips(
    path: str, scanned: ScannedVideo, plans: Sequence[ClipPlan], outs: Sequence[Clip]
) -> None:
    """Read planned clips of a video in one pass.

    Each frame is decoded once and written to all clips that contain it. Apart from the clips, only
    one decoded frame is kept in memory. Indices beyond the end of a video give its last frame.
    Clips are not flipped, even if their plan has `flip`.

    Args:
        path: The video file or folder of JPEG files. Ignored if `scanned` names the files.
        scanned: The result of `scan(path)`.
        plans: The frame indices of each clip, in ascending order, and the window to read.
        outs: Array of each clip, (T, crop, crop, 3) uint8, to which RGB is written.

    Raises:
        UnreadableVideoError: The file is missing or does not match `scanned`, or a frame is too
            large or does not decode. The content of the arrays is then undefined.
    """
    video = scanned.video
    check_pixels(video.width, video.height)
    clips = list[_Clip]()
    for plan, out in zip(plans, outs, strict=True):
        shown = (video.width, video.height)
        cropper = Cropper(plan.window(video), shown, plan.crop, scanned.orientation, scanned.crop)
        clips.append(_Clip(cropper, out, plan.frame_indices.clip(max=video.frames - 1).tolist()))
    missing = {number for clip in clips for number in clip.rows}
    wanted = sorted(missing)
    with translate_decode_errors():
        if scanned.kind == Kind.PREPARED:
            frames: _Frames = decode_prepared(path, scanned, wanted)
        elif scanned.kind == Kind.FRAMES:
            shrinks = min(clip.cropper.shrinks for clip in clips)
            frames = _decode_files(path, scanned, wanted, shrinks)
        else:
            frames = decode_video(path, scanned, wanted)
        for number, frame in frames:
            for clip in clips:
                clip.write(number, frame)
            missing.discard(number)
    if missing:
        raise UnreadableVideoError(
            f"cannot be decoded: the decoder did not return frame {min(missing)}"
        )


class _Clip:
    """Output array of one clip, together with the crop and the frames that fill it.

    Attributes:
        cropper: Crops and resizes a frame.
        rows: Maps the index of a video frame to the indices in the clip that show the frame.
    """

    def __init__(self, cropper: Cropper, out: Clip, indices: list[int]) -> None:
        self.cropper = cropper
        self.rows = dict[int, list[int]]()
        self._out = out
        for row, index in enumerate(indices):
            self.rows.setdefault(index, []).append(row)

    def write(self, number: int, frame: VideoFrame | Clip) -> None:
        """Write a frame of the video to all places in the clip that show it."""
        if rows := self.rows.get(number):
            self.cropper(frame, self._out[rows[0]])
            self._out[rows[1:]] = self._out[rows[0]]


def _decode_files(path: str, scanned: ScannedVideo, wanted: list[int], shrinks: float) -> _Frames:
    """Yield the wanted pictures of a video that is stored as JPEG files.

    Decode at a half, a quarter or an eighth of the image size if that is large enough for crops
    that are downscaled by the factor `shrinks`.
    """
    files = scanned.files if scanned.files is not None else frame_files(path)
    if len(files) != scanned.video.frames:
        raise UnreadableVideoError(
            f"has {len(files)} frames, but the index says {scanned.video.frames}"
        )
    mode = next((m for by, m in _REDUCED.items() if shrinks >= by), cv2.IMREAD_COLOR)
    for number in wanted:
        yield number, read_jpeg("", files[number], mode)


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
