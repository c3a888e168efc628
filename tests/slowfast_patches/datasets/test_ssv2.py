"""Something-Something: segments of the whole video, from frames, WebM files or prepared ones."""

import logging
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from multigrid import ClipPlan, ClipRequest, Shape
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.clips import ClipDataset
from slowfast_patches.datasets.lists.frame_list import HEADER
from slowfast_patches.datasets.reading.clip_reader import read_clip
from slowfast_patches.datasets.reading.scan import scan
from tests.slowfast_patches.datasets.made_videos import SAMPLES, needs_samples, write_ssv2_json

LENGTHS = {"12": 24, "7": 16, "300": 5}
BASE, COARSE = Shape(2, 8, 48), Shape(8, 2, 48)
WIDTH, HEIGHT, STEP = 96, 64, 10


def write_json(folder: Path, ids: list[str]) -> None:
    """Three classes; the videos have classes 0, 1, 2, 0, ..."""
    labels = {f"Doing {n} things to something": str(n) for n in range(3)}
    templates = ((name, f"Doing {n % 3} things to [something]") for n, name in enumerate(ids))
    videos = [{"id": name, "template": template} for name, template in templates]
    write_ssv2_json(folder, labels=labels, train=videos, validation=videos)


def write_frames(folder: Path, name: str, images: list[np.ndarray]) -> list[str]:
    """JPEG files of (H, W, 3) RGB pictures; their lines in a frame list."""
    (folder / name).mkdir()
    lines = []
    for number, image in enumerate(images):
        path = f"{name}/{name}_{number + 1:06d}.jpg"
        cv2.imwrite(str(folder / path), image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 100])
        lines.append(f'{name} 0 {number} {path} ""\n')
    return lines


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Frames dark on the left and bright on the right; their green says their number."""
    folder, lines = tmp_path_factory.mktemp("ssv2"), list[str]()
    for name, frames in LENGTHS.items():
        images = np.zeros((frames, HEIGHT, WIDTH, 3), np.uint8)
        images[..., 0] = np.linspace(0, 255, WIDTH)
        images[..., 1] = STEP * np.arange(frames)[:, None, None]
        lines += write_frames(folder, name, list(images))
    for split in ("train", "val"):
        (folder / f"{split}.csv").write_text(f"{HEADER}\n{''.join(lines)}")
    write_json(folder, list(LENGTHS))
    return folder


def config(folder: Path, *overrides: object) -> Recipe:
    data = ["TRAIN.DATASET", "ssv2", "TEST.DATASET", "ssv2", "DATA.RANDOM_FLIP", False]
    data += ["DATA.PATH_TO_DATA_DIR", str(folder), "DATA.NUM_FRAMES", 8, "NUM_GPUS", 0]
    data += ["DATA.TRAIN_CROP_SIZE", 48, "DATA.TEST_CROP_SIZE", 48, "MODEL.NUM_CLASSES", 3]
    data += ["DATA.TRAIN_JITTER_SCALES", [48, 64], "TEST.NUM_ENSEMBLE_VIEWS", 1]
    return load_recipe(None, [*data, "TEST.NUM_SPATIAL_CROPS", 1, *overrides])


def numbers(clip: np.ndarray) -> list[int]:
    """The numbers of a clip's frames."""
    return [round(level / STEP) for level in clip[..., 1].mean((1, 2))]


# Training.


@pytest.mark.parametrize("shape", [BASE, COARSE])
@pytest.mark.parametrize(("video", "frames"), [(0, 24), (1, 16)])
def test_a_training_clip_has_a_frame_of_each_segment_at_any_shape(made, shape, video, frames):
    data, seen = ClipDataset(config(made), "train"), set()
    part = frames // shape.frames
    for epoch in range(12):
        item = data[ClipRequest(video, epoch, shape, 3)]
        taken = numbers(item["clip"])
        assert [number // part for number in taken] == list(range(shape.frames))
        assert (item["label"], item["flip"], item["video"]) == (video, False, video)
        assert item["clip"][:, :, -5:, 0].mean() > item["clip"][:, :, :5, 0].mean()  # unmirrored
        seen.add(tuple(taken))
    assert len(seen) > 6


def test_the_stride_of_the_recipe_changes_nothing_and_the_log_says_so(made, caplog):
    caplog.set_level(logging.INFO)
    keys = ("DATA.SAMPLING_RATE", 8, "DATA.TARGET_FPS", 12)
    sets = (ClipDataset(config(made, *pairs), "train") for pairs in ((), keys))
    one, other = (data[ClipRequest(0, 0, BASE, 0)]["clip"] for data in sets)
    assert np.array_equal(one, other)
    assert f"train: 3 videos of {made}/train.csv" in caplog.text
    assert "8 segments of the whole video, whatever DATA.SAMPLING_RATE 8 says" in caplog.text
    caplog.clear()
    ClipDataset(config(made, "DATA.CLIP_SAMPLING", "stride"), "train")
    assert "clips are 8 frames at a stride of 8" in caplog.text


# Evaluation.


def test_one_view_takes_the_centres_of_the_segments_and_the_centre_crop(made):
    data = ClipDataset(config(made), "test")
    assert (len(data), data.num_clips) == (3, 1)
    assert numbers(data[0]["clip"]) == [1, 4, 7, 10, 13, 16, 19, 22]
    assert numbers(data[1]["clip"]) == [1, 3, 5, 7, 9, 11, 13, 15]
    for number in range(3):
        clip = data[number]["clip"]
        assert clip.shape == (8, 48, 48, 3)
        # A ramp from 0 to 255, cut from 24 to 72 of its 96 columns resized to 72.
        assert clip[..., 0].mean() == pytest.approx(127.5, abs=4)
        assert clip[..., 0].min() > 30
        assert clip[..., 0].max() < 225


# Forms.


@pytest.fixture(scope="module")
def webm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The samples in WebM as distributed: by id, in the folder of the archives."""
    folder = tmp_path_factory.mktemp("webm")
    (folder / "20bn-something-something-v2").mkdir()
    for name, sample in (("41", "testsrc_vp9"), ("5", "testsrc_vp8")):
        target = folder / "20bn-something-something-v2" / f"{name}.webm"
        shutil.copy(SAMPLES / f"{sample}.webm", target)
    write_json(folder, ["41", "5"])
    return folder


@needs_samples
def test_webm_files_are_read_directly(webm, caplog):
    caplog.set_level(logging.INFO)
    data = ClipDataset(config(webm), "train")
    assert f"train: 2 videos of {webm}/something-something-v2-train.json" in caplog.text
    assert (webm / "something-something-v2-train.index.json.gz").is_file()
    for shape in (BASE, COARSE):
        batch = data.__getitems__([ClipRequest(n, 0, shape, 0) for n in range(2)])
        assert batch["clips"].shape == (2, shape.frames, 48, 48, 3)
        assert (batch["labels"].tolist(), batch["failures"]) == ([0, 1], [])
    data = ClipDataset(config(webm), "val")
    path = f"{webm}/20bn-something-something-v2/41.webm"
    # 25 frames of 321 × 240 in 8 segments; the centre of a frame resized to 64 × 48.
    wanted = ClipPlan(np.array([1, 4, 7, 10, 14, 17, 20, 23]), (64, 48), (8, 0), 48, False)
    assert np.array_equal(data[0]["clip"], read_clip(path, scan(path), wanted))
