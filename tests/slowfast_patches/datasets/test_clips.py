"""Clips of each data set: on the grid asked for, in each split, their labels, unreadable videos."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from multigrid import ClipPlan, ClipRequest, Shape, collate
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets import items
from slowfast_patches.datasets.clips import ClipDataset
from slowfast_patches.datasets.demo.charades_form import write_charades_form
from slowfast_patches.datasets.items import TooManyUnreadableError
from slowfast_patches.datasets.lists.frame_list import HEADER
from slowfast_patches.datasets.reading.clip_reader import read_clip
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.train.predict import Predictor
from tests.slowfast_patches.datasets.made_videos import (
    SAMPLES,
    needs_samples,
    write_ssv2_json,
    write_video,
)

BASE, COARSE = Shape(2, 8, 48), Shape(16, 2, 32)
VIDEOS, CLASSES, STEP = 5, 6, 5
LABELS = [{0}] * 10 + [set()] * 10 + [{1, 2}] * 10 + [{2}] * 3
LABELS += [set()] * 7 + [{4}] + [set()] * 6 + [{3}]
"""Of the frames of Charades' first video; the second has none, the third 5 on every frame."""
SIX_VIEWS = ("TEST.NUM_ENSEMBLE_VIEWS", 2, "TEST.NUM_SPATIAL_CROPS", 3)


def pictures(count: int, blue: int = 0) -> np.ndarray:
    """Dark on the left and bright on the right in red; their green is STEP times their number."""
    images = np.full((count, 64, 96, 3), blue, np.uint8)
    images[..., 0] = np.linspace(0, 255, 96)
    images[..., 1] = STEP * np.arange(count)[:, None, None]
    return images


def numbers(clip: np.ndarray) -> list[int]:
    """The numbers of a clip's frames."""
    return [round(level / STEP) for level in clip[..., 1].mean((1, 2))]


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for number in range(VIDEOS):
        write_video(folder / f"video{number}.mp4", pictures(24, 50 * number), options={"crf": "8"})
    return folder


@pytest.fixture
def folder(videos: Path, tmp_path: Path) -> Path:
    """A data folder of its own: links to the videos, and lists with labels 0, 1, 0, 1, 0."""
    for path in videos.iterdir():
        (tmp_path / path.name).symlink_to(path)
    lines = "".join(f"video{number}.mp4 {number % 2}\n" for number in range(VIDEOS))
    for split in ("train", "val", "test"):
        (tmp_path / f"{split}.csv").write_text(lines)
    return tmp_path


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three videos of JPEG files, of 48, 24 and 48 frames, listed for Charades and SSv2."""
    folder, lines = tmp_path_factory.mktemp("frames"), [HEADER]
    for name, labels in (("AA", LABELS), ("BB", [set()] * 24), ("CC", [{5}] * 48)):
        (folder / name).mkdir()
        for number, image in enumerate(pictures(len(labels))):
            path = f"{name}/{name}-{number + 1:06d}.jpg"
            quality = [cv2.IMWRITE_JPEG_QUALITY, 100]
            cv2.imwrite(str(folder / path), image[..., ::-1], quality)
            lines.append(f'{name} 0 {number} {path} "{",".join(map(str, sorted(labels[number])))}"')
    for split in ("train", "val"):
        (folder / f"{split}.csv").write_text("\n".join(lines))
    write_json(folder, "AA", "BB", "CC")
    return folder


def write_json(folder: Path, *names: str) -> None:
    """SSv2's json files; the videos have classes 0, 1, 2."""
    labels = {f"Doing {n} things to something": str(n) for n in range(CLASSES)}
    entries = [
        {"id": name, "template": f"Doing {n} things to [something]"} for n, name in enumerate(names)
    ]
    write_ssv2_json(folder, labels=labels, train=entries, validation=entries)


