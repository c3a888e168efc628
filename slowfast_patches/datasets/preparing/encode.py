"""Encode videos in the prepared form, which `reading/prepared.py` describes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Interpolation, VideoReformatter
from numpy.typing import NDArray

from multigrid import Video
from multigrid.sampling import frames_at
from slowfast_patches.datasets.preparing.quality import CRF
from slowfast_patches.datasets.reading.damage import warn_of_damage
from slowfast_patches.datasets.reading.decoding import decode_all
from slowfast_patches.datasets.reading.frames import frame_files
from slowfast_patches.datasets.reading.jpeg import read_jpeg
from slowfast_patches.datasets.reading.prepared import ANCHOR, GROUP, TAG
from slowfast_patches.datasets.reading.scanned_video import UPRIGHT, WHOLE, Kind, ScannedVideo
from slowfast_patches.datasets.reading.video_file import (
    UnreadableVideoError,
    translate_decode_errors,
)
from slowfast_patches.utils.files import atomic_write

Picture = NDArray[np.uint8]
"""Frame in the format I420: (H * 3 / 2, W) uint8, with the planes Y, U and V in this order."""


X264 = {
    # The prepared form requires these values, because the reader relies on the group structure.
    "keyint": GROUP,
    "min-keyint": GROUP,
    "scenecut": 0,
    "bframes": ANCHOR - 1,
    "b-adapt": 0,
    "b-pyramid": "none",
    "open-gop": 0,
    "ref": 1,
    # Halve the cost of decoding: no CABAC, no deblocking, no weighted prediction.
    "cabac": 0,
    "no-deblock": 1,
    "weightp": 0,
    "weightb": 0,
    # Spend bits where they raise the PSNR.
    "psy": 0,
    "aq-mode": 0,
    # Write the same file in every run and on every CPU.
    # Without "cpu-independent", x264 distributes the bits by code that depends on the CPU.
    # With AVX-512 on a busy virtual machine, 1 of 50 runs gave another result.
    "threads": 1,
    "lookahead-threads": 1,
    "cpu-independent": 1,
}
"""Parameters of the encoder x264, by the names that x264 uses."""
_BT601 = (2, 5, 6)
"""Colour matrix codes (ITU-T H.273) that are treated as BT.601.

