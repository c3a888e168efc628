"""Predicted training time of a recipe on clusters of 1 to 2,048 GPUs.

Nothing is measured here. docs/cluster.md explains the model and works through two examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from multigrid import Schedule, Shape
from multigrid.cost import SecondsPerIteration, final_iterations, short_ends
from slowfast_patches.config.check import check_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import check_world_size, schedule_of, without_multigrid
from slowfast_patches.models.build import build_on_meta
from slowfast_patches.plan.flops import check_shapes
from slowfast_patches.plan.step_times import Timing
from slowfast_patches.utils.tables import format_duration, format_table

__all__ = [
    "LATENCY",
    "MACHINES",
    "Cluster",
    "format_cluster_plan",
    "gpu_counts",
    "on_cluster",
    "plan_on_cluster",
]

LATENCY = 20e-6
"""Default latency of a message in seconds, an assumption."""

_BACKWARD = 2 / 3
"""Share of backward in a step. It has two matrix products for each one of forward."""

_BUCKET = 25 * 1024**2
"""Default size in bytes of DDP's gradient buckets."""

_BYTES_OF_MOMENTS = (2 * 8, 2 * 4)
"""Bytes per channel that shared BN exchanges: two doubles in forward, two floats in backward."""

_MOST_GPUS = 2048


@dataclass(frozen=True)
class Cluster:
    """GPUs on equal nodes. A cluster smaller than a node is a part of one.

    Attributes:
        gpus: number of GPUs in all. More than one node has must be a multiple of it.
        gpus_per_node: number of GPUs that a node has.
        network: bandwidth of a node in bytes per second and direction.
        node_network: bandwidth between two GPUs of a node in bytes per second.
        latency: seconds of a message besides its bytes.
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
        """Number of GPUs that are used on each node."""
        return min(self.gpus, self.gpus_per_node)

    def ring_seconds(self, size: float, members: int, *, in_node: bool) -> float:
        """Return the seconds of a ring all-reduce of `size` bytes (Patarasuk and Yuan, 2009).

        Each member sends 2 (n − 1) messages of 1/n of the bytes: n − 1 to add, n − 1 to distribute.
        """
        bandwidth = self.node_network if in_node else self.network
        return 2 * (members - 1) * (size / members / bandwidth + self.latency)

    def all_reduce_seconds(self, size: float) -> float:
        """Return the seconds to sum `size` bytes over all GPUs, by rings in and between nodes."""
        inside = self.ring_seconds(size, self.gpus_of_node, in_node=True)
        return inside + self.ring_seconds(size, self.nodes, in_node=False)

    def exposed_seconds(self, size: float, compute: float) -> float:
        """Return the seconds of exchanging gradients that a step does not hide.

        All buckets but the last are sent during backward. The last one has the gradients of the
        first layers, which are ready when backward ends.

        Args:
            size: bytes of the gradients.
            compute: seconds of the step's computation.
        """
        buckets = math.ceil(size / _BUCKET)
        seconds = self.all_reduce_seconds(size / buckets)
        return max(seconds, buckets * seconds - _BACKWARD * compute)

    def shared_bn_seconds(self, channels: Sequence[int], ranks: int) -> float:
        """Return the seconds to synchronize BN layers over groups of neighbouring GPUs.

        Args:
            channels: number of channels of each layer.
            ranks: number of GPUs in a group.
        """
        in_node = self.gpus_of_node % ranks == 0
        sizes = [number * size for number in channels for size in _BYTES_OF_MOMENTS]
        return sum(self.ring_seconds(size, ranks, in_node=in_node) for size in sizes)


MACHINES = {
    "summit": (
        Cluster(gpus=6, gpus_per_node=6, network=23e9, node_network=50e9),
        "Summit of Oak Ridge, 6 V100 a node, NVLink 2, dual-rail EDR InfiniBand (OLCF, Summit "
        "User Guide, docs.olcf.ornl.gov/systems/summit_user_guide.html; the latency is an "
        "assumption)",
    ),
}
"""Choices of --machine: a whole node, and its description."""


def plan_on_cluster(
    recipe: Recipe,
    cluster: Cluster,
    num_videos: int,
    timing_of: Callable[[Recipe], Timing],
    *,
    loader: float | None = None,
    machine: str | None = None,
) -> dict[str, Any]:
    """Predict the training times of a recipe on a cluster, and on other numbers of its GPUs.

    Args:
        recipe: the recipe as written, before it is scaled to any processes.
        cluster: the cluster that the user asks for.
        num_videos: size of the training set.
        timing_of: called once, with the recipe for one GPU and its share of the clips.
        loader: clips per second that a node reads. None leaves reading out.
        machine: key of `MACHINES` if the cluster is a part of one.

    Returns:
        Plain data, which `format_cluster_plan` shows. Missing or infinite values are None. Each of
        the `rows` has a number of GPUs and the seconds of its `trainings`, "multigrid" if the
        recipe uses it, and "baseline". `refused` has the numbers of GPUs that cannot train.

    Raises:
        ValueError: The recipe cannot be trained on that cluster.
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
        "machine": machine,
        "loader": loader,
        "reference_gpus": _reference_gpus(recipe),
        "gradient_bytes": _gradient_bytes(model),
        "seconds_source": timing.source,
        "rows": rows,
        "refused": refused,
    }


