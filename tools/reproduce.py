"""Reproduce a table or figure of the paper: the plan, the runs, the tables.

Without --local or --slurm it prints what would run and what it would cost, then the table
with what the runs in --output have given so far ("missing" where there is none).

    multigrid-reproduce table5                          # the plan, and the table so far
    multigrid-reproduce all --dry-run                   # every run of every table and figure
    multigrid-reproduce table5 --local --seeds 0 1 2 \\
        --ssv2 /data/ssv2 --kinetics-weights k400.pyth        # train, one run after another
    multigrid-reproduce table5 --slurm gpu --seeds 0 1 2 \\
        --ssv2 /data/ssv2 --kinetics-weights k400.pyth        # train as SLURM jobs
    multigrid-reproduce table1a --scale demo            # the whole path at toy size, on a CPU

The same command continues what was interrupted; finished runs are not repeated. Reports are
written to --output: NAME.md, NAME.json and, for figures, NAME.png. Keys and values after
the options replace those of every recipe (NUM_GPUS 4 SOLVER.REFERENCE_WORLD_SIZE 8, for instance).
"""

import argparse
import json
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

from slowfast_patches.utils import command_line

if __name__ == "__main__":
    command_line.ends_early()

from slowfast_patches.config.load import CONFIGS
from slowfast_patches.launch.slurm import Slurm
from slowfast_patches.study.arms import Arms
from slowfast_patches.study.experiments import EXPERIMENTS, PAPER
from slowfast_patches.study.reproduce import Request, reproduce
from slowfast_patches.study.toy import Toy


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; the KEY VALUE pairs may follow any option, --seeds too."""
    parser = command_line.command_parser(__doc__)
    parser.add_argument("name", choices=[*EXPERIMENTS, "all"], help="all: every table and figure")
    command_line.add_seeds(parser)
    text = "folder of runs and reports (default: %(default)s)"
    output = Path("runs/reproduce")
    parser.add_argument("--output", type=Path, default=output, metavar="DIR", help=text)
    text = "a recipe of your own, as a further row; give one or more"
    parser.add_argument("--add", type=Path, action="append", default=[], metavar="FILE", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    _add_ways(parser.add_argument_group("how to run"))
    _add_inputs(parser.add_argument_group("what to run on"))
    text = "config keys to set"
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY VALUE", help=text)
    args = parser.parse_intermixed_args(argv)
    command_line.take_numbers(args, "seeds", command_line.whole_number)
    _check_ways(parser, args)
    return args


_DATA = ("kinetics", "ssv2", "charades")
_STARTS = ("imagenet", "kinetics")


def _add_ways(group: argparse._ArgumentGroup) -> None:
    ways = group.add_mutually_exclusive_group()
    text = "print what would run, nothing else"
    ways.add_argument("--dry-run", action="store_true", help=text)
    text = "train here, one run after another, or --at-once N of them"
    ways.add_argument("--local", action="store_true", help=text)
    ways.add_argument("--slurm", metavar="PARTITION", help="train as SLURM jobs")
    text = "demo: everything at toy size on a CPU, on rendered videos; trains at once"
    group.add_argument("--scale", choices=("paper", "demo"), default="paper", help=text)
    command_line.add_at_once(group)
    text = f"of a job ({Slurm.hours:g}); then requeued"
    group.add_argument("--slurm-hours", type=float, metavar="H", help=text)
    text = f"jobs of an array at the same time ({Slurm.limit})"
    group.add_argument("--slurm-limit", type=int, metavar="N", help=text)
    text = f"cores for each GPU ({Slurm.cpus})"
    group.add_argument("--slurm-cpus", type=int, metavar="N", help=text)
    text = "a further one of sbatch: account=vision"
    pair = command_line.key_value
    group.add_argument(
        "--slurm-option", type=pair, action="append", default=[], metavar="KEY=VALUE", help=text
    )


def _add_inputs(group: argparse._ArgumentGroup) -> None:
    for name in _DATA:
        group.add_argument(f"--{name}", metavar="DIR", help="folder of the data set's lists")
    for name in _STARTS:
        text = "checkpoint for recipes that start from it"
        group.add_argument(f"--{name}-weights", metavar="FILE", help=text)
    text = "of benchmarks/step_time.py, for the expected times"
    group.add_argument(
        "--step-times", type=Path, action="append", default=[], metavar="FILE", help=text
    )
    text = "of one iteration of the first run listed, for the expected times: the others by FLOPs"
    group.add_argument("--step-seconds", type=float, metavar="S", help=text)


def _check_ways(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """An option that would have no effect is an error."""
    for name in ("slurm_hours", "slurm_limit", "slurm_cpus", "slurm_option"):
        if getattr(args, name) not in (None, []) and not args.slurm:
            parser.error(f"{command_line.option_of(name)} has no effect without --slurm")
    if args.at_once > 1 and not (args.local or args.scale == "demo"):
        parser.error("--at-once has no effect without --local")
    if args.step_times and args.step_seconds is not None:
        parser.error("give --step-times or --step-seconds, not both")
    if args.scale == "demo":
        given = ("slurm", *_DATA, *(f"{name}_weights" for name in _STARTS))
        for name in (name for name in given if getattr(args, name)):
            parser.error(f"{command_line.option_of(name)} has no effect with --scale demo")


def make_request(args: argparse.Namespace, argv: list[str]) -> Request:
    """What the command line asks for."""
    slurm = None
    if args.slurm:
        given = {"hours": args.slurm_hours, "limit": args.slurm_limit, "cpus": args.slurm_cpus}
        given = {key: value for key, value in given.items() if value is not None}
        slurm = Slurm(args.slurm, options=dict(args.slurm_option), **given)
    data = {name: getattr(args, name) for name in _DATA if getattr(args, name)}
    weights = {name: getattr(args, f"{name}_weights") or "" for name in _STARTS}
    toy = Toy() if args.scale == "demo" else None
    if toy:
        made = args.output / "demo" / "data"
        data = {name: str(made / name) for name in _DATA}
    return Request(
        names=PAPER if args.name == "all" else (args.name,),
        seeds=tuple(dict.fromkeys(args.seeds)),
        output=args.output,
        run_net=Path(__file__).resolve().with_name("run_net.py"),
        arms=Arms(CONFIGS, data, weights, tuple(args.overrides), toy),
        own=tuple(args.add),
        step_times=tuple(args.step_times),
        step_seconds=args.step_seconds,
        dry_run=args.dry_run,
        local=args.local,
        at_once=args.at_once,
        slurm=slurm,
        command=tuple(argv),
    )


@command_line.tool(interrupted="interrupted; the same command continues")
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
