r"""Train two or more configs, and report the cost and the accuracy of each.

Finished runs in the output folder are not repeated. To continue an interrupted comparison, repeat
the command. If a run fails, the others are trained nevertheless, and the exit status is 1. Nothing
is trained if a finished or interrupted run differs from what the command asks for, in its recipe,
lists, videos or weights, or if the configs are scored on different labels or in different ways.
With --accept-change NAME, a difference that the error names is accepted. Example:

    multigrid-compare --cfg configs/Demo/SLOWFAST_DEMO.yaml \
        --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml --equal-iterations --seeds 0 1 2 \
        --output runs/demo DATA.PATH_TO_DATA_DIR runs/demo/data

With --lengths, each config is trained several times, with its SOLVER.LENGTH multiplied by each of
the given factors. The report then shows accuracy over training time, iterations and FLOPs, the
time after which each config reaches the accuracies of the first config, and the training time from
which on each config is better than the first. Runs of length 1 are shared with comparisons without
--lengths.

    multigrid-compare --cfg configs/Demo/SLOWFAST_DEMO.yaml \
        --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml --lengths 0.125 0.25 0.5 1 2 \
        --seeds 0 1 2 --output runs/demo DATA.PATH_TO_DATA_DIR runs/demo/data

With --slurm PARTITION, the missing runs are submitted as SLURM jobs. To see the report, repeat the
command after they have finished.
"""

import argparse
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from slowfast_patches.launch import slurm_options
from slowfast_patches.utils import command_line


def new_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = command_line.command_parser(__doc__)
    text = "config to train; repeat this option for each config, with the baseline first"
    command_line.add_list(parser, "--cfg", text, required=True)
    command_line.add_seeds(parser)
    command_line.add_output(parser, "runs/compare")
    command_line.add_accepted(parser)
    text = (
        "result file of benchmarks/step_time.py (docs/performance.md); the speed-ups and "
        "the expected time of all runs are computed from these times; can be repeated"
    )
    command_line.add_list(parser, "--step-times", text)
    either = parser.add_mutually_exclusive_group()
    text = (
        "also train the first config with the SOLVER.LENGTH at which it has as many iterations as "
        "the second config"
    )
    either.add_argument("--equal-iterations", action="store_true", help=text)
    text = (
        "train each config with its SOLVER.LENGTH multiplied by each of these factors, such as "
        "0.25 0.5 1 2, and draw curves"
    )
    command_line.add_option(either, "--lengths", "L", text, default=[], nargs="+")
    text = (
        "number of runs to train beside each other, with --step-times (default: %(default)s); "
        "their wall-clock times are not compared"
    )
    command_line.add_option(parser, "--jobs", "N", text, command_line.at_least_one, 1)
    slurm_options.add_slurm_options(parser, "--slurm")
    command_line.add_overrides(parser, "keys to set in every config")
    return parser


if __name__ == "__main__":
    command_line.start_program()
command_line.answer_help(new_parser)

from slowfast_patches.config.load_recipe import recipe_path
from slowfast_patches.experiments import slurm_jobs
from slowfast_patches.experiments.beside import train_beside
from slowfast_patches.experiments.checks import checked
from slowfast_patches.experiments.comparison import compare, make_variants
from slowfast_patches.experiments.runs import Experiment, train
from slowfast_patches.experiments.variants import step_seconds_of
from slowfast_patches.launch import slurm


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line. KEY VALUE pairs may follow any option, even --seeds."""
    parser = new_parser()
    args = parser.parse_intermixed_args(argv)
    if args.equal_iterations and len(args.cfg) < 2:
        parser.error("--equal-iterations needs two --cfg")
    command_line.take_numbers(args, "lengths", command_line.above_zero)
    command_line.take_numbers(args, "seeds", command_line.from_zero)
    args.slurm = slurm.slurm_of(parser, args)
    if args.jobs > 1 and (args.slurm or not args.step_times):
        parser.error(
            "--jobs trains runs at the same time, which changes their wall-clock times. Add "
            "--step-times, and leave out --slurm"
        )
    return args


@command_line.tool
def main(argv: list[str] | None = None) -> int:
    """Train the missing runs, write and print the report, and return the exit status."""
    args = parse_args(argv)
    command = shlex.join(["multigrid-compare", *(sys.argv[1:] if argv is None else argv)])
    variants = make_variants(
        list(map(recipe_path, args.cfg)),
        args.overrides,
        equal_iterations=args.equal_iterations,
        lengths=args.lengths,
    )
    experiment = Experiment(
        variants, args.seeds, args.output, accepted=frozenset(args.accept_change)
    )
    step_times = None
    if args.step_times:
        seconds, step_times = step_seconds_of(variants, args.step_times)
        experiment = replace(experiment, step_seconds=seconds)
    experiment = checked(experiment, args.step_times, trains=True)
    run_net = Path(__file__).with_name("run_net.py")
    finished = [experiment.runs()] if args.slurm else train(experiment, run_net)
    if args.jobs > 1:
        finished = train_beside(experiment, run_net, args.jobs)
    if args.slurm:
        slurm_jobs.submit_experiment(experiment, run_net, args.slurm)
    for runs in finished:
        report = compare(experiment, runs, command, step_times)
        if len(runs):
            report.write(experiment.output)
    print(report)
    if len(runs):
        print(f"\nPicture: {args.output / 'report.png'}. Report: {args.output / 'report.md'}")
    return int(bool(experiment.failed()))


if __name__ == "__main__":
    sys.exit(main())
