"""The all-reduce model of tools/plan.py --gpus against gloo on this machine.

    python benchmarks/allreduce.py [--rounds 15] [--output benchmarks/results/allreduce.json]

Sums over 2 and 4 processes at seven sizes, up to the gradients of a SlowFast R50. Latency and
bandwidth are fitted to every other size on 2 processes; the sizes in between, and all on 4
processes, are predicted from them by the ring.

Processes on one machine have no network of their own: they share its memory and cores. So there is
a second prediction, which divides the bandwidth fitted on 2 processes by how many more processes
than cores there are.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from common import new_parser, provenance, quartiles, spread_text, take_turns, write_result
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

from slowfast_patches.plan.cluster import ring_seconds
from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.machine import available_cores
from slowfast_patches.utils.tables import format_table

__all__ = ["Fit", "fit_ring", "main"]

GRADIENTS = 138_265_952
SIZES = (2**16, 2**18, 2**20, 2**22, 2**24, 2**26, GRADIENTS)
FITTED = SIZES[::2]
PROCESSES = (2, 4)


class Fit(NamedTuple):
    """A member of a ring: bytes a second, and seconds of a message besides its bytes."""

    bandwidth: float
    latency: float

    def seconds(self, size: float, members: int, sharing: float = 1.0) -> float:
        """Of an all-reduce; `sharing` processes use what one had in the fit."""
        return ring_seconds(size, members, self.bandwidth / sharing, self.latency * sharing)


def fit_ring(sizes: Sequence[int], seconds: Sequence[float]) -> Fit:
    """The fit on 2 processes with the least relative errors, squared; latency is 0 at least."""
    times = np.array(seconds)
    messages = 2  # each sends half of the bytes twice
    columns = np.stack([messages / times, np.array(sizes) / times], axis=1)
    (latency, per_byte), *_ = np.linalg.lstsq(columns, np.ones(len(times)), rcond=None)
    if latency < 0:
        bytes_per_second = columns[:, 1]
        latency, per_byte = 0.0, bytes_per_second.sum() / (bytes_per_second @ bytes_per_second)
    return Fit(bandwidth=float(1 / per_byte), latency=float(latency))


def measure(processes: int, rounds: int) -> dict[int, list[float]]:
    """Seconds of an all-reduce of each size over some processes, a value a round."""
    with tempfile.TemporaryDirectory() as folder:
        start_processes(  # type: ignore[no-untyped-call]
            _worker, (processes, folder, rounds), processes, start_method="spawn"
        )
        return dict(json.loads(Path(folder, "times.json").read_text("utf-8")))


def _worker(rank: int, world: int, folder: str, rounds: int) -> None:
    """Measure as one process of `world`; rank 0 writes what the slowest took."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    turns = {size: partial(_slowest, torch.randn(size // 4)) for size in SIZES}
    times = take_turns(turns, rounds, warm_up=1, order=random.Random(0))  # the same on every rank
    if rank == 0:
        Path(folder, "times.json").write_text(json.dumps(list(times.items())), encoding="utf-8")
    dist.destroy_process_group()


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
    return {
        "fit": {"bytes_per_second": fit.bandwidth, "latency_seconds": fit.latency},
        "fitted_sizes": FITTED,
        "all_reduce": [
            _row(fit, processes, size, times)
            for processes, by_size in measured.items()
            for size, times in by_size.items()
        ],
    }


def _row(fit: Fit, processes: int, size: int, times: Sequence[float]) -> dict[str, Any]:
    """A sum, and its prediction as a multiple of what was measured."""
    median, cores = statistics.median(times), available_cores()
    # Processes for each core, relative to the 2 of the fit.
    sharing = max(1.0, processes / cores) / max(1.0, 2 / cores)
    ring = fit.seconds(size, processes)
    return {
        "processes": processes,
        "bytes": size,
        "fitted": processes == 2 and size in FITTED,
        "seconds": quartiles(times),
        "ring_seconds": ring,
        "ring_over_measured": ring / median,
        "shared_cores_over_measured": fit.seconds(size, processes, sharing) / median,
    }


def format_result(result: dict[str, Any]) -> str:
    """The table and the fit."""
    fit = result["fit"]
    rows = [
        [
            str(row["processes"]),
            f"{row['bytes'] / 1e6:.3g}",
            "fitted" if row["fitted"] else "",
            spread_text(row["seconds"], 5, " s"),
            f"{row['ring_seconds']:.5f}",
            f"{row['ring_over_measured']:.2f}",
            f"{row['shared_cores_over_measured']:.2f}",
        ]
        for row in result["all_reduce"]
    ]
    headers = ["processes", "MB", "", "measured", "ring, s", "ring /\nmeasured"]
    headers += ["cores shared /\nmeasured"]
    return (
        f"{format_table(headers, rows, left=0)}\n\nfitted on 2 "
        f"processes: {fit['bytes_per_second'] / 1e9:.3g} GB/s, {1e6 * fit['latency_seconds']:.3g} "
        f"µs a message; {result['machine']['processor']}, {result['machine']['cores']} cores"
    )


@tool()
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; returns the exit status."""
    args = new_parser(__doc__, rounds=15, keys=False).parse_args(argv)
    measured = {processes: measure(processes, args.rounds) for processes in PROCESSES}
    result = {**provenance(), "rounds": args.rounds, **compare(measured)}
    print(format_result(result))
    write_result(args.output, "allreduce.py", argv, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
