"""Checks at the start of a training that the data set and the model fit multigrid training."""

from __future__ import annotations

import importlib.metadata
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

__all__ = ["CheckedClips", "WeakHook", "check_converted", "check_item", "check_transformers"]

_FIELDS = ("clip", "label", "flip", "iteration")
_EXAMPLE = """Write the data set as follows
    def __getitem__(self, request):  # a multigrid.ClipRequest
        frames, crop = request.shape.frames, request.shape.crop
        clip = ...  # of video request.video: (frames, crop, crop, 3) uint8
        return {"clip": clip, "label": 0, "flip": False, "iteration": request.iteration}
or use slowfast_patches.datasets.VideoClips"""


def check_item(item: Any) -> None:
    """Raise ValueError if `collate` cannot process an item of a data set."""
    if not isinstance(item, Mapping):
        raise ValueError(
            f"an item of the data set is a {type(item).__name__}, but it must be a dict. {_EXAMPLE}"
        )
    if missing := [name for name in _FIELDS if name not in item]:
        raise ValueError(f"an item of the data set has no {' and no '.join(missing)}. {_EXAMPLE}")
    shape, kind = _kind(item["clip"])
    if len(shape) != 4 or shape[-1] != 3 or kind != "uint8":
        raise ValueError(f"a clip is {shape} {kind}, but it must be (T, H, W, 3) uint8. {_EXAMPLE}")
    if np.asarray(item["label"]).dtype.kind not in "biuf":
        raise ValueError(
            f"a label is {item['label']!r:.60}, but it must be a number or a vector. {_EXAMPLE}"
        )


def _kind(clip: Any) -> tuple[tuple[int, ...], str]:
    shape = tuple(getattr(clip, "shape", ()))
    return shape, str(getattr(clip, "dtype", type(clip).__name__)).removeprefix("torch.")


class CheckedClips(Dataset[Any]):
    """Wrapper of a data set that checks the first item read in each worker.

    Raises:
        ValueError: The data set cannot be indexed by `ClipRequest`, or the first clip does not have
            the requested shape. This is raised when the first item is read.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._is_checked = False

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, request: ClipRequest) -> Any:
        return self._checked(lambda: self.dataset[request], request)

    def __getitems__(self, requests: Sequence[ClipRequest]) -> Any:
        """Read several items. Call `__getitem__` for each if the data set has no `__getitems__`."""
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
                f"{name}.__getitem__({request}) failed: {type(error).__name__}: {error}. "
                f"__getitem__ must accept a ClipRequest as index. {_EXAMPLE}"
            ) from error
        shape = request.shape
        if isinstance(answer, Mapping) and "clip" in answer:
            sides, _ = _kind(answer["clip"])
            if len(sides) == 4 and sides[:3] != (shape.frames, shape.crop, shape.crop):
                raise ValueError(
                    f"the data set returned a clip of shape {sides}, but clips of "
                    f"{shape.frames} frames of {shape.crop} × {shape.crop} pixels were requested. "
                    f"{_EXAMPLE}"
                )
        self._is_checked = True
        return answer


def check_converted(model: nn.Module) -> None:
    """Raise ValueError if a model has BN layers and none of them is a GroupedBatchNorm3d."""
    norms = [norm for norm in model.modules() if isinstance(norm, _BatchNorm)]
    if norms and not any(isinstance(norm, GroupedBatchNorm3d) for norm in norms):
        raise ValueError(
            f"the model has {len(norms)} {type(norms[0]).__name__} layers, which cannot compute "
            "statistics over groups of clips. Call model = multigrid.convert_batchnorm(model) "
            "before you create the optimizer. To keep the layers and normalise the clips of each "
            "process together, use make_schedule(..., bn_size=None)"
        )


def check_transformers(installed: str | None = None) -> None:
    """Raise ImportError if the package transformers is older than version 5.18.

    Versions 5.0 to 5.17 load the weights q_bias and v_bias of VideoMAE as zeros.

    Args:
        installed: The version. None means the version of the installed package.
    """
    version = installed or importlib.metadata.version("transformers")
    if tuple(map(int, version.split(".")[:2])) < (5, 18):
        raise ImportError(
            f"transformers {version} is too old, because it loads some weights of VideoMAE as "
            "zeros. Run pip install --upgrade 'transformers>=5.18'"
        )


class WeakHook:
    """Module or optimizer hook that calls a method through a weak reference.

    The hook does nothing after the object of the method has been deleted. A copied, pickled or
    compiled model does not call the method.
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
