"""Describe the machine: processor, available cores, GPUs and package versions."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


def versions() -> dict[str, str]:
    """Return the versions of Python and of packages that affect results, by package name."""
    names = ("slowfast-multigrid", "pyslowfast", "torch", "numpy", "av", "fvcore", "scikit-learn")
    packages = {name: version(name) for name in names}
    # The version in the metadata of torch lacks the suffix for CUDA, such as +cu126.
    return {"python": platform.python_version(), **packages, "torch": torch.__version__}


def machine() -> dict[str, Any]:
    """Return a description of the machine.

    Returns:
        Dict with "platform" (operating system), "processor", "cores" (number of CPU cores),
        "threads" (number of torch threads) and "gpus" (list of names).
    """
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


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
