"""The Kinetics data set: items on the grid asked for, in each split, and unreadable videos."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from multigrid import ClipRequest, Shape, collate
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets import items
from slowfast_patches.datasets.clips import ClipDataset
from slowfast_patches.datasets.items import TooManyUnreadableError
from tests.slowfast_patches.datasets.made_videos import write_video

VIDEOS = 5
WIDTH, HEIGHT = 96, 64
BASE, COARSE = Shape(2, 8, 48), Shape(16, 2, 32)


def pictures(level: int) -> list[np.ndarray]:
    """24, dark on the left and bright on the right, of the video's own blue."""
    images = np.full((24, HEIGHT, WIDTH, 3), level, np.uint8)
    images[..., 0] = np.linspace(0, 255, WIDTH)
    images[..., 1] = 10 * np.arange(24)[:, None, None]
    return list(images)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kinetics")
    for number in range(VIDEOS):
        write_video(folder / f"video{number}.mp4", pictures(50 * number))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A data folder of its own: links to the videos, and lists with labels 0, 1, 0, 1, 0."""
    for path in made.iterdir():
        (tmp_path / path.name).symlink_to(path)
    lines = "".join(f"video{number}.mp4 {number % 2}\n" for number in range(VIDEOS))
    for split in ("train", "val", "test"):
        (tmp_path / f"{split}.csv").write_text(lines)
    return tmp_path


def config(folder: Path, *overrides: object) -> Recipe:
    data = ["DATA.PATH_TO_DATA_DIR", str(folder), "DATA.NUM_FRAMES", 8, "DATA.SAMPLING_RATE", 2]
    data += ["DATA.TRAIN_CROP_SIZE", 48, "DATA.TEST_CROP_SIZE", 64]
    data += ["DATA.TRAIN_JITTER_SCALES", [48, 64], "TRAIN.BATCH_SIZE", 2, "NUM_GPUS", 0]
    return load_recipe(None, [*data, "MODEL.NUM_CLASSES", 2, *overrides])


def spoil(folder: Path, *numbers: int) -> list[str]:
    """Put a text file in the place of videos; their paths."""
    paths = [folder / f"video{number}.mp4" for number in numbers]
    for path in paths:
        path.unlink()
        path.write_text("no video")
    return [str(path) for path in paths]


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return np.array_equal(a["clip"], b["clip"]) and all(
        a[key] == b[key] for key in a if key != "clip"
    )


# Training.


def test_the_same_request_gives_the_same_item_and_another_epoch_another(folder):
    data, again = (ClipDataset(config(folder), "train") for _ in range(2))
    requests = [ClipRequest(video, epoch, BASE, 17) for video in range(3) for epoch in range(2)]
    items = [data[request] for request in requests]
    assert (items[2]["clip"].shape, items[2]["clip"].dtype) == ((8, 48, 48, 3), np.uint8)
    assert (items[2]["label"], items[2]["video"], items[2]["iteration"]) == (1, 1, 17)
    assert items[2]["failures"] == []
    for request, item in reversed(list(zip(requests, items, strict=True))):
        assert same(again[request], item)
    for one, other in zip(items[::2], items[1::2], strict=True):
        assert not np.array_equal(one["clip"], other["clip"])
    seeded = ClipDataset(config(folder, "RNG_SEED", 7), "train")
    assert not all(same(seeded[r], item) for r, item in zip(requests, items, strict=True))


@pytest.mark.parametrize(
    ("keys", "frames"),
    [
        ((), [4, 6, 8, 10, 12, 14, 16, 19]),  # the middle 16 of 24, spread to the last
        (("DATA.EXACT_STRIDES", True), [4, 6, 8, 10, 12, 14, 16, 18]),
        (("DATA.CLIP_SAMPLING", "segments"), [1, 4, 7, 10, 13, 16, 19, 22]),
    ],
)
def test_where_the_frames_of_a_clip_are(folder, keys, frames):
    """The centre clip's: ten of green each say which frame it is."""
    data = ClipDataset(config(folder, *keys), "val")
    assert np.round(data[0]["clip"][..., 1].mean((1, 2)) / 10).tolist() == frames
    coarse = ClipDataset(config(folder, *keys), "train")[ClipRequest(0, 0, COARSE, 0)]["clip"]
    first, second = np.round(coarse[..., 1].mean((1, 2)) / 10)
    if "segments" in keys:
        assert first < 12 <= second
    else:
        assert second - first in ({2, 3, 4, 5, 6, 7, 8} if keys else {3, 5, 7, 9, 11, 13, 15})


