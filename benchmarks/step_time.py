"""Seconds of a training step: of a recipe at every shape of its schedule, or of several recipes.

    python benchmarks/step_time.py --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml \\
        --output demo_steps.json
    python tools/plan.py --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml --dataset-size 640 \\
        --step-times demo_steps.json

    python benchmarks/step_time.py --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml \\
        --variants each --profile all --plot steps.png --output steps.json
    python benchmarks/step_time.py --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml \\
        --variants all --pathway fast --output fast.json

    python benchmarks/step_time.py --cfg configs/Kinetics/TSM_8x8_R50.yaml \\
        --cfg configs/Kinetics/I3D_8x8_R50_1GPU.yaml \\
        --cfg configs/Kinetics/I3D_8x8_R50_NOPOOL.yaml \\
        --cfg configs/Kinetics/SLOWFAST_8x8_R50.yaml \\
        --clips 2 --rounds 5 --output models.json NUM_GPUS 0 DATA_LOADER.NUM_WORKERS 0

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
`recipe` as it is, the default, is what tools/plan.py reads.

Several recipes are compared at their baselines' shapes with equally many clips, beside their
parameters, multiply-adds and the gradients that processes would exchange. Overrides are for all.

Every round times each shape of each variant, or recipe, once, in random order, so that whatever
else the machine does falls on all of them; what is relative is of one round. A shape that does not
fit into the GPU's memory is reported, and the others go on. On a GPU the times are those of events
in its queue, on the CPU a clock's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from common import new_parser, whole_from, write_result
from steps.case import add_seconds, checked_recipe
from steps.measure import measure
from steps.models import format_models, measure_models
from steps.tables import draw_chart, format_result
from steps.variants import HOST, NAMES

from slowfast_patches import patching
from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.pictures import check_format

__all__ = ["main"]


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = new_parser(__doc__, rounds=7)
    add_seconds(parser)
    text = "the recipe, a YAML file; several are compared, with the first"
    parser.add_argument("--cfg", required=True, action="append", metavar="FILE", help=text)
    text = "clips of one process, for several recipes"
    parser.add_argument("--clips", type=whole_from(1), metavar="N", help=text)
    one = parser.add_argument_group("of one recipe")
    text = f"{', '.join(NAMES)}, or each: all but recipe, where the device can (recipe)"
    one.add_argument(
        "--variants",
        nargs="+",
        choices=(*NAMES, "each"),
        default=["recipe"],
        metavar="NAME",
        help=text,
    )
    one.add_argument("--pathway", choices=["fast"], help="measure a SlowFast's fast pathway alone")
    one.add_argument(
        "--profile",
        choices=NAMES,
        metavar="VARIANT",
        help="also torch's profile of a variant's worst shape: that with the smallest share of the "
        "matrix rate",
    )
    one.add_argument("--plot", type=Path, metavar="FILE.png", help="draw a bar chart of variants")
    text = "training videos, for hours (as tools/plan.py finds them)"
    one.add_argument("--dataset-size", type=int, metavar="N", help=text)
    args = parser.parse_intermixed_args(argv)
    several = len(args.cfg) > 1
    if several != (args.clips is not None):
        parser.error("--clips is needed where there are several --cfg, and of no use for one")
    if several and (args.variants != ["recipe"] or args.pathway or args.profile or args.plot):
        parser.error("--variants, --pathway, --profile and --plot are for one --cfg, not several")
    if args.pathway and set(HOST) & set(args.variants):
        parser.error("--pathway fast is a part of our model; the host's is measured as a whole")
    return args


def measure_recipe(args: argparse.Namespace) -> dict[str, Any]:
    """Measure one recipe, print it and draw it; what is to be written."""
    if args.plot:  # before the time is spent
        check_format(args.plot)
        names = set(args.variants)
        if "each" not in names and not (len(names) > 1 and names & {"plain", "host"}):
            raise ValueError("--plot compares variants: give --variants plain or host with others")
    result = measure(
        checked_recipe(args.cfg[0], args.overrides),
        args.variants,
        args.rounds,
        args.seconds,
        fast=args.pathway is not None,
        profile=args.profile,
        num_videos=args.dataset_size,
    )
    print(format_result(result))
    if "profile" in result:
        print(f"\n{result['profile']}")
    if args.plot:
        draw_chart(result, args.plot)
    # The recipe's own times are where tools/plan.py looks for them, the fast pathway's are not.
    recipe = [v for v in result["variants"] if v["name"] == "recipe" and not args.pathway]
    return result | {"shapes": recipe[0].pop("shapes") if recipe else []}


@tool()
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; returns the exit status."""
    args = parse_args(argv)
    patching.apply()
    try:
        if len(args.cfg) > 1:
            recipes = [(path, checked_recipe(path, args.overrides)) for path in args.cfg]
            result = measure_models(recipes, args.clips, args.rounds, args.seconds)
            print(format_models(result))
        else:
            result = measure_recipe(args)
    except torch.OutOfMemoryError as error:
        raise ValueError(f"the networks, all kept at once, do not fit: {error}") from error
    write_result(args.output, "step_time.py", argv, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
