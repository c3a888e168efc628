"""A data set of PySlowFast's kind, under the config of each clip's shape."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from multigrid.integrations.pyslowfast_keys import changed, get_key
from multigrid.sampler import ClipRequest
from multigrid.sampling import SamplingOptions, clip_generator, make_grid
from multigrid.shapes import Shape

__all__ = ["ConfiguredClips"]

_OFF = {
    "MULTIGRID.LONG_CYCLE": False,
    "MULTIGRID.SHORT_CYCLE": False,
    "MULTIGRID.LONG_CYCLE_SAMPLING_RATE": 0,
    "MULTIGRID.DEFAULT_B": 0,
    "MULTIGRID.DEFAULT_T": 0,
    "MULTIGRID.DEFAULT_S": 0,
}
"""Values with which data sets of later releases do not change shape or stride a second time."""


class ConfiguredClips(Dataset[Any]):
    """A data set of PySlowFast's kind that is indexed by `ClipRequest`.

    While a clip is read, DATA.NUM_FRAMES, TRAIN_CROP_SIZE, SAMPLING_RATE and TRAIN_JITTER_SCALES of
    the data set's config, in the process that reads, are those of the request's grid (`make_grid`):
    the stride is drawn from [τ, τ·T/t], the short side by the data set from [min·h/H, max]. The
    global generators of Python, NumPy and PyTorch are seeded by (seed, epoch, video). Config and
    generators are then what they were before.

    Args:
        dataset: reads these keys from its attribute `cfg` at every `__getitem__`.
        cfg: has the baseline's values, and RNG_SEED, the seed.
        base: the baseline's mini-batch.

    Raises:
        ValueError: the data set has no `cfg`; or, when a clip is read, does not follow it.
    """

    def __init__(self, dataset: Dataset[Any], cfg: Any, base: Shape) -> None:
        if not hasattr(dataset, "cfg"):
            raise ValueError(
                f"the {type(dataset).__name__} has no attribute cfg: have it read DATA.NUM_FRAMES, "
                "SAMPLING_RATE, TRAIN_CROP_SIZE and TRAIN_JITTER_SCALES from self.cfg at every "
                "__getitem__, or give by_request=True if it takes a ClipRequest"
            )
        self.dataset: Any = dataset
        self._seed: int = cfg.RNG_SEED
        low, high = cfg.DATA.TRAIN_JITTER_SCALES
        kept = get_key(cfg, "MULTIGRID.KEEP_FIELD_OF_VIEW", False)
        self._grid_of = partial(
            make_grid,
            base=base,
            stride=cfg.DATA.SAMPLING_RATE,
            short_sides=(low, high),
            options=SamplingOptions(keep_field_of_view=kept),
        )

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, request: ClipRequest) -> Any:
        shape = request.shape
        grid = self._grid_of(shape)
        rng = clip_generator(self._seed, request.epoch, request.video)
        seeds = rng.integers(2**32, size=3).tolist()
        values = {
            "DATA.NUM_FRAMES": shape.frames,
            "DATA.TRAIN_CROP_SIZE": shape.crop,
            "DATA.SAMPLING_RATE": int(rng.integers(*grid.strides, endpoint=True)),
            "DATA.TRAIN_JITTER_SCALES": list(grid.short_sides),
        }
        with changed(self.dataset.cfg, values | _OFF), _seeded(*seeds):
            item = self.dataset[request.video]
        _check_clip(item, shape, type(self.dataset).__name__)
        return item


@contextmanager
def _seeded(python: int, numpy: int, pytorch: int) -> Iterator[None]:
    """Seed the global generators of the CPU within the context."""
    former = random.getstate()
    former_of_numpy = np.random.get_state()
    with torch.random.fork_rng(devices=()):
        random.seed(python)
        np.random.seed(numpy)
        torch.default_generator.manual_seed(pytorch)
        try:
            yield
        finally:
            random.setstate(former)
            np.random.set_state(former_of_numpy)


def _check_clip(item: Any, shape: Shape, name: str) -> None:
    """Raise ValueError if the largest clip of an item has another shape than requested.

    Its four axes may have any order.
    """
    sides = max((a.shape for a in _arrays(item) if a.ndim == 4), key=math.prod, default=None)
    if sides is not None and not {shape.frames, shape.crop} <= set(sides):
        raise ValueError(
            f"{name} gave a clip of {tuple(sides)}, asked for {shape.frames} frames of "
            f"{shape.crop}² pixels: have it read DATA.NUM_FRAMES and DATA.TRAIN_CROP_SIZE from "
            "self.cfg at every __getitem__, not once when it is made"
        )


def _arrays(item: Any) -> Iterator[Any]:
    """Yield the arrays and tensors of an item, however it is nested."""
    if hasattr(item, "ndim"):
        yield item
    elif isinstance(item, (list, tuple, Mapping)):
        for part in item.values() if isinstance(item, Mapping) else item:
            yield from _arrays(part)
