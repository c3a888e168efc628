"""Predicted training time of a recipe on clusters of 1 to 2,048 GPUs.

Nothing is measured here. docs/cluster.md explains the model and works through two examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from multigrid import Schedule, Shape
from multigrid.cost import SecondsPerIteration, final_iterations, short_ends
from slowfast_patches.config.check import check_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import scale_to_world_size
from slowfast_patches.config.schedule import check_world_size, schedule_of, without_multigrid
from slowfast_patches.models.build import build_on_meta
from slowfast_patches.plan.flops import check_shapes
from slowfast_patches.plan.step_times import Timing
from slowfast_patches.utils.tables import format_duration, format_table

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
    """GPUs on equal nodes, which fill all nodes or are a part of one.

    Bandwidths are in bytes per second: `network` of a node in each direction, and `node_network`
    between two GPUs of a node. `latency` is the seconds of a message besides its bytes.
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
        """Return the seconds of exchanging `size` bytes of gradients that a step does not hide.

        The last bucket has the gradients of the first layers, which are ready when backward ends.
        The others are sent during backward, a part of the step's `compute` seconds.
        """
        buckets = math.ceil(size / _BUCKET)
        seconds = self.all_reduce_seconds(size / buckets)
        return max(seconds, buckets * seconds - _BACKWARD * compute)

    def shared_bn_seconds(self, channels: Sequence[int], ranks: int) -> float:
        """Return the seconds to share BN layers of so many channels over `ranks` GPUs."""
        in_node = self.gpus_of_node % ranks == 0
        sizes = [number * size for number in channels for size in _BYTES_OF_MOMENTS]
        return sum(self.ring_seconds(size, ranks, in_node=in_node) for size in sizes)


def plan_on_cluster(
    recipe: Recipe,
    cluster: Cluster,
    num_videos: int,
    timing_of: Callable[[Recipe], Timing],
    loader: float | None = None,
) -> dict[str, Any]:
    """Predict the training times of a recipe on a cluster, and on other numbers of its GPUs.

    `timing_of` returns the step times of a recipe for one GPU. `loader` is the number of clips that
    a node reads per second, or None to leave reading out. `format_cluster_plan` shows the result.

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
        "loader": loader,
        "reference_gpus": max(1, recipe.num_gpus) * recipe.num_shards,
        "gradient_bytes": _gradient_bytes(model),
        "seconds_source": timing.source,
        "rows": rows,
        "refused": refused,
    }


def gpu_counts(gpus_per_node: int, also: int) -> list[int]:
    """Return `also`, and powers of two up to 2,048 GPUs: of GPUs in a node, then of whole nodes."""
    nodes = _MOST_GPUS // gpus_per_node
    powers = [2**i for i in range(_MOST_GPUS.bit_length())]
    counts = [n for n in powers if n < gpus_per_node]
    counts += [n * gpus_per_node for n in [*powers, nodes] if 0 < n <= nodes]
    return sorted({*counts, also})


def on_cluster(recipe: Recipe, cluster: Cluster) -> Recipe:
    """Return the recipe for a cluster, with as many clips for each GPU as before."""
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
    """Return the times of multigrid, if the recipe uses it, and of the baseline."""
    trainings = {"multigrid": (fitted, timing.ours)} if fitted.uses_multigrid else {}
    trainings["baseline"] = (without_multigrid(fitted), timing.baseline)
    times = dict[str, dict[str, float]]()
    for name, (recipe, seconds) in trainings.items():
        assert seconds is not None, "a cluster is planned with step times"
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
    """Return the seconds of a training, their parts, and the clips per second of its peak phase.

    Loaders read ahead. So a phase waits for clips only as long as reading takes more than training.
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
    """Return a table with the wanted number of GPUs marked, and what its numbers mean."""
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
    reading = "" if plan["loader"] is not None else " Reading is left out: --loader adds it."
    return "\n".join(
        [
            f"GPUs: {wanted['gpus']:,}, nodes: {wanted['nodes']:,}. Network: "
            f"{network / 1e9:g} GB/s a node and direction (--network), "
            f"{in_node / 1e9:g} GB/s between the GPUs of a node (--node-network), "
            f"{1e6 * cluster['latency']:g} µs a message (--latency).\n",
            format_table(headers, [_cells(row, row is wanted) for row in plan["rows"]]),
            *(f"{gpus:,} GPUs cannot train: {why}" for gpus, why in plan["refused"].items()),
            "",
            *shares,
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
        efficiency = f"{100 * time['compute'] / time['seconds']:.1f} %"
        cells += [format_duration(time["seconds"]), efficiency]
    needed = row["clips_per_second"]
    cells += [f"{row['speed_up']:.2f}×", f"{needed / row['nodes']:,.0f}", f"{needed:,.0f}"]
    return [*cells, "; ".join(row["notes"])]
