"""Tests that multigrid-prepare overwrites no original, keeps nothing stale and mixes no lists."""

import json
import os
import shutil
from pathlib import Path

import cv2
import pytest

from slowfast_patches.datasets.lists.csv_list import LabelledVideo
from slowfast_patches.datasets.preparing import sources
from slowfast_patches.datasets.preparing.output_folder import new_rows, write_lists
from slowfast_patches.datasets.preparing.video_lists import VideoList
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.scanned_video import Kind
from slowfast_patches.utils.errors import RunError
from slowfast_patches.utils.storage import absolute
from tests.slowfast_patches.datasets.made_videos import noise, rows, write_jpeg, write_video

KEPT = "videos that an earlier run had prepared:"


def write_list(csv: Path, *names: str) -> Path:
    csv.parent.mkdir(parents=True, exist_ok=True)
    csv.write_text("".join(f"{name} {number % 2}\n" for number, name in enumerate(names)))
    return csv


# Originals.


def videos_of_output(folder):
    """The prefix is the folder in which the prepared videos would be written."""
    csv = write_list(folder / "lists/train.csv", "a.mp4")
    return ["--csv", csv, "--prefix", folder / "k400/videos", "--output", folder / "k400"]


def list_beside_videos(folder):
    csv = write_list(folder / "k400/videos/train.csv", "a.mp4")
    return ["--csv", csv, "--output", folder / "k400"]


def deeper_list(folder):
    csv = write_list(folder / "lists/train.csv", "videos/a.mp4")
    return ["--csv", csv, "--prefix", folder / "k400", "--output", folder / "k400"]


def output_behind_a_link(folder):
    (folder / "link").symlink_to(folder / "k400")
    csv = write_list(folder / "k400/videos/train.csv", "a.mp4")
    return ["--csv", csv, "--output", folder / "link"]


def other_videos_in_output(folder):
    """The output folder has other originals, with the names that prepared videos would get."""
    write_video(folder / "other/a.mp4", noise(3))
    csv = write_list(folder / "other/train.csv", "a.mp4")
    return ["--csv", csv, "--output", folder / "k400"]


@pytest.mark.parametrize(
    "arguments",
    [
        videos_of_output,
        list_beside_videos,
        deeper_list,
        output_behind_a_link,
        other_videos_in_output,
    ],
)
def test_originals_are_neither_overwritten_nor_taken_for_prepared_videos(run, tmp_path, arguments):
    original = write_video(tmp_path / "k400/videos/a.mp4", noise(3))
    before = original.read_bytes()
    status, output = run(*arguments(tmp_path))
    assert (status, f"{tmp_path}/" in output, "Choose another folder" in output) == (2, True, True)
    assert original.read_bytes() == before
    assert not (tmp_path / "k400/train.csv").exists()
    assert not (tmp_path / "k400/prepared.json").exists()


# What an earlier run prepared.


@pytest.fixture
def prepare(run, tmp_path):
    """Return `prepare(name, ...)`: prepare the listed names, and return the kept count."""

    def call(*names: str) -> int:
        csv = write_list(tmp_path / "source/train.csv", *names)
        status, output = run("--csv", csv, "--output", tmp_path / "out")
        assert status == 0, output
        return int(output.partition(KEPT)[2].split()[0])

    return call


def test_a_source_of_the_same_time_is_prepared_again_if_it_is_another(prepare, tmp_path):
    for name, frames in (("a.mp4", 3), ("b.mp4", 4)):
        os.utime(write_video(tmp_path / "source" / name, noise(frames)), (100, 100))
    assert prepare("a.mp4", "b.mp4") == 0
    assert prepare("a.mp4", "b.mp4") == 2
    os.utime(write_video(tmp_path / "source/a.mp4", noise(9)), (100, 100))
    assert prepare("a.mp4", "b.mp4") == 1
    assert scan(str(tmp_path / "out/videos/a.mp4")).video.frames == 9


def test_frames_that_are_overwritten_are_prepared_again(prepare, tmp_path):
    for number in range(4):
        write_jpeg(tmp_path / "source/v" / f"img_{number}.jpg", level=40)
        write_jpeg(tmp_path / "source/v" / f"flow_{number}.jpg", level=90)
    assert prepare("v/img_*.jpg") == 0
    assert prepare("v/img_*.jpg") == 1
    (prepared,) = (tmp_path / "out/videos").rglob("*.mp4")
    assert "*" not in str(prepared)
    assert scan(str(prepared)).kind == Kind.PREPARED
    for number in range(4):
        write_jpeg(tmp_path / "source/v" / f"img_{number}.jpg", height=96, level=200)
    assert prepare("v/img_*.jpg") == 0
    assert scan(str(prepared)).video.height == 96
    capture = cv2.VideoCapture(str(prepared))
    assert abs(capture.read()[1].mean() - 200) < 3


def test_the_record_survives_a_killed_process_and_a_copy(prepare, tmp_path):
    for name in ("a.mp4", "b.mp4", "c.mp4"):
        write_video(tmp_path / "source" / name, noise(3))
    assert prepare("a.mp4", "b.mp4") == 0
    record = tmp_path / "out" / sources._RECORD
    record.write_bytes(record.read_bytes()[:-5])  # the last line is incomplete
    assert prepare("a.mp4", "b.mp4", "c.mp4") == 1
    shutil.copytree(tmp_path / "out", tmp_path / "copy")  # without the times of the files
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "copy").rename(tmp_path / "out")
    assert prepare("a.mp4", "b.mp4", "c.mp4") == 3


