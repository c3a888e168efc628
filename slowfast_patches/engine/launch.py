"""Start the processes of a run: torchrun's, the host's own launcher convention, or this one alone.

The host's convention: NUM_GPUS processes on each of NUM_SHARDS machines, of which this is number
SHARD_ID, meeting at --init_method. NUM_GPUS 0 is one process a machine, on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from fvcore.common.config import CfgNode
from torch.multiprocessing.spawn import start_processes

from slowfast_patches.config.scale import scale_to_processes
from slowfast_patches.datasets.loader import cores_of_process, num_workers
from slowfast_patches.utils.distributed import World

__all__ = ["check_gpus", "for_processes", "launch", "process_device", "processes_of"]

Main = Callable[[CfgNode, World], None]


def processes_of(cfg: CfgNode) -> int:
    """Processes of a run over all machines, as torchrun or else the config says."""
    if _under_torchrun():
        return int(os.environ["WORLD_SIZE"])
    return int(max(1, cfg.NUM_GPUS) * cfg.NUM_SHARDS)


def check_gpus(cfg: CfgNode) -> None:
    """Raise ValueError if a config asks for more GPUs than this machine has."""
    if torch.cuda.device_count() < cfg.NUM_GPUS:
        raise ValueError(
            f"NUM_GPUS is {cfg.NUM_GPUS}, this machine has {torch.cuda.device_count()}; "
            "NUM_GPUS 0 trains on the CPU"
        )


def for_processes(cfg: CfgNode) -> CfgNode:
    """The config as the processes of this run train it; everything that reads a recipe calls this.

    Machines are counted, and batch and rates scaled where SOLVER.REFERENCE_WORLD_SIZE asks for it.

    Raises:
        ValueError: torchrun and the config disagree, or the recipe cannot be scaled.
    """
    cfg = _with_machines(cfg)
    return scale_to_processes(cfg, processes_of(cfg))


def _with_machines(cfg: CfgNode) -> CfgNode:
    """The config with NUM_SHARDS as torchrun counts machines: TRAIN.BATCH_SIZE is per machine."""
    if not _under_torchrun():
        return cfg
    machines = int(os.environ["GROUP_WORLD_SIZE"])
    if cfg.NUM_SHARDS not in (1, machines):
        raise ValueError(
            f"torchrun runs on {machines} machines, NUM_SHARDS says {cfg.NUM_SHARDS}; leave "
            "NUM_SHARDS out under torchrun"
        )
    cfg = cfg.clone()
    cfg.defrost()
    cfg.NUM_SHARDS = machines
    cfg.freeze()
    return cfg


def launch(cfg: CfgNode, init_method: str, main: Main) -> None:
    """Call `main(cfg, world)` in every process of the run and wait for them."""
    if _under_torchrun():
        _join(int(os.environ["LOCAL_RANK"]), cfg, "env://", processes_of(cfg), main)
    elif processes_of(cfg) == 1:
        main(cfg, World(0, 1, process_device(cfg, 0)))
    elif cfg.NUM_GPUS > 1:
        size = processes_of(cfg)
        start_processes(  # type: ignore[no-untyped-call]
            _join, (cfg, init_method, size, main), cfg.NUM_GPUS, start_method="spawn"
        )
    else:
        _join(0, cfg, init_method, processes_of(cfg), main)


def _under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def _join(local_rank: int, cfg: CfgNode, init_method: str, size: int, main: Main) -> None:
    """Enter the process group, run, and leave it."""
    device = process_device(cfg, local_rank)
    rank = cfg.SHARD_ID * max(1, cfg.NUM_GPUS) + local_rank
    if init_method == "env://":
        rank = int(os.environ["RANK"])
    backend = _backend(cfg)
    dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=size)
    try:
        main(cfg, World(rank, size, device))
    finally:
        dist.destroy_process_group()


def _backend(cfg: CfgNode) -> str:
    if cfg.DIST_BACKEND != "auto":
        return str(cfg.DIST_BACKEND)
    return "nccl" if cfg.NUM_GPUS > 0 else "gloo"


def process_device(cfg: CfgNode, local_rank: int) -> torch.device:
    """The device of a process on this machine; on the CPU, with its share of the cores set."""
    if cfg.NUM_GPUS == 0:
        _share_cores(cfg)
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _share_cores(cfg: CfgNode) -> None:
    """On the CPU, leave a core to each worker that reads; OMP_NUM_THREADS has the last word.

    A worker that takes the core of one of torch's threads makes the others wait for it at every
    operation: with 2 threads and a busy worker on 2 cores, steps took half as long again.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores_of_process(cfg) - num_workers(cfg)))
