"""Print what a config will train, phase by phase, and what it costs beside its baseline.

No data and no GPU is needed. Example:

    multigrid-plan --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml \\
        --dataset-size 240436 --plot plan.png MULTIGRID.EPOCH_FACTOR 1.0

What benchmarks/step_time.py measured turns it into times and a wall-clock speed-up:

    python benchmarks/step_time.py --cfg RECIPE.yaml --output steps.json
    multigrid-plan --cfg RECIPE.yaml --step-times steps.json

With --gpus it predicts the time on a cluster, for 1 to 2,048 GPUs: computing, exchanging gradients,
waiting for clips, and how many of them the storage must give (docs/cluster.md):

    multigrid-plan --cfg RECIPE.yaml --step-times steps.json --gpus 128 --gpus-per-node 8 \\
        --network 12.5 --node-network 100 --loader 3000
    multigrid-plan --cfg RECIPE.yaml --step-times steps.json --gpus 1536 --machine summit
"""

import argparse
import json
import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from slowfast_patches.utils import command_line

if __name__ == "__main__":
    command_line.ends_early()

from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import learning_rate_of
from slowfast_patches.datasets.lists.dataset_lists import class_names
from slowfast_patches.launch.device import with_precision
from slowfast_patches.launch.launch import for_processes, processes_of
from slowfast_patches.models.flops import flops_per_clip
from slowfast_patches.plan.cluster import (
    LATENCY,
    MACHINES,
    Cluster,
    format_cluster_plan,
    plan_on_cluster,
)
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

_FILE = "of benchmarks/step_time.py; of several, the first that has the recipe's shapes"
_STEP = "of one iteration at the baseline's shape; the others by their FLOPs"
_SPEED = {"--step-times": ([Path], "FILE", _FILE), "--step-seconds": (float, "S", _STEP)}
_SIZE = "training videos (default: the length of the list, else DATA.NUM_TRAIN_VIDEOS)"
_OPTIONS = {
    "--dataset-size": (int, "N", _SIZE),
    "--json": (bool, "print JSON, and nothing else"),
    "--plot": (Path, "FILE.png", "draw shapes and LR over the iterations"),
}
_CLUSTER = {
    "--gpus": (int, "N", "in all"),
    "--gpus-per-node": (int, "M", "on each node"),
    "--network": (float, "GB/s", "of a node, in each direction; 10 Gb/s are 1.25 (inf: no limit)"),
    "--node-network": (float, "GB/s", "from GPU to GPU in a node (default: no limit)"),
    "--latency": (float, "US", f"microseconds of a message besides its bytes ({1e6 * LATENCY:g})"),
    "--loader": (float, "CLIPS/s", "what a node reads (default: reading is left out)"),
}
_UNITS = {"gpus": 1, "gpus_per_node": 1, "network": 1e9, "node_network": 1e9, "latency": 1e-6}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = command_line.command_parser(__doc__)
    parser.add_argument("--cfg", type=Path, required=True, metavar="FILE", help="the config file")
    command_line.add_options(parser.add_mutually_exclusive_group(), _SPEED)
    command_line.add_options(parser, _OPTIONS)
    group = parser.add_argument_group(
        "on a cluster",
        "--gpus takes the times of iterations, and --machine or --gpus-per-node and --network",
    )
    command_line.add_options(group, _CLUSTER)
    machines = "; ".join(f"{name}: {preset.what}" for name, preset in MACHINES.items())
    text = f"a published one for the numbers above; those that are given win. {machines}"
    group.add_argument("--machine", choices=MACHINES, help=text)
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY VALUE", help="config keys to set"
    )
    return parser.parse_intermixed_args(argv)


def find_cluster(args: argparse.Namespace) -> Cluster | None:
    """The cluster that the command line describes, None where it does not.

    Raises:
        ValueError: options that are missing, that go nowhere, or that are out of range.
    """
    values = {name: getattr(args, name) for name in _UNITS}
    given = {name: _UNITS[name] * value for name, value in values.items() if value is not None}
    if args.gpus is None:
        for name in [*given, *(name for name in ("machine", "loader") if getattr(args, name))]:
            raise ValueError(
                f"{command_line.option_of(name)} describes a cluster: give --gpus N, too"
            )
        return None
    if not args.step_times and args.step_seconds is None:
        raise ValueError(
            "--gpus needs the times of iterations: --step-times FILE of benchmarks/step_time.py, "
            "or --step-seconds S"
        )
    if args.plot:
        raise ValueError("--plot draws the plan without --gpus: leave one of them out")
    if args.machine is not None:
        return replace(MACHINES[args.machine].node, **given)
    if not {"gpus_per_node", "network"} <= given.keys():
        machines = " or ".join(MACHINES)
        raise ValueError(
            f"--gpus needs --gpus-per-node and --network, too, or --machine {machines}"
        )
    return Cluster(**given)


def show_plan(args: argparse.Namespace) -> str:
    """The text that the command line asks for; the picture is drawn on the way."""
    if args.plot and not args.plot.parent.is_dir():
        raise ValueError(f"--plot {args.plot}: there is no folder {args.plot.parent}")
    cluster = find_cluster(args)
    recipe = load_recipe(args.cfg, args.overrides)
    timing = partial(find_timing, args=args)
    if cluster is not None:
        recipe = with_precision(recipe, on_gpu=True)
        videos = dataset_size(recipe, args.dataset_size)
        on_gpus = plan_on_cluster(
            recipe, cluster, videos, timing, loader=args.loader, machine=args.machine
        )
        return (
            json.dumps(on_gpus.to_json(), indent=2) if args.json else format_cluster_plan(on_gpus)
        )
    recipe = for_processes(recipe)
    check_recipe(recipe, processes_of(recipe))
    if recipe.data.path_to_data_dir:
        class_names(recipe)  # raises where their number is not MODEL.NUM_CLASSES
    plan = plan_of(recipe, args.dataset_size, timing(recipe))
    if args.plot:
        plot_plan(plan.schedule, learning_rate_of(recipe), args.plot)
    return json.dumps(plan.to_json(), indent=2) if args.json else format_plan(plan)


def find_timing(recipe: Recipe, args: argparse.Namespace) -> Timing:
    """How long iterations take, where the command line says it."""
    if args.step_seconds is not None:
        return estimated_timing(recipe, args.step_seconds, flops_per_clip(recipe))
    if args.step_times:
        return measured_timing([read_step_times(path) for path in args.step_times], recipe)
    return UNTIMED


@command_line.tool()
def main(argv: list[str] | None = None) -> int:
    """Print the plan, or say in one line why there is none; returns the exit status."""
    args = parse_args(argv)
    try:
        print(show_plan(args))
    except MisfitError as error:
        recipe = shlex.join(["--cfg", str(args.cfg), "--output", "FILE.json", *args.overrides])
        raise ValueError(
            f"{error}; to measure it: python benchmarks/step_time.py {recipe}"
        ) from error
    if args.plot and not args.json:
        print(f"\nPicture: {args.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
