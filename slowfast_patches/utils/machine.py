"""Describe the machine: processor, available cores, GPUs and package versions."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

_MAX_WORKERS = 16
"""Maximum number of data loader workers per process in training on a GPU."""
_CORES_PER_WORKER = 4
"""Number of cores per data loader worker in training on the CPU."""


def versions() -> dict[str, str]:
    """Return the versions of Python and of packages that affect results, by package name."""
    names = ("slowfast-multigrid", "pyslowfast", "torch", "numpy", "av", "fvcore", "scikit-learn")
    packages = {name: version(name) for name in names}
    import torch  # Lazy: this takes seconds, and `available_cores` does not need it.

    # The version in the metadata of torch lacks the suffix for CUDA, such as +cu126.
    return {"python": platform.python_version(), **packages, "torch": str(torch.__version__)}


def machine() -> dict[str, Any]:
    """Return a description of the machine.

    Returns:
        Dict with "platform" (operating system), "processor", "cores" (number of CPU cores),
        "threads" (number of torch threads) and "gpus" (list of names).
    """
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
    }


def available_cores() -> int:
    """Return the number of CPU cores that this process may use.

    A container or SLURM may limit this number.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # Linux
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def local_processes(num_gpus: int) -> int:
    """Return the number of training processes on this machine.

    It is taken from LOCAL_WORLD_SIZE, which the launcher sets, or else from NUM_GPUS.
    """
    return int(os.environ.get("LOCAL_WORLD_SIZE") or max(1, num_gpus))


def cores_of_process(num_gpus: int) -> int:
    """Return the number of cores available to one training process and its workers.

    The training processes on this machine share the available cores evenly.
    """
    return max(1, available_cores() // local_processes(num_gpus))


def num_workers(wanted: int | str, num_gpus: int) -> int:
    """Return the number of data loader workers per training process.

    If `wanted` is "auto", training on a GPU uses one worker per core except one core, and at most
    16 workers. Training on the CPU needs the cores itself, so it uses one worker per four cores.
    There is always at least one worker, so that disk access overlaps with computation.

    Args:
        wanted: The value of DATA_LOADER.NUM_WORKERS.
        num_gpus: The value of NUM_GPUS.
    """
    if wanted != "auto":
        return int(wanted)
    cores = cores_of_process(num_gpus)
    if num_gpus > 0:
        return min(max(1, cores - 1), _MAX_WORKERS)
    return max(1, cores // _CORES_PER_WORKER)


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    name = re.search(r"^model name\s*: (.+)", text, re.MULTILINE)
    return name[1] if name else platform.processor()
