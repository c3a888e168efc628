"""The task of boxes: what it takes from a mini-batch, and how boxes are pooled, by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from multigrid import ClipPlan, Video
from slowfast_patches.config import load_recipe
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from slowfast_patches.extras.detection import box_scores, detection_task, key_frame_clips
from slowfast_patches.extras.detection.box_scores import BoxScores
from slowfast_patches.extras.detection.detection_task import check_feature_map
from slowfast_patches.extras.detection.key_frame_clips import (
    Targets,
    boxes_in_clip,
    classes_of,
    frame_of,
    pack,
)
from slowfast_patches.extras.detection.lists import KeyFrame
from slowfast_patches.tasks import task_of
from slowfast_patches.train.predict.predictor import require_clip_scores
from slowfast_patches.utils.errors import UserError
from tests.slowfast_patches.extras.detection.ava_lists import KEYS

CPU = torch.device("cpu")
BOXES = np.array([[1.0, 2, 3, 4], [5, 6, 7, 8]], np.float32)
CLASSES = np.array([[1.0, 0, 0], [0, 1, 1]], np.float32)
TWO = pack(np.array([1, 0.5], np.float32), BOXES, CLASSES, 3)
ONE = pack(np.array([0.25], np.float32), BOXES[:1], CLASSES[1:], 3)
LABELS = torch.from_numpy(np.stack([TWO, ONE]))
BATCH = {"clips": torch.zeros(2), "flips": "f", "labels": LABELS, "videos": torch.tensor([2, 0])}


def task() -> Any:
    return task_of(load_recipe(None, KEYS))


def test_labels_are_packed_and_unpacked():
    assert TWO.shape == (3, 8)
    assert (TWO[2] == -1).all()
    found = Targets.of_labels(LABELS)
    assert found.counts.tolist() == [2, 1]
    assert found.boxes.tolist() == [[0, 1, 2, 3, 4], [0, 5, 6, 7, 8], [1, 1, 2, 3, 4]]
    assert found.classes.tolist() == [[1, 0, 0], [0, 1, 1], [0, 1, 1]]
    assert found.shares.tolist() == [1, 0.5, 0.25]
    assert found.places.tolist() == [0, 1, 0]


def test_the_network_gets_the_boxes_and_the_loss_a_row_for_each():
    made = task()
    pathways, boxes = made.arguments(BATCH, lambda clips, flips: ["slow"], CPU)
    assert pathways == ["slow"]
    assert torch.equal(boxes, Targets.of_labels(LABELS).boxes)
    assert made.targets(BATCH, CPU).tolist() == [[1, 0, 0], [0, 1, 1], [0, 1, 1]]
    assert made.rows_of_clips(BATCH) == [2, 1]
    assert made.classes(TWO) == [0, 1, 2]
    assert made.classes(ONE) == [1, 2]


def test_the_loss_is_divided_by_the_mean_number_of_boxes_of_the_processes(monkeypatch):
    assert float(task().loss_normalizer(BATCH, CPU)) == 3
    other = torch.tensor([7.0, 1.0])  # another process has 7 boxes
    monkeypatch.setattr(detection_task, "sum_over_ranks", lambda values: values + other)
    assert float(task().loss_normalizer(BATCH, CPU)) == 5


def test_random_labels_have_a_box_over_the_whole_clip():
    labels = task().random_labels(50, 32, torch.Generator().manual_seed(0))
    found = Targets.of_labels(labels)
    assert found.counts.tolist() == [1] * 50
    assert found.boxes.tolist() == [[n, 0, 0, 32, 32] for n in range(50)]
    assert found.shares.tolist() == [1] * 50
    assert found.classes.shape == (50, 3)
    assert found.classes.unique().tolist() == [0, 1]


def test_the_task_delegates_scores_and_predictions(monkeypatch):
    dataset = SimpleNamespace(first_rows=np.array([0, 2]), videos=[1])
    assert isinstance(task().scores(dataset, CPU), BoxScores)
    monkeypatch.setattr(detection_task, "predict_boxes", lambda *given: given)
    assert task().predict("model", "a.mp4", "boxes.csv") == ("model", "a.mp4", "boxes.csv")


def test_the_stride_of_the_feature_map_is_checked():
    strides = [[1, 1], [2, 2], [2, 2], [2, 2]]
    recipe = load_recipe(None, [*KEYS, "RESNET.SPATIAL_STRIDES", strides])
    with pytest.raises(UserError, match=r"a stride of 32 pixels. Set .*SPATIAL_SCALE_FACTOR 32"):
        check_feature_map(recipe)
    check_feature_map(recipe.replaced({"DETECTION.SPATIAL_SCALE_FACTOR": 32}))
    check_feature_map(load_recipe(None, KEYS))


def test_boxes_need_a_feature_map():
    model = SimpleNamespace(arch="a transformer", spec=SimpleNamespace(is_resnet=False))
    with pytest.raises(UserError, match=r"a transformer is not possible .* no feature map to pool"):
        check_feature_map(SimpleNamespace(model=model))


def test_the_files_of_an_evaluation_are_read_before_a_run(monkeypatch):
    read = list[object]()
    monkeypatch.setattr(detection_task, "read_annotations", read.append)
    made = task()
    made.check_files()
    assert read == [made.recipe]


# Scores.


def frame(name: str, second: int, count: int) -> KeyFrame:
    boxes = tuple((0.1 * n, 0.0, 0.5, 0.5) for n in range(count))
    return KeyFrame(f"{name}.mp4", 0, name, second, boxes, ((0,),) * count)


def box_scores_of(*counts: int) -> tuple[BoxScores, Any]:
    frames = [frame("a", 902 + n, count) for n, count in enumerate(counts)]
    rows = np.cumsum([0, *counts])
    dataset = SimpleNamespace(first_rows=rows, videos=frames, num_clips=1, split="test")
    recipe = load_recipe(None, [*KEYS, "DATA.MAX_BAD_FRACTION", 0.9])
    return BoxScores(recipe, dataset, CPU), dataset


def test_scores_are_added_to_the_rows_of_their_boxes_by_what_is_shown():
    """Key frame 2 has the rows 3 and 4, and key frame 0 has the row 0."""
    made, _ = box_scores_of(1, 2, 2)
    made.add(BATCH, torch.tensor([[0.1] * 3, [0.2] * 3, [0.8] * 3]))
    assert made.weights.tolist() == [0.25, 0, 0, 1, 0.5]
    assert made.scores[:, 0].tolist() == pytest.approx([0.2, 0, 0, 0.1, 0.1])
    assert made.clips.tolist() == [1, 0, 1]
    made.add(BATCH, torch.tensor([[0.1] * 3, [0.2] * 3, [0.4] * 3]))
    assert made.scores[:, 0].tolist() == pytest.approx([0.3, 0, 0, 0.2, 0.2])
    assert made.clips.tolist() == [2, 0, 2]


def test_a_box_that_no_clip_shows_has_a_score_all_the_same():
    made, _ = box_scores_of(1)
    hidden = torch.from_numpy(pack(np.zeros(1, np.float32), BOXES[:1], CLASSES[:1], 1))[None]
    made.add({"labels": hidden, "videos": torch.tensor([0])}, torch.tensor([[0.7] * 3]))
    assert 0 < made.weights.item() < 1e-5
    assert (made.scores / made.weights[:, None])[0].tolist() == pytest.approx([0.7] * 3)


def test_ranks_add_their_scores_and_no_precision_or_nan_is_refused(monkeypatch):
    summed = list[Any]()
    monkeypatch.setattr(box_scores, "sum_over_ranks", summed.append)
    monkeypatch.setattr(box_scores, "ava_precisions", lambda *_: [40.0, None, 60.0])
    made, _ = box_scores_of(1, 1)
    made.add(BATCH | {"labels": LABELS[1:], "videos": torch.tensor([0])}, torch.full((1, 3), 0.5))
    found = made.result()
    assert summed == [made.scores, made.weights, made.clips]
    assert found.metrics == {"map": 50.0, "videos": 2, "unreadable": 1}
    assert found.scored.tolist() == [True, False]
    assert found.labels.tolist() == [[1, 0, 0], [1, 0, 0]]
    assert found.names == ["a 902 (0.0, 0.0, 0.5, 0.5)", "a 903 (0.0, 0.0, 0.5, 0.5)"]
    assert found.loss == pytest.approx(np.log(2))
    monkeypatch.setattr(box_scores, "ava_precisions", lambda *_: [None, None])
    with pytest.raises(UserError, match=r"no box in AVA.GROUNDTRUTH_FILE has a class"):
        made.result()
    made.scores[0] = torch.nan
    with pytest.raises(UserError, match="mAP cannot be computed, because the model returns NaN"):
        made.result()


def test_a_video_is_unread_if_none_of_its_key_frames_has_a_score():
    frames = [frame("a", 902, 2), frame("a", 903, 1), frame("b", 902, 1)]
    assert box_scores._unread(frames, [True] * 4) == set()
    assert box_scores._unread(frames, [False, True, True, True]) == set()
    assert box_scores._unread(frames, [False, False, True, True]) == {"a,0902"}
    assert box_scores._unread(frames, [True, True, True, False]) == {"b,0902", "b"}
    assert box_scores._unread(frames, [False] * 4) == {"a,0902", "a,0903", "a", "b,0902", "b"}


# Clips.


def plan_of(size: tuple[int, int], corner: tuple[int, int], *, flip: bool = False) -> ClipPlan:
    return ClipPlan(np.zeros(1, np.int64), size, corner, 100, flip)


def test_a_box_is_moved_and_cut_off_by_the_crop():
    boxes = np.array([[0.0, 0.25, 0.5, 1.0]], np.float32)  # 0 to 100, and 50 to 200, of 200 × 200
    inside, parts = boxes_in_clip(boxes, plan_of((200, 200), (50, 100)))
    assert inside.tolist() == [[0, 0, 50, 100]]
    assert parts[0].tolist() == pytest.approx([1 / 3, 0.5])
    flipped, parts = boxes_in_clip(boxes, plan_of((200, 200), (50, 100), flip=True))
    assert flipped.tolist() == [[50, 0, 100, 100]]


def test_the_frame_of_a_second():
    video = Video(60, 30.0, 340, 256)
    assert [frame_of(second, video) for second in (900, 901)] == [0, 30]
    for second in (899, 902):
        with pytest.raises(
            UnreadableVideoError, match=f"ends before its key frame at second {second}"
        ):
            frame_of(second, video)


def test_labels_of_key_frames_are_multi_hot():
    key_frame = KeyFrame("a.mp4", 0, "a", 902, ((0, 0, 1, 1),) * 2, ((0, 2), (1,)))
    assert classes_of(key_frame, 3).tolist() == [[1, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("box", "corner"),
    [
        ((0.4, 0.4, 0.6, 0.6), (100, 50)),  # centred: (150 - 50, 100 - 50)
        ((0.0, 0.0, 0.1, 0.1), (0, 0)),
        ((0.9, 0.9, 1.0, 1.0), (200, 100)),
    ],
)
def test_the_last_crop_is_over_the_box_and_inside_the_frame(box, corner):
    assert key_frame_clips._corner_over(box, plan_of((300, 200), (0, 0))) == corner


@pytest.mark.parametrize(
    ("edges", "seen"),
    [
        # Of boxes 0.25 of the clip long, a crop at x = 0 to 100 of 400 shows as much as this.
        ((0.0, 0.25), True),
        ((0.1875, 0.4375), True),  # a quarter of it
        ((0.19, 0.44), False),
        ((0.5, 0.6), False),
    ],
)
def test_a_box_is_trained_if_a_quarter_of_it_is_seen(edges, seen):
    dataset = object.__new__(key_frame_clips.KeyFrameClips)
    plan = ClipPlan(np.zeros(1, np.int64), (400, 100), (0, 0), 100, False)
    key_frame = KeyFrame("a.mp4", 0, "a", 902, ((edges[0], 0.0, edges[1], 1.0),), ((1,),))
    dataset.videos, dataset.split = [key_frame], "train"
    dataset._classes, dataset._most = 3, 2
    drawn = list[float]()
    found, more = dataset._aim(0, Video(90, 30.0, 400, 100), lambda at: drawn.append(at) or plan)
    assert drawn == [60.0] * (1 if seen else 11)
    assert more["resampled"] == (0 if seen else 10)
    assert more["label"].shape == (2, 8)
    corner = round(200 * sum(edges) - 50)
    assert found.corner == ((0, 0) if seen else (min(max(corner, 0), 300), 0))


def test_a_model_that_needs_boxes_scores_no_videos():
    recipe = load_recipe(None)
    require_clip_scores(recipe, Path("a.pyth"))
    boxes = recipe.replaced({"DETECTION.ENABLE": True})
    with pytest.raises(UserError, match=r"^a\.pyth is a model for detection, .* --targets FILE"):
        require_clip_scores(boxes, Path("a.pyth"))
