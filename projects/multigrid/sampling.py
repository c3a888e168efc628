"""Sampling grids: from a span and a stride to frame indices and a crop box (paper §3.1).

A grid of t frames of h × h pixels may cover the same part of a video as the baseline's clip, but
more coarsely. Its stride is drawn up to the one that spans as much as the baseline's clip, and its
short side may shrink with the crop.

    baseline   T = 8, τ = 2    |.|.|.|.|.|.|.|.          a video's frames, | = sampled
    coarse     t = 2, s = 2    |.|.............
               t = 2, s = 8    |.......|.......          s uniform in [τ, τ·T/t]

Data sets whose videos show one action from beginning to end are sampled in segments instead (TSN,
Wang et al. 2016): a clip of t frames covers the whole video, with one frame from each of its t
equal parts. A coarse grid has fewer and longer parts: the same span at a larger stride.

    baseline   T = 8           .|.||..||.|..||.          of the video's F frames, the one shown at
    coarse     t = 2           .....|....|.....          a moment uniform in [i·F/T, (i + 1)·F/T)

All random choices for a clip are made here, by the clip's own generator, before anything is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid.shapes import Shape

__all__ = [
    "Box",
    "ClipPlan",
    "Grid",
    "SamplingOptions",
    "Video",
    "clip_generator",
    "make_grid",
    "plan_test",
    "plan_train",
]


class Video(NamedTuple):
    """Properties of a video that sampling needs.

    The number of frames, the frame rate (1/s), and the size in pixels.
    """

    frames: int
    fps: float
    width: int
    height: int


class Box(NamedTuple):
    """Rectangle in a stored frame, in pixels, possibly fractional."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class SamplingOptions:
    """Options of how clips are cut from videos, at every shape of a training.

    Args:
        keep_field_of_view: if True, crops of coarse grids show as much of a frame as the
            baseline's, in fewer pixels. If False, as in the paper, they may show as little as h/H
            of that.
        flip: mirror half of the training clips.
        inverse_scale: draw the inverse of the short side uniformly, instead of the short side.
        segments: sample one frame from each of T equal parts of the video, instead of frames at a
            stride.
        exact_strides: sample frames exactly a stride apart. Otherwise they are spread from the
            first to the last frame of the span.
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
        frames: frames of a clip.
        crop: side of the square crop, in pixels.
        strides: inclusive range of strides, in frames at the target rate. Ignored with segments.
        short_sides: inclusive range of the resized frame's short side, in pixels.
        options: how clips are cut from videos.
        base: the baseline's grid, or None if this is the baseline's.
    """

    frames: int
    crop: int
    strides: tuple[int, int]
    short_sides: tuple[int, int]
    options: SamplingOptions = _DEFAULTS
    base: Grid | None = None


