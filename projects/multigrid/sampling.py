"""Sampling grids: from a span and a stride to frame indices and a crop box (paper §3.1).

A grid of t frames of h × h pixels covers a video more coarsely, not less of it: its stride may grow
until it spans what the baseline's clip spans, and its short side may shrink with the crop.

    baseline   T = 8, τ = 2    |.|.|.|.|.|.|.|.          a video's frames, | taken
    coarse     t = 2, s = 2    |.|.............
               t = 2, s = 8    |.......|.......          s uniform in [τ, τ·T/t]

Data sets whose videos show one thing from beginning to end are sampled in segments instead (TSN,
Wang et al. 2016): a clip of t frames covers the whole video, one frame from each of its t equal
parts. A coarse grid has fewer and longer parts: the same span at a larger stride.

    baseline   T = 8           .|.||..||.|..||.          of the video's F frames the one on show at
    coarse     t = 2           .....|....|.....          a moment uniform in [i·F/T, (i + 1)·F/T)

All randomness of a clip is decided here, from the clip's own generator, before anything is read.
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
    """What sampling needs to know of a video: frames, their rate (1/s), size (pixels)."""

    frames: int
    fps: float
    width: int
    height: int


class Box(NamedTuple):
    """A part of a frame, in pixels of the frame as it is stored; not always whole ones."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class SamplingOptions:
    """How clips are cut from videos, at every shape of a training.

    Args:
        keep_field_of_view: crops of coarse grids show as much of a frame as the baseline's, in
            fewer pixels. Without it, as in the paper, they may show as little as h/H of it.
        flip: mirror half of the training clips.
        inverse_scale: draw the size of objects uniformly, not the short side.
        segments: take a frame from each of T equal parts of the video, not frames at a stride.
        exact_strides: take frames a whole stride apart, not spread to the span's last frame.
    """

    keep_field_of_view: bool = True
    flip: bool = True
    inverse_scale: bool = False
    segments: bool = False
    exact_strides: bool = False


_DEFAULTS = SamplingOptions()


@dataclass(frozen=True)
class Grid:
    """How clips of one shape are taken from videos.

    `strides` (frames at the target rate; not looked at in segments) and `short_sides` (pixels of
    the resized frame) are inclusive ranges. `base` is the baseline's grid, or None where this is
    it.
    """

    frames: int
    crop: int
    strides: tuple[int, int]
    short_sides: tuple[int, int]
    options: SamplingOptions = _DEFAULTS
    base: Grid | None = None


