"""Mini-batches of noise, as a loader would hand them over: to try a shape, and to time it."""

from __future__ import annotations

import torch
from fvcore.common.config import CfgNode
from torch import Tensor

from multigrid import Batch, Shape, empty_clips

__all__ = ["made_up_batch"]


def made_up_batch(cfg: CfgNode, clips: int, shape: Shape) -> Batch:
    """`clips` clips of a shape's frames and crop, in pinned memory where the loader's are.

    The noise is of a generator of its own; torch's stays as it is.
    """
    noise = torch.Generator().manual_seed(cfg.RNG_SEED)
    pixels = empty_clips(clips, shape.frames, shape.crop).random_(0, 256, generator=noise)
    flips = torch.rand(clips, generator=noise) < (0.5 if cfg.DATA.RANDOM_FLIP else 0.0)
    tensors = [pixels, _labels(cfg, clips, noise), flips]
    if cfg.DATA_LOADER.PIN_MEMORY and cfg.NUM_GPUS > 0:
        tensors = [tensor.pin_memory() for tensor in tensors]
    pixels, labels, flips = tensors
    return Batch(clips=pixels, labels=labels, flips=flips, iteration=0, failures=[])


def _labels(cfg: CfgNode, clips: int, noise: torch.Generator) -> Tensor:
    classes = cfg.MODEL.NUM_CLASSES
    if cfg.DATA.MULTI_LABEL:
        return torch.randint(0, 2, (clips, classes), generator=noise).float()
    return torch.randint(0, classes, (clips,), generator=noise)
