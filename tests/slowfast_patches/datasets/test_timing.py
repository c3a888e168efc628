"""Frame rates by timestamp, and clips of files whose rate varies.

Each picture shows its number. The files have 24 frames per second, of which some were dropped. What
they show at each moment is known from how they were made.
"""

import av
import numpy as np
import pytest

from multigrid import ClipRequest, SamplingOptions, Shape, Video, plan_test
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading.index import open_index
from slowfast_patches.datasets.reading.reader import read_clip
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.scanned_video import ScannedVideo
from slowfast_patches.datasets.reading.timing import avi_times, moments_of, timing_of
from slowfast_patches.datasets.video_clips import VideoClips
from tests.slowfast_patches.datasets.made_videos import grey, write_video
from tests.slowfast_patches.datasets.public_reports.numbered import SIDE, numbers, picture

BASE = Shape(1, 8, SIDE)
EXACT = SamplingOptions(exact_strides=True, flip=False)

# The numbers of the kept frames. The mean distance is a whole number, and the last frame counts for
# as much, so that a file lasts as long as before the frames were dropped.
DROPPED = [0, 1, 2, 6, 7, 11, 12, 13, 14, 30, 31, 36, 38, 40, 41, 42, 50, 51, 52, 53, 59, 60, 66]
KEPT = {
    "duplicates dropped": ([*DROPPED, 70, 72], 75),
    "two rates": ([*range(25), *range(30, 121, 6)], 123),
    "a long freeze": ([*range(10), *range(181, 191)], 200),
}


def write_numbered(path, kept, **options):
    """Write a video that has only the frames `kept` of a video with 24 frames per second."""
    images = [picture(number) for number in kept]
    return str(write_video(path, images, fps=24, stamps=kept, **options))


def last_kept(kept, moments):
    return [max(number for number in kept if number <= moment) for moment in moments]


@pytest.fixture(scope="module", params=KEPT)
def made(request, tmp_path_factory):
    """The folder of the files with a pattern, the frames that they have, and their duration."""
    folder = tmp_path_factory.mktemp("made")
    kept, duration = KEPT[request.param]
    for name in ("a.mp4", "a.mkv", "a.avi", "a.ts"):
        write_numbered(folder / name, kept)
    path = str(folder / "a.mp4")
    write_prepared(path, scan(path), folder / "prepared.mp4")
    return folder, kept, duration


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi", "a.ts", "prepared.mp4"])
def test_a_clip_shows_the_frames_of_even_times(made, name):
    """The clips are those of the file before frames were dropped, as are the prepared file's."""
    folder, kept, duration = made
    record = scan(str(folder / name))
    assert record.video.frames == len(kept)
    assert record.video.fps == pytest.approx(24 * len(kept) / duration, rel=1e-3)
    assert "variable frame rate" in record.timing
    record = ScannedVideo.unpacked(record.packed())
    how = {"frames": 8, "stride": 2, "crop": SIDE, "target_fps": 24, "to_end": True}
    for view in range(4):
        plan, regular = (
            plan_test(video, **how, view=(view, 4), options=EXACT)
            for video in (record.video, Video(duration, 24.0, SIDE, SIDE))
        )
        shown = numbers(read_clip(str(folder / name), record, plan))
        assert shown == last_kept(kept, regular.frame_indices.tolist())


def test_a_random_clip_has_even_times(made):
    """Each clip has even times from some start, also without `exact_strides`."""
    folder, kept, duration = made
    pairs = [(folder / name, 0) for name in ("a.mkv", "prepared.mp4")]
    clips = VideoClips(pairs, BASE, stride=2, target_fps=24, short_sides=(SIDE, SIDE))
    starts = np.arange(0, duration, 0.05)
    possible = {tuple(last_kept(kept, start + 2 * np.arange(8) + 1e-6)) for start in starts}
    for epoch in range(10):
        for video in range(2):
            item = clips[ClipRequest(video, epoch, BASE, 0)]
            assert tuple(numbers(item["clip"])) in possible


def test_a_prepared_file_of_a_constant_rate_shows_the_same_moments(made, tmp_path):
    folder, kept, duration = made
    path = str(folder / "a.mp4")
    write_prepared(path, scan(path), tmp_path / "a.mp4", fps=24)
    with av.open(str(tmp_path / "a.mp4")) as container:
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert numbers(np.stack(pictures)) == last_kept(kept, range(duration))
    record = scan(str(tmp_path / "a.mp4"))
    assert (record.video.fps, record.video.moments) == (24, None)


def test_an_avi_with_b_frames_tells_when_frames_are_shown(tmp_path):
    """The last frame is an exception, because the file cannot store its time."""
    path = write_numbered(tmp_path / "b.avi", DROPPED, options={"bf": "2"})
    times = scan(path).times
    assert (times - times[0]).tolist()[:-1] == DROPPED[:-1]


# Which rates count as constant.


def test_a_constant_rate_stays_as_reported():
    """Timestamps are rounded in many ways. The reported frame rate must be used each time."""
    for fps in (12, 15, 24000 / 1001, 25, 30000 / 1001, 30, 50, 60000 / 1001, 120):
        for tick in (0.001, 1 / 90_000, 1 / fps, 1001 / 30_000 / 512):
            for frames in (1, 2, 3, 7, 50, 499):
                exact = (np.arange(frames) + 17) / fps / tick
                for to_integer in (np.floor, np.rint):
                    stamps = to_integer(exact + 1e-6).astype(np.int64)
                    assert timing_of(stamps, tick, fps) == (fps, None, "")


