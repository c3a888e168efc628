"""Training time of a recipe on clusters of 1 to 2,048 GPUs, computed and not measured.

docs/cluster.md explains the model and works through two examples.
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
from slowfast_patches.config.schedule import check_world_size, schedule_of, without_multigrid
from slowfast_patches.models.build import build_on_meta
from slowfast_patches.models.flops import check_shapes
from slowfast_patches.plan.step_times import Timing
from slowfast_patches.utils.tables import format_duration, format_table

__all__ = [
    "LATENCY",
    "MACHINES",
    "Cluster",
    "ClusterPlan",
    "format_cluster_plan",
    "gpu_counts",
    "on_cluster",
    "plan_on_cluster",
    "ring_seconds",
]

LATENCY = 20e-6
"""Default seconds of a message besides its bytes: an assumption."""

_BACKWARD = 2 / 3
"""Share of backward in a step: two products, for inputs and weights, for each of forward."""

_BUCKET = 25 * 1024**2
"""Bytes of gradients that DDP sends together, by default."""

_BYTES_OF_MOMENTS = (2 * 8, 2 * 4)
"""Bytes of a channel's two sums that shared BN exchanges: double forward, single backward."""


@dataclass(frozen=True)
class Cluster:
    """GPUs on nodes that are all alike; fewer GPUs than a node has are a part of one.

    `network` is the bytes a second that a node sends, and at the same time receives;
    `node_network` those between two GPUs of a node; `latency` the seconds of a message besides its
    bytes. All are above 0, the latency may be 0. Raises ValueError for GPUs that do not fill nodes.
    """

    gpus: int
    gpus_per_node: int
    network: float
    node_network: float = math.inf
    latency: float = LATENCY

    def __post_init__(self) -> None:
        per_node = self.gpus_per_node
        if self.gpus > per_node and self.gpus % per_node:
            fewer = self.gpus // per_node * per_node
            raise ValueError(
                f"{self.gpus} GPUs do not fill nodes of {per_node}; use {fewer} or "
                f"{fewer + per_node} GPUs"
            )

    @property
    def nodes(self) -> int:
        return max(1, self.gpus // self.gpus_per_node)

    @property
    def gpus_of_node(self) -> int:
        """GPUs that are used on each node."""
        return min(self.gpus, self.gpus_per_node)

    def all_reduce_seconds(self, size: float) -> float:
        """Seconds to sum `size` bytes over all GPUs: a ring in each node, and one over the nodes.

        The GPUs of a node add up a part each (half a ring), the parts go around rings over the
        nodes, which share the node's network, and go back inside the node (the other half).
        """
        inside = ring_seconds(size, self.gpus_of_node, self.node_network, self.latency)
        return inside + ring_seconds(size, self.nodes, self.network, self.latency)

    def exposed_seconds(self, size: float, compute: float) -> float:
        """Seconds of exchanging `size` bytes of gradients that a step of `compute` does not hide.

        All buckets but the last are sent beside backward, as far as its time reaches; the last has
        the first layers' gradients, which are there when backward ends.
        """
        buckets = math.ceil(size / _BUCKET)
        seconds = self.all_reduce_seconds(size / buckets)
        return max(seconds, buckets * seconds - _BACKWARD * compute)

    def shared_bn_seconds(self, channels: tuple[int, ...], sharers: int) -> float:
        """Seconds of the two sums of each BN layer, by its channels, over neighbouring GPUs."""
        inside = self.gpus_of_node % sharers == 0
        network = self.node_network if inside else self.network
        sizes = [number * size for number in channels for size in _BYTES_OF_MOMENTS]
        return sum(ring_seconds(size, sharers, network, self.latency) for size in sizes)


def ring_seconds(size: float, members: int, bandwidth: float, latency: float) -> float:
    """Seconds of a ring all-reduce of `size` bytes over `members` (Patarasuk and Yuan, 2009).

    Each sends 2 (n-1) messages of 1/n of the bytes to the next: n-1 to add up, n-1 to hand the sums
    around. `bandwidth` is the bytes a second of each member.
    """
    return 2 * (members - 1) * (size / members / bandwidth + latency)


MACHINES = {
    "summit": (
        Cluster(gpus=6, gpus_per_node=6, network=23e9, node_network=50e9),
        "Summit of Oak Ridge, 6 V100 a node, NVLink 2, dual-rail EDR InfiniBand (OLCF, Summit "
        "User Guide, docs.olcf.ornl.gov/systems/summit_user_guide.html; the latency is an "
        "assumption)",
    ),
}
"""Published machines by the name that --machine takes: a whole node, and what it is."""

_MOST_GPUS = 2048


@dataclass(frozen=True)
class TrainingTime:
    """Seconds of a training: computing, and what adds to it.

    - all_reduce: the exchange of gradients that backward does not hide.
    - shared_bn: the exchange of statistics where a BN group is on several GPUs.
    - waiting: for clips, where the speed of the loaders is known.

    `clips_per_second` is what all nodes must read in the phase that needs most.
    """

    iterations: int
    seconds: float
    compute: float
    all_reduce: float
    shared_bn: float
    waiting: float
    clips_per_second: float

    @property
    def efficiency(self) -> float:
        """Share of the time in which the GPUs compute."""
        return self.compute / self.seconds


@dataclass(frozen=True)
class ClusterRow:
    """A number of GPUs; `trainings` has "multigrid", where the recipe uses it, and "baseline"."""

    gpus: int
    nodes: int
    batch: int
    trainings: Mapping[str, TrainingTime]
    speed_up: float
    clips_per_second: float
    notes: Sequence[str]


@dataclass(frozen=True)
class ClusterPlan:
    """A row for each number of GPUs, or in `refused` why it cannot train.

    `reference_gpus` are those that the recipe is written for, `loader` the clips a second of one
    node's loaders, `machine` the name of the machine that the cluster is a part of.
    """

    cluster: Cluster
    machine: str | None
    loader: float | None
    reference_gpus: int
    gradient_bytes: int
    seconds_source: str | None
    rows: Sequence[ClusterRow]
    refused: Mapping[int, str]

    def to_json(self) -> dict[str, Any]:
        """As plain data: bytes, seconds, clips; null is no limit, or not known."""
        cluster = {k: None if v == math.inf else v for k, v in asdict(self.cluster).items()}
        return asdict(self) | {"cluster": cluster}


def plan_on_cluster(
    recipe: Recipe,
    cluster: Cluster,
    num_videos: int,
    timing_of: Callable[[Recipe], Timing],
    *,
    loader: float | None = None,
    machine: str | None = None,
) -> ClusterPlan:
    """The plan of a recipe on a cluster, and on other numbers of its GPUs.

    Args:
        recipe: as written, not yet fitted to any processes.
        timing_of: called once, with the recipe for one GPU and its share of the clips.

    Raises:
        ValueError: the recipe cannot be trained on that cluster.
    """
    fitted = on_cluster(recipe, cluster)
    check_recipe(fitted, cluster.gpus)
    check_shapes(fitted, schedule_of(fitted, num_videos).shapes)
    timing = timing_of(on_cluster(recipe, replace(cluster, gpus=1)))
    model = build_on_meta(fitted)
    rows = list[ClusterRow]()
    refused = dict[int, str]()
    for gpus in gpu_counts(cluster.gpus_per_node, cluster.gpus):
        at = replace(cluster, gpus=gpus)
        try:
            rows.append(_row(on_cluster(recipe, at), at, num_videos, model, timing, loader))
        except ValueError as error:
            if gpus == cluster.gpus:
                raise
            refused[gpus] = str(error)
    return ClusterPlan(
        cluster,
        machine,
        loader,
        _reference_gpus(recipe),
        _gradient_bytes(model),
        timing.source,
        rows,
        refused,
    )


def gpu_counts(gpus_per_node: int, also: int) -> list[int]:
    """Numbers of GPUs to plan: 1, 2, 4, ... of one node and 1, 2, 4, ... whole nodes, up to all the
    nodes that 2,048 GPUs fill, with `also`."""
    nodes = _MOST_GPUS // gpus_per_node
    powers = [2**i for i in range(_MOST_GPUS.bit_length())]
    counts = [n for n in powers if n < gpus_per_node]
    counts += [n * gpus_per_node for n in [*powers, nodes] if 0 < n <= nodes]
    return sorted({*counts, also})


def on_cluster(recipe: Recipe, cluster: Cluster) -> Recipe:
    """The recipe for a cluster: each GPU has the clips that it has on the GPUs that the recipe is
    written for. Learning rates stay: hours do not depend on them.

    Raises:
        ValueError: clips that do not divide over the GPUs that the recipe is written for.
    """
    gpus = _reference_gpus(recipe)
    nodes = recipe.num_shards
    clips = recipe.train.batch_size * nodes
    if clips % gpus:
        raise ValueError(
            f"TRAIN.BATCH_SIZE {recipe.train.batch_size} × NUM_SHARDS {nodes} does not divide over "
            f"the recipe's {gpus} GPUs; set it, or SOLVER.REFERENCE_WORLD_SIZE to the GPUs that "
            "share it"
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
    }
    return recipe.replaced(changes)


def _reference_gpus(recipe: Recipe) -> int:
    """How many GPUs a recipe is written for."""
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
) -> ClusterRow:
    assert timing.ours is not None, "a cluster is planned with step times"
    assert timing.baseline is not None, "a cluster is planned with step times"
    trainings = {"baseline": (without_multigrid(fitted), timing.baseline)}
    if fitted.uses_multigrid:
        trainings = {"multigrid": (fitted, timing.ours)} | trainings
    times = dict[str, TrainingTime]()
    for name, (recipe, seconds) in trainings.items():
        schedule = schedule_of(recipe, num_videos)
        check_world_size(recipe, schedule, cluster.gpus)
        times[name] = _training_time(schedule, cluster, model, seconds, loader)
    schedule = schedule_of(fitted, num_videos)
    batch = schedule.base.batch
    notes = list[str]()
    if short_ends(schedule):
        notes.append(f"ends with {final_iterations(schedule)} iterations at its shape")
    if fitted.bn_size > batch:
        notes.append(f"BN over {batch} clips")
    speed_up = times["baseline"].seconds / next(iter(times.values())).seconds
    needed = max(time.clips_per_second for time in times.values())
    return ClusterRow(cluster.gpus, cluster.nodes, batch, times, speed_up, needed, notes)


