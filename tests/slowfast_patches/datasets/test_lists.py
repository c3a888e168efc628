"""Lists by the name of their data set: which file, how many videos, what the classes are called."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import (
    DATASETS,
    DataSet,
    class_names,
    count_list,
    is_tested_on_val,
    list_digest,
    list_path,
    list_warnings,
    load_with_classes,
    read_list,
)
from slowfast_patches.datasets.lists.frame_list import HEADER
from slowfast_patches.launch.workers import JoiningError
from slowfast_patches.plan.plan import dataset_size
from slowfast_patches.train import run as run_module
from slowfast_patches.utils.distributed import World
from tests.slowfast_patches.datasets.made_videos import write_ssv2_json

SSV2 = ("DATA.RANDOM_FLIP", False)
CHARADES = ("DATA.MULTI_LABEL", True)
FRAMES = f'{HEADER}\n7 0 0 7/1.jpg ""\n7 0 1 7/2.jpg ""\n12 1 0 12/1.jpg ""\n'


def config(folder: Path, dataset: str, *overrides: object) -> Recipe:
    names = ("TRAIN.DATASET", dataset, "TEST.DATASET", dataset)
    needed = {"ssv2": SSV2, "charades": CHARADES}.get(dataset, ())
    data = ("DATA.PATH_TO_DATA_DIR", str(folder), "MODEL.NUM_CLASSES", 3)
    return load_recipe(None, [*names, *needed, *data, *overrides])


@pytest.fixture
def ssv2(tmp_path: Path) -> Path:
    """A folder with the json files alone."""
    write_ssv2_json(
        tmp_path,
        labels={"Holding something": "0", "Pushing something left": 1, "Doing nothing": "2"},
        train=[
            {"id": "12", "template": "Holding [something]", "label": "holding a cup"},
            {"id": 7, "template": "Pushing [something] left", "placeholders": ["a cup"]},
        ],
        validation=[{"id": "3", "template": "Doing nothing"}],
    )
    return tmp_path


# Which data set.


@pytest.mark.parametrize(
    ("dataset", "overrides", "split", "message"),
    [
        ("ucf", (), "train", r"TRAIN.DATASET 'ucf' .* kinetics, ssv2, charades, ava"),
        ("ucf", (), "test", r"TEST.DATASET 'ucf' .* kinetics, ssv2, charades, ava"),
        ("ava", (), "train", r"DETECTION.ENABLE True: the videos of train have boxes"),
        ("charades", ("DATA.MULTI_LABEL", False), "train", "MULTI_LABEL True.* several labels"),
        ("charades", ("TEST.DATASET", "ssv2"), "test", "MULTI_LABEL False.* one label"),
        ("ssv2", ("DATA.RANDOM_FLIP", True), "train", "RANDOM_FLIP False .*left and right have"),
    ],
)
def test_what_a_data_set_cannot_give_is_refused(tmp_path, dataset, overrides, split, message):
    with pytest.raises(ValueError, match=message):
        read_list(config(tmp_path, dataset, *overrides), split)


def test_a_data_set_of_ones_own_has_lists_as_kinetics(tmp_path, monkeypatch):
    monkeypatch.setitem(DATASETS, "cats", DataSet(mirrors=False))
    (tmp_path / "train.csv").write_text("a.mp4 1\nb.mp4 0\n")
    cfg = config(tmp_path, "kinetics", "TRAIN.DATASET", "cats", "DATA.RANDOM_FLIP", False)
    assert [video.label for video in read_list(cfg, "train")] == [1, 0]


# How many videos.


@pytest.mark.parametrize("dataset", ["kinetics", "ssv2", "charades"])
def test_videos_are_counted_as_they_are_read_or_as_the_recipe_says(ssv2, dataset):
    cfg = config(ssv2, dataset, "DATA.NUM_TRAIN_VIDEOS", 80)
    if dataset == "ssv2":
        cfg = config(ssv2 / "empty", dataset, "DATA.NUM_TRAIN_VIDEOS", 80)
    assert (count_list(cfg, "train"), dataset_size(cfg)) == (None, 80)
    with pytest.raises(ValueError, match=r"set DATA.PATH_TO_DATA_DIR"):
        read_list(cfg, "train")
    cfg = config(ssv2, dataset, "DATA.NUM_TRAIN_VIDEOS", 80)
    if dataset != "ssv2":
        text = FRAMES if dataset == "charades" else "a.mp4 0\n\nb.mp4 1\n"
        (ssv2 / "train.csv").write_text(text)
    assert count_list(cfg, "train") == len(read_list(cfg, "train")) == dataset_size(cfg) == 2


def test_the_digest_is_that_of_the_paths_and_labels_wherever_the_data_lie(tmp_path):
    digests = set()
    texts = {"kinetics": "a.mp4 0\nb.mp4 1\n", "charades": FRAMES}
    changed = {
        "kinetics": "a.mp4 0\nb.mp4 2\n",
        "charades": FRAMES.replace('2.jpg ""', '2.jpg "1"'),
    }
    for dataset in texts:
        for folder, text in (("one", texts), ("two", texts), ("other", changed)):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / "train.csv").write_text(text[dataset])
            cfg = config(tmp_path / folder, dataset)
            digests.add(list_digest(cfg, read_list(cfg, "train")))
    assert len(digests) == 4


# Something-Something.


def test_ssv2_without_a_csv_is_the_webm_files_of_the_json(ssv2):
    """In the folder of the json files, in that of the archives, or in the prefix."""
    cfg = config(ssv2, "ssv2")
    assert list_path(cfg, "train") == ssv2 / "something-something-v2-train.json"
    assert list_path(cfg, "test") == ssv2 / "something-something-v2-validation.json"
    names = [("12.webm", 0), ("7.webm", 1)]
    assert list(read_list(cfg, "train")) == [(f"{ssv2}/{name}", label) for name, label in names]
    assert list(read_list(cfg, "val")) == [(f"{ssv2}/3.webm", 2)]
    unpacked = ssv2 / "20bn-something-something-v2"
    unpacked.mkdir()
    (unpacked / "7.webm").touch()
    assert read_list(cfg, "train")[0].path == f"{unpacked}/12.webm"
    cfg = config(ssv2, "ssv2", "DATA.PATH_PREFIX", "/videos")
    assert read_list(cfg, "train")[0].path == "/videos/12.webm"


def test_ssv2_frame_lists_take_their_labels_from_the_json(ssv2):
    (ssv2 / "train.csv").write_text(FRAMES.replace('""', '"2"'))
    videos = read_list(config(ssv2, "ssv2"), "train")
    assert [(video.name, video.label, video.fps) for video in videos] == [
        ("7", 1, 30.0),
        ("12", 0, 30.0),
    ]
    (ssv2 / "train.csv").write_text(FRAMES.replace("12", "100"))
    with pytest.raises(ValueError, match=r"train.csv lists 2 videos .*: 100 and 12"):
        read_list(config(ssv2, "ssv2"), "train")


@pytest.mark.parametrize("dataset", ["ssv2", "charades"])
def test_the_test_split_is_test_csv_or_else_val_csv(tmp_path, dataset):
    cfg = config(tmp_path, dataset)
    (tmp_path / "val.csv").touch()
    assert list_path(cfg, "test") == tmp_path / "val.csv"
    (tmp_path / "test.csv").touch()
    assert list_path(cfg, "test") == tmp_path / "test.csv"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train", "[", "train.json cannot be read as JSON: Expecting"),
        ("train", {}, "train.json has a dict"),
        ("train", [{"id": 1}], "train.json, entry 0: .* no id, or no template"),
        ("train", [{"id": 1, "template": "Doing [it]"}], "train.json, entry 0: .*Doing it"),
        ("train", [{"id": 1, "template": "Doing nothing"}] * 2, "entry 1: the id 1 occurs twice"),
        ("labels", {"A": "0", "B": "3"}, "labels.json, entry 'B': '3' is not .* below .* 3"),
        ("labels", None, "labels.json cannot be read"),
    ],
)
def test_mistakes_in_json_files_are_named_with_file_and_entry(ssv2, file, content, message):
    path = ssv2 / f"something-something-v2-{file}.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    if content is None:
        path.unlink()
    with pytest.raises(ValueError, match=message):
        read_list(config(ssv2, "ssv2"), "train")


# Names of classes.


def test_ssv2_names_its_classes_in_its_labels_file(ssv2):
    names = ("Holding something", "Pushing something left", "Doing nothing")
    assert class_names(config(ssv2, "ssv2")) == names
    with pytest.raises(
        ValueError, match=r"NUM_CLASSES is 4, but .* names 3 .*; set .*NUM_CLASSES 3$"
    ):
        class_names(config(ssv2, "ssv2", "MODEL.NUM_CLASSES", 4))


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
    twice = '{"a": 0, "b": 1, "c": 1}'
    for text in ('{"a": 0}', twice, "[", '["a", "b", "a"]', "7", '["a", "b", 3]', "[]"):
        path.write_text(text)
        with pytest.raises(ValueError, match=str(tmp_path)):
            class_names(cfg)


def test_charades_names_its_classes_a_line_each(tmp_path):
    path = tmp_path / "Charades_v1_classes.txt"
    path.write_text("c000 Holding some clothes\nc001 Putting clothes somewhere\n\nc002 Taking\r\n")
    names = ("Holding some clothes", "Putting clothes somewhere", "Taking")
    assert class_names(config(tmp_path, "charades")) == names
    for text in ("c000 Holding\nc001 Holding\n", "c000 Holding\nHolding some clothes\n"):
        path.write_text(text)
        with pytest.raises(ValueError, match=str(path)):
            class_names(config(tmp_path, "charades"))


# Oddities of a list.


@pytest.mark.parametrize(
    ("dataset", "text", "message"),
    [
        (
            "kinetics",
            "a.mp4 0\nb.mp4 1\n",
            "is 1: if that is the last class, set MODEL.NUM_CLASSES 2",
        ),
        ("charades", f'{HEADER}\na 0 0 1.jpg "0,2"\na 0 1 2.jpg ""\n', "1 of MODEL.NUM_CLASSES 3"),
        ("kinetics", "a.mp4 0\n\nb.mp4 1\nc.mp4 2\na.mp4 0\n", "a.mp4 (2 times)"),
    ],
)
def test_repeated_videos_and_classes_without_any_are_named_once(tmp_path, dataset, text, message):
    for split in ("train", "val"):
        (tmp_path / f"{split}.csv").write_text(text)
    cfg = config(tmp_path, dataset)
    (warning,) = list_warnings(cfg, "train", read_list(cfg, "train"))
    assert message in warning
    if dataset == "charades":  # whose test list is val's
        assert list_warnings(cfg, "test", read_list(cfg, "test")) == []


def test_a_training_list_of_one_class_is_warned_of(tmp_path):
    (tmp_path / "train.csv").write_text("a.mp4 0\nb.mp4 0\n")
    cfg = config(tmp_path, "kinetics", "MODEL.NUM_CLASSES", 1)
    (warning,) = list_warnings(cfg, "train", read_list(cfg, "train"))
    assert "all videos have the label 0: there is nothing to learn" in warning


@pytest.mark.parametrize(("rank", "times"), [("0", 1), ("1", 0)])
def test_of_two_processes_one_warns(
    demo_data: Path,
    tiny_config: Callable[..., Recipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    rank: str,
    times: int,
):
    lines = (demo_data / "val.csv").read_text().splitlines()
    (tmp_path / "train.csv").write_text("\n".join([*lines, lines[2]]))
    cfg = tiny_config(tmp_path / "run", "DATA.PATH_TO_DATA_DIR", tmp_path, "MODEL.NUM_CLASSES", 9)
    cfg = cfg.replaced({"DATA.PATH_PREFIX": str(demo_data)})
    for key, value in (("WORLD_SIZE", "2"), ("GROUP_WORLD_SIZE", "1"), ("RANK", rank)):
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert run_module._count_videos(cfg, "train") == len(lines) + 1
    assert caplog.text.count("(2 times)") == caplog.text.count("of MODEL.NUM_CLASSES 9") == times


# What follows from the lists.


OWN_VIDEOS = "configs/Demo/OWN_VIDEOS.yaml"
CLASSES = "MODEL.NUM_CLASSES"


def test_the_number_of_classes_is_that_of_the_training_list_where_nothing_says_it(tmp_path):
    data = ["DATA.PATH_TO_DATA_DIR", str(tmp_path)]
    assert load_with_classes(OWN_VIDEOS, data).model.num_classes == 400  # no list
    (tmp_path / "train.csv").write_text("a.mp4 0\nb.mp4 11\nc.mp4 3\n")
    for path, pairs in ((OWN_VIDEOS, []), (None, []), (None, [CLASSES, "auto"])):
        assert load_with_classes(path, [*data, *pairs]).model.num_classes == 12
    (tmp_path / "classes.txt").write_text("\n".join("abcdefghijklm"))
    assert load_with_classes(OWN_VIDEOS, data).model.num_classes == 13


def test_a_number_of_classes_that_is_given_stays(tmp_path):
    (tmp_path / "train.csv").write_text("a.mp4 0\nb.mp4 11\n")
    data = ["DATA.PATH_TO_DATA_DIR", str(tmp_path)]
    assert load_with_classes("configs/Demo/SLOWFAST_DEMO.yaml", data).model.num_classes == 8
    assert load_with_classes(OWN_VIDEOS, [*data, CLASSES, 5]).model.num_classes == 5


def test_frame_lists_and_labels_of_others_give_their_classes(ssv2, tmp_path):
    """Sums of a list's labels, and names beside it, by what each data set has."""
    keys = ["DATA.PATH_TO_DATA_DIR", str(ssv2), "TRAIN.DATASET", "ssv2", *SSV2]
    assert load_with_classes(None, keys).model.num_classes == 3
    (tmp_path / "charades").mkdir()
    (tmp_path / "charades/train.csv").write_text(f'{HEADER}\n7 0 0 7/1.jpg "2,6"\n')
    keys = [
        "DATA.PATH_TO_DATA_DIR",
        str(tmp_path / "charades"),
        "TRAIN.DATASET",
        "charades",
        *CHARADES,
    ]
    assert load_with_classes(None, keys).model.num_classes == 7


