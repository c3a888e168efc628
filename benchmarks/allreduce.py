"""The all-reduce model of tools/plan.py --gpus against gloo on this machine.

    python benchmarks/allreduce.py [--rounds 15] [--output allreduce.json]

Sums over 2 and 4 processes at seven sizes, up to the gradients of a SlowFast R50. Latency and
bandwidth are fitted to every other size on 2 processes; the sizes in between, and all on 4
processes, are predicted from them by the ring.

Processes on one machine have no network of their own: they share its memory and cores. So there is
a second prediction, which is longer by as many times as there are more processes than cores.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from common import (
    new_parser,
    on_processes,
    provenance,
    quartiles,
    spread_text,
    take_turns,
    write_result,
)
from scipy.optimize import nnls
from torch import Tensor

from slowfast_patches.plan.cluster import ring_seconds
from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.machine import available_cores
from slowfast_patches.utils.tables import format_table

__all__ = ["fit_ring", "main"]

GRADIENTS = 138_265_952
SIZES = (2**16, 2**18, 2**20, 2**22, 2**24, 2**26, GRADIENTS)
FITTED = SIZES[::2]
PROCESSES = (2, 4)


def fit_ring(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Bytes a second, and seconds of a message beside its bytes, of a member of a ring of 2: those
    with the least relative errors, squared."""
    messages = 2  # each sends half of the bytes twice
    columns = np.stack([np.full(len(sizes), messages), np.array(sizes)], axis=1)
    (latency, per_byte), _ = nnls(columns / np.array(seconds)[:, None], np.ones(len(sizes)))
    return float(1 / per_byte), float(latency)


def measure(rank: int, rounds: int) -> dict[int, list[float]]:
    """Seconds of an all-reduce of each size over the processes of a group, a value a round."""
    torch.set_num_threads(1)
    turns = {size: partial(_slowest, torch.randn(size // 4)) for size in SIZES}
    return take_turns(turns, rounds, warm_up=1, order=random.Random(0))  # the same on every rank


def _slowest(tensor: Tensor) -> float:
    """Seconds of a sum, of the process that takes longest; the mean of many of small tensors."""
    repeats = max(1, min(50, 2**22 // (4 * tensor.numel())))
    dist.barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        dist.all_reduce(tensor)
    seconds = torch.tensor((time.perf_counter() - start) / repeats, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    tensor.normal_()  # sums of sums would overflow
    return float(seconds)


def compare(measured: dict[int, dict[int, list[float]]]) -> dict[str, Any]:
    """The fit, and predicted beside measured times."""
    fit = fit_ring(FITTED, [statistics.median(measured[2][size]) for size in FITTED])
    rows = list[dict[str, Any]]()
    for processes, by_size in measured.items():
        # Processes for each core, relative to the 2 of the fit.
        sharing = max(1.0, processes / available_cores()) / max(1.0, 2 / available_cores())
        for size, times in by_size.items():
            ring = ring_seconds(size, processes, *fit)
            ratio = ring / statistics.median(times)
            row = {"processes": processes, "bytes": size, "seconds": quartiles(times)}
            row |= {"fitted": processes == 2 and size in FITTED, "ring_seconds": ring}
            row |= {"ring_over_measured": ratio, "shared_cores_over_measured": sharing * ratio}
            rows.append(row)
    return {"fit": {"bytes_per_second": fit[0], "latency_seconds": fit[1]}, "all_reduce": rows}


def format_result(result: dict[str, Any]) -> str:
    """The table and the fit."""
    fit = result["fit"]
    rows = [
        [
            str(row["processes"]),
            f"{row['bytes'] / 1e6:.3g}",
            "fitted" if row["fitted"] else "",
            spread_text(row["seconds"], 5, " s"),
            f"{row['ring_over_measured']:.2f}",
            f"{row['shared_cores_over_measured']:.2f}",
        ]
        for row in result["all_reduce"]
    ]
    headers = ["processes", "MB", "", "measured", "ring /\nmeasured", "cores shared /\nmeasured"]
    return (
        f"{format_table(headers, rows, left=0)}\n\nfitted on 2 "
        f"processes: {fit['bytes_per_second'] / 1e9:.3g} GB/s, {1e6 * fit['latency_seconds']:.3g} "
        f"µs a message; {result['machine']['processor']}, {result['machine']['cores']} cores"
    )


@tool()
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; returns the exit status."""
    args = new_parser(__doc__, rounds=15, keys=False).parse_args(argv)
    measured = {n: on_processes(measure, n, args.rounds) for n in PROCESSES}
    result = {**provenance(), "rounds": args.rounds, **compare(measured)}
    print(format_result(result))
    write_result(args.output, "allreduce.py", argv, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
