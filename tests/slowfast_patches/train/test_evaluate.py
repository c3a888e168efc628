"""Metrics from scores made by hand; every clip scored once; a test without a training."""

import csv
import json
import multiprocessing
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from slowfast_patches import patching
from slowfast_patches.config.metrics import COUNTS
from slowfast_patches.config.recipe import Recipe, default_recipe
from slowfast_patches.datasets.items import TooManyUnreadableError
from slowfast_patches.datasets.loader import build_dataset, evaluation_loader, evaluation_rounds
from slowfast_patches.train.evaluate import Evaluation, VideoScores, topk_accuracy
from slowfast_patches.utils.distributed import from_main


class Clips:
    """A data set that has so many videos of so many clips."""

    def __init__(self, videos: int, clips: int) -> None:
        self.videos, self._clips = range(videos), clips

    def __len__(self) -> int:
        return len(self.videos) * self._clips


def evaluated(
    rows: list,
    labels: list,
    ensemble: str,
    clips: int,
    max_bad: float = 1,
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
            "DATA.MAX_BAD_FRACTION": float(max_bad),
        }
    )
    scores = VideoScores(recipe, Clips(len(labels), clips), torch.device("cpu"))
    for batch in torch.arange(len(rows))[share].split(3):
        read = batch[[rows[n] is not None for n in batch]]
        if len(read):
            given = torch.tensor([rows[n] for n in read])
            scores.add(read // clips, given, of_videos[read // clips])
    return scores.result()


def metrics(*case: object) -> dict[str, float]:
    """Of `evaluated`, without the counts of videos."""
    found = evaluated(*case).metrics
    return {name: value for name, value in found.items() if name not in COUNTS}


def test_sum_and_max_of_a_videos_clips_can_disagree():
    rows = [
        *([0.9, 0.1, 0.0], [0.0, 0.6, 0.4]),  # sum 0.9, 0.7, 0.4; max 0.9, 0.6, 0.4
        *([0.4, 0.6, 0.0], [0.4, 0.0, 0.6]),  # sum 0.8, 0.6, 0.6; max 0.4, 0.6, 0.6
    ]
    assert metrics(rows, [0, 0], "sum", 2)["top1"] == 100
    assert metrics(rows, [0, 0], "max", 2)["top1"] == 50
    assert metrics(rows, [1, 1], "sum", 2)["top1"] == 0


def test_top5_of_five_classes_would_be_everything_and_is_left_out():
    assert topk_accuracy(torch.eye(3), torch.tensor([2, 0, 1]), 5) == 100
    assert metrics([[0.1, 0.2, 0.3, 0.4, 0.5]], [0], "sum", 1) == {"top1": 0}
    assert metrics([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]], [0], "sum", 1) == {"top1": 0, "top5": 0}


# Videos that cannot be read.


def test_a_video_that_cannot_be_read_is_left_out_and_counted():
    rows = [[0.9, 0.1], [0.8, 0.2], None, None, [0.3, 0.7], [0.4, 0.6]]
    found = evaluated(rows, [0, 0, 0], "sum", 2)
    # A black clip's score would count as right or wrong: the two that are read count alone.
    assert found.metrics == {"top1": 50, "videos": 3, "unreadable": 1}
    assert found.scored.tolist() == [True, False, True]
    assert evaluated([[0.1], None, [0.2]], [[1], [1], [0]], "max", 1).metrics == {
        "map": 50,
        "videos": 3,
        "unreadable": 1,
    }


def test_a_video_is_scored_on_the_clips_that_can_be_read():
    rows = [[0.9, 0.1], [0.0, 1.0], None, [0.6, 0.4], [0.2, 0.8], [0.4, 0.6]]
    found = evaluated(rows, [1, 0, 1], "sum", 2)
    assert found.metrics == {"top1": 100, "videos": 3, "unreadable": 0, "partly_read": 1}
    expected = torch.tensor([[0.45, 0.55], [0.6, 0.4], [0.3, 0.7]]).double()
    torch.testing.assert_close(found.probabilities, expected, atol=1e-6, rtol=0)


def test_map_of_the_sum_ranks_a_video_that_is_read_in_part_as_if_it_were_whole():
    rows = [[0.6], None, [0.5], [0.4]]  # means 0.6 and 0.45; sums of what is read 0.6 and 0.9
    assert evaluated(rows, [[1], [0]], "sum", 2).metrics["map"] == 100


