"""Metrics of made-up scores, evaluation of each clip exactly once, and tests without training."""

import csv
import json
import math
import shutil
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.datasets.loader import evaluation_loader
from slowfast_patches.tasks import task_of
from slowfast_patches.tasks.scores import Evaluation
from slowfast_patches.utils.errors import RunError
from tests.conftest import Folder
from tests.slowfast_patches.train.test_bad_input import files


class Clips(SimpleNamespace):
    """A data set that has so many videos of so many clips."""

    def __len__(self) -> int:
        return len(self.videos) * self.clips


def evaluated(
    rows: list,
    labels: list,
    ensemble: str = "sum",
    clips: int = 1,
    max_bad: float = 1.0,
    share: slice = slice(None),
) -> Evaluation:
    """Of videos with `clips` clips each, three clips a batch; a label is a number or multi-hot. A
    row that is None is a clip that cannot be read. This process has a share of the clips."""
    of_videos = torch.tensor(labels)
    recipe = default_recipe().replaced(
        {
            "MODEL.NUM_CLASSES": len(next(filter(None, rows), [0])),
            "DATA.MULTI_LABEL": of_videos.ndim == 2,
            "DATA.ENSEMBLE_METHOD": ensemble,
            "DATA.MAX_BAD_FRACTION": max_bad,
        }
    )
    dataset = Clips(videos=range(len(labels)), clips=clips)
    scores = task_of(recipe).scores(dataset, torch.device("cpu"))
    for batch in torch.arange(len(rows))[share].split(3):
        read = batch[[rows[n] is not None for n in batch]]
        if len(read):
            given = torch.tensor([rows[n] for n in read])
            scores.add({"videos": read // clips, "labels": of_videos[read // clips]}, given)
    return scores.result()


# Two videos of two clips: sums 0.9, 0.7, 0.4 and 0.8, 0.6, 0.6; maxima 0.9, 0.6, 0.4 and 0.4, 0.6,
# 0.6.
VIEWS = [[0.9, 0.1, 0.0], [0.0, 0.6, 0.4], [0.4, 0.6, 0.0], [0.4, 0.0, 0.6]]
# By columns. First class: its two videos are ranked first and third, so the precision is 1 and 2/3,
# the mean 5/6. Second: its video is ranked last of four, 1/4. Third: two videos share the first
# rank and one of them has it, 1/2. The mean of the three is 19/36. No video has the last class.
SCORES = [[0.9, 0.1, 0.5, 0.3], [0.8, 0.2, 0.5, 0.2], [0.7, 0.3, 0.2, 0.9], [0.1, 0.4, 0.1, 0.0]]
LABELS = [[1, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
LOGITS = [[-5.0], [-1.0], [-2.0], [-2.0]]  # two videos: sums -6, -4; maxima -1, -2
LOST = [[0.9, 0.1], [0.8, 0.2], None, None, [0.3, 0.7], [0.4, 0.6]]
PART = [[0.9, 0.1], [0.0, 1.0], None, [0.6, 0.4], [0.2, 0.8], [0.4, 0.6]]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ((VIEWS, [0, 0], "sum", 2), {"top1": 100}),
        ((VIEWS, [0, 0], "max", 2), {"top1": 50}),
        (([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]], [0]), {"top1": 0, "top5": 0}),
        ((SCORES, LABELS), {"map": pytest.approx(100 * 19 / 36)}),
        ((LOGITS, [[1], [0]], "max", 2), {"map": 100}),
        # A black clip's score would count as right or wrong: the two that are read count alone.
        ((LOST, [0, 0, 0], "sum", 2), {"top1": 50, "unreadable": 1}),
        (([[0.1], None, [0.2]], [[1], [1], [0]], "max"), {"map": 50, "unreadable": 1}),
        # Means 0.6 and 0.45; sums of what is read 0.6 and 0.9.
        (([[0.6], None, [0.5], [0.4]], [[1], [0]], "sum", 2), {"map": 100, "partly_read": 1}),
    ],
)
def test_metrics_by_hand(case, expected):
    counts = {"videos": len(case[1]), "unreadable": 0}
    assert evaluated(*case).metrics == counts | expected


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        # Means of the views: 0.45 and 0.4 for the label.
        ((VIEWS, [0, 0], "sum", 2), -(math.log(0.45) + math.log(0.4)) / 2),
        (([[1.0, 0.0], [0.0, 1.0]], [0, 0]), 50.0),  # not infinite: 0 and 100
        (([[0.5, 0.25], [0.5, 0.5]], [[1, 0], [0, 1]]), -(3 * math.log(0.5) + math.log(0.75)) / 4),
        ((LOGITS, [[1], [0]], "max", 2), None),
    ],
)
def test_loss_by_hand(case, expected):
    assert evaluated(*case).loss == pytest.approx(expected)


def test_a_video_is_scored_on_the_clips_that_can_be_read():
    found = evaluated(PART, [1, 0, 1], "sum", 2)
    assert found.metrics == {"videos": 3, "top1": 100, "unreadable": 0, "partly_read": 1}
    expected = torch.tensor([[0.45, 0.55], [0.6, 0.4], [0.3, 0.7]]).double()
    torch.testing.assert_close(found.probabilities, expected, atol=1e-6, rtol=0)


# Of ten videos, one is read in part and one is not.
FEW = [None, [0.1, 0.9], None, None, *[[0.1, 0.9]] * 16]


