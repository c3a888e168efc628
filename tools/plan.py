r"""Print the phases of a training, and its cost beside that of the baseline.

Neither data nor a GPU is needed. Example:

    multigrid-plan --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml \
        --dataset-size 240436 --plot plan.png MULTIGRID.EPOCH_FACTOR 1.0

With the seconds of an iteration, it predicts the training time and the speed-up. Give the seconds
at the baseline's shape, or a file of benchmarks/step_time.py for all shapes (docs/performance.md):

    multigrid-plan --cfg RECIPE.yaml --step-seconds 0.4
    multigrid-plan --cfg RECIPE.yaml --step-times steps.json

With --gpus, it predicts the training time on clusters of 1 to 2,048 GPUs from computation, gradient
exchange and data loading, and the clips per second that the storage must deliver (docs/cluster.md):

    multigrid-plan --cfg RECIPE.yaml --step-times steps.json --gpus 128 --gpus-per-node 8 \
        --network 12.5 --node-network 100 --loader 3000
    multigrid-plan --cfg RECIPE.yaml --step-times steps.json --gpus 1536 --machine summit
"""

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from slowfast_patches.utils import command_line

if __name__ == "__main__":
    command_line.ends_early()

from slowfast_patches.config import check_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import learning_rate_of
from slowfast_patches.datasets.lists.dataset_lists import class_names, load_with_classes
from slowfast_patches.launch.device import with_precision
from slowfast_patches.launch.launch import resolve
from slowfast_patches.plan.cluster import (
    LATENCY,
    MACHINES,
    Cluster,
    format_cluster_plan,
    plan_on_cluster,
)
from slowfast_patches.plan.flops import flops_per_clip
from slowfast_patches.plan.picture import plot_plan
from slowfast_patches.plan.plan import dataset_size, format_plan, plan_of
from slowfast_patches.plan.step_times import (
    UNTIMED,
    MisfitError,
    Timing,
    estimated_timing,
    measured_timing,
    read_step_times,
)

_UNITS = {"gpus": 1, "gpus_per_node": 1, "network": 1e9, "node_network": 1e9, "latency": 1e-6}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = command_line.command_parser(__doc__)
    above_zero = command_line.above_zero
    parser.add_argument("--cfg", type=Path, required=True, metavar="FILE", help="the config file")
    text = "number of training videos (default: the length of the list, or DATA.NUM_TRAIN_VIDEOS)"
    parser.add_argument("--dataset-size", type=int, metavar="N", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON only")
    text = "draw shapes and learning rate over the iterations"
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help=text)
    speed = parser.add_mutually_exclusive_group()
    text = "file of step times at every shape; of several files, the first that fits is used"
    speed.add_argument(
        "--step-times", type=Path, action="append", default=[], metavar="FILE", help=text
    )
    text = "seconds of an iteration at the baseline's shape; other shapes are estimated by FLOPs"
    speed.add_argument("--step-seconds", type=above_zero, metavar="S", help=text)
    text = "--gpus needs step times, and either --machine or both --gpus-per-node and --network."
    cluster = parser.add_argument_group("on a cluster", text)
    cluster.add_argument("--gpus", type=command_line.at_least_one, metavar="N", help="GPUs in all")
    text = "GPUs on each node"
    cluster.add_argument("--gpus-per-node", type=command_line.at_least_one, metavar="M", help=text)
    text = "bandwidth of a node in each direction; 10 Gb/s are 1.25 GB/s (inf: no limit)"
    cluster.add_argument("--network", type=above_zero, metavar="GB/s", help=text)
    text = "bandwidth between two GPUs of a node (default: no limit)"
    cluster.add_argument("--node-network", type=above_zero, metavar="GB/s", help=text)
    text = f"latency of a message in microseconds (default: {1e6 * LATENCY:g})"
    cluster.add_argument("--latency", type=float, metavar="US", help=text)
    text = "clips that a node reads per second (default: reading is left out)"
    cluster.add_argument("--loader", type=above_zero, metavar="CLIPS/s", help=text)
    names = "; ".join(f"{name}: {about}" for name, (_, about) in MACHINES.items())
    text = f"published machine for the numbers that are not given above. {names}"
    cluster.add_argument("--machine", choices=MACHINES, help=text)
    text = "keys to set in the config"
    command_line.add_overrides(parser, text)
    args = parser.parse_intermixed_args(argv)
    on_cluster = [*_UNITS, "loader", "machine"]
    if args.gpus is None and any(getattr(args, name) is not None for name in on_cluster):
        parser.error("the options of a cluster need --gpus N, too")
    if args.gpus is not None and not (args.step_times or args.step_seconds):
        parser.error("--gpus needs --step-seconds S or --step-times FILE")
    if args.gpus is not None and args.plot:
        parser.error("--plot cannot be combined with --gpus")
    if args.gpus and not (args.machine or (args.gpus_per_node and args.network)):
        parser.error("--gpus needs --machine, or --gpus-per-node and --network")
    return args


def cluster_of(args: argparse.Namespace) -> Cluster:
    """Return the cluster that the command line describes."""
    values = {name: getattr(args, name) for name in _UNITS}
    given = {name: _UNITS[name] * value for name, value in values.items() if value is not None}
    return replace(MACHINES[args.machine][0], **given) if args.machine else Cluster(**given)


def show_plan(args: argparse.Namespace) -> str:
    """Draw the picture if it is asked for, and return the plan as text or JSON."""
    if args.plot and not args.plot.parent.is_dir():
        raise ValueError(
            f"--plot {args.plot}: there is no folder {args.plot.parent}. Make it first."
        )
    recipe = load_with_classes(args.cfg, args.overrides)
    if args.gpus is not None:
        recipe = with_precision(recipe, on_gpu=True)
        on_gpus = plan_on_cluster(
            recipe,
            cluster_of(args),
            dataset_size(recipe, args.dataset_size),
            partial(find_timing, args=args),
            loader=args.loader,
            machine=args.machine,
        )
        return json.dumps(on_gpus, indent=2) if args.json else format_cluster_plan(on_gpus)
    recipe = resolve(recipe)
    check_recipe(recipe)
    if recipe.data.path_to_data_dir:
        class_names(recipe)  # raises an error if their number is not MODEL.NUM_CLASSES
    plan = plan_of(recipe, args.dataset_size, find_timing(recipe, args))
    if args.plot:
        plot_plan(plan.schedule, learning_rate_of(recipe), args.plot)
    return json.dumps(plan.to_json(), indent=2) if args.json else format_plan(plan)


def find_timing(recipe: Recipe, args: argparse.Namespace) -> Timing:
    """Return the step times that the options give, or `UNTIMED`."""
    if args.step_seconds is not None:
        return estimated_timing(recipe, args.step_seconds, flops_per_clip(recipe))
    if not args.step_times:
        return UNTIMED
    try:
        return measured_timing([read_step_times(path) for path in args.step_times], recipe)
    except MisfitError as error:
        raise ValueError(
            f"{error}. Measure this recipe (docs/performance.md), or estimate its times by "
            "--step-seconds S."
        ) from error


@command_line.tool()
def main(argv: list[str] | None = None) -> int:
    """Print the plan, and return the exit status."""
    args = parse_args(argv)
    print(show_plan(args))
    if args.plot and not args.json:
        print(f"\nPicture: {args.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
