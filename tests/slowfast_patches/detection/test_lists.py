"""Tests of reading AVA's lists: results equal to PySlowFast's, and messages for wrong lists."""

from pathlib import Path

import pytest

from slowfast_patches.config.recipe import host_config
from slowfast_patches.datasets.lists.dataset_lists import (
    class_names,
    list_digest,
    list_path,
    read_list,
)
from tests.slowfast_patches.detection.ava_lists import recipe_of, write_lists

TRAIN = """\
b,0902,0.100,0.200,0.500,0.600,3,7
a,0904,0.100,0.200,0.500,0.600,1,0
a,0904,0.100,0.200,0.500,0.600,3,0
a,0902,-0.100,0.200,0.500,1.600,,1
a,0904,0.300,0.200,0.400,0.600,2,1
"""
PREDICTED = """\
a,0902,0.100,0.200,0.500,0.600,,0.95
a,0904,0.100,0.200,0.500,0.600,1,0.99
a,0904,0.200,0.200,0.500,0.600,,0.89
b,0908,0.200,0.200,0.500,0.600,,0.90
"""


def test_key_frames_come_by_video_and_second_with_all_labels_of_a_box(tmp_path):
    recipe = recipe_of(write_lists(tmp_path, TRAIN))
    frames = read_list(recipe, "train")
    assert [(k.name, k.second) for k in frames] == [("a", 902), ("a", 904), ("b", 902)]
    assert frames[0].boxes == ((0.0, 0.2, 0.5, 1.0),)  # as far as the frame goes
    assert frames[1].labels == ((0, 2), (1,))
    assert (frames[0].path, frames[2].video) == (str(tmp_path), 1)
    assert list_path(recipe, "test") == tmp_path / "val.csv"
    digest = list_digest(recipe, frames)
    assert list_digest(recipe, list(frames)[:2]) != digest
    moved = recipe_of(tmp_path, "AVA.FRAME_DIR", "/elsewhere")
    assert list_digest(moved, read_list(moved, "train")) == digest


@pytest.mark.parametrize(("split", "count"), [("train", 3), ("val", 2), ("test", 3)])
def test_boxes_and_labels_are_the_hosts(tmp_path, split, count):
    from slowfast.datasets import ava_helper

    inside = TRAIN.replace("-0.100", "0.000").replace("1.600", "1.000")
    recipe = recipe_of(write_lists(tmp_path, inside, predicted=PREDICTED))
    cfg = host_config(recipe)
    cfg.AVA.ANNOTATION_DIR = cfg.AVA.FRAME_LIST_DIR = str(tmp_path)
    expected = {
        (name, second): [
            (tuple(box), tuple(n - 1 for n in labels if n > 0)) for box, labels in boxes
        ]
        for name, of_video in ava_helper.load_boxes_and_labels(cfg, split).items()
        for second, boxes in of_video.items()
        if boxes
    }
    key_frames = read_list(recipe, split)
    found = {(k.name, k.second): list(zip(k.boxes, k.labels, strict=True)) for k in key_frames}
    assert found == expected
    assert len(found) == count


def test_videos_may_be_files_and_lists_elsewhere(tmp_path):
    lists = write_lists(tmp_path / "lists", TRAIN)
    frames = tmp_path / "frames"
    frames.mkdir()
    # The second as multigrid-prepare names it.
    (frames / "train.csv").write_text("videos/b.mp4 0\nvideos/a.webm.mp4 0\n")
    keys = ("DATA.PATH_TO_DATA_DIR", "", "AVA.FRAME_LIST_DIR", frames, "AVA.ANNOTATION_DIR", lists)
    found = read_list(recipe_of(tmp_path, *map(str, keys)), "train")
    assert (found[0].name, Path(found[0].path)) == ("b", frames / "videos/b.mp4")
    moved = recipe_of(tmp_path, *map(str, keys), "AVA.FRAME_DIR", "/elsewhere")
    assert read_list(moved, "train")[0].path == "/elsewhere/videos/b.mp4"


def test_classes_have_the_names_of_the_label_map_and_else_their_numbers(tmp_path):
    assert class_names(recipe_of(write_lists(tmp_path, TRAIN))) == ("stand", "2", "run")
