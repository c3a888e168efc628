"""Tests of the BN statistics that processes share."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from multigrid import (
    GroupedBatchNorm3d,
    average_running_stats,
    form_bn_process_groups,
    group_order,
)


def _clips(layout: torch.memory_format) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 3, 2, 4, 4, generator=generator, dtype=torch.float64) * 3 + 52
    return x.contiguous(memory_format=layout)


def share_as_rank(rank: int, size: int, folder: Path) -> None:
    """Train a BN layer on a rank's run of the clips of each case in FOLDER/cases.pt.

    A case is (group size, input, weights of the loss).
    """
    store = dist.FileStore(str(folder / f"store_{size}"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    for ranks_per_group in (2, 4) if size > 1 else ():
        with pytest.raises(ValueError, match=rf"form_bn_process_groups\({ranks_per_group}\)"):
            grouped(1, ranks_per_group)(torch.ones(1, 1, 1, 1, 2))
        form_bn_process_groups(ranks_per_group, timedelta(minutes=7))
    results = list[dict[str, torch.Tensor]]()
    for k, x, loss_weight in torch.load(folder / "cases.pt"):
        norm = grouped(x.shape[1], k, dtype=torch.promote_types(x.dtype, torch.float32))
        local = x.chunk(size)[rank].requires_grad_()
        order = torch.tensor(group_order(len(local), k))
        output = norm(local[order])[order.argsort()]
        (output * loss_weight.chunk(size)[rank]).sum().backward()
        average_running_stats(norm)
        gradients = {"x": local.grad, "weight": norm.weight.grad, "bias": norm.bias.grad}
        stats = {"mean": norm.running_mean, "var": norm.running_var}
        results.append({"output": output.detach(), **gradients, **stats})
    with pytest.raises(ValueError, match="cannot form BN groups of k = 16"):
        grouped(3, 16)(local)
    torch.save(results, folder / f"{rank}_of_{size}.pt")
    dist.destroy_process_group()


def grouped(channels: int, k: int, **options) -> GroupedBatchNorm3d:
    norm = GroupedBatchNorm3d(channels, **options)
    norm.group_size = k
    return norm


@pytest.mark.slow("starts processes")
def test_processes_share_statistics_and_gradients(tmp_path):
    """Four processes give the results of one, for shared, equal and split groups of 8 clips."""
    cases = []
    for k in (1, 2, 4, 8):
        for layout in (torch.contiguous_format, torch.channels_last_3d):
            x = _clips(layout)
            cases.append((k, x, torch.linspace(-1, 2, x.numel()).double().view(x.shape)))
    cases += [(8, x.bfloat16(), grad.bfloat16()) for _, x, grad in cases[-2:]]
    torch.save(cases, tmp_path / "cases.pt")
    for size in (1, 4):
        torch.multiprocessing.start_processes(
            share_as_rank, (size, tmp_path), size, start_method="fork"
        )
    alone = torch.load(tmp_path / "0_of_1.pt")
    ranks = [torch.load(tmp_path / f"{rank}_of_4.pt") for rank in range(4)]
    for (_, x, _), expected_of, *shared in zip(cases, alone, *ranks, strict=True):
        tolerance = 0.02 if x.dtype == torch.bfloat16 else 1e-10
        for name, expected in expected_of.items():
            parts = [results[name] for results in shared]
            if name in ("output", "x"):
                found = torch.cat(parts)
            else:  # parameter gradients are of each process's clips, and statistics are averaged
                found = sum(parts) if name in ("weight", "bias") else parts[0]
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
