"""Clips of all data sets: frames and crops in each split, labels, and unreadable videos."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import cv2
import numpy as np
import pytest
import torch

from multigrid import ClipRequest, Sampling, SamplingOptions, Shape, Video
from multigrid.errors import MultigridError
from slowfast_patches.datasets import clip_dataset
from slowfast_patches.datasets.clip_dataset import ClipDataset
from slowfast_patches.datasets.lists.frame_list import HEADER
from slowfast_patches.datasets.reading.scanned_video import Kind, ScannedVideo, ScannedVideos
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from slowfast_patches.seams import ClipTransform
from slowfast_patches.utils.errors import RunError
from tests.slowfast_patches.datasets.made_videos import write_video
from tests.slowfast_patches.datasets.recipes import recipe_of

BASE, COARSE = Shape(2, 8, 48), Shape(16, 2, 32)
VIDEOS, STEP = 5, 5
LABELS = [{0}] * 10 + [set()] * 10 + [{1, 2}] * 10 + [{2}] * 3
LABELS += [set()] * 7 + [{4}] + [set()] * 6 + [{3}]
"""Of the frames of Charades' first video; the second has none, the third 5 on every frame."""
SIX_VIEWS = ("TEST.NUM_ENSEMBLE_VIEWS", 2, "TEST.NUM_SPATIAL_CROPS", 3)


def pictures(count, blue=0):
    """Dark on the left and bright on the right in red; their green is STEP times their number."""
    images = np.full((count, 64, 96, 3), blue, np.uint8)
    images[..., 0] = np.linspace(0, 255, 96)
    images[..., 1] = STEP * np.arange(count)[:, None, None]
    return images


def numbers(clip):
    """Return the numbers that the frames of a clip show."""
    return [round(level / STEP) for level in clip[..., 1].mean((1, 2))]


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    for number in range(VIDEOS):
        write_video(folder / f"{number}.mp4", pictures(24, 50 * number), options={"crf": "8"})
    lines = "".join(f"{number}.mp4 {number % 2}\n" for number in range(VIDEOS))
    for split in ("train", "val", "test"):
        (folder / f"{split}.csv").write_text(lines)
    return folder


@pytest.fixture
def spoilt(videos, tmp_path):
    """Return `spoilt(number, ...)`, which makes a data folder where these videos are text files."""

    def make(*spoil):
        for path in videos.glob("*.*"):
            if path.stem in map(str, spoil):
                (tmp_path / path.name).write_text("no video")
            elif "index" not in path.name:
                (tmp_path / path.name).symlink_to(path)
        return tmp_path

    return make


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    """Three videos of JPEG files, of 48, 24 and 48 frames, listed as in Charades."""
    folder, lines = tmp_path_factory.mktemp("frames"), [HEADER]
    for name, labels in (("AA", LABELS), ("BB", [set()] * 24), ("CC", [{5}] * 48)):
        for number, image in enumerate(pictures(len(labels))):
            path = f"{name}-{number}.jpg"
            quality = [cv2.IMWRITE_JPEG_QUALITY, 100]
            cv2.imwrite(str(folder / path), image[..., ::-1], quality)
            lines.append(f'{name} 0 {number} {path} "{",".join(map(str, sorted(labels[number])))}"')
    for split in ("train", "val"):
        (folder / f"{split}.csv").write_text("\n".join(lines))
    return folder


# Training.


@pytest.mark.parametrize(
    ("policy", "taken"),
    [
        ("repeat_last", [0, 4, 8, 12, 16, 20, 23, 23]),
        ("wrap", [0, 4, 8, 12, 16, 20, 0, 4]),
    ],
)
def test_a_clip_longer_than_the_video_shows_what_the_key_says(videos, policy, taken):
    """8 frames at a stride of 4 span 32 frames of a video of 24."""
    keys = ("DATA.SAMPLING_RATE", 4, "DATA.EXACT_STRIDES", True, "DATA.SHORT_VIDEOS", policy)
    for split, request in (("train", ClipRequest(1, 0, BASE, 17)), ("val", 3)):
        item = ClipDataset.of_recipe(recipe_of(videos, *keys), split)[request]
        assert numbers(item["clip"]) == taken


