"""How a device computes: what a recipe's switches set for the whole process."""

from __future__ import annotations

import os

import torch

from slowfast_patches.config.recipe import Recipe

__all__ = ["keep_memory_whole", "set_up_device"]

_ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def set_up_device(recipe: Recipe) -> None:
    """Set TRAIN.TF32, TRAIN.CUDNN_BENCHMARK and TRAIN.DETERMINISTIC for this process.

    May be called again with another recipe; one that is DETERMINISTIC comes first, before anything
    is computed on a GPU.
    """
    train = recipe.train
    torch.backends.cuda.matmul.allow_tf32 = train.tf32
    torch.backends.cudnn.allow_tf32 = train.tf32
    torch.backends.cudnn.benchmark = train.cudnn_benchmark and not train.deterministic
    torch.backends.cudnn.deterministic = train.deterministic
    torch.use_deterministic_algorithms(train.deterministic)
    if train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def keep_memory_whole() -> None:
    """Have the GPU's memory claimed in segments that grow; before this process uses the GPU.

    Shapes change for days. What the tensors of one have left free serves those of the next,
    whatever their sizes, only where it is not cut up in blocks. Who sets PYTORCH_ALLOC_CONF decides
    for himself.
    """
    if not any(name in os.environ for name in _ALLOCATORS):
        os.environ[_ALLOCATORS[0]] = "expandable_segments:True"