@dataclass(frozen=True)
class ClipPlan:
    """What to read of a video for one clip.

    Args:
        positions: frame indices, (T,).
        size: width and height to which frames are resized.
        corner: x and y of the crop's upper left corner in the resized frame.
        crop: side of the square crop, in pixels.
        flip: whether the clip is mirrored.
        coverage: the share that the clip covers of the baseline's clips, in time and in space
            (`set_coverage`).
    """

    positions: NDArray[np.int64]
    size: tuple[int, int]
    corner: tuple[int, int]
    crop: int
    flip: bool
    coverage: tuple[float, float] = (1.0, 1.0)

    def box(self, video: Video) -> Box:
        """Return the crop in pixels of the frames before they are resized."""
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
    """Return the grid of `shape`: strides [τ, τ·T/t], short sides [min·h/H, max·h/H].

    Args:
        shape: the shape of the mini-batch.
        base: the baseline's shape.
        stride: the baseline's stride τ.
        short_sides: the baseline's range [min, max] of short sides.
        options: how clips are cut from videos. Without `keep_field_of_view`, short sides are the
            paper's, [min·h/H, max] (§3.1, §4).

    Raises:
        ValueError: the crop does not fit into frames with a short side of `short_sides[1]`.
    """
    low, high = short_sides
    if high < max(low, shape.crop):
        raise ValueError(
            f"a crop of {shape.crop} pixels does not fit frames whose short side is drawn "
            f"from {low} to {high} pixels. Choose a smaller crop or larger frames"
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
    """Return the random generator of one clip, independent of shape, rank and worker."""
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

    Random numbers are drawn in a fixed order, whatever the grid. Two grids given the same generator
    therefore sample nearly the same part of the video. The draws within segments, one per frame,
    come from a spawned generator, so that all other draws are the same for every grid.

    Args:
        rng: the generator of the clip (`clip_generator`).
        grid: the grid of the clip's shape.
        video: the video to sample.
        target_fps: the frame rate that strides refer to. 0 means the video's own.
        centre: a frame of the video around which the clip is taken, with frames exactly a stride
            apart, as in PySlowFast's AVA data set. If None, the start is random.
    """
    u_stride, u_start, u_scale, u_x, u_y, u_flip = rng.random(6)
    low, high = grid.strides
    stride = low + int(u_stride * (high - low + 1))
    rate = _rate(video, target_fps)
    if grid.options.segments:
        positions = _in_segments(rng.spawn(1)[0].random(grid.frames), video)
    else:
        span = stride * grid.frames * rate
        start = u_start * max(video.frames - span, 0.0)
        if centre is not None:
            start = centre - span // 2
        exact = grid.options.exact_strides or centre is not None
        positions = _positions(start, span, grid.frames, video, exact=exact)
    short_side = _short_side(u_scale, grid)
    size = _resized(video, short_side)
    corner = (int(u_x * (size[0] - grid.crop + 1)), int(u_y * (size[1] - grid.crop + 1)))
    flip = grid.options.flip and bool(u_flip < 0.5)
    coverage = _coverage(grid, stride, rate, short_side)
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
    """Plan a test clip: one of several views of a video, and one of 1 or 3 crops.

    A single view is taken from the middle of the video. With several views, view k of n starts at
    k/n of the room that the clip leaves, as in PySlowFast, so that no view reaches the end of the
    video.

    With segments, every view covers the whole video: view k of n has the frame at (k + 0.5)/n of
    each of `frames` equal parts. `stride`, `target_fps` and `to_end` are then ignored.

    Args:
        video: the video to sample.
        frames: frames of the clip.
        stride: distance of the frames, at `target_fps`.
        crop: side of the square crop, in pixels.
        view: (index, number of views).
        spatial: (index, number of crops). One crop is the centre. Three are left, centre and right,
            or top, centre and bottom of a tall video.
        target_fps: as in `plan_train`.
        short_side: short side to which frames are resized. None means `crop`.
        options: how clips are cut from videos.
        to_end: start view k at k/(n - 1) of the room, so that the last view ends with the video.
        centre: as in `plan_train`.

    Raises:
        ValueError: the number of crops is neither 1 nor 3, or the short side is smaller than the
            crop.
    """
    index, views = view
    part, crops = spatial
    if crops not in (1, 3):
        raise ValueError(f"a clip is tested on 1 or 3 crops, not {crops}")
    if short_side is not None and short_side < crop:
        raise ValueError(
            f"a crop of {crop} pixels does not fit a short side of {short_side}. Choose a smaller "
            "crop or larger frames"
        )
    if options.segments:
        positions = _in_segments(np.full(frames, (index + 0.5) / views), video)
    else:
        span = stride * frames * _rate(video, target_fps)
        room = max(video.frames - span, 0.0)
        start = room / 2 if views == 1 else room * index / (views - to_end)
        if centre is not None:
            start = centre - span // 2
        exact = options.exact_strides or centre is not None
        positions = _positions(start, span, frames, video, exact=exact)
    size = _resized(video, short_side or crop)
    place = 1 if crops == 1 else part
    wide = size[0] >= size[1]
    across = (0, round((max(size) - crop) / 2), max(size) - crop)[place]
    centre = round((min(size) - crop) / 2)
    corner = (across, centre) if wide else (centre, across)
    return ClipPlan(positions, size, corner, crop, False)


def _rate(video: Video, target_fps: float) -> float:
    """Return the number of video frames per frame at `target_fps`."""
    return video.fps / target_fps if target_fps else 1.0


def _positions(
    start: float, span: float, frames: int, video: Video, *, exact: bool
) -> NDArray[np.int64]:
    """Return `frames` indices within the span, with the last frame repeated beyond the video's end.

    By default they are spread as in PySlowFast from start to start + span - 1, both included:
    (span - 1) / (frames - 1) apart. With `exact` they are a stride, span / frames, apart.
    """
    if exact:
        indices = start + np.arange(frames) * span / frames
    else:
        indices = np.linspace(start, start + span - 1, frames)
    return np.clip(indices, 0, video.frames - 1).astype(np.int64)


def _coverage(grid: Grid, stride: int, rate: float, short_side: int) -> tuple[float, float]:
    """Return the share that a clip covers of the baseline's clips, in time and in space.

    `rate` is the `_rate` of the video.
    """
    base = grid.base
    in_time = 1.0
    if base is None:
        return 1.0, 1.0
    if not grid.options.segments:
        covered, by_base = (
            _covered(frames, frames * tau * rate, exact=grid.options.exact_strides)
            for frames, tau in ((grid.frames, stride), (base.frames, base.strides[0]))
        )
        in_time = covered / by_base
    # The baseline's crops show different parts of the frame too, and count as 1 by definition. So
    # any clip that shows at least as much as the smallest of them counts as 1.
    least = base.crop / base.short_sides[1]
    return in_time, min(1.0, grid.crop / short_side / least)


def _covered(frames: int, span: float, *, exact: bool) -> float:
    """Return the length of a clip in video frames: its number of frames times their distance.

    With this definition of length, interpolated positions match the frames' times in the video.
    """
    if exact or frames == 1 or span <= 1:
        return span
    return (span - 1) / (frames - 1) * frames


def _in_segments(parts: NDArray[np.float64], video: Video) -> NDArray[np.int64]:
    """Return the frame shown at `parts` (T,), in [0, 1), of each of T equal segments of a video.

    Frame n is shown in [n, n + 1). If T does not divide the number of frames, a frame may be
    sampled twice. In return, every frame of the video is equally likely, for any T.
    """
    moments = (np.arange(len(parts)) + parts) * video.frames / len(parts)
    return np.minimum(moments.astype(np.int64), video.frames - 1)


def _short_side(u: float, grid: Grid) -> int:
    low, high = grid.short_sides
    if grid.options.inverse_scale:
        return max(low, round(1 / (1 / high + u * (1 / low - 1 / high))))
    return round(low + u * (high - low))


def _resized(video: Video, short_side: int) -> tuple[int, int]:
    """Return the width and height for a short side, with the long side rounded down."""
    if video.width < video.height:
        return short_side, video.height * short_side // video.width
    return video.width * short_side // video.height, short_side
