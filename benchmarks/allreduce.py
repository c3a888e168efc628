"""The all-reduce model of tools/plan.py --gpus against gloo on this machine.

    python benchmarks/allreduce.py [--rounds 15] [--output benchmarks/results/allreduce.json]

Sums over 2 and 4 processes at seven sizes, up to the gradients of a SlowFast R50. Latency and
bandwidth are fitted to every other size on 2 processes; the sizes in between, and all on 4
processes, are predicted from them by the ring. Then a SlowFast R50 trains on few small clips, with
DDP and without, in turns: what DDP adds to the step is measured, and predicted from the fit, DDP's
buckets and the model's FLOPs.

Processes on one machine have no network of their own: they share its memory and cores. So there is
a second prediction, which divides the bandwidth fitted on 2 processes by how many more processes
than cores there are.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes

from slowfast_patches.config import load_recipe
from slowfast_patches.models.build import build_model
from slowfast_patches.models.inputs import blank_inputs
from slowfast_patches.plan.cluster.gradients import BACKWARD, exchange_of, overlapped_seconds
from slowfast_patches.plan.cluster.network import ring_seconds
from slowfast_patches.utils.command_line import add_old_name, tool
from slowfast_patches.utils.machine import available_cores, machine, versions
from slowfast_patches.utils.report import format_table

__all__ = ["Fit", "fit_ring", "main"]

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "configs" / "Kinetics" / "SLOWFAST_8x8_R50.yaml"
GRADIENTS = 138_265_952
SIZES = (2**16, 2**18, 2**20, 2**22, 2**24, 2**26, GRADIENTS)
FITTED = SIZES[::2]
PROCESSES = (2, 4)
CLIPS = ((2, 4, 32), (2, 8, 64))
"""Clips, frames and crop of a process: with the second there is more to hide behind."""


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


def _worker(rank: int, world: int, folder: str, rounds: int) -> None:
    """Measure as one process of `world`; rank 0 writes what the slowest took."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    result = {"all_reduce": _time_sums(rounds), "steps": [_time_steps(c, rounds) for c in CLIPS]}
    if rank == 0:
        Path(folder, "result.json").write_text(json.dumps(result), encoding="utf-8")
    dist.destroy_process_group()


