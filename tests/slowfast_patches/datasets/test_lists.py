"""Tests of the lists of each data set: files, numbers of videos, and class names."""

from contextlib import nullcontext

import pytest
import torch

from slowfast_patches.datasets.lists.dataset_lists import (
    class_names,
    list_digest,
    list_path,
    load_with_classes,
    read_list,
)
from slowfast_patches.datasets.lists.frame_list import HEADER
from slowfast_patches.train import run as run_module
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.errors import RunError
from tests.slowfast_patches.datasets.made_videos import write_ssv2_json
from tests.slowfast_patches.datasets.recipes import recipe_of

CLASSES = "MODEL.NUM_CLASSES"
FRAMES = f'{HEADER}\n7 0 0 7/1.jpg ""\n7 0 1 7/2.jpg ""\n12 1 0 12/1.jpg ""\n'


def recipe(folder, dataset, *overrides):
    return recipe_of(folder, CLASSES, 3, *overrides, dataset=dataset)


@pytest.fixture
def ssv2(tmp_path):
    """Make a folder with only the json files."""
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


def test_the_digest_is_that_of_the_paths_and_labels_of_frames_wherever_the_data_lie(tmp_path):
    digests = []
    for number, text in enumerate((FRAMES, FRAMES, FRAMES.replace('2.jpg ""', '2.jpg "1"'))):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "train.csv").write_text(text)
        cfg = recipe(tmp_path / str(number), "charades")
        digests.append(list_digest(cfg, read_list(cfg, "train")))
    assert digests[0] == digests[1] != digests[2]


# Something-Something.


def test_ssv2_without_a_csv_is_the_webm_files_of_the_json(ssv2):
    """The videos are in the folder of the json files, in that of the archives, or in the prefix."""
    cfg = recipe(ssv2, "ssv2")
    assert list(read_list(cfg, "train")) == [(f"{ssv2}/12.webm", 0), (f"{ssv2}/7.webm", 1)]
    assert list(read_list(cfg, "val")) == list(read_list(cfg, "test")) == [(f"{ssv2}/3.webm", 2)]
    unpacked = ssv2 / "20bn-something-something-v2"
    unpacked.mkdir()
    assert read_list(cfg, "train")[0].path == f"{unpacked}/12.webm"
    cfg = recipe(ssv2, "ssv2", "DATA.PATH_PREFIX", "/videos")
    assert read_list(cfg, "train")[0].path == "/videos/12.webm"


def test_ssv2_frame_lists_take_their_labels_from_the_json(ssv2):
    (ssv2 / "train.csv").write_text(FRAMES.replace('""', '"2"'))
    videos = read_list(recipe(ssv2, "ssv2"), "train")
    assert [(video.name, video.label, video.fps) for video in videos] == [
        ("7", 1, 30.0),
        ("12", 0, 30.0),
    ]
    (ssv2 / "train.csv").write_text(FRAMES.replace("12", "100"))
    with pytest.raises(ValueError, match=r"train\.csv .*: 100 and 12"):
        read_list(recipe(ssv2, "ssv2"), "train")


def test_the_test_split_is_test_csv_or_else_val_csv(tmp_path):
    cfg = recipe(tmp_path, "charades")
    for name in ("val.csv", "test.csv"):
        (tmp_path / name).touch()
        assert list_path(cfg, "test") == tmp_path / name


# Names of classes.


def test_names_lie_in_a_json_file_or_a_text_beside_the_lists(tmp_path):
    cfg = recipe(tmp_path, "kinetics")
    assert class_names(cfg) is None
    (tmp_path / "classes.txt").write_text("left\nright \nup and down\n\n \n")
    assert class_names(cfg) == ("left", "right", "up and down")
    path = tmp_path / "classes.json"
    for text in ('{"b": 1, "ä": 0, "c": 2}', '["ä", "b", "c"]', '{"b": "1", "ä": "0", "c": "2"}'):
        path.write_text(text)
        assert class_names(cfg) == ("ä", "b", "c")


def test_charades_names_its_classes_a_line_each(tmp_path):
    path = tmp_path / "Charades_v1_classes.txt"
    path.write_text("c000 Holding some clothes\nc001 Putting clothes somewhere\n\nc002 Taking\r\n")
    names = ("Holding some clothes", "Putting clothes somewhere", "Taking")
    assert class_names(recipe(tmp_path, "charades")) == names


# What follows from the lists.


OWN_VIDEOS = "configs/Demo/OWN_VIDEOS.yaml"


def test_the_number_of_classes_is_that_of_the_training_list_where_nothing_says_it(tmp_path):
    def count(path, *pairs):
        data = ["DATA.PATH_TO_DATA_DIR", str(tmp_path)]
        return load_with_classes(path, [*data, *pairs]).model.num_classes

    assert count(OWN_VIDEOS) == 400  # no list
    (tmp_path / "train.csv").write_text("a.mp4 0\nb.mp4 11\nc.mp4 3\n")
    assert count(OWN_VIDEOS) == count(None) == count(None, CLASSES, "auto") == 12
    assert (count("configs/Demo/SLOWFAST_DEMO.yaml"), count(OWN_VIDEOS, CLASSES, 5)) == (8, 5)
    (tmp_path / "classes.txt").write_text("\n".join("abcdefghijklm"))
    assert count(OWN_VIDEOS) == 13


@pytest.mark.parametrize(
    ("dataset", "task"),
    [
        ("kinetics", ("single_label", "cross_entropy", "softmax", 10)),
        ("charades", ("multi_label", "bce_logit", "sigmoid", 10)),
    ],
)
def test_the_task_is_that_of_the_data_set_where_nothing_says_it(dataset, task):
    recipe = load_with_classes(None, ["TRAIN.DATASET", dataset, CLASSES, 3])
    model, views = recipe.model, recipe.test.num_ensemble_views
    assert (recipe.task, model.loss_func, model.head_act, views) == task


# Machines with lists of their own.


def test_machines_with_other_lists_do_not_train(tmp_path, monkeypatch):
    """Equal lists may be in different folders."""
    gathered = []
    monkeypatch.setattr(run_module, "gather_objects", lambda own: gathered.append(own) or gathered)
    same = "a.mp4 0\nb.mp4 1"
    for rank, text in enumerate((same, same, "b.mp4 1\na.mp4 0")):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "train.csv").write_text(text)
        world = World(rank, 3, torch.device("cpu"))
        differs = pytest.raises(RunError, match="of rank 2 differs from the list")
        with differs if rank == 2 else nullcontext():
            run_module._check_lists(recipe(tmp_path / str(rank), "kinetics"), ["train"], world)
