"""What a data set must return for a request, however the loader reads its samples."""

from __future__ import annotations

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Dataset, Subset

from multigrid import ClipRequest, MultigridError, Shape
from multigrid.contract import CheckedClips, resolve
from tests.multigrid.clips import Clips

SHAPE = Shape(4, 2, 8)


def request(video: int) -> ClipRequest:
    return ClipRequest(video, 0, SHAPE, 7)


class Several(Clips):
    """Data set that reads several samples at once, and notes the videos of each call."""

    def __init__(self, change=lambda samples: samples) -> None:
        super().__init__(10)
        self.change = change
        self.calls = list[list[int]]()

    def __getitems__(self, requests):
        self.calls.append([request.video for request in requests])
        return self.change([self[request] for request in requests])


def videos_of(samples) -> list[int]:
    return [int(sample["clip"][0, 0, 0, 0]) for sample in samples]


def test_the_data_set_inside_is_found_with_its_own_index():
    first, second, third = Clips(3), Clips(2), Clips(9)
    parts = ConcatDataset([first, Subset(second, [1, 0]), Subset(Subset(third, [8, 6]), [1])])
    found = [resolve(parts, request(video)) for video in range(6)]
    assert [dataset for dataset, _ in found] == [first, first, first, second, second, third]
    assert [inner for _, inner in found] == [request(n) for n in (0, 1, 2, 1, 0, 6)]


def test_the_wrapper_has_as_many_videos():
    assert len(CheckedClips(Clips(10), True)) == 10


@pytest.mark.parametrize("videos", [[3], [3, 0, 5]])
def test_samples_are_read_at_once_if_the_data_set_can(videos):
    dataset = Several()
    samples = CheckedClips(dataset, True).__getitems__([request(video) for video in videos])
    assert videos_of(samples) == videos
    assert dataset.calls == [videos]
    samples = CheckedClips(Clips(10), True).__getitems__([request(video) for video in videos])
    assert videos_of(samples) == videos


def test_samples_of_several_data_sets_are_read_one_by_one():
    parts = Several(), Several()
    samples = CheckedClips(ConcatDataset(parts), True).__getitems__([request(3), request(14)])
    assert videos_of(samples) == [3, 4]
    assert [part.calls for part in parts] == [[], []]


def test_a_whole_mini_batch_is_passed_on():
    dataset = Several(lambda samples: {"clips": len(samples)})
    assert CheckedClips(dataset, True).__getitems__([request(1)]) == {"clips": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda samples: [samples[0], samples[1] | {"clip": np.zeros(3)}], r"a dict .*\(3,\)"),
        (lambda samples: samples[:1], "argument 2 is longer"),
    ],
)
def test_each_of_several_samples_is_checked(change, message):
    with pytest.raises(ValueError, match=message):
        CheckedClips(Several(change), True).__getitems__([request(0), request(1)])


class ByNumber(Dataset):
    """Data set that does not know requests."""

    def __getitem__(self, number):
        return [10, 11][number]

    def __getitems__(self, numbers):
        return [self[number] for number in numbers]


def test_a_data_set_that_does_not_know_requests_is_told_what_to_write():
    with pytest.raises(MultigridError, match=r"ByNumber.* must accept a ClipRequest"):
        CheckedClips(ByNumber(), True)[request(0)]
    with pytest.raises(MultigridError, match=r"ByNumber.* must accept a ClipRequest"):
        CheckedClips(ByNumber(), True).__getitems__([request(0)])


class Fixed(Dataset):
    """Data set of one sample."""

    def __init__(self, sample) -> None:
        self.sample = sample

    def __getitem__(self, request):
        return self.sample


SAMPLE = {"clip": np.zeros((2, 8, 8, 3), np.uint8), "label": 1, "flip": False, "iteration": 7}


@pytest.mark.parametrize("is_collated", [True, False])
def test_a_sample_needs_four_keys_and_a_clip_of_the_shape(is_collated):
    assert CheckedClips(Fixed(SAMPLE), is_collated)[request(0)] is SAMPLE
    wrong = [{key: SAMPLE[key] for key in SAMPLE if key != name} for name in SAMPLE]
    wrong += [SAMPLE | {"clip": clip} for clip in (np.zeros((2, 8, 8, 3)), SAMPLE["clip"][1:])]
    for sample in wrong:
        if is_collated or "clip" in sample:
            with pytest.raises(MultigridError, match="for a clip of 2 frames of 8² pixels"):
                CheckedClips(Fixed(sample), is_collated)[request(0)]


def test_a_collate_function_of_the_user_may_take_samples_without_clips():
    for sample in ((1, 2), {"frames": 3}):
        assert CheckedClips(Fixed(sample), False)[request(0)] is sample
        with pytest.raises(MultigridError, match="for a clip of"):
            CheckedClips(Fixed(sample), True)[request(0)]
