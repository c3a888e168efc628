"""Early checks of what a training requires of the data set, the model and the loop."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import Dataset

from multigrid.batchnorm import GroupedBatchNorm3d

if TYPE_CHECKING:
    from multigrid.sampler import ClipRequest

__all__ = ["CheckedClips", "WeakHook", "check_converted", "check_item"]

_FIELDS = ("clip", "label", "flip", "iteration")
_EXAMPLE = """Write the data set as
    def __getitem__(self, request):  # a multigrid.ClipRequest
        frames, crop = request.shape.frames, request.shape.crop
        clip = ...  # of video request.video: (frames, crop, crop, 3) uint8
        return {"clip": clip, "label": 0, "flip": False, "iteration": request.iteration}
or use slowfast_patches.datasets.VideoClips"""


def check_item(item: Any) -> None:
    """Raise ValueError for an item of a data set that `collate` cannot process."""
    if not isinstance(item, Mapping):
        raise ValueError(
            f"an item of the data set is a {type(item).__name__}, not a dict. {_EXAMPLE}"
        )
    if missing := [name for name in _FIELDS if name not in item]:
        raise ValueError(f"an item of the data set has no {' and no '.join(missing)}. {_EXAMPLE}")
    shape, kind = _kind(item["clip"])
    if len(shape) != 4 or shape[-1] != 3 or kind != "uint8":
        raise ValueError(f"a clip is {shape} {kind}, not (T, H, W, 3) uint8. {_EXAMPLE}")
    if np.asarray(item["label"]).dtype.kind not in "biuf":
        raise ValueError(
            f"a label is {item['label']!r:.60}, neither a number nor a vector. {_EXAMPLE}"
        )


def _kind(clip: Any) -> tuple[tuple[int, ...], str]:
    shape = tuple(getattr(clip, "shape", ()))
    return shape, str(getattr(clip, "dtype", type(clip).__name__)).removeprefix("torch.")


class CheckedClips(Dataset[Any]):
    """Wrapper of a data set that checks the first item in each worker.

    Raises:
        ValueError: when the first item is read, if the data set cannot be indexed by `ClipRequest`
            or returns a clip of another shape.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._is_checked = False

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, request: ClipRequest) -> Any:
        return self._checked(lambda: self.dataset[request], request)

    def __getitems__(self, requests: Sequence[ClipRequest]) -> Any:
        """Return the result of the data set's `__getitems__`, or a list of single items."""
        if not hasattr(self.dataset, "__getitems__"):
            return [self[request] for request in requests]
        return self._checked(lambda: self.dataset.__getitems__(requests), requests[0])

    def _checked(self, ask: Callable[[], Any], request: ClipRequest) -> Any:
        if self._is_checked:
            return ask()
        try:
            answer = ask()
        except (TypeError, LookupError, AttributeError) as error:
            name = type(self.dataset).__name__
            raise ValueError(
                f"{name} failed at its first item, {request}: {type(error).__name__}: {error}. Its "
                f"__getitem__ must take a ClipRequest. {_EXAMPLE}"
            ) from error
        shape = request.shape
        if isinstance(answer, Mapping) and "clip" in answer:
            sides, _ = _kind(answer["clip"])
            if len(sides) == 4 and sides[:3] != (shape.frames, shape.crop, shape.crop):
                raise ValueError(
                    f"the data set gave a clip of {sides}, but {shape} was requested. {_EXAMPLE}"
                )
        self._is_checked = True
        return answer


def check_converted(model: nn.Module) -> None:
    """Raise ValueError if a model has batch normalisation and none of it is converted."""
    norms = [norm for norm in model.modules() if isinstance(norm, _BatchNorm)]
    if norms and not any(isinstance(norm, GroupedBatchNorm3d) for norm in norms):
        raise ValueError(
            f"the model has {len(norms)} {type(norms[0]).__name__} layers, which cannot take "
            "statistics over groups of clips. Write model = multigrid.convert_batchnorm(model) "
            "before you create the optimizer, or make_schedule(..., bn_size=None) to keep "
            "statistics over each process's mini-batch"
        )


class WeakHook:
    """Module or optimizer hook that holds only a weak reference to the method it calls.

    The hook does nothing once the method's object is gone. It does nothing either in a copied or
    pickled model, or in a compiled network.
    """

    def __init__(self, method: Callable[..., None] | None = None) -> None:
        self._method = weakref.WeakMethod(method) if method is not None else None

    def __call__(self, *arguments: Any) -> None:
        if torch.compiler.is_compiling() or self._method is None:
            return
        method = self._method()
        if method is not None:
            method(*arguments)

    def __reduce__(self) -> tuple[type[WeakHook], tuple[()]]:
        return WeakHook, ()
