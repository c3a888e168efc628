"""Read planned clips from video files as arrays (T, S, S, 3) uint8.

A clip is read in four steps:

1. Take the frame positions from the plan. They were chosen before anything is read.
2. Seek to the last key frame at or before the first position. Seek again wherever many frames in a
   row are not needed.
3. Decode only the packets that the wanted frames depend on.
4. Crop the planes of the decoded frames, resize the crops, and convert them to RGB.

The reader needs the timestamps of the frames and the positions of the key frames. `scan` collects
them once per video in a `ScannedVideo`, which the index stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import cv2
import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from multigrid import ClipPlan
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError, translate_decode_errors
from slowfast_patches.datasets.reading.decoding import decode_video
from slowfast_patches.datasets.reading.frames import frame_files
from slowfast_patches.datasets.reading.jpeg import read_jpeg
from slowfast_patches.datasets.reading.pixels import Cropper
from slowfast_patches.datasets.reading.prepared import decode_prepared
from slowfast_patches.datasets.reading.scanned_video import Kind, ScannedVideo
from slowfast_patches.datasets.reading.video_file import check_pixels

Clip = NDArray[np.uint8]
_Frames = Iterator[tuple[int, VideoFrame | Clip]]
"""Yields each frame with its index in the video, in any order."""

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
    out = np.empty((len(plan.positions), plan.crop, plan.crop, 3), np.uint8)
    read_clips(path, scanned, [plan], [out])
    return out


def read_clips(
    path: str, scanned: ScannedVideo, plans: Sequence[ClipPlan], outs: Sequence[Clip]
) -> None:
    """Read planned clips of a video in one pass.

    Each frame is decoded once and written to all clips that contain it. Apart from the clips, only
    one decoded frame is kept in memory. Positions beyond the end of a video give its last frame.
    Clips are not flipped, even if their plan has `flip`.

    Args:
        path: The video file or folder of JPEG files. Ignored if `scanned` names the files.
        scanned: The result of `scan(path)`.
        plans: The frame positions of each clip, in ascending order, and the window to read.
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
        clips.append(_Clip(cropper, out, plan.positions.clip(max=video.frames - 1).tolist()))
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

    def __init__(self, cropper: Cropper, out: Clip, positions: list[int]) -> None:
        self.cropper = cropper
        self.rows = dict[int, list[int]]()
        self._out = out
        for row, position in enumerate(positions):
            self.rows.setdefault(position, []).append(row)

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
