"""Measure the time of GroupedBatchNorm3d relative to nn.BatchNorm3d.

    python benchmarks/batchnorm.py --dtype bfloat16 --output batchnorm_h200.json
    python benchmarks/batchnorm.py --device cpu --clips 16 --rounds 5
    OMP_NUM_THREADS=1 python benchmarks/batchnorm.py --device cpu --small

The benchmark measures forward and backward in training mode. The benchmark uses
the input sizes of all BN layers of SlowFast R50. Clips have the first shape of the long cycle,
8 × 158².

In every round, both modules run once on the same tensors in
random order. Other load therefore affects both modules alike, and each round gives one ratio. In
the sum over the network, each layer size is counted as often as it occurs in SlowFast R50.

On a GPU, times are measured by CUDA events.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from common import (
    ROOT,
    Column,
    new_parser,
    provenance,
    ratios,
    seconds_of,
    spread_text,
    table,
    take_turns,
    write_result,
)
from torch import Tensor, nn

from multigrid.batchnorm import GroupedBatchNorm3d
from slowfast_patches.config import load_recipe
from slowfast_patches.models.build_model import build_on_meta
from slowfast_patches.models.inputs import blank_inputs
from slowfast_patches.utils.command_line import add_option, tool

# Maps the size (C, T, H, W) of the input to the number of BN layers.
SMALL: dict[tuple[int, ...], int] = {
    (64, 8, 28, 28): 1,
    (16, 4, 45, 45): 1,
    (32, 8, 28, 28): 1,
    (128, 4, 14, 14): 1,
}
FORMATS = {"contiguous": torch.contiguous_format, "channels_last_3d": torch.channels_last_3d}
WARM_UP = 3


def network_layers() -> dict[tuple[int, ...], int]:
    """Count the BN layers of SLOWFAST_8x8_R50 by input size, for clips of 8 × 158².

    Returns:
        A dict from the size (C, T, H, W) of the input to the number of BN layers.
    """
    recipe = load_recipe(ROOT / "configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml")
    model = build_on_meta(recipe)
    layers = Counter[tuple[int, ...]]()

    def count(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        layers[tuple(inputs[0].shape[1:])] += 1

    for module in model.modules():
        if isinstance(module, nn.BatchNorm3d):
            module.register_forward_pre_hook(count)
    model(blank_inputs((1, 8, 158), recipe.slowfast.alpha))
    return layers


def measure(
    shape: tuple[int, ...], layout: str, args: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    """Measure both modules on an input of size (C, T, H, W).

    Returns:
        The seconds of each module per round, and the quartiles of their ratio.
    """
    dtype = getattr(torch, args.dtype)
    x = torch.randn(args.clips, *shape, device=device, dtype=dtype)
    x = x.contiguous(memory_format=FORMATS[layout]).requires_grad_()
    grad = torch.randn_like(x)
    modules = {"plain": nn.BatchNorm3d(shape[0]), "grouped": GroupedBatchNorm3d(shape[0])}
    modules["grouped"].group_size = args.group_size
    turns = {
        kind: partial(seconds_of, _step(module.to(device), x, grad), device)
        for kind, module in modules.items()
    }
    times = take_turns(turns, args.rounds, warm_up=WARM_UP)
    ratio = ratios(times["grouped"], times["plain"])
    return {"shape": [args.clips, *shape], "memory_format": layout, "ratio": ratio} | times


def _step(module: nn.Module, x: Tensor, grad: Tensor) -> Callable[[], object]:
    """Return a function that runs the forward and backward pass of a module once."""
    inputs = (x, *module.parameters())

    def step() -> object:
        return torch.autograd.grad(module(x), inputs, grad)

    return step


def network_ratios(
    rows: Sequence[dict[str, Any]], layout: str, network: dict[tuple[int, ...], int]
) -> dict[str, Any]:
    """Compute the ratio of the total times of all BN layers in a network.

    Args:
        rows: Results of `measure` for the layers.
        layout: Memory format, a key of `FORMATS`.
        network: Maps the input size of a layer to the number of such layers.

    Returns:
        The memory format, and the ratio with quartiles.
    """
    rows = [row for row in rows if row["memory_format"] == layout]
    layers = np.array([network[tuple(row["shape"][1:])] for row in rows])
    grouped, plain = (layers @ np.array([row[k] for row in rows]) for k in ("grouped", "plain"))
    return {"memory_format": layout, "ratio": ratios(grouped.tolist(), plain.tolist())}


def format_result(result: dict[str, Any]) -> str:
    """Return a table of the layers, followed by a sentence for each memory format."""
    verdicts = [
        f"{layers['memory_format']}: all layers together take "
        f"{spread_text(layers['ratio'], 3)} the time of nn.BatchNorm3d (target: at most 1.10)"
        for layers in result["network"]
    ]
    columns: dict[str, Column] = {
        "shape": ("shape", str),
        "format": ("memory_format", str),
        "plain ms": ("plain", _milliseconds),
        "grouped ms": ("grouped", _milliseconds),
        "ratio": ("ratio", spread_text),
    }
    return "\n".join([table(result["rows"], columns), "", *verdicts])


def _milliseconds(rounds: Sequence[float]) -> str:
    return f"{1e3 * statistics.median(rounds):.3f}"


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = new_parser(__doc__, rounds=15, keys=False)
    gpu = "cuda" if torch.cuda.is_available() else "cpu"
    add = partial(add_option, parser)
    add("--clips", "N", "number of clips in the batch (%(default)s)", int, 64)
    add("--group-size", "N", "number of clips per BN group (%(default)s)", int, 8)
    add("--dtype", None, "data type (%(default)s)", str, "float32", choices=["float32", "bfloat16"])
    parser.add_argument("--small", action="store_true", help="measure only four small layers")
    add("--device", None, "device (%(default)s)", str, gpu, choices=["cpu", "cuda"])
    args = parser.parse_args(argv)
    if args.clips % args.group_size or args.clips == args.group_size:
        parser.error("--clips must be a multiple of --group-size and give at least two groups")
    return args


@tool
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write the result, and return the exit status."""
    args = parse_args(argv)
    device = torch.device(args.device)
    network = SMALL if args.small else network_layers()
    rows = [measure(shape, layout, args, device) for layout in FORMATS for shape in network]
    result = {
        **provenance(device),
        "network": [network_ratios(rows, layout, network) for layout in FORMATS],
        "rows": rows,
    }
    print(format_result(result))
    write_result(args.output, "batchnorm.py", argv, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
