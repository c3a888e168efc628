"""Tests of clips around key frames: frames are those of PySlowFast, and boxes fit the pixels."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from multigrid import ClipPlan, ClipRequest, Shape, Video, collate, network_input, plan_test
from slowfast_patches.datasets.loader import build_dataset
from slowfast_patches.extras.detection.key_frame_clips import Targets, boxes_in_clip
from tests.slowfast_patches.extras.detection.ava_lists import BOXES, recipe_of, write_lists

BASE = Shape(8, 8, 64)
SIZES = ("DATA.NUM_FRAMES", 8, "DATA.TRAIN_CROP_SIZE", 64, "DATA.TEST_CROP_SIZE", 64)
KEYS = (*SIZES, "DATA.TRAIN_JITTER_SCALES", [64, 80], "DATA.SAMPLING_RATE", 2)
TRAIN = "".join(f"{name},0902,{box},{n},0\n" for n, (name, box) in enumerate(BOXES.items(), 1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_lists(tmp_path_factory.mktemp("ava"), TRAIN, val=TRAIN)


@pytest.mark.parametrize(("frames", "stride", "last"), [(32, 2, 100), (8, 8, 40), (4, 16, 99)])
def test_frames_are_the_hosts(frames, stride, last):
    from slowfast.datasets.utils import get_sequence

    video = Video(last, 30.0, 340, 256)
    for centre in (0, 17, 60, last - 1):
        plan = plan_test(video, frames=frames, stride=stride, crop=224, centre=centre)
        expected = get_sequence(centre, frames * stride // 2, stride, last)
        assert plan.frame_indices.tolist() == expected


def test_boxes_by_hand():
    """With a crop of 100 pixels at (50, 0), x from 60 to 120 becomes 10 to 70."""
    boxes = np.array([[0.3, 0.1, 0.6, 0.5], [0.0, 0.0, 0.5, 1.0], [0.9, 0.2, 1.0, 0.4]], np.float32)
    plan = ClipPlan(np.zeros(1, np.int64), (200, 100), (50, 0), 100, flip=False)
    inside, parts = boxes_in_clip(boxes, plan)
    np.testing.assert_allclose(inside[:2], [[10, 10, 70, 50], [0, 0, 50, 100]], atol=1e-4)
    np.testing.assert_allclose(parts, [[1, 0.24], [0.5, 0.5], [0, 0]], atol=1e-6)
    flipped, _ = boxes_in_clip(
        boxes, ClipPlan(plan.frame_indices, plan.size, plan.corner, 100, True)
    )
    np.testing.assert_allclose(flipped[:2], [[30, 10, 90, 50], [50, 0, 100, 100]], atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.sampled_from([BASE, Shape(16, 4, 64), Shape(32, 4, 45), Shape(64, 2, 32)]),
    epoch=st.integers(0, 10**6),
)
def test_a_box_is_where_its_pixels_are_at_every_shape(folder, shape, epoch):
    """The pictures are bright in their boxes and dark elsewhere."""
    dataset = build_dataset(recipe_of(folder, *KEYS), "train")
    batch = dataset.__getitems__([ClipRequest(n, epoch, shape, 0) for n in (1, 0)])
    bright = network_input(batch, mean=[0], std=[1]).mean((1, 2)) > 0.5
    targets = Targets.of_labels(batch["labels"])
    assert targets.boxes[:, 0].tolist() == [0, 1]
    assert torch.equal(targets.classes, torch.tensor([[0.0, 1, 0], [1, 0, 0]]))
    for (place, *edges), pixels in zip(targets.boxes.tolist(), bright[[0, 1]], strict=True):
        rows, columns = (pixels.any(axis).nonzero().flatten().tolist() for axis in (1, 0))
        seen = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
        assert edges == pytest.approx(seen, abs=1.6), (place, edges, seen)


def test_the_numbers_of_boxes_and_key_frames_are_logged(tmp_path, caplog):
    lines = f"{TRAIN}a,0902,0,0,1,1,1,0\n"
    with caplog.at_level("INFO"):
        dataset = build_dataset(recipe_of(write_lists(tmp_path, lines), *KEYS), "train")
    assert "train: 3 boxes in 2 key frames" in caplog.messages
    assert dataset.first_rows.tolist() == [0, 2, 3]


def test_crops_without_a_box_are_drawn_again_and_counted(folder):
    """Both boxes are at the left or right side of frames that are wider than the crop."""
    dataset = build_dataset(recipe_of(folder, *KEYS), "train")
    requests = [ClipRequest(n % 2, n, Shape(64, 2, 32), 0) for n in range(60)]
    items = [dataset[request] for request in requests]
    assert all(Targets.of_labels(torch.tensor(item["label"])[None]).counts == 1 for item in items)
    resampled = [item["resampled"] for item in items]
    # The tenth is put over the box, wherever that is.
    assert min(resampled) == 0 < max(resampled) <= 10
    batch = dataset.__getitems__(requests)
    assert batch["resampled"] == sum(resampled) > 20
    assert torch.equal(collate(items)["labels"], batch["labels"])


def test_an_evaluation_has_all_boxes_and_says_what_it_shows_of_them(folder):
    dataset = build_dataset(recipe_of(folder, *KEYS, "AVA.TEST_PREDICT_BOX_LISTS", []), "test")
    assert len(dataset) == 6  # two key frames, left, centre and right
    batch = dataset.__getitems__(range(6))
    targets = Targets.of_labels(batch["labels"])
    assert targets.boxes[:, 0].tolist() == list(range(6))
    assert batch["videos"].tolist() == [0, 0, 0, 1, 1, 1]
    # Of 96 pixels, the crops show 0 to 64, 16 to 80 and 32 to 96; the boxes are 12 to 36, 72 to 96.
    shares = targets.shares.tolist()
    assert shares == pytest.approx([1, 20 / 24, 4 / 24, 0, 8 / 24, 1])