def test_too_many_that_cannot_be_read_end_it_as_they_end_a_training():
    # Of ten videos, one is read in part and one is not.
    rows = [None, [0.1, 0.9], None, None, *[[0.1, 0.9]] * 16]
    assert evaluated(rows, [1] * 10, "sum", 2, 0.2).metrics["unreadable"] == 1
    with pytest.raises(TooManyUnreadableError, match=r"^2 of 10 .* DATA.MAX_BAD_FRACTION 0.1"):
        evaluated(rows, [1] * 10, "sum", 2, 0.1)
    with pytest.raises(TooManyUnreadableError, match=r"none of the 2 videos .* could be read"):
        evaluated([None, None], [0, 0], "sum", 1)


# Several labels a video.

# By columns. First class: its two videos are ranked first and third, so the precision is 1 and 2/3,
# the mean 5/6. Second: its video is ranked last of four, 1/4. Third: two videos share the first
# rank and one of them has it, 1/2. The mean of the three is 19/36. No video has the last class.
SCORES = [[0.9, 0.1, 0.5, 0.3], [0.8, 0.2, 0.5, 0.2], [0.7, 0.3, 0.2, 0.9], [0.1, 0.4, 0.1, 0.0]]
LABELS = [[1, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]


def test_map_by_hand_leaves_out_a_class_that_no_video_has():
    assert metrics(SCORES, LABELS, "sum", 1) == {"map": pytest.approx(100 * 19 / 36)}


def test_map_of_the_sum_and_of_the_max_over_views():
    rows = [[-5.0], [-1.0], [-2.0], [-2.0]]  # two videos: sum -6, -4; max -1, -2
    assert metrics(rows, [[1], [0]], "max", 2) == {"map": 100}
    assert metrics(rows, [[1], [0]], "sum", 2) == {"map": 50}


def test_map_without_any_label_or_of_nan_is_an_error_not_a_number():
    with pytest.raises(ValueError, match="none of the 2 videos has one"):
        metrics([[0.1, 0.2], [0.3, 0.4]], [[0, 0], [0, 0]], "max", 1)
    with pytest.raises(ValueError, match="the model gives NaN: the training diverged"):
        metrics([[0.1, float("nan")]], [[1, 0]], "sum", 1)


# Several processes.


def on_a_rank(rank: int, folder: Path, cases: list, expected: list) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    found = [evaluated(*case, share=slice(rank, None, 2)).metrics for case in cases]
    assert found == expected, (found, expected)
    # What the main process has reaches all, and no group stays for it.
    groups = len(distributed_c10d._world.pg_map)
    for number in range(3):
        tensor, said = from_main(lambda n=number: (torch.full((300_000,), n), [n, rank]))
        assert bool((tensor == number).all())
        assert said == [number, 0]
    assert len(distributed_c10d._world.pg_map) == groups
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_give_the_metrics_of_one(tmp_path: Path):
    """Views of a video on both ranks, one view on one of them, fewer clips than ranks, and clips
    that cannot be read."""
    torch.manual_seed(0)
    cases = []
    for videos, clips, ensemble in ((6, 3, "sum"), (6, 3, "max"), (7, 1, "max"), (1, 1, "sum")):
        rows = (torch.randn(videos * clips, 7) - 3).tolist()
        cases.append((rows, torch.randint(7, (videos,)).tolist(), ensemble, clips))
        cases.append((rows, torch.randint(2, (videos, 7)).tolist(), ensemble, clips))
    rows = torch.eye(7).repeat_interleave(3, 0).tolist()  # video v is of class v, on three clips
    rows[3:6], rows[20] = [None] * 3, None  # the second is not read, nor a clip of the last
    cases.append((rows, list(range(7)), "sum", 3))
    expected = [evaluated(*case).metrics for case in cases]
    assert expected[-1] == {
        "top1": 100,
        "top5": 100,
        "videos": 7,
        "unreadable": 1,
        "partly_read": 1,
    }
    ranks = [
        multiprocessing.get_context("fork").Process(
            target=on_a_rank, args=(rank, tmp_path, cases, expected)
        )
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    assert [rank.exitcode for rank in ranks] == [0, 0]


def test_together_the_ranks_score_every_clip_once(
    tiny_config: Callable[..., Recipe], tmp_path: Path
):
    patching.apply()
    cfg = tiny_config(tmp_path, "TEST.NUM_SPATIAL_CROPS", 1, "TEST.NUM_ENSEMBLE_VIEWS", 2)
    dataset = build_dataset(cfg, "test")
    for ranks in (3, 20):
        loaders = [evaluation_loader(cfg, dataset, 3, rank, ranks) for rank in range(ranks)]
        numbers = [n for loader in loaders for batch in loader.batch_sampler for n in batch]
        assert sorted(numbers) == list(range(16))


class FiveVideos:
    """Has clips of some size, which nobody reads."""

    videos = range(5)

    def __init__(self, clips: int, mebibytes: int) -> None:
        self.clips, self.clip_bytes = clips, mebibytes << 20

    def __len__(self) -> int:
        return 5 * self.clips


@pytest.mark.parametrize(
    ("clips", "batch_size", "mebibytes", "wanted"),
    [
        (1, 3, 1, [[0, 1, 2], [3, 4]]),
        (2, 5, 1, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]),
        (3, 2, 1, [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14]]),
        (3, 1, 64, [[0, 1], [2], [3, 4], [5], [6, 7], [8], [9, 10], [11], [12, 13], [14]]),
    ],
    ids=["validation", "two videos at once", "one", "a part of one"],
)
def test_the_clips_of_a_video_are_read_together_within_the_memory(
    clips, batch_size, mebibytes, wanted
):
    dataset = FiveVideos(clips, mebibytes)
    found = evaluation_loader(default_recipe(), dataset, batch_size, 0, 1).batch_sampler
    assert found == wanted
    assert evaluation_rounds(dataset, batch_size, 1) == len(wanted)


