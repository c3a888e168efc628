"""Tests of class folders: their lists, the held-out videos, and unusable folders."""

import json
import os

import pytest

from slowfast_patches.datasets.preparing.video_lists import find_classes
from tests.slowfast_patches.datasets.made_videos import noise, rows, times, write_video


def write_empty(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.fixture
def classes(tmp_path):
    folder = tmp_path / "classes"
    for name, count in {"sit down": 12, "żółw": 3, "jump": 2, "once": 1}.items():
        endings = ("AVI" if number == 1 else "mp4" for number in range(count))
        write_empty(folder, *(f"{name}/{n}.{ending}" for n, ending in enumerate(endings)))
    return write_empty(folder, "jump/notes.txt", "jump/.hidden.mp4")


def found(folder, fraction=None):
    """Return the (path, label) pairs of each split, and the class names."""
    lists, names = find_classes(folder, fraction)
    videos = {
        listed.name.removesuffix(".csv"): [
            (os.path.relpath(p, folder), n) for p, n in listed.videos
        ]
        for listed in lists
    }
    return videos, names


def test_lists_are_made_of_folders(classes, caplog):
    (classes / "jump/old").mkdir()
    videos, names = found(classes)
    assert names == ["jump", "once", "sit down", "żółw"]
    assert all(f"jump/{name}" in caplog.text for name in ("notes.txt", "old"))
    assert videos["val"] == videos["test"]
    assert sorted(label for _, label in videos["val"]) == [0, 2, 3]
    every = {*videos["train"], *videos["val"]}
    assert len(every) == len(videos["train"]) + 3 == 18
    assert all(name.split("/")[0] == names[label] for name, label in every)


def test_more_videos_leave_the_split_much_as_it_was(classes):
    before = set(found(classes, 0.5)[0]["val"])
    assert set(found(classes, 0.5)[0]["val"]) == before
    (classes / "sit down/new.mp4").touch()
    assert len(set(found(classes, 0.5)[0]["val"]) ^ before) <= 2


def test_a_split_that_is_given_is_kept(tmp_path):
    folder = write_empty(tmp_path / "set", "train/a/1.mp4", "train/b/2.webm", "test/b/3.mp4")
    with pytest.raises(ValueError, match="is already split"):
        find_classes(folder, 0.2)
    videos, _ = found(folder)
    assert videos["train"] == [("train/a/1.mp4", 0), ("train/b/2.webm", 1)]
    assert videos["val"] == videos["test"] == [("test/b/3.mp4", 1)]


@pytest.mark.parametrize(
    ("train", "val", "test"),
    [("train", "validation", "test"), ("Training", "Valid", "testing"), ("TRAIN", "VAL", "TEST")],
)
def test_folders_of_splits_may_have_other_common_names(tmp_path, train, val, test):
    videos, names = found(
        write_empty(tmp_path / "set", f"{train}/a/1.mp4", f"{val}/a/2.mp4", f"{test}/a/3.mp4")
    )
    assert names == ["a"]
    assert videos["train"] == [(f"{train}/a/1.mp4", 0)]
    assert videos["val"] == [(f"{val}/a/2.mp4", 0)]
    assert videos["test"] == [(f"{test}/a/3.mp4", 0)]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["train/a/1.mp4", "val/a/1.mp4", "valid/a/1.mp4"], "two folders for val: val and valid"),
        (["train/a/1.mp4", "val/a/1.mp4", "extra/a/1.mp4"], "extra has no videos but folders"),
        ([], "is not a folder"),
        (["1.mp4"], "has no subfolders"),
        (["train/a/1.mp4", "val/b/1.mp4"], "the class b of val is not in .*/train"),
        (["train/a/1.mp4"], "has no videos for val"),
        (["a/1.mp4", "b/1.mp4"], "has no videos for val"),
        (["a/1.txt", "b/1.mp4"], "a has no videos"),
    ],
)
def test_folders_that_do_not_serve_are_named(tmp_path, names, message):
    with pytest.raises(ValueError, match=message):
        find_classes(write_empty(tmp_path / "set", *names), None)


def test_folders_are_prepared(run, tmp_path):
    folder, out = tmp_path / "set", tmp_path / "out"
    for name in ("b/x.mp4", "b/y.avi", "ä/x.mp4", "ä/y.mp4"):
        write_video(folder / name, noise(4))
    assert run("--folder", folder, "--output", out)[0] == 0
    assert json.loads((out / "classes.json").read_text(encoding="utf-8")) == {"b": 0, "ä": 1}
    assert len(times(out)) == 4
    assert sorted(label for _, label in rows(out / "train.csv")) == [0, 1]
