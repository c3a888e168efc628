"""Messages about wrong lists, labels and class names: they give the file, line and mistake."""

import json

import pytest

from slowfast_patches.datasets.lists.dataset_lists import class_names, read_list
from slowfast_patches.datasets.lists.frame_list import HEADER
from tests.slowfast_patches.datasets.made_videos import write_ssv2_json
from tests.slowfast_patches.datasets.recipes import recipe_of

FRAMES = f'{HEADER}\na 0 0 1.jpg ""\na 0 1 2.jpg "1,4"\nb 1 0 3.jpg "5"\n'
LISTS = {"kinetics": "a.mp4 0\n\nb.mp4 1\n", "charades": FRAMES}
TRAIN = "something-something-v2-train.json"
LABELS = "something-something-v2-labels.json"


def recipe(folder, dataset):
    """Return the recipe for right lists of a data set in a folder."""
    if dataset == "ssv2":
        labels = {"Doing nothing": "0", **{str(n): n for n in range(1, 6)}}
        write_ssv2_json(folder, labels=labels, train=[{"id": 1, "template": "Doing nothing"}])
    else:
        (folder / "train.csv").write_text(LISTS[dataset])
    return recipe_of(folder, dataset=dataset)


def read(recipe):
    read_list(recipe, "train")
    class_names(recipe)


@pytest.mark.parametrize(
    ("dataset", "file", "added", "said"),
    [
        ("kinetics", "train.csv", "c.mp4\t1", r"line 4: .* is '\\t'.*PATH_LABEL_SEPARATOR"),
        ("kinetics", "train.csv", "c.mp4 6", "line 4: the label is 6, .* from 0 to 5.*CLASSES 7"),
        ("kinetics", "train.csv", "c.mp4 train 1", "line 4: .* more than two columns"),
        ("kinetics", "train.csv", r"x\c.mp4 1", r"line 4: .*not a path on this .* / instead of \\"),
        ("kinetics", "train.csv", "S3://x/c.mp4 1", "line 4: .*is an address"),
        ("kinetics", "train.csv", "ö.mp4 1".encode("latin1"), "line 4: the text is not UTF-8"),
        ("charades", "train.csv", "b 1 1 3.jpg", "video b: .* the fields 'original_vido_id"),
        (
            "charades",
            "train.csv",
            'a 0 5 3.jpg ""',
            "video a: the lines of the video are not consecutive",
        ),
        ("charades", "train.csv", 'b 1 0 3.jpg ""', "video b: the frame ids are not in ascending"),
        ("charades", "train.csv", 'b 1 1 3.jpg "4,6"', "video b: the label is 6, but must be"),
        (
            "kinetics",
            "classes.json",
            '{"a": 0}',
            "has the names of 1 classes. Set MODEL.NUM_CLASSES 1",
        ),
    ],
)
def test_a_wrong_line_is_named(tmp_path, dataset, file, added, said):
    cfg = recipe(tmp_path, dataset)
    with (tmp_path / file).open("ab") as stream:
        stream.write(added if isinstance(added, bytes) else added.encode())
    with pytest.raises(ValueError, match=f"({tmp_path}/{file}|^MODEL).*{said}"):
        read(cfg)


@pytest.mark.parametrize(
    ("dataset", "file", "content", "said"),
    [
        ("kinetics", "train.csv", "\n  \n", "contains no videos"),
        ("kinetics", "train.csv", None, "does not exist. Set DATA.PATH"),
        ("charades", "train.csv", 'a 0 0 a/1.jpg ""', f"the first line .*'{HEADER}'"),
        ("ssv2", TRAIN, "[", "cannot be read as JSON: Expecting"),
        ("ssv2", TRAIN, [{"id": 1, "template": "Doing [it]"}], "must list objects .*Doing it"),
        ("ssv2", TRAIN, [], "contains no videos"),
        (
            "ssv2",
            TRAIN,
            [
                {"id": 7, "template": "1"},
                {"id": "8", "template": "1"},
                {"id": "7", "template": "2"},
            ],
            r"lists 1 id\(s\) more than once: 7",
        ),
        ("ssv2", LABELS, {"Pull [it]": 0, "Pull it": 1}, "differ only in their square brackets"),
        ("ssv2", LABELS, '{"Pull it": 0, "Pull it": 1}', "has the name 'Pull it' twice"),
        ("kinetics", "classes.json", '{"a": 0, "a": 1, "b": 0}', "has the name 'a' twice"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, dataset, file, content, said):
    cfg = recipe(tmp_path, dataset)
    (tmp_path / file).unlink(missing_ok=True)
    if content is not None:
        text = json.dumps(content) if isinstance(content, list | dict) else content
        (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=f"({tmp_path}/{file}|^MODEL).*{said}"):
        read(cfg)


@pytest.mark.parametrize(
    ("dataset", "overrides", "message"),
    [
        ("ucf", (), r"TRAIN.DATASET is 'ucf'.* kinetics, ssv2, charades"),
        ("charades", ("DATA.MULTI_LABEL", False), "several labels .*MULTI_LABEL True"),
        ("ssv2", ("DATA.RANDOM_FLIP", True), "RANDOM_FLIP False .*horizontal flip"),
        ("kinetics", ("DATA.PATH_TO_DATA_DIR", ""), "Set DATA.PATH_TO_DATA_DIR"),
    ],
)
def test_what_a_data_set_cannot_give_is_refused(tmp_path, dataset, overrides, message):
    with pytest.raises(ValueError, match=message):
        read_list(recipe_of(tmp_path, *overrides, dataset=dataset), "train")
