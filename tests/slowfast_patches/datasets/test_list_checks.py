"""Tests of warnings about lists: repeated videos, empty classes, and overlapping lists."""

import os

import pytest

from slowfast_patches.datasets.lists.csv_list import LabelledVideo
from slowfast_patches.datasets.lists.dataset_lists import read_list
from slowfast_patches.datasets.lists.frame_list import HEADER
from slowfast_patches.datasets.lists.list_checks import list_warnings
from slowfast_patches.datasets.lists.overlaps import find_overlaps
from tests.slowfast_patches.datasets.recipes import recipe_of

CLASSES = "MODEL.NUM_CLASSES"


def recipe(folder, dataset, *overrides):
    return recipe_of(folder, CLASSES, 3, *overrides, dataset=dataset)


@pytest.mark.parametrize(
    ("dataset", "text", "message"),
    [
        (
            "kinetics",
            "a.mp4 1\nb.mp4 2\n",
            "The first label must be 0. The labels of this list are",
        ),
        ("charades", f'{HEADER}\na 0 0 1.jpg "0,2"\na 0 1 2.jpg ""\n', "1 of MODEL.NUM_CLASSES 3"),
        ("kinetics", "a.mp4 0\n\nb.mp4 1\nc.mp4 2\na.mp4 0\n", "a.mp4 (2 times)"),
    ],
)
def test_repeated_videos_and_classes_without_any_are_named_in_training(
    tmp_path, dataset, text, message
):
    for split in ("train", "val"):
        (tmp_path / f"{split}.csv").write_text(text)
    cfg = recipe(tmp_path, dataset)
    (warning,) = list_warnings(cfg, "train", read_list(cfg, "train"))
    assert message in warning
    assert dataset == "kinetics" or not list_warnings(cfg, "test", read_list(cfg, "test"))


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


@pytest.mark.parametrize(
    ("split", "labels", "classes", "message"),
    [
        ("train", (0, 0), 1, "all videos have the same label, so there is nothing to learn"),
        ("train", (1, 1), 3, "2 of MODEL.NUM_CLASSES 3 classes have no training video: 0 and 2"),
        ("val", (2, 2), 3, "the 2 videos have only 1 of 3 labels, so the accuracy says nothing"),
        ("test", (0, 1) * 5, 9, "the 10 videos have only 2 of 9 labels"),
        ("val", (0, 1), 9, ""),
        ("val", (0, 1, 0), 3, ""),
    ],
)
def test_lists_without_most_classes_are_warned_of(tmp_path, split, labels, classes, message):
    videos = [LabelledVideo(f"{number}.mp4", label) for number, label in enumerate(labels)]
    warnings = list_warnings(recipe(tmp_path, "kinetics", CLASSES, classes), split, videos)
    assert len(warnings) == bool(message)
    assert message in "".join(warnings)


# Videos that several lists have in common.


def overlaps(**lists):
    return find_overlaps(lists)


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
    (found,) = overlaps(val=val, train=train)
    assert found.remark == "2 of the 3 videos of val are also in train"
    assert f"{tmp_path}/real/a.mp4 = {tmp_path}/c.mp4" in str(found)


def test_copies_are_common_videos_and_what_only_looks_alike_is_not(tmp_path):
    head, zeros = os.urandom(70_000), bytes(100_000)
    contents = {
        "train/1.mp4": b"one",
        "train/2.mp4": b"two",
        "train/raw.avi": head + zeros,
        "train/empty.mp4": b"",
        "val/copy.mp4": b"one",
        "val/same_size.mp4": b"six",
        "val/raw.avi": head + zeros[1:] + b"1",
        "val/empty.mp4": b"",
    }
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    train, val = (sorted((tmp_path / name).iterdir()) for name in ("train", "val"))
    (found,) = overlaps(train=videos(*train, "gone"), val=videos(*val, "missing"))
    assert found.shared == [(f"{tmp_path}/train/1.mp4", f"{tmp_path}/val/copy.mp4")]


def test_a_test_on_the_validation_list_is_not_an_overlap_but_a_part_of_it_is():
    train, val = videos("a", "b", "c"), videos("c", "d")
    remarks = [found.remark for found in overlaps(train=train, val=val, test=val[::-1])]
    assert remarks == ["1 of the 2 videos of val are also in train"]
    remarks = [found.remark for found in overlaps(train=train, val=val, test=videos("d", "e", "a"))]
    assert remarks == [
        "1 of the 2 videos of val are also in train",
        "1 of the 3 videos of test are also in train",
        "1 of the 3 videos of test are also in val",
    ]
    assert overlaps(train=train, test=videos("e")) == []
