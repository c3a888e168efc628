"""What the temporal shift costs: training steps of TSM with it and without it, in pairs.

    python benchmarks/shift.py --output shift.json NUM_GPUS 0 DATA_LOADER.NUM_WORKERS 0
    python benchmarks/shift.py --clips 8 --output shift_gpu.json NUM_GPUS 1

A recipe's network trains on made-up clips of the baseline's shape, in fp32 unless the recipe says
otherwise: as it is, and with TSM.SHIFT_DIV 0, which is the 2-D network. Both do so in contiguous
memory and in channels_last_3d. In a round each of the four takes a step, in random order; a round
gives (with − without) / without of each format, so that whatever else the machine does falls on
both.

On the CPU, give torch more threads than one (DATA_LOADER.NUM_WORKERS 0 leaves no core to readers):
see benchmarks/step_time.py --help.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from common import (
    ROOT,
    new_parser,
    provenance,
    quartiles,
    ratios,
    spread_text,
    whole_from,
    write_result,
)
from steps.case import Bench, Case, add_seconds, checked_recipe, prepare_device, time_in_turns
from steps.models import baseline_shape

from slowfast_patches import patching
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.flops import check_shapes
from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.tables import format_table

__all__ = ["main", "measure"]

FORMATS = {"contiguous": torch.contiguous_format, "channels_last_3d": torch.channels_last_3d}


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
    for layout, memory_format in FORMATS.items():
        for name, changed in recipes.items():
            bench = Bench(changed, device)
            bench.model.to(memory_format=memory_format)  # type: ignore[call-overload]
            cases[layout, name] = Case(bench, shape, None)
    time_in_turns(list(cases.values()), rounds, seconds)
    if any(case.failure is not None for case in cases.values()):
        raise ValueError(f"--clips {clips} are too many for the memory; give fewer")
    return provenance(device) | {
        "precision": cases["contiguous", "with"].bench.precision_name(),
        "clips": clips,
        "frames": shape.frames,
        "crop": shape.crop,
        "shift_div": recipe.tsm.shift_div,
        "formats": [
            _row(layout, cases[layout, "with"].rounds, cases[layout, "without"].rounds)
            for layout in FORMATS
        ],
    }


def _row(layout: str, steps: list[float], plain: list[float]) -> dict[str, Any]:
    return {
        "memory_format": layout,
        "with": quartiles(steps),
        "without": quartiles(plain),
        "cost": ratios([a - b for a, b in zip(steps, plain, strict=True)], plain),
    }


def format_result(result: dict[str, Any]) -> str:
    """A table of the memory formats, and what they were measured on."""
    rows = [
        [
            row["memory_format"],
            *(f"{row[key]['median']:.4f}" for key in ("with", "without")),
            spread_text(row["cost"], 1, " %"),
        ]
        for row in result["formats"]
    ]
    return (
        f"{format_table(['memory format', 's per step', 'without', 'cost'], rows)}\n\n"
        f"{result['clips']} × {result['frames']} × {result['crop']}², {result['precision']}, "
        f"{result['device']['name']}, {result['machine']['threads']} CPU threads"
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
