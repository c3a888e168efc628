"""Tests that clips without a recipe equal those with a recipe, and of wrong arguments."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from multigrid import PAPER, ClipRequest, Shape, collate
from slowfast_patches.datasets import VideoClips
from slowfast_patches.datasets.clip_dataset import ClipDataset
from slowfast_patches.utils.errors import RunError
from tests.slowfast_patches.datasets.recipes import recipe_of

pytestmark = pytest.mark.usefixtures("cache")

BASE, COARSE = Shape(2, 8, 32), Shape(16, 2, 24)
REQUESTS = [
    ClipRequest(n, e, shape, 3) for n in range(3) for e in (0, 1) for shape in (BASE, COARSE)
]


def recipe(folder, *overrides):
    keys = ("DATA.TRAIN_CROP_SIZE", 32, "DATA.TRAIN_JITTER_SCALES", [37, 46], "RNG_SEED", 7)
    return recipe_of(folder, "MODEL.NUM_CLASSES", 8, "DATA.TEST_CROP_SIZE", 32, *keys, *overrides)


@pytest.mark.parametrize(
    ("keys", "options", "sampling"),
    [
        (("MULTIGRID.KEEP_FIELD_OF_VIEW", True), {}, {}),
        (
            ("DATA.CLIP_SAMPLING", "segments", "DATA.RANDOM_FLIP", False),
            {},
            {"segments": True, "flip": False},
        ),
        (
            ("DATA.TARGET_FPS", 15, "DATA.EXACT_STRIDES", True, "DATA.INV_UNIFORM_SAMPLE", True),
            {"target_fps": 15},
            {"exact_strides": True, "inverse_scale": True},
        ),
    ],
)
def test_clips_are_those_of_a_recipe(tiny_data, keys, options, sampling):
    """The short sides of the recipe are 256/224 and 320/224 of 32 pixels: 36.6 and 45.7."""
    how = {"sampling": replace(PAPER.sampling, **sampling)} if sampling else {}
    ours = VideoClips(tiny_data / "train.csv", BASE, stride=2, seed=7, **options, **how)
    theirs = ClipDataset.of_recipe(recipe(tiny_data, *keys), "train")
    assert len(ours) == len(theirs) == 24
    for request in REQUESTS:
        np.testing.assert_equal(ours[request], theirs[request])
    coarse = [request for request in REQUESTS if request.shape == COARSE]
    coverage = collate(ours.__getitems__(coarse))["coverage"].tolist()
    assert coverage == [pytest.approx(ours[request]["coverage"], rel=1e-6) for request in coarse]


class Listed(Dataset):
    """Data set of (path, label), which does not say where it ends."""

    def __init__(self, folder: Path) -> None:
        lines = (folder / "train.csv").read_text().splitlines()
        self.pairs = [(folder / line.split()[0], int(line.split()[1])) for line in lines]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, number):
        return self.pairs[number % len(self.pairs)]


def test_a_data_set_of_paths_is_wrapped_in_a_line(tiny_data):
    listed = Listed(tiny_data)
    parts = ConcatDataset([Subset(listed, range(12, 24)), Subset(listed, range(12))])
    ours = VideoClips(parts, BASE, stride=2, seed=7)
    theirs = VideoClips([*listed.pairs[12:], *listed.pairs[:12]], BASE, stride=2, seed=7)
    np.testing.assert_equal(ours[REQUESTS[0]], theirs[REQUESTS[0]])
    assert len(VideoClips(listed, BASE, stride=2)) == 24


def test_a_number_is_the_centre_clip_of_that_video(tiny_data):
    ours = VideoClips(tiny_data / "val.csv", BASE, stride=2)
    theirs = ClipDataset.of_recipe(recipe(tiny_data), "val")
    expected = [theirs[n]["clip"] for n in range(8)]
    assert np.array_equal([item["clip"] for item in ours], expected)  # the loop ends
    batches = list(DataLoader(ours, 3, collate_fn=collate))
    assert [n for batch in batches for n in batch["videos"]] == list(range(8))
    assert np.array_equal([clip for batch in batches for clip in batch["clips"]], expected)


def test_pairs_are_a_list_too_whose_index_is_kept(tiny_data, caplog):
    listed = VideoClips(tiny_data / "val.csv", BASE)
    pairs = [(Path(video.path), np.int64(video.label)) for video in listed.videos]
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert VideoClips(pairs, BASE).videos == list(listed.videos)
    scanned = [line for line in caplog.messages if line.endswith("must be scanned")]
    assert [line.split()[0] for line in scanned] == ["8"]


@pytest.mark.parametrize(("labels", "classes"), [((4, 0), 5), (np.eye(8, dtype=np.float32), 8)])
def test_labels_are_classes_or_multi_hot(tiny_data, labels, classes):
    paths = [video.path for video in VideoClips(tiny_data / "val.csv", BASE).videos]
    clips = VideoClips(zip(paths, labels, strict=False), BASE)
    assert clips.num_classes == classes
    assert np.array_equal(clips.__getitems__([0, 1])["labels"], np.asarray(labels)[:2])


def test_a_video_that_cannot_be_read_is_replaced_with_a_warning(tiny_data, tmp_path):
    gone = (tmp_path / "gone.mp4", 0)
    good = [(video.path, 1) for video in VideoClips(tiny_data / "val.csv", BASE).videos[:2]]
    clips = VideoClips([gone, *good], BASE)
    for first, second in ((ClipRequest(0, 0, BASE, 0), ClipRequest(1, 0, BASE, 0)), (0, 1)):
        with pytest.warns(UserWarning, match="gone.mp4 is replaced by another video: cannot be op"):
            batch = clips.__getitems__([first, second])
        assert batch["labels"].tolist() == [1, 1]
    assert batch["videos"].tolist() == [1, 1]  # in validation, the next one
    with pytest.raises(ValueError, match=r"none of the 1 videos can be read.*gone.mp4"):
        VideoClips([gone], BASE)


def test_torchs_own_collate_function_is_refused(tiny_data):
    with pytest.raises(ValueError, match=r"Pass collate_fn=multigrid\.collate"):
        next(iter(DataLoader(VideoClips(tiny_data / "val.csv", BASE), 2)))


PAIRS = r"videos must be \(path, label\) pairs"


@pytest.mark.parametrize(
    ("videos", "options", "message"),
    [
        ("gone.csv", {}, "gone.csv does not exist"),
        ([("a.mp4", 0), ("b.mp4", "left")], {}, PAIRS),
        ([("a.mp4", 0), ("b.mp4", np.ones(3, np.float32))], {}, PAIRS),
        ([], {}, "videos is empty"),
        (iter([]), {}, "videos is empty"),
        ([("a.mp4", 0)], {"short_sides": (50, 40)}, r"short_sides \(50, 40\)"),
        ([("a.mp4", 0)], {"target_fps": float("nan")}, "target_fps nan"),
        ([("a.mp4", 0)], {"target_fps": float("inf")}, "target_fps inf"),
        ([("a.mp4", 0)], {"stride": 1.5}, "stride is 1.5"),
    ],
)
def test_what_makes_no_clips_is_refused(videos, options, message):
    with pytest.raises(ValueError, match=message):
        VideoClips(videos, BASE, **options)


@pytest.mark.parametrize(
    ("options", "accepted"),
    [
        ({"stride": 1, "target_fps": 0, "short_sides": (32, 32)}, True),
        ({"stride": np.int64(3)}, True),
        ({"stride": 0}, False),
        ({"stride": True}, True),
        ({"target_fps": -1}, False),
        ({"short_sides": (31, 40)}, False),
        ({"short_sides": (40, 40)}, True),
    ],
)
def test_the_limits_of_the_options(tiny_data, options, accepted):
    if accepted:
        assert len(VideoClips(tiny_data / "val.csv", BASE, **options)) == 8
        return
    with pytest.raises(ValueError, match="stride must be a whole number of 1 or more"):
        VideoClips(tiny_data / "val.csv", BASE, **options)


@pytest.mark.parametrize(
    "pairs",
    [
        [("a.mp4", -1)],
        [("a.mp4", 0.5)],
        [("a.mp4", np.ones(3, np.float64))],
        [("a.mp4", np.ones((3, 3), np.float32))],
        [("a.mp4", 0, 1)],
        [("a.mp4",)],
        [3],
        [("a.mp4", 0), ("b.mp4", 0, 1)],
        {"a.mp4": 0},
        7,
    ],
)
def test_what_is_no_list_of_pairs_says_so(pairs):
    with pytest.raises(ValueError, match=PAIRS):
        VideoClips(pairs, BASE)


def test_videos_of_validation_are_replaced_by_the_next_up_to_ten_times(tiny_data, monkeypatch):
    clips = VideoClips(tiny_data / "train.csv", BASE)
    tried = []

    def read_evaluation(self, index, parts):
        tried.append(index)
        if index in bad:
            return [{"unread": True, "failures": [(str(index), "is damaged")]}]
        return [{"label": 0, "flip": False, "video": index, "iteration": -1, "failures": []}]

    monkeypatch.setattr(ClipDataset, "_read_evaluation", read_evaluation)
    bad = {22, 23, 0}
    with pytest.warns(UserWarning, match="is replaced by another video: is damaged") as caught:
        item = clips[22]
    assert tried == [22, 23, 0, 1]
    assert (item["video"], len(caught)) == (1, 3)
    assert "unread" not in item
    bad = set(range(24))
    with pytest.raises(RunError, match=r"^10 videos in a row .* The first is 5"):
        clips[5]
    assert tried[4:] == [*range(5, 15)]


class Darker:
    """Module that divides a clip by a random number of its own generator."""

    def __call__(self, clip, rng):
        return clip // rng.integers(2, 6, dtype=np.uint8)


def test_transforms_change_training_clips_in_their_order_as_request_and_seed_say(tiny_data):
    plain = VideoClips(tiny_data / "train.csv", BASE, stride=2, seed=7)

    def brighter(clip, rng):
        return clip + np.uint8(3)

    options = {"stride": 2, "seed": 7, "transforms": [Darker(), brighter]}
    changed, again = (VideoClips(tiny_data / "train.csv", BASE, **options) for _ in range(2))
    divisors = set()
    for request in REQUESTS:
        wanted, found = plain[request]["clip"], changed[request]["clip"]
        (divisor,) = (n for n in range(2, 6) if np.array_equal(wanted // n + 3, found))
        divisors.add(divisor)
        np.testing.assert_array_equal(again[request]["clip"], found)
    assert len(divisors) > 1
    np.testing.assert_array_equal(changed[0]["clip"], plain[0]["clip"])  # for validation


def test_a_transform_that_returns_no_clip_is_named(tiny_data):
    clips = VideoClips(tiny_data / "train.csv", BASE, transforms=[lambda clip, rng: clip / 255])
    with pytest.raises(ValueError, match="'<lambda>' must return a clip"):
        clips[REQUESTS[0]]
