"""Records of videos: real files whose facts are known, made ones, and bad ones."""

import os
import re
import wave
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest

from multigrid import ClipPlan
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading.damage import find_damage
from slowfast_patches.datasets.reading.prepared import split_group
from slowfast_patches.datasets.reading.reader import READER
from slowfast_patches.datasets.reading.scan import scan, scan_each
from slowfast_patches.datasets.reading.scanned_video import Kind
from slowfast_patches.datasets.reading.unreadable import LIMITS, UnreadableVideoError
from tests.slowfast_patches.datasets.made_videos import (
    SAMPLES,
    break_frame,
    grey,
    needs_samples,
    noise,
    write_video,
)

NTSC = 30000 / 1001


# Real files. Frames and key frames counted by decoding each from its beginning to its end.

FACTS = {
    "asl_milk_h264_yuvj.mkv": (51, 30, 640, 480, 0, [0]),
    "av1.mkv": (25, 25, 320, 240, 0, [0]),
    "bt2020_10bit.mp4": (60, 30, 320, 240, 0, [0]),
    # Its key frames 76 and 145 do not decode to the end without what came before them.
    "cockatoo_720p_yuv444.mp4": (280, 20, 1280, 720, 0, [0]),
    # Of its 50 frames, one does not decode.
    "corrupted.mp4": (49, 10, 1280, 720, 0, [0]),
    "kinetics_340x256_h264.mp4": (300, 30, 340, 256, 0, [0, 235]),
    "kinetics_abseiling_h264_aac.mp4": (250, 25, 454, 256, 0, [0]),
    "kinetics_pancake_h264.mkv": (310, 30, 426, 240, 0, [0, 150, 300]),
    "kth_handwaving_160x120_mpeg4.avi": (581, 25, 160, 120, 0, [0, 300]),
    # The larger of its two videos.
    "nasa_h264_aac.mp4": (390, NTSC, 480, 270, 0, [0, 240]),
    "ntu_1080p_h264.avi": (103, 30, 1920, 1080, 0, [0]),
    "rotated_0.mov": (3, 30, 568, 320, 0, [0]),
    "rotated_90.mov": (3, 30, 320, 568, 3, [0]),
    "rotated_180.mov": (3, 30, 568, 320, 2, [0]),
    "rotated_270.mov": (3, 30, 320, 568, 1, [0]),
    "testsrc_h265.mp4": (60, 30, 1280, 720, 0, [0]),
    "testsrc_vp8.webm": (30, 30, 1280, 720, 0, [0]),
    "testsrc_vp9.webm": (25, 25, 321, 240, 0, [0]),
    "ucf101_320x240_mpeg4_audio.avi": (164, 25, 320, 240, 0, [0]),
    "ucf101_basketball_mpeg4.avi": (141, NTSC, 320, 240, 0, list(range(0, 141, 12))),
    # The one at 144 cannot be found by seeking, which an MPEG program stream does by guessing.
    "ucf11_biking_mpeg1.mpg": (151, NTSC, 320, 240, 0, list(range(0, 144, 12))),
    "unordered_pts.mov": (4, 32, 50, 50, 0, [0]),
}


@needs_samples
@pytest.mark.parametrize("name", FACTS)
def test_a_sample_is_what_it_is_known_to_be(name):
    frames, fps, width, height, turns, keys = FACTS[name]
    record = scan(str(SAMPLES / name))
    assert record.kind == Kind.VIDEO
    assert record.video[:4] == (frames, pytest.approx(fps, rel=1e-9), width, height)
    assert record.orientation == (turns, False)
    assert record.keys.tolist() == keys
    assert len(set(record.timestamps.tolist())) == frames
    assert record.offsets is None
    assert record.headers == b""


# Made files.


def test_without_timestamps_frames_are_counted(tmp_path):
    """A bare H.264 stream says in which order its frames are shown, and no more."""
    record = scan(str(write_video(tmp_path / "bare.h264", grey(24))))
    assert record.video.frames == 24
    assert record.keys.tolist() == [0]
    assert record.timestamps is None


@pytest.fixture
def prepared(tmp_path):
    source = str(write_video(tmp_path / "a.mp4", grey(100), fps=25))
    write_prepared(source, scan(source), tmp_path / "prepared.mp4", short_side=32)
    return tmp_path / "prepared.mp4"


