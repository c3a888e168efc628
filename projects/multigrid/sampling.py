"""Sampling grids: which frames and which crop of a video form a clip (paper §3.1).

A grid of t frames of h × h pixels is coarser than the baseline's if t or h is smaller. A clip of a
coarser grid can still show the same part of a video. Its stride is drawn at random, from the
baseline's stride τ to the stride at which t frames span as much time as a baseline clip. The short
side of the frames may shrink in proportion to the crop.

    baseline   T = 8, τ = 2    |.|.|.|.|.|.|.|.          a video's frames, | = sampled
    coarse     t = 2, s = 2    |.|.............          stride s uniform in [τ, τ·T/t]
               t = 2, s = 8    |.......|.......

If each video shows one action from beginning to end, sample in segments instead (TSN, Wang et al.
2016). The video is divided into t segments of equal length, and the clip has one frame from each
segment. A coarser grid has fewer and longer segments, so its clips also span the whole video.

    baseline   T = 8           .|.||..||.|..||.          one random frame in each of T or t
    coarse     t = 2           .....|....|.....          segments

All random choices for a clip are made here, with a generator for each clip, before the video is
read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid.shapes import Shape


class Video(NamedTuple):
    """Properties of a video that determine how clips are sampled.

    Attributes:
        frames: Number of frames.
        fps: Frames per second.
        width: Width of the frames, in pixels.
        height: Height of the frames, in pixels.
        moments: For a variable frame rate, the time from which each frame is shown, (frames,),
            ascending, in units of 1 / `fps`. `fps` is then the mean frame rate. None means that
            frame i is shown from i on.
    """

    frames: int
    fps: float
    width: int
    height: int
    moments: NDArray[np.float64] | None = None


class Box(NamedTuple):
    """Rectangle in a video frame, in pixels. Coordinates may be fractional."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class SamplingOptions:
    """Options of how clips are cut from videos, for all shapes of a training.

    Args:
        keep_field_of_view: If True, smaller crops show as much of a frame as the baseline's crops,
            at a lower resolution. If False, as in the paper, a crop of h pixels may show as little
            as h/H of the width and height of a baseline crop.
        flip: Mirror half of the training clips, at random.
        inverse_scale: Draw the inverse of the short side uniformly, instead of the short side.
        segments: Divide the video into T segments of equal length and sample one frame from each,
            instead of sampling frames at a stride.
        exact_strides: If True, the distance between frames is exactly the stride. If False, as in
            PySlowFast, it is slightly larger: the last sampled frame is the last frame of the span.
            Videos with a variable frame rate are sampled as if this were True.
    """

    keep_field_of_view: bool = True
    flip: bool = True
    inverse_scale: bool = False
    segments: bool = False
    exact_strides: bool = False


_DEFAULTS = SamplingOptions()


@dataclass(frozen=True)
class Grid:
    """How clips of one shape are sampled from videos.

    Args:
        frames: Number of frames of a clip.
        crop: Side of the square crop, in pixels.
        strides: Inclusive range (min, max) of strides, in frames at the target frame rate. Ignored
            with `options.segments`.
        short_sides: Inclusive range (min, max) of the short side of resized frames, in pixels.
        options: How clips are cut from videos.
        base: Grid of the baseline. None if this is the grid of the baseline.
    """

    frames: int
    crop: int
    strides: tuple[int, int]
    short_sides: tuple[int, int]
    options: SamplingOptions = _DEFAULTS
    base: Grid | None = None


@dataclass(frozen=True)
class ClipPlan:
    """Frames and crop to read from a video for one clip.

    Args:
        positions: Indices of the frames, (T,).
        size: (width, height) to which frames are resized.
        corner: (x, y) of the crop's upper left corner in the resized frame.
        crop: Side of the square crop, in pixels.
        flip: Whether to mirror the clip.
        coverage: Fraction (time, space) of a baseline clip that the clip shows. Position embeddings
            need this (see `set_coverage`).
    """

    positions: NDArray[np.int64]
    size: tuple[int, int]
    corner: tuple[int, int]
    crop: int
    flip: bool
    coverage: tuple[float, float] = (1.0, 1.0)

    def box(self, video: Video) -> Box:
        """Return the crop in the coordinates of the frame before resizing."""
        across = video.width / self.size[0]
        down = video.height / self.size[1]
        x, y = self.corner
        return Box(x * across, y * down, self.crop * across, self.crop * down)


