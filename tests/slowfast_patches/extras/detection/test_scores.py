"""Tests of the scores of boxes: weighted means over clips, and average precision by hand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from slowfast_patches.datasets.loader import build_dataset
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from slowfast_patches.extras.detection.box_scores import BoxScores, ava_precisions
from slowfast_patches.extras.detection.key_frame_clips import Targets, classes_of
from slowfast_patches.extras.detection.predict_boxes import predict_boxes
from slowfast_patches.tasks import task_of
from slowfast_patches.tasks.scores import Evaluation
from slowfast_patches.utils.errors import UserError
from tests.slowfast_patches.datasets.made_videos import write_jpeg
from tests.slowfast_patches.extras.detection.ava_lists import BOXES, recipe_of, write_lists

KEYS = ("DATA.NUM_FRAMES", 4, "DATA.TRAIN_CROP_SIZE", 64, "DATA.TEST_CROP_SIZE", 64)
ANNOTATED = ("AVA.TEST_PREDICT_BOX_LISTS", [])
# Video a does what class 1 is, b what class 3 is; the label map has no class 2.
TRUTH = f"a,0902,{BOXES['a']},1,0\nb,0902,{BOXES['b']},3,0\n"
# Class 1: a is ranked first, which is right: 100. Class 3: b is ranked second of two, so its
# precision is 1/2: 50. Their mean is 75.
SCORES = torch.tensor([[0.9, 0.5, 0.8], [0.1, 0.5, 0.3]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_lists(tmp_path_factory.mktemp("ava_truth"), TRUTH, val=TRUTH)


def judged(folder: Path, *keys: object) -> Evaluation:
    """Return the scores of two key frames. All crops of a key frame have the same scores."""
    made, dataset = scores_and_clips(folder, *keys)
    for clip in range(len(dataset)):
        batch = dataset.__getitems__([clip])
        made.add(batch, SCORES[batch["videos"]])
    return made.result()


def scores_and_clips(folder: Path, *keys: object) -> tuple[BoxScores, Any]:
    recipe = recipe_of(folder, *KEYS, *keys)
    dataset = build_dataset(recipe, "test")
    return BoxScores(recipe, dataset, torch.device("cpu")), dataset


def test_average_precision_is_avas(folder):
    found = judged(folder, *ANNOTATED)
    assert found.metrics == {"map": pytest.approx(75), "videos": 2, "unreadable": 0}
    assert found.precisions == [pytest.approx(100), None, pytest.approx(50)]
    torch.testing.assert_close(found.probabilities.float(), SCORES)
    assert found.labels.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert next(iter(found.names)) == "a 902 (0.125, 0.25, 0.375, 0.75)"


def test_excluded_key_frames_do_not_count(tmp_path):
    lists = write_lists(tmp_path, TRUTH, val=TRUTH)
    (lists / "left_out.csv").write_text("a,0902\n")
    found = judged(lists, *ANNOTATED, "AVA.EXCLUSION_FILE", "left_out.csv")
    assert found.metrics["map"] == pytest.approx(100)  # of class 3, where b is alone
    absent = judged(lists, *ANNOTATED, "AVA.EXCLUSION_FILE", "absent.csv")
    assert absent.metrics["map"] == pytest.approx(75)


@pytest.mark.parametrize(("right", "expected"), [("0.375", 75), ("0.300", 75), ("0.245", 25)])
def test_a_detectors_box_counts_where_half_of_it_overlaps(tmp_path, right, expected):
    """Of a's box, 0.25 wide, as much as 0.25, 0.175 and 0.12 is found: in the last, nothing."""
    predicted = f"a,0902,0.125,0.250,{right},0.750,,1.0\nb,0902,{BOXES['b']},,0.9\n"
    found = judged(write_lists(tmp_path, TRUTH, val=TRUTH, predicted=predicted))
    assert found.metrics["map"] == pytest.approx(expected)
    assert not found.labels.any()


