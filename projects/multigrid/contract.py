"""Checks of user input: samples of a data set, and settings of frameworks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

from multigrid.errors import MultigridError
from multigrid.shapes import ClipRequest, Shape

_EXAMPLE = """Write the data set as follows
    def __getitem__(self, request):  # a multigrid.ClipRequest
        frames, crop = request.shape.frames, request.shape.crop
        clip = ...  # of video request.video: (frames, crop, crop, 3) uint8
        return {"clip": clip, "label": 0, "flip": False, "iteration": request.iteration}
or wrap the data set. For items (frames, label), use multigrid.FrameClips(dataset, base). For items
(path, label) of video files, use slowfast_patches.datasets.VideoClips(dataset, base)"""


_OF_SAMPLER = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
"""Options of a data loader that the sampler of the schedule replaces."""


class CheckedClips(Dataset[Any]):
    """Wrapper of a data set that checks each sample.

    Args:
        dataset: The data set.
        is_collated: Whether `collate` stacks the samples. Otherwise, only mappings with a "clip"
            are checked.

    Raises:
        ValueError: The data set cannot be indexed by `ClipRequest`, or a sample does not have the
            format or the shape that `collate` needs. This is raised when the sample is read.
    """

    def __init__(self, dataset: Any, is_collated: bool) -> None:
        self.dataset = dataset
        self.is_collated = is_collated

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, request: ClipRequest) -> Any:
        dataset, inner = resolve(self.dataset, request)
        with self._explained(dataset, inner):
            sample = dataset[inner]
        self._check(sample, request)
        return sample

    def __getitems__(self, requests: Sequence[ClipRequest]) -> Any:
        """Read several samples, by `__getitem__` if the data set has no `__getitems__`."""
        pairs = [resolve(self.dataset, request) for request in requests]
        dataset, first = pairs[0]
        is_single = all(other is dataset for other, _ in pairs)
        if not (is_single and hasattr(dataset, "__getitems__")):
            return [self[request] for request in requests]
        with self._explained(dataset, first):
            samples = dataset.__getitems__([request for _, request in pairs])
        if isinstance(samples, list):  # not a whole mini-batch
            for sample, request in zip(samples, requests, strict=True):
                self._check(sample, request)
        return samples

    @contextmanager
    def _explained(self, dataset: Any, request: ClipRequest) -> Iterator[None]:
        """Explain errors that occur because a data set does not accept `ClipRequest`."""
        try:
            yield
        except (TypeError, LookupError, AttributeError) as error:
            raise MultigridError(
                f"{type(dataset).__name__}.__getitem__({request}) failed: {error!r}. "
                f"It must accept a ClipRequest. {_EXAMPLE}"
            ) from error

    def _check(self, sample: Any, request: ClipRequest) -> None:
        is_clip = isinstance(sample, Mapping) and "clip" in sample
        if (self.is_collated or is_clip) and not _fits(sample, request.shape):
            values = sample.items() if isinstance(sample, Mapping) else ()
            shapes = {key: (getattr(v, "shape", v), getattr(v, "dtype", "")) for key, v in values}
            raise MultigridError(
                f"the data set returned a {type(sample).__name__} {shapes} for a clip of "
                f"{request.shape.frames} frames of {request.shape.crop}² pixels. {_EXAMPLE}"
            )


def _fits(sample: Any, shape: Shape) -> bool:
    """Return whether `collate` can stack a sample of a shape."""
    if not isinstance(sample, Mapping) or not {"clip", "label", "flip", "iteration"} <= set(sample):
        return False
    clip = sample["clip"]
    expected = (shape.frames, shape.crop, shape.crop, 3)
    return getattr(clip, "shape", ()) == expected and "uint8" in str(clip.dtype)


def resolve(dataset: Any, request: ClipRequest) -> tuple[Any, ClipRequest]:
    """Find the data set inside `Subset` and `ConcatDataset` that has a requested video.

    Returns:
        The data set, and the request with the index of the video in this data set.
    """
    video = request.video
    if type(dataset) is Subset:
        inner, video = dataset.dataset, int(dataset.indices[video])
    elif type(dataset) is ConcatDataset:
        which = bisect_right(dataset.cumulative_sizes, video)
        inner = dataset.datasets[which]
        video -= dataset.cumulative_sizes[which - 1] if which else 0
    else:
        return dataset, request
    return resolve(inner, request._replace(video=video))


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ValueError if an option of a data loader would select other clips."""
    given = [name for name in _OF_SAMPLER if options.get(name) is not None]
    require(
        not given,
        f"leave out {', '.join(given)}, because the schedule sets the size of the mini-batches, "
        "and the seed sets their order. To draw some videos more often, as with "
        "WeightedRandomSampler, use Training(..., weights=...)",
    )
    require(
        options.get("in_order") is not False,
        "leave out in_order=False, because the mini-batches must be trained in the schedule's "
        "order",
    )


def check_dataset(dataset: Any, num_videos: int) -> None:
    """Raise ValueError if a data set cannot be indexed, or does not have `num_videos` videos."""
    require(
        not isinstance(dataset, IterableDataset),
        f"{type(dataset).__name__} is an IterableDataset, but the schedule reads videos by their "
        f"index. {_EXAMPLE}",
    )
    videos = len(dataset) if hasattr(dataset, "__len__") else num_videos
    require(
        videos == num_videos,
        f"the schedule was made for {num_videos} videos, but the data set has {videos}. Use "
        f"make_schedule(..., num_videos={videos})",
    )


def require(is_met: object, message: str) -> None:
    """Raise ValueError with a message if a requirement is not met."""
    if not is_met:
        raise MultigridError(message)
