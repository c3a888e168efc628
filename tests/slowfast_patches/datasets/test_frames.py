"""Tests of folders of frames: one series is read, several are named, and a change is noticed."""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from multigrid import ClipPlan
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.reading import file_status
from slowfast_patches.datasets.reading.file_status import video_status
from slowfast_patches.datasets.reading.frames import frame_files, is_frames
from slowfast_patches.datasets.reading.index import open_index
from slowfast_patches.datasets.reading.reader import read_clip
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from slowfast_patches.utils.storage import Status
from tests.slowfast_patches.datasets.made_videos import write_jpeg


def folder_of(folder: Path, *names: str) -> str:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).touch()
    return str(folder)


def found(path: str) -> list[str]:
    return [os.path.basename(file) for file in frame_files(path)]


@pytest.mark.parametrize(
    "names",
    [
        ["1.jpg", "2.jpg", "10.jpg"],
        ["img_00008.jpg", "img_00009.jpg", "img_00010.jpg"],
        ["-5KQ66BBWC4_9.jpeg", "-5KQ66BBWC4_10.jpeg"],
        ["shot1.0099.JPG", "shot1.0100.JPG"],
        ["frame_1_t33.jpg", "frame_2_t67.jpg", "frame_10_t100.jpg"],
        ["only.jpg"],
    ],
)
def test_a_series_is_read_in_the_order_of_its_numbers(tmp_path, names):
    path = folder_of(tmp_path / "v", *reversed(names), "n_frames", "labels.txt", "._1.jpg")
    assert found(path) == names


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            # The layout of TSN and mmaction2 (temporal-segment-networks 271, mmaction2 2207).
            [f"{kind}_{n:05}.jpg" for kind in ("img", "flow_x", "flow_y") for n in range(1, 4)],
            [
                *("3 series", "flow_x_*.jpg (3 files)", "flow_y_*.jpg (3 files)"),
                "img_*.jpg (3 files)",
            ],
        ),
        (["1.jpg", "2.jpg", "folder.jpg"], ["*.jpg (2 files) and folder.jpg (1 file)"]),
        (["1.jpg", "2.jpg", "thumb_1.jpg"], ["*.jpg (2 files) and thumb_1.jpg (1 file)"]),
        (["1.jpg", "2.jpg", "1.png", "2.png"], ["*.jpg (2 files)", "*.png (2 files)"]),
        (["1.jpg", "2.jpg", "1.JPG"], ["*.jpg (2 files) and 1.JPG (1 file)"]),
        (
            ["cam1_1.jpg", "cam2_1.jpg", "cam1_2.jpg", "cam2_2.jpg", "cam1_3.jpg"],
            ["cam1_*.jpg (3 files) and cam2_*.jpg (2 files)"],
        ),
        (
            ["1_left.jpg", "1_right.jpg", "2_left.jpg"],
            ["*_left.jpg (2 files) and 1_right.jpg (1 file)"],
        ),
        (["t0.5.jpg", "t0.25.jpg", "t1.25.jpg"], ["contains 2 series"]),
    ],
)
def test_several_series_are_named_with_what_to_write(tmp_path, names, said):
    path = folder_of(tmp_path / "v", *names)
    with pytest.raises(UnreadableVideoError) as error:
        frame_files(path)
    for part in said:
        assert part in str(error.value)
    example = re.search(r"such as (.*), or move", str(error.value))[1]
    assert len(frame_files(example)) > 1


@pytest.mark.parametrize("names", [("a.jpg", "b.jpg"), ("01.jpg", "1.jpg")])
def test_names_that_give_no_order_are_no_series(tmp_path, names):
    said = r"series of pictures: {} \(1 file\) and {} \(1 file\)\. Rename the frames"
    with pytest.raises(UnreadableVideoError, match=said.format(*map(re.escape, names))):
        frame_files(folder_of(tmp_path / "v", *names))


def test_two_names_of_one_number_make_every_file_a_series(tmp_path):
    with pytest.raises(UnreadableVideoError, match="contains 3 series of pictures: 01"):
        frame_files(folder_of(tmp_path / "v", "1.jpg", "01.jpg", "2.jpg"))


def test_a_series_in_the_current_folder(tmp_path, monkeypatch):
    folder_of(tmp_path, "1.jpg", "2.jpg", "a.jpg")
    monkeypatch.chdir(tmp_path)
    assert is_frames("*.jpg")
    assert frame_files("*.jpg") == ["1.jpg", "2.jpg"]
    assert not is_frames("1.jpg")
    assert not is_frames("none/*.jpg")
    (tmp_path / "b*.jpg").touch()
    assert not is_frames("b*.jpg")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], "contains no JPEG files$"),
        (["1.png", "2.png"], r"contains no JPEG files, but \*\.png"),
        (["readme.txt", "a.mp4"], "contains no JPEG files$"),
    ],
)
def test_a_folder_without_jpeg_files_is_named(tmp_path, names, said):
    with pytest.raises(UnreadableVideoError, match=said):
        frame_files(folder_of(tmp_path / "v", *names))