def _time_sums(rounds: int) -> dict[str, list[float]]:
    """Seconds of an all-reduce of each size, a value a round."""
    order = random.Random(0)  # the same on every rank
    tensors = {size: torch.randn(size // 4) for size in SIZES}
    times: dict[str, list[float]] = {str(size): [] for size in SIZES}
    for number in range(rounds + 1):  # the first warms up
        for size in order.sample(SIZES, len(SIZES)):
            repeats = max(1, min(50, 2**22 // size))
            seconds = _slowest(lambda s=size: dist.all_reduce(tensors[s]), repeats)
            tensors[size].normal_()  # sums of sums would overflow
            if number:
                times[str(size)].append(seconds)
    return times


def _slowest(action: Callable[[], object], repeats: int = 1) -> float:
    """Seconds of one of `repeats` calls, of the process that takes longest."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        action()
    seconds = torch.tensor((time.perf_counter() - start) / repeats, dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)


def _time_steps(clips: tuple[int, int, int], rounds: int) -> dict[str, Any]:
    """Seconds of forward and backward alone and with DDP, and backward's share of the former."""
    recipe = load_recipe(RECIPE, [])
    torch.manual_seed(0)
    alone = build_model(recipe).train()
    with_ddp = nn.parallel.DistributedDataParallel(
        deepcopy(alone), broadcast_buffers=False, gradient_as_bucket_view=True
    )
    inputs = [torch.randn_like(x) for x in blank_inputs(clips, recipe.slowfast.alpha, "cpu")]
    labels = torch.zeros(clips[0], dtype=torch.long)
    order, shares = random.Random(0), list[float]()
    times: dict[str, list[float]] = {"alone": [], "with_ddp": []}
    models = {"alone": alone, "with_ddp": with_ddp}
    for number in range(rounds + 2):  # DDP forms its buckets anew after the first
        for name in order.sample(sorted(models), 2):
            share = list[float]()
            took = _slowest(lambda n=name, s=share: s.append(_step(models[n], inputs, labels)))
            if number >= 2:
                times[name].append(took)
                shares += share if name == "alone" else []
    return {"clips": clips, **times, "backward_share": statistics.median(shares)}


def _step(model: nn.Module, inputs: list[Tensor], labels: Tensor) -> float:
    """Forward and backward; the share of the latter."""
    start = time.perf_counter()
    loss = nn.functional.cross_entropy(model(list(inputs)), labels)
    middle = time.perf_counter()
    loss.backward()
    model.zero_grad()
    return (time.perf_counter() - middle) / (time.perf_counter() - start)


def measure(processes: int, rounds: int) -> dict[str, Any]:
    """What `processes` processes measured."""
    print(f"{processes} processes", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        start_processes(  # type: ignore[no-untyped-call]
            _worker, (processes, folder, rounds), processes, start_method="spawn"
        )
        result: dict[str, Any] = json.loads(Path(folder, "result.json").read_text("utf-8"))
    return result


def compare(measured: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The fit, and predicted beside measured times."""
    two = {int(s): statistics.median(t) for s, t in measured[2]["all_reduce"].items()}
    fit = fit_ring(FITTED, [two[size] for size in FITTED])
    return {
        "fit": {"bytes_per_second": fit.bandwidth, "latency_seconds": fit.latency},
        "fitted_sizes": FITTED,
        "all_reduce": [
            _compare_sum(fit, processes, int(size), times)
            for processes, result in measured.items()
            for size, times in result["all_reduce"].items()
        ],
        "steps": [
            _compare_step(fit, processes, step)
            for processes, result in measured.items()
            for step in result["steps"]
        ],
    }


def _sharing(processes: int) -> float:
    """Processes for each core, relative to the 2 of the fit."""
    cores = available_cores()
    return max(1.0, processes / cores) / max(1.0, 2 / cores)


def _compare_sum(fit: Fit, processes: int, size: int, times: list[float]) -> dict[str, Any]:
    ring, shared = fit.seconds(size, processes), fit.seconds(size, processes, _sharing(processes))
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return {
        "processes": processes,
        "bytes": size,
        "fitted": processes == 2 and size in FITTED,
        "seconds": {"median": median, "quartile_1": low, "quartile_3": high, "rounds": times},
        "ring_seconds": ring,
        "shared_cores_seconds": shared,
        "ring_over_measured": ring / median,
        "shared_cores_over_measured": shared / median,
    }


def _compare_step(fit: Fit, processes: int, step: dict[str, Any]) -> dict[str, Any]:
    _, frames, crop = step["clips"]
    buckets = exchange_of(load_recipe(RECIPE, [])).buckets(frames, crop)
    alone = statistics.median(step["alone"])
    added = [b - a for a, b in zip(step["alone"], step["with_ddp"], strict=True)]
    low, median, high = statistics.quantiles(added, n=4, method="inclusive")
    row = {**step, "processes": processes, "alone_seconds": alone}
    row["added_seconds"] = {"median": median, "quartile_1": low, "quartile_3": high}
    for name, sharing in (("ring", 1.0), ("shared_cores", _sharing(processes))):
        total, exposed = overlapped_seconds(
            buckets,
            BACKWARD * alone,
            lambda size, s=sharing: fit.seconds(size, processes, s),
        )
        row[name] = {
            "all_reduce_seconds": total,
            "exposed_seconds": exposed,
            "step_over_measured": (alone + exposed) / statistics.median(step["with_ddp"]),
        }
    return row


def format_result(result: dict[str, Any]) -> str:
    """The tables and the fit."""
    fit = result["fit"]
    sums = [
        [
            str(row["processes"]),
            f"{row['bytes'] / 1e6:.3g}",
            "fitted" if row["fitted"] else "",
            *(f"{1e3 * row['seconds'][k]:.3g}" for k in ("median", "quartile_1", "quartile_3")),
            f"{1e3 * row['ring_seconds']:.3g}",
            f"{row['ring_over_measured']:.2f}",
            f"{row['shared_cores_over_measured']:.2f}",
        ]
        for row in result["all_reduce"]
    ]
    headers = ["processes", "MB", "", "ms", "quartile 1", "quartile 3", "ring, ms"]
    headers += ["ring /\nmeasured", "cores shared /\nmeasured"]
    return (
        f"{format_table(headers, sums, left=0)}\n\nfitted on 2 processes: "
        f"{fit['bytes_per_second'] / 1e9:.3g} GB/s, {1e6 * fit['latency_seconds']:.3g} µs a message"
        f"\n\n{_format_steps(result['steps'])}\n\n{result['machine']['processor']}, "
        f"{result['machine']['cores']} cores"
    )


def _format_steps(steps: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            str(row["processes"]),
            "×".join(map(str, row["clips"])) + "²",
            f"{1e3 * row['alone_seconds']:.0f}",
            f"{100 * row['backward_share']:.0f} %",
            "{:.0f} ({:.0f} to {:.0f})".format(*(1e3 * v for v in row["added_seconds"].values())),
            *(
                text
                for name in ("ring", "shared_cores")
                for text in (
                    f"{1e3 * row[name]['exposed_seconds']:.0f} of "
                    f"{1e3 * row[name]['all_reduce_seconds']:.0f}",
                    f"{row[name]['step_over_measured']:.2f}",
                )
            ),
        ]
        for row in steps
    ]
    headers = ["processes", "clips", "step alone,\nms", "backward", "DDP adds, ms"]
    headers += ["ring: exposed,\nms", "step /\nmeasured"]
    headers += ["cores shared:\nexposed, ms", "step /\nmeasured"]
    return format_table(headers, rows, left=0)


@tool()
def main(argv: list[str] | None = None) -> int:
    """Measure, print and write; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="(%(default)s)")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="write the numbers here")
    add_old_name(parser, "--json", "output", Path)
    args = parser.parse_args(argv)
    if args.rounds < 2:
        parser.error("--rounds: quartiles take 2 rounds at least")
    arguments = sys.argv[1:] if argv is None else argv
    result = {
        "command": shlex.join(["python", "benchmarks/allreduce.py", *arguments]),
        "machine": machine() | {"available_cores": available_cores()},
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "rounds": args.rounds,
        **compare({processes: measure(processes, args.rounds) for processes in PROCESSES}),
    }
    print(format_result(result))
    if args.output:
        args.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
