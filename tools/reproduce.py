"""Reproduce a table or figure of the paper: the plan, the runs, the table with both numbers.

Without --local or --slurm it prints what would run and what it would cost, then the paper's table
with what the runs in --output have given so far ("missing" where there is none).

    python tools/reproduce.py table5                          # the plan, and the table so far
    python tools/reproduce.py all --dry-run                   # every run of every table and figure
    python tools/reproduce.py table5 --local --seeds 0 1 2 \\
        --ssv2 /data/ssv2 --kinetics-weights k400.pyth        # train, one run after another
    python tools/reproduce.py table5 --slurm gpu --seeds 0 1 2 \\
        --ssv2 /data/ssv2 --kinetics-weights k400.pyth        # train as SLURM jobs
    python tools/reproduce.py table1a --scale demo            # the whole path at toy size, on a CPU

The same command continues what was interrupted; finished runs are not repeated. Reports are
written to --output: NAME.md, NAME.json and, for figures, NAME.png. Keys and values after the
options replace those of every recipe (NUM_GPUS 4 SOLVER.REFERENCE_WORLD_SIZE 8, for instance).
"""

import argparse
import json
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

from slowfast_patches.utils.command_line import add_seeds, ends_early, take_seeds, tool

if __name__ == "__main__":
    ends_early()

from slowfast_patches.config.load import CONFIGS
from slowfast_patches.launch.slurm import Slurm
from slowfast_patches.study.experiments import EXPERIMENTS
from slowfast_patches.study.reproduce import Request, reproduce
from slowfast_patches.study.toy import Toy


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; the KEY VALUE pairs may follow any option, --seeds too."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=[*EXPERIMENTS, "all"], help="what to reproduce")
    add_seeds(parser)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("runs/reproduce"),
        metavar="DIR",
        help="folder of the runs and reports (default: %(default)s)",
    )
    parser.add_argument(
        "--add",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a recipe of your own, as a further row; give one or more",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    _add_ways(parser)
    _add_inputs(parser)
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="config keys to set")
    args = parser.parse_intermixed_args(argv)
    take_seeds(parser, args)
    _check_ways(parser, args)
    return args


def _add_ways(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how to run")
    ways = group.add_mutually_exclusive_group()
    ways.add_argument("--dry-run", action="store_true", help="print what would run, nothing else")
    ways.add_argument("--local", action="store_true", help="train here, one run after another")
    ways.add_argument("--slurm", metavar="PARTITION", help="train as SLURM jobs")
    group.add_argument(
        "--scale",
        choices=("paper", "demo"),
        default="paper",
        help="demo: everything at toy size on a CPU, on rendered videos; trains at once",
    )
    group.add_argument(
        "--slurm-hours", type=float, metavar="H", help=f"of a job ({Slurm.hours:g}); then requeued"
    )
    group.add_argument(
        "--slurm-limit",
        type=int,
        metavar="N",
        help=f"jobs of an array at the same time ({Slurm.limit})",
    )
    group.add_argument(
        "--slurm-cpus", type=int, metavar="N", help=f"cores for each GPU ({Slurm.cpus})"
    )
    group.add_argument(
        "--slurm-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a further option of sbatch, such as account=vision; give one or more",
    )


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to run on")
    for name in ("kinetics", "ssv2", "charades"):
        group.add_argument(f"--{name}", metavar="DIR", help="folder of the data set's lists")
    for name in ("imagenet", "kinetics"):
        group.add_argument(
            f"--{name}-weights", metavar="FILE", help="checkpoint for recipes that start from it"
        )
    group.add_argument(
        "--step-times",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="measured by benchmarks/step_time.py, for the expected times; give one or more",
    )
    group.add_argument(
        "--step-seconds",
        type=float,
        metavar="S",
        help="of one iteration of the first run listed, for the expected times: the others in "
        "proportion to their FLOPs",
    )


def _check_ways(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """An option that would have no effect is an error."""
    for name in ("slurm_hours", "slurm_limit", "slurm_cpus", "slurm_option"):
        if getattr(args, name) not in (None, []) and not args.slurm:
            parser.error(f"--{name.replace('_', '-')} has no effect without --slurm")
    if args.step_times and args.step_seconds is not None:
        parser.error("give --step-times or --step-seconds, not both")
    for option in args.slurm_option:
        if "=" not in option:
            parser.error(f"--slurm-option takes KEY=VALUE, not {option}")
    if args.scale == "demo":
        given = ("slurm", "kinetics", "ssv2", "charades", "imagenet_weights", "kinetics_weights")
        for name in (name for name in given if getattr(args, name)):
            parser.error(f"--{name.replace('_', '-')} has no effect with --scale demo")


def make_request(args: argparse.Namespace, argv: list[str]) -> Request:
    """What the command line asks for."""
    slurm = None
    if args.slurm:
        given = {"hours": args.slurm_hours, "limit": args.slurm_limit, "cpus": args.slurm_cpus}
        options = dict(option.split("=", 1) for option in args.slurm_option)
        given = {key: value for key, value in given.items() if value is not None}
        slurm = Slurm(args.slurm, options=options, **given)
    data = {name: getattr(args, name) for name in ("kinetics", "ssv2", "charades")}
    weights = {name: getattr(args, f"{name}_weights") for name in ("imagenet", "kinetics")}
    return Request(
        names=tuple(EXPERIMENTS) if args.name == "all" else (args.name,),
        seeds=tuple(args.seeds),
        output=args.output,
        configs=CONFIGS,
        run_net=Path(__file__).resolve().with_name("run_net.py"),
        own=tuple(args.add),
        data={name: folder for name, folder in data.items() if folder},
        weights={name: file for name, file in weights.items() if file},
        overrides=tuple(args.overrides),
        step_times=tuple(args.step_times),
        step_seconds=args.step_seconds,
        dry_run=args.dry_run,
        local=args.local,
        slurm=slurm,
        toy=Toy() if args.scale == "demo" else None,
        command=tuple(argv),
    )


@tool(interrupted="interrupted; the same command continues")
def main(argv: list[str] | None = None) -> int:
    """Reproduce; returns the exit status."""
    args = parse_args(argv)
    request = make_request(args, sys.argv[1:] if argv is None else argv)
    with redirect_stdout(sys.stderr) if args.json else nullcontext():
        found = reproduce(request)
    if args.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
