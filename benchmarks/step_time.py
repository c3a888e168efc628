r"""Measure the time of a training step in seconds, at every shape of a recipe's schedule.

    python benchmarks/step_time.py --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml \
        --output demo_steps.json
    multigrid-plan --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml --dataset-size 640 \
        --step-times demo_steps.json

    python benchmarks/step_time.py --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml \
        --variants each --output steps.json

A measured step consists of the same operations as a training step: normalize the clips, pack them
into pathways, forward, loss, backward and optimizer. The clips are synthetic. The precision is that
of the recipe, and each shape uses the BN groups of the recipe. The shape of the baseline is also
measured with the BN of the baseline. The benchmark runs one process with the clips of one of the
NUM_GPUS × NUM_SHARDS training processes, so one GPU is enough. Communication between processes and
data loading are not measured. Set NUM_GPUS 0 to measure the CPU.

The tables show the seconds of a step and of the parts of a step. They also show the clips and FLOPs
per second, and the FLOPs per second relative to matrix products on this device in the same
precision. The last table shows the time of the whole schedule and its speed-up over the baseline.

A run can measure several variants of a recipe:

    recipe       the unchanged recipe (the default). multigrid-plan reads only this variant.
    plain        all switches off
    tf32, ...    only the switch of this name on
    all          all switches on that the device supports
    host         the model of pyslowfast in a plain training loop, in fp32
    host_tf32    like host, but in TF32
    each         all of these variants except recipe

Every round measures each shape of each variant once, in random order. Other load on the machine
therefore affects all measurements alike, and ratios are computed within a round. If a shape does
not fit into the memory of the GPU, this is reported and the other shapes are still measured.

On a GPU, times are measured by CUDA events. On the CPU, wall-clock time is measured. With a single
thread (OMP_NUM_THREADS=1), the CPU time of this thread is measured instead, which other processes
on the machine affect less.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from itertools import takewhile

import torch
from common import new_parser, write_result
from steps.case import checked_recipe
from steps.measure import measure
from steps.step_variants import NAMES
from steps.text import format_result

from slowfast_patches import patching
from slowfast_patches.utils.command_line import above_zero, add_option, split_pairs, tool
from slowfast_patches.utils.tables import format_list


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = new_parser(__doc__, rounds=7)
    text = (
        "approximate seconds for all rounds of each shape of each variant; a round has at least "
        "one step (%(default)g)"
    )
    add = partial(add_option, parser)
    add("--seconds", "S", text, above_zero, 20.0)
    add("--cfg", "FILE", "the recipe, a YAML file", required=True)
    text = f"variants to measure: {', '.join(NAMES)}, or each for all except recipe (recipe)"
    names = (*NAMES, "each")
    add("--variants", "NAME", text, default=["recipe"], nargs="+")
    text = "number of training videos, which determines the time of the whole schedule"
    add("--dataset-size", "N", text, int)
    args = parser.parse_intermixed_args(argv)
    # KEY VALUE pairs may follow the names, and argparse then assigns them to --variants.
    words = args.variants
    args.variants = list(takewhile(names.__contains__, words))
    rest = words[len(args.variants) :]
    if rest and not (args.variants and rest[0][:1].isupper()):
        parser.error(f"--variants takes {format_list(names, 'or')}, not {rest[0]}")
    args.overrides = split_pairs(rest) + args.overrides
    return args


@tool
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
            "the networks of all variants together do not fit into memory. Choose fewer --variants "
            f"({error})"
        ) from error
    print(format_result(result))
    # The times of the unchanged recipe are at the top level of the file, where multigrid-plan
    # expects them.
    for variant in result["variants"]:
        if variant["name"] == "recipe":
            del variant["shapes"]
    write_result(args.output, "step_time.py", argv, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
