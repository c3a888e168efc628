r"""Print the phases of a training schedule, and its cost compared with the baseline.

The command needs neither data nor a GPU, except that --clips needs data. Example:

    multigrid-plan --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml \
        --dataset-size 200000 --plot plan.png MULTIGRID.EPOCH_FACTOR 1.0

If the time of an iteration is given, the command also predicts the training time and the speed-up.
Give the seconds per iteration at the baseline's shape, or a result file of benchmarks/step_time.py
with the times at all shapes (docs/performance.md):

    multigrid-plan --cfg RECIPE.yaml --step-seconds 0.4
    multigrid-plan --cfg RECIPE.yaml --step-times steps.json

With --at N, the command prints the recipe as the long cycle has changed it at iteration N: the keys
of the batch size, the frames, the crop and the learning rates. A comment names what differs from
the given recipe.

benchmarks/cluster.py predicts the training time on a cluster.
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from slowfast_patches.utils import command_line


def new_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = command_line.command_parser(__doc__)
    add = partial(command_line.add_option, parser)
    command_line.add_cfg(parser)
    text = (
        "number of training videos (default: the number in the list, or DATA.NUM_TRAIN_VIDEOS if "
        "there is no list)"
    )
    add("--dataset-size", "N", text, command_line.at_least_one)
    command_line.add_json(parser)
    text = "file for a plot of the shapes and the learning rate over the iterations"
    add("--plot", "FILE.png", text, Path)
    text = "file for a picture of training clips of each shape, and of evaluation clips"
    add("--clips", "FILE.png", text, Path)
    text = (
        "instead of the plan, print the recipe with the shape and the learning rates of iteration "
        "N, which count from 0, as YAML"
    )
    add("--at", "N", text, int)
    command_line.add_step_times(parser)
    command_line.add_overrides(parser, "keys to set in the config")
    return parser


if __name__ == "__main__":
    command_line.start_program()
command_line.answer_help(new_parser)

from multigrid import Schedule
from slowfast_patches.config import check_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.recipe_cycles import changed_keys, learning_rate_of, recipe_at
from slowfast_patches.datasets.lists.dataset_lists import class_names, load_with_classes
from slowfast_patches.launch.launch import resolve
from slowfast_patches.plan.clips_picture import clips_figure
from slowfast_patches.plan.recipe_times import find_times
from slowfast_patches.plan.schedule_picture import plot_plan
from slowfast_patches.plan.training_plan import format_plan, plan_of
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.files import check_output
from slowfast_patches.utils.pictures import save_figure


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = new_parser()
    return parser.parse_intermixed_args(argv)


def show_plan(args: argparse.Namespace) -> str:
    """Return the plan as text or JSON. With --plot or --clips, also draw pictures."""
    check_output(args.plot, "--plot")
    check_output(args.clips, "--clips")
    recipe = resolve(load_with_classes(args.cfg, args.overrides))
    check_recipe(recipe)
    if recipe.data.path_to_data_dir:
        class_names(recipe)  # raises an error if the number of names is not MODEL.NUM_CLASSES
    plan = plan_of(
        recipe, args.dataset_size, find_times(recipe, args.step_seconds, args.step_times)
    )
    if args.at is not None:
        return config_at(recipe, plan.schedule, args.at)
    if args.plot:
        plot_plan(plan.schedule, learning_rate_of(recipe), args.plot)
    if args.clips:
        save_figure(clips_figure(recipe, plan.schedule), args.clips)
    return json.dumps(plan.to_json(), indent=2) if args.json else format_plan(plan)


def config_at(recipe: Recipe, schedule: Schedule, iteration: int) -> str:
    """Return the recipe at an iteration as YAML, with comments.

    Raises:
        UserError: The training has no such iteration.
    """
    if not 0 <= iteration < schedule.iterations:
        raise UserError(
            f"--at {iteration} must be from 0 to {schedule.iterations - 1}, the last iteration"
        )
    step = schedule.at(iteration)
    phase = f"phase {step.phase + 1} of {len(schedule.phases)}"
    here = (
        f"# Iteration {iteration} (epoch {step.epoch:.2f}, {phase}): {step.shape}, LR {step.lr:.6g}"
    )
    keys = changed_keys(recipe, schedule, iteration, None) or "nothing"
    text = recipe_at(recipe, schedule, iteration).text
    return f"{here}\n# Differs from the recipe in: {keys}\n{text.rstrip()}"


@command_line.tool
def main(argv: list[str] | None = None) -> int:
    """Print the plan, and return the exit status."""
    args = parse_args(argv)
    print(show_plan(args))
    if not args.json:
        for path in filter(None, [args.plot, args.clips]):
            print(f"\nPicture: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
