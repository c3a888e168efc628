"""Train configs side by side and report what each costs and reaches.

Runs that the output folder holds already are not repeated, so that the same command continues an
interrupted comparison. Example:

    python tools/compare.py --cfg configs/Demo/SLOWFAST_DEMO.yaml \\
        --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml --equal-time --seeds 0 1 2 \\
        --output runs/demo DATA.PATH_TO_DATA_DIR runs/demo/data

With --lengths each config is trained at several multiples of its length, and the report has curves:
accuracy against wall-clock time, iterations and FLOPs, the time that each config needs for each
accuracy of the first, and where they break even. The config as it is (length 1) is the same run
with --lengths and without.

    python tools/compare.py --cfg configs/Demo/SLOWFAST_DEMO.yaml \\
        --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml --lengths 0.125 0.25 0.5 1 2 \\
        --seeds 0 1 2 --output runs/demo DATA.PATH_TO_DATA_DIR runs/demo/data
"""

import argparse
import json
import shlex
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

from slowfast_patches.utils import command_line

if __name__ == "__main__":
    command_line.ends_early()

from slowfast_patches.config.load import recipe_path
from slowfast_patches.study.arms import cost_of, measured_times
from slowfast_patches.study.compare import (
    compare_lengths,
    format_comparison,
    make_arms,
    make_comparison,
    write_comparison,
)
from slowfast_patches.study.curves.curves import step_timed
from slowfast_patches.study.curves.families import at_lengths, in_order
from slowfast_patches.study.runs import each_seed, train_all


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; the KEY VALUE pairs may follow any option, --seeds too."""
    parser = command_line.command_parser(__doc__)
    parser.add_argument(
        "--cfg",
        type=Path,
        action="append",
        required=True,
        metavar="FILE",
        help="a config; two or more, the one to compare with first",
    )
    command_line.add_seeds(parser)
    output = "folder of the runs and the report (default: %(default)s)"
    times = (
        "of benchmarks/step_time.py: what all runs will take, and with --lengths the curves' times"
    )
    options = {
        "--output": (Path, "DIR", output, Path("runs/compare")),
        "--json": (bool, "print JSON, and nothing else"),
        "--step-times": ([Path], "FILE", times),
    }
    command_line.add_options(parser, options)
    either = parser.add_mutually_exclusive_group()
    equal = "also train the first config shortened to the iterations of the second"
    command_line.add_options(either, {"--equal-time": (bool, equal)})
    command_line.add_lengths(either)
    command_line.add_at_once(parser)
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY VALUE", help="set in every config"
    )
    args = parser.parse_intermixed_args(argv)
    command_line.take_lengths(args)
    command_line.take_seeds(parser, args)
    return args


@command_line.tool(interrupted="interrupted; the same command continues")
def main(argv: list[str] | None = None) -> int:
    """Train, report, and print the table; returns the exit status."""
    args = parse_args(argv)
    command = shlex.join(["python", "tools/compare.py", *(sys.argv[1:] if argv is None else argv)])
    files = list(map(recipe_path, args.cfg))
    arms = make_arms(files, args.overrides, equal_time=args.equal_time)
    cost = partial(cost_of, timing_of=measured_times(args.step_times))
    summarise = partial(make_comparison, arms, args.seeds)
    if args.lengths:
        families = [at_lengths(arm, args.lengths) for arm in arms]
        arms = in_order(families)
        costs = {arm.name: cost(arm) for arm in arms} if args.step_times else {}
        timed = step_timed(costs, args.step_times)
        summarise = partial(compare_lengths, families, args.seeds, timed=timed)
    run_net = Path(__file__).with_name("run_net.py")
    runs = each_seed(arms, args.seeds)
    with closing(train_all(runs, args.output, run_net, cost, args.at_once)) as progress:
        for results in progress:
            comparison = summarise(results, command)
            if results:
                write_comparison(comparison, args.output)
    if args.json:
        print(json.dumps(comparison.to_json(), indent=2, ensure_ascii=False))
        return 0
    print(format_comparison(comparison))
    print(f"\nReport: {args.output / 'report.md'}, report.json, report.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