@dataclass(frozen=True)
class ClipPlan:
    """What to read: `positions` (T,) frame indices; frames resized to `size` (width, height); a
    square of `crop` pixels at `corner` (x, y) of the resized frame; mirrored if `flip`. `extents`
    is how much it covers of what the baseline's clips do, in time and in space (`set_extents`)."""

    positions: NDArray[np.int64]
    size: tuple[int, int]
    corner: tuple[int, int]
    crop: int
    flip: bool
    extents: tuple[float, float] = (1.0, 1.0)

    def box(self, video: Video) -> Box:
        """The crop on the frames before they are resized, where a reader may cut it out."""
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

    `stride` τ and `short_sides` are the baseline's. Without `keep_field_of_view` short sides are
    the paper's, [min·h/H, max] (§3.1, §4).

    Raises:
        ValueError: frames resized to at most `short_sides[1]` have no room for the crop.
    """
    low, high = short_sides
    if high < max(low, shape.crop):
        raise ValueError(
            f"a crop of {shape.crop} pixels does not fit frames whose short side is drawn "
            f"from {low} to {high} pixels; choose a smaller crop or larger frames"
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
    """The generator of one clip, which depends on nothing else (not on shape, rank or worker)."""
    return np.random.default_rng((seed, epoch, video))


def plan_train(
    rng: np.random.Generator,
    grid: Grid,
    video: Video,
    target_fps: float = 30.0,
    *,
    centre: float | None = None,
) -> ClipPlan:
    """A random clip of a video on a grid.

    The draws are made in a fixed order, whatever the grid, so that two grids given the same
    generator see the same part of the video as nearly as they can. Those within segments, as many
    as the grid has frames, come from a generator of their own: all others, and what is drawn from
    `rng` later, are the same for every grid.

    Strides count frames at `target_fps` a second; 0: the video's own frames. With `centre`, a frame
    of the video, the clip is around it, its frames a whole stride apart, as PySlowFast's of AVA.
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
    extents = _extents(grid, stride, rate, short_side)
    return ClipPlan(positions, size, corner, grid.crop, flip, extents)


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
    """The `view`-th of n clips spread over a video, and the `spatial`-th of 1 or 3 crops.

    One crop is the centre; three are left, centre, right (top, centre, bottom of a tall video). A
    single view is taken from the middle of the video. Where the clip leaves room, view k starts at
    k/n of it, as PySlowFast's do, which never show a video's end; with `to_end` at k/(n - 1), so
    that the last view ends with the video. The frame is resized to a short side of `short_side`,
    the crop's own size by default. `target_fps` and `centre` are as in `plan_train`.

    With `segments`, every view covers the whole video: view k of n takes the frame at (k + 0.5)/n
    of each of `frames` equal parts, a single view their centres. `stride`, `target_fps` and
    `to_end` are then not looked at.

    Raises:
        ValueError: a number of crops other than 1 and 3, or a short side smaller than the crop.
    """
    index, views = view
    part, crops = spatial
    if crops not in (1, 3):
        raise ValueError(f"a clip is tested on 1 or 3 crops, not {crops}")
    if short_side is not None and short_side < crop:
        raise ValueError(f"a crop of {crop} pixels does not fit a short side of {short_side}")
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
    """The video's frames for each of those that strides count."""
    return video.fps / target_fps if target_fps else 1.0


def _positions(
    start: float, span: float, frames: int, video: Video, *, exact: bool
) -> NDArray[np.int64]:
    """`frames` indices from start to start + span - 1 as PySlowFast spaces them, first and last
    included: (span - 1) / (frames - 1) apart, the more the fewer they are. `exact` has them
    span / frames apart, a stride. Beyond its end, a video repeats its last frame."""
    if exact:
        indices = start + np.arange(frames) * span / frames
    else:
        indices = np.linspace(start, start + span - 1, frames)
    return np.clip(indices, 0, video.frames - 1).astype(np.int64)


def _extents(grid: Grid, stride: int, rate: float, short_side: int) -> tuple[float, float]:
    """How much a clip covers of what the baseline's do; `rate` = `_rate` of the video."""
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
    # A part of the frame is drawn for the baseline's clips too, which count as 1 by definition: so
    # does any clip that sees as much as one of them may.
    least = base.crop / base.short_sides[1]
    return in_time, min(1.0, grid.crop / short_side / least)


def _covered(frames: int, span: float, *, exact: bool) -> float:
    """Frames times their distance in the video, by which a patch is where its own frames are."""
    if exact or frames == 1 or span <= 1:
        return span
    return (span - 1) / (frames - 1) * frames


def _in_segments(parts: NDArray[np.float64], video: Video) -> NDArray[np.int64]:
    """The frame on show at `parts` (T,) in [0, 1) of each of T equal segments of a video.

    Frame n is on show in [n, n + 1). Where segments and frames do not divide evenly, one frame may
    be taken twice; in return every frame of the video is as likely as every other, at any T.
    """
    moments = (np.arange(len(parts)) + parts) * video.frames / len(parts)
    return np.minimum(moments.astype(np.int64), video.frames - 1)


def _short_side(u: float, grid: Grid) -> int:
    low, high = grid.short_sides
    if grid.options.inverse_scale:
        return max(low, round(1 / (1 / high + u * (1 / low - 1 / high))))
    return round(low + u * (high - low))


def _resized(video: Video, short_side: int) -> tuple[int, int]:
    """Width and height with the given short side, the other rounded down."""
    if video.width < video.height:
        return short_side, video.height * short_side // video.width
    return video.width * short_side // video.height, short_side
