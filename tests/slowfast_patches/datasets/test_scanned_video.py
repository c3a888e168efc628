"""What is known of a video before a clip is read: orientation, shown part, and the packed form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multigrid import Video, Window
from slowfast_patches.datasets.reading.scanned_video import (
    UPRIGHT,
    WHOLE,
    Kind,
    Orientation,
    Part,
    ScannedVideo,
    ScannedVideos,
    SharedList,
)
from slowfast_patches.datasets.reading.timing import moments_of
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError

ORIENTATIONS = [Orientation(turns, mirrored) for turns in range(4) for mirrored in (False, True)]
WIDTH, HEIGHT = 8, 6


def cut(image: np.ndarray, window: Window) -> np.ndarray:
    """Cut a window, in coordinates from 0 to 1, from an image."""
    height, width = image.shape[:2]
    left, top = round(window.x * width), round(window.y * height)
    right, bottom = left + round(window.width * width), top + round(window.height * height)
    return image[top:bottom, left:right]


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_a_window_of_the_shown_picture_is_cut_from_the_stored_one(orientation):
    stored = np.arange(WIDTH * HEIGHT).reshape(HEIGHT, WIDTH)
    shown = orientation.shown(stored)
    assert shown.shape[::-1] == orientation.turned_size(WIDTH, HEIGHT)
    width, height = shown.shape[1], shown.shape[0]
    window = Window(1 / width, 2 / height, 4 / width, 3 / height)
    found = orientation.shown(cut(stored, orientation.stored(window)))
    assert np.array_equal(found, shown[2:5, 1:5])


def test_a_mirrored_picture_is_mirrored_before_it_is_turned():
    """A quarter turn counterclockwise puts the right column at the top."""
    stored = np.array([[1, 2], [3, 4]])
    assert Orientation(0, True).shown(stored).tolist() == [[2, 1], [4, 3]]
    assert Orientation(1, False).shown(stored).tolist() == [[2, 4], [1, 3]]
    assert Orientation(1, True).shown(stored).tolist() == [[1, 3], [2, 4]]
    assert UPRIGHT.shown(stored) is stored


def test_a_part_of_a_picture_by_hand():
    """The part begins at (10, 2) of 40 × 20 pixels, and has 20 × 5 pixels."""
    part = Part(0.25, 0.1, 0.5, 0.25)
    assert part.size(40, 20) == (20, 5)
    assert part.slices(40, 20) == (slice(2, 7), slice(10, 30))
    assert part.within(Window(0.5, 0.2, 0.1, 0.4)) == Window(0.5, 0.1 + 0.05, 0.05, 0.1)
    assert Part(0, 0, 0.001, 0.001).size(40, 20) == (1, 1)
    assert WHOLE.slices(40, 20) == (slice(0, 20), slice(0, 40))


def ascending(least: int) -> st.SearchStrategy:
    numbers = st.sets(st.integers(0, 2**40), min_size=least, max_size=9).map(sorted)
    return st.none() | numbers.map(lambda values: np.array(values, np.int64))


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(Kind),
    lists=st.tuples(ascending(1), ascending(1), ascending(1), ascending(2)),
    orientation=st.sampled_from(ORIENTATIONS),
    headers=st.binary(max_size=9),
    streams=st.integers(0, 3),
    is_in_step=st.booleans(),
)
def test_a_video_is_unpacked_as_it_was_packed(
    kind, lists, orientation, headers, streams, is_in_step
):
    timestamps, keys, offsets, times = lists
    video = ScannedVideo(
        kind,
        Video(7, 30000 / 1001, 64, 48, moments_of(times, 30000 / 1001)),
        orientation,
        timestamps,
        keys,
        offsets,
        headers=headers,
        streams=streams,
        times=times,
        crop=Part(0.25, 0.0, 0.5, 1.0),
        is_in_step=is_in_step,
    )
    found = ScannedVideo.unpacked(video.packed())
    assert (found.video[:4], found.kind, found.crop) == (video.video[:4], kind, video.crop)
    assert (found.orientation, found.headers, found.streams) == (orientation, headers, streams)
    assert found.is_in_step == is_in_step
    np.testing.assert_equal(found.video.moments, video.video.moments)
    for name in ("timestamps", "keys", "offsets", "times"):
        np.testing.assert_equal(getattr(found, name), getattr(video, name))
    assert found.packed() == video.packed()
    assert found.can_seek == (keys is not None and len(keys) > 1)


@pytest.mark.parametrize(("keys", "seeks"), [(None, False), ([0], False), ([0, 4], True)])
def test_a_video_with_a_second_key_frame_can_seek(keys, seeks):
    assert ScannedVideo(Kind.VIDEO, Video(7, 30.0, 64, 48), keys=keys).can_seek == seeks


def test_a_list_of_scanned_videos_gives_videos_reasons_and_where_seeks_fail():
    video = ScannedVideo(Kind.VIDEO, Video(7, 30.0, 64, 48), keys=np.array([0, 4]))
    rows = [
        (video.packed(), "", True),
        (video.packed(), "", False),
        ("", "is encrypted", True),
        ("text", "", True),
        (video.packed()[:-8], "", True),
    ]
    videos = ScannedVideos(Path("train.csv"), rows, [("c.mp4", "is encrypted")], "1", "2")
    assert len(videos) == 5
    assert videos[0].keys.tolist() == [0, 4]
    assert videos[1].keys.tolist() == [0]
    for number, said in ((2, "is encrypted"), (3, "damaged entry"), (4, "damaged entry")):
        with pytest.raises(UnreadableVideoError, match=said):
            videos[number]


def test_a_shared_list_is_a_read_only_list():
    items = ["a", (1, None), 3.5]
    shared = SharedList(iter(items))
    assert [*shared] == items
    assert (len(shared), shared[-1], shared[0:2], shared[::-1]) == (3, 3.5, items[:2], items[::-1])
    with pytest.raises(IndexError):
        shared[3]
    assert not SharedList([])
