"""Tests of frame lists: valid lines, messages for bad lines, and reading the listed files."""

import zlib

import numpy as np
import pytest

from multigrid import ClipPlan, Video
from slowfast_patches.datasets.lists.frame_list import (
    HEADER,
    FrameVideo,
    read_frame_list,
)
from slowfast_patches.datasets.reading.reader import read_clip
from slowfast_patches.datasets.reading.scanned_video import Kind
from tests.slowfast_patches.datasets.made_videos import write_jpeg

TWO_VIDEOS = f"""{HEADER}
46GP8 0 0 46GP8/46GP8-000001.jpg ""
46GP8 0 1 46GP8/46GP8-000002.jpg ""
46GP8 0 2 46GP8/46GP8-000003.jpg "92,147"
46GP8 0 3 46GP8/46GP8-000004.jpg "92,147"
46GP8 0 4 46GP8/46GP8-000005.jpg "147"
N11GT 1 0 N11GT/N11GT-000001.jpg "5"
N11GT 1 1 N11GT/N11GT-000002.jpg ""
"""


def read(folder, text, **options):
    path = folder / "train.csv"
    path.write_bytes(text.encode())
    return read_frame_list(path, num_classes=157, fps=24.0, **options)


# What parses.


def test_videos_with_their_files_and_labels_in_the_order_of_the_list(tmp_path):
    one, other = read(tmp_path, TWO_VIDEOS)
    assert (one.name, other.name) == ("46GP8", "N11GT")
    assert one.files == tuple(f"{tmp_path}/46GP8/46GP8-00000{n}.jpg" for n in range(1, 6))
    assert one.labels == ((), (), (92, 147), (92, 147), (147,))
    assert (one.path, one.fps) == (f"{tmp_path}/46GP8", 24.0)
    assert other.labels == ((5,), ())
    assert (one.classes(), one.classes(3, 4), one.classes(0, 1)) == ({92, 147}, {92, 147}, set())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("vido", "video"),
        ("\n", "\r\n"),
        ("\n", "\n\n  \n"),
        ('"', ""),
        ("original", "\ufefforiginal"),
    ],
)
def test_what_makes_no_difference(tmp_path, old, new):
    text = TWO_VIDEOS.replace('""', "~").replace(old, new).replace("~", '""')
    assert list(read(tmp_path, text)) == list(read(tmp_path, TWO_VIDEOS))


def test_a_list_takes_a_few_bytes_a_frame(tmp_path):
    lines = [f'{v} 0 {f} {v}/{v}_{f:06}.jpg "{v % 9}"' for v in range(200) for f in range(100)]
    frames = read(tmp_path, "\n".join([HEADER, *lines]))
    assert len(frames._data) < 7 * 200 * 100
    assert frames[150].files[42] == f"{tmp_path}/150/150_000042.jpg"
    assert frames[150].classes() == {6}


# Reading.


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    """Write 0.jpg to 9.jpg of 96 × 64 pixels, each with a grey value of 20 times its number."""
    folder = tmp_path_factory.mktemp("frames")
    for number in range(10):
        write_jpeg(folder / f"{number}.jpg", 96, 64, 20 * number)
    return folder


def video_of(*files):
    packed = zlib.compress("\n".join(map(str, files)).encode())
    return FrameVideo("a", "", packed, ((0,),) * len(files), 25.0)


def plan(*positions):
    return ClipPlan(np.array(positions), (96, 64), (0, 0), 64, False)


def test_exactly_the_listed_files_are_read_in_the_order_of_the_list(frames, tmp_path):
    (tmp_path / "other.jpg").symlink_to(frames / "9.jpg")
    files = [frames / "4.jpg", frames / "2.jpg", tmp_path / "other.jpg", frames / "0.jpg"]
    record = video_of(*files).scanned()
    assert (record.kind, record.video) == (Kind.FRAMES, Video(4, 25.0, 96, 64))
    clip = read_clip("nowhere", record, plan(0, 1, 1, 2, 3, 7))
    assert clip[:, 32, 32, 0].tolist() == [80, 40, 40, 180, 0, 0]
