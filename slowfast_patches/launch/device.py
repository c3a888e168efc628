"""Set up a process for training: device, CPU threads, precision and GPU memory allocator."""

from __future__ import annotations

import logging
import os

import torch

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.placement import Placement
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.machine import cores_of_process, num_workers

logger = logging.getLogger(__name__)

_WIDE = 32
"""Minimum RESNET.WIDTH_PER_GROUP for which bfloat16 (with AMX) is faster than float32."""


def check_gpus(recipe: Recipe, placement: Placement) -> None:
    """Check that this machine has at least NUM_GPUS GPUs.

    A single GPU is enough for a rank that a launcher has started, because a task of srun sees only
    its own GPU if srun assigns GPUs to tasks (--gpus-per-task).

    Raises:
        ValueError: This machine has fewer GPUs.
    """
    count = torch.cuda.device_count()
    if count < recipe.num_gpus and not (placement.local_rank is not None and count == 1):
        raise UserError(
            f"NUM_GPUS is {recipe.num_gpus}, but this machine has {count} GPUs. To train on the "
            "CPU, set NUM_GPUS 0."
        )


def process_device(recipe: Recipe, local_rank: int) -> torch.device:
    """Return the device of a rank. Make it the current GPU, or set the number of CPU threads."""
    if recipe.num_gpus == 0:
        _share_cores(recipe)
        return torch.device("cpu")
    # If srun assigns a GPU to each task, the task sees only this GPU, with index 0.
    number = 0 if torch.cuda.device_count() == 1 else local_rank
    keep_memory_whole()
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def _share_cores(recipe: Recipe) -> None:
    """Reduce the number of torch threads so that each DataLoader worker has a core.

    If OMP_NUM_THREADS is set, do nothing. When a torch thread shares its core with a worker, all
    other threads wait for that thread in each operation. With 2 threads and a busy worker on 2
    cores, training steps took 1.5 times as long.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        workers = num_workers(recipe.data_loader.num_workers, recipe.num_gpus)
        torch.set_num_threads(max(1, cores_of_process(recipe.num_gpus) - workers))


def with_precision(recipe: Recipe, on_gpu: bool) -> Recipe:
    """Replace TRAIN.MIXED_PRECISION auto by True or False, and log the value.

    The value is True on a GPU, and for wide convolutions on a CPU with AMX instructions. Otherwise,
    bfloat16 is slower than float32 (docs/performance.md).
    """
    if recipe.train.mixed_precision != "auto":
        return recipe
    wide = recipe.model.spec.is_resnet and recipe.resnet.width_per_group >= _WIDE
    mixed = on_gpu or (torch.cpu._is_amx_tile_supported() and wide)
    logger.info("TRAIN.MIXED_PRECISION auto is %s on this machine", mixed)
    return recipe.replaced({"TRAIN.MIXED_PRECISION": mixed})


def set_up_device(recipe: Recipe) -> None:
    """Apply TRAIN.TF32, TRAIN.CUDNN_BENCHMARK and TRAIN.DETERMINISTIC to this process.

    If a recipe sets DETERMINISTIC, call this before the process uses a GPU.
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

    They let the memory of one shape be used for the next. Call this before a GPU is used.
    """
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
