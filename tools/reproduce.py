r"""Reproduce a table or figure of the paper.

Print the runs and their costs, and the table with the results of the finished runs:

    multigrid-reproduce table5

Print only the runs and costs, here of all tables and figures:

    multigrid-reproduce all --dry-run

Train on this machine, one run after another:

    multigrid-reproduce table5 --local --seeds 0 1 2 \
        --ssv2 /data/ssv2 --kinetics-weights k400.pyth

Train as SLURM jobs:

    multigrid-reproduce table5 --slurm gpu --seeds 0 1 2 \
        --ssv2 /data/ssv2 --kinetics-weights k400.pyth

To continue after an interruption, repeat the command. Finished runs are not repeated. The reports
are written to the folder given as --output: NAME.md, NAME.json and, for figures, NAME.png. KEY
VALUE pairs after the options apply to every recipe, for example NUM_GPUS 4
SOLVER.ACCUMULATION_STEPS 2.
"""

import argparse
import shlex
import sys
from functools import partial
from pathlib import Path

from slowfast_patches.experiments.published import PUBLISHED
from slowfast_patches.launch import slurm_options
from slowfast_patches.utils import command_line

_DATA = ("kinetics", "ssv2", "charades")
_STARTS = ("imagenet", "kinetics")


def new_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = command_line.command_parser(__doc__)
    parser.add_argument(
        "name", choices=[*PUBLISHED, "all"], help="table or figure, or all tables and figures"
    )
    command_line.add_seeds(parser)
    command_line.add_output(parser, "runs/reproduce")
    command_line.add_accepted(parser)

    group = parser.add_argument_group("how to run")
    ways = group.add_mutually_exclusive_group()
    text = "only print the runs and their costs"
    ways.add_argument("--dry-run", action="store_true", help=text)
    ways.add_argument("--local", action="store_true", help="train on this machine")
    slurm_options.add_slurm_options(parser, "--slurm")

    group = parser.add_argument_group("what to run on")
    add = partial(command_line.add_option, group)
    for name in _DATA:
        add(f"--{name}", "DIR", "folder with the lists of the data set")
    for name in _STARTS:
        text = f"{name} checkpoint for the recipes that start from pre-trained {name} weights"
        add(f"--{name}-weights", "FILE", text)
    text = (
        "result file of benchmarks/step_time.py, from which the expected training times are "
        "computed; can be repeated"
    )
    command_line.add_list(group, "--step-times", text)
    command_line.add_overrides(parser, "keys to set in every recipe")
    return parser


if __name__ == "__main__":
    command_line.start_program()
command_line.answer_help(new_parser)

from slowfast_patches.experiments import reproduction, slurm_jobs
from slowfast_patches.experiments.checks import checked, report_files
from slowfast_patches.experiments.paper import PAPER, PAPER_TABLES, paper_variants
from slowfast_patches.experiments.report import Report
from slowfast_patches.experiments.runs import Experiment, train
from slowfast_patches.experiments.variants import check_experiment
from slowfast_patches.launch import slurm


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line. KEY VALUE pairs may follow any option, even --seeds."""
    parser = new_parser()
    args = parser.parse_intermixed_args(argv)
    command_line.take_numbers(args, "seeds", command_line.from_zero)
    args.slurm = slurm.slurm_of(parser, args)
    if args.slurm and (args.local or args.dry_run):
        parser.error("--slurm cannot be combined with --local or --dry-run")
    return args


@command_line.tool
def main(argv: list[str] | None = None) -> int:
    """Print the costs, train the missing runs if requested, and write and print the tables."""
    args = parse_args(argv)
    command = shlex.join(["multigrid-reproduce", *(sys.argv[1:] if argv is None else argv)])
    check_experiment([], args.overrides)
    names = PAPER if args.name == "all" else [args.name]
    tables = {name: PAPER_TABLES[name] for name in names}
    rows = [row for table in tables.values() for row in table.rows]
    data = {name: getattr(args, name) for name in _DATA}
    weights = {name: getattr(args, f"{name}_weights") for name in _STARTS}
    variants = paper_variants(rows, data, weights, args.overrides)
    accepted = frozenset(args.accept_change)
    experiment = Experiment(list(variants.values()), args.seeds, args.output, accepted=accepted)
    costs = reproduction.costs_of(variants, args.step_times)
    print(f"{len(variants)} different recipes × {len(experiment.seeds)} seeds\n", flush=True)

    def report() -> list[Report]:
        runs = experiment.runs()
        return [
            reproduction.report_table(name, table, experiment, runs, costs, command)
            for name, table in tables.items()
        ]

    run_net = Path(__file__).resolve().with_name("run_net.py")
    if args.local or args.slurm:
        reproduction.check_inputs(rows, variants)
    experiment = checked(
        experiment,
        args.step_times,
        trains=bool(args.local or args.slurm),
        writes=report_files(*tables),
    )
    for _ in train(experiment, run_net) if args.local else ():
        for each in report():
            each.write(args.output)
    if args.slurm:
        slurm_jobs.submit_experiment(experiment, run_net, args.slurm)
    for each in report():
        print(f"{each.title}\n\n{each}\n")
        if not args.dry_run:
            each.write(args.output)
    return int(bool(experiment.failed()))


if __name__ == "__main__":
    sys.exit(main())