@pytest.mark.parametrize(
    ("case", "error", "said"),
    [
        ((FEW, [1] * 10, "sum", 2, 0.09), RunError, "^1 of 10 .*MAX_BAD_FRACTION 0.09"),
        (([[0.1, 0.2]], [[0, 0]]), ValueError, "none of the 1 videos has a label"),
        (([[0.1, float("nan")]], [0]), ValueError, r"NaN. The training has diverged"),
    ],
)
def test_what_has_no_metric_is_an_error(case, error, said):
    with pytest.raises(error, match=said):
        evaluated(*case)


def test_videos_that_are_read_in_part_do_not_end_a_test():
    """Six of a hundred videos lack a clip, and five are unreadable, which 0.05 allows."""
    rows = [[0.1, 0.9]] * 200
    for number in range(6):
        rows[2 * number] = None
    rows[100:110] = [None] * 10
    found = evaluated(rows, [1] * 100, "sum", 2, 0.05)
    assert found.metrics == {"top1": 100, "videos": 100, "unreadable": 5, "partly_read": 6}


# Several processes.


def on_a_rank(rank: int, size: int, cases: list, expected: list) -> None:
    dist.init_process_group("gloo")
    found = [evaluated(*case, share=slice(rank, None, size)).metrics for case in cases]
    assert found == expected, (found, expected)
    dist.destroy_process_group()


@pytest.mark.slow("starts processes")
def test_two_processes_give_the_metrics_of_one(run_ranks):
    """Views of a video on both ranks, one view on one of them, fewer clips than ranks, and clips
    that cannot be read."""
    torch.manual_seed(0)
    rows = torch.eye(7).repeat_interleave(3, 0).tolist()  # video v is of class v, on three clips
    rows[3:6], rows[20] = [None] * 3, None  # the second is not read, nor a clip of the last
    cases = [(rows, list(range(7)), "sum", 3)]
    for videos, clips, ensemble in ((6, 3, "sum"), (7, 3, "max"), (1, 1, "sum")):
        rows = (torch.randn(videos * clips, 7) - 3).tolist()
        cases.append((rows, torch.randint(7, (videos,)).tolist(), ensemble, clips))
        cases.append((rows, torch.randint(2, (videos, 7)).tolist(), ensemble, clips))
    run_ranks(2, on_a_rank, 2, cases, [evaluated(*case).metrics for case in cases])


@pytest.mark.parametrize(
    ("clips", "batch_size", "side", "wanted"),
    [
        (2, 5, 64, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]),
        (3, 1, 836, [[0, 1], [2], [3, 4], [5], [6, 7], [8], [9, 10], [11], [12, 13], [14]]),
    ],
    ids=["two videos at once", "a part of one"],
)
def test_each_clip_is_read_once_with_those_of_its_video_within_the_memory(
    clips, batch_size, side, wanted
):
    """A clip of 32 × 836² has 64 MiB."""
    dataset = Clips(videos=range(5), clips=clips)
    recipe = default_recipe().replaced({"DATA.NUM_FRAMES": 32, "DATA.TEST_CROP_SIZE": side})

    def batches(rank: int, size: int) -> list[list[int]]:
        return evaluation_loader(recipe, dataset, batch_size, rank, size).batch_sampler

    assert batches(0, 1) == wanted
    for size in (3, 20):
        numbers = [n for rank in range(size) for batch in batches(rank, size) for n in batch]
        assert sorted(numbers) == list(range(5 * clips))


def test_a_test_alone_gives_the_runs_accuracy_leaves_its_files_and_says_what_it_cannot_read(
    command_line, multigrid_run, tiny_data, tmp_path
):
    finished = shutil.copytree(multigrid_run, tmp_path / "finished")
    before = files(finished)
    assert command_line(finished, "TRAIN.ENABLE", False)[0] == 0
    result, expected = json.loads((finished / "test.json").read_text()), Folder(finished).result
    assert (result["top1"], result["top5"]) == (expected["top1"], expected["top5"])

    lines = (tiny_data / "test.csv").read_text().splitlines()[1:]
    (tmp_path / "bad.mp4").write_text("no video")
    (tmp_path / "test.csv").write_text("\n".join([*lines, f"{tmp_path}/bad.mp4 0"]) + "\n")
    data = ("DATA.PATH_TO_DATA_DIR", tmp_path, "DATA.PATH_PREFIX", tiny_data)
    options = ("TRAIN.ENABLE", False, "TEST.SAVE_RESULTS_PATH", "scores.csv", *data)
    status, said = command_line(finished, *options, "DATA.MAX_BAD_FRACTION", 0.2)
    assert status == 0
    # The index names the video in its count, and the evaluation once, though it has several clips.
    assert sum("bad.mp4" in line and "are not scored" in line for line in said.splitlines()) == 1
    after = files(finished)
    assert {path: after[path] for path in before} == before
    written = {"test.log", "test.json", "test_classes.csv", "test_scores.csv"}
    assert {path.name for path in after.keys() - before.keys()} == written
    result = json.loads((finished / "test.json").read_text())
    assert (result["videos"], result["unreadable"]) == (8, 1)
    with (finished / "test_scores.csv").open() as file:
        _, *rows, last = csv.reader(file)
    assert [row[0] for row in rows] == [str(tiny_data / line.split()[0]) for line in lines]
    assert last == [str(tmp_path / "bad.mp4")]
    right = sum(row[1] == row[2] for row in rows)
    assert result["top1"] == pytest.approx(100 * right / 7, abs=1e-3)
