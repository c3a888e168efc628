"""Checks of user input: samples of a data set, and settings of frameworks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.utils.data import Dataset

from multigrid.errors import MultigridError
from multigrid.shapes import ClipRequest, Shape

_EXAMPLE = """Write the data set as follows
    def __getitem__(self, request):  # a multigrid.ClipRequest
        frames, crop = request.shape.frames, request.shape.crop
        clip = ...  # of video request.video: (frames, crop, crop, 3) uint8
        return {"clip": clip, "label": 0, "flip": False, "iteration": request.iteration}
or use slowfast_patches.datasets.VideoClips"""


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
        with self._explained(request):
            sample = self.dataset[request]
        self._check(sample, request)
        return sample

    def __getitems__(self, requests: Sequence[ClipRequest]) -> Any:
        """Read several samples, by `__getitem__` if the data set has no `__getitems__`."""
        if not hasattr(self.dataset, "__getitems__"):
            return [self[request] for request in requests]
        with self._explained(requests[0]):
            samples = self.dataset.__getitems__(requests)
        if isinstance(samples, list):  # not a whole mini-batch
            for sample, request in zip(samples, requests, strict=True):
                self._check(sample, request)
        return samples

    @contextmanager
    def _explained(self, request: ClipRequest) -> Iterator[None]:
        """Context manager: explain an error of a data set that does not know `ClipRequest`."""
        try:
            yield
        except (TypeError, LookupError, AttributeError) as error:
            raise MultigridError(
                f"{type(self.dataset).__name__}.__getitem__({request}) failed: {error!r}. "
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


def refuse(is_wrong: bool, message: str) -> None:
    """Raise ValueError with a message if something is wrong."""
    if is_wrong:
        raise MultigridError(message)
