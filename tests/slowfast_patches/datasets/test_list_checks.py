"""Tests of warnings about lists: repeated videos, empty classes, and overlapping lists."""

import hashlib

import pytest

from slowfast_patches.datasets.lists import overlaps
from slowfast_patches.datasets.lists.csv_list import LabelledVideo
from slowfast_patches.datasets.lists.dataset_lists import read_list
from slowfast_patches.datasets.lists.frame_list import HEADER, read_frame_list
from slowfast_patches.datasets.lists.list_checks import list_warnings, repeated_videos
from slowfast_patches.datasets.lists.overlaps import find_overlaps
from tests.slowfast_patches.datasets.made_videos import write_jpeg
from tests.slowfast_patches.datasets.recipes import recipe_of

CLASSES = "MODEL.NUM_CLASSES"


def recipe(folder, dataset, *overrides):
    return recipe_of(folder, CLASSES, 3, *overrides, dataset=dataset)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.mp4 1\nb.mp4 2\n", "The first label must be 0. The labels of this list are"),
        ("a.mp4 0\n\nb.mp4 1\nc.mp4 2\na.mp4 0\n", "a.mp4 (2 times)"),
    ],
)
def test_repeated_videos_and_classes_without_any_are_named_in_training(tmp_path, text, message):
    (tmp_path / "train.csv").write_text(text)
    cfg = recipe(tmp_path, "kinetics")
    (warning,) = list_warnings(cfg, "train", read_list(cfg, "train"))
    assert message in warning


def test_classes_without_any_frame_are_named_in_training_alone(tmp_path):
    for split in ("train", "val"):
        (tmp_path / f"{split}.csv").write_text(f'{HEADER}\na 0 0 1.jpg "0,2"\na 0 1 2.jpg ""\n')
    cfg = recipe(tmp_path, "charades")
    (warning,) = list_warnings(cfg, "train", read_list(cfg, "train"))
    assert "1 of MODEL.NUM_CLASSES 3" in warning
    assert not list_warnings(cfg, "test", read_list(cfg, "test"))


def test_a_video_with_several_labels_is_contradictory_however_its_path_is_written(tmp_path):
    (tmp_path / "a.mp4").touch()
    (tmp_path / "link.mp4").symlink_to("a.mp4")
    lines = f"a.mp4 0\nb.mp4 1\nc.mp4 2\nlink.mp4 1\nx/../b.mp4 2\n{tmp_path}/a.mp4 0\nc.mp4 2\n"
    (tmp_path / "train.csv").write_text(lines)
    cfg = recipe(tmp_path, "kinetics")
    contradictory, repeated = list_warnings(cfg, "train", read_list(cfg, "train"))
    named = f"{tmp_path}/a.mp4 (labels 0 and 1) and {tmp_path}/b.mp4 (labels 1 and 2)"
    assert f"2 video(s) have contradictory labels: {named}" in contradictory
    assert "1 video(s) are listed more than once" in repeated
    assert "c.mp4 (2 times)" in repeated


def test_a_remote_video_is_named_by_its_address(tmp_path):
    (warning,) = repeated_videos(tmp_path / "t.csv", [LabelledVideo("s3://b/x.mp4", 0)] * 2)
    assert warning.endswith(": s3://b/x.mp4 (2 times)")


@pytest.mark.parametrize(
    ("split", "labels", "classes", "message"),
    [
        ("train", (0, 0), 1, "all videos have the same label, so there is nothing to learn"),
        ("train", (1, 1), 3, "2 of MODEL.NUM_CLASSES 3 classes have no training video: 0 and 2"),
        ("val", (2, 2), 3, "the 2 videos have only 1 of 3 labels, so the accuracy says nothing"),
        ("val", (0, 1, 0), 3, ""),
        ("val", (0, 1, 0, 1), 4, ""),  # half of the classes
        ("val", (0, 1, 0, 1, 1), 5, "the 5 videos have only 2 of 5 labels"),
        ("val", (0, 1, 0, 1), 5, ""),  # fewer videos than classes
        ("test", (2, 2), 3, "the 2 videos have only 1 of 3 labels"),
    ],
)
def test_lists_without_most_classes_are_warned_of(tmp_path, split, labels, classes, message):
    videos = [LabelledVideo(f"{number}.mp4", label) for number, label in enumerate(labels)]
    warnings = list_warnings(recipe(tmp_path, "kinetics", CLASSES, classes), split, videos)
    assert len(warnings) == bool(message)
    assert message in "".join(warnings)


def test_lists_without_labels_are_not_warned_of(tmp_path):
    cfg = recipe(tmp_path, "kinetics")
    for split in ("train", "val"):
        assert list_warnings(cfg, split, list(range(9))) == []


def test_a_test_on_the_validation_list_is_warned_of_if_there_is_no_training(tmp_path):
    (tmp_path / "val.csv").write_text(f'{HEADER}\na 0 0 1.jpg ""\n')
    twice = [LabelledVideo("a.mp4", 0)] * 2
    for enabled, count in ((True, 0), (False, 1)):
        cfg = recipe(tmp_path, "charades", "TRAIN.ENABLE", enabled)
        found = list_warnings(cfg, "test", twice)
        assert isinstance(found, list)
        assert len(found) == count