EVERY = np.arange(50)


@pytest.mark.parametrize(
    ("stamps", "reported", "joinable", "fps", "varies", "remark"),
    [
        (EVERY * 40, 30, False, 25, False, "has 25 frames per second, but FFmpeg"),
        (EVERY * 40 + EVERY % 2 * 15, 25, False, 25, False, ""),  # uneven by less than a frame
        (np.delete(EVERY, 48) * 40, 25, False, 25, False, ""),  # one is missing
        (np.delete(EVERY, range(20, 30)) * 40, 25, False, 19.9, True, "19.9 frames per second on"),
        ((EVERY ^ (EVERY < 48) * 3) * 40, 25, False, 25, False, ""),  # in decoding order
        (np.r_[EVERY, EVERY + 0.5] * 40, 25, True, 25, False, ""),  # joined, both begin at 0
        (np.r_[EVERY, EVERY + 9000] * 40, 25, True, 25, False, ""),  # joined, with a jump
        (np.r_[EVERY, EVERY + 200] * 40, 25, True, 9.94, True, "variable"),  # a freeze of 6 s
        (np.r_[EVERY, EVERY + 299] * 40, 25, True, 7.1, True, "variable"),  # a gap of just 10 s
        (None, 25, False, 25, False, ""),
        (EVERY[:1], 25, False, 25, False, ""),
        # The rate that is reported may differ by 3 % of the duration, and by a frame.
        (np.arange(1000) * 40, 25.6, False, 25.6, False, ""),
        (np.arange(1000) * 40, 25.9, False, 25, False, "has 25 frames per second, but FFmpeg"),
        (np.array([0, 1000]), 25, False, 25, False, "shows a frame for 1 s"),
        # Numbers above 2^52 are not exact.
        (2**52 - 49 + EVERY, 25, False, 1000, False, "1000 frames per"),
        (2**52 - 48 + EVERY, 25, False, 25, False, ""),
        (EVERY - 2**52, 25, False, 1000, False, "1000 frames per"),
        (EVERY - 2**52 - 1, 25, False, 25, False, ""),
    ],
)
def test_the_rate_is_that_of_the_timestamps(stamps, reported, joinable, fps, varies, remark):
    stamps = None if stamps is None else stamps.astype(np.int64)
    timing = timing_of(stamps, 0.001, reported, joinable=joinable)
    assert timing.fps == pytest.approx(fps, rel=2e-3)
    assert (timing.times is not None) == varies
    assert remark in timing.remark
    assert bool(remark) == bool(timing.remark)


@pytest.mark.parametrize(("gap", "is_long"), [(600, True), (500, False)])
def test_a_frame_is_shown_for_long_if_half_of_the_video_consists_of_long_gaps(gap, is_long):
    """Four gaps of 0.3 s last 1.2 s, the next one 0.6 s or 0.5 s, and the longest 1.2 s."""
    stamps = np.cumsum([0, 300, 300, 300, 300, gap, 1200])
    remark = timing_of(stamps, 0.001, 2).remark
    assert remark.startswith("has a variable frame rate, 2")
    assert ("shows a frame for 0.6 s" in remark) == ("shows" in remark) == is_long


def test_frames_move_by_up_to_16_places_when_they_are_sorted():
    """In a file of two joined parts, frames move further."""
    for distance, is_known in ((16, True), (17, False)):
        order = np.arange(50)
        order[[3, 3 + distance]] = order[[3 + distance, 3]]
        timing = timing_of(order * 1000, 0.001, 25)
        assert timing.fps == (1 if is_known else 25)


def test_without_a_tick_or_a_rate_there_is_no_timing_of_its_own():
    assert timing_of(EVERY, 0, 25) == (25, None, "")
    assert timing_of(EVERY, 0, 0) is None
    assert timing_of(None, 0.001, 0) is None
    assert timing_of(EVERY * 40, 0.001, 0).fps == pytest.approx(25)


def test_the_times_of_an_avi_file_are_those_of_decoding_if_all_are_one_frame_late():
    late = np.array([1, 2, 5, 6])
    assert avi_times([0, 1, 2, 5], late, reorders=False).tolist() == [0, 1, 2, 5]
    assert avi_times([0, 1, 2, 5], late, reorders=True) is late
    assert avi_times([0, 1, 3, 5], late, reorders=False) is late
    assert avi_times([0, 1, 2, None], late, reorders=False) is late


def test_moments_are_times_in_frames_since_the_first_less_half_a_millisecond():
    """Of 3 frames in 1 s, the mean distance is 0.5 s, at 2.5 frames per second as is given."""
    moments = moments_of(np.array([100, 200, 1100]), 2.5)
    assert moments == pytest.approx([-0.00125, 0.2 - 0.00125, 2 - 0.00125])
    assert moments_of(None, 2.5) is None


# What is said.


def test_a_list_names_videos_with_a_variable_rate_and_with_few_frames(tmp_path, caplog):
    slow = write_numbered(tmp_path / "slow.mkv", [0, 240, 480, 485, 490, 500])
    uneven = write_numbered(tmp_path / "uneven.avi", DROPPED)
    paths = [slow, str(write_video(tmp_path / "plain.mkv", grey(30))), uneven]
    open_index(tmp_path / "train.csv", paths)
    assert f"2 of the 3 videos of {tmp_path / 'train.csv'} have an unusual frame" in caplog.text
    assert f"{uneven} has a variable frame rate, 8 frames per second on average" in caplog.text
    assert "and shows a frame for 10 s, so its clips have few distinct frames" in caplog.text