def test_the_policy_error_names_the_video_that_is_too_short(videos):
    keys = ("DATA.SAMPLING_RATE", 4, "DATA.SHORT_VIDEOS", "error")
    data = ClipDataset.of_recipe(recipe_of(videos, *keys), "train")
    with pytest.raises(RunError, match=r"1\.mp4: the video has 24 frames, but the clip needs 32"):
        data[ClipRequest(1, 0, BASE, 17)]


def test_the_same_request_gives_the_same_item_and_another_epoch_another(videos):
    """Also in another order."""
    requests = [ClipRequest(1, epoch, BASE, 17) for epoch in range(3)]
    data, again = (ClipDataset.of_recipe(recipe_of(videos), "train") for _ in range(2))
    made = [data[request] for request in requests]
    for request, item in zip(requests[::-1], made[::-1], strict=True):
        np.testing.assert_equal(again[request], item)
    clips = [item["clip"] for item in made]
    assert (clips[0].shape, clips[0].dtype) == ((8, 48, 48, 3), np.uint8)
    assert (made[0]["label"], made[0]["video"], made[0]["iteration"]) == (1, 1, 17)
    assert len({clip.tobytes() for clip in clips}) == 3


def test_registered_changes_are_made_in_order_to_training_clips_alone(videos, monkeypatch):
    seen = []

    def double(clip, epoch, video):
        seen.append((epoch, video))
        clip *= 2

    def fill(clip, epoch, video):
        clip[...] = 10

    on = [ClipTransform("TRAIN.ENABLE", lambda recipe, f=f: f, print) for f in (fill, double)]
    off = ClipTransform("TRAIN.COMPILE", pytest.fail, print)
    monkeypatch.setattr(clip_dataset, "CLIP_TRANSFORMS", [*on, off])
    train, val = (ClipDataset.of_recipe(recipe_of(videos), split) for split in ("train", "val"))
    assert (train[ClipRequest(3, 2, BASE, 17)]["clip"] == 20).all()
    assert seen == [(2, 3)]
    assert not (val[3]["clip"] == 20).all()
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("keys", "taken"),
    [
        ((), [4, 6, 8, 10, 12, 14, 16, 19]),  # the middle 16 of 24, spread to the last
        (("DATA.EXACT_STRIDES", True), [4, 6, 8, 10, 12, 14, 16, 18]),
        (("DATA.CLIP_SAMPLING", "segments"), [1, 4, 7, 10, 13, 16, 19, 22]),
    ],
)
def test_validation_takes_the_centre_clip(videos, keys, taken):
    item = ClipDataset.of_recipe(recipe_of(videos, *keys), "val")[3]
    assert numbers(item["clip"]) == taken
    assert (item["label"], item["video"], item["flip"], item["iteration"]) == (1, 3, False, -1)
    # A ramp from 0 to 255 is at half of it in the centre of the frame.
    assert item["clip"][..., 0].mean() == pytest.approx(127.5, abs=6)


# Testing.


def test_test_items_are_views_by_crops_of_a_video_read_in_one_pass(videos):
    """The clips are equal to those that are read one by one."""
    data = ClipDataset.of_recipe(recipe_of(videos, *SIX_VIEWS), "test")
    assert (len(data), data.num_clips) == (VIDEOS * 6, 6)
    with patch.object(clip_dataset, "read_clips", side_effect=clip_dataset.read_clips) as read:
        batch = data.__getitems__(range(4, 14))
    assert [len(call.args[3]) for call in read.call_args_list] == [2, 6, 2]
    assert batch["videos"].tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 2, 2]
    alone = [data[number]["clip"] for number in range(4, 14)]
    assert np.array_equal(batch["clips"], alone)
    views = np.reshape(alone[2:8], (2, 3, 8, 64, 64, 3))
    red = views[..., 0].mean((2, 3, 4))
    assert (np.diff(red) > 0).all()  # left, centre, right
    first = views[:, :, 0, ..., 1].mean((2, 3))
    assert first[0].max() < first[1].min()  # the second view starts later


