"""Data loaders: one that lives through a whole training, and short-lived ones for evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from fvcore.common.config import CfgNode
from torch.utils.data import DataLoader, Dataset

from multigrid import ClipRequest, MultigridBatchSampler, Schedule, Step, collate, stream

__all__ = ["build_dataset", "evaluation_loader", "precise_bn_loader", "training_loader"]

_PRECISE_BN_EPOCH = 1 << 30
"""Epoch number that seeds the clips for precise BN: one that no training reaches."""


def build_dataset(cfg: CfgNode, split: str) -> Any:
    """The data set of a split, from the host's registry."""
    from slowfast.datasets.build import build_dataset as host_build_dataset

    name = cfg.TEST.DATASET if split == "test" else cfg.TRAIN.DATASET
    return host_build_dataset(name, cfg, split)


def training_loader(
    cfg: CfgNode, dataset: Dataset[Any], schedule: Schedule, start: int, rank: int, world_size: int
) -> DataLoader[Any]:
    """Mini-batches of this rank from iteration `start` to the end of the schedule."""
    sampler = MultigridBatchSampler(schedule, cfg.RNG_SEED, rank, world_size, start)
    return _loader(cfg, dataset, sampler)


def evaluation_loader(
    cfg: CfgNode, dataset: Any, batch_size: int, rank: int, world_size: int
) -> DataLoader[Any]:
    """This rank's share of an evaluation split, in order, every clip exactly once."""
    numbers = range(len(dataset))[rank::world_size]
    batches = [list(numbers[i : i + batch_size]) for i in range(0, len(numbers), batch_size)]
    return _loader(cfg, dataset, batches, _collate_evaluation)


def precise_bn_loader(
    cfg: CfgNode, dataset: Dataset[Any], schedule: Schedule, step: Step, rank: int, world_size: int
) -> DataLoader[Any]:
    """BN.NUM_BATCHES_PRECISE mini-batches of training clips at the baseline grid.

    At most one epoch of clips, of their own stream, so that training never sees the difference.
    """
    base, videos = schedule.base, schedule.num_videos
    size = max(1, base.batch // world_size)
    count = max(1, min(cfg.BN.NUM_BATCHES_PRECISE, videos // (size * world_size)))
    batches = []
    for number in range(count):
        first = (number * world_size + rank) * size
        clips = stream(cfg.RNG_SEED + 1 + step.iteration, videos, first, first + size)
        requests = [ClipRequest(v, _PRECISE_BN_EPOCH + e, base, -1) for v, e in clips]
        batches.append(requests)
    return _loader(cfg, dataset, batches)


def _collate_evaluation(samples: Sequence[Any]) -> dict[str, Any]:
    videos = torch.as_tensor([sample["video"] for sample in samples])
    return {**collate(samples), "videos": videos}


def _loader(
    cfg: CfgNode, dataset: Dataset[Any], batches: Any, collate_fn: Any = collate
) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=cfg.DATA_LOADER.NUM_WORKERS,
        pin_memory=cfg.DATA_LOADER.PIN_MEMORY and cfg.NUM_GPUS > 0,
        collate_fn=collate_fn,
    )