They are the code for "unspecified" and both codes for BT.601.
"""
_MIN_SHARE = 0.5
"""Minimum share of the frames of a damaged source that must decode."""
_MIN_RATE = Fraction(1, 100_000)
_TICKS = 90_000
"""Timestamps per second of prepared files with a variable frame rate."""


def write_prepared(
    source: str,
    scanned: ScannedVideo,
    target: Path,
    *,
    short_side: int = 256,
    fps: float | None = None,
    crf: float = CRF,
    modified: float | None = None,
) -> None:
    """Write the prepared form of a video, or of a folder of JPEG files, to `target`.

    All frames are rotated and mirrored as for display. Frames whose short side exceeds
    `short_side` pixels are resized so that their short side equals `short_side`. If `fps` is given,
    the target has a constant rate of `fps` frames per second, and each frame is the one that the
    source shows at this time. Otherwise, the target has all frames of the source at their times.
    `crf` is the constant rate factor of x264: smaller values mean higher quality and larger files.
    If `modified` is given, it becomes the modification time of the target, in seconds since the
    epoch.

    Raises:
        UnreadableVideoError: The source cannot be decoded.
        OSError: The target cannot be written.
    """
    video = scanned.video
    rate = max(_MIN_RATE, Fraction(fps or video.fps).limit_denominator(100_000))
    tick, stamps = _timeline(video, rate, resample=fps is not None)
    parameters = ":".join(f"{key}={value}" for key, value in X264.items())
    options = {"crf": f"{crf:g}", "x264-params": parameters}
    frames = 0
    # Let Python open the file, because PyAV would hide system errors such as a full disk.
    with atomic_write(target) as file:
        with av.open(file.name, "w", format="mp4") as container:
            container.metadata["comment"] = TAG
            stream = container.add_stream("libx264", rate=rate, options=options)
            stream.pix_fmt = "yuv420p"
            stream.codec_context.time_base = tick
            pictures = source_pictures(source, scanned, short_side)
            shown = _schedule(pictures, stamps, fills_gaps=fps is not None)
            for picture, times in shown:
                frame = VideoFrame.from_ndarray(picture, format="yuv420p")
                frame.time_base = tick
                if frames == 0:
                    stream.width = frame.width
                    stream.height = frame.height
                for frame.pts in times:
                    container.mux(stream.encode(frame))
                frames += 1
            container.mux(stream.encode(None))
            if frames < _MIN_SHARE * video.frames:
                raise UnreadableVideoError(
                    f"has {video.frames} frames, but only {frames} can be decoded"
                )
            if frames < video.frames:
                warn_of_damage(source, f"only {frames} of its {video.frames} frames decode")
        if modified is not None:
            os.utime(file.name, (modified, modified))


def _schedule(
    pictures: Iterator[tuple[int, Picture]],
    stamps: Sequence[NDArray[np.int64]],
    *,
    fills_gaps: bool,
) -> Iterator[tuple[Picture, list[int]]]:
    """Yield each picture with the times at which the prepared file shows it.

    Args:
        pictures: The pictures with their indices in the source.
        stamps: The times of each frame of the source.
        fills_gaps: Whether a picture is also shown at the times of the missing frames after it. The
            first picture is also shown at the times of the missing frames before it.
    """
    number, picture = next(pictures, (0, None))
    begin = 0
    while picture is not None:
        end, following = next(pictures, (len(stamps), None))
        times = stamps[begin:end] if fills_gaps else stamps[number : number + 1]
        yield picture, np.concatenate(times).tolist()
        begin = number = end
        picture = following


def _timeline(
    video: Video, rate: Fraction, *, resample: bool
) -> tuple[Fraction, Sequence[NDArray[np.int64]]]:
    """Return when a prepared file shows the frames of a video.

    Args:
        video: The video.
        rate: Frame rate of the prepared file.
        resample: Whether to repeat and omit frames so that the rate becomes constant.

    Returns:
        The duration of a tick in seconds, and the times in ticks at which each frame is shown.
    """
    if resample:
        count = max(1, round(video.frames / video.fps * rate))
        step = max(_MIN_RATE, Fraction(video.fps).limit_denominator(100_000)) / rate
        # Multiply first, so that a moment at which a frame begins is exact.
        moments = np.arange(count) * float(step.numerator) / step.denominator
        firsts = np.searchsorted(frames_at(moments, video), np.arange(1, video.frames))
        return 1 / rate, np.split(np.arange(count), firsts)
    if video.moments is None:
        return 1 / rate, list(np.arange(video.frames)[:, None])
    seconds = (video.moments - video.moments[0]) / video.fps
    return Fraction(1, _TICKS), list(np.rint(seconds * _TICKS).astype(np.int64)[:, None])


def source_pictures(
    source: str, scanned: ScannedVideo, short_side: int
) -> Iterator[tuple[int, Picture]]:
    """Yield the frames of the source with their indices, as they are displayed, and resized.

    All frames have the same width and height, which are both even numbers. Frames that cannot be
    decoded are left out.
    """
    video = scanned.video
    scale = min(1.0, short_side / min(video.width, video.height))
    size = [max(2, round(side * scale / 2) * 2) for side in (video.width, video.height)]
    width, height = scanned.orientation.turned_size(*size)
    resize = VideoReformatter()

    def to(frame: VideoFrame, pixels: str) -> NDArray[np.uint8]:
        bicubic = Interpolation.BICUBIC
        resized = resize.reformat(frame, width, height, pixels, interpolation=bicubic, threads=1)
        return cast(NDArray[np.uint8], resized.to_ndarray())

    with translate_decode_errors():
        for number, frame in _decoded(source, scanned):
            if scanned.crop != WHOLE:
                rows, columns = scanned.crop.slices(frame.width, frame.height)
                image = cast(NDArray[np.uint8], frame.to_ndarray(format="rgb24"))
                part = np.ascontiguousarray(image[rows, columns])
                frame = VideoFrame.from_ndarray(part, format="rgb24")
            if scanned.orientation == UPRIGHT and _is_plain(frame):
                yield number, to(frame, "yuv420p")
                continue
            shown = np.ascontiguousarray(scanned.orientation.shown(to(frame, "rgb24")))
            picture = VideoFrame.from_ndarray(shown, format="rgb24").reformat(format="yuv420p")
            yield number, cast(Picture, picture.to_ndarray())


def _is_plain(frame: VideoFrame) -> bool:
    """Return whether a frame needs no colour conversion: 8-bit yuv420p, BT.601, limited range."""
    return (
        frame.format.name == "yuv420p"
        and frame.colorspace in _BT601
        and frame.color_range in (ColorRange.UNSPECIFIED, ColorRange.MPEG)
    )


def _decoded(source: str, scanned: ScannedVideo) -> Iterator[tuple[int, VideoFrame]]:
    if scanned.kind == Kind.FRAMES:
        for number, name in enumerate(frame_files(source)):
            picture = read_jpeg("", name)
            yield number, VideoFrame.from_ndarray(picture, format="bgr24")
        return
    latest = -1
    for number, frame in decode_all(source, scanned):
        if number > latest:
            latest = number
            yield number, frame
