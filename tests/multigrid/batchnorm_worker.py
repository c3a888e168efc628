"""The processes of the shared-statistics test: `python batchnorm_worker.py FOLDER WORLD`, which
forks one for each rank once everything is imported.

Each reads FOLDER/cases.pt, a list of (group size, input, weight of the loss), trains its rank's run
of clips through one module per case, and writes FOLDER/{RANK}_of_{WORLD}.pt.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from multigrid.batchnorm import (
    GroupedBatchNorm3d,
    average_running_stats,
    form_neighbours,
    group_order,
)
from multigrid.batchnorm.shared import _neighbours as neighbours

__all__ = ["main"]


def main(folder: Path, world: int, rank: int) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / f"store_{world}"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    results, messages, waits = [], [], []
    for sharers in (2, 4) if world > 1 else ():
        messages.append(_refused(GroupedBatchNorm3d(1), torch.ones(1, 1, 1, 1, 2), sharers))
        form_neighbours(sharers, timedelta(minutes=7))
        group = neighbours(sharers)
        waits.append(group._get_backend(torch.device("cpu")).options._timeout.seconds // 60)
    for k, x, loss_weight in torch.load(folder / "cases.pt"):
        dtype = torch.promote_types(x.dtype, torch.float32)
        norm = GroupedBatchNorm3d(x.shape[1], dtype=dtype)
        norm.group_size = k
        local = x.chunk(world)[rank].requires_grad_()
        results.append(_train(norm, local, loss_weight.chunk(world)[rank]))
    too_many = _refused(norm, local, 16)  # more than all processes together have
    saved = {"cases": results, "error": too_many, "unformed": messages, "minutes": waits}
    torch.save(saved, folder / f"{rank}_of_{world}.pt")
    dist.destroy_process_group()


def _refused(norm: GroupedBatchNorm3d, x: torch.Tensor, group_size: int) -> str:
    norm.group_size = group_size
    try:
        norm(x)
    except ValueError as error:
        return str(error)
    return ""


def _train(
    norm: GroupedBatchNorm3d, x: torch.Tensor, loss_weight: torch.Tensor
) -> dict[str, torch.Tensor]:
    order = torch.tensor(group_order(len(x), norm.group_size))
    output = norm(x[order])[order.argsort()]
    (output * loss_weight).sum().backward()
    average_running_stats(norm)
    return {
        "output": output.detach(),
        "x": x.grad,
        "weight": norm.weight.grad,
        "bias": norm.bias.grad,
        "running_mean": norm.running_mean,
        "running_var": norm.running_var,
    }


if __name__ == "__main__":
    ranks = range(int(sys.argv[2]))
    if rank := next((rank for rank in ranks[1:] if not os.fork()), 0):
        main(Path(sys.argv[1]), len(ranks), rank)
    else:
        main(Path(sys.argv[1]), len(ranks), 0)
        statuses = [os.wait()[1] for _ in ranks[1:]]
        sys.exit(any(statuses))