def test_a_prepared_file_knows_where_its_groups_lie(prepared):
    record = scan(str(prepared))
    assert (record.kind, record.video[:4]) == (Kind.PREPARED, (100, 25.0, 42, 32))
    content = prepared.read_bytes()
    groups = [content[slice(*ends)] for ends in pairwise(record.offsets)]
    assert [len(split_group(group)) for group in groups] == [48, 48, 4]
    assert record.headers[0] == 1  # the version with which an avcC begins


def test_a_prepared_file_that_is_damaged_is_refused(prepared):
    record = scan(str(prepared))
    begin, end = record.offsets[:2].tolist()
    content = bytearray(prepared.read_bytes())
    second = begin + split_group(content[begin:end])[1].start
    content[second : second + 4] = b"\xff" * 4  # the length of the second picture
    prepared.write_bytes(content)
    plan = ClipPlan(np.arange(9), (42, 32), (0, 0), 32, False)
    with pytest.raises(UnreadableVideoError, match="a group of pictures is damaged"):
        READER.read_clip(str(prepared), record, plan)


def test_what_keeps_a_video_from_being_read_whole_is_told(tmp_path):
    whole = write_video(tmp_path / "whole.mp4", grey(24), options={"x264-params": "bframes=0"})
    assert scan(str(whole)).damage == ""
    damage = scan(str(break_frame(whole, 13))).damage
    assert damage == "cannot be decoded completely: 1 of 24 frames are damaged"
    one = write_video(tmp_path / "one.mp4", grey(1))
    assert scan(str(one)).damage == "has only one frame, so all frames of a clip are the same"
    cut = write_video(tmp_path / "cut.mp4", noise(50), container_options={"movflags": "faststart"})
    cut.write_bytes(cut.read_bytes()[:-3000])
    assert re.fullmatch(r"is truncated: 3\d of about 50 frames are there", scan(str(cut)).damage)


def test_a_video_whose_frames_do_not_all_decode_is_told_by_decoding_it(tmp_path):
    """Nothing but decoding tells damage in MPEG-4 behind the beginning of a packet."""
    path = write_video(tmp_path / "a.mp4", noise(24), codec="mpeg4", gop=30)
    assert find_damage(str(path), scan(str(path)), LIMITS) == ""
    content = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        for packet in [p for p in container.demux(video=0) if p.size][12:]:
            content[packet.pos + 3 : packet.pos + packet.size] = bytes(packet.size - 3)
    path.write_bytes(content)
    record = scan(str(path))
    assert record.damage == ""
    said = "cannot be decoded completely: 12 of 24 frames are damaged"
    assert find_damage(str(path), record, LIMITS) == said


# Bad ones.


def no_frames(path):
    with av.open(str(path), "w", format="avi") as container:
        container.add_stream("libx264", rate=30)
        container.start_encoding()


def sound(path):
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(16000))


def broken_jpeg(path):
    path.mkdir()
    (path / "1.jpg").write_bytes(b"\xff\xd8 and no more")


def truncated(path):
    write_video(path, grey(24))
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (str, "cannot be opened: No such file"),
        (Path.touch, "cannot be opened: Invalid data"),
        (lambda path: path.write_text("no video\n" * 100), "cannot be opened: Invalid data"),
        (truncated, "Invalid data"),
        (sound, "the file is not in a supported video format"),
        (no_frames, "has no frames"),
        (Path.mkdir, "a folder that contains no JPEG files"),
        (broken_jpeg, "1.jpg is not a JPEG"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path, make, reason):
    make(tmp_path / "bad.mp4")
    with pytest.raises(UnreadableVideoError, match=reason):
        scan(str(tmp_path / "bad.mp4"))


def test_an_impossible_name_is_unreadable():
    with pytest.raises(UnreadableVideoError, match="null"):
        scan("a\0b.mp4")


def test_a_bug_is_not_taken_for_an_unreadable_video(tmp_path, monkeypatch):
    path = write_video(tmp_path / "good.mp4", grey(4))
    monkeypatch.setattr(av, "open", lambda path: None)  # takes fewer arguments
    with pytest.raises(TypeError, match="unexpected keyword"):
        list(scan_each([str(path)], workers=0, limits=LIMITS))
