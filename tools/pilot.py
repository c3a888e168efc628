"""Find out in minutes whether multigrid training helps a model on its data, and which cycle.

    multigrid-pilot --cfg RECIPE.yaml DATA.PATH_TO_DATA_DIR data

The pilot trains the baseline and at least one multigrid cycle for equal times, from
TRAIN.CHECKPOINT_FILE_PATH or from scratch. The runs are ordinary runs of the recipe with fewer
epochs. The pilot first measures the step time of each shape, and chooses lengths that take equal
times. Each run ends at the baseline's shape, and is then scored on the validation set.

The pilot prints the scores, advice for or against multigrid, the probability that multigrid is
better, and the expected speed-up. It writes the same results to pilot.md and pilot.json in the
output folder. It writes the recipe with the best cycle to multigrid.yaml.

By default, the pilot takes a tenth of the time of a full training of the baseline. It takes at
least the time that a result needs, about 600 iterations of the baseline. If a full training takes
no longer than the pilot, the pilot only prints the command that trains both recipes in full.

To continue an interrupted pilot, or to add seeds, repeat the command. Finished runs are not
repeated. A cycle that does not fit into memory, or whose run fails, is a row of the report, and the
others are compared. The exit status is then 1.

The runs use as many GPUs of this machine as the recipe sets. Weight averaging (MODEL.EMA_DECAY) is
switched off.
"""

import argparse
import logging
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from slowfast_patches.utils import command_line


def new_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = command_line.command_parser(__doc__)
    command_line.add_cfg(parser)
    text = (
        "approximate time of the pilot per seed, in minutes, if it is enough for a result "
        "(default: a tenth of a full training of the baseline)"
    )
    command_line.add_option(parser, "--minutes", "M", text, command_line.above_zero)
    command_line.add_seeds(parser)
    command_line.add_output(parser, "runs/pilot")
    command_line.add_accepted(parser)
    text = (
        "step-time file written by benchmarks/step_time.py, used instead of measuring step times; "
        "can be repeated"
    )
    command_line.add_list(parser, "--step-times", text)
    command_line.add_overrides(parser, "config keys to set")
    return parser


if __name__ == "__main__":
    command_line.start_program()
command_line.answer_help(new_parser)

from multigrid import PAPER, Cycles
from slowfast_patches.config.load_recipe import load_recipe, recipe_path
from slowfast_patches.config.recipe_cycles import cycles_of
from slowfast_patches.experiments.checks import check_outputs, checked, report_files
from slowfast_patches.experiments.runs import Experiment, train
from slowfast_patches.extras.pilot.pilot_experiment import (
    ShortBaselineError,
    measured_seconds,
    pilot_experiment,
    pilot_variants,
)
from slowfast_patches.extras.pilot.pilot_report import evaluate_pilot, recipe_text, report_pilot
from slowfast_patches.utils.files import make_folder, write_text

_PLAN = (
    "Pilot of {}: check the recipe and the lists, time training steps, then train the baseline and "
    "multigrid briefly. How long this takes is printed after the step times."
)
FILES = (*report_files("pilot"), "multigrid.yaml", "baseline.yaml", "step_times.json")
"""Files that a pilot writes to --output, beside the folders of runs."""

_OFF = replace(PAPER, long_cycle=(), short_cycle=())


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = new_parser()
    args = parser.parse_intermixed_args(argv)
    command_line.take_numbers(args, "seeds", command_line.from_zero)
    return args


def next_command(args: argparse.Namespace, cycles: Cycles | None, advice: str) -> str:
    """Write a multigrid recipe to multigrid.yaml, and return the command to run next.

    Args:
        args: Parsed command line of the pilot.
        cycles: Cycles of the multigrid recipe.
        advice: The command trains the better recipe, or both if the advice is "undecided".
    """
    assert cycles is not None, "The best variant must have cycles."
    recipe = args.output / "multigrid.yaml"
    make_folder(args.output, "--output")
    given = recipe_path(args.cfg).resolve()
    write_text(recipe, recipe_text(cycles, str(given)))
    if advice == "use multigrid":
        return shlex.join(["multigrid-train", "--cfg", str(recipe), *args.overrides])
    baseline = args.cfg
    if load_recipe(given, args.overrides).uses_multigrid:
        baseline = args.output / "baseline.yaml"
        write_text(baseline, recipe_text(_OFF, str(given)))
    if advice == "do not use multigrid":
        return shlex.join(["multigrid-train", "--cfg", str(baseline), *args.overrides])
    both = ["--cfg", str(baseline), "--cfg", str(recipe), "--equal-iterations"]
    return shlex.join(["multigrid-compare", *both, *args.overrides])


@command_line.tool
def main(argv: list[str] | None = None) -> int:
    """Run the pilot, print its report, and return the exit status."""
    args = parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    make_folder(args.output, "--output")
    print(_PLAN.format(args.cfg), file=sys.stderr, flush=True)
    variants = pilot_variants(recipe_path(args.cfg), args.overrides)
    accepted = frozenset(args.accept_change)
    check_outputs(Experiment(variants, args.seeds, args.output), args.step_times, FILES)
    variants, seconds, dropped = measured_seconds(variants, args.step_times, args.output)
    try:
        experiment = pilot_experiment(variants, seconds, args.minutes, args.seeds, args.output)
    except ShortBaselineError as error:
        advised = next_command(args, cycles_of(variants[1].recipe), "undecided")
        print(f"{error}\n\n    {advised}")
        return 0
    experiment = replace(experiment, accepted=accepted, dropped=dropped)
    experiment = checked(experiment, args.step_times, trains=True, writes=FILES)
    *_, runs = train(experiment, Path(__file__).with_name("run_net.py"))
    outcome = evaluate_pilot(experiment, runs)
    command = shlex.join(["multigrid-pilot", *(sys.argv[1:] if argv is None else argv)])
    report = report_pilot(experiment, runs, outcome, command, seconds[0])
    report.write(args.output)
    best = cycles_of(outcome.best.recipe)
    advised = next_command(args, best, outcome.advice)
    print(report)
    print(f"\n    {advised}")
    print(f"\nReport: {args.output / 'pilot.md'}, pilot.json")
    return int(bool(experiment.failed()))


if __name__ == "__main__":
    sys.exit(main())