# Videos that several lists have in common.


def videos(*names):
    return [LabelledVideo(str(name), 0) for name in names]


def test_common_videos_are_counted_once_by_the_files_that_the_paths_lead_to(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to("real")
    for name in "ab":
        (tmp_path / f"real/{name}.mp4").write_text(name)
    (tmp_path / "c.mp4").symlink_to("real/a.mp4")
    train = videos(tmp_path / "real/a.mp4", tmp_path / "real/b.mp4", "x.mp4")
    val = videos(tmp_path / "linked/b.mp4", tmp_path / "c.mp4", tmp_path / "c.mp4", "y.mp4")
    (found,) = find_overlaps({"val": val, "train": train})
    assert found.remark == "2 of the 3 videos of val are also in train"
    assert f"{tmp_path}/real/a.mp4 = {tmp_path}/c.mp4" in str(found)


def test_copies_are_common_videos_and_what_only_looks_alike_is_not(tmp_path):
    zeros = bytes(100_000)
    contents = {
        "train/1.mp4": b"one",
        "train/raw.avi": b"head" + zeros,
        "train/empty.mp4": b"",
        "val/copy.mp4": b"one",
        "val/same_size.mp4": b"six",
        "val/raw.avi": b"head" + zeros[1:] + b"1",
        "val/empty.mp4": b"",
    }
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    lists = {name: videos(*sorted((tmp_path / name).iterdir())) for name in ("train", "val")}
    (found,) = find_overlaps(lists)
    assert found.shared == [(f"{tmp_path}/train/1.mp4", f"{tmp_path}/val/copy.mp4")]


def test_a_test_on_the_validation_list_is_not_an_overlap_but_a_part_of_it_is():
    lists = {"train": videos("a", "b", "c"), "val": videos("c", "d"), "test": videos("d", "c")}
    of_val = "1 of the 2 videos of val are also in train"
    assert [found.remark for found in find_overlaps(lists)] == [of_val]
    lists["test"] = videos("d", "e", "a")
    of_test = [f"1 of the 3 videos of test are also in {name}" for name in ("train", "val")]
    assert [found.remark for found in find_overlaps(lists)] == [of_val, *of_test]


def test_copies_of_the_frames_of_a_list_are_found(tmp_path):
    """Two lists of frames have the same pictures under other names. A third video differs."""
    lists = {}
    for split, videos in (("train", ("a", "b")), ("val", ("c", "d"))):
        rows = [HEADER]
        for video in videos:
            for number in range(3):
                level = 40 + 9 * number + (99 if video == "d" and number == 2 else 0)
                write_jpeg(tmp_path / video / f"{video}{number}.jpg", level=level)
                rows.append(f'{video} 0 {number} {video}/{video}{number}.jpg ""')
        (tmp_path / f"{split}.csv").write_text("\n".join(rows))
        lists[split] = read_frame_list(tmp_path / f"{split}.csv", num_classes=1, fps=30)
    write_jpeg(tmp_path / "b/b0.jpg", level=200)
    (found,) = find_overlaps(lists)
    assert found.shared == [(str(tmp_path / "a"), str(tmp_path / "c"))]


def test_copies_within_a_list_are_no_overlap_and_those_of_three_lists_are_found(tmp_path):
    for name in ("a", "b", "c", "d"):
        (tmp_path / f"{name}.mp4").write_text("same" if name != "d" else "else")
    a, b, c, d = (tmp_path / f"{name}.mp4" for name in "abcd")
    assert find_overlaps({"train": videos(a, b), "val": videos(d)}) == []
    found = find_overlaps({"train": videos(a, d), "val": videos(b), "test": videos(c, d)})
    assert [(each.first, each.second, len(each.shared)) for each in found] == [
        ("train", "val", 1),
        ("train", "test", 2),
        ("val", "test", 1),
    ]


def test_large_files_are_compared_by_their_beginning_before_they_are_read(tmp_path, monkeypatch):
    """Only the files that begin alike are read as a whole."""
    monkeypatch.setattr(overlaps, "_HEAD", 4)
    digested = []
    digest = hashlib.file_digest
    monkeypatch.setattr(
        hashlib, "file_digest", lambda file, kind: digested.append(file.name) or digest(file, kind)
    )
    contents = {"a": b"headone", "b": b"headone", "c": b"tailone", "d": b"headtwo"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    a, b, c, d = (str(tmp_path / name) for name in "abcd")
    (found,) = find_overlaps({"train": videos(a, c), "val": videos(b, d)})
    assert found.shared == [(a, b)]
    assert sorted(digested) == [a, b, d]


def test_empty_files_and_videos_without_a_path_are_no_copies(tmp_path):
    for name in ("a.mp4", "b.mp4"):
        (tmp_path / name).touch()
    lists = {"train": [*videos(tmp_path / "a.mp4"), 7], "val": [*videos(tmp_path / "b.mp4"), 7]}
    assert find_overlaps(lists) == []
