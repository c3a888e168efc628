"""Tests of reading AVA's lists: results equal to PySlowFast's, and messages for wrong lists."""

from pathlib import Path

import pytest

from slowfast_patches.config.recipe import pyslowfast_config
from slowfast_patches.datasets.lists.dataset_lists import (
    class_names,
    list_digest,
    list_path,
    load_with_classes,
    read_list,
)
from slowfast_patches.datasets.lists.overlaps import find_overlaps
from slowfast_patches.extras.detection.lists import (
    KeyFrame,
    ava_path,
    check_boxes,
    evaluation_files,
    read_boxes,
    read_sources,
)
from slowfast_patches.train.run import _count_videos
from tests.slowfast_patches.datasets.recipes import recipe_of as video_recipe
from tests.slowfast_patches.extras.detection.ava_lists import recipe_of, write_lists

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
    cfg = pyslowfast_config(recipe)
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


def test_a_key_frame_is_described_by_its_second_its_boxes_and_their_labels():
    one = KeyFrame("a.mp4", 0, "a", 902, ((0.0, 0.0, 1.0, 1.0),), ((0, 2),))
    others = [{"second": 903}, {"boxes": ((0.0, 0.0, 1.0, 0.5),)}, {"labels": ((0,),)}]
    assert one._replace(path="b.mp4", video=1, name="b").annotation == one.annotation
    texts = {one._replace(**other).annotation for other in others}
    assert len(texts | {one.annotation}) == 4


# Lists that are wrong.


def test_a_missing_list_is_named(tmp_path):
    recipe = recipe_of(write_lists(tmp_path, TRAIN))
    (tmp_path / "train.csv").unlink()
    with pytest.raises(ValueError, match=rf"{tmp_path}/train\.csv .*DATA\.PATH_TO_DATA_DIR"):
        read_sources(recipe, "train")


def with_videos(folder: Path, **lists: str) -> Path:
    """Write lists of video files, which need not exist, and boxes of the videos a and b."""
    write_lists(folder, TRAIN)
    for name, text in lists.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("a.mp4 0\nb.mp4 0\n", "a.mp4 0\nb.mp4 0\n"),
        ("a.mp4 0\n./a.mp4 0\nb.mp4 0\n", "link.mp4 0\n"),
        ("x/../a.mp4 0\nb.mp4 0\n", "a.mp4 0\n"),
    ],
)
def test_a_video_that_is_listed_several_times_is_used_once(tmp_path, caplog, one, two):
    folder = with_videos(tmp_path, one=one, two=two.replace("link", "l/a"))
    (folder / "x").mkdir()
    (folder / "l").symlink_to(".")
    key_frames = read_list(recipe_of(folder, "AVA.TRAIN_LISTS", "['one.csv', 'two.csv']"), "train")
    assert [(k.name, k.second) for k in key_frames] == [("a", 902), ("a", 904), ("b", 902)]
    assert "videos are listed more than once and used once: a" in caplog.text


def test_a_frame_list_that_is_named_twice_is_used_once(tmp_path):
    folder = write_lists(tmp_path, TRAIN)
    recipe = recipe_of(folder, "AVA.TRAIN_LISTS", "['train.csv', 'val.csv']")
    assert len(read_list(recipe, "train")) == 3


def test_different_videos_with_the_same_name_are_refused(tmp_path):
    folder = with_videos(tmp_path, train="x/a.mp4 0\nb.mp4 0\ny/a.webm 0\n")
    with pytest.raises(ValueError, match=r"two videos are named a: .*x/a\.mp4 and .*y/a"):
        read_list(recipe_of(folder), "train")


@pytest.mark.parametrize("lists", ["['val.csv', 'train.csv']", "['train.csv', 'val.csv']"])
def test_frame_lists_and_lists_of_files_do_not_mix(tmp_path, lists):
    folder = with_videos(tmp_path, train="c.mp4 0\n")  # val.csv is a frame list
    with pytest.raises(ValueError, match="must either all be frame lists, or all be"):
        read_list(recipe_of(folder, "AVA.TRAIN_LISTS", lists), "train")


def test_boxes_without_a_label_are_named_where_labels_are_needed(tmp_path, caplog):
    path = tmp_path / "boxes.csv"
    path.write_text("v,0902,0.1,0.1,0.9,0.9,\nv,0903,0.1,0.1,0.9,0.9,2\nv,0904,0,0,1,1,-1\n")
    assert [labels for *_, labels in read_boxes(path, 3, has_labels=False)] == [[], [1], []]
    assert not caplog.text
    list(read_boxes(path, 3))
    assert "2 boxes have no label and count as examples of no class. The first is in line 1" in (
        caplog.text
    )