# Unreadable videos.


def test_an_unreadable_video_is_replaced_by_the_same_other_and_reported(spoilt):
    folder = spoilt(2)
    one, again = (ClipDataset.of_recipe(recipe_of(folder), "train") for _ in range(2))
    replaced = [one[ClipRequest(2, epoch, COARSE, 0)] for epoch in range(8)]
    for item in replaced:
        assert item["label"] == item["video"] % 2
        assert {path for path, _ in item["failures"]} == {f"{folder}/2.mp4"}
    assert np.array_equal(again[ClipRequest(2, 0, COARSE, 0)]["clip"], replaced[0]["clip"])
    others = {item["video"] for item in replaced}
    assert len(others) > 1
    assert 2 not in others


def test_each_unreadable_video_is_counted_once_in_an_epoch(spoilt):
    """Replacements that are unreadable too are not counted."""
    data = ClipDataset.of_recipe(recipe_of(spoilt(0, 1, 3)), "train")
    for epoch in range(8):
        batch = data.__getitems__([ClipRequest(n, epoch, COARSE, 0) for n in range(len(data))])
        assert len(batch["failures"]) == 3


def test_a_mini_batch_of_evaluation_is_without_unreadable_clips(spoilt):
    folder = spoilt(1, 3)
    data = ClipDataset.of_recipe(recipe_of(folder), "val")
    for asked, left in (([0, 1, 2, 3], [0, 2]), ([1, 3], [])):
        batch = data.__getitems__(asked)
        assert (batch["videos"].tolist(), batch["labels"].tolist()) == (left, [0] * len(left))
        for clip, number in zip(batch["clips"], left, strict=True):
            assert np.array_equal(clip, data[number]["clip"])
        assert [path for path, _ in batch["failures"]] == [f"{folder}/1.mp4", f"{folder}/3.mp4"]


def test_a_list_of_unreadable_videos_stops_with_a_message(spoilt):
    folder = spoilt(*range(VIDEOS))
    data = ClipDataset.of_recipe(recipe_of(folder), "train")
    first = f"{folder}/4.mp4: cannot"
    with pytest.raises(RunError, match=f"^10 videos in a row .* first is {first}.*PATH_PREFIX"):
        data[ClipRequest(4, 0, COARSE, 0)]


# Charades: several labels a clip, those of its span in training and of the video in testing.


def classes(item):
    """Return the classes in the multi-hot label of an item."""
    label = item["label"]
    assert (label.dtype, label.shape) == (np.float32, (6,))
    assert set(label) <= {0, 1}
    return set(np.flatnonzero(label))


@pytest.mark.parametrize(
    ("shape", "spans"),
    [(BASE, {16}), (COARSE, {4, 6, 8, 10, 12, 14, 16})],  # stride 2, and strides 2 to 8
)
def test_a_training_clip_has_the_labels_from_its_first_to_its_last_frame(frames, shape, spans):
    data = ClipDataset.of_recipe(recipe_of(frames, dataset="charades"), "train")
    found = set()
    for epoch in range(40):
        item = data[ClipRequest(0, epoch, shape, 0)]
        taken = numbers(item["clip"])
        assert classes(item) == set().union(*LABELS[taken[0] : taken[-1] + 1])
        found.add(taken[-1] - taken[0] + 1)
    assert found == spans


def test_a_clip_of_evaluation_has_the_labels_of_the_whole_video(frames):
    data = ClipDataset.of_recipe(recipe_of(frames, dataset="charades"), "val")
    assert [classes(data[video]) for video in range(3)] == [{0, 1, 2, 3, 4}, set(), {5}]


