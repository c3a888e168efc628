"""Sampling grids: the strides and short sides with which clips of a shape are cut (paper §3.1).

A grid of t frames of h × h pixels is coarser than the baseline's if t or h is smaller. A clip of a
coarser grid can still show the same part of a video. Its stride is drawn at random, from the
baseline's stride τ to the stride at which t frames span as much time as a baseline clip. The short
side of the frames may shrink in proportion to the crop.

    baseline   T = 8, τ = 2    |.|.|.|.|.|.|.|.          a video's frames, | = sampled
    coarse     t = 2, s = 2    |.|.............          stride s uniform in [τ, τ·T/t]
               t = 2, s = 8    |.......|.......
"""

from __future__ import annotations

from dataclasses import dataclass

from multigrid.errors import MultigridError
from multigrid.shapes import Shape

SHORT_VIDEOS = ("repeat_last", "wrap", "error")
"""Values of `SamplingOptions.short_videos`."""


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
        short_videos: What a clip shows after the end of a video that is shorter than the clip:
            "repeat_last" repeats the last frame, as PySlowFast does, "wrap" starts the video again,
            and "error" raises an error. Clips around a frame (`centre`) always repeat the first and
            last frame.

    Raises:
        ValueError: `short_videos` has another value.
    """

    keep_field_of_view: bool = True
    flip: bool = True
    inverse_scale: bool = False
    segments: bool = False
    exact_strides: bool = False
    short_videos: str = "repeat_last"

    def __post_init__(self) -> None:
        if self.short_videos not in SHORT_VIDEOS:
            raise MultigridError(
                f"short_videos is {self.short_videos!r}, but must be one of "
                f"{', '.join(SHORT_VIDEOS)}"
            )


DEFAULTS = SamplingOptions()


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
    options: SamplingOptions = DEFAULTS
    base: Grid | None = None


def make_grid(
    shape: Shape,
    base: Shape,
    stride: int,
    short_sides: tuple[int, int],
    options: SamplingOptions = DEFAULTS,
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
        raise MultigridError(
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
