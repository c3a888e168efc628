r"""Measure the seconds of a training step, at every shape of a recipe's schedule.

    python benchmarks/step_time.py --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml \
        --output demo_steps.json
    multigrid-plan --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml --dataset-size 640 \
        --step-times demo_steps.json

    python benchmarks/step_time.py --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml \
        --variants each --output steps.json

A step on synthetic clips does what a training step does: normalising and packing into pathways,
forward, loss, backward and optimizer, in the recipe's precision and with the recipe's BN at each
shape. The baseline's shape is also measured with the baseline's BN. One process trains the share of
the clips of one of the recipe's NUM_GPUS × NUM_SHARDS processes, so one GPU is enough.
Communication between processes and loading are not measured. NUM_GPUS 0 measures the CPU.

The tables show the seconds of a step and of its parts. They also show clips, pixels and FLOPs per
second, the share of this device's rate of matrix products in the same precision, and, on a GPU, the
peak memory. The last table shows the time of the whole schedule and its speed-up over the baseline.

One run can measure several variants of a recipe:

    recipe       the recipe unchanged (the default). multigrid-plan reads only this variant.
    plain        every switch off
    tf32, ...    one switch on: the switch's name
    all          every switch on that the device supports
    host         the model of pyslowfast in a plain loop, in fp32
    host_tf32    the same with TF32
    each         all of these except recipe

Every round times each shape of each variant once, in random order, so that other load affects all
of them alike, and ratios are computed within a round. A shape that does not fit into the GPU's
memory is reported, and the others are still measured. On a GPU, times are measured by CUDA events.
On the CPU, they are wall-clock times. With a single thread (OMP_NUM_THREADS=1) they are the
thread's CPU time, which excludes the time that other processes take.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

import torch
from common import new_parser, write_result
from steps.case import checked_recipe
from steps.measure import measure
from steps.tables import format_result
from steps.variants import NAMES

from slowfast_patches import patching
from slowfast_patches.utils.command_line import above_zero, add_option, tool


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = new_parser(__doc__, rounds=7)
    text = "approximate time for each shape of each variant, at least a step a round (%(default)g)"
    add = partial(add_option, parser)
    add("--seconds", "S", text, above_zero, 20.0)
    add("--cfg", "FILE", "the recipe, a YAML file", required=True)
    text = f"{', '.join(NAMES)}, or each: all but recipe that the device supports (recipe)"
    names = (*NAMES, "each")
    add("--variants", "NAME", text, default=["recipe"], nargs="+", choices=names)
    text = "number of training videos, for times of the whole schedule (as in multigrid-plan)"
    add("--dataset-size", "N", text, int)
    return parser.parse_intermixed_args(argv)


@tool()
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write the result, and return the exit status."""
    args = parse_args(argv)
    patching.apply()
    recipe = checked_recipe(args.cfg, args.overrides)
    try:
        result = measure(
            recipe, args.variants, args.rounds, args.seconds, num_videos=args.dataset_size
        )
    except torch.OutOfMemoryError as error:
        raise ValueError(
            "the networks of all variants do not fit into memory together. Give fewer --variants: "
            f"{error}"
        ) from error
    print(format_result(result))
    # multigrid-plan reads the times of the unchanged recipe at the top level.
    recipe_rows = [v for v in result["variants"] if v["name"] == "recipe"]
    result["shapes"] = recipe_rows[0].pop("shapes") if recipe_rows else []
    write_result(args.output, "step_time.py", argv, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
