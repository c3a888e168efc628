"""Frames and crop of one clip of a video, for any grid (paper §3.1).

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
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from multigrid.errors import MultigridError
from multigrid.grids import DEFAULTS, Grid, SamplingOptions, make_grid
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


class Window(NamedTuple):
    """Rectangle in a video frame, in pixels. Coordinates may be fractional."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class ClipPlan:
    """Frames and crop to read from a video for one clip.

    Args:
        frame_indices: Indices of the frames, (T,).
        size: (width, height) to which frames are resized.
        corner: (x, y) of the crop's upper left corner in the resized frame.
        crop: Side of the square crop, in pixels.
        flip: Whether to mirror the clip.
        coverage: Fraction (time, space) of a baseline clip that the clip shows. Position embeddings
            need this (see `set_coverage`).
    """

    frame_indices: NDArray[np.int64]
    size: tuple[int, int]
    corner: tuple[int, int]
    crop: int
    flip: bool
    coverage: tuple[float, float] = (1.0, 1.0)

    def window(self, video: Video) -> Window:
        """Return the crop in the coordinates of the frame before resizing."""
        across = video.width / self.size[0]
        down = video.height / self.size[1]
        x, y = self.corner
        return Window(x * across, y * down, self.crop * across, self.crop * down)


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

    Raises:
        ValueError: The video is shorter than the clip, and `short_videos` of the options is
            "error".
    """
    u_stride, u_start, u_scale, u_x, u_y, u_flip = rng.random(6)
    stride = draw_stride(u_stride, grid)
    rate = _rate(video, target_fps)
    span = stride * grid.frames * rate
    exact = _is_exact(grid.options, video, centre)
    if grid.options.segments:
        indices = _in_segments(rng.spawn(1)[0].random(grid.frames), video)
    else:
        start = u_start * max(video.frames - span, 0.0)
        moments = _at_stride(start, span, grid.frames, video, centre, exact=exact)
        indices = _shown(moments, video, grid.options, centre)
    short_side = draw_short_side(u_scale, grid)
    size = _resized(video, short_side)
    corner = (int(u_x * (size[0] - grid.crop + 1)), int(u_y * (size[1] - grid.crop + 1)))
    flip = grid.options.flip and bool(u_flip < 0.5)
    coverage = _coverage(grid, span, rate, short_side, exact=exact)
    return ClipPlan(indices, size, corner, grid.crop, flip, coverage)


def draw_stride(u: float, grid: Grid) -> int:
    """Return the stride for a uniform random number in [0, 1)."""
    low, high = grid.strides
    return low + int(u * (high - low + 1))


def draw_short_side(u: float, grid: Grid) -> int:
    """Return the short side of resized frames for a uniform random number in [0, 1)."""
    low, high = grid.short_sides
    if grid.options.inverse_scale:
        return max(low, round(1 / (1 / high + u * (1 / low - 1 / high))))
    return round(low + u * (high - low))


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
    options: SamplingOptions = DEFAULTS,
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
            crop. Or see `plan_train`.
    """
    index, views = view
    part, crops = spatial
    if crops not in (1, 3):
        raise MultigridError(f"the number of spatial crops is {crops}, but it must be 1 or 3")
    if short_side is not None and short_side < crop:
        raise MultigridError(
            f"a crop of {crop} pixels does not fit into frames with a short side of {short_side} "
            "pixels. Choose a smaller crop or a larger short side"
        )
    if options.segments:
        indices = _in_segments(np.full(frames, (index + 0.5) / views), video)
    else:
        span = stride * frames * _rate(video, target_fps)
        room = max(video.frames - span, 0.0)
        start = room / 2 if views == 1 else room * index / (views - to_end)
        exact = _is_exact(options, video, centre)
        moments = _at_stride(start, span, frames, video, centre, exact=exact)
        indices = _shown(moments, video, options, centre)
    width, height = size = _resized(video, short_side or crop)
    room = max(size) - crop
    along = round(room / 2) if crops == 1 else (0, round(room / 2), room)[part]
    across = round((min(size) - crop) / 2)
    corner = (along, across) if width >= height else (across, along)
    return ClipPlan(indices, size, corner, crop, False)


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


def _is_exact(options: SamplingOptions, video: Video, centre: float | None) -> bool:
    """Return whether the frames of a clip are exactly a stride apart (see `_at_stride`)."""
    return options.exact_strides or centre is not None or video.moments is not None


