"""Device, threads, precision and memory of a process."""

from __future__ import annotations

import logging
import os

import torch

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.loader import cores_of_process, num_workers
from slowfast_patches.launch.placement import Placement

logger = logging.getLogger(__name__)

_WIDE = 32
"""Minimum RESNET.WIDTH_PER_GROUP with which every shape is faster in bfloat16 with AMX."""
_ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def check_gpus(recipe: Recipe, placement: Placement) -> None:
    """Check that this machine has the GPUs of a recipe.

    If srun gives each task a GPU of its own (--gpus-per-task), a task sees only that one.

    Raises:
        ValueError: It has fewer.
    """
    count = torch.cuda.device_count()
    is_task = placement.launcher == "srun" and placement.local_rank is not None
    if count < recipe.num_gpus and not (is_task and count == 1):
        raise ValueError(
            f"NUM_GPUS is {recipe.num_gpus}, but this machine has {count}. NUM_GPUS 0 uses the CPU."
        )


def process_device(recipe: Recipe, local_rank: int) -> torch.device:
    """Return the device of a process and make it current; on the CPU, set the number of threads."""
    if recipe.num_gpus == 0:
        _share_cores(recipe)
        return torch.device("cpu")
    # A task of srun with a GPU of its own sees only that one, as number 0.
    number = 0 if torch.cuda.device_count() == 1 else local_rank
    keep_memory_whole()
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def _share_cores(recipe: Recipe) -> None:
    """Leave a core to each DataLoader worker, unless OMP_NUM_THREADS is set.

    If a worker uses the core of a torch thread, the other threads wait for that thread at each
    operation. With 2 threads and a busy worker on 2 cores, steps took 1.5 times as long.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores_of_process(recipe) - num_workers(recipe)))


def with_precision(recipe: Recipe, on_gpu: bool) -> Recipe:
    """Replace TRAIN.MIXED_PRECISION auto by True or False, and log the choice.

    The choice depends on the instruction set instead of measured times, so that all runs on a
    machine make the same one. On a processor, True needs AMX and wide convolutions. With
    avx512_bf16 alone, in narrow networks, and in small transformers at coarse shapes, steps are
    slower in bfloat16 (docs/performance.md).
    """
    if recipe.train.mixed_precision != "auto":
        return recipe
    wide = recipe.model.family.is_resnet and recipe.resnet.width_per_group >= _WIDE
    mixed = on_gpu or (torch.cpu._is_amx_tile_supported() and wide)
    logger.info("TRAIN.MIXED_PRECISION auto is %s", mixed)
    return recipe.replaced({"TRAIN.MIXED_PRECISION": mixed})


def set_up_device(recipe: Recipe) -> None:
    """Apply TRAIN.TF32, TRAIN.CUDNN_BENCHMARK and TRAIN.DETERMINISTIC to this process.

    It may be called again with another recipe. A recipe with DETERMINISTIC must come first, before
    the process uses a GPU.
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
    """Use expandable segments in the CUDA allocator, unless PYTORCH_ALLOC_CONF is set.

    Shapes change throughout a training. Expandable segments avoid fragmentation, so that memory
    freed at one shape can be used at the next. Call this before the process uses a GPU.
    """
    if not any(name in os.environ for name in _ALLOCATORS):
        os.environ[_ALLOCATORS[0]] = "expandable_segments:True"
