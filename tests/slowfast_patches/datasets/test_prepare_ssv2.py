"""Preparing Something-Something from its WebM files and json files, and training on the result."""

import shutil
from pathlib import Path

import pytest

from multigrid import ClipRequest, Shape
from slowfast_patches.config import load_recipe
from slowfast_patches.datasets.lists.dataset_lists import class_names
from slowfast_patches.datasets.loader import loading_advice
from slowfast_patches.datasets.ssv2 import Ssv2
from tests.slowfast_patches.datasets.made_videos import SAMPLES, needs_samples, write_ssv2_json
from tests.slowfast_patches.datasets.test_prepare import rows, run

pytestmark = pytest.mark.slow
__all__ = ["run"]  # the fixture

NAMED = "something-something-v2-{}.json"


@pytest.fixture
def ssv2(tmp_path: Path) -> Path:
    """The json files, with a WebM file for training and one for validation."""
    folder = tmp_path / "ssv2"
    folder.mkdir()
    for name in (41, 5):
        shutil.copy(SAMPLES / "testsrc_vp9.webm", folder / f"{name}.webm")
    write_ssv2_json(
        folder,
        labels={"Holding something": "1", "Doing nothing": "0"},
        train=[{"id": "41", "template": "Holding [something]"}],
        validation=[{"id": 5, "template": "Doing nothing"}],
    )
    return folder


def keys(folder: Path) -> list[object]:
    names = ["TRAIN.DATASET", "ssv2", "TEST.DATASET", "ssv2", "DATA.RANDOM_FLIP", False]
    crops = ["DATA.TRAIN_CROP_SIZE", 32, "DATA.TEST_CROP_SIZE", 32, "NUM_GPUS", 0]
    sizes = ["DATA.TRAIN_JITTER_SCALES", [32, 40], "MODEL.NUM_CLASSES", 2]
    return [*names, *crops, *sizes, "DATA.PATH_TO_DATA_DIR", str(folder)]


@needs_samples
def test_it_is_prepared_as_the_advice_says_and_trains(run, ssv2, tmp_path):
    cfg, out = load_recipe(None, keys(ssv2)), tmp_path / "out"
    assert f"prepare_data.py --ssv2 {ssv2} --output DIR" in loading_advice(cfg, Ssv2(cfg, "train"))
    status, said = run("--ssv2", ssv2, "--out", out)
    assert (status, f"DATA.PATH_TO_DATA_DIR {out}" in said) == (0, True)
    assert rows(out / "train.csv") == [("videos/41.webm.mp4", 1)]
    assert rows(out / "val.csv") == [("videos/5.webm.mp4", 0)]
    cfg = load_recipe(None, keys(out))
    assert class_names(cfg) == ("Doing nothing", "Holding something")
    videos = Ssv2(cfg, "train")
    assert videos.index is not None
    assert videos.index.is_prepared
    assert "prepare" not in loading_advice(cfg, videos)
    item = videos[ClipRequest(0, 0, Shape(16, 4, 32), 0)]
    assert (item["clip"].shape, item["label"], item["failures"]) == ((4, 32, 32, 3), 1, [])
    assert Ssv2(cfg, "test")[0]["label"] == 0


@needs_samples
def test_mistakes_are_named(run, ssv2, tmp_path):
    out = ("--out", tmp_path / "out")
    assert run("--ssv2", ssv2)[0] == 2
    assert run("--ssv2", ssv2, *out, "--val-fraction", 0.5)[0] == 2
    (ssv2 / NAMED.format("labels")).write_text('{"Holding something": 1, "Doing nothing": 3}')
    status, said = run("--ssv2", ssv2, *out)
    wrong = "'Doing nothing' has number 3; 2 classes are numbered from 0 to 1"
    assert (status, wrong in said) == (2, True)
    (ssv2 / NAMED.format("validation")).unlink()
    status, said = run("--ssv2", ssv2, *out)
    assert (status, "validation.json: no such file" in said) == (2, True)
    assert not (tmp_path / "out").exists()
