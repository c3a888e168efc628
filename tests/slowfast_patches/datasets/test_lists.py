"""Lists by the name of their data set: which file, how many videos, what the classes are called."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import (
    DATASETS,
    DataSet,
    class_names,
    count_list,
    list_path,
    list_warnings,
    read_list,
)
from slowfast_patches.datasets.lists.frame_list import HEADER, FrameList
from slowfast_patches.plan.plan import dataset_size
from slowfast_patches.train import run as run_module
from tests.slowfast_patches.datasets.made_videos import write_ssv2_json

SSV2 = ("DATA.RANDOM_FLIP", False)
CHARADES = ("DATA.MULTI_LABEL", True, "MODEL.LOSS_FUNC", "bce_logit")
FRAMES = f'{HEADER}\n7 0 0 7/1.jpg ""\n7 0 1 7/2.jpg ""\n12 1 0 12/1.jpg ""\n'


def config(folder: Path, dataset: str, *overrides: object) -> Recipe:
    names = ("TRAIN.DATASET", dataset, "TEST.DATASET", dataset)
    own = {"ssv2": SSV2, "charades": CHARADES}.get(dataset, ())
    data = ("DATA.PATH_TO_DATA_DIR", str(folder), "MODEL.NUM_CLASSES", 3)
    return load_recipe(None, [*names, *own, *data, *overrides])


def write_ssv2(folder: Path) -> None:
    write_ssv2_json(
        folder,
        labels={"Holding something": "0", "Pushing something left": 1, "Doing nothing": "2"},
        train=[
            {"id": "12", "template": "Holding [something]", "label": "holding a cup"},
            {"id": 7, "template": "Pushing [something] left", "placeholders": ["a cup"]},
        ],
        validation=[{"id": "3", "template": "Doing nothing"}],
    )


# Which data set.


@pytest.mark.parametrize("split", ["train", "test"])
def test_an_unknown_data_set_is_refused_with_those_that_exist(tmp_path, split):
    cfg = config(tmp_path, "ava")
    for function in (read_list, count_list, list_path):
        with pytest.raises(
            ValueError, match=r"(TRAIN|TEST).DATASET 'ava' .* kinetics, ssv2, charades"
        ):
            function(cfg, split)


@pytest.mark.parametrize(
    ("dataset", "overrides", "split", "said"),
    [
        ("charades", ("DATA.MULTI_LABEL", False), "train", "True for charades, .* several labels"),
        ("charades", ("TEST.DATASET", "ssv2"), "test", "False for ssv2, which has one label"),
        ("ssv2", ("DATA.RANDOM_FLIP", True), "train", "RANDOM_FLIP False .*left and right have"),
    ],
)
def test_what_a_data_set_cannot_give_is_refused(tmp_path, dataset, overrides, split, said):
    with pytest.raises(ValueError, match=said):
        read_list(config(tmp_path, dataset, *overrides), split)


# How many videos.


@pytest.mark.parametrize("dataset", ["kinetics", "ssv2", "charades"])
def test_videos_are_counted_as_they_are_read_or_as_the_recipe_says(tmp_path, dataset):
    cfg = config(tmp_path, dataset, "DATA.NUM_TRAIN_VIDEOS", 80)
    assert (count_list(cfg, "train"), dataset_size(cfg)) == (None, 80)
    with pytest.raises(ValueError, match=r"set DATA.PATH_TO_DATA_DIR"):
        read_list(cfg, "train")
    write_ssv2(tmp_path)
    if dataset != "ssv2":
        text = FRAMES if dataset == "charades" else "a.mp4 0\n\nb.mp4 1\n"
        (tmp_path / "train.csv").write_text(text)
    assert count_list(cfg, "train") == len(read_list(cfg, "train")) == 2
    assert dataset_size(cfg) == 2


# Something-Something.


def test_ssv2_without_a_csv_is_the_webm_files_of_the_json(tmp_path):
    write_ssv2(tmp_path)
    cfg = config(tmp_path, "ssv2")
    assert list_path(cfg, "train") == tmp_path / "something-something-v2-train.json"
    assert list_path(cfg, "test") == tmp_path / "something-something-v2-validation.json"
    wanted = [("12.webm", 0), ("7.webm", 1)]
    assert read_list(cfg, "train") == [(f"{tmp_path}/{name}", label) for name, label in wanted]
    assert read_list(cfg, "val") == [(f"{tmp_path}/3.webm", 2)]


def test_webm_files_are_looked_for_in_the_prefix_or_where_archives_unpack(tmp_path):
    write_ssv2(tmp_path)
    unpacked = tmp_path / "20bn-something-something-v2"
    unpacked.mkdir()
    assert read_list(config(tmp_path, "ssv2"), "train")[0].path == f"{tmp_path}/12.webm"
    (unpacked / "7.webm").touch()
    assert read_list(config(tmp_path, "ssv2"), "train")[0].path == f"{unpacked}/12.webm"
    cfg = config(tmp_path, "ssv2", "DATA.PATH_PREFIX", "/videos")
    assert read_list(cfg, "train")[0].path == "/videos/12.webm"


def test_ssv2_frame_lists_take_their_labels_from_the_json(tmp_path):
    write_ssv2(tmp_path)
    (tmp_path / "train.csv").write_text(FRAMES.replace('""', '"2"'))
    cfg = config(tmp_path, "ssv2")
    videos = read_list(cfg, "train")
    assert isinstance(videos, FrameList)
    assert [(video.name, video.label) for video in videos] == [("7", 1), ("12", 0)]
    assert (videos.fps, list_path(cfg, "train")) == (30.0, tmp_path / "train.csv")
    assert list_path(cfg, "val").suffix == ".json"


@pytest.mark.parametrize("dataset", ["ssv2", "charades"])
def test_the_test_split_is_test_csv_or_else_val_csv(tmp_path, dataset):
    cfg = config(tmp_path, dataset)
    (tmp_path / "val.csv").touch()
    assert list_path(cfg, "test") == tmp_path / "val.csv"
    (tmp_path / "test.csv").touch()
    assert list_path(cfg, "test") == tmp_path / "test.csv"
    assert list_path(cfg, "val") == tmp_path / "val.csv"


def test_a_list_and_a_json_of_other_videos_are_refused_with_both_counts(tmp_path):
    write_ssv2(tmp_path)
    lines = [f'{name} 0 0 {name}.jpg ""\n' for name in (7, 100, 101, 102, 103)]
    (tmp_path / "train.csv").write_text(f"{HEADER}\n{''.join(lines)}")
    with pytest.raises(
        ValueError,
        match=r"train.csv lists 5 videos and .*-train.json 2, .*: 100, 101, 102 and 2 more",
    ):
        read_list(config(tmp_path, "ssv2"), "train")


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("train", "[", r"train.json is not JSON: Expecting"),
        ("train", {}, "train.json is not a list"),
        ("train", [{"id": 1}], r"train.json, entry 0: .* not an object with id and template"),
        (
            "train",
            [{"id": 1, "template": "Doing nothing"}, {"id": 2, "template": "Doing [it]"}],
            r"train.json, entry 1 \(id 2\): .*labels.json has no template 'Doing it'",
        ),
        (
            "train",
            [{"id": 1, "template": "Doing nothing"}] * 2,
            r"train.json, entry 1: id 1 is there twice",
        ),
        ("labels", {"A": "0", "B": "3"}, r"labels.json, entry 'B': '3' is not .* below .* 3"),
        ("labels", None, r"labels.json: no such file; the json files belong together"),
    ],
)
def test_what_is_wrong_in_a_json_file_is_said_with_file_and_entry(tmp_path, file, content, said):
    write_ssv2(tmp_path)
    path = tmp_path / f"something-something-v2-{file}.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    if content is None:
        path.unlink()
    with pytest.raises(ValueError, match=said):
        read_list(config(tmp_path, "ssv2"), "train")


# Names of classes.


def test_ssv2_names_its_classes_in_its_labels_file(tmp_path):
    assert class_names(config(tmp_path, "ssv2")) is None
    write_ssv2(tmp_path)
    names = ("Holding something", "Pushing something left", "Doing nothing")
    assert class_names(config(tmp_path, "ssv2")) == names
    with pytest.raises(
        ValueError, match=r"NUM_CLASSES is 4, and .* names 3 .*; set .*NUM_CLASSES 3$"
    ):
        class_names(config(tmp_path, "ssv2", "MODEL.NUM_CLASSES", 4))


def test_labels_that_end_below_the_number_of_classes_are_said(tmp_path):
    (tmp_path / "train.csv").write_text("a.mp4 0\nb.mp4 1\n")
    cfg = config(tmp_path, "kinetics")
    videos = read_list(cfg, "train")
    (text,) = list_warnings(cfg, "train", videos)
    assert text.endswith("the labels end at 1: if that is all, set MODEL.NUM_CLASSES 2")
    assert not list_warnings(config(tmp_path, "kinetics", "MODEL.NUM_CLASSES", 2), "train", videos)
    (tmp_path / "classes.txt").write_text("left\nright\nup and down\n")
    (text,) = list_warnings(cfg, "train", videos)  # the list just lacks a class
    assert text.endswith("trained on: 2 (up and down)")


def test_a_class_that_no_frame_has_is_said(tmp_path):
    (tmp_path / "train.csv").write_text(f'{HEADER}\na 0 0 1.jpg "0,2"\na 0 1 2.jpg ""\n')
    cfg = config(tmp_path, "charades")
    (text,) = list_warnings(cfg, "train", read_list(cfg, "train"))
    assert text.endswith("1 of MODEL.NUM_CLASSES 3 classes have no video to be trained on: 1")


@pytest.mark.parametrize("dataset", ["kinetics", "ssv2"])
def test_names_lie_in_a_json_file_or_a_text_beside_the_lists(tmp_path, dataset):
    cfg = config(tmp_path, dataset)
    assert class_names(cfg) is None
    (tmp_path / "classes.txt").write_text("left\nright \nup and down\n\n \n")
    assert class_names(cfg) == ("left", "right", "up and down")
    path = tmp_path / "classes.json"
    for text in ('{"b": 1, "ä": 0, "c": 2}', '["ä", "b", "c"]', '{"b": "1", "ä": "0", "c": "2"}'):
        path.write_text(text)
        assert class_names(cfg) == ("ä", "b", "c")
    for text in (
        '{"a": 0, "b": 1}',
        '{"a": 0, "b": 1, "c": 1}',
        "[",
        '["a", "b", "a"]',
        "7",
        '["a", "b", 3]',
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=str(tmp_path)):
            class_names(cfg)


def test_charades_names_its_classes_a_line_each(tmp_path):
    path = tmp_path / "Charades_v1_classes.txt"
    path.write_text("c000 Holding some clothes\nc001 Putting clothes somewhere\n\nc002 Taking\r\n")
    names = ("Holding some clothes", "Putting clothes somewhere", "Taking")
    assert class_names(config(tmp_path, "charades")) == names
    for text, said in (
        ("c000 Holding\nc001 Holding\n", "'Holding' is the name of 2 classes$"),
        ("c000 Holding\nHolding some clothes\n", "classes.txt, line 2: .* is not 'c000 name'"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            class_names(config(tmp_path, "charades"))


def test_a_data_set_of_ones_own_has_lists_as_kinetics(tmp_path, monkeypatch):
    monkeypatch.setitem(DATASETS, "cats", DataSet(mirrors=False))
    (tmp_path / "train.csv").write_text("a.mp4 1\nb.mp4 0\n")
    cfg = config(tmp_path, "kinetics", "TRAIN.DATASET", "cats")
    with pytest.raises(ValueError, match="RANDOM_FLIP False for cats"):
        read_list(cfg, "train")
    cfg = cfg.replaced({"DATA.RANDOM_FLIP": False})
    assert [video.label for video in read_list(cfg, "train")] == [1, 0]
    assert count_list(cfg, "train") == 2


# What is odd about a list.


def test_repeated_videos_are_named_once(tmp_path):
    path, cfg = tmp_path / "train.csv", config(tmp_path, "kinetics", "MODEL.NUM_CLASSES", 4)
    path.write_text("a.mp4 0\n\nb.mp4 1\nc.mp4 2\na.mp4 0\nb.mp4 3\na.mp4 0\n")
    (said,) = list_warnings(cfg, "train", read_list(cfg, "train"))
    assert said.startswith(f"{path}: 2 video(s) are listed more than once")
    assert said.endswith(f": {tmp_path}/a.mp4 (3 times) and {tmp_path}/b.mp4 (2 times)")


@pytest.mark.parametrize(("rank", "times"), [("0", 1), ("1", 0)])
def test_of_two_processes_one_says_it(
    demo_data: Path,
    tiny_config: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    rank: str,
    times: int,
):
    lines = (demo_data / "val.csv").read_text().splitlines()
    repeated = "\n".join([*lines, lines[2]])
    for split in ("val", "train"):
        (tmp_path / f"{split}.csv").write_text(repeated)
    cfg = tiny_config(tmp_path / "run", "DATA.PATH_TO_DATA_DIR", tmp_path, "MODEL.NUM_CLASSES", 9)
    cfg = cfg.replaced({"DATA.PATH_PREFIX": str(demo_data)})
    for key, value in (("WORLD_SIZE", "2"), ("GROUP_WORLD_SIZE", "1"), ("RANK", rank)):
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    for split in ("train", "val"):
        assert run_module._count_videos(cfg, split) == len(lines) + 1
    said = [record.getMessage() for record in caplog.records]
    assert sum("(2 times)" in text for text in said) == 2 * times
    assert sum("1 of MODEL.NUM_CLASSES 9 classes" in text for text in said) == times