def make_grid(
    shape: Shape,
    base: Shape,
    stride: int,
    short_sides: tuple[int, int],
    options: SamplingOptions = _DEFAULTS,
) -> Grid:
    """Return the grid of a shape.

    Its strides are [τ, τ·T/t]. Its short sides are [min·h/H, max·h/H] with `keep_field_of_view`,
    and [min·h/H, max] without, as in the paper (§3.1, §4).

    Args:
        shape: The shape of the mini-batch.
        base: The baseline's shape.
        stride: The baseline's stride τ, in frames.
        short_sides: Range (min, max) of the baseline's short sides, in pixels.
        options: How clips are cut from videos.

    Raises:
        ValueError: The crop is larger than the maximum short side.
    """
    low, high = short_sides
    if high < max(low, shape.crop):
        raise ValueError(
            f"a crop of {shape.crop} pixels does not fit into frames with a short side of {low} to "
            f"{high} pixels. Choose a smaller crop or larger short sides"
        )
    scale = shape.crop / base.crop
    is_base = (shape.frames, shape.crop) == (base.frames, base.crop)
    return Grid(
        frames=shape.frames,
        crop=shape.crop,
        strides=(stride, max(stride, stride * base.frames // shape.frames)),
        short_sides=(
            max(shape.crop, round(low * scale)),
            max(shape.crop, round(high * scale)) if options.keep_field_of_view else high,
        ),
        options=options,
        base=None if is_base else Grid(base.frames, base.crop, (stride, stride), short_sides),
    )


def clip_generator(seed: int, epoch: int, video: int) -> np.random.Generator:
    """Return the random generator of one clip. It does not depend on shape, rank or worker."""
    return np.random.default_rng((seed, epoch, video))


def plan_train(
    rng: np.random.Generator,
    grid: Grid,
    video: Video,
    target_fps: float = 30.0,
    *,
    centre: float | None = None,
) -> ClipPlan:
    """Plan a random training clip of a video.

    The order of the random draws does not depend on the grid. With the same generator, any two
    grids therefore sample nearly the same part of the video. Sampling in segments draws one number
    per frame from a spawned generator, because the number of frames depends on the grid.

    Args:
        rng: The random generator of the clip (see `clip_generator`).
        grid: The grid of the clip's shape.
        video: The video to sample.
        target_fps: Frame rate that strides refer to. 0 means the frame rate of the video.
        centre: Index of the frame in the middle of the clip. Frames are then exactly a stride
            apart, as in PySlowFast's AVA data set. None means a random start.
    """
    u_stride, u_start, u_scale, u_x, u_y, u_flip = rng.random(6)
    low, high = grid.strides
    stride = low + int(u_stride * (high - low + 1))
    rate = _rate(video, target_fps)
    exact = _is_exact(grid.options, video, centre)
    if grid.options.segments:
        positions = _in_segments(rng.spawn(1)[0].random(grid.frames), video)
    else:
        span = stride * grid.frames * rate
        start = u_start * max(video.frames - span, 0.0)
        if centre is not None:
            start = _start_around(centre, span, video)
        positions = _positions(start, span, grid.frames, video, exact=exact)
    short_side = _short_side(u_scale, grid)
    size = _resized(video, short_side)
    corner = (int(u_x * (size[0] - grid.crop + 1)), int(u_y * (size[1] - grid.crop + 1)))
    flip = grid.options.flip and bool(u_flip < 0.5)
    coverage = _coverage(grid, stride, rate, short_side, exact=exact)
    return ClipPlan(positions, size, corner, grid.crop, flip, coverage)


def plan_test(
    video: Video,
    *,
    frames: int,
    stride: int,
    crop: int,
    view: tuple[int, int] = (0, 1),
    spatial: tuple[int, int] = (0, 1),
    target_fps: float = 30.0,
    short_side: int | None = None,
    options: SamplingOptions = _DEFAULTS,
    to_end: bool = False,
    centre: float | None = None,
) -> ClipPlan:
    """Plan a test clip: one of several views (in time) and one of 1 or 3 crops of a video.

    A single view is taken from the middle of the video. With n views, view k starts at k/n of the
    range of possible starts, as in PySlowFast. The last view therefore ends before the video ends.

    If clips are sampled in segments, every view spans the whole video. View k of n has the frame at
    (k + 0.5)/n of each segment. `stride`, `target_fps` and `to_end` are then ignored.

    Args:
        video: The video to sample.
        frames: Number of frames of the clip.
        stride: Distance between frames, in frames at `target_fps`.
        crop: Side of the square crop, in pixels.
        view: (index, number of views).
        spatial: (index, number of crops). A single crop is taken from the centre. Three crops are
            left, centre and right of a wide video, or top, centre and bottom of a tall video.
        target_fps: Frame rate that `stride` refers to. 0 means the frame rate of the video.
        short_side: Short side to which frames are resized, in pixels. None means `crop`.
        options: How clips are cut from videos.
        to_end: Start view k at k/(n - 1) of the range instead, so that the last view ends at the
            end of the video.
        centre: Index of the frame in the middle of the clip. `view` is then ignored, and frames are
            exactly a stride apart.

    Raises:
        ValueError: The number of crops is neither 1 nor 3, or the short side is smaller than the
            crop.
    """
    index, views = view
    part, crops = spatial
    if crops not in (1, 3):
        raise ValueError(f"the number of spatial crops is {crops}, but it must be 1 or 3")
    if short_side is not None and short_side < crop:
        raise ValueError(
            f"a crop of {crop} pixels does not fit into frames with a short side of {short_side} "
            "pixels. Choose a smaller crop or a larger short side"
        )
    if options.segments:
        positions = _in_segments(np.full(frames, (index + 0.5) / views), video)
    else:
        span = stride * frames * _rate(video, target_fps)
        room = max(video.frames - span, 0.0)
        start = room / 2 if views == 1 else room * index / (views - to_end)
        if centre is not None:
            start = _start_around(centre, span, video)
        exact = _is_exact(options, video, centre)
        positions = _positions(start, span, frames, video, exact=exact)
    size = _resized(video, short_side or crop)
    place = 1 if crops == 1 else part
    wide = size[0] >= size[1]
    across = (0, round((max(size) - crop) / 2), max(size) - crop)[place]
    centre = round((min(size) - crop) / 2)
    corner = (across, centre) if wide else (centre, across)
    return ClipPlan(positions, size, corner, crop, False)


def frames_at(moments: NDArray[np.float64], video: Video) -> NDArray[np.int64]:
    """Return the index of the frame that a video shows at each moment, (T,) int64.

    A video with a variable frame rate is sampled by time: strides and clips are planned on a video
    of the mean frame rate, and each wanted moment takes the frame that is shown then.

    Args:
        moments: Times in units of 1 / `video.fps`, (T,). Times outside the video take the first or
            last frame.
        video: The video to sample.
    """
    frames = moments.astype(np.int64)
    if video.moments is not None:
        frames = np.searchsorted(video.moments, moments, "right").astype(np.int64) - 1
    return np.clip(frames, 0, video.frames - 1)


def _rate(video: Video, target_fps: float) -> float:
    """Return the frame rate of a video as a multiple of `target_fps`, or 1 if that is 0."""
    return video.fps / target_fps if target_fps else 1.0


def _start_around(centre: float, span: float, video: Video) -> float:
    """Return where a clip around a key frame starts.

    If the frame rate is constant, that is a whole number of frames before `centre`, as in
    PySlowFast.
    """
    return centre - (span // 2 if video.moments is None else span / 2)


def _is_exact(options: SamplingOptions, video: Video, centre: float | None) -> bool:
    """Return whether the frames of a clip are exactly a stride apart (see `_positions`)."""
    return options.exact_strides or centre is not None or video.moments is not None


def _positions(
    start: float, span: float, frames: int, video: Video, *, exact: bool
) -> NDArray[np.int64]:
    """Return the indices of the frames of a clip, (frames,) int64.

    If the clip extends beyond the end of the video, the last frame is repeated.

    Args:
        start: Position of the first frame.
        span: Length of the clip in video frames.
        frames: Number of frames of the clip.
        video: The video to sample.
        exact: If True, the distance between frames is the stride, span / frames. If False, as in
            PySlowFast, it is (span - 1) / (frames - 1), so the last frame is at start + span - 1.
    """
    if exact:
        moments = start + np.arange(frames) * span / frames
    else:
        moments = np.linspace(start, start + max(span - 1, 0.0), frames)
    return frames_at(moments, video)


def _coverage(
    grid: Grid, stride: int, rate: float, short_side: int, *, exact: bool
) -> tuple[float, float]:
    """Return the fraction (time, space) of a baseline clip that a clip shows.

    Args:
        grid: The grid of the clip.
        stride: Stride of the clip, in frames at the target frame rate.
        rate: Frame rate of the video as a multiple of the target frame rate.
        short_side: Short side to which frames are resized, in pixels.
        exact: Whether frames are whole strides apart (see `_positions`).
    """
    base = grid.base
    in_time = 1.0
    if base is None:
        return 1.0, 1.0
    if not grid.options.segments:
        covered, by_base = (
            _covered(frames, frames * tau * rate, exact=exact)
            for frames, tau in ((grid.frames, stride), (base.frames, base.strides[0]))
        )
        in_time = covered / by_base
    # Baseline crops have a coverage of 1, although they show different fractions of a frame.
    # So the coverage is 1 for any crop that shows at least the smallest of these fractions.
    least = base.crop / base.short_sides[1]
    return in_time, min(1.0, grid.crop / short_side / least)


def _covered(frames: int, span: float, *, exact: bool) -> float:
    """Return the length of a clip in video frames: number of frames × distance between frames.

    With this definition, interpolated position embeddings match the times of the frames.
    """
    if exact or frames == 1 or span <= 1:
        return span
    return (span - 1) / (frames - 1) * frames


def _in_segments(parts: NDArray[np.float64], video: Video) -> NDArray[np.int64]:
    """Return the index of one frame in each of T segments of equal length of a video, (T,) int64.

    If the number of frames is not a multiple of T, segments end within frames, and two segments may
    sample the same frame. For any T, all frames of the video are equally likely.

    Args:
        parts: Position within each segment, (T,), in [0, 1).
        video: The video to sample.
    """
    moments = (np.arange(len(parts)) + parts) * video.frames / len(parts)
    return frames_at(moments, video)


def _short_side(u: float, grid: Grid) -> int:
    low, high = grid.short_sides
    if grid.options.inverse_scale:
        return max(low, round(1 / (1 / high + u * (1 / low - 1 / high))))
    return round(low + u * (high - low))


def _resized(video: Video, short_side: int) -> tuple[int, int]:
    """Return the (width, height) of resized frames, with the long side rounded down."""
    if video.width < video.height:
        return short_side, video.height * short_side // video.width
    return video.width * short_side // video.height, short_side