# Lists.


def test_if_a_list_has_no_readable_video_no_list_is_replaced(run, tmp_path):
    write_video(tmp_path / "s/a.mp4", noise(3))
    shutil.copy(tmp_path / "s/a.mp4", tmp_path / "s/b.mp4")
    train, val = tmp_path / "s/train.csv", tmp_path / "s/val.csv"
    command = ("--csv", write_list(train, "a.mp4"), "--csv", write_list(val, "a.mp4"))
    assert run(*command, "--output", tmp_path / "o")[0] == 0
    before = {name: (tmp_path / "o" / name).read_bytes() for name in ("train.csv", "val.csv")}
    (tmp_path / "s/broken.mp4").write_bytes(b"broken")
    write_list(train, "a.mp4", "b.mp4")
    write_list(val, "broken.mp4")
    status, output = run(*command, "--output", tmp_path / "o")
    assert (status, "none of the videos that" in output, "val.csv" in output) == (2, True, True)
    assert {name: (tmp_path / "o" / name).read_bytes() for name in before} == before


def test_all_lists_are_replaced_or_none(tmp_path):
    (tmp_path / "train.csv").write_text("old")
    (tmp_path / "val.csv.tmp").mkdir()  # val.csv cannot be written
    with pytest.raises(RunError):
        write_lists({"train.csv": [("a", 0)], "val.csv": [("a", 0)]}, tmp_path, " ", ["x"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.csv", "val.csv.tmp"]
    assert (tmp_path / "train.csv").read_text() == "old"


def test_a_class_of_which_no_video_can_be_read_is_named(tmp_path, caplog):
    videos = [LabelledVideo("a", 0), LabelledVideo("b", 1), LabelledVideo("c", 1)]
    listed = [VideoList("train.csv", tmp_path, tmp_path, videos)]
    made = {"a": "videos/a.mp4"}
    assert new_rows(listed, made, ["sit", "jump"]) == {"train.csv": [("videos/a.mp4", 0)]}
    assert "train.csv: none of the videos of 1 class(es) can be read: jump" in caplog.text


def test_parents_of_linked_folders_are_those_of_the_system(run, tmp_path):
    (tmp_path / "real/sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real/sub")
    write_video(tmp_path / "b.mp4", noise(3))
    write_video(tmp_path / "real/b.mp4", noise(5))
    csv = write_list(tmp_path / "train.csv", "link/../b.mp4", "real/../b.mp4")
    assert run("--csv", csv, "--output", tmp_path / "o")[0] == 0
    prepared = [tmp_path / "o" / name for name, _ in rows(tmp_path / "o/train.csv")]
    assert [scan(str(path)).video.frames for path in prepared] == [5, 3]


def test_an_absolute_path_is_that_of_the_file_that_is_opened(tmp_path, monkeypatch):
    (tmp_path / "real/sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real/sub")
    monkeypatch.chdir(tmp_path)
    assert absolute("link/../b.mp4") == tmp_path / "real/b.mp4"
    assert absolute("real/../b.mp4") == tmp_path / "b.mp4"
    assert absolute("link/b.mp4") == tmp_path / "link/b.mp4"
    assert str(absolute("s3://b/../x")) == "s3://b/../x"


# Settings.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--fps", "inf"), "expected a "),
        (("--fps", "1001"), "--fps is 1001, but must be above 0 and at most 1000"),
        (("--fps", "1e9"), "--fps is 1e+09, but must be"),
        (("--fps", "nan"), "expected a number above 0"),
        (("--crf", "-1"), "--crf is -1, but must be from 0 to 51"),
        (("--crf", "52"), "--crf is 52, but must be"),
        (("--crf", "nan"), "--crf is nan, but must be"),
        (("--short-side", 1), "--short-side is 1 pixels, but must be at least 16"),
        (("--short-side", 15), "--short-side is 15"),
        (("--separator", ""), "separator"),
        (("--separator", "0"), "separator"),
    ],
)
def test_numbers_out_of_range_are_refused(run, tmp_path, options, said):
    (tmp_path / "a.mp4").touch()
    csv = write_list(tmp_path / "lists/train.csv", "a.mp4")
    status, output = run("--csv", csv, "--output", tmp_path / "o", *options)
    assert (status, said in output, "Traceback" in output) == (2, True, False)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("content", ["", "{}", "[]", "{", '{"root": 3}', "null", "\0"])
def test_damaged_settings_are_named(run, tmp_path, content):
    csv = write_list(tmp_path / "lists/train.csv", "a.mp4")
    out = tmp_path / "o"
    out.mkdir()
    (out / "prepared.json").write_text(content)
    status, output = run("--csv", csv, "--output", out)
    assert (status, f"{out}/prepared.json" in output, "Traceback" in output) == (2, True, False)


def test_settings_that_differ_are_named_as_options(run, tmp_path):
    csv = write_list(tmp_path / "lists/train.csv", "a.mp4")
    made = {"format": "old", "short_side": 128, "fps": None, "crf": 12.0}
    made["root"] = str(tmp_path / "lists")
    (tmp_path / "o").mkdir()
    (tmp_path / "o/prepared.json").write_text(json.dumps(made))
    status, output = run("--csv", csv, "--output", tmp_path / "o", "--fps", 10)
    assert (status, "{" in output) == (2, False)
    assert "--short-side 128 (this command: 256), --fps not set (this command: 10.0)" in output
    assert "--crf 12.0 (this command: 18)" in output
