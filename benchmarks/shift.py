"""What the temporal shift costs: training steps of TSM with it and without it, in pairs.

    python benchmarks/shift.py --output shift.json NUM_GPUS 0 DATA_LOADER.NUM_WORKERS 0
    python benchmarks/shift.py --clips 8 --output shift_gpu.json NUM_GPUS 1

A recipe's network trains on made-up clips of the baseline's shape, in fp32 unless the recipe says
otherwise: as it is, and with TSM.SHIFT_DIV 0, which is the 2-D network. Both do so in contiguous
memory and in channels_last_3d. In a round each of the four takes a step, in random order; a round
gives (with − without) / without of each format, so that whatever else the machine does falls on
both.

On the CPU, give torch more threads than one (DATA_LOADER.NUM_WORKERS 0 leaves no core to readers):
with one, and fewer than 16 clips, it computes convolutions of 1 × 1 × 1 without oneDNN.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from common import ROOT, new_parser, ratios, spread_text, whole_from, write_result
from steps.case import add_seconds, checked_recipe
from steps.models import format_models, measure_models

from slowfast_patches import patching
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.utils.command_line import tool

__all__ = ["main", "measure"]

FORMATS = ("contiguous", "channels_last_3d")


def measure(recipe: Recipe, clips: int, rounds: int, seconds: float) -> dict[str, Any]:
    """The cost of the shift at the baseline's shape, with `clips` clips a process.

    Raises:
        ValueError: the recipe's network has no shift, or cannot take the shape.
    """
    share = recipe.tsm.shift_div
    if recipe.model.arch != "tsm" or not share:
        raise ValueError(
            f"MODEL.ARCH {recipe.model.arch} with TSM.SHIFT_DIV {share} shifts nothing; give a "
            "recipe of a TSM"
        )
    ways = [
        (
            f"{layout}, {'shifted' if div else 'no shift'}",
            recipe.replaced({"MODEL.CHANNELS_LAST": layout != FORMATS[0], "TSM.SHIFT_DIV": div}),
        )
        for layout in FORMATS
        for div in (share, 0)
    ]
    result = measure_models(ways, clips, rounds, seconds)
    times = [row["seconds"] for row in result["models"]]
    if None in times:
        raise ValueError(f"--clips {clips} are too many for the memory; give fewer")
    costs = dict[str, Any]()
    for layout, shifted, plain in zip(FORMATS, times[::2], times[1::2], strict=True):
        more = [a - b for a, b in zip(shifted["rounds"], plain["rounds"], strict=True)]
        costs[layout] = ratios(more, plain["rounds"])
    return result | {"costs": costs}


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
    patching.apply()
    try:
        checked = checked_recipe(args.cfg, args.overrides)
        result = measure(checked, args.clips, args.rounds, args.seconds)
    except torch.OutOfMemoryError as error:
        raise ValueError(f"four networks and --clips {args.clips} do not fit: {error}") from error
    print(format_models(result))
    for layout, cost in result["costs"].items():
        print(f"{layout}: the shift costs {spread_text(cost, 1, ' %')} of a step without it")
    write_result(args.output, "shift.py", argv, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
