r"""Predict the training time of a recipe on clusters of 1 to 2,048 GPUs.

    python benchmarks/cluster.py --cfg RECIPE.yaml --step-times steps.json --gpus 128 \
        --gpus-per-node 8 --network 12.5

The prediction includes computation, gradient exchange and data loading. The program also prints how
many clips per second the storage must deliver. All times are computed from a cost model, not
measured. docs/cluster.md explains the cost model and shows two examples.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from torch import nn

from multigrid import Schedule, Shape
from multigrid.cost import SecondsPerIteration, final_iterations, short_ends
from slowfast_patches.config.check import check_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import scale_to_world_size
from slowfast_patches.config.schedule import check_world_size, without_multigrid
from slowfast_patches.datasets.lists.dataset_lists import load_with_classes
from slowfast_patches.launch.device import with_precision
from slowfast_patches.models.build import build_on_meta
from slowfast_patches.plan.flops import check_shapes
from slowfast_patches.plan.plan import dataset_size
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.plan.step_times import Timing, find_timing
from slowfast_patches.utils import command_line
from slowfast_patches.utils.command_line import above_zero, at_least_one, from_zero
from slowfast_patches.utils.tables import format_duration, format_table

LATENCY = 20e-6
"""Default latency of a message in seconds. This value is an assumption, not a measurement."""
_BACKWARD = 2 / 3
"""Fraction of a step that the backward pass takes. It has two matrix products for each matrix
product of the forward pass."""
_BUCKET = 25 * 1024**2
"""Default size of DDP's gradient buckets in bytes."""
_BYTES_OF_MOMENTS = (2 * 8, 2 * 4)
"""Bytes per channel that a BN layer exchanges to share statistics: two float64 values in the
forward pass, and two float32 values in the backward pass."""
_MOST_GPUS = 2048


