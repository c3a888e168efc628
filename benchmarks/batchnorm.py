"""What normalising over groups costs: GroupedBatchNorm3d against nn.BatchNorm3d, as a ratio.

    python benchmarks/batchnorm.py [--clips 64] [--group-size 8] [--rounds 15] [--json FILE]

Training forward and backward. In every round both modules run once on the same tensors, in random
order, so that whatever else the machine does falls on both; a round gives one ratio.
"""

import argparse
import datetime
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn

from multigrid.batchnorm import GroupedBatchNorm3d
from slowfast_patches.utils.machine import machine, versions

__all__ = ["main", "measure"]

SHAPES = [(64, 8, 28, 28), (16, 4, 45, 45), (32, 8, 28, 28), (128, 4, 14, 14)]  # C, T, H, W
FORMATS = {"contiguous": torch.contiguous_format, "channels_last_3d": torch.channels_last_3d}
WARM_UP = 3


def measure(
    clips: int, group_size: int, shape: tuple[int, ...], layout: str, rounds: int, device: str
) -> dict[str, Any]:
    """Milliseconds of both modules and the median and quartiles of their ratio, on one shape."""
    x = torch.randn(clips, *shape, device=device).contiguous(memory_format=FORMATS[layout])
    grad = torch.randn_like(x)
    x.requires_grad_()
    modules = [nn.BatchNorm3d(shape[0]).to(device), GroupedBatchNorm3d(shape[0]).to(device)]
    modules[1].group_size = group_size
    times: list[list[float]] = [[], []]
    for _ in range(WARM_UP + rounds):
        for i in random.sample((0, 1), 2):
            times[i].append(_seconds(modules[i], x, grad))
    plain, grouped = (t[WARM_UP:] for t in times)
    ratios = [b / a for a, b in zip(plain, grouped, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return {
        "shape": "x".join(map(str, (clips, *shape))),
        "memory_format": layout,
        "plain_ms": 1e3 * statistics.median(plain),
        "grouped_ms": 1e3 * statistics.median(grouped),
        "ratio": median,
        "ratio_25%": low,
        "ratio_75%": high,
    }


def _seconds(module: nn.Module, x: Tensor, grad: Tensor) -> float:
    x.grad = None
    module.zero_grad()
    _synchronize(x)
    start = time.perf_counter()
    module(x).backward(grad)
    _synchronize(x)
    return time.perf_counter() - start


def _synchronize(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def _machine(device: str) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if device == "cuda" else device
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return machine() | {"device": name, "versions": versions(), "date": date}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--clips", type=int, default=64, help="clips in the batch")
    parser.add_argument("--group-size", type=int, default=8, help="clips per group")
    parser.add_argument("--rounds", type=int, default=15, help="measured rounds per shape")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's own choice)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where to run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here, too")
    return parser.parse_args()


def main() -> None:
    args = _arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    rows = [
        measure(args.clips, args.group_size, shape, layout, args.rounds, args.device)
        for shape in SHAPES
        for layout in FORMATS
    ]
    where = _machine(args.device)
    print(f"forward + backward, groups of {args.group_size} clips; {where}")
    print(tabulate(rows, headers="keys", floatfmt=".2f"))
    if args.json:
        settings = {name: value for name, value in vars(args).items() if name != "json"}
        report = {"machine": where, "settings": settings, "rows": rows}
        args.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
