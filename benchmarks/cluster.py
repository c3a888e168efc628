r"""Estimate the training time of a recipe on a cluster.

    python benchmarks/cluster.py --cfg RECIPE.yaml --step-times steps.json --gpus 128 \
        --gpus-per-node 8 --network 12.5

The estimate includes computation, gradient exchange and data loading. The program also prints how
many clips per second the storage must deliver. All times are computed from a cost model, not
measured. docs/cluster.md explains the cost model and shows two examples.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from multigrid import Shape
from multigrid.cost import SecondsPerIteration
from slowfast_patches.config.check import check_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.recipe_cycles import check_world_size, without_multigrid
from slowfast_patches.config.scale import scale_rates
from slowfast_patches.datasets.lists.dataset_lists import load_with_classes
from slowfast_patches.launch.device import with_precision
from slowfast_patches.models.build_model import build_on_meta
from slowfast_patches.plan.flops import check_shapes
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.plan.recipe_times import find_times
from slowfast_patches.plan.training_plan import dataset_size
from slowfast_patches.utils import command_line
from slowfast_patches.utils.clock import format_duration
from slowfast_patches.utils.command_line import above_zero, at_least_one
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.tables import format_table

_BACKWARD = 2 / 3
"""Fraction of a step that the backward pass takes. It has two matrix products for each matrix
product of the forward pass."""
_BUCKET = 25 * 1024**2
"""Default size of DDP's gradient buckets in bytes."""
_BYTES_OF_MOMENTS = (2 * 8, 2 * 4)
"""Bytes per channel that a BN layer exchanges to share statistics: two float64 values in the
forward pass, and two float32 values in the backward pass."""

_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "training": ("", str),
    "batch": ("batch", "{:,}".format),
    "iterations": ("iterations", "{:,}".format),
    "seconds": ("time", format_duration),
    "efficiency": ("efficiency", "{:.1%}".format),
    "clips_per_second": ("clips/s", "{:,.0f}".format),
    "clips_per_second_and_node": ("clips/s of\na node", "{:,.0f}".format),
}
"""Maps the numbers that the table shows to their header and format."""


@dataclass(frozen=True)
class Cluster:
    """Cluster of equal nodes.

    Attributes:
        nodes: Number of nodes.
        gpus_of_node: Number of GPUs of each node.
        network: Bandwidth of a node's network in each direction, in bytes per second.
        node_network: Bandwidth between two GPUs of a node, in bytes per second.
        latency: Fixed time of a message in seconds, independent of its size.
    """

    nodes: int
    gpus_of_node: int
    network: float
    node_network: float
    latency: float

    def ring_seconds(self, size: float, members: int, *, in_node: bool) -> float:
        """Return the seconds of a ring all-reduce (Patarasuk and Yuan, 2009).

        Each of n members sends 2 (n − 1) messages of `size` / n bytes: n − 1 messages to sum the
        values, and n − 1 messages to distribute the sums.

        Args:
            size: Number of bytes to reduce.
            members: Number n of members of the ring: GPUs of a node, or nodes.
            in_node: Use the bandwidth between GPUs of a node instead of the network.
        """
        bandwidth = self.node_network if in_node else self.network
        return 2 * (members - 1) * (size / members / bandwidth + self.latency)

    def exposed_seconds(self, size: float, compute: float) -> float:
        """Return the seconds of the gradient all-reduce that do not overlap with the backward pass.

        Each bucket is reduced first inside and then between nodes. All buckets but the last are
        reduced during the backward pass. The last bucket has the gradients of the first layers,
        which are only complete when the backward pass ends.

        Args:
            size: Number of bytes of all gradients.
            compute: Seconds of the forward and backward pass.
        """
        buckets = math.ceil(size / _BUCKET)
        inside = self.ring_seconds(size / buckets, self.gpus_of_node, in_node=True)
        seconds = inside + self.ring_seconds(size / buckets, self.nodes, in_node=False)
        return max(seconds, buckets * seconds - _BACKWARD * compute)

    def shared_bn_seconds(self, channels: Sequence[int], ranks: int) -> float:
        """Return the seconds that BN layers take to share statistics between GPUs.

        Args:
            channels: Number of channels of each BN layer.
            ranks: Number of GPUs that share statistics.
        """
        in_node = self.gpus_of_node % ranks == 0
        sizes = [number * size for number in channels for size in _BYTES_OF_MOMENTS]
        return sum(self.ring_seconds(size, ranks, in_node=in_node) for size in sizes)


