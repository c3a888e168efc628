"""Tests of class folders: their lists, the held-out videos, and unusable folders."""

import json
import os

import pytest

from slowfast_patches.datasets.preparing.video_lists import (
    find_classes,
    format_csv,
    read_lists,
    read_ssv2_lists,
)
from tests.slowfast_patches.datasets.made_videos import (
    noise,
    rows,
    times,
    write_ssv2_json,
    write_video,
)


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


@pytest.mark.parametrize(("fraction", "held_out"), [(0.5, 6), (0.25, 3), (0.01, 1), (0.99, 11)])
def test_a_fraction_of_each_class_is_held_out_but_never_all(tmp_path, fraction, held_out):
    folder = write_empty(tmp_path / "set", "b/1.mp4", *(f"a/{n}.mp4" for n in range(12)))
    write_empty(folder, "b/2.mp4")
    videos, _ = found(folder, fraction)
    assert sorted(label for _, label in videos["val"]) == [0] * held_out + [1]
    assert len(videos["train"]) == 13 - held_out


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 1.5])
def test_a_fraction_of_none_or_all_is_refused(classes, fraction):
    with pytest.raises(ValueError, match=f"--val-fraction is {fraction}, but must be between"):
        find_classes(classes, fraction)


def test_split_folders_of_a_hidden_folder_and_files_beside_classes_do_not_count(tmp_path, caplog):
    folder = write_empty(tmp_path / "set", "train/a/1.mp4", "val/a/2.mp4", ".git/x", "readme.txt")
    assert found(folder)[0]["train"] == [("train/a/1.mp4", 0)]
    assert caplog.text == ""


# Lists of csv and json files.


def test_lists_of_csv_files_have_their_names_and_the_folder_of_their_paths(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    for name in ("one/train.csv", "two/val.csv"):
        (tmp_path / name).write_text("a.mp4,1\n")
    csvs = [tmp_path / "one/train.csv", tmp_path / "two/val.csv"]
    one, two = read_lists(csvs, prefix="", separator=",")
    assert (one.name, one.origin, one.root) == ("train.csv", csvs[0], tmp_path / "one")
    assert [(path, label) for path, label in two.videos] == [(f"{tmp_path}/two/a.mp4", 1)]
    one, two = read_lists(csvs, prefix="/videos", separator=",")
    assert [str(listed.root) for listed in (one, two)] == ["/videos", "/videos"]
    assert one.videos[0].path == "/videos/a.mp4"


def test_csv_files_of_the_same_name_and_missing_ones_are_refused(tmp_path):
    csv = tmp_path / "train.csv"
    with pytest.raises(ValueError, match=r"--csv .*train\.csv does not exist"):
        read_lists([csv], prefix="", separator=" ")
    with pytest.raises(ValueError, match="the same name"):
        read_lists([csv, tmp_path / "x/train.csv"], prefix="", separator=" ")


def test_lists_of_ssv2_are_those_of_training_and_validation(tmp_path):
    entries = [{"id": "41", "template": "Holding [something]"}, {"id": 7, "template": "Nothing"}]
    labels = {"Holding something": "1", "Nothing": "0"}
    write_ssv2_json(tmp_path, labels=labels, train=entries, validation=entries[1:])
    (tmp_path / "20bn-something-something-v2").mkdir()
    lists, names = read_ssv2_lists(tmp_path, prefix="")
    folder = tmp_path / "20bn-something-something-v2"
    assert [(each.name, each.root) for each in lists] == [
        ("train.csv", folder),
        ("val.csv", folder),
    ]
    assert [each.origin.name for each in lists] == [
        "something-something-v2-train.json",
        "something-something-v2-validation.json",
    ]
    assert list(lists[0].videos) == [(f"{folder}/41.webm", 1), (f"{folder}/7.webm", 0)]
    assert list(lists[1].videos) == [(f"{folder}/7.webm", 0)]
    assert names == ("Nothing", "Holding something")


def test_what_is_written_is_read_as_it_was():
    assert format_csv([("a b.mp4", 0), ("c.mp4", 12)], " ") == "a b.mp4 0\nc.mp4 12\n"
    assert format_csv([("a,b.mp4", 3)], r"\t") == "a,b.mp4\t3\n"
    for path in ("a\nb.mp4", "a\rb.mp4", "'a.mp4'", " a.mp4", "a.mp4\t", "a\udc80.mp4"):
        with pytest.raises(ValueError, match="cannot be written to a csv file"):
            format_csv([("fine.mp4", 0), (path, 0)], ",")
    for separator in ("", "a", "\n"):
        with pytest.raises(ValueError, match="cannot separate"):
            format_csv([], separator)


def test_folders_are_prepared(run, tmp_path):
    folder, out = tmp_path / "set", tmp_path / "out"
    for name in ("b/x.mp4", "b/y.avi", "ä/x.mp4", "ä/y.mp4"):
        write_video(folder / name, noise(4))
    assert run("--folder", folder, "--output", out)[0] == 0
    assert json.loads((out / "classes.json").read_text(encoding="utf-8")) == {"b": 0, "ä": 1}
    assert len(times(out)) == 4
    assert sorted(label for _, label in rows(out / "train.csv")) == [0, 1]
