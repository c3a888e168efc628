"""How a process computes: its device, its share of the cores, and what a recipe's switches set."""

from __future__ import annotations

import logging
import os

import torch

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.loader import cores_of_process, num_workers
from slowfast_patches.launch.placement import find_placement

__all__ = ["check_gpus", "keep_memory_whole", "process_device", "set_up_device", "with_precision"]

logger = logging.getLogger(__name__)

_WIDE = 32
"""RESNET.WIDTH_PER_GROUP from which every shape is faster in bfloat16 on a processor with AMX."""
_ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def check_gpus(recipe: Recipe) -> None:
    """Raise ValueError if a recipe asks for more GPUs than this machine has."""
    count = torch.cuda.device_count()
    if count < recipe.num_gpus and not _has_gpu_of_its_own(recipe):
        raise ValueError(
            f"NUM_GPUS is {recipe.num_gpus}, this machine has {count}; NUM_GPUS 0 trains on the CPU"
        )


def _has_gpu_of_its_own(recipe: Recipe) -> bool:
    """Whether srun shows each of its tasks one GPU (--gpus-per-task), which is number 0 to all."""
    placement = find_placement(recipe, os.environ)
    is_task = placement.launcher == "srun" and placement.local_rank is not None
    return is_task and torch.cuda.device_count() == 1


def process_device(recipe: Recipe, local_rank: int) -> torch.device:
    """The device of a process on this machine; on the CPU, with its share of the cores set."""
    if recipe.num_gpus == 0:
        _share_cores(recipe)
        return torch.device("cpu")
    number = 0 if _has_gpu_of_its_own(recipe) else local_rank
    keep_memory_whole()
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def _share_cores(recipe: Recipe) -> None:
    """On the CPU, leave a core to each worker that reads; an existing OMP_NUM_THREADS is respected.

    A worker that takes the core of one of torch's threads makes the others wait for it at every
    operation: with 2 threads and a busy worker on 2 cores, steps took half as long again.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores_of_process(recipe) - num_workers(recipe)))


def with_precision(recipe: Recipe, on_gpu: bool) -> Recipe:
    """The recipe with TRAIN.MIXED_PRECISION auto decided, and logged: by instructions, not by a
    timed step, so that it is the same in every run on a machine.

    On a processor it takes AMX and wide convolutions: with avx512_bf16 alone, and in thin networks
    and small transformers on coarse grids, steps are slower in bfloat16 (docs/performance.md).
    """
    if recipe.train.mixed_precision != "auto":
        return recipe
    wide = not recipe.model.family.is_transformer and recipe.resnet.width_per_group >= _WIDE
    mixed = on_gpu or (torch.cpu._is_amx_tile_supported() and wide)
    logger.info("TRAIN.MIXED_PRECISION auto is %s", mixed)
    return recipe.replaced({"TRAIN.MIXED_PRECISION": mixed})


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
    whatever their sizes, only where it is not cut up in blocks. An existing PYTORCH_ALLOC_CONF is
    respected.
    """
    if not any(name in os.environ for name in _ALLOCATORS):
        os.environ[_ALLOCATORS[0]] = "expandable_segments:True"
