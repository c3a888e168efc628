"""Tests of class folders: their lists, the held-out videos, and unusable folders."""

import json

import pytest

from tests.slowfast_patches.datasets.made_videos import (
    noise,
    rows,
    times,
    write_video,
)


@pytest.fixture
def classes(tmp_path):
    folder = tmp_path / "classes"
    for name, count in {"sit down": 12, "żółw": 3, "jump": 2, "once": 1}.items():
        endings = ("AVI" if number == 1 else "mp4" for number in range(count))
        write_empty(folder, *(f"{name}/{n}.{ending}" for n, ending in enumerate(endings)))
    (folder / "jump/notes.txt").write_text("")
    (folder / "jump/.hidden.mp4").write_text("")
    return folder


def test_lists_are_made_of_folders(run, classes, caplog):
    (classes / "jump/old").mkdir()
    status, output = run("--folder", classes)
    assert (status, "MODEL.NUM_CLASSES 4" in output) == (0, True)
    assert all(f"jump/{name}" in caplog.text for name in ("notes.txt", "old"))
    assert "videos: 15 for train.csv, 3 for val.csv, 3 for test.csv\n" in output
    numbers = json.loads((classes / "classes.json").read_text(encoding="utf-8"))
    assert numbers == {"jump": 0, "once": 1, "sit down": 2, "żółw": 3}
    train, val, test = (rows(classes / f"{split}.csv") for split in ("train", "val", "test"))
    assert val == test
    assert sorted(label for _, label in val) == [0, 2, 3]
    assert sorted(label for _, label in train) == [0, 1, *[2] * 11, 3, 3]
    assert not {name for name, _ in train} & {name for name, _ in val}
    for name, label in train + val:
        assert (classes / name).is_file()
        assert numbers[name.split("/")[0]] == label


def test_more_videos_leave_the_split_much_as_it_was(run, classes):
    def split():
        assert run("--folder", classes, "--val-fraction", 0.5)[0] == 0
        return set(rows(classes / "val.csv"))

    before = split()
    assert split() == before
    (classes / "sit down/new.mp4").touch()
    status, output = run("--folder", classes, "--val-fraction", 0.5)
    assert (status, "exists with other content" in output) == (2, True)
    for csv in classes.glob("*.csv"):
        csv.unlink()
    assert len(split() ^ before) <= 2


def write_empty(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(("given", "missing"), [("val", "test"), ("test", "val")])
def test_a_split_that_is_given_is_kept(run, tmp_path, given, missing):
    folder = write_empty(tmp_path / "set", "train/a/1.mp4", "train/b/2.webm", f"{given}/b/3.mp4")
    status, output = run("--folder", folder, "--val-fraction", 0.2)
    assert (status, "is already split into" in output) == (2, True)
    assert run("--folder", folder)[0] == 0
    assert rows(folder / "train.csv") == [("train/a/1.mp4", 0), ("train/b/2.webm", 1)]
    assert rows(folder / f"{given}.csv") == [(f"{given}/b/3.mp4", 1)]
    assert rows(folder / f"{missing}.csv") == [(f"{given}/b/3.mp4", 1)]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "does not exist"),
        (["1.mp4"], "has no subfolders"),
        (["train/a/1.mp4", "val/b/1.mp4"], "b has no corresponding class folder in train/"),
        (["train/a/1.mp4"], "contains only train"),
        (["a/1.mp4", "b/1.mp4"], "no video can be held out"),
        (["a/1\n.mp4", "a/2.mp4"], "cannot be written to a csv file"),
    ],
)
def test_folders_that_do_not_serve_are_named(run, tmp_path, names, message):
    folder = write_empty(tmp_path / "set", *names)
    status, output = run("--folder", folder)
    assert (status, message in output) == (2, True)
    assert not list(folder.glob("*.csv"))


def test_folders_are_prepared(run, tmp_path):
    folder, out = tmp_path / "set", tmp_path / "out"
    for number, name in enumerate(("b/x.mp4", "b/y.avi", "ä/x.mp4", "ä/y.mp4")):
        write_video(folder / name, noise(4, seed=number))
    assert run("--folder", folder, "--output", out)[0] == 0
    assert json.loads((out / "classes.json").read_text(encoding="utf-8")) == {"b": 0, "ä": 1}
    assert len(times(out)) == 4
    assert sorted(label for _, label in rows(out / "train.csv")) == [0, 1]
    assert {path.name for path in folder.iterdir()} == {"b", "ä"}
    write_empty(folder, "a/x.mp4")
    status, output = run("--folder", folder, "--output", out)
    assert (status, "classes.json already exists" in output) == (2, True)
