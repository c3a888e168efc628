"""Tests of reading clips: the wanted frames, the wanted pixels, and errors of damaged files."""

from itertools import chain
from unittest import mock

import av
import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multigrid import ClipPlan, Video
from slowfast_patches.datasets.reading import reader
from slowfast_patches.datasets.reading.errors import UnreadableVideoError
from slowfast_patches.datasets.reading.pixels import Cropper
from slowfast_patches.datasets.reading.reader import read_clip, read_clips
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.scanned_video import Kind
from tests.slowfast_patches.datasets.made_videos import SAMPLES, needs_samples, write_video
from tests.slowfast_patches.datasets.public_reports.numbered import SIDE, numbers, picture

FRAMES = 60
SHARP = {"crf": "4", "b": "4000000"}


def numbered(frames=FRAMES):
    return [picture(number) for number in range(frames)]


def plan(positions):
    return ClipPlan(np.array(positions), (SIDE, SIDE), (0, 0), SIDE, False)


def read(path, positions):
    return numbers(read_clip(str(path), scan(str(path)), plan(positions)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("videos")


@pytest.fixture(scope="module")
def video(folder):
    return write_video(folder / "numbered.mp4", numbered(), options=SHARP)


@pytest.fixture(scope="module", params=["mp4", "mkv", "avi"])  # the last in MPEG-4
def each(folder, request):
    return write_video(folder / f"each.{request.param}", numbered(), options=SHARP)


# Which frames.


positions = st.lists(st.integers(0, FRAMES - 1), min_size=1, max_size=8).map(sorted)


@settings(max_examples=10, deadline=None)
@given(positions=positions)
def test_the_frames_asked_for_are_read(each, positions):
    assert read(each, positions) == positions


# Which pixels.


@pytest.mark.parametrize("scale", [1, 2])
def test_the_crop_is_cut_at_its_corner_from_the_resized_frame(folder, scale):
    """Red shows the column and green the row. The reader does not flip clips."""
    rows, columns = np.indices((SIDE, SIDE))
    image = np.stack([4 * columns, 4 * rows, np.full_like(rows, 128)], -1).astype(np.uint8)
    path = str(write_video(folder / "gradient.mp4", [image] * 3, options=SHARP))
    width, height, x, y, crop = (scale * side for side in (SIDE, SIDE, 10, 20, 16))
    cut = ClipPlan(np.array([0, 2]), (width, height), (x, y), crop, flip=True)
    clip = read_clip(path, scan(path), cut)
    assert (clip.shape, clip.dtype) == ((2, crop, crop, 3), np.uint8)
    shown = clip[1] / 4
    assert shown[..., 0].mean(0) == pytest.approx(np.linspace(10, 25, crop), abs=1.5)
    assert shown[..., 1].mean(1) == pytest.approx(np.linspace(20, 35, crop), abs=1.5)


# Files that cannot be read.


def test_a_file_that_changed_after_it_was_indexed_is_one_error(folder, video):
    record, path, whole = scan(str(video)), folder / "changed.mp4", video.read_bytes()
    start, stop = whole.index(b"mdat") + 4, whole.index(b"moov") - 4
    blank = whole[:start] + bytes(stop - start) + whole[stop:]
    for content in (None, b"no video", whole[:2000], blank):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UnreadableVideoError, match="cannot be"):
            read_clip(str(path), record, plan(list(range(FRAMES))))
    with pytest.raises(UnreadableVideoError, match="decode"):
        scan(str(path))


# Several clips in one pass.


def overlapping():
    """Plan two views, and three crops of one of them, at two sizes. One ends beyond the video."""
    size, small = (SIDE, SIDE), (SIDE // 2, SIDE // 2)
    late = np.array([20, 30, 40, 70])
    crops = [ClipPlan(late, size, (x, 8), 16, False) for x in (0, 24, 48)]
    return [ClipPlan(np.array([3, 9, 9, 30]), small, (4, 0), 24, False), *crops]


def read_as_one(path, plans):
    clips = [np.zeros((len(p.positions), p.crop, p.crop, 3), np.uint8) for p in plans]
    read_clips(str(path), scan(str(path)), plans, clips)
    return clips


@pytest.mark.parametrize("source", ["video", "jpegs"])
def test_clips_that_are_read_together_are_those_read_alone(source, request):
    path = request.getfixturevalue(source)
    alone = [read_clip(str(path), scan(str(path)), plan) for plan in overlapping()]
    assert all(map(np.array_equal, read_as_one(path, overlapping()), alone))


@pytest.fixture
def decoded_frames(monkeypatch):
    """Return a list to which the number of each decoded frame is added, wanted or not."""
    numbers, decode = [], reader._decode_from_here

    def spy(*args):
        for number, frame in decode(*args):
            numbers.append(number)
            yield number, frame

    monkeypatch.setattr(reader, "_decode_from_here", spy)
    return numbers


def test_what_lies_between_the_views_of_a_long_video_is_not_decoded(folder, decoded_frames):
    """Read two clips at the ends of a video of 400 frames with a key frame every 12 frames."""
    path = write_video(folder / "long.mp4", numbered(400), options=SHARP)
    clips = read_as_one(path, [plan([3, 5, 9]), plan([380, 381, 390])])
    assert [numbers(clip) for clip in clips] == [[3, 5, 9], [380 % 256, 381 % 256, 390 % 256]]
    assert len(decoded_frames) < 48


# Folders of JPEG files.


@pytest.fixture(scope="module")
def jpegs(folder):
    """Frames 0 to 59, each a grey of four times its number, with a red upper left corner."""
    path = folder / "frames"
    path.mkdir()
    for number in range(FRAMES):
        image = np.full((4 * SIDE, 4 * SIDE, 3), 4 * number, np.uint8)
        image[:16, :16] = (0, 0, 255)  # OpenCV's order is BGR
        cv2.imwrite(str(path / f"{number:02}.jpg"), image)
    (path / "notes.txt").write_text("no frame")
    return path


def test_a_folder_of_jpeg_files_is_read_as_a_video_is(jpegs):
    record = scan(str(jpegs))
    assert (record.kind, record.video) == (Kind.FRAMES, Video(60, 30.0, 256, 256))
    wanted = ClipPlan(np.array([0, 7, 7, 50, 70]), (256, 256), (0, 0), 64, False)
    clip = read_clip(str(jpegs), record, wanted)
    assert clip[:, 40, 40].tolist() == [[4 * n] * 3 for n in (0, 7, 7, 50, 59)]
    assert clip[3, 4, 4, 0] > 200  # red comes first
    assert clip[3, 4, 4, 2] < 60


@pytest.mark.parametrize(("short_side", "reduced"), [(256, 1), (128, 2), (64, 4), (32, 8)])
def test_a_jpeg_file_is_decoded_no_larger_than_needed(jpegs, short_side, reduced):
    plan = ClipPlan(np.array([50]), (short_side, short_side), (0, 0), 32, False)
    with mock.patch.object(Cropper, "image", autospec=True, side_effect=Cropper.image) as crop:
        clip = read_clip(str(jpegs), scan(str(jpegs)), plan)
    assert crop.call_args.args[1].shape == (256 // reduced, 256 // reduced, 3)
    assert clip[0, 31, 31].tolist() == [200] * 3


# Real files.

TOO_LARGE = "ntu_1080p_h264"  # takes 10 s; made files cover H.264 in AVI
READABLE = sorted(p for p in SAMPLES.glob("*") if p.stem not in ("corrupted", TOO_LARGE))
DEEP = {"av1.mkv": 0.1, "bt2020_10bit.mp4": 3, "testsrc_vp9.webm": 4}
"""Mean levels by which videos of 10 bits may differ: swscale interpolates their chroma between the
rows and columns of a whole frame, and repeats it within a clip's."""


def decoded(path, numbers):
    """The number of frames, and some as they are shown, by decoding from the start to the end.

    In the only sample with two videos, the second is the larger.
    """
    with av.open(str(path)) as container:
        streams = container.streams.video
        frames = {}
        for count, frame in enumerate(container.decode(streams[-1]), start=1):
            if count - 1 in numbers:
                picture = frame.to_ndarray(format="rgb24")
                frames[count - 1] = np.rot90(picture, frame.rotation // 90)
    return count, frames


@pytest.mark.slow
@needs_samples
@pytest.mark.parametrize("path", READABLE, ids=lambda path: path.name)
def test_the_frames_of_a_sample_are_those_of_a_full_decode(path):
    """Random positions and crops, at the size of the file: every pixel, or for 10 bits its mean."""
    record = scan(str(path))
    last, size = record.video.frames - 1, record.video[2:4]
    rng, crop = np.random.default_rng(0), min(size) // 4 * 2
    plans = []
    for first in (0, last, int(rng.integers(0, last + 1))):
        later = rng.integers(first, min(first + 80, last + 6), 4)
        corner = [2 * int(rng.integers((side - crop) // 2 + 1)) for side in size]
        plans.append(ClipPlan(np.sort(np.append(later, first)), (*size,), (*corner,), crop, False))
    shown = [np.minimum(plan.positions, last).tolist() for plan in plans]
    count, frames = decoded(path, {*chain(*shown)})
    assert record.video.frames == count
    for plan, taken in zip(plans, shown, strict=True):
        clip, (x, y) = read_clip(str(path), record, plan).astype(np.int16), plan.corner
        expected = np.stack([frames[n][y : y + crop, x : x + crop] for n in taken])
        difference = np.abs(clip - expected)
        limit = DEEP.get(path.name, 0)
        assert difference.mean((1, 2, 3)).max() <= limit
        assert limit or difference.max() == 0
