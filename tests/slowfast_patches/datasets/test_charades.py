"""Charades: several labels a clip, those of its span in training and of the video in testing."""

import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from multigrid import ClipRequest, Shape
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.clips import ClipDataset
from slowfast_patches.datasets.demo.charades_form import write_charades_form
from slowfast_patches.datasets.lists.frame_list import HEADER
from slowfast_patches.train.predict import Predictor

FRAMES, CLASSES, STEP = 48, 6, 5
LABELS = [{0}] * 10 + [set()] * 10 + [{1, 2}] * 10 + [{2}] * 3
LABELS += [set()] * 7 + [{4}] + [set()] * 6 + [{3}]
"""Of the frames of the first video; the second has none, the third 5 on every frame."""
BASE, COARSE = Shape(2, 8, 32), Shape(16, 2, 32)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three videos whose frames say their number by their level; dark on the left."""
    folder, lines = tmp_path_factory.mktemp("charades"), list[str]()
    for name, labels in (("AAAAA", LABELS), ("BBBBB", [set()] * 48), ("CCCCC", [{5}] * 48)):
        (folder / name).mkdir()
        for number, own in enumerate(labels):
            image = np.full((40, 60, 3), STEP * number, np.uint8)
            image[:, :, 2] = np.linspace(0, 255, 60)
            path = f"{name}/{name}-{number + 1:06d}.jpg"
            cv2.imwrite(str(folder / path), image, [cv2.IMWRITE_JPEG_QUALITY, 100])
            lines.append(f'{name} 0 {number} {path} "{",".join(map(str, sorted(own)))}"\n')
    for split in ("train", "val"):
        (folder / f"{split}.csv").write_text(f"{HEADER}\n{''.join(lines)}")
    return folder


def config(folder: Path, *overrides: object) -> Recipe:
    data = ["TRAIN.DATASET", "charades", "TEST.DATASET", "charades", "DATA.MULTI_LABEL", True]
    data += ["DATA.PATH_TO_DATA_DIR", str(folder), "DATA.NUM_FRAMES", 8, "NUM_GPUS", 0]
    data += ["DATA.TRAIN_CROP_SIZE", 32, "DATA.TEST_CROP_SIZE", 32, "DATA.SAMPLING_RATE", 2]
    data += ["DATA.TRAIN_JITTER_SCALES", [32, 40], "MODEL.NUM_CLASSES", CLASSES]
    return load_recipe(None, [*data, *overrides])


def numbers(clip: np.ndarray) -> list[int]:
    """The numbers of a clip's frames."""
    return [round(level / STEP) for level in clip[..., 1].mean((1, 2))]


def classes(label: np.ndarray) -> set[int]:
    """The classes in a multi-hot label."""
    assert (label.dtype, label.shape) == (np.float32, (CLASSES,))
    assert set(label.tolist()) <= {0.0, 1.0}
    return set(np.flatnonzero(label).tolist())


# Training.


@pytest.mark.parametrize("shape", [BASE, COARSE])
def test_a_training_clip_has_the_labels_from_its_first_to_its_last_frame(made, shape):
    data, spans, more = ClipDataset(config(made), "train"), set(), 0
    for epoch in range(40):
        item = data[ClipRequest(0, epoch, shape, 0)]
        taken = numbers(item["clip"])
        assert len(taken) == shape.frames
        found = classes(item["label"])
        assert found == set().union(*LABELS[taken[0] : taken[-1] + 1])
        more += found > set().union(*(LABELS[number] for number in taken))
        spans.add(taken[-1] - taken[0] + 1)
    if shape == BASE:
        assert spans == {16}  # 8 frames at stride 2
    else:
        assert spans == {2 * stride for stride in range(2, 9)}  # 2 frames at strides 2 to 8
        assert more > 5  # clips with a label of a frame between those that are read


# Evaluation.


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_clip_of_evaluation_has_the_labels_of_the_whole_video(made, split):
    views = ("TEST.NUM_ENSEMBLE_VIEWS", 5, "TEST.NUM_SPATIAL_CROPS", 3)
    data = ClipDataset(config(made, *views), split)
    count = {"val": 1, "test": 15}[split]
    assert (len(data), data.num_clips) == (3 * count, count)
    for number in range(len(data)):
        wanted = [{0, 1, 2, 3, 4}, set(), {5}][number // count]
        assert classes(data[number]["label"]) == wanted


def test_the_views_of_a_test_reach_the_end_of_the_video(made):
    """48 frames, a span of 16: 32 frames of room, in two steps of 16."""
    views = ("TEST.NUM_ENSEMBLE_VIEWS", 3, "TEST.NUM_SPATIAL_CROPS", 1)
    data = ClipDataset(config(made, *views), "test")
    taken = [numbers(data[number]["clip"]) for number in range(3)]
    assert [(view[0], view[-1]) for view in taken] == [(0, 15), (16, 31), (32, 47)]
    predictor = Predictor.__new__(Predictor)  # without a model
    predictor._recipe = config(made, *views)
    assert [numbers(clip.numpy()) for clip in predictor.clips(str(made / "AAAAA"))] == taken


def test_a_video_that_cannot_be_read_keeps_its_labels_in_testing_only(made, tmp_path):
    folder = shutil.copytree(made, tmp_path / "charades")
    (folder / "AAAAA" / "AAAAA-000001.jpg").write_text("no picture")
    black = ClipDataset(config(folder), "val")[0]
    assert (black["clip"].any(), classes(black["label"])) == (False, {0, 1, 2, 3, 4})
    item = ClipDataset(config(folder), "train")[ClipRequest(0, 0, BASE, 0)]
    assert item["video"] in (1, 2)
    assert classes(item["label"]) == [set(), {5}][item["video"] - 1]
    assert item["failures"][0][0] == f"{folder}/AAAAA"


# The data set.


def test_a_training_from_beginning_to_end(
    demo_data: Path, train: Callable[..., Path], tmp_path: Path, opened: type
):
    write_charades_form(demo_data, tmp_path / "charades")
    output = train(
        tmp_path / "run",
        *("TRAIN.DATASET", "charades", "TEST.DATASET", "charades", "DATA.MULTI_LABEL", True),
        *("MODEL.LOSS_FUNC", "bce_logit", "MODEL.HEAD_ACT", "sigmoid"),
        *("DATA.ENSEMBLE_METHOD", "max", "TEST.NUM_SPATIAL_CROPS", 3, "TEST.NUM_ENSEMBLE_VIEWS", 1),
        *("DATA.PATH_TO_DATA_DIR", tmp_path / "charades", "BN.USE_PRECISE_STATS", False),
        *(
            "MULTIGRID.LONG_CYCLE",
            False,
            "MULTIGRID.SHORT_CYCLE",
            False,
            "TRAIN.EVAL_PERIOD",
            9,
            "SOLVER.MAX_EPOCH",
            1,
        ),
        *("SOLVER.STEPS", [0], "SOLVER.LRS", [1], "MULTIGRID.EPOCH_FACTOR", 1.0),
    )
    result, log = opened(output).result, opened(output).log
    assert result["metric"] == "map"
    assert 0 < result["map"] <= 100
    assert "top1" not in result
    assert "test on 1 views × 3 crops: mAP" in log
    assert all("top1" not in line for line in opened(output).metrics())
    # A new network's chance is one half for each of the 8 classes, with a loss of ln 2 each.
    assert opened(output).metrics()[0]["loss"] == pytest.approx(0.69, abs=0.15)
