"""Tests of sampling grids: strides, spans, short sides and crops, by hand and as in PySlowFast."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slowfast.datasets.decoder import get_start_end_idx, temporal_sampling

from multigrid import (
    PAPER,
    ClipPlan,
    Grid,
    Patches,
    Sampling,
    SamplingOptions,
    Shape,
    Shown,
    Video,
    Window,
    clip_generator,
    make_grid,
    place_positions,
    plan_test,
    plan_train,
    scale_shape,
)

quick = settings(max_examples=30, deadline=None, derandomize=True)

BASE = Shape(64, 32, 224)
VIDEO = Video(frames=300, fps=30.0, width=400, height=300)
EXACT = SamplingOptions(exact_strides=True)


def paper_grid(frames=32, crop=224, **options):
    sampling = replace(PAPER.sampling, **options)
    return make_grid(Shape(64, frames, crop), BASE, 2, (256, 340), sampling)


def train_plans(grid, video=VIDEO, count=500, target_fps=30.0):
    return [plan_train(clip_generator(0, 0, n), grid, video, target_fps) for n in range(count)]


sides = st.integers(32, 1000)
videos = st.builds(Video, st.integers(1, 400), st.floats(0.5, 120), sides, sides, st.none())
gaps = st.lists(st.floats(0.01, 10), min_size=1, max_size=50)
uneven_videos = st.builds(
    lambda gaps, *rest: Video(len(gaps) + 1, *rest, np.cumsum([0, *gaps]) / np.mean(gaps)),
    *(gaps, st.floats(0.1, 120), sides, sides),
)


def check_plan(plan, video):
    """Check the invariants of every plan."""
    width, height = plan.size
    assert 0 <= plan.corner[0] <= width - plan.crop
    assert 0 <= plan.corner[1] <= height - plan.crop
    assert plan.frame_indices.min() >= 0
    assert plan.frame_indices.max() < video.frames
    assert (np.diff(plan.frame_indices) >= 0).all()
    # The frame is resized as a whole, in proportion but for the rounding of its long side.
    sides = video[2:4]
    assert 0 <= max(width, height) - max(sides) * min(width, height) / min(sides) + 1 <= 1
    assert (width >= height) == (video.width >= video.height) or width == height


# Grids.


@pytest.mark.parametrize(
    ("frames", "crop", "strides", "short_sides"),
    [
        (32, 224, (2, 2), (256, 340)),
        (16, 158, (2, 4), (181, 340)),  # 256 · 158/224 = 180.6
        (8, 112, (2, 8), (128, 340)),
        (16, 160, (2, 4), (183, 340)),  # with a divisor of sizes: 256 · 160/224 = 182.9
    ],
)
def test_the_grids_of_the_paper(frames, crop, strides, short_sides):
    grid = paper_grid(frames, crop)
    assert (grid.frames, grid.crop) == (frames, crop)
    assert (grid.strides, grid.short_sides) == (strides, short_sides)


# Training clips.


@quick
@given(
    video=videos | uneven_videos,
    key=st.tuples(*[st.integers(0, 2**31)] * 3),
    factors=st.sampled_from(PAPER.long_cycle),
    crop=st.sampled_from([*PAPER.short_cycle, 1.0]),
    jitter=st.sampled_from([(256, 340), (256, 256), (256, 320)]),
    inverse_scale=st.booleans(),
    target_fps=st.sampled_from([24.0, 30.0]),
)
def test_every_plan_lies_within_its_video(
    video, key, factors, crop, jitter, inverse_scale, target_fps
):
    shape = scale_shape(BASE, (factors[0], crop))
    sampling = replace(PAPER.sampling, inverse_scale=inverse_scale)
    grid = make_grid(shape, BASE, 2, jitter, sampling)
    plan = plan_train(clip_generator(*key), grid, video, target_fps)
    check_plan(plan, video)
    assert len(plan.frame_indices) == shape.frames
    assert plan.crop == shape.crop
    assert grid.short_sides[0] <= min(plan.size) <= grid.short_sides[1]


def test_strides_are_uniform_from_2_to_8():
    """8 frames of stride s span 8·s - 1 frames, so the first and last positions determine s."""
    plans = train_plans(paper_grid(8, 112), VIDEO._replace(frames=5000), count=3500)
    strides = Counter(round((p.frame_indices[-1] - p.frame_indices[0] + 1) / 8) for p in plans)
    assert sorted(strides) == [2, 3, 4, 5, 6, 7, 8]
    # 500 of each are expected, with a standard deviation of 21.
    assert max(abs(count - 500) for count in strides.values()) < 4 * 21


def test_coverage_puts_coarse_frames_where_they_are_among_the_baselines():
    """The baseline's 16 frames, spread over 32 of the video, are 31/15 apart.

    A clip of 16 frames of the video reaches 7.5 frames from its middle, which are 7.5 · 15/31 rows.
    A clip of 32 frames reaches the end rows.
    """
    base = Shape(8, 16, 224)
    for frames, stride, ends in ((8, 2, 7.5 * 15 / 31), (2, 16, 7.5), (2, 8, 7.5 * 15 / 31)):
        plan = next(
            plan
            for plan in train_plans(make_grid(Shape(8, frames, 224), base, 2, (256, 340)))
            if np.ptp(plan.frame_indices) == stride * frames - 1
        )
        coverage = torch.tensor([plan.coverage])
        rows = torch.arange(16.0)[:, None]
        found = place_positions(rows, Patches(16, 1, 1), Patches(frames, 1, 1), coverage)
        assert found[0, [0, -1], 0].tolist() == pytest.approx([7.5 - ends, 7.5 + ends])


def test_at_a_rate_of_0_strides_count_the_videos_own_frames():
    """8 frames of stride 2 at 60 Hz. A target rate of 30 would take every fourth frame."""
    grid = Grid(frames=8, crop=32, strides=(2, 2), short_sides=(32, 32), options=EXACT)
    video = Video(16, 60.0, 32, 32)
    (plan,) = train_plans(grid, video, count=1, target_fps=0)
    assert plan.frame_indices.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


# Videos with a variable frame rate are sampled by time.


@quick
@given(
    kept=st.sets(st.integers(1, 199), min_size=1),
    grid=st.sampled_from([paper_grid(8, 112), paper_grid(32), paper_grid(8, segments=True)]),
    target_fps=st.sampled_from([30.0, 24.0, 12.5]),
    seed=st.integers(0, 1000),
)
def test_dropped_frames_change_no_clip(kept, grid, target_fps, seed):
    """A clip has the previous frame that was kept instead of a dropped frame."""
    grid = replace(grid, options=replace(grid.options, exact_strides=True))
    kept = np.array([0, *sorted(kept)])
    rate = len(kept) / 200  # frames that are left of each frame there was
    whole = Video(200, 24.0, 400, 300)
    thinned = Video(len(kept), 24.0 * rate, 400, 300, kept * rate - 1e-9)
    plan, other = (
        plan_train(clip_generator(0, 0, seed), grid, video, target_fps)
        for video in (whole, thinned)
    )
    assert [max(k for k in kept if k <= n) for n in plan.frame_indices] == kept[
        other.frame_indices
    ].tolist()


def test_a_key_frame_of_an_uneven_video_is_in_the_middle_of_its_clip():
    """Frames at 0, 1, 2, 3 and 8 s. The clip shows 4, 5, 6 and 7 s, then 7, 8, 9 and 10 s."""
    video = Video(5, 0.5, 64, 64, np.array([0, 0.5, 1, 1.5, 4]))
    plans = [
        plan_test(video, frames=4, stride=1, crop=64, target_fps=1, centre=second * video.fps)
        for second in (6, 9)
    ]
    assert [plan.frame_indices.tolist() for plan in plans] == [[3, 3, 3, 3], [3, 4, 4, 4]]


# The fine grid is the host's (off is unchanged).


@quick
@given(
    frames=st.integers(1, 400),
    fps=st.sampled_from([15.0, 24.0, 25.0, 29.97, 30.0, 60.0]),
    length=st.sampled_from([8, 16, 32, 64]),
    stride=st.sampled_from([1, 2, 4, 8]),
    view=st.integers(0, 9),
)
def test_positions_are_the_hosts(frames, fps, length, stride, view):
    plan = plan_test(
        Video(frames, fps, 64, 64), frames=length, stride=stride, crop=64, view=(view, 10)
    )
    start, end = get_start_end_idx(frames, stride * length * fps / 30, view, 10)
    host = temporal_sampling(torch.arange(frames), start, end, length).numpy()
    # The host computes in float32: a position that is whole may come out a frame lower.
    assert np.abs(plan.frame_indices - host).max() <= 1
    assert (plan.frame_indices != host).mean() <= 0.15


# Test clips.

VIDEO_300 = Video(300, 30.0, 340, 256)


def test_ten_views_of_three_crops_by_hand():
    """300 frames of 340 × 256 pixels and a span of 64: views start at 0, 23.6, 47.2, ..."""
    views = [
        plan_test(VIDEO_300, frames=32, stride=2, crop=256, view=(v, 10), spatial=(s, 3))
        for v in range(10)
        for s in range(3)
    ]
    starts = [plan.frame_indices[0] for plan in views[::3]]
    assert starts == [0, 23, 47, 70, 94, 118, 141, 165, 188, 212]
    assert [plan.corner for plan in views[:3]] == [(0, 0), (42, 0), (84, 0)]
    assert {plan.size for plan in views} == {(340, 256)}
    assert not any(plan.flip for plan in views)


@pytest.mark.parametrize(("count", "ends"), [(5, [63, 122, 181, 240, 299]), (1, [181])])
def test_views_to_the_end_by_hand(count, ends):
    """300 frames and a span of 64: the starts of 5 views are 59 frames apart."""
    plans = [
        plan_test(VIDEO_300, frames=32, stride=2, crop=256, view=(v, count), to_end=True)
        for v in range(count)
    ]
    assert [plan.frame_indices[-1] for plan in plans] == ends


@pytest.mark.parametrize("inverse", [False, True])
def test_short_sides_cover_their_range_uniformly_or_their_inverses_do(inverse):
    plans = train_plans(paper_grid(8, 112, inverse_scale=inverse), count=2000)
    sides = np.array([min(plan.size) for plan in plans])
    assert abs(sides.min() - 128) <= 1
    assert abs(sides.max() - 340) <= 2
    (low, high), values = ((1 / 340, 1 / 128), 1 / sides) if inverse else ((128, 340), sides)
    deviation = (high - low) / 12**0.5  # of one, uniform; of the mean of 2000 as follows
    assert abs(values.mean() - (low + high) / 2) < 4 * deviation / 2000**0.5


SHORT = Video(frames=5, fps=30, width=64, height=48)
"""Video of 5 frames, for clips of 4 frames at a stride of 2, which span 8 frames."""


@pytest.mark.parametrize(
    ("policy", "frames"), [("repeat_last", [0, 2, 4, 4]), ("wrap", [0, 2, 4, 1])]
)
def test_a_clip_longer_than_the_video_follows_the_policy(policy, frames):
    options = replace(EXACT, short_videos=policy)
    base = Shape(2, 4, 32)
    grid = make_grid(base, base, 2, (32, 40), options)
    assert plan_train(clip_generator(0, 0, 0), grid, SHORT).frame_indices.tolist() == frames
    plan = plan_test(SHORT, frames=4, stride=2, crop=32, options=options)
    assert plan.frame_indices.tolist() == frames
    key_frame = plan_test(SHORT, frames=4, stride=2, crop=32, options=options, centre=4)
    assert key_frame.frame_indices.tolist() == [0, 2, 4, 4]


def test_the_policy_error_refuses_only_clips_longer_than_the_video():
    options = replace(EXACT, short_videos="error")
    with pytest.raises(ValueError, match="the video has 5 frames, but the clip needs 7"):
        plan_test(SHORT, frames=4, stride=2, crop=32, options=options)
    plan = plan_test(SHORT, frames=3, stride=2, crop=32, options=options)
    assert plan.frame_indices.tolist() == [0, 2, 4]
    with pytest.raises(ValueError, match="must be one of repeat_last, wrap, error"):
        SamplingOptions(short_videos="loop")


@pytest.mark.parametrize("fps", [1.0, 0.5])
def test_a_clip_shorter_than_a_frame_shows_one_frame_again(fps):
    """At 1 frame per second, 4 frames with stride 2 at 30 per second span 0.27 frames."""
    video = Video(50, fps, 64, 64)
    grid = Grid(frames=4, crop=32, strides=(2, 2), short_sides=(32, 32))
    for plan in train_plans(grid, video, 50):
        assert len(set(plan.frame_indices.tolist())) == 1
        assert plan.coverage == (1.0, 1.0)


# Values at which a plan changes, by hand.


def test_a_clip_longer_than_its_video_starts_at_the_first_frame():
    """5 frames of stride 2 are at 0, 2.25, 4.5, 6.75 and 9 of 8 frames."""
    video = Video(8, 30.0, 64, 64)
    grid = Grid(frames=5, crop=32, strides=(2, 2), short_sides=(32, 32))
    plans = train_plans(grid, video, count=20)
    plans.append(plan_test(video, frames=5, stride=2, crop=32))
    assert {tuple(plan.frame_indices) for plan in plans} == {(0, 2, 4, 6, 7)}


def test_a_last_frame_just_after_the_end_is_after_the_end():
    """Of a video of 5 frames, a clip of 2 frames at stride 5 shows frames 0 and 5."""
    options = replace(EXACT, short_videos="wrap")
    clip = {"frames": 2, "stride": 5, "crop": 32}
    assert plan_test(SHORT, **clip, options=options).frame_indices.tolist() == [0, 0]
    assert plan_test(SHORT, **clip, options=EXACT).frame_indices.tolist() == [0, 4]
    with pytest.raises(ValueError, match="the clip needs 6"):
        plan_test(SHORT, **clip, options=replace(EXACT, short_videos="error"))


@pytest.mark.parametrize(("frames", "indices"), [(3, [9, 10, 11]), (4, [8, 9, 10, 11])])
def test_a_key_frame_is_in_the_middle_of_its_clip(frames, indices):
    plan = plan_test(VIDEO, frames=frames, stride=1, crop=64, centre=10)
    assert plan.frame_indices.tolist() == indices
    grid = Grid(frames, crop=32, strides=(1, 1), short_sides=(32, 32))
    plan = plan_train(clip_generator(0, 0, 0), grid, VIDEO, centre=10)
    assert plan.frame_indices.tolist() == indices


@pytest.mark.parametrize(
    ("width", "height", "size", "corners"),
    [
        (680, 512, (340, 256), [(0, 16), (58, 16), (116, 16)]),
        (512, 680, (256, 340), [(16, 0), (16, 58), (16, 116)]),
        (512, 512, (256, 256), [(0, 16), (16, 16), (32, 16)]),
    ],
)
def test_crops_of_a_short_side_above_the_crop(width, height, size, corners):
    video = Video(300, 30.0, width, height)
    clip = {"frames": 4, "stride": 1, "crop": 224, "short_side": 256}
    plans = [plan_test(video, **clip, spatial=(part, 3)) for part in range(3)]
    assert {plan.size for plan in plans} == {size}
    assert [plan.corner for plan in plans] == corners
    assert plan_test(video, **clip).corner == corners[1]


@pytest.mark.parametrize("crops", [0, 2, 4])
def test_other_numbers_of_crops_are_refused(crops):
    with pytest.raises(ValueError, match=f"number of spatial crops is {crops}, but it must be 1 o"):
        plan_test(VIDEO, frames=4, stride=1, crop=64, spatial=(0, crops))


def test_a_crop_larger_than_the_frame_is_refused():
    clip = {"frames": 4, "stride": 1, "crop": 64}
    assert plan_test(VIDEO, **clip, short_side=64).size == (85, 64)
    with pytest.raises(ValueError, match=r"crop of 64 pixels does not fit .* short side of 63"):
        plan_test(VIDEO, **clip, short_side=63)


def test_half_of_the_training_clips_are_mirrored_unless_flip_is_off():
    flips = [plan.flip for plan in train_plans(paper_grid(8, 112), count=400)]
    assert sum(flips) == pytest.approx(200, abs=4 * 10)  # a standard deviation of 10
    assert not any(plan.flip for plan in train_plans(paper_grid(8, 112, flip=False), count=40))


# Coverage, by hand.


def coverage(frames, stride, fps, *, crop=112, short_side=200, base=(4, 1), **options):
    """Return the coverage of a clip. Baseline crops of 224 are cut from 256 to 320 pixels."""
    sampling = SamplingOptions(**options)
    baseline = Grid(base[0], 224, (base[1], base[1]), (256, 320))
    sides = (short_side, short_side)
    grid = Grid(frames, crop, (stride, stride), sides, sampling, baseline)
    return plan_train(clip_generator(0, 0, 0), grid, Video(900, fps, 400, 400)).coverage


@pytest.mark.parametrize(
    ("frames", "stride", "fps", "options", "expected"),
    [
        # At 60 Hz, the baseline's 4 frames span 8 of the video. They are 7/3 apart.
        # 2 frames of stride 1 span 4, and are 3 apart.
        (2, 1, 60.0, {}, 2 * 3 / (4 * 7 / 3)),
        (2, 1, 60.0, {"exact_strides": True}, 4 / 8),
        (2, 2, 60.0, {"exact_strides": True}, 1.0),
        # One frame stands for the whole span.
        (1, 2, 60.0, {}, 4 / (4 * 7 / 3)),
        # At 15 Hz, the baseline spans 2 frames, which are 1/3 apart, and 2 frames span 1.
        (2, 1, 15.0, {}, 1 / (4 / 3)),
        # In segments, each clip shows the whole video.
        (2, 1, 60.0, {"segments": True}, 1.0),
    ],
)
def test_the_coverage_in_time(frames, stride, fps, options, expected):
    assert coverage(frames, stride, fps, **options)[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("crop", "short_side", "expected"),
    [
        (112, 200, 0.56 / 0.7),  # baseline crops show from 224/320 = 0.7 to 0.875 of the height
        (112, 160, 1.0),
        (112, 128, 1.0),
        (112, 320, 0.5),
    ],
)
def test_the_coverage_in_space(crop, short_side, expected):
    found = coverage(4, 1, 30.0, crop=crop, short_side=short_side)
    assert found == (1.0, pytest.approx(expected))


# What a plan shows of its video.


def test_the_window_of_a_plan_is_in_the_video_s_pixels():
    """The frame is resized from 80 × 60 to 40 × 20, by 2 and by 3."""
    video = Video(9, 30.0, 80, 60)
    plan = ClipPlan(np.array([2, 4, 7]), (40, 20), (10, 5), 8, False)
    assert plan.window(video) == Window(20, 15, 16, 24)
    assert Shown.of_plan(plan, video) == Shown(6, Window(20, 15, 16, 24), video)


# Settings of a data set.

SAMPLING = Sampling(Shape(8, 4, 32), 2, (40, 48), EXACT, target_fps=15.0, to_end=True)


def test_a_training_plan_is_that_of_the_grid_of_the_shape():
    """At 30 Hz and strides for 15 Hz, two frames of stride 2 to 4 are 4 to 8 frames apart."""
    shape = Shape(16, 2, 16)
    grid = make_grid(shape, Shape(8, 4, 32), 2, (40, 48), EXACT)
    for centre in (None, 60):
        found = SAMPLING.training_plan(clip_generator(1, 2, 3), shape, VIDEO, centre)
        expected = plan_train(clip_generator(1, 2, 3), grid, VIDEO, 15.0, centre=centre)
        assert str(found) == str(expected)
        assert 4 <= np.ptp(found.frame_indices) <= 8


def test_evaluation_plans_by_hand():
    """Of 36 frames, 4 with a stride of 4 at 30 Hz span 16. The views start at 0, 10 and 20.

    A single crop is from the smallest short side of the training, and three are as high as a frame.
    """
    video = Video(36, 30.0, 80, 40)
    plans = [SAMPLING.evaluation_plan(part, (3, 3), 32, video) for part in range(9)]
    assert [plan.frame_indices[0] for plan in plans] == [0, 0, 0, 10, 10, 10, 20, 20, 20]
    assert np.diff(plans[0].frame_indices).tolist() == [4, 4, 4]
    assert [plan.corner for plan in plans[:3]] == [(0, 0), (16, 0), (32, 0)]
    assert {plan.size for plan in plans} == {(64, 32)}
    one = SAMPLING.evaluation_plan(0, (1, 1), 32, video)
    assert (one.size, one.corner, one.frame_indices[0]) == ((80, 40), (24, 4), 10)
    key_frame = SAMPLING.evaluation_plan(0, (1, 1), 32, video, centre=20)
    assert (key_frame.size, key_frame.frame_indices.tolist()) == ((64, 32), [12, 16, 20, 24])


def test_the_short_side_of_an_evaluation_is_at_least_the_crop():
    crops = [(32, 1), (39, 1), (40, 1), (41, 1), (32, 3)]
    assert [SAMPLING.evaluation_short_side(*each) for each in crops] == [40, 40, 40, 41, 32]
