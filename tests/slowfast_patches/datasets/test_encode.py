"""Tests that prepared files have the documented properties."""

import itertools
from dataclasses import replace

import av
import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multigrid import Video
from slowfast_patches.datasets.preparing.encode import X264, write_prepared
from slowfast_patches.datasets.reading.prepared import decode_prepared
from slowfast_patches.datasets.reading.scan import scan
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


# What can go wrong.


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
