"""What the temporal shift costs: training steps of TSM with it and without it, in pairs.

    python benchmarks/shift.py --output shift.json NUM_GPUS 0 DATA_LOADER.NUM_WORKERS 0
    python benchmarks/shift.py --clips 8 --output shift_gpu.json NUM_GPUS 1

A recipe's network trains on made-up clips of the baseline's shape, in fp32 unless the recipe says
otherwise: as it is, and with TSM.SHIFT_DIV 0, which is the 2-D network. Both do so in contiguous
memory and in channels_last_3d. In a round each of the four takes a step, in random order; a round
gives (with − without) / without of each format, so that whatever else the machine does falls on
both.

A second measure is less noisy: the shifts alone, forward and backward, of every block, on tensors
like those that the blocks get in the step, as a share of the step in the same round. It leaves out
what the shift does to its neighbours, by memory above all.

On the CPU, give torch more threads than one (DATA_LOADER.NUM_WORKERS 0 leaves no core to readers):
with a single one and fewer than 16 clips it computes most of these convolutions without oneDNN,
which makes the step longer, and gives contiguous results whatever the format. The table says how
many blocks got theirs in the format.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from step_bench import (
    Bench,
    Case,
    add_options,
    checked_recipe,
    prepare_device,
    provenance,
    quartiles,
    write_result,
)
from torch import Tensor, nn

from multigrid import Shape
from slowfast_patches import patching
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.launch import processes_of
from slowfast_patches.models.flops import check_shapes
from slowfast_patches.models.tsm import ShiftedConv3d, temporal_shift
from slowfast_patches.plan.step_times import shapes_to_measure
from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.report import format_table

__all__ = ["Pair", "Shifts", "main", "measure"]

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / "configs" / "Kinetics" / "TSM_8x8_R50.yaml"
FORMATS = {"contiguous": torch.contiguous_format, "channels_last_3d": torch.channels_last_3d}


class Shifts:
    """The shifts of all blocks of a network, on noise of the sizes and strides of a step."""

    def __init__(self, case: Case) -> None:
        self.case, self.inputs = case, list[tuple[Tensor, Tensor, int]]()
        blocks = [m for m in case.bench.model.modules() if isinstance(m, ShiftedConv3d)]
        hooks = [block.register_forward_pre_hook(self._keep) for block in blocks]
        case.bench.time(case.step, case.batch, 1)
        for hook in hooks:
            hook.remove()

    def _keep(self, block: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        assert isinstance(block, ShiftedConv3d)
        x = torch.randn_like(arguments[0].detach()).requires_grad_()
        self.inputs.append((x, torch.randn_like(x), block.shifted_channels))

    def seconds(self) -> float:
        """Of all of them, forward and backward."""
        self.case.bench.wait()
        start = time.perf_counter()
        for _ in range(self.case.iterations):
            for x, gradient, channels in self.inputs:
                torch.autograd.grad(temporal_shift(x, channels), x, gradient)
        self.case.bench.wait()
        return (time.perf_counter() - start) / self.case.iterations


class Pair:
    """A network with the shift and without it, in one memory format, and the shifts alone."""

    def __init__(
        self, recipe: Recipe, device: torch.device, layout: str, shape: Shape, seconds: float
    ) -> None:
        plain = recipe.replaced({"TSM.SHIFT_DIV": 0})
        self.layout = layout
        self.cases = {"with": _case(recipe, device, layout, shape)}
        self.cases["without"] = _case(plain, device, layout, shape)
        for case in self.cases.values():
            case.warm_up(seconds)
        self._check_memory()
        self.shifts, self.alone = Shifts(self.cases["with"]), list[float]()
        self.shifts.seconds()

    def turns(self) -> list[Callable[[], None]]:
        """What a round takes the time of."""
        return [*(case.time for case in self.cases.values()), self._time_shifts]

    def _time_shifts(self) -> None:
        self.alone.append(self.shifts.seconds())

    def _check_memory(self) -> None:
        for name, case in self.cases.items():
            if case.failure is not None:
                raise ValueError(
                    f"a step {name} the shift, in {self.layout}: {case.failure} with --clips "
                    f"{case.clips}; give fewer"
                )

    def to_json(self) -> dict[str, Any]:
        self._check_memory()
        steps, plain = (self.cases[name].rounds for name in ("with", "without"))
        inputs = [x for x, _, _ in self.shifts.inputs]
        layout = FORMATS[self.layout]
        return {
            "memory_format": self.layout,
            "with": quartiles(steps),
            "without": quartiles(plain),
            "cost": quartiles([a / b - 1 for a, b in zip(steps, plain, strict=True)]),
            "shifts_alone": quartiles(self.alone),
            "share_alone": quartiles([a / b for a, b in zip(self.alone, steps, strict=True)]),
            "blocks": len(inputs),
            "blocks_in_format": sum(x.is_contiguous(memory_format=layout) for x in inputs),
            "bytes_shifted": sum(x.numel() * x.element_size() for x in inputs),
        }


def _case(recipe: Recipe, device: torch.device, layout: str, shape: Shape) -> Case:
    bench = Bench(recipe, device)
    bench.model.to(memory_format=FORMATS[layout])  # type: ignore[call-overload]
    return Case(bench, shape, None)


def measure(recipe: Recipe, clips: int, rounds: int, seconds: float) -> dict[str, Any]:
    """The cost of the shift at the baseline's shape, with `clips` clips a process.

    Raises:
        ValueError: the recipe's network has no shift, or cannot take the shape.
    """
    if recipe.model.arch != "tsm" or not recipe.tsm.shift_div:
        raise ValueError(
            f"MODEL.ARCH {recipe.model.arch} with TSM.SHIFT_DIV {recipe.tsm.shift_div} shifts "
            f"nothing; "
            "give a recipe of a TSM"
        )
    (base, _), *_ = shapes_to_measure(recipe)
    shape = Shape(clips * processes_of(recipe), base.frames, base.crop)
    check_shapes(recipe, [shape])
    device = prepare_device(recipe)
    pairs = [Pair(recipe, device, layout, shape, seconds / rounds) for layout in FORMATS]
    turns = [turn for pair in pairs for turn in pair.turns()]
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for turn in random.sample(turns, len(turns)):
            turn()
    return provenance(device) | {
        "precision": pairs[0].cases["with"].bench.precision_name(),
        "clips": clips,
        "frames": shape.frames,
        "crop": shape.crop,
        "shift_div": recipe.tsm.shift_div,
        "formats": [pair.to_json() for pair in pairs],
    }


def format_result(result: dict[str, Any]) -> str:
    """A table of the memory formats, and what they were measured on."""
    rows = [
        [
            row["memory_format"],
            f"{row['blocks_in_format']} of {row['blocks']}",
            f"{row['with']['median']:.4f}",
            f"{row['without']['median']:.4f}",
            *_percent(row["cost"]),
            f"{row['shifts_alone']['median']:.4f}",
            *_percent(row["share_alone"]),
        ]
        for row in result["formats"]
    ]
    headers = ["memory format", "blocks in it", "s per step", "without", "cost", "quartiles"]
    headers += ["shifts alone, s", "of the step", "quartiles"]
    return (
        f"{format_table(headers, rows)}\n\n{result['clips']} × {result['frames']} × "
        f"{result['crop']}², {result['precision']}, {result['device']['name']}, "
        f"{result['machine']['threads']} CPU threads"
    )


def _percent(spread: dict[str, Any]) -> tuple[str, str]:
    low, median, high = (100 * spread[key] for key in ("quartile_1", "median", "quartile_3"))
    return f"{median:.1f} %", f"{low:.1f} to {high:.1f}"


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cfg", default=str(RECIPE), metavar="FILE", help="(%(default)s)")
    parser.add_argument(
        "--clips", type=int, default=1, metavar="N", help="of one process (%(default)s)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="write the numbers here")
    add_options(parser, rounds=11, of_each="of the four networks")
    args = parser.parse_intermixed_args(argv)
    if args.clips < 1:
        parser.error("--clips takes 1 or more")
    return args


@tool()
def main(argv: list[str] | None = None) -> int:
    """Measure, print and write; returns the exit status."""
    args = parse_args(argv)
    try:
        patching.apply()
        recipe = checked_recipe(args.cfg, args.overrides)
        result = measure(recipe, args.clips, args.rounds, args.seconds)
        print(format_result(result))
        if args.output:
            write_result(args.output, "shift.py", argv, result)
    except torch.OutOfMemoryError as error:
        raise ValueError(f"four networks and --clips {args.clips} do not fit: {error}") from error
    return 0


if __name__ == "__main__":
    sys.exit(main())
