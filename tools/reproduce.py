"""Reproduce a table or figure of the paper: the plan, the runs, the tables.

Without --local or --slurm it prints what would run and what it would cost, then the table
with what the runs in --output have given so far ("missing" where there is none).

    multigrid-reproduce table5                          # the plan, and the table so far
    multigrid-reproduce all --dry-run                   # every run of every table and figure
    multigrid-reproduce table5 --local --seeds 0 1 2 \\
        --ssv2 /data/ssv2 --kinetics-weights k400.pyth        # train, one run after another
    multigrid-reproduce table5 --slurm gpu --seeds 0 1 2 \\
        --ssv2 /data/ssv2 --kinetics-weights k400.pyth        # train as SLURM jobs

The same command continues what was interrupted; finished runs are not repeated. Reports are
written to --output: NAME.md, NAME.json and, for figures, NAME.png. Keys and values after
the options replace those of every recipe (NUM_GPUS 4 SOLVER.REFERENCE_WORLD_SIZE 8, for instance).
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from slowfast_patches.utils import command_line

if __name__ == "__main__":
    command_line.ends_early()

from slowfast_patches import patching
from slowfast_patches.launch.slurm import Slurm
from slowfast_patches.study import jobs, reproduce
from slowfast_patches.study.arms import check_study
from slowfast_patches.study.paper import EXPERIMENTS, PAPER, paper_arms
from slowfast_patches.study.runs import Study, train
from slowfast_patches.utils.tables import format_duration

_DATA = ("kinetics", "ssv2", "charades")
_STARTS = ("imagenet", "kinetics")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; the KEY VALUE pairs may follow any option, --seeds too."""
    parser = command_line.command_parser(__doc__)
    parser.add_argument("name", choices=[*EXPERIMENTS, "all"], help="all: every table and figure")
    command_line.add_seeds(parser)
    text = "folder of runs and reports (default: %(default)s)"
    output = Path("runs/reproduce")
    parser.add_argument("--output", type=Path, default=output, metavar="DIR", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    text = "a recipe of your own, as a further row; give one or more"
    parser.add_argument("--add", type=Path, action="append", default=[], metavar="FILE", help=text)

    group = parser.add_argument_group("how to run")
    ways = group.add_mutually_exclusive_group()
    text = "print what would run, nothing else"
    ways.add_argument("--dry-run", action="store_true", help=text)
    text = "train here, one run after another, or --at-once N of them"
    ways.add_argument("--local", action="store_true", help=text)
    ways.add_argument("--slurm", metavar="PARTITION", help="train as SLURM jobs")
    command_line.add_at_once(group)
    add = group.add_argument
    text = "of a job, which is then requeued (%(default)g)"
    add("--slurm-hours", type=float, metavar="H", default=Slurm.hours, help=text)
    text = "jobs of an array at the same time (%(default)s)"
    add("--slurm-limit", type=int, metavar="N", default=Slurm.limit, help=text)
    text = "cores for each GPU (%(default)s)"
    add("--slurm-cpus", type=int, metavar="N", default=Slurm.cpus, help=text)
    text = "a further one of sbatch: account=vision; give one or more"
    pair = command_line.key_value
    add("--slurm-option", type=pair, action="append", default=[], metavar="KEY=VALUE", help=text)

    group = parser.add_argument_group("what to run on")
    for name in _DATA:
        group.add_argument(f"--{name}", metavar="DIR", help="folder of the data set's lists")
    for name in _STARTS:
        text = "checkpoint for recipes that start from it"
        group.add_argument(f"--{name}-weights", metavar="FILE", help=text)
    text = "a file of step times, for the expected times; give one or more"
    group.add_argument(
        "--step-times", type=Path, action="append", default=[], metavar="FILE", help=text
    )
    text = "of one iteration of the first run listed, for the expected times: the others by FLOPs"
    group.add_argument("--step-seconds", type=float, metavar="S", help=text)
    text = "config keys to set"
    command_line.add_overrides(parser, text)
    args = parser.parse_intermixed_args(argv)
    command_line.take_numbers(args, "seeds", command_line.whole_number)
    slurm = ("hours", "limit", "cpus", "option")
    needs = {f"--slurm-{name}": ("--slurm", args.slurm) for name in slurm}
    needs["--at-once"] = ("--local", args.local)
    for option, (other, given) in needs.items():
        name = option.strip("-").replace("-", "_")
        if not given and getattr(args, name) != parser.get_default(name):
            parser.error(f"{option} has no effect without {other}")
    if args.step_times and args.step_seconds is not None:
        parser.error("give --step-times or --step-seconds, not both")
    return args


def run(args: argparse.Namespace, command: str) -> list[dict[str, Any]]:
    """Print the plan, run it as asked, then write and print the tables; all as plain data."""
    patching.apply()
    check_study(args.add, args.overrides)
    experiments = reproduce.experiments_of(PAPER if args.name == "all" else [args.name], args.add)
    rows = [row for experiment in experiments.values() for row in experiment.rows]
    data = {name: getattr(args, name) for name in _DATA}
    weights = {name: getattr(args, f"{name}_weights") for name in _STARTS}
    arms = paper_arms(rows, data, weights, args.overrides)
    study = Study(list(arms.values()), list(dict.fromkeys(args.seeds)), args.output)
    costs = reproduce.costs_of(arms, args.step_times, args.step_seconds)
    plans = [reproduce.plan_json(e, arms, costs, study.seeds) for e in experiments.values()]
    for plan in plans:
        print(reproduce.format_costs(plan))
    print(_format_size(study, [cost.seconds for cost in costs.values()]), flush=True)
    if args.dry_run:
        return plans

    def report() -> list[reproduce.PaperTable]:
        runs = study.runs()
        tables = [
            reproduce.PaperTable(name, experiment, arms, runs, study.seeds, command)
            for name, experiment in experiments.items()
        ]
        for table in tables:
            reproduce.paper_report(table).write(args.output)
        return tables

    run_net = Path(__file__).resolve().with_name("run_net.py")
    if args.local or args.slurm:
        reproduce.check_inputs(rows, arms)
    if args.local:
        with closing(train(study, run_net, args.at_once)) as progress:
            for _ in progress:
                report()
    tables = report()
    if args.slurm:
        queued = jobs.submit_study(study, run_net, _slurm(args))
        print(
            f"{len(queued)} jobs queued: {', '.join(queued.values()) or 'all are done or queued'}"
        )
    for table in tables:
        print(f"\n{table.experiment.title}\n\n{reproduce.paper_report(table)}")
    print(f"\nReports: {args.output}")
    return [table.to_json() for table in tables]


@command_line.tool(interrupted="interrupted; the same command continues")
def main(argv: list[str] | None = None) -> int:
    """Reproduce; returns the exit status."""
    args = parse_args(argv)
    command = shlex.join(["multigrid-reproduce", *(sys.argv[1:] if argv is None else argv)])
    with redirect_stdout(sys.stderr) if args.json else nullcontext():
        tables = run(args, command)
    if args.json:
        print(json.dumps(tables, indent=2, ensure_ascii=False))
    return 0


def _format_size(study: Study, seconds: Sequence[float | None]) -> str:
    """How many runs there are, and how long they take if the time of each recipe is known."""
    known = [value for value in seconds if value is not None]
    total = "unknown: give --step-times FILE"
    if len(known) == len(seconds):
        total = format_duration(sum(known) * len(study.seeds))
    return (
        f"{study.size} runs in all: {len(seconds)} recipes × {len(study.seeds)} seeds, each recipe "
        f"counted once; training time, without loading and evaluation: {total}"
    )


def _slurm(args: argparse.Namespace) -> Slurm:
    return Slurm(
        args.slurm,
        hours=args.slurm_hours,
        limit=args.slurm_limit,
        cpus=args.slurm_cpus,
        options=dict(args.slurm_option),
    )


if __name__ == "__main__":
    sys.exit(main())