@pytest.fixture
def denseflow(tmp_path) -> Path:
    """Write 4 light pictures, and 3 dark pictures of optical flow in each of two directions."""
    for number in range(1, 5):
        write_jpeg(tmp_path / "v" / f"img_{number:05}.jpg", level=200)
    for number in range(3):
        write_jpeg(tmp_path / "v" / f"flow_x_{number:05}.jpg", level=20)
        write_jpeg(tmp_path / "v" / f"flow_y_{number:05}.jpg", level=20)
    return tmp_path / "v"


def test_a_chosen_series_is_scanned_read_and_prepared(denseflow, tmp_path):
    with pytest.raises(UnreadableVideoError, match="3 series"):
        scan(str(denseflow))
    path = f"{denseflow}/img_*.jpg"
    scanned = scan(path)
    assert scanned.video.frames == 4
    plan = ClipPlan(np.arange(4), (64, 48), (0, 0), 48, False)
    assert np.abs(read_clip(path, scanned, plan).astype(int) - 200).max() < 4
    write_prepared(path, scanned, tmp_path / "out.mp4")
    assert scan(str(tmp_path / "out.mp4")).video.frames == 4
    with pytest.raises(UnreadableVideoError, match=f"names no JPEG files in {denseflow}"):
        scan(f"{denseflow}/rgb_*.jpg")


def overwrite(frame: Path) -> None:
    write_jpeg(frame, level=3)
    os.utime(frame, (1, 1))


def replace(frame: Path) -> None:
    other = write_jpeg(frame.with_name("other.jpg"), level=7)
    other.write_bytes(frame.read_bytes())
    os.utime(other, (1, 1))
    other.rename(frame)


@pytest.mark.parametrize(
    "change",
    [overwrite, replace, Path.unlink, lambda f: write_jpeg(f, width=128), lambda f: f.touch()],
)
@pytest.mark.parametrize("pattern", ["", "/img_*.jpg"])
def test_each_change_of_the_frames_changes_the_status(tmp_path, change, pattern):
    folder = tmp_path / "v"
    for number in range(3):
        os.utime(write_jpeg(folder / f"img_{number}.jpg"), (100, 100))
    os.utime(folder, (100, 100))
    before = video_status([f"{folder}{pattern}"])
    assert before[f"{folder}{pattern}"].modified == 100
    change(folder / "img_1.jpg")
    assert video_status([f"{folder}{pattern}"]) != before


def test_the_index_has_the_new_size_after_frames_were_overwritten(tmp_path, cache):
    for number in range(3):
        write_jpeg(tmp_path / "v" / f"{number}.jpg", height=48)
    path = [str(tmp_path / "v")]
    assert open_index(tmp_path / "train.csv", path)[0].video.height == 48
    for number in range(3):
        write_jpeg(tmp_path / "v" / f"{number}.jpg", height=96)
    assert open_index(tmp_path / "train.csv", path)[0].video.height == 96


def test_what_does_not_exist_has_no_status(tmp_path):
    names = ["none", "none/*.jpg", "\0", "*.jpg"]
    assert video_status([*(str(tmp_path / name) for name in names[:3])]) == {}


def test_a_folder_without_frames_has_a_status(tmp_path):
    (tmp_path / "v").mkdir()
    os.utime(tmp_path / "v", (100, 100))
    status = video_status([str(tmp_path / "v")])[str(tmp_path / "v")]
    assert (status.size, status.modified) == (0, 100)
    (tmp_path / "a.mp4").write_bytes(b"1234")
    os.utime(tmp_path / "a.mp4", ns=(5, 7_000_000_001))
    found = video_status([str(tmp_path / "a.mp4")])[str(tmp_path / "a.mp4")]
    assert found == (4, 7_000_000_001, pytest.approx(7.0))


@pytest.mark.parametrize("path", ["s3://b/v", "s3://b/v/img_*.jpg"])
def test_frames_in_a_bucket_have_a_version_of_their_own(monkeypatch, path):
    """It is below -1, where versions of local files are not. Other files do not count."""
    files = {"img_1.jpg": Status(10, 5, 100.0), "img_2.jpg": Status(20, 6, None)}
    files["other.txt"] = Status(40, 7, 900.0)
    names = [f"s3://b/v/{name}" for name in ("img_1.jpg", "img_2.jpg", "gone.jpg")]
    monkeypatch.setattr(file_status, "frame_files", lambda path: names)
    monkeypatch.setattr(file_status, "list_status", lambda paths: {"s3://b/a.mp4": Status(1, 2, 3)})
    monkeypatch.setattr(file_status, "list_files", lambda folder: files)
    monkeypatch.setattr(
        file_status, "list_folders", lambda folder: {"v"} if folder == "s3://b" else set()
    )
    found = video_status([path, "s3://b/a.mp4", "s3://b/none", "s3://c/v"])
    assert found.keys() == {path, "s3://b/a.mp4"}
    assert found["s3://b/a.mp4"] == (1, 2, 3)
    status = found[path]
    assert (status.size, status.modified) == (30, 100.0)
    assert status.version < -1
    files["img_2.jpg"] = Status(20, 8, None)
    assert video_status([path])[path].version not in (status.version, -1)