def config(folder: Path, *overrides: object, dataset: str = "kinetics") -> Recipe:
    data = ["DATA.PATH_TO_DATA_DIR", str(folder), "DATA.NUM_FRAMES", 8, "DATA.SAMPLING_RATE", 2]
    data += ["DATA.TRAIN_CROP_SIZE", 48, "DATA.TEST_CROP_SIZE", 64]
    data += ["DATA.TRAIN_JITTER_SCALES", [48, 64], "TRAIN.BATCH_SIZE", 2, "NUM_GPUS", 0]
    data += ["TRAIN.DATASET", dataset, "TEST.DATASET", dataset, "MODEL.NUM_CLASSES", CLASSES]
    data += ["DATA.MULTI_LABEL", dataset == "charades", "DATA.RANDOM_FLIP", dataset != "ssv2"]
    data += ["TEST.NUM_ENSEMBLE_VIEWS", 1, "TEST.NUM_SPATIAL_CROPS", 1]
    return load_recipe(None, [*data, *overrides])


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
    ("keys", "taken"),
    [
        ((), [4, 6, 8, 10, 12, 14, 16, 19]),  # the middle 16 of 24, spread to the last
        (("DATA.EXACT_STRIDES", True), [4, 6, 8, 10, 12, 14, 16, 18]),
        (("DATA.CLIP_SAMPLING", "segments"), [1, 4, 7, 10, 13, 16, 19, 22]),
    ],
)
def test_where_the_frames_of_a_clip_are(folder, keys, taken):
    """The centre clip's of validation, and a coarse one's of training."""
    item = ClipDataset(config(folder, *keys), "val")[3]
    assert numbers(item["clip"]) == taken
    assert (item["label"], item["video"], item["flip"], item["iteration"]) == (1, 3, False, -1)
    # A ramp from 0 to 255 is at half of it in the centre of the frame.
    assert item["clip"][..., 0].mean() == pytest.approx(127.5, abs=6)
    coarse = ClipDataset(config(folder, *keys), "train")[ClipRequest(0, 0, COARSE, 0)]["clip"]
    first, second = numbers(coarse)
    if "segments" in keys:
        assert first < 12 <= second
    else:
        assert second - first in ({2, 3, 4, 5, 6, 7, 8} if keys else {3, 5, 7, 9, 11, 13, 15})


def test_a_coarse_clip_can_keep_the_baselines_field_of_view(folder):
    """Measure the field of view by the brightness of the crop.

    From left to right, the frame rises from 0 to 255. The crop's 64 of 96 pixels span 170 of it,
    and 165 from the centre of the first pixel to that of the last.
    """
    one_size = ["DATA.TRAIN_JITTER_SCALES", [48, 48], "MULTIGRID.LONG_CYCLE", True]
    shown = dict[bool, list[float]]()
    for keep in (True, False):
        data = ClipDataset(config(folder, *one_size, "MULTIGRID.KEEP_FIELD_OF_VIEW", keep), "train")
        clips = [data[ClipRequest(0, e, COARSE, 0)]["clip"][..., 0] for e in range(20)]
        shown[keep] = [float(np.ptp(clip.mean((0, 1)))) for clip in clips]
    assert shown[True] == pytest.approx([163] * 20, abs=7)
    assert min(shown[False]) < 130  # 32 pixels of a frame 72 wide


# Testing.


def test_test_items_are_views_by_crops_of_a_video_read_in_one_pass(folder, monkeypatch):
    """They are those that are read one by one."""
    data = ClipDataset(config(folder, *SIX_VIEWS), "test")
    assert (len(data), data.num_clips) == (VIDEOS * 6, 6)
    passes = []
    read = items.read_clips

    def counted(path, record, plans, outs, **options):
        passes.append(len(plans))
        read(path, record, plans, outs, **options)

    monkeypatch.setattr(items, "read_clips", counted)
    batch = data.__getitems__(range(4, 14))
    assert passes == [2, 6, 2]
    assert batch["videos"].tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 2, 2]
    assert batch["clips"].shape == (10, 8, 64, 64, 3)
    alone = [data[number]["clip"] for number in range(4, 14)]
    assert np.array_equal(batch["clips"], np.stack(alone))
    red = [float(clip[..., 0].mean()) for clip in alone[2:8]]
    first = [numbers(clip)[0] for clip in alone[2:8]]
    assert red[0] < red[1] < red[2]  # left, centre, right
    assert red[3:] == pytest.approx(red[:3], abs=3)
    assert max(first[:3]) < min(first[3:])  # the second view starts later


