"""Tests that processes, workers and restarts do not change the stream of clips."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch

from multigrid import (
    PAPER,
    MultigridBatchSampler,
    Shape,
    SteppedRate,
    clip_numbers,
    collate,
    empty_clips,
    make_schedule,
    network_input,
    stream,
)

SEED = 3
VIDEOS = 50  # divides no batch: mini-batches run on across the epochs' ends


@pytest.fixture(scope="module")
def schedule():
    return make_schedule(Shape(4, 8, 32), VIDEOS, SteppedRate((16.0, 20.0), (0.1, 0.01)), PAPER)


# The stream.


def test_each_epoch_visits_every_video_once():
    clips = stream(SEED, VIDEOS, 0, 4 * VIDEOS)
    for epoch in range(4):
        part = clips[epoch * VIDEOS : (epoch + 1) * VIDEOS]
        assert sorted(video for video, _ in part) == list(range(VIDEOS))
        assert {e for _, e in part} == {epoch}


# The sampler.


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_bn_groups_are_the_same_runs_of_the_stream_on_any_number_of_processes(schedule, world_size):
    """Group g of G on a rank is every G-th clip from g; a shared group has all its ranks' clips."""
    ranks = [MultigridBatchSampler(schedule, SEED, rank, world_size) for rank in range(world_size)]
    for step, *parts in zip(schedule.steps(), *ranks, strict=True):
        k = step.bn_group_size
        count = max(1, len(parts[0]) // k)
        local = [{(r.video, r.epoch) for r in p[g::count]} for p in parts for g in range(count)]
        ranks_per_group = k // len(local[0])
        groups = [
            set().union(*local[j : j + ranks_per_group])
            for j in range(0, len(local), ranks_per_group)
        ]
        starts = range(step.first_clip, step.first_clip + step.shape.batch, k)
        numbers = chain(*(clip_numbers(step, rank, world_size) for rank in range(world_size)))
        clips = [(r.video, r.epoch) for part in parts for r in part]
        assert [*chain(*(stream(SEED, VIDEOS, n, n + 1) for n in numbers))] == clips
        assert groups == [set(stream(SEED, VIDEOS, n, n + k)) for n in starts]


@pytest.mark.parametrize("trained", [0, 5, 17])
def test_a_sampler_can_start_at_any_iteration(schedule, trained):
    whole = list(MultigridBatchSampler(schedule, SEED, 1, 2))
    again = MultigridBatchSampler(schedule, SEED, 1, 2, start=trained)
    assert list(again) == whole[trained:]
    assert len(again) == len(whole) - trained


def test_a_sampler_may_start_at_the_end_but_at_no_other_iteration(schedule):
    count = schedule.iterations
    assert list(MultigridBatchSampler(schedule, SEED, start=count)) == []
    for start in (-1, count + 1):
        with pytest.raises(ValueError, match=f"start is {start}, but the schedule has {count} it"):
            MultigridBatchSampler(schedule, SEED, start=start)


def test_processes_that_do_not_divide_the_mini_batches_are_refused(schedule):
    with pytest.raises(ValueError, match="cannot be divided over 3 processes"):
        MultigridBatchSampler(schedule, SEED, 0, 3)


def test_a_framework_is_told_that_mini_batches_are_already_divided(schedule):
    with pytest.raises(ValueError, match=r"Do not pass the loader to accelerator\.prepare"):
        _ = MultigridBatchSampler(schedule, SEED).batch_size


@pytest.mark.parametrize("in_worker", [True, False])
def test_the_clips_of_a_worker_are_in_shared_memory(in_worker, monkeypatch):
    monkeypatch.setattr(
        "multigrid.sampler.get_worker_info", lambda: object() if in_worker else None
    )
    clips = empty_clips(2, 1, 4)
    assert (clips.shape, clips.dtype) == ((2, 1, 4, 4, 3), torch.uint8)
    assert clips.is_shared() is in_worker
    clip = np.full((1, 2, 2, 3), 7, np.uint8)
    batch = collate([{"clip": clip, "label": 0, "flip": False, "iteration": 3}])
    assert batch["clips"].is_shared() is in_worker
    assert batch["clips"].tolist() == clip[None].tolist()


# With a loader.


def test_collate_takes_labels_of_any_type_and_leaves_a_mini_batch_as_it_is():
    sample = {"clip": np.zeros((1, 2, 2, 3), np.uint8), "flip": False, "iteration": 0}
    for label, expected in (
        (np.int32(4), torch.tensor([4])),
        (torch.tensor(4), torch.tensor([4])),
        (np.array([False, True]), torch.tensor([[0.0, 1.0]])),
    ):
        batch = collate([sample | {"label": label, "coverage": (0.5, 1.0)}])
        torch.testing.assert_close(batch["labels"], expected)
        torch.testing.assert_close(batch["coverage"], torch.tensor([[0.5, 1.0]]))
    assert collate(batch) is batch


def test_a_networks_input_has_channels_first_and_is_mirrored_where_it_is_to_be():
    """Two clips of one frame of 1 × 3 pixels. Red is 0, 20, 40 and 60, 80, 100. Blue is 102."""
    clips = torch.full((2, 1, 1, 3, 3), 102, dtype=torch.uint8)
    clips[..., 0] = torch.arange(0, 120, 20).view(2, 1, 1, 3)
    found = network_input({"clips": clips, "flips": torch.tensor([False, True])}, (0.0, 0, 0.4))
    assert found.shape == (2, 3, 1, 1, 3)
    assert found.is_contiguous()
    with pytest.raises(ValueError, match=r"multigrid\.collate.* but got \['clip'\]"):
        network_input({"clip": clips})
    red = found[:, 0].flatten() * 0.225 * 255
    assert red.tolist() == pytest.approx([0, 20, 40, 100, 80, 60], abs=1e-3)
    assert found[:, 2].flatten().tolist() == pytest.approx([0] * 6, abs=1e-6)