def _training_time(
    schedule: Schedule,
    cluster: Cluster,
    model: nn.Module,
    seconds: SecondsPerIteration,
    loader: float | None,
) -> TrainingTime:
    """The sum over phases and shapes. Loaders read ahead, so that clips are waited for only where
    those of a phase take longer to read than to train."""
    gradients = _gradient_bytes(model)
    norms = tuple(m.num_features for m in model.modules() if isinstance(m, nn.BatchNorm3d))
    compute = all_reduce = shared_bn = waiting = most = 0.0
    for phase in schedule.phases:
        before = compute + all_reduce + shared_bn
        for j, (shape, bn_size) in enumerate(zip(phase.shapes, phase.bn_sizes, strict=True)):
            clips = shape.batch // cluster.gpus
            count = phase.count(j)
            step = seconds(Shape(clips, shape.frames, shape.crop))
            compute += count * step
            all_reduce += count * cluster.exposed_seconds(gradients, step)
            if bn_size is not None and bn_size > clips:
                shared_bn += count * cluster.shared_bn_seconds(norms, bn_size // clips)
        busy = compute + all_reduce + shared_bn - before
        most = max(most, phase.clips / busy)
        if loader is not None:
            waiting += max(0.0, phase.clips / cluster.nodes / loader - busy)
    total = compute + all_reduce + shared_bn + waiting
    return TrainingTime(schedule.iterations, total, compute, all_reduce, shared_bn, waiting, most)


def format_cluster_plan(plan: ClusterPlan) -> str:
    """A table of the numbers of GPUs, the given one marked, and what its numbers mean."""
    cluster = plan.cluster
    lines = [
        f"GPUs: {cluster.gpus:,}, nodes: {cluster.nodes:,}. Network: "
        f"{cluster.network / 1e9:g} GB/s a node and direction (--network), "
        f"{cluster.node_network / 1e9:g} GB/s between the GPUs of a node (--node-network), "
        f"{1e6 * cluster.latency:g} µs a message (--latency)."
    ]
    if plan.machine is not None:
        lines.append(f"Numbers that are not given are of {MACHINES[plan.machine][1]}.")
    row = next(row for row in plan.rows if row.gpus == cluster.gpus)
    headers = ["", "GPUs", "nodes", "batch"]
    headers += [text for name in row.trainings for text in (f"{name}\ntime", "\nefficiency")]
    headers += ["speed-up", "clips/s needed\na node", "\nin all", ""]
    lines += ["", format_table(headers, [_cells(each, each is row) for each in plan.rows])]
    lines += [f"{gpus:,} GPUs cannot train: {why}" for gpus, why in plan.refused.items()]
    return "\n".join([*lines, "", *_notes(plan, row)])


def _cells(row: ClusterRow, marked: bool) -> list[str]:
    cells = ["→" if marked else "", f"{row.gpus:,}", f"{row.nodes:,}", f"{row.batch:,}"]
    for training in row.trainings.values():
        cells += [format_duration(training.seconds), f"{100 * training.efficiency:.1f} %"]
    needed = row.clips_per_second
    cells += [f"{row.speed_up:.2f}×", f"{needed / row.nodes:,.0f}", f"{needed:,.0f}"]
    return [*cells, "; ".join(row.notes)]


def _notes(plan: ClusterPlan, row: ClusterRow) -> list[str]:
    """What the numbers mean and what they leave out."""
    lines = [
        f"{row.gpus:,} GPUs, {name}, {time.iterations:,} iterations: "
        f"compute {time.efficiency:.1%}, gradients {time.all_reduce / time.seconds:.1%}, "
        f"shared BN {time.shared_bn / time.seconds:.1%}, "
        f"waiting for clips {time.waiting / time.seconds:.1%}.".replace("%", " %")
        for name, time in row.trainings.items()
    ]
    reading = "" if plan.loader is not None else " Reading is left out: --loader adds it."
    return [
        *lines,
        "Efficiency is the share of compute; gradients are what backward does not hide of the "
        f"exchange of {plan.gradient_bytes / 1e6:,.1f} MB.",
        f"Clips/s are what the phase that needs most would read.{reading}",
        f"Each GPU has the clips that the recipe gives each of {plan.reference_gpus:,} GPUs, so "
        "that batches grow with the number of GPUs and iterations shrink.",
        f"Seconds of an iteration: {plan.seconds_source}.",
        "Evaluation, checkpoints, starting up and the slowest of many GPUs are left out. Beyond "
        "the batches that somebody has trained, the hours promise no accuracy.",
    ]