def test_a_test_alone_gives_the_runs_accuracy_leaves_its_files_and_says_what_it_cannot_read(
    command_line: Callable[..., tuple[int, str]],
    multigrid_run: Path,
    demo_data: Path,
    tmp_path: Path,
    opened: type,
):
    finished = shutil.copytree(multigrid_run, tmp_path / "finished")
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert command_line(finished, "TRAIN.ENABLE", False)[0] == 0
    result, expected = json.loads((finished / "test.json").read_text()), opened(finished).result
    assert (result["top1"], result["top5"]) == (expected["top1"], expected["top5"])

    lines = (demo_data / "test.csv").read_text().splitlines()
    (tmp_path / "bad.mp4").write_text("no video")
    (tmp_path / "test.csv").write_text("\n".join([*lines[1:], f"{tmp_path}/bad.mp4 0"]) + "\n")
    shutil.copy(demo_data / "classes.txt", tmp_path)
    data = ("DATA.PATH_TO_DATA_DIR", tmp_path, "DATA.PATH_PREFIX", demo_data)
    options = ("TRAIN.ENABLE", False, "TEST.SAVE_RESULTS_PATH", "scores.csv", *data)
    status, said = command_line(finished, *options, "DATA.MAX_BAD_FRACTION", 0.1)
    assert status == 2
    assert "error: 1 of 8 videos of the evaluation could not be read" in said
    status, said = command_line(finished, *options, "DATA.MAX_BAD_FRACTION", 0.2)
    assert (status, said.count("bad.mp4 cannot be opened")) == (0, 1)
    after = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    assert {path.name for path in after.keys() - before.keys()} == {
        *("test.log", "test.json", "test_classes.csv", "test_scores.csv")
    }
    assert {path: after[path] for path in before} == before
    result = json.loads((finished / "test.json").read_text())
    assert (result["videos"], result["unreadable"]) == (8, 1)
    header, *rows = csv.reader((finished / "test_scores.csv").read_text().splitlines())
    assert header[4:] == (demo_data / "classes.txt").read_text().splitlines()
    assert [row[0] for row in rows[:-1]] == [str(demo_data / line.split()[0]) for line in lines[1:]]
    assert rows[-1] == [str(tmp_path / "bad.mp4")]
    right = [row[1] == row[2] for row in rows[:-1]]
    assert result["top1"] == pytest.approx(100 * sum(right) / 7, abs=1e-3)
