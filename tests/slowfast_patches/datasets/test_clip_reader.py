"""Tests of reading clips: the wanted frames, the wanted pixels, and errors of damaged files."""

from unittest import mock

import av
import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multigrid import ClipPlan, Video, Window
from slowfast_patches.datasets.reading import reader
from slowfast_patches.datasets.reading.reader import Cropper, read_clip, read_clips
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.scanned_video import Kind, ScannedVideo
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError, VideoFile
from tests.slowfast_patches.datasets.made_videos import (
    SAMPLES,
    needs_samples,
    write_jpeg,
    write_video,
)
from tests.slowfast_patches.datasets.public_reports.numbered import SIDE, numbers, picture

FRAMES = 60
SHARP = {"crf": "4", "b": "4000000"}


def numbered(frames=FRAMES):
    return [picture(number) for number in range(frames)]


def plan(indices):
    return ClipPlan(np.array(indices), (SIDE, SIDE), (0, 0), SIDE, False)


def read(path, indices):
    return numbers(read_clip(str(path), scan(str(path)), plan(indices)))


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


indices = st.lists(st.integers(0, FRAMES - 1), min_size=1, max_size=8).map(sorted)


@settings(max_examples=10, deadline=None)
@given(indices=indices)
def test_the_frames_asked_for_are_read(each, indices):
    assert read(each, indices) == indices


# Which pixels.


@pytest.mark.parametrize(("scale", "pixels"), [(1, "yuv420p"), (2, "yuv444p")])
def test_the_crop_is_cut_at_its_corner_from_the_resized_frame(tmp_path, scale, pixels):
    """Red shows the column and green the row. The reader does not flip clips."""
    level = 4 * np.arange(SIDE, dtype=np.uint8)
    image = np.stack(np.broadcast_arrays(level, level[:, None], np.uint8(128)), -1)
    path = str(write_video(tmp_path / "a.mp4", [image] * 3, options=SHARP, pixels=pixels))
    side, x, y, crop = (scale * length for length in (SIDE, 10, 20, 16))
    clip = read_clip(path, scan(path), ClipPlan(np.array([0, 2]), (side, side), (x, y), crop, True))
    assert (clip.shape, clip.dtype) == ((2, crop, crop, 3), np.uint8)
    shown = clip[1] / 4
    assert shown[..., 0].mean(0) == pytest.approx(np.linspace(10, 25, crop), abs=1.5)
    assert shown[..., 1].mean(1) == pytest.approx(np.linspace(20, 35, crop), abs=1.5)


# Windows of frames, by hand.