def on_cluster(recipe: Recipe, nodes: int, gpus_of_node: int) -> Recipe:
    """Scale a recipe to a cluster. Each GPU keeps the same number of clips.

    Raises:
        ValueError: The recipe has stages, or its GPUs have different numbers of clips.
    """
    if recipe.multigrid.stages:
        raise UserError(
            "MULTIGRID.STAGES has batch sizes for one number of GPUs, which this program cannot "
            "scale to a cluster. Give a recipe with cycles."
        )
    if recipe.base_shape.batch % recipe.world_size:
        raise UserError(
            f"The {recipe.base_shape.batch} clips of a mini-batch cannot be divided among "
            f"{recipe.world_size} GPUs. Set another TRAIN.BATCH_SIZE or NUM_GPUS."
        )
    clips = recipe.base_shape.batch // recipe.world_size
    changes: dict[str, object] = {
        "NUM_SHARDS": nodes,
        "SHARD_ID": 0,
        "TRAIN.BATCH_SIZE": clips * gpus_of_node,
        "SOLVER.REFERENCE_BATCH_SIZE": recipe.base_shape.batch,
        "NUM_GPUS": gpus_of_node if recipe.num_gpus else 0,
        "PROCESSES_PER_MACHINE": gpus_of_node,
    }
    return scale_rates(recipe.replaced(changes))