@pytest.mark.parametrize(
    ("dataset", "overrides", "task"),
    [
        ("kinetics", (), ("single_label", "cross_entropy", "softmax", 10)),
        ("charades", (), ("multi_label", "bce_logit", "sigmoid", 10)),
        ("ava", (), ("detection", "bce", "sigmoid", 1)),
        # What the recipe says is checked later.
        ("charades", ("DATA.MULTI_LABEL", False), ("single_label", "cross_entropy", "softmax", 10)),
        ("ava", ("MODEL.LOSS_FUNC", "bce_logit"), ("detection", "bce_logit", "sigmoid", 1)),
    ],
)
def test_the_task_is_that_of_the_data_set_where_nothing_says_it(dataset, overrides, task):
    recipe = load_with_classes(None, ["TRAIN.DATASET", dataset, CLASSES, 3, *overrides])
    model = recipe.model
    views = recipe.test.num_ensemble_views
    assert (recipe.task, model.loss_func, model.head_act, views) == task


def test_a_test_on_the_validation_list_is_recognised(tmp_path, ssv2):
    recipe = config(tmp_path, "kinetics")
    (tmp_path / "val.csv").write_text("a.mp4 0\n")
    assert not is_tested_on_val(recipe)
    (tmp_path / "test.csv").write_text("b.mp4 0\n")
    assert not is_tested_on_val(recipe)
    (tmp_path / "test.csv").write_text("a.mp4 0\n")
    assert is_tested_on_val(recipe)
    assert is_tested_on_val(config(ssv2, "ssv2"))