def ramp(width=24, height=16):
    """Return a picture (H, W, 3) whose channels are the column, the row and a constant."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([10 * columns, 15 * rows, np.full_like(rows, 7)], -1).astype(np.uint8)


def cropped(frame, window, shown, size, *how):
    out = np.zeros((size, size, 3), np.uint8)
    Cropper(Window(*window), shown, size, *how)(frame, out)
    return out


def test_a_window_of_a_picture_is_cut_at_whole_pixels_and_its_channels_are_reversed():
    image = ramp()
    out = cropped(image, (5.4, 2.6, 8, 8), (24, 16), 8)
    assert np.array_equal(out, image[3:11, 5:13, ::-1])
    assert np.array_equal(cropped(image, (20, 12, 8, 8), (24, 16), 4), image[12:, 20:, ::-1])
    assert np.array_equal(cropped(image, (-3, -3, 4, 4), (24, 16), 4), image[:4, :4, ::-1])
    # A window beyond the picture gives its last pixel.
    assert np.array_equal(cropped(image, (90, 90, 1, 1), (24, 16), 1), image[-1:, -1:, ::-1])
    assert np.array_equal(cropped(image, (4, 4, 0.1, 0.1), (24, 16), 1), image[4:5, 4:5, ::-1])


def test_a_picture_of_another_size_is_cut_at_the_same_part():
    """The window is the right half of 12 × 8 pixels, or of 24 × 16."""
    out = cropped(ramp(), (6, 0, 4, 8), (12, 8), 8)
    whole = cropped(ramp(), (12, 0, 8, 16), (24, 16), 8)
    assert np.array_equal(out, whole)


def test_areas_are_averaged_if_a_side_shrinks_by_half():
    """Every fourth pixel is white, so the mean is 255/16, or 255/4 along a single side."""
    image = np.zeros((16, 16, 3), np.uint8)
    image[::4, ::4] = 255
    assert set(cropped(image, (0, 0, 16, 16), (16, 16), 4).flat) == {16}
    columns = np.zeros((4, 16, 3), np.uint8)
    columns[:, ::4] = 255
    assert set(cropped(columns, (0, 0, 16, 4), (16, 4), 4).flat) == {64}
    rows = np.ascontiguousarray(columns.transpose(1, 0, 2))
    assert set(cropped(rows, (0, 0, 4, 16), (4, 16), 4).flat) == {64}


@pytest.mark.parametrize(
    ("width", "height", "shrinks"), [(64, 32, 2.0), (32, 96, 2.0), (8, 8, 0.5)]
)
def test_a_clip_shrinks_by_the_shorter_side_of_its_window(width, height, shrinks):
    assert Cropper(Window(0, 0, width, height), (96, 96), 16).shrinks == shrinks


def planes(width, height, format="yuv420p"):
    """Return a frame whose luma is 16 + 8 · column, and whose chroma shows the row and column."""
    frame = av.VideoFrame(width, height, format)
    frame.colorspace, frame.color_range = 5, 1
    for number, plane in enumerate(frame.planes):
        depth = np.uint8 if frame.format.components[0].bits == 8 else np.uint16
        stride = plane.line_size // np.dtype(depth).itemsize
        values = np.frombuffer(plane, depth).reshape(-1, stride)
        rows, columns = np.mgrid[: plane.height, : plane.width]
        level = [16 + 8 * columns, 60 + 12 * rows, 60 + 12 * columns][number]
        values[: plane.height, : plane.width] = level << (0 if depth == np.uint8 else 2)
    return frame


@pytest.mark.parametrize("format", ["yuv420p", "yuv444p", "yuv422p", "yuv420p10le", "rgb24"])
@pytest.mark.parametrize("window", [(4, 2, 8, 8), (5, 3, 8, 8), (16, 8, 8, 8), (0.9, 0.9, 8, 8)])
def test_a_window_of_planes_is_cut_at_whole_samples_of_all_planes(format, window):
    """Positions are rounded to even numbers where chroma is subsampled: 5 to 4, and 3 to 4."""
    frame = planes(24, 16) if format == "rgb24" else planes(24, 16, format)
    if format == "rgb24":
        frame = frame.reformat(format="rgb24")
    across = 2 if "420" in format or "422" in format else 1
    down = 2 if "420" in format else 1
    left, top = round(window[0] / across) * across, round(window[1] / down) * down
    whole = frame.to_ndarray(format="rgb24").astype(int)
    out = cropped(frame, window, (24, 16), 8).astype(int)
    difference = np.abs(out - whole[top : top + 8, left : left + 8])
    inner = difference[2:-2, 2:-2]  # swscale interpolates chroma across the edges of a crop
    assert inner.max() <= (2 if "10" in format else 1)


def test_a_cropper_adapts_to_each_new_form_of_frame():
    """The size, the format and the colours of frames may change within a stream."""
    cropper, out = Cropper(Window(4, 2, 8, 8), (24, 16), 8), np.zeros((8, 8, 3), np.uint8)
    frames = [planes(24, 16), planes(24, 16, "yuv444p"), planes(48, 32), planes(24, 16)]
    full, other = planes(24, 16), planes(24, 16)
    full.color_range = 2
    other.colorspace = 1
    for frame in (*frames, full, other):
        cropper(frame, out)
        assert np.array_equal(out, cropped(frame, (4, 2, 8, 8), (24, 16), 8))


# Which frames of which clips.


@pytest.fixture
def decoded(monkeypatch):
    """Return a function that sets which frames a video of 6 pictures of 8 × 8 decodes to."""

    def make(*numbers, kind=Kind.VIDEO, files=None):
        wanted = []

        def decode(path, record, indices):
            wanted.append(indices)
            yield from ((number, np.full((8, 8, 3), number, np.uint8)) for number in numbers)

        monkeypatch.setattr(reader, "decode_video", decode)
        monkeypatch.setattr(reader, "decode_prepared", decode)
        return ScannedVideo(kind, Video(6, 25.0, 8, 8), files=files), wanted

    return make


def small(*indices):
    return ClipPlan(np.array(indices), (8, 8), (0, 0), 8, False)


@pytest.mark.parametrize("kind", [Kind.VIDEO, Kind.PREPARED])
def test_frames_are_decoded_once_for_all_clips_and_the_last_stands_for_later_ones(decoded, kind):
    record, wanted = decoded(5, 0, 1, 2, 3, kind=kind)
    clips = read_as_one("a", record, [small(2, 2, 5, 9), small(0, 5)])
    assert wanted == [[0, 2, 5]]
    assert [clip[:, 0, 0, 0].tolist() for clip in clips] == [[2, 2, 5, 5], [0, 5]]


def test_each_clip_needs_an_array(decoded):
    record, wanted = decoded(0, 1)
    clip = np.zeros((1, 8, 8, 3), np.uint8)
    for plans, outs in (([small(0)], []), ([small(0)], [clip, clip])):
        with pytest.raises(ValueError, match="argument"):
            read_clips("a", record, plans, outs)
    assert wanted == []


def test_the_first_frame_that_did_not_come_is_named(decoded):
    record, _ = decoded(0, 5)
    with pytest.raises(UnreadableVideoError, match="did not return frame 2"):
        read_clip("a", record, small(0, 2, 4, 5))


def test_a_folder_must_have_as_many_frames_as_before(decoded, monkeypatch):
    names = []
    monkeypatch.setattr(
        reader,
        "read_jpeg",
        lambda folder, name, mode: names.append(name) or np.zeros((8, 8, 3), np.uint8),
    )
    monkeypatch.setattr(reader, "frame_files", lambda path: list("uvwxyz"))
    record, _ = decoded(kind=Kind.FRAMES)
    read_clip("v", record, small(1, 4))
    record, _ = decoded(kind=Kind.FRAMES, files=tuple("abcdef"))
    read_clip("v", record, small(1, 4))
    assert names == ["v", "y", "b", "e"]
    record, _ = decoded(kind=Kind.FRAMES, files=tuple("abcde"))
    with pytest.raises(UnreadableVideoError, match="has 5 frames, but the index says 6"):
        read_clip("v", record, small(1))


# Files that cannot be read.


def test_a_file_that_changed_after_it_was_indexed_is_one_error(folder, video):
    record, path, whole = scan(str(video)), folder / "changed.mp4", video.read_bytes()
    start, stop = whole.index(b"mdat") + 4, whole.index(b"moov") - 4
    blank = whole[:start] + bytes(stop - start) + whole[stop:]
    for content in (b"no video", whole[:2000], blank):
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


def read_as_one(path, record, plans):
    clips = [np.zeros((len(p.frame_indices), p.crop, p.crop, 3), np.uint8) for p in plans]
    read_clips(path, record, plans, clips)
    return clips


@pytest.mark.parametrize("source", ["video", "jpegs"])
def test_clips_that_are_read_together_are_those_read_alone(source, request):
    path = str(request.getfixturevalue(source))
    record = scan(path)
    alone = [read_clip(path, record, plan) for plan in overlapping()]
    assert all(map(np.array_equal, read_as_one(path, record, overlapping()), alone))


def test_what_lies_between_the_views_of_a_long_video_is_not_decoded(folder):
    """Read two clips at the ends of a video of 400 frames with a key frame every 12 frames."""
    path = str(write_video(folder / "long.mp4", numbered(400), options=SHARP))
    record, plans = scan(path), [plan([3, 5, 9]), plan([380, 381, 390])]
    spy = mock.patch.object(VideoFile, "decode", autospec=True, side_effect=VideoFile.decode)
    with spy as decode:
        clips = read_as_one(path, record, plans)
    assert [numbers(clip) for clip in clips] == [[3, 5, 9], [380 % 256, 381 % 256, 390 % 256]]
    assert decode.call_count < 60


# Folders of JPEG files.


@pytest.fixture(scope="module")
def jpegs(folder):
    """Frames 0 to 59, each a grey of four times its number."""
    path = folder / "frames"
    for number in range(FRAMES):
        write_jpeg(path / f"{number:02}.jpg", 4 * SIDE, 4 * SIDE, 4 * number)
    return path


@pytest.mark.parametrize(
    ("short_side", "mode"),
    [
        (256, cv2.IMREAD_COLOR),
        (128, cv2.IMREAD_REDUCED_COLOR_2),
        (64, cv2.IMREAD_REDUCED_COLOR_4),
        (32, cv2.IMREAD_REDUCED_COLOR_8),
    ],
)
def test_a_jpeg_file_is_decoded_no_larger_than_needed(jpegs, short_side, mode):
    plan = ClipPlan(np.array([50]), (short_side, short_side), (0, 0), 32, False)
    with mock.patch.object(reader, "read_jpeg", wraps=reader.read_jpeg) as read:
        clip = read_clip(str(jpegs), scan(str(jpegs)), plan)
    assert read.call_args.args[2] == mode
    assert clip[0, 31, 31].tolist() == [200] * 3


# Real files.

LARGE = ["cockatoo_720p_yuv444", "ntu_1080p_h264", "testsrc_h265"]  # take seconds
ALIKE = ["asl_no_h264_yuvj", "asl_walk_h264_yuvj", "asl_yes_h264_yuvj", "kinetics_340x256_h264"]
SKIPPED = {"corrupted", "nasa_h264_aac", *LARGE, *ALIKE}
READABLE = sorted(path for path in SAMPLES.glob("*") if path.stem not in SKIPPED)
DEEP = {"av1.mkv": 0.1, "bt2020_10bit.mp4": 3, "testsrc_vp9.webm": 4}
"""Mean levels by which videos of 10 bits may differ: swscale interpolates their chroma between the
rows and columns of a whole frame, and repeats it within a clip's."""


