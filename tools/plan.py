r"""Print the phases of a training schedule, and its cost compared with the baseline.

The command needs neither data nor a GPU, except that --clips needs data. Example:

    multigrid-plan --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml \
        --dataset-size 200000 --plot plan.png MULTIGRID.EPOCH_FACTOR 1.0

If the time of an iteration is given, the command also predicts the training time and the speed-up.
Give the seconds per iteration at the baseline's shape, or a result file of benchmarks/step_time.py
with the times at all shapes (docs/performance.md):

    multigrid-plan --cfg RECIPE.yaml --step-seconds 0.4
    multigrid-plan --cfg RECIPE.yaml --step-times steps.json

With --gpus, the command predicts the training time on clusters of 1 to 2,048 GPUs. The prediction
includes computation, gradient exchange and data loading. The command also prints how many clips per
second the storage must deliver (docs/cluster.md):

    multigrid-plan --cfg RECIPE.yaml --step-times steps.json --gpus 128 --gpus-per-node 8 \
        --network 12.5 --node-network 100 --loader 3000
"""

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from slowfast_patches.utils import command_line
from slowfast_patches.utils.command_line import above_zero, at_least_one, from_zero

if __name__ == "__main__":
    command_line.start_program()

from slowfast_patches.config import check_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import learning_rate_of
from slowfast_patches.datasets.lists.dataset_lists import class_names, load_with_classes
from slowfast_patches.launch.device import with_precision
from slowfast_patches.launch.launch import resolve
from slowfast_patches.plan.clips import clips_figure
from slowfast_patches.plan.cluster import (
    LATENCY,
    Cluster,
    format_cluster_plan,
    plan_on_cluster,
)
from slowfast_patches.plan.flops import flops_per_clip
from slowfast_patches.plan.picture import plot_plan
from slowfast_patches.plan.plan import dataset_size, format_plan, plan_of
from slowfast_patches.plan.step_times import MisfitError, Timing, estimated_timing
from slowfast_patches.study.arms import measured_times
from slowfast_patches.utils.pictures import check_format, save_figure

_UNITS = {"gpus": 1, "gpus_per_node": 1, "network": 1e9, "node_network": 1e9, "latency": 1e-6}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = command_line.command_parser(__doc__)
    add = partial(command_line.add_option, parser)
    command_line.add_cfg(parser)
    text = (
        "number of training videos (default: the number in the list, or DATA.NUM_TRAIN_VIDEOS if "
        "there is no list)"
    )
    add("--dataset-size", "N", text, int)
    command_line.add_json(parser)
    text = "file for a plot of the shapes and the learning rate over the iterations"
    add("--plot", "FILE.png", text, Path)
    text = "file for a picture of training clips of each shape, and of evaluation clips"
    add("--clips", "FILE.png", text, Path)
    speed = parser.add_mutually_exclusive_group()
    text = (
        "result file of benchmarks/step_time.py with the times at all shapes; if this option is "
        "repeated, the first file that fits the recipe is used"
    )
    command_line.add_list(speed, "--step-times", text)
    text = (
        "seconds per iteration at the baseline's shape; times at other shapes are estimated from "
        "their FLOPs"
    )
    command_line.add_option(speed, "--step-seconds", "S", text, above_zero)
    text = "--gpus requires --gpus-per-node, --network, and --step-times or --step-seconds."
    add = partial(command_line.add_option, parser.add_argument_group("on a cluster", text))
    add("--gpus", "N", "total number of GPUs", at_least_one)
    add("--gpus-per-node", "M", "number of GPUs per node", at_least_one)
    text = (
        "network bandwidth of a node in each direction, where 10 Gb/s are 1.25 GB/s, or inf for "
        "no limit"
    )
    add("--network", "GB/s", text, above_zero)
    text = "bandwidth between two GPUs of the same node (default: no limit)"
    add("--node-network", "GB/s", text, above_zero)
    add("--latency", "US", f"latency of a message in µs (default: {1e6 * LATENCY:g})", from_zero)
    text = "clips that a node can load per second (default: loading takes no time)"
    add("--loader", "CLIPS/s", text, above_zero)
    command_line.add_overrides(parser, "keys to set in the config")
    args = parser.parse_intermixed_args(argv)
    if args.gpus is None and any(getattr(args, name) is not None for name in (*_UNITS, "loader")):
        parser.error("the options of a cluster require --gpus N")
    if args.gpus and not (args.step_times or args.step_seconds):
        parser.error("--gpus requires --step-seconds S or --step-times FILE")
    if args.gpus and not (args.gpus_per_node and args.network):
        parser.error("--gpus requires --gpus-per-node and --network")
    if args.gpus and (args.plot or args.clips):
        parser.error("--plot and --clips cannot be combined with --gpus")
    return args


def cluster_of(args: argparse.Namespace) -> Cluster:
    """Return the `Cluster` that the options describe."""
    values = {name: getattr(args, name) for name in _UNITS}
    given = {name: _UNITS[name] * value for name, value in values.items() if value is not None}
    return Cluster(**given)


def show_plan(args: argparse.Namespace) -> str:
    """Return the plan as text or JSON. With --plot or --clips, also draw pictures."""
    for option, path in pictures(args).items():
        if not path.parent.is_dir():
            raise ValueError(
                f"{option} {path}: the folder {path.parent} does not exist. Create it first."
            )
        check_format(path)
    recipe = load_with_classes(args.cfg, args.overrides)
    if args.gpus is not None:
        recipe = with_precision(recipe, on_gpu=True)
        on_gpus = plan_on_cluster(
            recipe,
            cluster_of(args),
            dataset_size(recipe, args.dataset_size),
            partial(find_timing, args=args),
            args.loader,
        )
        return json.dumps(on_gpus, indent=2) if args.json else format_cluster_plan(on_gpus)
    recipe = resolve(recipe)
    check_recipe(recipe)
    if recipe.data.path_to_data_dir:
        class_names(recipe)  # raises an error if the number of names is not MODEL.NUM_CLASSES
    plan = plan_of(recipe, args.dataset_size, find_timing(recipe, args))
    if args.plot:
        plot_plan(plan.schedule, learning_rate_of(recipe), args.plot)
    if args.clips:
        save_figure(clips_figure(recipe, plan.schedule), args.clips)
    return json.dumps(plan.to_json(), indent=2) if args.json else format_plan(plan)


def pictures(args: argparse.Namespace) -> dict[str, Path]:
    """Return the files of the pictures to write, by option."""
    paths = {"--plot": args.plot, "--clips": args.clips}
    return {option: path for option, path in paths.items() if path is not None}


def find_timing(recipe: Recipe, args: argparse.Namespace) -> Timing:
    """Return the step times from --step-seconds or --step-times, or `UNTIMED` without options."""
    if args.step_seconds is not None:
        return estimated_timing(recipe, args.step_seconds, flops_per_clip(recipe))
    try:
        return measured_times(args.step_times)(recipe, flops_per_clip(recipe))
    except MisfitError as error:
        raise ValueError(
            f"{error}. Measure the step times of this recipe (docs/performance.md), or estimate "
            "them with --step-seconds S."
        ) from error


@command_line.tool()
def main(argv: list[str] | None = None) -> int:
    """Print the plan, and return the exit status."""
    args = parse_args(argv)
    print(show_plan(args))
    if not args.json:
        for path in pictures(args).values():
            print(f"\nPicture: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
