"""Tests of the number of unreadable videos: each is counted in the epoch that visits it."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from multigrid import GENTLE, PAPER, ClipRequest, Shape, SteppedRate, make_schedule, stream
from slowfast_patches.datasets.clip_dataset import ClipDataset
from slowfast_patches.tasks.scores import check_count
from slowfast_patches.train.hooks import count_unreadable, epochs_of
from slowfast_patches.utils.errors import RunError
from tests.slowfast_patches.datasets.made_videos import noise, write_video
from tests.slowfast_patches.datasets.recipes import recipe_of

NO_CYCLES = replace(PAPER, long_cycle=(), short_cycle=())


def run(cycles, videos, bad, fraction, seed=0):
    """Count the unreadable videos of a training."""
    length = max(6.0, 4000 / videos)
    rate = SteppedRate((length, 1.5 * length), (0.1, 0.01))
    schedule = make_schedule(Shape(64, 8, 64), videos, rate, cycles)
    counts: dict[int, int] = {}
    for step in schedule.steps(0):
        clips = stream(seed, videos, step.first_clip, step.first_clip + step.shape.batch)
        failed = Counter(epoch for video, epoch in clips if video in bad)
        numbers = [failed[epoch] for epoch in epochs_of(schedule, step)]
        assert sum(numbers) == sum(failed.values())
        count_unreadable(counts, schedule, step, numbers, fraction)
    return counts


@pytest.mark.parametrize("cycles", [NO_CYCLES, GENTLE, PAPER])
@pytest.mark.parametrize("videos", [40, 100, 1000])
def test_a_run_ends_with_one_video_more_than_allowed_and_not_before(cycles, videos):
    """Mini-batches of up to 1,024 clips go beyond the end of one epoch or of many."""
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(videos).tolist()
        allowed = videos // 20
        assert run(cycles, videos, {*order[:allowed]}, 0.05, seed) == {}
        with pytest.raises(RunError, match=f"^{allowed + 1} of {videos} videos of epoch 1 "):
            run(cycles, videos, {*order[: allowed + 1]}, 0.05, seed)


@pytest.mark.parametrize(("count", "videos", "fraction"), [(29, 100, 0.29), (7, 100, 0.07)])
def test_exactly_the_allowed_share_is_allowed(count, videos, fraction):
    check_count(count, videos, fraction, "epoch 1")
    with pytest.raises(RunError, match=r"more than DATA\.MAX_BAD_FRACTION"):
        check_count(count + 1, videos, fraction, "epoch 1")


def test_a_data_set_tells_the_epoch_of_each_failure(tmp_path):
    write_video(tmp_path / "a.mp4", noise(20))
    (tmp_path / "bad.mp4").write_text("text")
    (tmp_path / "train.csv").write_text("a.mp4 0\nbad.mp4 1\n")
    dataset = ClipDataset.of_recipe(recipe_of(tmp_path), "train")
    shape = Shape(4, 4, 32)
    requests = [ClipRequest(video, epoch, shape, 0) for epoch, video in ((2, 0), (2, 1), (3, 1))]
    batch = dataset.__getitems__(requests)
    assert batch["failed_epochs"] == [2, 3]
    assert len(batch["failures"]) == 2