def test_the_views_of_a_test_reach_the_end_of_the_video(frames):
    """48 frames and a span of 16 at any frame rate: the three views start 16 frames apart."""
    keys = ("TEST.NUM_ENSEMBLE_VIEWS", 3, "DATA.TARGET_FPS", 24)
    data = ClipDataset.of_recipe(recipe_of(frames, *keys, dataset="charades"), "test")
    taken = [numbers(data[number]["clip"]) for number in range(3)]
    assert [(view[0], view[-1]) for view in taken] == [(0, 15), (16, 31), (32, 47)]


# Made-up videos, of which some clips cannot be read.


class Source(SimpleNamespace):
    """Video of 24 frames that needs no index."""

    def scanned(self) -> ScannedVideo:
        return ScannedVideo(Kind.VIDEO, Video(24, 30.0, 96, 64), keys=np.array([0, 12]))


@pytest.fixture
def made_up(monkeypatch):
    """Return `made_up(*bad, ...)`: a data set of four videos, and what was read in each pass.

    A clip of a video is filled with the number of the video and can be read, unless `bad` has the
    number of the video, or the number with that of a frame of the clip.
    """

    def make(*bad: object, views: tuple[int, int] = (1, 1), count: int = 4, **how: object):
        passes = []

        def read_clips(path, scanned, plans, outs):
            number = int(path)
            passes.append((number, len(plans)))
            for plan, out in zip(plans, outs, strict=True):
                frames = plan.frame_indices.tolist()
                if number in bad or any((number, frame) in bad for frame in frames):
                    raise UnreadableVideoError("is damaged")
                out[:] = 10 + number

        monkeypatch.setattr(clip_dataset, "read_clips", read_clips)
        videos = [Source(path=str(number), label=number % 2) for number in range(count)]
        sampling = Sampling(BASE, 2, (48, 48), SamplingOptions(), to_end=True)
        data = ClipDataset(videos, None, sampling, seed=3, views=views, **how)
        return data, passes

    return make


def test_the_clips_of_a_video_that_is_read_in_part_are_read_one_by_one(made_up):
    """Of three views of video 1, the last one contains frame 23."""
    data, passes = made_up((1, 23), views=(3, 1))
    batch = data.__getitems__([2, 3, 4, 5, 6])
    assert passes == [(0, 1), (1, 3), (1, 1), (1, 1), (1, 1), (2, 1)]
    assert batch["videos"].tolist() == [0, 1, 1, 2]
    assert batch["clips"][:, 0, 0, 0, 0].tolist() == [10, 11, 11, 12]
    assert batch["failures"] == [("1", "is damaged")]
    assert (batch["iteration"], batch["flips"].any()) == (-1, False)


def test_an_unreadable_clip_of_evaluation_is_black_and_has_no_label(made_up):
    data, _ = made_up(2)
    item = data[2]
    assert not item.pop("clip").any()
    assert item == {
        "flip": False,
        "video": 2,
        "iteration": -1,
        "unread": True,
        "failures": [("2", "is damaged")],
    }


def test_a_training_clip_is_replaced_up_to_ten_times(made_up):
    """Only the video that was asked for is a failure."""
    data, passes = made_up(*range(3))
    item = data[ClipRequest(1, 5, BASE, 7)]
    assert passes[0] == (1, 1)
    assert passes[-1] == (3, 1)
    assert (item["video"], item["label"], item["iteration"]) == (3, 1, 7)
    assert item["failures"] == [("1", "is damaged")]
    assert item["failed_epochs"] == [5]
    fine = data[ClipRequest(3, 5, BASE, 7)]
    assert (fine["failures"], fine["failed_epochs"]) == ([], [])
    batch = data.__getitems__([ClipRequest(number, 5 + number, BASE, 7) for number in range(4)])
    assert [path for path, _ in batch["failures"]] == ["0", "1", "2"]
    assert batch["failed_epochs"] == [5, 6, 7]
    data, passes = made_up(*range(4))
    with pytest.raises(RunError, match=r"^10 videos in a row .* The first is 2: is"):
        data[ClipRequest(2, 5, BASE, 7)]
    assert len(passes) == 10


