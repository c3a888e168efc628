"""Tests that prepared files have the documented properties."""

import itertools
from dataclasses import replace
from fractions import Fraction

import av
import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multigrid import Video
from slowfast_patches.datasets.preparing import encode
from slowfast_patches.datasets.preparing.encode import X264, source_pictures, write_prepared
from slowfast_patches.datasets.reading.prepared import TAG, decode_prepared
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.scanned_video import Kind, ScannedVideo
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from tests.slowfast_patches.datasets.made_videos import write_video

FRAMES = 100
SHARP = {"fps": 25, "options": {"crf": "10", "preset": "ultrafast"}}


def moving(frames, width, height):
    """Draw a bright disc that moves over a ramp. There is no noise, which no encoder preserves."""
    ramp = np.linspace(20, 160, width).astype(np.uint8)[None, :, None]
    images = np.tile(ramp, (frames, height, 1, 3))
    for number, image in enumerate(images):
        centre = (5 + number * (width - 10) // frames, height // 2)
        cv2.circle(image, centre, height // 5, (250, 60, 30), -1)
    return list(images)


def decoded(path):
    with av.open(str(path)) as container:
        return list(container.decode(video=0))


def prepared_of(source, **options):
    target = source.with_name(f"{source.name}_prepared.mp4")
    write_prepared(str(source), scan(str(source)), target, **options)
    return target


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("encode")


@pytest.fixture(scope="module")
def source(folder):
    return write_video(folder / "source.mp4", moving(FRAMES, 96, 64), **SHARP)


@pytest.fixture(scope="module")
def prepared(source):
    return prepared_of(source)


# The form.


def picture_header(packet):
    """Return the first byte of the unit with the picture, skipping others (ITU-T H.264, 7.3.1)."""
    start = 0
    while packet[start + 4] & 31 not in (1, 5):
        start += 4 + int.from_bytes(packet[start : start + 4])
    return packet[start + 4]


def test_the_file_is_groups_of_48_with_anchors_every_12_and_pictures_to_skip_between(prepared):
    with av.open(str(prepared)) as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        assert (stream.codec.name, stream.average_rate) == ("h264", 25)
    by_time = sorted(packets, key=lambda packet: packet.pts)
    steps = {later.pts - earlier.pts for earlier, later in itertools.pairwise(by_time)}
    assert len(steps) == 1  # one frame after another, at one rate
    assert [n for n, packet in enumerate(by_time) if packet.is_keyframe] == [0, 48, 96]
    # nal_ref_idc of a packet's picture: whether others refer to it (ITU-T H.264, 7.4.1).
    kept = [n for n, packet in enumerate(by_time) if picture_header(bytes(packet)) & 0x60]
    assert kept == [0, 12, 24, 36, 47, 48, 60, 72, 84, 95, 96, 99]


@pytest.mark.parametrize(("short_side", "least"), [(64, 36), (32, 32)])  # dB, of another filter
def test_every_frame_is_close_to_the_source(source, short_side, least):
    target = prepared_of(source, short_side=short_side)
    size = (short_side * 3 // 2, short_side)
    assert scan(str(target)).video == Video(FRAMES, 25.0, *size)
    for frames in zip(decoded(source), decoded(target), strict=True):
        whole, small = (frame.to_ndarray()[: frame.height] for frame in frames)  # luma
        resized = cv2.resize(whole, size, interpolation=cv2.INTER_AREA)
        assert cv2.PSNR(resized, small) >= least


@settings(max_examples=10, deadline=None)
@given(wanted=st.sets(st.integers(0, FRAMES - 1), min_size=1, max_size=12).map(sorted))
def test_single_frames_are_those_of_a_full_decode(prepared, wanted):
    whole = decoded(prepared)
    frames = dict(decode_prepared(str(prepared), scan(str(prepared)), wanted))
    assert sorted(frames) == wanted
    for number, frame in frames.items():
        assert np.array_equal(frame.to_ndarray(), whole[number].to_ndarray())


def test_the_file_is_the_same_on_every_cpu(folder, monkeypatch):
    source = write_video(folder / "short.mp4", moving(50, 96, 64), **SHARP)
    usual = prepared_of(source).read_bytes()
    monkeypatch.setitem(X264, "asm", 0)  # no SIMD instructions
    assert prepared_of(source).read_bytes() == usual


def test_a_smaller_crf_is_closer_to_the_source_and_0_is_lossless_in_luma(folder):
    source = write_video(folder / "sharp.mp4", moving(50, 96, 64), **SHARP)
    loss = []
    for crf in (30, 12, 0):
        target = prepared_of(source, crf=crf)
        pairs = zip(decoded(source), decoded(target), strict=True)
        luma = ([frame.to_ndarray()[:64].astype(float) for frame in frames] for frames in pairs)
        loss.append(max(np.square(whole - small).mean() for whole, small in luma))
    assert loss[0] > 4 * loss[1] > 0 == loss[2]


# Sources of all kinds.


@pytest.mark.parametrize(
    ("size", "video"), [((65, 49), Video(49, 30, 64, 48)), ((1, 3), Video(1, 30, 2, 4))]
)
def test_odd_sizes_become_even_and_every_length_is_kept(folder, size, video):
    images = moving(video.frames, *size)
    source = write_video(folder / "odd.mov", images, pixels="rgb24", codec="png")
    assert scan(str(prepared_of(source))).video == video


# Which frames are shown when, by hand.


def schedule(indices, *, fills_gaps):
    """Return the times of each picture. Frame i of six has the times 10 i and 10 i + 5."""
    stamps = [np.array([10 * n, 10 * n + 5]) for n in range(6)]
    pictures = ((number, f"picture {number}") for number in indices)
    return dict(encode._schedule(pictures, stamps, fills_gaps=fills_gaps))


def test_a_missing_frame_leaves_a_gap_or_the_picture_before_it_fills_it():
    assert schedule([0, 1, 3], fills_gaps=False) == {
        "picture 0": [0, 5],
        "picture 1": [10, 15],
        "picture 3": [30, 35],
    }
    assert schedule([1, 3], fills_gaps=True) == {
        "picture 1": [0, 5, 10, 15, 20, 25],
        "picture 3": [30, 35, 40, 45, 50, 55],
    }
    assert schedule([2], fills_gaps=True) == {"picture 2": [0, 5, *range(10, 60, 5)]}
    assert schedule([], fills_gaps=True) == {}


def timeline(video, rate, *, resample):
    tick, stamps = encode._timeline(video, Fraction(rate), resample=resample)
    assert len(stamps) == video.frames
    return tick, [times.tolist() for times in stamps]


def test_frames_are_repeated_or_omitted_for_another_rate():
    """Of 4 frames at 10 per second, 20 per second show each twice, and 5 show every other."""
    video = Video(4, 10.0, 64, 48)
    assert timeline(video, 20, resample=True) == (
        Fraction(1, 20),
        [[0, 1], [2, 3], [4, 5], [6, 7]],
    )
    assert timeline(video, 5, resample=True) == (Fraction(1, 5), [[0], [], [1], []])
    assert timeline(video, 10, resample=True) == (Fraction(1, 10), [[0], [1], [2], [3]])
    assert timeline(video, 1, resample=True) == (Fraction(1, 1), [[0], [], [], []])
    assert timeline(video, 10, resample=False) == (Fraction(1, 10), [[0], [1], [2], [3]])


def test_frames_of_a_variable_rate_keep_their_times():
    """At 10 frames per second on average, the frames are shown from 0, 0.3 and 0.4 s on."""
    video = Video(3, 10.0, 64, 48, np.array([-0.005, 2.995, 3.995]))
    assert timeline(video, 10, resample=False) == (
        Fraction(1, 90_000),
        [[0], [27_000], [36_000]],
    )
    # 10 moments per second: the first frame is shown at 0, 0.1 and 0.2 s.
    assert timeline(video, 10, resample=True) == (Fraction(1, 10), [[0, 1, 2], [], []])


@pytest.mark.parametrize(
    ("size", "short_side", "expected"),
    [
        ((96, 64), 64, (96, 64)),
        ((96, 64), 100, (96, 64)),
        ((96, 64), 32, (48, 32)),
        ((64, 96), 32, (32, 48)),
        ((97, 65), 256, (96, 64)),
        ((99, 67), 256, (100, 68)),
        ((300, 2), 256, (300, 2)),
        ((300, 4), 2, (150, 2)),
    ],
)
def test_pictures_are_even_and_no_larger_than_their_source(monkeypatch, size, short_side, expected):
    frame = av.VideoFrame.from_ndarray(np.zeros((size[1], size[0], 3), np.uint8), format="rgb24")
    monkeypatch.setattr(encode, "_decoded", lambda source, record: iter([(4, frame)]))
    record = ScannedVideo(Kind.VIDEO, Video(1, 25.0, *size))
    ((number, picture),) = source_pictures("a", record, short_side)
    assert number == 4
    assert picture.shape == (expected[1] * 3 // 2, expected[0])


def test_only_frames_in_order_are_taken(monkeypatch):
    """Damaged files can give frames twice, or late."""
    numbers = [0, 1, 1, 3, 2, 4]
    monkeypatch.setattr(encode, "decode_all", lambda source, record: ((n, n) for n in numbers))
    record = ScannedVideo(Kind.VIDEO, Video(5, 25.0, 64, 48))
    assert [number for number, _ in encode._decoded("a", record)] == [0, 1, 3, 4]


@pytest.mark.parametrize(
    ("format", "space", "range_", "is_plain"),
    [
        ("yuv420p", 2, 0, True),
        ("yuv420p", 5, 1, True),
        ("yuv420p", 6, 1, True),
        ("yuv420p", 1, 1, False),  # BT.709
        ("yuv420p", 5, 2, False),  # full range
        ("yuv444p", 5, 1, False),
        ("yuv420p10le", 5, 1, False),
    ],
)
def test_frames_of_bt_601_in_8_bits_need_no_other_colours(format, space, range_, is_plain):
    frame = av.VideoFrame(16, 16, format)
    frame.colorspace = space
    frame.color_range = range_
    assert encode._is_plain(frame) == is_plain


def test_a_prepared_file_has_the_rate_the_time_and_the_mark_that_are_given(folder, source):
    target = prepared_of(source, modified=1000.0, fps=12.5)
    assert target.stat().st_mtime == 1000
    with av.open(str(target)) as container:
        assert container.metadata["comment"] == TAG
        (stream,) = container.streams
        assert (stream.average_rate, stream.frames) == (Fraction(25, 2), 50)
        assert stream.codec_context.pix_fmt == "yuv420p"


# What can go wrong.


def test_up_to_half_of_the_frames_may_be_missing_and_that_is_said(tmp_path, monkeypatch, caplog):
    picture = np.full((48, 32), 128, np.uint8)
    record = ScannedVideo(Kind.VIDEO, Video(4, 25.0, 32, 32))
    for count, is_written in ((4, True), (2, True), (1, False)):
        caplog.clear()
        pictures = [(number, picture) for number in range(count)]
        monkeypatch.setattr(encode, "source_pictures", lambda *_, made=pictures: iter(made))
        target = tmp_path / f"{count}.mp4"
        if not is_written:
            with pytest.raises(UnreadableVideoError, match="has 4 frames, but only 1 can be"):
                write_prepared(f"source {count}", record, target)
            continue
        write_prepared(f"source {count}", record, target)
        assert scan(str(target)).video.frames == count
        assert ("only 2 of its 4 frames decode" in caplog.text) == (count == 2)


def test_a_source_that_breaks_off_leaves_no_file(tmp_path, source):
    record = scan(str(source))
    broken, target = tmp_path / "broken.mp4", tmp_path / "target.mp4"
    broken.write_bytes(source.read_bytes()[:5000])
    with pytest.raises(UnreadableVideoError):
        write_prepared(str(broken), record, target)
    record = replace(record, video=record.video._replace(frames=2 * FRAMES + 1))
    with pytest.raises(UnreadableVideoError, match="201 frames, but only 100 can be decoded"):
        write_prepared(str(source), record, target)
    assert [path.name for path in tmp_path.iterdir()] == ["broken.mp4"]
