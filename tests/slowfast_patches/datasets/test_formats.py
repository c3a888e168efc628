"""Test that all formats in docs/data.md are found in class folders and can be read."""

import re
from pathlib import Path

import pytest

from slowfast_patches.datasets.reading.formats import SUFFIXES, video_files, video_name
from slowfast_patches.datasets.reading.scan import scan
from tests.slowfast_patches.datasets.made_videos import grey, write_video

DATA_PAGE = Path(__file__).parents[3] / "docs" / "data.md"
WRITERS = {
    # Suffix of a file that FFmpeg can write, its codec, and other suffixes of such files.
    ".mp4": ("libx264", ".m4v .f4v"),
    ".mov": ("mpeg4", ".qt"),
    ".3gp": ("mpeg4", ".3g2"),
    ".mkv": ("libx264", ""),
    ".webm": ("libvpx", ""),
    ".avi": ("mpeg4", ".divx"),
    ".mpg": ("mpeg1video", ".mpeg"),
    ".vob": ("mpeg2video", ""),
    ".ts": ("libx264", ".mts .m2t"),
    ".m2ts": ("mpeg2video", ""),
    ".wmv": ("msmpeg4v3", ".asf"),
    ".flv": ("flv", ""),
    ".ogg": ("libvpx", ".ogv .ogm"),
    ".mxf": ("mpeg2video", ""),
    ".gxf": ("mpeg2video", ""),
    ".nut": ("mpeg4", ""),
    ".rm": ("rv10", ".rmvb"),
    ".wtv": ("mpeg2video", ""),
    ".dv": ("dvvideo", ".dif"),
    ".ivf": ("libvpx", ""),
    ".gif": ("gif", ""),
    ".m1v": ("mpeg1video", ""),
    ".m2v": ("mpeg2video", ""),
    ".h264": ("libx264", ".264 .avc"),
    ".hevc": ("libx265", ".h265 .265"),
    ".obu": ("libsvtav1", ""),
    ".mjpeg": ("mjpeg", ".mjpg"),
    ".y4m": ("wrapped_avframe", ""),
}
PIXELS = {"gif": "rgb8", "mjpeg": "yuvj420p"}
SIZES = {".gxf": (720, 576), ".dv": (720, 576), ".rm": (176, 144), ".obu": (64, 64)}


def test_the_documentation_lists_every_suffix():
    page = DATA_PAGE.read_text(encoding="utf-8")
    section = page.partition("## Which files are read")[2].partition("Training, `")[0]
    listed = re.findall(r"\.\w+", " ".join(re.findall("`([^`]+)`", section)))
    assert sorted(listed) == sorted(SUFFIXES)
    written = " ".join(f"{suffix} {others}" for suffix, (_, others) in WRITERS.items())
    assert {*written.split()} == {*SUFFIXES} - {".vc1"}  # of which there is no encoder


@pytest.mark.parametrize("suffix", WRITERS)
def test_files_of_every_kind_are_found_and_read(tmp_path, suffix):
    codec, others = WRITERS[suffix]
    images = grey(5, *SIZES.get(suffix, (64, 48)))
    path = write_video(
        tmp_path / f"a{suffix}", images, codec=codec, fps=25, pixels=PIXELS.get(codec, "yuv420p")
    )
    for other in others.split():
        (tmp_path / f"b{other.upper()}").hardlink_to(path)
    (tmp_path / f"._a{suffix}").write_bytes(b"\0\5\x16\7")
    found = video_files(tmp_path)
    assert len(found) == 1 + len(others.split())
    assert {video_name(file) for file in found} <= {"a", "b"}
    for file in found:
        assert scan(file).video.frames == 5


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("clips/a.webm.mp4", "a"),
        ("clips/.mp4", ".mp4"),
        (".mp4.MP4", ".mp4"),
        ("frames/vid/", "vid"),
        ("frames/vid//", "vid"),
        ("frames/vid/img_*.jpg", "vid"),
        ("frames/other/../vid", "vid"),
        ("s3://b/frames/vid/", "vid"),
        ("s3://b/a.mp4", "a"),
    ],
)
def test_a_video_has_the_name_of_its_file_or_folder(path, name):
    assert video_name(path) == name