# Machines with lists of their own.


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["b.mp4 1", "a.mp4 0"], "2 videos"),
        (["a.mp4 1", "b.mp4 1"], "2 videos"),
        (["a.mp4 0"], "1 videos"),
        (["a.mp4 0", "b.mp4 1"], ""),
    ],
)
def test_machines_with_other_lists_do_not_train(tmp_path, monkeypatch, lines, told):
    """The folders of the lists may differ."""
    ranks = list[tuple[Recipe, list[object]]]()
    for name, content in (("0", ["a.mp4 0", "b.mp4 1"]), ("1", lines)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.csv").write_text("\n".join(content))
        ranks.append((config(tmp_path / name, "kinetics"), []))

    def check(rank: int) -> None:
        recipe, given = ranks[rank]
        monkeypatch.setattr(
            run_module,
            "gather_objects",
            lambda own: [*(given or ranks[0][1]), given.append(own) or own],
        )
        run_module._check_same_lists(recipe, ["train"], World(rank, 2, torch.device("cpu")))

    check(0)
    if not told:
        check(1)
        return
    message = f"{tmp_path / '1' / 'train.csv'} of rank 1 ({told}) is not the list {tmp_path / '0'}"
    with pytest.raises(JoiningError, match=re.escape(message)):
        check(1)