def _at_stride(
    start: float, span: float, frames: int, video: Video, centre: float | None, *, exact: bool
) -> NDArray[np.float64]:
    """Return the moments of the frames of a clip, (frames,), in units of 1 / `video.fps`.

    If the clip is longer than the video, the last moments are after the end of the video.

    Args:
        start: Position of the first frame, unless there is a centre.
        span: Length of the clip in video frames.
        frames: Number of frames of the clip.
        video: The video to sample.
        centre: Index of the frame in the middle of the clip, or None. If the frame rate is
            constant, the clip starts a whole number of frames earlier, as in PySlowFast.
        exact: If True, the distance between frames is the stride, span / frames. If False, as in
            PySlowFast, it is (span - 1) / (frames - 1), so the last frame is at start + span - 1.
    """
    if centre is not None:
        start = centre - (span // 2 if video.moments is None else span / 2)
    if exact:
        return start + np.arange(frames) * span / frames
    return np.linspace(start, start + max(span - 1, 0.0), frames)


def _shown(
    moments: NDArray[np.float64], video: Video, options: SamplingOptions, centre: float | None
) -> NDArray[np.int64]:
    """Return the frames at the moments of a clip, which may be after the end of the video."""
    if centre is None and moments[-1] >= video.frames and options.short_videos != "repeat_last":
        if options.short_videos == "error":
            raise MultigridError(
                f"the video has {video.frames} frames, but the clip needs {moments[-1] + 1:.0f}. "
                "Use a smaller stride, fewer frames or longer videos, or let short_videos be "
                "repeat_last or wrap"
            )
        moments = moments % video.frames
    return frames_at(moments, video)


def _coverage(
    grid: Grid, span: float, rate: float, short_side: int, *, exact: bool
) -> tuple[float, float]:
    """Return the fraction (time, space) of a baseline clip that a clip shows.

    Args:
        grid: The grid of the clip.
        span: Length of the clip in video frames.
        rate: Frame rate of the video as a multiple of the target frame rate.
        short_side: Short side to which frames are resized, in pixels.
        exact: Whether frames are whole strides apart (see `_at_stride`).
    """
    base = grid.base
    if base is None:
        return 1.0, 1.0
    in_time = 1.0
    if not grid.options.segments:
        whole = base.frames * base.strides[0] * rate
        in_time = _covered(grid.frames, span, exact=exact) / _covered(
            base.frames, whole, exact=exact
        )
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


def _resized(video: Video, short_side: int) -> tuple[int, int]:
    """Return the (width, height) of resized frames, with the long side rounded down."""
    if video.width < video.height:
        return short_side, video.height * short_side // video.width
    return video.width * short_side // video.height, short_side


@dataclass(frozen=True)
class Sampling:
    """Settings that determine which frames and crops of a video make up a clip.

    Attributes:
        base: The shape of the baseline.
        stride: Distance between consecutive frames of a clip, in frames of a video with
            `target_fps` frames per second.
        short_sides: Minimum and maximum of the short side in pixels to which frames are resized.
        options: Further options, see `SamplingOptions`.
        target_fps: Frame rate to which `stride` refers, see `plan_train`.
        to_end: Whether the last of several views ends with the video, see `plan_test`.
    """

    base: Shape
    stride: int
    short_sides: tuple[int, int]
    options: SamplingOptions
    target_fps: float = 30.0
    to_end: bool = False

    def training_plan(
        self,
        rng: np.random.Generator,
        shape: Shape,
        video: Video,
        centre: float | None = None,
    ) -> ClipPlan:
        """Return the plan of a random clip with the given shape.

        Args:
            rng: The random generator.
            shape: The shape of the clip.
            video: The video.
            centre: Position of the key frame in the middle of the clip. By default the temporal
                position is random.
        """
        return plan_train(rng, _grid(self, shape), video, self.target_fps, centre=centre)

    def evaluation_short_side(self, crop: int, crops: int) -> int:
        """Return the short side of resized frames in evaluation, in pixels.

        Args:
            crop: Side of the crop in pixels.
            crops: Number of spatial crops.
        """
        return max(crop, self.short_sides[0]) if crops == 1 else crop

    def evaluation_plan(
        self,
        part: int,
        views: tuple[int, int],
        crop: int,
        video: Video,
        centre: float | None = None,
    ) -> ClipPlan:
        """Return the plan of one evaluation clip of a video.

        A video has (temporal views × spatial crops) evaluation clips. With one spatial crop, the
        short side of the frame is resized to the smallest value used in training, and the crop is
        the centre of the frame. With three spatial crops, and for clips around a key frame, the
        short side is resized to the side of the crop.

        Args:
            part: Index of the clip among the evaluation clips of the video.
            views: The number of temporal views and the number of spatial crops.
            crop: Side of the crop in pixels.
            video: The video.
            centre: Position of the key frame in the middle of the clip, or None.
        """
        count, crops = views
        return plan_test(
            video,
            frames=self.base.frames,
            stride=self.stride,
            crop=crop,
            view=(part // crops, count),
            spatial=(part % crops, crops),
            target_fps=self.target_fps,
            short_side=crop if centre is not None else self.evaluation_short_side(crop, crops),
            options=self.options,
            to_end=self.to_end,
            centre=centre,
        )


@cache
def _grid(sampling: Sampling, shape: Shape) -> Grid:
    """Return the grid of a shape. The result is cached because every clip needs a grid."""
    return make_grid(shape, sampling.base, sampling.stride, sampling.short_sides, sampling.options)


class Shown(NamedTuple):
    """Part of a video that a clip shows.

    Attributes:
        frames: Number of video frames from the first to the last frame of the clip.
        window: The crop, in the coordinates of the video.
        video: The video.
    """

    frames: int
    window: Window
    video: Video

    @classmethod
    def of_plan(cls, plan: ClipPlan, video: Video) -> Shown:
        """Return the part of a video that the clip with this plan shows."""
        return cls(int(np.ptp(plan.frame_indices)) + 1, plan.window(video), video)