@pytest.mark.parametrize(
    ("box", "has_area"),
    [
        ("0.1,0.1,0.2,0.2", True),
        ("0.1,0.1,0.1,0.2", False),
        ("0.1,0.1,0.2,0.1", False),
        ("0.2,0.1,0.1,0.2", False),
        ("0.1,0.2,0.2,0.1", False),
        ("-0.5,0.1,0.0,0.2", False),  # left of the frame
        ("1.0,0.1,1.5,0.2", False),
    ],
)
def test_a_box_has_an_area_in_the_frame_or_is_left_out(tmp_path, caplog, box, has_area):
    path = tmp_path / "boxes.csv"
    path.write_text(f"v,0902,{box},1\n" * 2 + "v,0902,0.5,0.5,0.6,0.6,1\n")
    assert len(list(read_boxes(path, 1))) == (3 if has_area else 1)
    told = [] if has_area else [f"{path}: 2 boxes have no area in the frame and are left out"]
    assert caplog.messages == told


@pytest.mark.parametrize(
    ("line", "is_valid"),
    [
        ("v,0902,-1.0,0,2.0,1,3", True),
        ("v,1798,0,0,1,1,1", True),
        ("v,1799,0,0,1,1,1", False),
        ("v,0901,0,0,1,1,1", False),
        ("v,0902,-1.1,0,1,1,1", False),
        ("v,0902,0,0,1,2.1,1", False),
        ("v,0902,0,0,1,1,0", False),
        ("v,0902,0,0,1,1,4", False),
    ],
)
def test_seconds_sides_and_labels_have_bounds(tmp_path, line, is_valid):
    path = tmp_path / "boxes.csv"
    path.write_text(line)
    if is_valid:
        assert len(list(read_boxes(path, 3))) == 1
        return
    with pytest.raises(ValueError, match=r"boxes\.csv, line 1: a value is out of range"):
        list(read_boxes(path, 3))


def test_detected_boxes_need_a_score_and_no_label(tmp_path, caplog):
    path = tmp_path / "boxes.csv"
    path.write_text("v,0902,0,0,1,1,,0.5\nv,0903,0,0,1,1,,0.49\nv,0904,0,0,1,1,2,0.7\n")
    found = [(second, labels) for _, second, _, labels in read_boxes(path, 3, 0.5)]
    assert found == [(902, []), (904, [1])]
    assert not caplog.messages
    path.write_text("v,0902,0,0,1,1,2\n")
    with pytest.raises(ValueError, match=r"line 1: .* for predicted boxes a score"):
        list(read_boxes(path, 3, 0.5))


def test_a_key_frame_has_up_to_a_thousand_boxes():
    check_boxes(1000, "a, second 902")
    with pytest.raises(ValueError, match="key frame of a, second 902 has more than 1000 boxes"):
        check_boxes(1001, "a, second 902")


def test_too_many_boxes_in_a_key_frame_are_refused(tmp_path):
    lines = "".join(f"a,0902,0.1,0.1,0.9,{0.2 + n / 2000:.4f},1\n" for n in range(1001))
    with pytest.raises(ValueError, match="key frame of a, second 902 has more than 1000 boxes"):
        read_list(recipe_of(write_lists(tmp_path, lines)), "train")


def test_equal_names_in_a_label_map_are_told_apart(tmp_path):
    folder = write_lists(tmp_path, TRAIN)
    text = (folder / "names.pbtxt").read_text()
    (folder / "names.pbtxt").write_text(text.replace("run", "stand"))
    assert class_names(recipe_of(folder)) == ("stand (1)", "2", "stand (3)")
    (folder / "names.pbtxt").write_text(text.replace("3", "1"))
    with pytest.raises(ValueError, match="has an id more than once"):
        class_names(recipe_of(folder))


def test_a_label_map_may_be_absent_but_not_empty(tmp_path):
    folder = write_lists(tmp_path, TRAIN)
    (folder / "names.pbtxt").write_text("")
    with pytest.raises(ValueError, match=r"must name classes .* from 1 to MODEL\.NUM_CLASSES 3"):
        class_names(recipe_of(folder))
    (folder / "names.pbtxt").write_text('label {\n  name: "x"\n  label_id: none\n}\n')
    with pytest.raises(ValueError, match=r"the label map .*names\.pbtxt cannot be read"):
        class_names(recipe_of(folder))
    (folder / "names.pbtxt").unlink()
    assert class_names(recipe_of(folder)) is None


def test_an_evaluation_reads_files_beside_the_lists_and_a_training_does_not(tmp_path):
    recipe = recipe_of(tmp_path, "AVA.ANNOTATION_DIR", "notes", "AVA.EXCLUSION_FILE", "out.csv")
    names = ("names.pbtxt", "out.csv", "ava_val_v2.2.csv")
    assert evaluation_files(recipe, "val") == [Path("notes", name) for name in names]
    assert evaluation_files(recipe, "test") == evaluation_files(recipe, "val")
    assert evaluation_files(recipe, "train") == []