@dataclass(frozen=True)
class Cluster:
    """Cluster of equal nodes. All GPUs of each node are used, or some GPUs of a single node.

    Attributes:
        gpus: Total number of GPUs.
        gpus_per_node: Number of GPUs that each node has.
        network: Bandwidth of a node's network in each direction, in bytes per second.
        node_network: Bandwidth between two GPUs of a node, in bytes per second.
        latency: Fixed time of a message in seconds, independent of its size.
    """

    gpus: int
    gpus_per_node: int
    network: float
    node_network: float = math.inf
    latency: float = LATENCY

    def __post_init__(self) -> None:
        fewer = self.gpus // self.gpus_per_node * self.gpus_per_node
        if fewer not in (0, self.gpus):
            raise ValueError(
                f"{self.gpus} GPUs do not fill nodes of {self.gpus_per_node}. Use {fewer} or "
                f"{fewer + self.gpus_per_node} GPUs."
            )

    @property
    def nodes(self) -> int:
        return max(1, self.gpus // self.gpus_per_node)

    @property
    def gpus_of_node(self) -> int:
        """Number of GPUs that the training uses on each node."""
        return min(self.gpus, self.gpus_per_node)

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

    def all_reduce_seconds(self, size: float) -> float:
        """Return the seconds to all-reduce `size` bytes, first inside and then between nodes."""
        inside = self.ring_seconds(size, self.gpus_of_node, in_node=True)
        return inside + self.ring_seconds(size, self.nodes, in_node=False)

    def exposed_seconds(self, size: float, compute: float) -> float:
        """Return the seconds of the gradient all-reduce that do not overlap with the backward pass.

        All buckets but the last are reduced during the backward pass. The last bucket has the
        gradients of the first layers, which are only complete when the backward pass ends.

        Args:
            size: Number of bytes of all gradients.
            compute: Seconds of the forward and backward pass.
        """
        buckets = math.ceil(size / _BUCKET)
        seconds = self.all_reduce_seconds(size / buckets)
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


def plan_on_cluster(
    recipe: Recipe,
    cluster: Cluster,
    num_videos: int,
    timing_of: Callable[[Recipe], Timing],
    loader: float | None,
) -> dict[str, Any]:
    """Predict the training times of a recipe on a cluster and on smaller and larger clusters.

    Args:
        recipe: The recipe.
        cluster: The cluster. The other clusters have the same kind of nodes.
        num_videos: Number of training videos.
        timing_of: Function that returns the step times of a recipe for one GPU.
        loader: Number of clips that a node reads per second. None ignores the reading time.

    Returns:
        Plain data for `format_cluster_plan`.

    Raises:
        ValueError: The recipe cannot be trained on `cluster`.
    """
    fitted = on_cluster(recipe, cluster)
    check_recipe(fitted)
    check_shapes(fitted, schedule_of(fitted, num_videos).shapes)
    timing = timing_of(on_cluster(recipe, replace(cluster, gpus=1)))
    model = build_on_meta(fitted)
    rows = list[dict[str, Any]]()
    refused = dict[int, str]()
    for gpus in gpu_counts(cluster.gpus_per_node, cluster.gpus):
        at = replace(cluster, gpus=gpus)
        try:
            rows.append(_row(on_cluster(recipe, at), at, num_videos, model, timing, loader))
        except ValueError as error:
            if gpus == cluster.gpus:
                raise
            refused[gpus] = str(error)
    return {
        "cluster": {k: None if v == math.inf else v for k, v in asdict(cluster).items()},
        "loader": loader,
        "reference_gpus": max(1, recipe.num_gpus) * recipe.num_shards,
        "gradient_bytes": _gradient_bytes(model),
        "seconds_source": timing.source,
        "rows": rows,
        "refused": refused,
    }


def gpu_counts(gpus_per_node: int, also: int) -> list[int]:
    """Return the numbers of GPUs to plan for, in ascending order.

    These are powers of two inside one node, powers of two of whole nodes up to 2,048 GPUs, the
    largest number of whole nodes, and `also`.
    """
    nodes = _MOST_GPUS // gpus_per_node
    powers = [2**i for i in range(_MOST_GPUS.bit_length())]
    counts = [n for n in powers if n < gpus_per_node]
    counts += [n * gpus_per_node for n in [*powers, nodes] if 0 < n <= nodes]
    return sorted({*counts, also})


def on_cluster(recipe: Recipe, cluster: Cluster) -> Recipe:
    """Scale a recipe to a cluster. Each GPU keeps the same number of clips."""
    changes: dict[str, object] = {
        "NUM_SHARDS": cluster.nodes,
        "SHARD_ID": 0,
        "SOLVER.REFERENCE_WORLD_SIZE": max(1, recipe.num_gpus),
        "NUM_GPUS": cluster.gpus_of_node if recipe.num_gpus else 0,
        "PROCESSES_PER_MACHINE": cluster.gpus_of_node,
    }
    return scale_to_world_size(recipe.replaced(changes))


def _gradient_bytes(model: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in model.parameters())


def _row(
    fitted: Recipe,
    cluster: Cluster,
    num_videos: int,
    model: nn.Module,
    timing: Timing,
    loader: float | None,
) -> dict[str, Any]:
    """Return the predicted training times on one cluster, with and without multigrid."""
    trainings = {"multigrid": (fitted, timing.ours)} if fitted.uses_multigrid else {}
    trainings["baseline"] = (without_multigrid(fitted), timing.baseline)
    times = dict[str, dict[str, float]]()
    for name, (recipe, seconds) in trainings.items():
        assert seconds is not None, "a plan for a cluster needs step times"
        schedule = schedule_of(recipe, num_videos)
        check_world_size(recipe, schedule)
        times[name] = _training_time(schedule, cluster, model, seconds, loader)
    schedule = schedule_of(fitted, num_videos)
    batch = schedule.base.batch
    ends = f"ends with {final_iterations(schedule)} iterations at its shape"
    notes = {ends: short_ends(schedule), f"BN over {batch} clips": fitted.bn_size > batch}
    return {
        "gpus": cluster.gpus,
        "nodes": cluster.nodes,
        "batch": batch,
        "trainings": times,
        "speed_up": times["baseline"]["seconds"] / next(iter(times.values()))["seconds"],
        "clips_per_second": max(time["clips_per_second"] for time in times.values()),
        "notes": [note for note, applies in notes.items() if applies],
    }


def _training_time(
    schedule: Schedule,
    cluster: Cluster,
    model: nn.Module,
    seconds: SecondsPerIteration,
    loader: float | None,
) -> dict[str, float]:
    """Return the seconds of a training, in total and by cause, and the reading speed that it needs.

    Because loaders read ahead, a phase waits for clips only if reading takes longer than training.

    Returns:
        Numbers by name: "iterations"; the total "seconds"; the seconds of "compute", "all_reduce",
        "shared_bn" and "waiting"; and "clips_per_second", which all nodes together must read in the
        phase that reads fastest.
    """
    gradients = _gradient_bytes(model)
    norms = [m.num_features for m in model.modules() if isinstance(m, nn.BatchNorm3d)]
    parts = dict.fromkeys(("compute", "all_reduce", "shared_bn", "waiting"), 0.0)
    demand = 0.0
    for phase in schedule.phases:
        before = sum(parts.values())
        for j, (shape, bn_size) in enumerate(zip(phase.shapes, phase.bn_sizes, strict=True)):
            clips = shape.batch // cluster.gpus
            count = phase.count(j)
            step = seconds(Shape(clips, shape.frames, shape.crop))
            ranks = max(1, (bn_size or 1) // clips)
            parts["compute"] += count * step
            parts["all_reduce"] += count * cluster.exposed_seconds(gradients, step)
            parts["shared_bn"] += count * cluster.shared_bn_seconds(norms, ranks)
        busy = sum(parts.values()) - before
        demand = max(demand, phase.clips / busy)
        if loader is not None:
            parts["waiting"] += max(0.0, phase.clips / cluster.nodes / loader - busy)
    total = sum(parts.values())
    return {
        "iterations": schedule.iterations,
        "seconds": total,
        **parts,
        "clips_per_second": demand,
    }


def format_cluster_plan(plan: Mapping[str, Any]) -> str:
    """Return a plan as text: a table with an arrow at the requested number of GPUs, and notes."""
    cluster = plan["cluster"]
    network, in_node = (cluster[key] or math.inf for key in ("network", "node_network"))
    wanted = next(row for row in plan["rows"] if row["gpus"] == cluster["gpus"])
    headers = ["", "GPUs", "nodes", "batch"]
    headers += [text for name in wanted["trainings"] for text in (f"{name}\ntime", "\nefficiency")]
    headers += ["speed-up", "clips/s needed\na node", "\nin all", ""]
    shares = [
        f"{wanted['gpus']:,} GPUs, {name}, {time['iterations']:,} iterations: "
        "compute {compute:.1f} %, gradients {all_reduce:.1f} %, shared BN {shared_bn:.1f} %, "
        "waiting for clips {waiting:.1f} %.".format_map(
            {key: 100 * value / time["seconds"] for key, value in time.items()}
        )
        for name, time in wanted["trainings"].items()
    ]
    reading = (
        ""
        if plan["loader"] is not None
        else " Times ignore reading; to include the reading time, give --loader."
    )
    return "\n".join(
        [
            f"GPUs: {wanted['gpus']:,}, nodes: {wanted['nodes']:,}. Network: "
            f"{network / 1e9:g} GB/s per node and direction (--network), "
            f"{in_node / 1e9:g} GB/s between the GPUs of a node (--node-network), "
            f"{1e6 * cluster['latency']:g} µs per message (--latency).\n",
            format_table(headers, [_cells(row, row is wanted) for row in plan["rows"]]),
            *(f"{gpus:,} GPUs cannot train: {why}" for gpus, why in plan["refused"].items()),
            "",
            *shares,
            "Efficiency is the share of compute. Gradients are the part of the all-reduce of "
            f"{plan['gradient_bytes'] / 1e6:,.1f} MB that does not overlap with the backward pass.",
            "Clips/s are the clips that must be read per second in the phase that reads fastest."
            f"{reading}",
            f"Each GPU has the same number of clips as on the {plan['reference_gpus']:,} GPU(s) of "
            "the recipe. With more GPUs, the batch size grows and the iterations become fewer.",
            f"Source of the step times: {plan['seconds_source']}.",
            "Evaluation, checkpoints, start-up and waiting for the slowest GPU are not included. "
            "The times promise no accuracy for batch sizes that nobody has trained yet.",
        ]
    )


def _cells(row: Mapping[str, Any], marked: bool) -> list[str]:
    cells = ["→" if marked else "", *(f"{row[key]:,}" for key in ("gpus", "nodes", "batch"))]
    for time in row["trainings"].values():
        efficiency = f"{100 * time['compute'] / time['seconds']:.1f} %"
        cells += [format_duration(time["seconds"]), efficiency]
    needed = row["clips_per_second"]
    cells += [f"{row['speed_up']:.2f}×", f"{needed / row['nodes']:,.0f}", f"{needed:,.0f}"]
    return [*cells, "; ".join(row["notes"])]


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
    add("--network", "GB/s", text, above_zero, required=True)
    text = "bandwidth between two GPUs of the same node (default: no limit)"
    add("--node-network", "GB/s", text, above_zero, math.inf)
    add("--latency", "US", "latency of a message in µs (%(default)g)", from_zero, 1e6 * LATENCY)
    text = "clips that a node can load per second (default: loading takes no time)"
    add("--loader", "CLIPS/s", text, above_zero)
    command_line.add_overrides(parser, "keys to set in the config")
    return parser.parse_intermixed_args(argv)


@command_line.tool
def main(argv: Sequence[str] | None = None) -> int:
    """Print the predicted training times, and return the exit status."""
    args = parse_args(argv)
    recipe = with_precision(load_with_classes(args.cfg, args.overrides), on_gpu=True)
    cluster = Cluster(
        *(args.gpus, args.gpus_per_node),
        network=1e9 * args.network,
        node_network=1e9 * args.node_network,
        latency=1e-6 * args.latency,
    )
    videos = dataset_size(recipe, args.dataset_size)
    timing_of = partial(find_timing, seconds=args.step_seconds, files=args.step_times)
    plan = plan_on_cluster(recipe, cluster, videos, timing_of, args.loader)
    print(json.dumps(plan, indent=2) if args.json else format_cluster_plan(plan))
    return 0


if __name__ == "__main__":
    sys.exit(main())