@pytest.mark.slow("decodes whole videos")
@needs_samples
@pytest.mark.parametrize("path", READABLE, ids=lambda path: path.name)
def test_the_frames_of_a_sample_are_those_of_a_full_decode(path):
    """Random indices at the size of the file: every pixel of a crop, or for 10 bits its mean.

    In the only sample with two videos, the second is the larger.
    """
    record = scan(str(path))
    with av.open(str(path)) as container:
        frames = list(container.decode(container.streams.video[-1]))
    last, size = record.video.frames - 1, record.video[2:4]
    assert len(frames) == last + 1
    rng, crop = np.random.default_rng(0), min(size) // 4 * 2
    x, y = ((side - crop) // 4 * 2 for side in size)
    limit = DEEP.get(path.name, 0)
    for first in (0, last, int(rng.integers(last + 1))):
        wanted = np.sort(rng.integers(first, min(first + 80, last + 6), 5))
        clip = read_clip(str(path), record, ClipPlan(wanted, (*size,), (x, y), crop, False))
        for taken, number in zip(clip, wanted.clip(max=last), strict=True):
            frame = frames[number]
            shown = np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)
            difference = np.abs(taken - shown[y : y + crop, x : x + crop].astype(np.int16))
            assert difference.mean() <= limit
            assert limit or difference.max() == 0
