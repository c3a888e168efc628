"""Reproduce a table or figure of the paper, or our proof: the plan, the runs, the tables.

Without --local or --slurm it prints what would run and what it would cost, then the table
with what the runs in --output have given so far ("missing" where there is none).

    python tools/reproduce.py table5                          # the plan, and the table so far
    python tools/reproduce.py all --dry-run                   # every run of every table and figure
    python tools/reproduce.py table5 --local --seeds 0 1 2 \\
        --ssv2 /data/ssv2 --kinetics-weights k400.pyth        # train, one run after another
    python tools/reproduce.py table5 --slurm gpu --seeds 0 1 2 \\
        --ssv2 /data/ssv2 --kinetics-weights k400.pyth        # train as SLURM jobs
    python tools/reproduce.py table1a --scale demo            # the whole path at toy size, on a CPU

Experiments of our own, of which nothing is published, are on data that anyone can have: baseline
and multigrid on spoken words, and on the digits among them, at five lengths, what each accuracy
costs them and where they break even (words, digits); controls of the baseline (words_controls);
what each choice of the multigrid recipes is worth (words_ablation, demo_ablation, with the first of
the seeds alone). proof: all of these.

    python tools/reproduce.py words --local --seeds 0 1 2 --words /data/words
    python tools/reproduce.py proof --local --seeds 0 1 2 --words /data/words --demo runs/demo/data

The folders are those of tools/make_words.py and tools/make_demo_data.py; the lists of the digits
are made from the words'.

The same command continues what was interrupted; finished runs are not repeated. Reports are
written to --output: NAME.md, NAME.json and, for figures and ours, NAME.png. Keys and values after
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
from slowfast_patches.study.experiments import EXPERIMENTS, PAPER, PROOF
from slowfast_patches.study.reproduce import Request, reproduce
from slowfast_patches.study.toy import Toy


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; the KEY VALUE pairs may follow any option, --seeds too."""
    parser = command_line.command_parser(__doc__)
    parser.add_argument(
        "name", choices=[*EXPERIMENTS, *_GROUPS], help="all: the paper's; proof: ours"
    )
    command_line.add_seeds(parser)
    command_line.add_options(parser, _OPTIONS)
    group = parser.add_argument_group("how to run")
    command_line.add_options(group.add_mutually_exclusive_group(), _WAYS)
    demo = "demo: everything at toy size on a CPU, on rendered videos; trains at once"
    group.add_argument("--scale", choices=("paper", "demo"), default="paper", help=demo)
    command_line.add_at_once(group)
    command_line.add_options(group, _SLURM)
    command_line.add_options(parser.add_argument_group("what to run on"), _INPUTS)
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY VALUE", help="config keys to set"
    )
    args = parser.parse_intermixed_args(argv)
    command_line.take_seeds(parser, args)
    _check_ways(parser, args)
    return args


_GROUPS = {"all": PAPER, "proof": PROOF}
_OPTIONS = {
    "--output": (Path, "DIR", "folder of runs and reports (%(default)s)", Path("runs/reproduce")),
    "--add": ([Path], "FILE", "a recipe of your own, as a further row; give one or more"),
    "--json": (bool, "print JSON, and nothing else"),
}
_WAYS = {
    "--dry-run": (bool, "print what would run, nothing else"),
    "--local": (bool, "train here, one run after another, or --at-once N of them"),
    "--slurm": (str, "PARTITION", "train as SLURM jobs"),
}
_SBATCH = "a further one of sbatch: account=vision"
_SLURM = {
    "--slurm-hours": (float, "H", f"of a job ({Slurm.hours:g}); then requeued"),
    "--slurm-limit": (int, "N", f"jobs of an array at the same time ({Slurm.limit})"),
    "--slurm-cpus": (int, "N", f"cores for each GPU ({Slurm.cpus})"),
    "--slurm-option": ([command_line.key_value], "KEY=VALUE", _SBATCH),
}
_DATA, _STARTS = ("kinetics", "ssv2", "charades", "words", "demo"), ("imagenet", "kinetics")
_FORMS = dict.fromkeys(("words", "demo"), "kinetics")
"""Data whose lists have another's form."""

_START = "checkpoint for recipes that start from it"
_TIMES = "of benchmarks/step_time.py, for the expected times"
_STEP = "of one iteration of the first run listed, for the expected times: the others by FLOPs"
_INPUTS = {
    **{f"--{name}": (str, "DIR", "folder of the data set's lists") for name in _DATA},
    **{f"--{name}-weights": (str, "FILE", _START) for name in _STARTS},
    "--step-times": ([Path], "FILE", _TIMES),
    "--step-seconds": (float, "S", _STEP),
}


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
        data = {name: str(made / _FORMS.get(name, name)) for name in _DATA}
    if "words" in data:
        data["digits"] = data["words"] if toy else str(args.output / "data" / "digits")
    return Request(
        names=_GROUPS.get(args.name, (args.name,)),
        seeds=tuple(args.seeds),
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
