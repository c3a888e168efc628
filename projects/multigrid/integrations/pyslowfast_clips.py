"""Read clips of a requested shape from a PySlowFast data set, by changing its config."""

from __future__ import annotations

import copy
import math
import random
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset

from multigrid.errors import MultigridError
from multigrid.grids import SamplingOptions, make_grid
from multigrid.integrations.pyslowfast_keys import baseline_config, get_key, set_keys
from multigrid.sampling import clip_generator
from multigrid.shapes import ClipRequest, Shape


class ConfiguredClips(Dataset[Any]):
    """Wrap a PySlowFast data set so that it accepts a `ClipRequest` as index.

    The wrapped data set is a shallow copy with a config of its own. For each clip, four keys in the
    section DATA of this config are set to the values for the requested shape (`make_grid`):

    - NUM_FRAMES and TRAIN_CROP_SIZE are those of the shape.
    - SAMPLING_RATE is drawn from [τ, τ·T/t], for clips of t frames and a baseline of T frames with
      stride τ.
    - TRAIN_JITTER_SCALES is [min·h/H, max], for crops of h pixels and a baseline of H pixels. The
      data set draws the short side from this range.

    The global random generators of Python, NumPy and PyTorch are seeded by (seed, epoch, video).
    They are restored after the clip is read.

    Args:
        dataset: The data set. `__getitem__` must read the four keys from its attribute `cfg`.
        cfg: The config of the baseline. RNG_SEED is the seed.
        base: Shape of the baseline's mini-batch.

    Raises:
        ValueError: The data set has no attribute `cfg`. Also raised when a clip is read, if the
            clip does not have the requested shape.
    """

    def __init__(self, dataset: Dataset[Any], cfg: Any, base: Shape) -> None:
        if not hasattr(dataset, "cfg"):
            raise MultigridError(
                f"the {type(dataset).__name__} has no attribute cfg. Its __getitem__ must read "
                "DATA.NUM_FRAMES, SAMPLING_RATE, TRAIN_CROP_SIZE and TRAIN_JITTER_SCALES from "
                "self.cfg. If it accepts a ClipRequest as index, pass by_request=True instead"
            )
        self.dataset: Any = copy.copy(dataset)
        self.dataset.cfg = baseline_config(dataset.cfg)
        self._seed: int = cfg.RNG_SEED
        self._grid_of = partial(
            make_grid,
            base=base,
            stride=cfg.DATA.SAMPLING_RATE,
            short_sides=tuple(cfg.DATA.TRAIN_JITTER_SCALES),
            options=SamplingOptions(
                keep_field_of_view=get_key(cfg, "MULTIGRID.KEEP_FIELD_OF_VIEW")
            ),
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
        set_keys(self.dataset.cfg, values)
        item = self._read(request.video, *seeds)
        # The dimensions of the clip may have any order.
        clips = (a.shape for a in tree_leaves(item) if getattr(a, "ndim", 0) == 4)
        sides = max(clips, key=math.prod, default=None)
        if sides is not None and not {shape.frames, shape.crop} <= set(sides):
            raise MultigridError(
                f"{type(self.dataset).__name__} returned a clip of shape {tuple(sides)}, but "
                f"{shape.frames} frames of {shape.crop}² pixels were requested. Its __getitem__ "
                "must read DATA.NUM_FRAMES and DATA.TRAIN_CROP_SIZE from self.cfg, rather than "
                "__init__"
            )
        return item

    def _read(self, video: int, python: int, numpy: int, pytorch: int) -> Any:
        """Read an item with seeded global generators of the CPU, and restore the generators."""
        former = random.getstate(), np.random.get_state()
        with torch.random.fork_rng(devices=()):
            random.seed(python)
            np.random.seed(numpy)
            torch.default_generator.manual_seed(pytorch)
            item = self.dataset[video]
        random.setstate(former[0])
        np.random.set_state(former[1])
        return item