def gpu_counts(gpus_per_node: int, also: int) -> list[int]:
    """Return the numbers of GPUs to plan: powers of two, then whole nodes, and `also`.

    The largest is that of the whole nodes that 2,048 GPUs fill.
    """
    nodes = _MOST_GPUS // gpus_per_node
    powers = [2**i for i in range(_MOST_GPUS.bit_length())]
    counts = [n for n in powers if n < gpus_per_node]
    counts += [n * gpus_per_node for n in [*powers, nodes] if 0 < n <= nodes]
    return sorted({*counts, also})


def on_cluster(recipe: Recipe, cluster: Cluster) -> Recipe:
    """Return the recipe for a cluster, with as many clips for each GPU as before.

    Learning rates stay, because the time does not depend on them.

    Raises:
        ValueError: The clips do not divide over the GPUs that the recipe is written for.
    """
    gpus = _reference_gpus(recipe)
    nodes = recipe.num_shards
    clips = recipe.train.batch_size * nodes
    if clips % gpus:
        raise ValueError(
            f"TRAIN.BATCH_SIZE {recipe.train.batch_size} × NUM_SHARDS {nodes} does not divide over "
            f"the recipe's {gpus} GPUs. Change it, or set SOLVER.REFERENCE_WORLD_SIZE to the "
            "number of GPUs that share it."
        )
    tested = max(1, recipe.test.batch_size * nodes // gpus)
    changes: dict[str, object] = {
        "NUM_SHARDS": cluster.nodes,
        "SHARD_ID": 0,
        "SOLVER.REFERENCE_WORLD_SIZE": 0,
        "SOLVER.REFERENCE_BATCH_SIZE": 0,
        "TRAIN.BATCH_SIZE": clips // gpus * cluster.gpus_of_node,
        "TEST.BATCH_SIZE": tested * cluster.gpus_of_node,
        "NUM_GPUS": cluster.gpus_of_node if recipe.num_gpus else 0,
        "PROCESSES_PER_MACHINE": cluster.gpus_of_node,
    }
    return recipe.replaced(changes)


def _reference_gpus(recipe: Recipe) -> int:
    """Return the number of GPUs that a recipe is written for."""
    return max(1, recipe.num_gpus) * recipe.num_shards


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
    assert timing.ours is not None, "a cluster is planned with step times"
    assert timing.baseline is not None, "a cluster is planned with step times"
    trainings = {"baseline": (without_multigrid(fitted), timing.baseline)}
    if fitted.uses_multigrid:
        trainings = {"multigrid": (fitted, timing.ours)} | trainings
    times = dict[str, dict[str, float]]()
    for name, (recipe, seconds) in trainings.items():
        schedule = schedule_of(recipe, num_videos)
        check_world_size(recipe, schedule)
        times[name] = _training_time(schedule, cluster, model, seconds, loader)
    schedule = schedule_of(fitted, num_videos)
    batch = schedule.base.batch
    notes = list[str]()
    if short_ends(schedule):
        notes.append(f"ends with {final_iterations(schedule)} iterations at its shape")
    if fitted.bn_size > batch:
        notes.append(f"BN over {batch} clips")
    return {
        "gpus": cluster.gpus,
        "nodes": cluster.nodes,
        "batch": batch,
        "trainings": times,
        "speed_up": times["baseline"]["seconds"] / next(iter(times.values()))["seconds"],
        "clips_per_second": max(time["clips_per_second"] for time in times.values()),
        "notes": notes,
    }


def _training_time(
    schedule: Schedule,
    cluster: Cluster,
    model: nn.Module,
    seconds: SecondsPerIteration,
    loader: float | None,
) -> dict[str, float]:
    """Return the seconds of a training and their parts, summed over phases and shapes.

    Loaders read ahead. So a phase waits for clips only as long as reading takes more than training.

    Returns:
        Besides seconds, the iterations, and as `clips_per_second` what all nodes must read in the
        phase with the highest demand.
    """
    gradients = _gradient_bytes(model)
    norms = [m.num_features for m in model.modules() if isinstance(m, nn.BatchNorm3d)]
    parts = np.zeros(3)
    waiting = demand = 0.0
    for phase in schedule.phases:
        spent = np.zeros(3)
        for j, (shape, bn_size) in enumerate(zip(phase.shapes, phase.bn_sizes, strict=True)):
            clips = shape.batch // cluster.gpus
            step = seconds(Shape(clips, shape.frames, shape.crop))
            shared_bn = cluster.shared_bn_seconds(norms, max(1, (bn_size or 1) // clips))
            exposed = cluster.exposed_seconds(gradients, step)
            spent += phase.count(j) * np.array([step, exposed, shared_bn])
        busy = float(spent.sum())
        parts += spent
        demand = max(demand, phase.clips / busy)
        if loader is not None:
            waiting += max(0.0, phase.clips / cluster.nodes / loader - busy)
    total = float(parts.sum()) + waiting
    return {
        "iterations": schedule.iterations,
        "seconds": total,
        **dict(zip(("compute", "all_reduce", "shared_bn"), parts.tolist(), strict=True)),
        "waiting": waiting,
        "clips_per_second": demand,
    }


def format_cluster_plan(plan: Mapping[str, Any]) -> str:
    """Return a table with the wanted number of GPUs marked, and what its numbers mean."""
    cluster = plan["cluster"]
    network, in_node = (cluster[key] or math.inf for key in ("network", "node_network"))
    wanted = next(row for row in plan["rows"] if row["gpus"] == cluster["gpus"])
    lines = [
        f"GPUs: {wanted['gpus']:,}, nodes: {wanted['nodes']:,}. Network: "
        f"{network / 1e9:g} GB/s a node and direction (--network), "
        f"{in_node / 1e9:g} GB/s between the GPUs of a node (--node-network), "
        f"{1e6 * cluster['latency']:g} µs a message (--latency)."
    ]
    if plan["machine"] is not None:
        lines.append(f"Numbers that are not given are of {MACHINES[plan['machine']][1]}.")
    headers = ["", "GPUs", "nodes", "batch"]
    headers += [text for name in wanted["trainings"] for text in (f"{name}\ntime", "\nefficiency")]
    headers += ["speed-up", "clips/s needed\na node", "\nin all", ""]
    lines += ["", format_table(headers, [_cells(row, row is wanted) for row in plan["rows"]])]
    lines += [f"{gpus:,} GPUs cannot train: {why}" for gpus, why in plan["refused"].items()]
    lines.append("")
    for name, time in wanted["trainings"].items():
        share = {key: f"{100 * value / time['seconds']:.1f} %" for key, value in time.items()}
        lines.append(
            f"{wanted['gpus']:,} GPUs, {name}, {time['iterations']:,} iterations: "
            f"compute {share['compute']}, gradients {share['all_reduce']}, "
            f"shared BN {share['shared_bn']}, waiting for clips {share['waiting']}."
        )
    reading = "" if plan["loader"] is not None else " Reading is left out: --loader adds it."
    return "\n".join(
        [
            *lines,
            "Efficiency is the share of compute. Gradients are the part of the exchange of "
            f"{plan['gradient_bytes'] / 1e6:,.1f} MB that backward does not hide.",
            f"Clips/s are the demand of the phase that reads most.{reading}",
            f"Each GPU has as many clips as on the {plan['reference_gpus']:,} GPUs of the recipe, "
            "so batches grow with the number of GPUs, and iterations shrink.",
            f"Seconds of an iteration: {plan['seconds_source']}.",
            "Evaluation, checkpoints, starting up and the slowest of many GPUs are left out. "
            "Beyond the batches that somebody has trained, the hours promise no accuracy.",
        ]
    )


def _cells(row: Mapping[str, Any], marked: bool) -> list[str]:
    cells = ["→" if marked else "", *(f"{row[key]:,}" for key in ("gpus", "nodes", "batch"))]
    for time in row["trainings"].values():
        efficiency = 100 * time["compute"] / time["seconds"]
        cells += [format_duration(time["seconds"]), f"{efficiency:.1f} %"]
    needed = row["clips_per_second"]
    cells += [f"{row['speed_up']:.2f}×", f"{needed / row['nodes']:,.0f}", f"{needed:,.0f}"]
    return [*cells, "; ".join(row["notes"])]