def test_a_coarse_clip_can_keep_the_baselines_field_of_view(folder):
    """From left to right the frame is 0 to 255: 64 of 96 pixels are 170 of it,
    from first to last centre 165."""
    one_size = ["DATA.TRAIN_JITTER_SCALES", [48, 48], "MULTIGRID.LONG_CYCLE", True]
    shown = dict[bool, list[float]]()
    for keep in (True, False):
        data = ClipDataset(config(folder, *one_size, "MULTIGRID.KEEP_FIELD_OF_VIEW", keep), "train")
        clips = [data[ClipRequest(0, e, COARSE, 0)]["clip"][..., 0] for e in range(20)]
        shown[keep] = [float(np.ptp(clip.mean((0, 1)))) for clip in clips]
    assert shown[True] == pytest.approx([163] * 20, abs=7)
    assert min(shown[False]) < 130  # 32 pixels of a frame 72 wide


# Validation and testing.


def test_test_items_are_views_by_crops_of_a_video_one_after_another(folder):
    views = ["TEST.NUM_ENSEMBLE_VIEWS", 2, "TEST.NUM_SPATIAL_CROPS", 3]
    data = ClipDataset(config(folder, *views), "test")
    assert (len(data), data.num_clips) == (VIDEOS * 6, 6)
    items = [data[number] for number in range(6, 12)]
    assert [item["video"] for item in items] == [1] * 6
    assert data[12]["video"] == 2
    assert {item["clip"].shape for item in items} == {(8, 64, 64, 3)}
    red = [float(item["clip"][..., 0].mean()) for item in items]
    green = [float(item["clip"][0, ..., 1].mean()) for item in items]
    assert red[0] < red[1] < red[2]  # left, centre, right
    assert red[3:] == pytest.approx(red[:3], abs=3)
    assert max(green[:3]) < min(green[3:])  # the second view starts later


def test_clips_of_a_video_in_an_evaluation_are_read_in_one_pass(folder, monkeypatch):
    """They are those that are read one by one."""
    views = ("TEST.NUM_ENSEMBLE_VIEWS", 2, "TEST.NUM_SPATIAL_CROPS", 3)
    data = ClipDataset(config(folder, *views), "test")
    passes = []
    read = items.read_clips

    def counted(path, record, plans, outs, **options):
        passes.append(len(plans))
        read(path, record, plans, outs, **options)

    monkeypatch.setattr(items, "read_clips", counted)
    batch = data.__getitems__(range(4, 14))
    assert passes == [2, 6, 2]
    assert batch["videos"].tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 2, 2]
    alone = [data[number]["clip"] for number in range(4, 14)]
    assert np.array_equal(batch["clips"], np.stack(alone))


# Unreadable videos.


def test_an_unreadable_video_is_replaced_by_the_same_other_and_reported(folder):
    (path,) = spoil(folder, 2)
    request = ClipRequest(2, 0, COARSE, 0)
    item = ClipDataset(config(folder), "train")[request]
    assert item["video"] != 2
    assert item["label"] == item["video"] % 2
    assert item["clip"].shape == (2, 32, 32, 3)
    assert {failed for failed, _ in item["failures"]} == {path}
    assert all(reason.startswith("cannot be opened") for _, reason in item["failures"])
    assert same(ClipDataset(config(folder), "train")[request], item)
    others = {
        ClipDataset(config(folder), "train")[ClipRequest(2, e, COARSE, 0)]["video"]
        for e in range(8)
    }
    assert len(others) > 1


def test_the_bound_on_pixels_holds_for_a_new_index_and_an_old_one(folder):
    bound = ("DATA.MAX_FRAME_PIXELS", WIDTH * HEIGHT - 1)
    assert len(ClipDataset(config(folder, *bound), "val").index.unreadable) == VIDEOS
    assert ClipDataset(config(folder), "val")[0]["failures"] == []
    old = ClipDataset(config(folder, *bound), "val")
    assert old.index.unreadable == []
    ((_, reason),) = old[0]["failures"]
    assert "96×64 pixels, more than DATA.MAX_FRAME_PIXELS 6143" in reason


def test_a_mini_batch_of_evaluation_is_without_unreadable_clips(folder):
    paths = spoil(folder, 1, 3)
    data = ClipDataset(config(folder), "val")
    batch = data.__getitems__([0, 1, 2, 3])
    assert (batch["videos"].tolist(), batch["labels"].tolist()) == ([0, 2], [0, 0])
    assert torch.equal(batch["clips"], torch.stack([torch.tensor(data[n]["clip"]) for n in (0, 2)]))
    assert [path for path, _ in batch["failures"]] == paths
    nothing = data.__getitems__([1, 3])
    assert (len(nothing["clips"]), len(nothing["videos"])) == (0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_list_of_unreadable_videos_stops_with_a_message_not_a_traceback(folder, workers):
    paths = spoil(folder, *range(VIDEOS))
    batches = [[ClipRequest(4, 0, COARSE, 0)]]
    data = ClipDataset(config(folder), "train")
    loader = DataLoader(data, batch_sampler=batches, num_workers=workers, collate_fn=collate)
    with pytest.raises(TooManyUnreadableError) as caught:
        next(iter(loader))
    said = str(caught.value)
    assert said.startswith(f"10 videos in a row could not be read, the first {paths[4]}: cannot")
    assert "\n" not in said
