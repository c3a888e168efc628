"""Seconds of a training step, at every shape of a recipe's schedule.

    python benchmarks/step_time.py --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml \\
        --output demo_steps.json
    multigrid-plan --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml --dataset-size 640 \\
        --step-times demo_steps.json

    python benchmarks/step_time.py --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml \\
        --variants each --output steps.json

Made-up clips go the way that training sends them: normalised and packed, forward, loss, backward,
optimizer, in the recipe's precision, with the recipe's BN at each shape. The baseline's shape is
measured with the baseline's BN too. One process does the work of one of the recipe's NUM_GPUS ×
NUM_SHARDS: its share of the clips. What processes say to each other is not measured, nor is
loading; one GPU is enough. NUM_GPUS 0 measures the CPU.

Beside the seconds and their parts stand clips, pixels and operations a second, the share of the
rate of this device's matrix products in the same precision, and on a GPU the most memory. `recipe`
below the shapes is the whole schedule's time, and its baseline's as a multiple of that.

Variants of a recipe are measured in one run: `plain` has every switch off, `tf32`, `compile` and so
on have one on, `all` is the recipe with all that the device can, `host` is pyslowfast's own model
and a plain loop in fp32, `host_tf32` the same with TF32; `each` stands for all of these. Only the
`recipe` as it is, the default, is what multigrid-plan reads.

Every round times each shape of each variant once, in random order, so that whatever
else the machine does falls on all of them; what is relative is of one round. A shape that does not
fit into the GPU's memory is reported, and the others go on. On a GPU the times are those of events
in its queue, on the CPU a clock's; of a single thread, as OMP_NUM_THREADS=1 has it, the seconds in
which it had a core, so that another process on the machine does not count.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch
from common import new_parser, write_result
from steps.case import checked_recipe
from steps.measure import measure
from steps.tables import format_result
from steps.variants import NAMES

from slowfast_patches import patching
from slowfast_patches.utils.command_line import above_zero, tool

__all__ = ["main"]


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = new_parser(__doc__, rounds=7)
    text = "time spent on each, about, but a step a round at least (%(default)g)"
    parser.add_argument("--seconds", type=above_zero, default=20.0, metavar="S", help=text)
    parser.add_argument("--cfg", required=True, metavar="FILE", help="the recipe, a YAML file")
    text = f"{', '.join(NAMES)}, or each: all but recipe, where the device can (recipe)"
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=(*NAMES, "each"),
        default=["recipe"],
        metavar="NAME",
        help=text,
    )
    text = "training videos, for hours (as multigrid-plan finds them)"
    parser.add_argument("--dataset-size", type=int, metavar="N", help=text)
    return parser.parse_intermixed_args(argv)


@tool()
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; returns the exit status."""
    args = parse_args(argv)
    patching.apply()
    recipe = checked_recipe(args.cfg, args.overrides)
    try:
        result = measure(
            recipe, args.variants, args.rounds, args.seconds, num_videos=args.dataset_size
        )
    except torch.OutOfMemoryError as error:
        raise ValueError(f"the networks, all kept at once, do not fit: {error}") from error
    print(format_result(result))
    # multigrid-plan reads the recipe's own times at the top level.
    recipe_rows = [v for v in result["variants"] if v["name"] == "recipe"]
    result["shapes"] = recipe_rows[0].pop("shapes") if recipe_rows else []
    write_result(args.output, "step_time.py", argv, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
