"""Clips without a recipe: the same as a recipe's, byte for byte, and what is refused."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from multigrid import PAPER, ClipRequest, Shape, collate
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets import VideoClips
from slowfast_patches.datasets.clips import ClipDataset

BASE, COARSE = Shape(2, 8, 32), Shape(16, 2, 24)
REQUESTS = [
    ClipRequest(n, e, shape, 3) for n in range(3) for e in (0, 1) for shape in (BASE, COARSE)
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "multigrid"


def recipe(folder: Path, *overrides: object) -> Recipe:
    data = ["DATA.PATH_TO_DATA_DIR", str(folder), "DATA.NUM_FRAMES", 8, "DATA.SAMPLING_RATE", 2]
    data += ["DATA.TRAIN_CROP_SIZE", 32, "DATA.TRAIN_JITTER_SCALES", [37, 46], "NUM_GPUS", 0]
    return load_recipe(None, [*data, "MODEL.NUM_CLASSES", 8, "RNG_SEED", 7, *overrides])


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        (("MULTIGRID.KEEP_FIELD_OF_VIEW", True), {}),
        (("DATA.CLIP_SAMPLING", "segments", "DATA.RANDOM_FLIP", False),
         {"sampling": replace(PAPER.sampling, segments=True, flip=False)}),
        (("DATA.TARGET_FPS", 15, "DATA.EXACT_STRIDES", True, "DATA.INV_UNIFORM_SAMPLE", True),
         {"target_fps": 15,
          "sampling": replace(PAPER.sampling, exact_strides=True, inverse_scale=True)}),
    ],
)  # fmt: skip
def test_clips_are_those_of_a_recipe(demo_data, keys, options):
    """Its short sides are 256/224 and 320/224 of 32 pixels: 36.6 and 45.7."""
    ours = VideoClips(demo_data / "train.csv", BASE, stride=2, seed=7, **options)
    theirs = ClipDataset(recipe(demo_data, *keys), "train")
    assert len(ours) == len(theirs) == 24
    for request in REQUESTS:
        one, other = ours[request], theirs[request]
        assert np.array_equal(one.pop("clip"), other.pop("clip"))
        assert one == other
    coarse = [request for request in REQUESTS if request.shape == COARSE]
    batch = collate(ours.__getitems__(coarse))
    assert batch["coverage"].tolist() == pytest.approx(
        np.array([ours[request]["coverage"] for request in coarse], np.float32)
    )
    assert len(batch["coverage"].unique()) > 1


def test_a_number_is_the_centre_clip_of_that_video(demo_data):
    ours = VideoClips(demo_data / "val.csv", BASE, stride=2)
    theirs = ClipDataset(recipe(demo_data), "val")
    batches = list(DataLoader(ours, 3, collate_fn=collate))
    assert torch.cat([batch["videos"] for batch in batches]).tolist() == list(range(8))
    clips = torch.cat([batch["clips"] for batch in batches])
    assert torch.equal(clips, torch.stack([torch.tensor(theirs[n]["clip"]) for n in range(8)]))
    assert "coverage" not in batches[0]


def test_pairs_are_a_list_too_whose_index_is_kept(demo_data, cache, caplog):
    listed = VideoClips(demo_data / "train.csv", BASE)
    pairs = [(Path(video.path), np.int64(video.label)) for video in listed.videos]
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            clips = VideoClips(pairs, BASE)
    assert clips.videos == list(listed.videos)
    assert np.array_equal(clips[REQUESTS[0]]["clip"], listed[REQUESTS[0]]["clip"])
    scanned = [line for line in caplog.messages if line.endswith("videos to scan")]
    assert [line.split()[-4] for line in scanned] == ["24", "0"]
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize(("labels", "classes"), [((4, 0), 5), (np.eye(8, dtype=np.float32), 8)])
def test_labels_are_classes_or_multi_hot(demo_data, labels, classes):
    paths = [video.path for video in VideoClips(demo_data / "val.csv", BASE).videos]
    clips = VideoClips(list(zip(paths, labels, strict=False)), BASE)
    assert clips.num_classes == classes
    assert np.array_equal(clips.__getitems__([0, 1])["labels"], np.asarray(labels)[:2])


def test_a_video_that_cannot_be_read_is_replaced_with_a_warning(demo_data, tmp_path):
    good = [(video.path, 1) for video in VideoClips(demo_data / "val.csv", BASE).videos[:3]]
    clips = VideoClips([(tmp_path / "gone.mp4", 0), *good], BASE)
    with pytest.warns(UserWarning, match=r"takes the place of .*gone.mp4: cannot be opened"):
        batch = clips.__getitems__([ClipRequest(0, 0, BASE, 0), ClipRequest(1, 0, BASE, 0)])
    assert batch["labels"].tolist() == [1, 1]
    assert {path for path, _ in batch["failures"]} == {str(tmp_path / "gone.mp4")}
    with pytest.warns(UserWarning, match="gone.mp4"):
        batch = clips.__getitems__([0, 1, 2])
    assert batch["videos"].tolist() == [1, 1, 2]
    assert np.array_equal(batch["clips"][0], clips[1]["clip"])
    with pytest.raises(ValueError, match=r"none of 1 videos can be read.*gone.mp4"):
        VideoClips([(tmp_path / "gone.mp4", 0)], BASE)


def test_torchs_own_collate_function_is_refused(demo_data):
    with pytest.raises(ValueError, match="this is a whole mini-batch: give collate_fn"):
        next(iter(DataLoader(VideoClips(demo_data / "val.csv", BASE), 2)))


@pytest.mark.parametrize(
    ("videos", "options", "message"),
    [
        ("gone.csv", {}, "gone.csv: no such file; give a csv file, or"),
        ([], {}, "give (path, label) pairs"),
        (["ab"], {}, "give (path, label) pairs"),
        ([("a.mp4", 0), ("b.mp4", "left")], {}, "give (path, label) pairs"),
        ([("a.mp4", -1)], {}, "give (path, label) pairs"),
        ([("a.mp4", 0), ("b.mp4", np.ones(3, np.float32))], {}, "give (path, label) pairs"),
        ([("a.mp4", 0)], {"stride": 0}, "stride 0, target_fps 30.0 and short_sides 37 to 46 make"),
        ([("a.mp4", 0)], {"short_sides": (20, 30)}, "short_sides 20 to 30 make no clip"),
        ([("a.mp4", 0)], {"short_sides": (50, 40)}, "short_sides 50 to 40 make no clip"),
    ],
)
def test_what_makes_no_clips_is_refused_in_a_line(videos, options, message):
    with pytest.raises(ValueError) as caught:
        VideoClips(videos, BASE, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