# Unreadable videos.


def spoil(folder: Path, *numbers: int) -> list[str]:
    """Put a text file in the place of videos; their paths."""
    paths = [folder / f"video{number}.mp4" for number in numbers]
    for path in paths:
        path.unlink()
        path.write_text("no video")
    return [str(path) for path in paths]


def test_an_unreadable_video_is_replaced_by_the_same_other_and_reported(folder):
    (path,) = spoil(folder, 2)
    one, again = (ClipDataset(config(folder), "train") for _ in range(2))
    request = ClipRequest(2, 0, COARSE, 0)
    item = one[request]
    assert item["label"] == item["video"] % 2
    assert {failed for failed, _ in item["failures"]} == {path}
    assert all(reason.startswith("cannot be opened") for _, reason in item["failures"])
    assert same(again[request], item)
    others = {one[ClipRequest(2, epoch, COARSE, 0)]["video"] for epoch in range(8)}
    assert len(others) > 1
    assert 2 not in others


def test_the_bound_on_pixels_holds_for_a_new_index_and_an_old_one(folder):
    bound = ("DATA.MAX_FRAME_PIXELS", 96 * 64 - 1)
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
    message = str(caught.value)
    assert message.startswith(f"10 videos in a row could not be read, the first {paths[4]}: cannot")
    assert "DATA.PATH_PREFIX" in message
    assert "\n" not in message


# Something-Something: segments of the whole video.


