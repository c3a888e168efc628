"""Tests of the lists of each data set: files, numbers of videos, and class names."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from slowfast_patches.datasets.lists.csv_list import LabelledVideo
from slowfast_patches.datasets.lists.dataset_lists import (
    class_names,
    dataset_of,
    is_tested_on_val,
    label_counts,
    list_digest,
    list_path,
    load_with_classes,
    read_list,
)
from slowfast_patches.datasets.lists.frame_list import HEADER
from slowfast_patches.registry import DATASETS, DatasetSpec
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


def test_ssv2_csv_files_of_videos_are_read_like_those_of_kinetics(ssv2):
    (ssv2 / "train.csv").write_text("a.mp4 2\n")
    assert list(read_list(recipe(ssv2, "ssv2"), "train")) == [(f"{ssv2}/a.mp4", 2)]
    labels = ssv2 / "something-something-v2-labels.json"
    assert class_names(recipe(ssv2, "ssv2"))[1] == "Pushing something left"
    labels.unlink()
    assert class_names(recipe(ssv2, "ssv2")) is None
    (ssv2 / "classes.txt").write_text("a\nb\nc\n")
    assert class_names(recipe(ssv2, "ssv2")) == ("a", "b", "c")


def test_ssv2_without_lists_or_with_more_classes_is_refused(ssv2):
    with pytest.raises(ValueError, match=r"entry 'Doing nothing': the label is 2, .* from 0 to 1"):
        read_list(recipe(ssv2, "ssv2", CLASSES, 2), "train")
    (ssv2 / "something-something-v2-train.json").unlink()
    with pytest.raises(ValueError, match=r"contains neither train\.csv nor something-something"):
        read_list(recipe(ssv2, "ssv2"), "train")


# Data sets of a user.


@pytest.fixture
def register(monkeypatch):
    """Return `register(name, ...)`, which registers a data set."""

    def make(name: str, **spec: object) -> None:
        monkeypatch.setitem(DATASETS.entries, name, DatasetSpec(**spec))

    return make


class Built(SimpleNamespace):
    """A data set that a user has built."""


def test_videos_of_a_built_data_set_are_its_own_unless_it_reads_lists(register, tmp_path):
    def build(recipe, split):
        return Built(videos=[split, "b"])

    register("own", build=build)
    assert read_list(recipe(tmp_path, "own"), "val") == ["val", "b"]
    register("own", build=build, read=lambda recipe, path, split: [path.name])
    assert read_list(recipe(tmp_path, "own"), "val") == ["val.csv"]


@pytest.mark.parametrize(("split", "name"), [("train", "own"), ("val", "own"), ("test", "other")])
def test_an_empty_data_set_is_named(register, tmp_path, split, name):
    for each in ("own", "other"):
        register(each, read=lambda recipe, path, split: [])
    cfg = recipe(tmp_path, "own", "TEST.DATASET", "other")
    with pytest.raises(ValueError, match=f"the data set {name} has no videos for {split}"):
        read_list(cfg, split)


def test_a_data_set_of_an_unknown_task_is_refused(register, tmp_path):
    register("own", task="none")
    with pytest.raises(ValueError, match="the task of own"):
        dataset_of(recipe(tmp_path, "own"), "train")


def test_the_test_is_on_the_validation_list_if_both_are_equal_files(register, tmp_path):
    """The lists of Charades are the same file if there is no test.csv."""
    kinetics = recipe(tmp_path, "kinetics")
    assert not is_tested_on_val(kinetics)
    (tmp_path / "val.csv").write_text("a.mp4 0\n")
    assert not is_tested_on_val(kinetics)
    assert is_tested_on_val(recipe(tmp_path, "charades"))
    for text, is_same in (("a.mp4 0\n", True), ("b.mp4 0\n", False)):
        (tmp_path / "test.csv").write_text(text)
        assert is_tested_on_val(kinetics) == is_same
    (tmp_path / "test.csv").write_text("a.mp4 0\n")
    register("own", build=lambda recipe, split: Built(videos=[]))
    assert not is_tested_on_val(recipe(tmp_path, "own"))
    (tmp_path / "val.csv").unlink()
    assert not is_tested_on_val(kinetics)


def test_the_digest_depends_on_relative_paths_or_names_and_on_labels(tmp_path):
    def digest(*videos: object, **keys: object) -> str:
        pairs = [part for pair in keys.items() for part in pair]
        return list_digest(recipe(tmp_path, "kinetics", *pairs), videos)

    first = digest(LabelledVideo(f"{tmp_path}/a.mp4", 0))
    assert first == digest(LabelledVideo("/x/a.mp4", 0), **{"DATA.PATH_PREFIX": "/x"})
    named = digest(SimpleNamespace(name="n", path="a.mp4", annotation="0"))
    assert named == digest(SimpleNamespace(name="n", path="b.mp4", annotation="0"))
    others = [
        digest(LabelledVideo("/x/a.mp4", 0)),
        digest(LabelledVideo(f"{tmp_path}/a.mp4", 1)),
        digest(LabelledVideo(f"{tmp_path}/x/a.mp4", 0)),
        digest(7),
        digest(8),
        digest(7, 8),
        digest(),
    ]
    assert len({first, named, *others}) == 9


def test_the_digest_of_a_json_list_does_not_depend_on_the_folder_of_its_videos(ssv2):
    digests = []
    for prefix in ("/x", "/y/z"):
        cfg = recipe(ssv2, "ssv2", "DATA.PATH_PREFIX", prefix)
        digests.append(list_digest(cfg, read_list(cfg, "train")))
    assert digests[0] == digests[1]
    assert digests[0] != list_digest(cfg, read_list(cfg, "val"))


def test_videos_are_counted_by_class(tmp_path):
    cfg = recipe(tmp_path, "kinetics", CLASSES, 4)
    videos = [LabelledVideo("a.mp4", label) for label in (0, 3, 0)]
    assert label_counts(cfg, [*videos, 7]) == [2, 0, 0, 1]
    with pytest.raises(ValueError, match=r"SOLVER\.CLASS_WEIGHTS needs .* kinetics has no list"):
        label_counts(cfg, [7, 8])


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


def test_a_list_without_labels_or_a_data_set_without_lists_has_no_number_of_classes(
    register, tmp_path
):
    (tmp_path / "train.csv").write_text(f'{HEADER}\na 0 0 1.jpg ""\n')
    register("own", build=lambda recipe, split: Built(videos=[LabelledVideo("a", 9)]))
    for dataset in ("charades", "own"):
        data = ["DATA.PATH_TO_DATA_DIR", str(tmp_path), "TRAIN.DATASET", dataset]
        assert load_with_classes(OWN_VIDEOS, data).model.num_classes == 400


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"a": 0, "b": 2}', "distinct index from 0 to 1"),
        ('["a", " "]', "distinct index from 0 to 1"),
        ('["a", 3]', "distinct index from 0 to 1"),
        ("[]", "distinct index from 0 to 0"),
        ("{}", "distinct index from 0 to 0"),
        ("3", "the top-level value is a int"),
        ('{"a": 0, "b": 0, "a": 1, "c": 2}', "has the name 'a' twice"),
    ],
)
def test_class_names_and_indices_must_be_distinct_and_complete(tmp_path, content, said):
    (tmp_path / "classes.json").write_text(content)
    with pytest.raises(ValueError, match=f"classes.json.*{said}"):
        class_names(recipe(tmp_path, "kinetics"))


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