def estimate(
    recipe: Recipe,
    cluster: Cluster,
    num_videos: int,
    seconds: SecondsPerIteration,
    loader: float,
) -> dict[str, Any]:
    """Estimate the training time of a recipe on a cluster.

    Because loaders read ahead, a phase waits for clips only if reading takes longer than training.

    Args:
        recipe: The recipe, scaled to the cluster.
        cluster: The cluster.
        num_videos: Number of training videos.
        seconds: Function from the shape of one GPU's mini-batch to the seconds per iteration.
        loader: Number of clips that a node reads per second.

    Returns:
        Numbers by name: "batch" and "iterations"; the total "seconds"; the seconds of "compute",
        "all_reduce", "shared_bn" and "waiting"; "efficiency", the share of "compute"; and
        "clips_per_second", which all nodes together must read in the phase that reads fastest.

    Raises:
        ValueError: The recipe cannot be trained on the cluster.
    """
    check_recipe(recipe)
    schedule = schedule_of(recipe, num_videos)
    check_shapes(recipe, schedule.shapes)
    check_world_size(recipe, schedule)
    model = build_on_meta(recipe)
    gradients = sum(parameter.nbytes for parameter in model.parameters())
    norms = [m.num_features for m in model.modules() if isinstance(m, nn.BatchNorm3d)]
    parts = dict.fromkeys(("compute", "all_reduce", "shared_bn", "waiting"), 0.0)
    demand = 0.0
    for phase in schedule.phases:
        before = sum(parts.values())
        for j, (shape, bn_group_size) in enumerate(
            zip(phase.shapes, phase.bn_group_sizes, strict=True)
        ):
            clips = shape.batch // recipe.world_size
            count = phase.count(j)
            step = seconds(Shape(clips, shape.frames, shape.crop))
            ranks = max(1, (bn_group_size or 1) // clips)
            parts["compute"] += count * step
            parts["all_reduce"] += count * cluster.exposed_seconds(gradients, step)
            parts["shared_bn"] += count * cluster.shared_bn_seconds(norms, ranks)
        busy = sum(parts.values()) - before
        demand = max(demand, phase.clips / busy)
        parts["waiting"] += max(0.0, phase.clips / cluster.nodes / loader - busy)
    total = sum(parts.values())
    return {
        "batch": schedule.base.batch,
        "iterations": schedule.iterations,
        "seconds": total,
        **parts,
        "efficiency": parts["compute"] / total,
        "clips_per_second": demand,
        "clips_per_second_and_node": demand / cluster.nodes,
    }


def format_estimates(rows: Sequence[Mapping[str, Any]], source: str | None) -> str:
    """Return a table with a row for each training, and notes."""
    headers, shows = zip(*_COLUMNS.values(), strict=True)
    cells = [[show(row[name]) for name, show in zip(_COLUMNS, shows, strict=True)] for row in rows]
    return "\n\n".join(
        [
            format_table(headers, cells),
            f"Speed-up: {rows[-1]['seconds'] / rows[0]['seconds']:.2f}×. Source of the step times: "
            f"{source}.",
            "Efficiency is the share of compute. Clips/s must be read in the phase that reads "
            "fastest. Evaluation, checkpoints, start-up and waiting for the slowest GPU are not "
            "included. The times promise no accuracy for batch sizes that nobody has trained yet.",
        ]
    )


def bandwidth(text: str) -> float:
    """Convert to a number above 0, or inf for a network that takes no time."""
    return math.inf if text == "inf" else above_zero(text)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = command_line.command_parser(__doc__)
    add = partial(command_line.add_option, parser)
    command_line.add_cfg(parser)
    add("--dataset-size", "N", "number of training videos (default: the number in the list)", int)
    command_line.add_json(parser)
    command_line.add_step_times(parser, required=True)
    add("--gpus", "N", "total number of GPUs", at_least_one, required=True)
    add("--gpus-per-node", "M", "number of GPUs per node", at_least_one, required=True)
    text = (
        "network bandwidth of a node in each direction, where 10 Gb/s are 1.25 GB/s, or inf for "
        "no limit"
    )
    add("--network", "GB/s", text, bandwidth, required=True)
    text = "bandwidth between two GPUs of the same node (default: no limit)"
    add("--node-network", "GB/s", text, bandwidth, math.inf)
    add("--latency", "US", "latency of a message in µs (default: %(default)g)", float, 20.0)
    text = "clips that a node can load per second (default: loading takes no time)"
    add("--loader", "CLIPS/s", text, bandwidth, math.inf)
    command_line.add_overrides(parser, "keys to set in the config")
    args = parser.parse_intermixed_args(argv)
    if args.gpus % args.gpus_per_node:
        parser.error("--gpus must be a multiple of --gpus-per-node")
    return args


@command_line.tool
def main(argv: Sequence[str] | None = None) -> int:
    """Print the estimates with and without multigrid, and return the exit status."""
    args = parse_args(argv)
    recipe = with_precision(load_with_classes(args.cfg, args.overrides), on_gpu=True)
    places = (args.gpus // args.gpus_per_node, args.gpus_per_node)
    cluster = Cluster(
        *places,
        network=1e9 * args.network,
        node_network=1e9 * args.node_network,
        latency=1e-6 * args.latency,
    )
    times = find_times(on_cluster(recipe, 1, 1), args.step_seconds, args.step_times)
    trainings = {"multigrid": (recipe, times.ours)} if recipe.uses_multigrid else {}
    trainings["baseline"] = (without_multigrid(recipe), times.baseline)
    videos = dataset_size(recipe, args.dataset_size)
    rows = list[dict[str, Any]]()
    for name, (each, seconds) in trainings.items():
        assert seconds is not None, "--step-times or --step-seconds is required."
        fitted = on_cluster(each, *places)
        rows.append({"training": name, **estimate(fitted, cluster, videos, seconds, args.loader)})
    print(json.dumps(rows, indent=2) if args.json else format_estimates(rows, times.source))
    return 0


if __name__ == "__main__":
    sys.exit(main())
