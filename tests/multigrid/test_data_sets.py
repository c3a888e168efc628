"""Tests of data sets that are wrapped, and of sampling weights."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from multigrid import (
    Cycles,
    FrameClips,
    MultigridBatchSampler,
    SamplingOptions,
    Shape,
    SteppedRate,
    Training,
    balanced_weights,
    collate,
    make_schedule,
)
from multigrid.sampling_weights import WeightedStream

VIDEOS = 40
BASE = Shape(4, 4, 16)
SCHEDULE = make_schedule(
    BASE,
    VIDEOS,
    SteppedRate((4.0, 6.0), (0.1, 0.01)),
    Cycles(((0.5, 0.5), (1.0, 1.0))),
    bn_group_size=None,
)

pytestmark = pytest.mark.filterwarnings("ignore")


class Frames(Dataset):
    """Data set of (frames, label). The red of frame t of video v is v, its green is t."""

    def __init__(self, layout: str, videos: int = VIDEOS) -> None:
        self.layout = layout
        self.videos = videos

    def __len__(self) -> int:
        return self.videos

    def __getitem__(self, number):
        frames = np.zeros((6, 20, 24, 3), np.uint8)
        frames[..., 0] = number
        frames[..., 1] = np.arange(6)[:, None, None]
        if self.layout == "tensor":
            return torch.from_numpy(frames).permute(0, 3, 1, 2), number % 2
        return (list(frames) if self.layout == "list" else frames), number % 2


def training(weights=None) -> Training:
    model = nn.Linear(1, 1)
    return Training(SCHEDULE, model, torch.optim.SGD(model.parameters(), 0.0), weights=weights)


@pytest.mark.parametrize("layout", ["array", "tensor", "list"])
def test_frames_are_cut_in_the_requested_shape(layout):
    clips = FrameClips(Frames(layout), BASE)
    trained = training()
    shapes = set()
    for batch in trained.batches(trained.loader(clips)):
        step = trained.begin(batch)
        shapes.add(step.shape)
        assert batch["clips"].shape[1:] == (step.shape.frames, step.shape.crop, step.shape.crop, 3)
        videos = batch["clips"][..., 0].flatten(1)
        assert (videos == videos[:, :1]).all()
        assert (batch["labels"] == videos[:, 0] % 2).all()
        times = batch["clips"][:, :, 0, 0, 1].long()
        assert (times.diff() >= 0).all()
    assert len(shapes) == 2
    centre = next(iter(DataLoader(Subset(clips, [7, 8]), 2, collate_fn=collate)))
    assert centre["clips"].shape == (2, 4, 16, 16, 3)
    assert centre["clips"][0, :, 0, 0, 1].tolist() == [1, 2, 3, 4]


def test_parts_of_data_sets_are_wrapped_from_outside_and_from_inside():
    both = ConcatDataset([Subset(Frames("array"), range(30)), Frames("list", 10)])
    options = {"sampling": SamplingOptions(flip=False)}
    outside = FrameClips(both, BASE, **options)
    parts = Frames("array"), Frames("list", 10)
    first, second = (FrameClips(part, BASE, **options) for part in parts)
    inside = ConcatDataset([Subset(first, range(30)), second])
    for dataset in (outside, inside):
        trained = training()
        loader = trained.loader(dataset)
        seen = Counter[int]()
        for _ in range(2 * trained.epochs):
            for batch in loader:
                trained.begin(batch)
                seen.update(batch["clips"][:, 0, 0, 0, 0].tolist())
            if trained.is_complete:
                break
        assert set(seen) == set(range(30))
        assert seen[5] == pytest.approx(2 * seen[25], abs=1), "videos 0 to 9 are there twice"


def pixels(layout: str, frames: int = 2, height: int = 20, width: int = 24):
    """Return frames whose red is the row of a pixel, and whose green is its column."""
    made = np.zeros((frames, height, width, 3), np.uint8)
    made[..., 0] = np.arange(height)[:, None]
    made[..., 1] = np.arange(width)
    return torch.from_numpy(made).permute(0, 3, 1, 2) if layout == "tensor" else made


@pytest.mark.parametrize("layout", ["array", "tensor"])
@pytest.mark.parametrize(("height", "width", "corner"), [(20, 24, (2, 4)), (24, 20, (4, 2))])
def test_the_crop_is_in_the_centre_of_a_wide_or_tall_video(layout, height, width, corner):
    frames = pixels(layout, 1, height, width)
    clip = FrameClips([(frames, 0)], Shape(4, 1, 16), short_sides=(20, 30))[0]["clip"]
    assert clip.shape == (1, 16, 16, 3)
    row, column = corner
    assert clip[0, :, 0, 0].tolist() == list(range(row, row + 16))
    assert clip[0, 0, :, 1].tolist() == list(range(column, column + 16))
    assert clip.flags.c_contiguous


def test_smaller_frames_are_averages_of_the_larger_ones():
    """One column of four is white. Interpolation without a filter would only read the others."""
    frames = np.zeros((1, 64, 64, 3), np.uint8)
    frames[:, :, ::4] = 200
    clip = FrameClips([(frames, 0)], Shape(4, 1, 16), short_sides=(16, 16))[0]["clip"]
    assert np.abs(clip[0, 4:12, 4:12].astype(int) - 50).max() < 15


@pytest.mark.parametrize("frames", [pixels("array", 0), pixels("array")[..., :2], None, []])
def test_items_without_colour_frames_are_refused(frames):
    with pytest.raises(ValueError, match=r"item 0 of list must be \(frames, label\)"):
        FrameClips([(frames, 0)], Shape(4, 1, 16))[0]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ((torch.zeros(4, 3, 20, 20), 0), r"float32.*before they are normalised"),
        (("a.mp4", 0), "VideoClips"),
        ({"video": 0}, "item 0 of list must be"),
        ({"video": 0, "label": 1}, "item 0 of list must be"),
        ((torch.zeros(4, 3, 20, 20, dtype=torch.uint8), 0, 1), "item 0 of list must be"),
    ],
)
def test_other_items_are_refused_with_what_to_use(item, message):
    with pytest.raises(ValueError, match=message):
        FrameClips([item], BASE)[0]
    with pytest.raises(ValueError, match="stride is 0"):
        FrameClips([item], BASE, stride=0)
    with pytest.raises(ValueError, match="has no length"):
        FrameClips(iter([item]), BASE)


# Weights.


def test_equal_weights_visit_each_video_once_in_each_epoch():
    stream = WeightedStream(3, [2.0] * 50)
    clips = [stream.at(number) for number in range(150)]
    assert {(video, epoch) for video in range(50) for epoch in range(3)} == set(clips)
    assert clips[:50] != sorted(clips[:50])


def test_videos_appear_in_proportion_to_their_weights():
    """Of 12 clips in an epoch, 6 are of video 0, and 3, 1 or 2, 1 or 2, and none of the others."""
    stream = WeightedStream(3, [4, 2, 1, 1] + [0] * 8)
    counts = Counter[int]()
    clips = [stream.at(number) for number in range(1200)]
    assert len(set(clips)) == 1200, "each clip of a video has a seed of its own"
    assert min(epoch for _, epoch in clips) == 0
    assert max(epoch for _, epoch in clips) < 600, "6 for each epoch"
    for start in range(0, 1200, 12):
        epoch = Counter(video for video, _ in clips[start : start + 12])
        assert (epoch[0], epoch[1]) == (6, 3)
        assert {epoch[2], epoch[3]} == {1, 2}
        counts += epoch
    assert counts[2] == pytest.approx(150, abs=25)


def test_the_weights_of_a_class_add_up_to_one():
    assert balanced_weights([3, 0, 3, 3, 3]) == [0.25, 1.0, 0.25, 0.25, 0.25]


def test_classes_are_balanced_whatever_the_processes_and_the_start():
    labels = [0] * 30 + [1] * 10
    weights = balanced_weights(labels)
    whole = list(MultigridBatchSampler(SCHEDULE, 5, weights=weights))
    again = MultigridBatchSampler(SCHEDULE, 5, start=7, weights=weights)
    assert list(again) == whole[7:]
    halves = [list(MultigridBatchSampler(SCHEDULE, 5, r, 2, weights=weights)) for r in (0, 1)]
    for batch, first, second in zip(whole, *halves, strict=True):
        assert sorted(batch) == sorted(first + second)
    classes = Counter(labels[clip.video] for batch in whole for clip in batch)
    assert classes[0] == pytest.approx(classes[1], rel=0.05)


def test_wrong_weights_are_refused():
    for weights in ([0.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [[1.0]]):
        with pytest.raises(ValueError, match="finite numbers"):
            WeightedStream(0, weights)
    with pytest.raises(ValueError, match="there are 2 weights"):
        MultigridBatchSampler(SCHEDULE, 5, weights=[1.0, 1.0])
    with pytest.raises(ValueError, match="checksum of the weights"):
        training().load_state_dict(training([1.0] * VIDEOS).state_dict())


@pytest.mark.parametrize(
    ("stride", "short_sides"), [(0, (16, 20)), (1, (15, 20)), (1, (20, 18)), (-1, (16, 20))]
)
def test_strides_and_short_sides_that_no_crop_fits_are_refused(stride, short_sides):
    with pytest.raises(ValueError, match="ascending pair of at least 16"):
        FrameClips(Frames("array"), BASE, stride=stride, short_sides=short_sides)


def test_the_least_stride_and_short_side_are_accepted_and_the_default_is_the_paper_s():
    """Short sides of 256 to 320 pixels for crops of 224 are 18 to 23 for crops of 16."""
    assert FrameClips(Frames("array"), BASE, stride=1, short_sides=(16, 16)).short_sides == (16, 16)
    assert FrameClips(Frames("array"), BASE).short_sides == (18, 23)
    assert FrameClips(Frames("array"), Shape(4, 4, 224)).short_sides == (256, 320)
    assert len(FrameClips(Frames("array", 7), BASE)) == 7