@pytest.mark.parametrize(("split", "key"), [("train", "TRAIN"), ("val", "TEST"), ("test", "TEST")])
def test_each_split_has_its_own_lists_and_needs_one(tmp_path, split, key):
    recipe = recipe_of(tmp_path, f"AVA.{key}_LISTS", ["one.csv", "two.csv"])
    assert ava_path(recipe, split) == tmp_path / "one.csv"
    with pytest.raises(ValueError, match=rf"AVA\.{key}_LISTS is empty, but must name a list"):
        ava_path(recipe.replaced({f"AVA.{key}_LISTS": ()}), split)


def test_a_warning_of_repeated_videos_counts_them_once(tmp_path, caplog):
    folder = with_videos(tmp_path, train="a.mp4 0\na.mp4 0\nb.mp4 0\na.mp4 0\nc.mp4 0\n")
    for _ in range(2):
        found = read_sources(recipe_of(folder), "train")
        assert [Path(video.path).name for video in found] == ["a.mp4", "b.mp4", "c.mp4"]
    told = f"{folder}/train.csv: 1 videos are listed more than once and used once: a"
    assert caplog.messages == [told]


def test_copies_of_a_video_under_another_name_are_found(tmp_path):
    folder = with_videos(tmp_path, train="a.mp4 0\nb.mp4 0\n", val="c.mp4 0\nd.mp4 0\n")
    (folder / "ava_val_v2.2.csv").write_text("c,0902,0.1,0.1,0.9,0.9,1\nd,0902,0,0,1,1,1\n")
    for name, content in (("a", b"first"), ("b", b"other"), ("c", b"first"), ("d", b"third")):
        (folder / f"{name}.mp4").write_bytes(content)
    recipe = recipe_of(folder, "AVA.TEST_PREDICT_BOX_LISTS", "[]", "AVA.FULL_TEST_ON_VAL", True)
    lists = {split: read_list(recipe, split) for split in ("train", "val")}
    (found,) = find_overlaps(lists)
    assert found.shared == [(str(folder / "a.mp4"), str(folder / "c.mp4"))]


AVA, NAMES = "ava_train_v2.2.csv", "names.pbtxt"
BOX = "a,0902,0.1,0.2,0.5,0.6,1\n"


@pytest.mark.parametrize(
    ("file", "added", "said"),
    [
        (AVA, "a,0899,0.1,0.2,0.5,0.6,1", "line 2: .*second .902 to 1798"),
        (AVA, "a,0902,nan,0.2,0.5,0.6,1", "line 2: .*fractions of the sides"),
        (AVA, "c,0902,0.1,0.2,0.5,0.6,1", r" have boxes but are missing from .*train\.csv: c"),
        (NAMES, '  name: "x"\n  id: 4', "ids from 1 to MODEL.NUM_CLASSES 3"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, file, added, said):
    recipe = recipe_of(write_lists(tmp_path, BOX))
    with (tmp_path / file).open("a") as stream:
        stream.write(added)
    with pytest.raises(ValueError, match=f"({tmp_path}/{file}|^1 videos).*{said}"):
        read_list(recipe, "train"), class_names(recipe)


def test_a_list_of_boxes_without_area_is_refused(tmp_path):
    recipe = recipe_of(write_lists(tmp_path, "a,0902,0.5,0.2,0.5,0.6,1"))
    with pytest.raises(ValueError, match=r"no key frame .*of train has a box"):
        read_list(recipe, "train")


def test_ava_needs_the_task_of_boxes(tmp_path):
    said = r"have boxes \(DETECTION.ENABLE True\), .* has DATA.MULTI_LABEL False"
    with pytest.raises(ValueError, match=said):
        read_list(video_recipe(tmp_path, dataset="ava"), "train")


def test_the_task_is_that_of_the_data_set_where_nothing_says_it():
    recipe = load_with_classes(None, ["TRAIN.DATASET", "ava", "MODEL.NUM_CLASSES", 3])
    model, views = recipe.model, recipe.test.num_ensemble_views
    assert (recipe.task, model.loss_func, model.head_act, views) == (
        *("detection", "bce", "sigmoid", 1),
    )


def test_a_run_is_not_refused_because_the_first_video_of_a_list_is_missing(tmp_path):
    """The first key frames of a list are all of one video."""
    boxes = "".join(f"a,{second:04d},0.1,0.1,0.9,0.9,1\n" for second in range(902, 952))
    folder = write_lists(tmp_path, boxes + "b,0902,0.1,0.1,0.9,0.9,1\n")
    (folder / "train.csv").write_text("gone/a.mp4 0\nb.mp4 0\n")
    (folder / "b.mp4").touch()
    cfg = recipe_of(folder)
    assert _count_videos(cfg, "train") == 51
    (folder / "b.mp4").unlink()
    with pytest.raises(ValueError, match="None of 2 videos that were looked up"):
        _count_videos(cfg, "train")