@pytest.mark.parametrize("shape", [BASE, COARSE])
@pytest.mark.parametrize(("video", "count"), [(0, 48), (1, 24)])
def test_a_training_clip_has_a_frame_of_each_segment_at_any_shape(frames, shape, video, count):
    data, seen = ClipDataset(config(frames, dataset="ssv2"), "train"), set()
    for epoch in range(12):
        item = data[ClipRequest(video, epoch, shape, 3)]
        taken = numbers(item["clip"])
        assert [n * shape.frames // count for n in taken] == list(range(shape.frames))
        assert (item["label"], item["flip"], item["video"]) == (video, False, video)
        assert item["clip"][:, :, -5:, 0].mean() > item["clip"][:, :, :5, 0].mean()  # unmirrored
        seen.add(tuple(taken))
    assert len(seen) > 6


def test_the_stride_of_the_recipe_changes_nothing_and_the_log_says_so(frames, caplog):
    caplog.set_level(logging.INFO)
    keys = ("DATA.SAMPLING_RATE", 8, "DATA.TARGET_FPS", 12)
    data = [ClipDataset(config(frames, *pairs, dataset="ssv2"), "train") for pairs in ((), keys)]
    one, other = (each[ClipRequest(0, 0, BASE, 0)]["clip"] for each in data)
    assert np.array_equal(one, other)
    assert f"train: 3 videos of {frames}/train.csv" in caplog.text
    assert "one frame from each of 8 segments of the video (DATA.SAMPLING_RATE 8" in caplog.text


@needs_samples
def test_webm_files_are_read_directly(tmp_path):
    """25 frames of 321 × 240 in 8 segments; the centre of a frame resized to 64 × 48."""
    archives = tmp_path / "20bn-something-something-v2"
    archives.mkdir()
    for name, sample in (("41", "testsrc_vp9"), ("5", "testsrc_vp8")):
        shutil.copy(SAMPLES / f"{sample}.webm", archives / f"{name}.webm")
    write_json(tmp_path, "41", "5")
    data = ClipDataset(config(tmp_path, dataset="ssv2"), "train")
    for shape in (BASE, COARSE):
        batch = data.__getitems__([ClipRequest(n, 0, shape, 0) for n in range(2)])
        assert batch["clips"].shape == (2, shape.frames, shape.crop, shape.crop, 3)
        assert (batch["labels"].tolist(), batch["failures"]) == ([0, 1], [])
    path = str(archives / "41.webm")
    wanted = ClipPlan(np.array([1, 4, 7, 10, 14, 17, 20, 23]), (64, 48), (8, 0), 48, False)
    centre = ClipDataset(config(tmp_path, dataset="ssv2"), "val")[0]["clip"]
    assert np.array_equal(centre, read_clip(path, scan(path), wanted))


# Charades: several labels a clip, those of its span in training and of the video in testing.


def classes(label: np.ndarray) -> set[int]:
    """The classes in a multi-hot label."""
    assert (label.dtype, label.shape) == (np.float32, (CLASSES,))
    assert set(label.tolist()) <= {0.0, 1.0}
    return set(np.flatnonzero(label).tolist())


@pytest.mark.parametrize("shape", [BASE, COARSE])
def test_a_training_clip_has_the_labels_from_its_first_to_its_last_frame(frames, shape):
    data, spans, more = ClipDataset(config(frames, dataset="charades"), "train"), set(), 0
    for epoch in range(40):
        item = data[ClipRequest(0, epoch, shape, 0)]
        taken = numbers(item["clip"])
        assert classes(item["label"]) == set().union(*LABELS[taken[0] : taken[-1] + 1])
        more += classes(item["label"]) > set().union(*(LABELS[number] for number in taken))
        spans.add(taken[-1] - taken[0] + 1)
    if shape == BASE:
        assert spans == {16}  # 8 frames at stride 2
    else:
        assert spans == {2 * stride for stride in range(2, 9)}  # 2 frames at strides 2 to 8
        assert more > 5  # clips with a label of a frame between those that are read


@pytest.mark.parametrize(("split", "count"), [("val", 1), ("test", 6)])
def test_a_clip_of_evaluation_has_the_labels_of_the_whole_video(frames, split, count):
    data = ClipDataset(config(frames, *SIX_VIEWS, dataset="charades"), split)
    assert (len(data), data.num_clips) == (3 * count, count)
    for number in range(len(data)):
        assert classes(data[number]["label"]) == [{0, 1, 2, 3, 4}, set(), {5}][number // count]


@pytest.mark.parametrize("fps", [0, 24, 30])
def test_the_views_of_a_test_reach_the_end_of_the_video(frames, fps):
    """48 frames, a span of 16 whatever their rate: 32 frames of room, in two steps of 16."""
    recipe = config(
        frames, "TEST.NUM_ENSEMBLE_VIEWS", 3, "DATA.TARGET_FPS", fps, dataset="charades"
    )
    data = ClipDataset(recipe, "test")
    taken = [numbers(data[number]["clip"]) for number in range(3)]
    assert [(view[0], view[-1]) for view in taken] == [(0, 15), (16, 31), (32, 47)]
    predictor = Predictor.__new__(Predictor)  # without a model
    predictor.recipe = recipe
    clips = predictor.clips(str(frames / "AA")).permute(0, 2, 3, 4, 1)
    assert [numbers(clip.numpy()) for clip in clips] == taken


def test_a_video_that_cannot_be_read_keeps_its_labels_in_testing_only(frames, tmp_path):
    folder = shutil.copytree(frames, tmp_path / "charades")
    (folder / "AA" / "AA-000001.jpg").write_text("no picture")
    recipe = config(folder, dataset="charades")
    black = ClipDataset(recipe, "val")[0]
    assert (black["clip"].any(), classes(black["label"])) == (False, {0, 1, 2, 3, 4})
    item = ClipDataset(recipe, "train")[ClipRequest(0, 0, BASE, 0)]
    assert classes(item["label"]) == {1: set(), 2: {5}}[item["video"]]
    assert item["failures"][0][0] == f"{folder}/AA"


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
        *("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False, "TRAIN.EVAL_PERIOD", 9),
        *("SOLVER.MAX_EPOCH", 1, "SOLVER.STEPS", [0], "SOLVER.LRS", [1]),
        *("MULTIGRID.EPOCH_FACTOR", 1.0),
    )
    result, log = opened(output).result, opened(output).log
    assert result["metric"] == "map"
    assert 0 < result["map"] <= 100
    assert f"test on 1 views × 3 crops: mAP {result['map']:.2f} (test is val)\n" in log
    assert all("top1" not in line for line in [result, *opened(output).metrics()])
    # A new network's chance is one half for each of the 8 classes, with a loss of ln 2 each.
    assert opened(output).metrics()[0]["loss"] == pytest.approx(0.69, abs=0.15)