def test_changes_are_told_the_epoch_and_the_video_that_was_asked_for(made_up):
    seen = []
    data, _ = made_up(1, changes=[lambda clip, *about: seen.append((int(clip.max()), *about))])
    item = data[ClipRequest(1, 5, BASE, 7)]
    assert seen == [(10 + item["video"], 5, 1)]


def test_the_coverage_is_told_of_shapes_other_than_the_baseline_in_training(made_up):
    data, _ = made_up(evaluation_crop=32)
    assert "coverage" not in data.__getitems__([ClipRequest(0, 0, BASE, 0)])
    for shape in (COARSE, Shape(2, 8, 32), Shape(2, 4, 48)):
        batch = data.__getitems__([ClipRequest(number, 0, shape, 0) for number in (0, 1)])
        assert batch["coverage"].shape == (2, 2)
    assert "coverage" not in data.__getitems__([0, 1])  # whose crop is another as well


def test_sides_are_those_of_the_request_or_of_the_baseline(made_up):
    data, _ = made_up()
    assert data[0]["clip"].shape == (8, 48, 48, 3)
    assert data[ClipRequest(0, 0, COARSE, 0)]["clip"].shape == (2, 32, 32, 3)
    other, _ = made_up(evaluation_crop=64)
    assert other[0]["clip"].shape == (8, 64, 64, 3)


def test_draws_that_were_rejected_are_counted(made_up, monkeypatch):
    def aim(self, number, video, draw):
        return draw(), {"label": 0, **({"resampled": 2} if number else {})}

    monkeypatch.setattr(ClipDataset, "_aim", aim)
    data, _ = made_up()
    requests = [ClipRequest(number, 0, BASE, 0) for number in (0, 1, 2)]
    assert data.__getitems__(requests)["resampled"] == 4


def test_opencv_uses_no_threads_in_a_worker(made_up, monkeypatch):
    set_to = []
    monkeypatch.setattr(cv2, "setNumThreads", set_to.append)
    data, _ = made_up()
    data[0]
    assert set_to == []
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: "a worker")
    data[0]
    assert set_to == [0]


@pytest.mark.parametrize(
    ("keys", "reliable", "noted"),
    [([0, 12], False, True), ([0, 12], True, False), ([0], False, False)],
)
def test_a_video_in_which_a_seek_failed_is_noted(made_up, monkeypatch, keys, reliable, noted):
    notes = []
    monkeypatch.setattr(clip_dataset, "is_reliable", lambda path: reliable)
    monkeypatch.setattr(clip_dataset, "note_unseekable", lambda csv, path: notes.append(path))
    data, _ = made_up()
    data[1]
    assert notes == []  # there is no index
    video = ScannedVideo(Kind.VIDEO, Video(24, 30.0, 96, 64), keys=np.array(keys))
    rows = [(video.packed(), "", True)] * 4
    data.index = ScannedVideos(Path("train.csv"), rows, [], "", "")
    data[1]
    assert notes == ["1"] * noted


def test_an_error_of_the_task_about_a_video_replaces_it_and_one_about_the_recipe_does_not(
    made_up, monkeypatch
):
    errors = [UnreadableVideoError("ends before its key frame"), MultigridError("is too short")]

    def aim(self, number, video, draw):
        if number == 1:
            raise error
        return draw(), {"label": 0}

    monkeypatch.setattr(ClipDataset, "_aim", aim)
    data, _ = made_up()
    error = errors[0]
    assert data[ClipRequest(1, 0, BASE, 0)]["failures"] == [("1", "ends before its key frame")]
    error = errors[1]
    with pytest.raises(RunError, match=r"^1: is too short"):
        data[ClipRequest(1, 0, BASE, 0)]
