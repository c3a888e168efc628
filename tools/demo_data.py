"""Render the demo data set: short videos whose classes differ in their motion.

multigrid-demo-data --output DIR [--train N] [--val N] [--test N] [--seed S] ...
multigrid-demo-data --output DIR --form ava [--train N] [--val N] ...

With --form ava, each video shows several objects, and the lists have the format of AVA.
"""

import argparse
import sys
import time
from functools import partial
from pathlib import Path

from slowfast_patches.extras.demo.spec import SPLITS, DemoSpec
from slowfast_patches.utils.command_line import (
    add_option,
    answer_help,
    at_least_one,
    from_zero,
    start_program,
    tool,
)
from slowfast_patches.utils.machine import available_cores


def new_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = partial(add_option, parser)
    add("--output", "DIR", "folder for the videos and the lists", Path, required=True)
    shown = {split: f"number of {split} videos" for split in SPLITS}
    shown |= {"seed": "seed of all videos", "frames": "frames per video"}
    for name, what in shown.items():
        text = f"{what} (default: %(default)s)"
        kind = at_least_one if name == "frames" else from_zero
        add(f"--{name}", "N", text, kind, getattr(DemoSpec, name))
    parser.add_argument(
        "--size",
        type=at_least_one,
        nargs=2,
        metavar=("WIDTH", "HEIGHT"),
        default=(DemoSpec.width, DemoSpec.height),
        help=f"size of the frames in pixels (default: {DemoSpec.width} {DemoSpec.height})",
    )
    text = "format of the lists: kinetics or ava (default: %(default)s)"
    add("--form", "NAME", text, default="kinetics", choices=("kinetics", "ava"))
    text = "number of processes (default: one per core)"
    add("--workers", "N", text, at_least_one, available_cores())
    return parser


if __name__ == "__main__":
    start_program()
answer_help(new_parser)

from slowfast_patches.extras.demo.ava import make_ava_form
from slowfast_patches.extras.demo.synthetic import make_demo_data
from slowfast_patches.utils.lock import locked

FORMS = {"kinetics": make_demo_data, "ava": make_ava_form}


@tool
def main(argv: list[str] | None = None) -> int:
    """Render the missing videos, and return the exit status."""
    args = new_parser().parse_args(argv)
    start = time.perf_counter()
    width, height = args.size
    counts = {split: getattr(args, split) for split in SPLITS}
    spec = DemoSpec(**counts, seed=args.seed, frames=args.frames, width=width, height=height)
    with locked(args.output, "--output"):
        made = FORMS[args.form](args.output, spec, args.workers)
    if made:
        print(f"{args.output}: {made} videos made ({time.perf_counter() - start:.0f} s)")
    else:
        print(f"{args.output}: all videos exist already")
    return 0


if __name__ == "__main__":
    sys.exit(main())
