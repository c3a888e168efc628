"""One process of the test of evaluation on several: `python evaluate_worker.py RANK WORLD FOLDER`.

Reads FOLDER/cases.pt, a list of (scores of all clips, labels by video, clips a video, ensemble),
where clips that cannot be read have scores that are not finite,
evaluates this rank's share of the clips, and writes the metrics of each case to
FOLDER/rank{RANK}.pt.
"""

import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d

from slowfast_patches.train.checkpoints import share
from slowfast_patches.train.evaluate import evaluate
from slowfast_patches.utils.distributed import World, from_main

__all__ = ["main"]


def main(rank: int, size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    world = World(rank, size, torch.device("cpu"))
    metrics = [_evaluate(world, *case) for case in torch.load(folder / "cases.pt")]
    _check_sharing(world)
    torch.save(metrics, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


def _check_sharing(world: World) -> None:
    """What the main process has reaches all, and no group stays for it."""
    groups = len(distributed_c10d._world.pg_map)
    for number in range(10):
        tree = {"a": torch.full((300_000,), number), "b": [torch.empty(0), number]}
        got = share(tree if world.is_main else {}, world)
        assert bool((got["a"] == number).all())
        assert (len(got["b"][0]), got["b"][1]) == (0, number)
        assert from_main(lambda made=(number, world.rank): made) == (number, 0)
    assert len(distributed_c10d._world.pg_map) == groups


class _Table(nn.Module):
    """Scores clip n with the n-th row."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, numbers: Tensor) -> Tensor:
        return self.rows[numbers]


def _evaluate(
    world: World, rows: Tensor, labels: Tensor, clips: int, ensemble: str
) -> dict[str, float]:
    batches = [
        {
            "clips": numbers,
            "flips": torch.zeros(len(numbers), dtype=torch.bool),
            "labels": labels[numbers // clips],
            "videos": numbers // clips,
            "failures": [("broken.mp4", "is broken")] * int(len(read) > len(numbers)),
        }
        for read in torch.arange(len(rows))[world.rank :: world.size].split(2)
        for numbers in [read[rows[read].isfinite().all(1)]]
    ]
    return evaluate(
        _Table(rows),
        batches,
        lambda clips, flips: clips,
        world,
        num_videos=len(labels),
        num_clips=clips,
        num_classes=rows.shape[1],
        multi_label=labels.ndim == 2,
        ensemble=ensemble,
        autocast=nullcontext,
        max_bad=1.0,
    ).metrics


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
