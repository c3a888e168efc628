"""Segment sampling: one frame from each equal part of a video, at any number of parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multigrid import (
    Grid,
    SamplingOptions,
    Shape,
    Video,
    clip_generator,
    make_grid,
    plan_test,
    plan_train,
)

quick = settings(max_examples=30, deadline=None, derandomize=True)

BASE = Shape(16, 64, 224)
SEGMENTS = SamplingOptions(keep_field_of_view=False, flip=False, segments=True)


def segment_grid(frames):
    return make_grid(Shape(16, frames, 224), BASE, 2, (256, 320), SEGMENTS)


def centres(frames, segments, view=(0, 1)):
    video = Video(frames, 30.0, 64, 64)
    plan = plan_test(video, frames=segments, stride=2, crop=64, view=view, options=SEGMENTS)
    return plan.frame_indices.tolist()


# By hand.


@pytest.mark.parametrize(
    ("frames", "segments", "indices"),
    [
        (16, 4, [2, 6, 10, 14]),  # [0, 4), [4, 8), ...: frame 2 comes on in the middle of the first
        (10, 4, [1, 3, 6, 8]),  # 1.25, 3.75, 6.25, 8.75
        (3, 6, [0, 0, 1, 1, 2, 2]),  # 0.25, 0.75, 1.25, ...
        (1, 4, [0, 0, 0, 0]),
        (100, 1, [50]),
    ],
)
def test_a_single_view_takes_the_centres(frames, segments, indices):
    assert centres(frames, segments) == indices


def test_views_are_spread_within_the_segments():
    # 4 segments of 12 frames; thirds of them begin at 0, 4, 8, and their centres are 2, 6, 10.
    assert [centres(48, 4, (k, 3)) for k in range(3)] == [
        [2, 14, 26, 38],
        [6, 18, 30, 42],
        [10, 22, 34, 46],
    ]
    assert centres(48, 4, (1, 3)) == centres(48, 4)


@pytest.mark.parametrize(("frames", "segments"), [(15, 3), (5, 8)])
def test_no_frame_is_preferred_whether_segments_divide_the_video_or_not(frames, segments):
    grid = Grid(segments, 32, (1, 1), (32, 32), SEGMENTS)
    video = Video(frames, 30.0, 32, 32)
    taken = [plan_train(clip_generator(0, 0, n), grid, video).frame_indices for n in range(1000)]
    counts = np.bincount(np.concatenate(taken), minlength=frames)
    expected = 1000 * segments / frames
    assert np.abs(counts - expected).max() < 4 * expected**0.5


# Properties.


@quick
@given(
    frames=st.integers(1, 700),
    segments=st.sampled_from([1, 2, 8, 16, 32, 64]),
    key=st.tuples(*[st.integers(0, 2**31)] * 3),
    view=st.integers(0, 9),
)
def test_positions_ascend_with_one_in_each_segment(frames, segments, key, view):
    video = Video(frames, 24.0, 300, 250)
    train = plan_train(clip_generator(*key), segment_grid(segments), video).frame_indices.tolist()
    for indices in (train, centres(frames, segments, (view, 10))):
        assert len(indices) == segments
        assert indices == sorted(indices)
        for i, position in enumerate(indices):
            # Frame n shows in [n, n + 1), and some of that is in the segment; all of it times T.
            assert 0 <= i * frames < (position + 1) * segments
            assert position * segments < (i + 1) * frames
