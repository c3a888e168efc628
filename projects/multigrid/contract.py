"""Checks at the start of a training that the data set and the model fit multigrid training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.utils.data import Dataset, Subset

from multigrid.batchnorm import GroupedBatchNorm3d
from multigrid.shapes import ClipRequest

__all__ = [
    "CheckedClips",
    "check_converted",
    "check_dataset",
    "check_divisible",
    "check_item",
    "check_iteration",
    "check_optimizer",
    "modules_in_eval",
]

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


def check_dataset(dataset: Any, num_videos: int) -> None:
    """Raise ValueError if a data set does not suit a schedule for `num_videos` videos."""
    if isinstance(dataset, (list, tuple, Subset)):
        raise ValueError(
            f"dataset is a {type(dataset).__name__}, which cannot be indexed by a ClipRequest. "
            "Use a data set that reads a clip in the requested shape, such as VideoClips"
        )
    videos = len(dataset) if hasattr(dataset, "__len__") else num_videos
    if videos != num_videos:
        raise ValueError(
            f"the schedule was made for {num_videos} videos, but the data set has {videos}. Use "
            f"make_schedule(..., num_videos={videos})"
        )


def check_iteration(batch: Any, expected: int) -> int:
    """Return the iteration of a mini-batch, which may be given as the iteration itself.

    Raises:
        ValueError: It is not the expected iteration, or the mini-batch has none.
    """
    if not isinstance(batch, int) and not (isinstance(batch, Mapping) and "iteration" in batch):
        raise ValueError(
            'the mini-batch has no "iteration". Use multigrid.collate or another collate_fn '
            "that keeps this key, or call begin with the index of the iteration"
        )
    iteration = batch if isinstance(batch, int) else int(batch["iteration"])
    if iteration < 0:
        raise ValueError(
            "the mini-batch has validation clips, but begin requires training clips. Iterate "
            "over training.loader(dataset) instead of another DataLoader"
        )
    if iteration != expected:
        processes = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        raise ValueError(
            f"the mini-batch is of iteration {iteration}, but iteration {expected} is next. Call "
            "begin once for each mini-batch of the loader. To resume a training, call "
            "load_state_dict before you create the loader"
            + ". Do not pass the loader to accelerator.prepare or fabric.setup_dataloaders, which "
            "would divide it over the processes a second time" * processes
        )
    return iteration


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


def check_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    """Warn if an optimizer has none of a model's parameters."""
    if _trained(optimizer).isdisjoint(map(id, model.parameters())):
        warnings.warn(
            "the optimizer has none of the model's parameters. Give Training the model that is "
            "trained, and the optimizer that was created for it",
            stacklevel=4,
        )


def modules_in_eval(model: nn.Module, optimizer: Optimizer) -> list[str]:
    """Return the names of the modules in evaluation mode whose parameters are trained.

    Leave out BN layers, because they are often set to evaluation mode on purpose (frozen BN).
    """
    trained = _trained(optimizer)
    return [
        name or type(module).__name__
        for name, module in model.named_modules()
        if not module.training and not isinstance(module, _BatchNorm)
        if not trained.isdisjoint(map(id, module.parameters(recurse=False)))
    ]


def _trained(optimizer: Optimizer) -> set[int]:
    """Return the ids of the parameters that an optimizer trains."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return {id(parameter) for parameter in parameters if parameter.requires_grad}


def check_divisible(model: nn.Module) -> bool:
    """Check that micro-batches of whole BN groups have the BN statistics of the mini-batch.

    Returns:
        Whether the model computes BN statistics.

    Raises:
        ValueError: A BN layer in training mode is not a `GroupedBatchNorm3d`.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.training]
    if others := [norm for norm in norms if not isinstance(norm, GroupedBatchNorm3d)]:
        raise ValueError(
            f"micro-batches would change the BN statistics of {len(others)} "
            f"{type(others[0]).__name__} layers. Call multigrid.convert_batchnorm(model) before "
            "you create the optimizer, or leave accumulation_steps out"
        )
    return bool(norms)