def test_a_validation_is_on_every_fourth_second(tmp_path):
    later = TRUTH.replace("0902", "0904") + f"a,0903,{BOXES['a']},3,0\n"
    lists = write_lists(tmp_path, later, val=later)
    recipe = recipe_of(lists, *KEYS, *ANNOTATED)
    assert len(build_dataset(recipe, "val").videos) == 2
    assert len(build_dataset(recipe, "test").videos) == 3


@pytest.mark.parametrize(("whole", "precision"), [(False, 100), (True, 50)])
@pytest.mark.parametrize("second", [902, 903, 905])
def test_a_validation_is_scored_on_every_fourth_second(tmp_path, second, whole, precision):
    """The detector finds the box of second 904. Another second has a box that it misses."""
    truth = f"a,0{second},{BOXES['a']},1,0\na,0904,{BOXES['a']},1,0\n"
    lists = write_lists(tmp_path, truth, val=truth, predicted=f"a,0904,{BOXES['a']},,0.99\n")
    recipe = recipe_of(lists, *KEYS, "AVA.FULL_TEST_ON_VAL", whole)
    dataset = build_dataset(recipe, "val")
    assert [key_frame.second for key_frame in dataset.videos] == [904]
    found = ava_precisions(recipe, dataset, [[0.9, 0.5, 0.8]], [True])
    assert found == [pytest.approx(precision), None, None]


def test_crops_count_by_what_they_show_of_a_box(folder):
    """The crops show 1, 20/24 and 4/24 of box a."""
    made, dataset = scores_and_clips(folder, *ANNOTATED)
    made.add(dataset.__getitems__([0, 1, 2]), torch.tensor([[0.3], [0.6], [0.9]]).expand(3, 3))
    made.add(dataset.__getitems__([3, 4, 5]), torch.full((3, 3), 0.2))
    expected = (0.3 + 0.6 * 20 / 24 + 0.9 * 4 / 24) / 2
    assert made.result().probabilities[:, 0].tolist() == pytest.approx([expected, 0.2])


def perfect(folder: Path, *keys: object, unread: Sequence[int] = ()) -> dict[str, float]:
    """Return the metrics of scores that equal the labels. Some key frames cannot be read."""
    made, dataset = scores_and_clips(folder, *keys)
    rows = 0
    for number, key_frame in enumerate(dataset.videos):
        count = len(key_frame.boxes)
        if number not in unread:
            made.scores[rows : rows + count] = torch.from_numpy(classes_of(key_frame, 3))
            made.weights[rows : rows + count] = 1
            made.clips[number] = dataset.num_clips
        rows += count
    return made.result().metrics


@pytest.mark.parametrize("unread", [(), (0,), (1,), (0, 1), (2,), (3,), (2, 3)])
def test_what_cannot_be_read_is_not_scored(tmp_path, unread):
    """Key frames of a video, or a whole video, that cannot be read do not lower a perfect mAP."""
    later = TRUTH + TRUTH.replace("0902", "0904")
    lists = write_lists(tmp_path, later, val=later)
    found = perfect(lists, *ANNOTATED, "DATA.MAX_BAD_FRACTION", 0.9, unread=unread)
    assert found == {"map": pytest.approx(100), "videos": 4, "unreadable": len(unread)}


def test_no_box_of_a_video_that_cannot_be_read_is_missed(tmp_path):
    """A detector found nothing in the last key frame of b, so it is not among the key frames.

    If b is read, one of its two boxes is found, behind a wrong one: a quarter of class 3.
    """
    truth = f"{TRUTH}b,0904,{BOXES['b']},3,0\n"
    predicted = "".join(f"{name},0902,{box},,1.0\n" for name, box in BOXES.items())
    lists = write_lists(tmp_path, truth, val=truth, predicted=predicted)
    assert judged(lists).precisions == [pytest.approx(100), None, pytest.approx(25)]
    made, dataset = scores_and_clips(lists, "DATA.MAX_BAD_FRACTION", 0.9)
    for clip in range(dataset.num_clips):
        made.add(dataset.__getitems__([clip]), SCORES[:1])
    assert made.result().precisions == [pytest.approx(100), None, None]


