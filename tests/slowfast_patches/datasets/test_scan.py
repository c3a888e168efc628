"""Tests of scanned videos: their properties, and the reasons why videos are unreadable."""

import os
from pathlib import Path

import av
import pytest

from slowfast_patches.datasets.reading import scan as scanning
from slowfast_patches.datasets.reading.bounds import Header
from slowfast_patches.datasets.reading.scan import scan, scan_each
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError, open_video
from tests.slowfast_patches.datasets.made_videos import grey, write_video

# Made files.


def test_without_timestamps_frames_are_counted(tmp_path):
    """A raw H.264 stream stores the display order of frames, but no timestamps."""
    record = scan(str(write_video(tmp_path / "bare.h264", grey(24))))
    assert record.video.frames == 24
    assert record.keys.tolist() == [0]
    assert record.timestamps is None


def test_a_video_of_one_frame_is_named(tmp_path):
    one = write_video(tmp_path / "one.mp4", grey(1))
    assert scan(str(one)).damage == "has only one frame, so all frames of a clip are the same"


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("b.mp4", {"options": {"bf": "3"}}),
        ("ascending.mp4", {"options": {"bf": "0"}}),
        ("fragmented.mp4", {"container_options": {"movflags": "frag_keyframe+empty_moov"}}),
        ("mpeg4.mp4", {"codec": "mpeg4", "options": {"bf": "2"}}),
        ("mpeg2.mov", {"codec": "mpeg2video", "options": {"bf": "2"}}),
        ("animation.mov", {"codec": "qtrle", "pixels": "rgb24"}),
        ("hevc.mp4", {"codec": "libx265", "options": {"x265-params": "log-level=none"}}),
        ("slow.mp4", {"stamps": [number**2 for number in range(24)]}),
    ],
)
def test_an_mp4_file_is_scanned_without_probing_as_with_it(tmp_path, monkeypatch, name, made):
    path = str(write_video(tmp_path / name, grey(24), **made))
    for decoded in (0, scanning.FULLY_DECODED):
        monkeypatch.setattr(scanning, "FULLY_DECODED", decoded)
        quick = scan(path)
        with monkeypatch.context() as patch:
            patch.setattr(scanning, "check_header", lambda path: Header())
            probed = scan(path)
        assert quick.packed() == probed.packed()
        assert (quick.damage, quick.timing) == (probed.damage, probed.timing)


def test_most_mp4_files_are_opened_once_and_never_probed(tmp_path, monkeypatch):
    path = str(write_video(tmp_path / "a.mp4", grey(24), options={"bf": "3"}))
    opened = []

    def counted(*args, **options):
        opened.append(options)
        return open_video(*args, **options)

    monkeypatch.setattr(scanning, "open_video", counted)
    scan(path)
    assert opened == [{"probes": False}]


# Bad ones.


def no_frames(path):
    with av.open(str(path), "w", format="avi") as container:
        container.add_stream("libx264", rate=30)
        container.start_encoding()


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
        (lambda path: path.write_text("no video\n" * 100), "cannot be opened: Invalid data"),
        (truncated, "Invalid data"),
        (no_frames, "has no frame that decodes"),
        (Path.mkdir, "contains no JPEG files"),
        (broken_jpeg, "1.jpg is not a JPEG"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path, make, reason):
    make(tmp_path / "bad.mp4")
    with pytest.raises(UnreadableVideoError, match=reason):
        scan(str(tmp_path / "bad.mp4"))


def test_a_bug_is_not_taken_for_an_unreadable_video(tmp_path, monkeypatch):
    path = write_video(tmp_path / "good.mp4", grey(4))
    monkeypatch.setattr(av, "open", lambda path: None)  # takes fewer arguments
    with pytest.raises(TypeError, match="unexpected keyword"):
        list(scan_each([str(path)]))
