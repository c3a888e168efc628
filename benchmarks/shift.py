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

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from common import (
    ROOT,
    new_parser,
    provenance,
    quartiles,
    ratios,
    seconds_of,
    spread_text,
    take_turns,
    whole_from,
    write_result,
)
from steps.case import Bench, Case, add_seconds, checked_recipe, prepare_device
from steps.models import baseline_shape
from torch import Tensor, nn

from slowfast_patches import patching
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.flops import check_shapes
from slowfast_patches.models.tsm import ShiftedConv3d, temporal_shift
from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.tables import format_table

__all__ = ["main", "measure"]

FORMATS = {"contiguous": torch.contiguous_format, "channels_last_3d": torch.channels_last_3d}


class Shifts:
    """The shifts of all blocks of a network, on noise of the sizes and strides of a step."""

    def __init__(self, case: Case) -> None:
        self.case, self.inputs = case, list[tuple[Tensor, Tensor, int]]()
        model, _ = case.bench.trained(case.step)
        blocks = [m for m in model.modules() if isinstance(m, ShiftedConv3d)]
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

        def shift() -> None:
            for _ in range(self.case.iterations):
                for x, gradient, channels in self.inputs:
                    torch.autograd.grad(temporal_shift(x, channels), x, gradient)

        return seconds_of(shift, self.case.bench.device) / self.case.iterations


def measure(recipe: Recipe, clips: int, rounds: int, seconds: float) -> dict[str, Any]:
    """The cost of the shift at the baseline's shape, with `clips` clips a process.

    Raises:
        ValueError: the recipe's network has no shift, or cannot take the shape.
    """
    if recipe.model.arch != "tsm" or not recipe.tsm.shift_div:
        raise ValueError(
            f"MODEL.ARCH {recipe.model.arch} with TSM.SHIFT_DIV {recipe.tsm.shift_div} shifts "
            "nothing; give a recipe of a TSM"
        )
    shape = baseline_shape(recipe, clips)
    check_shapes(recipe, [shape])
    device = prepare_device(recipe)
    recipes = {"with": recipe, "without": recipe.replaced({"TSM.SHIFT_DIV": 0})}
    cases = dict[tuple[str, str], Case]()
    turns = dict[tuple[str, str], Callable[[], object]]()
    shifts = dict[str, Shifts]()
    for layout, memory_format in FORMATS.items():
        for name, changed in recipes.items():
            bench = Bench(changed, device)
            bench.model.to(memory_format=memory_format)  # type: ignore[call-overload]
            cases[layout, name] = case = Case(bench, shape, None)
            case.warm_up(seconds / rounds)
            _check_memory([case])
            turns[layout, name] = case.time
        shifts[layout] = Shifts(cases[layout, "with"])
        turns[layout, "alone"] = shifts[layout].seconds
    times = take_turns(turns, rounds)
    _check_memory(cases.values())
    for key, case in cases.items():
        times[key] = list(case.rounds)
    return provenance(device) | {
        "precision": cases["contiguous", "with"].bench.precision_name(),
        "clips": clips,
        "frames": shape.frames,
        "crop": shape.crop,
        "shift_div": recipe.tsm.shift_div,
        "formats": [_row(layout, shifts[layout], times) for layout in FORMATS],
    }


def _check_memory(cases: Any) -> None:
    for case in cases:
        if case.failure is not None:
            raise ValueError(f"a step with --clips {case.clips}: {case.failure}; give fewer")


def _row(layout: str, shifts: Shifts, times: dict[tuple[str, str], Any]) -> dict[str, Any]:
    steps, plain, alone = (times[layout, name] for name in ("with", "without", "alone"))
    inputs = [x for x, _, _ in shifts.inputs]
    return {
        "memory_format": layout,
        "with": quartiles(steps),
        "without": quartiles(plain),
        "cost": ratios([a - b for a, b in zip(steps, plain, strict=True)], plain),
        "shifts_alone": quartiles(alone),
        "share_alone": ratios(alone, steps),
        "blocks": len(inputs),
        "blocks_in_format": sum(x.is_contiguous(memory_format=FORMATS[layout]) for x in inputs),
        "bytes_shifted": sum(x.numel() * x.element_size() for x in inputs),
    }


def format_result(result: dict[str, Any]) -> str:
    """A table of the memory formats, and what they were measured on."""
    rows = [
        [
            row["memory_format"],
            f"{row['blocks_in_format']} of {row['blocks']}",
            f"{row['with']['median']:.4f}",
            f"{row['without']['median']:.4f}",
            spread_text(row["cost"], 1, " %"),
            f"{row['shifts_alone']['median']:.4f}",
            spread_text(row["share_alone"], 1, " %"),
        ]
        for row in result["formats"]
    ]
    headers = ["memory format", "blocks in it", "s per step", "without", "cost"]
    headers += ["shifts alone, s", "of the step"]
    return (
        f"{format_table(headers, rows)}\n\n{result['clips']} × {result['frames']} × "
        f"{result['crop']}², {result['precision']}, {result['device']['name']}, "
        f"{result['machine']['threads']} CPU threads"
    )


@tool()
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; returns the exit status."""
    parser = new_parser(__doc__, rounds=11)
    recipe = ROOT / "configs" / "Kinetics" / "TSM_8x8_R50.yaml"
    parser.add_argument("--cfg", default=str(recipe), metavar="FILE", help="(%(default)s)")
    text = "of one process (%(default)s)"
    parser.add_argument("--clips", type=whole_from(1), default=1, metavar="N", help=text)
    add_seconds(parser)
    args = parser.parse_intermixed_args(argv)
    try:
        patching.apply()
        checked = checked_recipe(args.cfg, args.overrides)
        result = measure(checked, args.clips, args.rounds, args.seconds)
    except torch.OutOfMemoryError as error:
        raise ValueError(f"four networks and --clips {args.clips} do not fit: {error}") from error
    print(format_result(result))
    write_result(args.output, "shift.py", argv, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