def test_a_video_that_is_listed_twice_counts_once(folder):
    lists = "['val.csv', 'train.csv']"  # both have the same videos
    found = perfect(folder, *ANNOTATED, "AVA.TEST_LISTS", lists)
    assert found == {"map": pytest.approx(100), "videos": 2, "unreadable": 0}


def test_classes_with_equal_names_have_their_own_precision(tmp_path):
    lists = write_lists(tmp_path, TRUTH, val=TRUTH)
    names = (lists / "names.pbtxt").read_text().replace("run", "stand")
    (lists / "names.pbtxt").write_text(names)
    found = judged(lists, *ANNOTATED)
    assert found.precisions == [pytest.approx(100), None, pytest.approx(50)]


class MadeUp:
    """Model that gives each box the same scores."""

    def __init__(self, folder: Path) -> None:
        self.recipe = recipe_of(folder, *KEYS)

    def score(self, batch: Any) -> torch.Tensor:
        return torch.tensor([[0.3, 0.6, 0.1]]).repeat(len(Targets.of_labels(batch["labels"])[1]), 1)


def test_boxes_beside_one_after_the_end_of_a_video_are_predicted(folder, tmp_path):
    for number in range(70):
        write_jpeg(tmp_path / "clips/v" / f"{number}.jpg")
    file = tmp_path / "targets.csv"
    file.write_text("".join(f"v,{second:04d},0.1,0.1,0.9,0.9,\n" for second in (902, 950)))
    for path in ("clips/v", "clips/v/", "clips/v/*.jpg"):
        (one, scores), (other, none) = predict_boxes(MadeUp(folder), f"{tmp_path}/{path}", file)
        assert (one["second"], scores.tolist()) == (902, pytest.approx([0.3, 0.6, 0.1]))
        assert (other["second"], none) == (950, None)
        assert "ends before its key frame at second 950" in other["error"]


def test_a_box_that_is_seen_in_part_is_predicted_and_unlisted_videos_are_refused(
    folder, tmp_path, caplog
):
    """The only crop shows the columns 16 to 80 of 96, and 20 of the 24 columns of the box."""
    model = MadeUp(folder)
    model.recipe = model.recipe.replaced({"TEST.NUM_SPATIAL_CROPS": 1})
    file = tmp_path / "part.csv"
    file.write_text(f"a,0902,{BOXES['a']},\na,0902,0,0,1,1,\n")
    frames = tmp_path / "a"
    for number in range(70):
        write_jpeg(frames / f"{number}.jpg", 96, 64)
    (part, scores), (whole, _) = predict_boxes(model, str(frames), file)
    assert (part["box"], whole["box"]) == ((0.125, 0.25, 0.375, 0.75), (0, 0, 1, 1))
    assert scores.tolist() == pytest.approx([0.3, 0.6, 0.1])
    assert "no label" not in caplog.text
    with pytest.raises(UnreadableVideoError, match=r"has no box in .*part\.csv"):
        predict_boxes(model, str(tmp_path / "b"), file)


def test_too_many_boxes_to_predict_are_refused(folder, tmp_path):
    file = tmp_path / "many.csv"
    lines = (f"a,0902,0.1,0.1,0.9,{0.2 + n / 2000:.4f},\n" for n in range(1001))
    file.write_text("".join(lines))
    with pytest.raises(UserError, match="key frame of a, second 902 has more than 1000 boxes"):
        predict_boxes(MadeUp(folder), "a.mp4", file)


def test_annotations_that_cannot_be_read_are_named(folder):
    keys = (*KEYS, *ANNOTATED, "AVA.GROUNDTRUTH_FILE", "none.csv")
    with pytest.raises(ValueError, match=r"AVA.s annotations cannot be read: .*none\.csv"):
        task_of(recipe_of(folder, *keys)).check_files()
