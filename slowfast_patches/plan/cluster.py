"""A recipe on clusters of 1 to 2,048 GPUs, on paper: hours, efficiency, and the clips to be read.

A cluster is GPUs on nodes that are all alike, with the time that they take to add up what each of
them holds; published ones have names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from torch import nn

from multigrid import Schedule, Shape
from multigrid.cost import SecondsPerIteration, final_iterations, short_ends
from slowfast_patches.config.check import check_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import check_world_size, schedule_of, without_multigrid
from slowfast_patches.models.build import build_on_meta
from slowfast_patches.models.flops import check_shapes
from slowfast_patches.plan.step_times import Timing
from slowfast_patches.utils.command_line import option_of
from slowfast_patches.utils.tables import format_count, format_duration, format_table

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
"""Seconds that one message takes besides its bytes, where nothing else is given: an assumption."""

_BACKWARD = 2 / 3
"""Share of backward in a step: for each product of forward it has two, for the inputs and for the
weights."""

_BUCKET = 25 * 1024**2
"""Bytes of gradients that DDP sends together, by default."""

_FLOAT = 4
_DOUBLE = 8
"""Bytes of a statistic."""


@dataclass(frozen=True)
class Cluster:
    """GPUs on nodes that are all alike.

    `network` is the bytes a second that a node sends, and at the same time receives;
    `node_network` those of one GPU to another of its node; `latency` the seconds of one message
    besides its bytes. With fewer GPUs than a node has, a part of one node is used.

    Raises ValueError for GPUs that are no whole number of nodes, and for numbers out of range.
    """

    gpus: int
    gpus_per_node: int
    network: float
    node_network: float = math.inf
    latency: float = LATENCY

    def __post_init__(self) -> None:
        for name in ("gpus", "gpus_per_node", "network", "node_network", "latency"):
            value = getattr(self, name)
            if not value > 0 and (name, value) != ("latency", 0):
                raise ValueError(f"{option_of(name)} must be above 0, not {value:g}")
        per_node = self.gpus_per_node
        if self.gpus > per_node and self.gpus % per_node:
            fewer = self.gpus // per_node * per_node
            raise ValueError(
                f"--gpus {self.gpus} is no whole number of nodes of --gpus-per-node {per_node}; "
                f"use {fewer} or {fewer + per_node} GPUs"
            )

    @property
    def nodes(self) -> int:
        return max(1, self.gpus // self.gpus_per_node)

    @property
    def gpus_of_node(self) -> int:
        """GPUs that are used on each node."""
        return min(self.gpus, self.gpus_per_node)

    def all_reduce_seconds(self, size: float) -> float:
        """Seconds until every GPU has the sum of what all hold, `size` bytes each.

        In three steps, as collective libraries do it on nodes of several GPUs: the GPUs of a node
        add up a part each (half a ring), the parts go around rings over the nodes, and each part
        goes back to the node's other GPUs (the other half). The rings over the nodes are of one
        part each and share the node's network, as one ring of the whole size would use it.
        """
        inside = ring_seconds(size, self.gpus_of_node, self.node_network, self.latency)
        return inside + ring_seconds(size, self.nodes, self.network, self.latency)

    def exposed_seconds(self, size: float, compute: float) -> float:
        """Seconds of the exchange of `size` bytes of gradients that a step of `compute` seconds
        does not hide.

        They travel in equal buckets. All but the last are sent beside backward, as far as its time
        reaches; the last has the first layers' gradients, which are there when backward ends.
        """
        buckets = math.ceil(size / _BUCKET)
        seconds = self.all_reduce_seconds(size / buckets)
        return max(seconds, buckets * seconds - _BACKWARD * compute)

    def shared_bn_seconds(self, channels: tuple[int, ...], sharers: int) -> float:
        """Seconds of the two small sums of each BN layer, by its channels, over groups of
        neighbouring GPUs: in a node where groups fill it, else between nodes.

        Forward sums two moments of each channel in double precision, backward two sums in single.
        """
        inside = self.gpus_of_node % sharers == 0
        network = self.node_network if inside else self.network
        sizes = [2 * number * bytes_ for number in channels for bytes_ in (_DOUBLE, _FLOAT)]
        return sum(ring_seconds(size, sharers, network, self.latency) for size in sizes)


def ring_seconds(size: float, members: int, bandwidth: float, latency: float) -> float:
    """Seconds of a ring all-reduce of `size` bytes over `members`.

    Each sends 2 (n-1) messages of 1/n of the bytes to the next: n-1 to add up, n-1 to hand the sums
    around. `bandwidth` is the bytes a second of each member, `latency` the seconds of a message
    besides its bytes (Patarasuk and Yuan, 2009).
    """
    messages = 2 * (members - 1)
    return messages * (size / members / bandwidth + latency)


class Preset(NamedTuple):
    """A published machine: one whole node of it, what it is, and who says so."""

    node: Cluster
    what: str
    sources: str


MACHINES = {
    "summit": Preset(
        Cluster(gpus=6, gpus_per_node=6, network=23e9, node_network=50e9),
        what="Summit of Oak Ridge, 6 V100 a node, NVLink 2, dual-rail EDR InfiniBand",
        sources="OLCF, Summit User Guide, docs.olcf.ornl.gov/systems/summit_user_guide.html: "
        "'NVIDIA NVLink', the peak between two GPUs of a socket in one direction; 'System "
        "Interconnect', the injection bandwidth of a node; --latency is an assumption",
    ),
}
"""By the name that --machine takes. Another machine is another entry; `node_network` and `latency`
may be left to their defaults."""

_MOST_GPUS = 2048


@dataclass(frozen=True)
class TrainingTime:
    """Seconds of a training, by what they go to.

    - compute: forward, backward and optimizer.
    - all_reduce: what backward does not hide of the exchange of gradients.
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
    """A number of GPUs; `trainings` are those of "multigrid", where the recipe has it, and of the
    "baseline"; `clips_per_second` is what the more demanding of them must read."""

    gpus: int
    nodes: int
    batch: int
    trainings: Mapping[str, TrainingTime]
    speed_up: float
    clips_per_second: float
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ClusterPlan:
    """A row for each number of GPUs; `refused` says why there is none.

    `reference_gpus` are those that the recipe is written for, `loader` the clips a second of one
    node's loaders, `machine` the preset that the cluster is a part of.
    """

    cluster: Cluster
    machine: str | None
    loader: float | None
    reference_gpus: int
    gradient_bytes: int
    seconds_source: str | None
    rows: tuple[ClusterRow, ...]
    refused: Mapping[int, str]

    @property
    def asked(self) -> ClusterRow:
        """Of the number of GPUs that was asked for."""
        return next(row for row in self.rows if row.gpus == self.cluster.gpus)

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
    """The plan of a recipe, as written and not yet fitted to any processes, on a cluster, and on
    other numbers of its GPUs.

    `timing_of` is asked once, for one GPU with its share of the clips.

    Raises:
        ValueError: the recipe cannot be trained on that cluster, or has no times.
    """
    if loader is not None and not 0 < loader < math.inf:
        raise ValueError(f"--loader takes a number of clips a second above 0, not {loader:g}")
    fitted = on_cluster(recipe, cluster)
    check_recipe(fitted, cluster.gpus)
    check_shapes(fitted, schedule_of(fitted, num_videos).shapes)
    timing = timing_of(on_cluster(recipe, replace(cluster, gpus=1)))
    assert timing.ours is not None, "a cluster is planned with step times"
    assert timing.baseline is not None, "a cluster is planned with step times"
    seconds = {"multigrid": timing.ours, "baseline": timing.baseline}
    model = build_on_meta(fitted)
    rows = list[ClusterRow]()
    refused = dict[int, str]()
    for gpus in gpu_counts(cluster.gpus_per_node, cluster.gpus):
        at = replace(cluster, gpus=gpus)
        try:
            rows.append(
                _cluster_row(on_cluster(recipe, at), at, num_videos, model, seconds, loader)
            )
        except ValueError as error:
            if gpus == cluster.gpus:
                raise
            refused[gpus] = str(error)
    return ClusterPlan(
        cluster,
        machine,
        loader,
        _reference_gpus(recipe),
        sum(parameter.nbytes for parameter in model.parameters()),
        timing.source,
        tuple(rows),
        refused,
    )


def gpu_counts(gpus_per_node: int, also: int, most: int = _MOST_GPUS) -> list[int]:
    """Numbers of GPUs to plan: 1, 2, 4, ... of one node and 1, 2, 4, ... whole nodes, up to all the
    nodes that `most` GPUs fill, with `also`."""
    nodes = most // gpus_per_node
    counts = {2**i for i in range(most.bit_length()) if 2**i < min(gpus_per_node, most + 1)}
    counts |= {gpus_per_node * 2**i for i in range(nodes.bit_length())}
    return sorted((counts | {gpus_per_node * nodes, also}) - {0})


def on_cluster(recipe: Recipe, cluster: Cluster) -> Recipe:
    """The recipe for a cluster: each GPU has the clips that it has on the GPUs that the recipe is
    written for. Learning rates stay: hours do not depend on them.

    Raises:
        ValueError: clips that do not divide over the GPUs that the recipe is written for.
    """
    gpus = _reference_gpus(recipe)
    clips = recipe.train.batch_size
    machines = recipe.num_shards
    if clips * machines % gpus:
        raise ValueError(
            f"TRAIN.BATCH_SIZE {clips} × NUM_SHARDS {machines} does not divide over the {gpus} "
            "GPUs of the recipe; set it, or SOLVER.REFERENCE_WORLD_SIZE to the GPUs that share it"
        )
    tested = max(1, recipe.test.batch_size * machines // gpus)
    changes: dict[str, object] = {
        "NUM_SHARDS": cluster.nodes,
        "SHARD_ID": 0,
        "SOLVER.REFERENCE_WORLD_SIZE": 0,
        "SOLVER.REFERENCE_BATCH_SIZE": 0,
        "TRAIN.BATCH_SIZE": clips * machines // gpus * cluster.gpus_of_node,
        "TEST.BATCH_SIZE": tested * cluster.gpus_of_node,
    }
    if recipe.num_gpus > 0:
        changes["NUM_GPUS"] = cluster.gpus_of_node
    return recipe.replaced(changes)


def _reference_gpus(recipe: Recipe) -> int:
    """How many GPUs a recipe is written for."""
    return max(1, recipe.num_gpus) * recipe.num_shards


def _cluster_row(
    fitted: Recipe,
    cluster: Cluster,
    num_videos: int,
    model: nn.Module,
    seconds: Mapping[str, SecondsPerIteration],
    loader: float | None,
) -> ClusterRow:
    recipes = {"baseline": without_multigrid(fitted)}
    if fitted.uses_multigrid:
        recipes = {"multigrid": fitted} | recipes
    times = dict[str, TrainingTime]()
    schedules = dict[str, Schedule]()
    for name, each in recipes.items():
        schedules[name] = schedule_of(each, num_videos)
        check_world_size(each, schedules[name], cluster.gpus)
        times[name] = _training_time(schedules[name], cluster, model, seconds[name], loader)
    schedule = next(iter(schedules.values()))
    first = next(iter(times.values()))
    notes = list[str]()
    if short_ends(schedule):
        notes.append(f"ends with {final_iterations(schedule)} iterations at its shape")
    if fitted.bn_size > schedule.base.batch:
        notes.append(f"BN over {schedule.base.batch} clips")
    return ClusterRow(
        cluster.gpus,
        cluster.nodes,
        schedule.base.batch,
        times,
        times["baseline"].seconds / first.seconds,
        max(time.clips_per_second for time in times.values()),
        tuple(notes),
    )


def _training_time(
    schedule: Schedule,
    cluster: Cluster,
    model: nn.Module,
    seconds: SecondsPerIteration,
    loader: float | None,
) -> TrainingTime:
    """The sum over phases and shapes. Loaders read ahead, so that clips are waited for only where
    those of a phase take longer to read than to train."""
    gradients = sum(parameter.nbytes for parameter in model.parameters())
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
    """The table of the numbers of GPUs, that asked for marked, and what its numbers mean."""
    names = list(plan.asked.trainings)
    headers = ["", "GPUs", "nodes", "batch"]
    headers += [text for name in names for text in (f"{name}\ntime", "\nefficiency")]
    if len(names) > 1:
        headers.append("speed-up")
    headers += ["clips/s needed\na node", "\nin all", ""]
    table = format_table(headers, [_cells(row, row is plan.asked) for row in plan.rows])
    refused = [f"{gpus:,} GPUs cannot train: {why}" for gpus, why in plan.refused.items()]
    return "\n\n".join([_cluster(plan), "\n".join([table, *refused]), "\n".join(_notes(plan))])


def _cells(row: ClusterRow, asked: bool) -> list[str]:
    cells = ["→" if asked else "", f"{row.gpus:,}", f"{row.nodes:,}", f"{row.batch:,}"]
    for training in row.trainings.values():
        cells += [format_duration(training.seconds), f"{100 * training.efficiency:.1f} %"]
    if len(row.trainings) > 1:
        cells.append(f"{row.speed_up:.2f}×")
    needed = (row.clips_per_second / row.nodes, row.clips_per_second)
    return [*cells, *(format_count(round(clips)) for clips in needed), "; ".join(row.notes)]


def _cluster(plan: ClusterPlan) -> str:
    cluster = plan.cluster
    between, inside = (
        "no limit" if speed == math.inf else f"{speed / 1e9:g} GB/s"
        for speed in (cluster.network, cluster.node_network)
    )
    text = (
        f"GPUs: {cluster.gpus:,}, nodes: {cluster.nodes:,}. Network: {between} a node and "
        f"direction (--network), {inside} between the GPUs of a node (--node-network), "
        f"{1e6 * cluster.latency:g} µs a message (--latency)."
    )
    if plan.machine is None:
        return text
    machine = MACHINES[plan.machine]
    return f"{text}\nNumbers that are not given are of {machine.what} ({machine.sources})."


def _notes(plan: ClusterPlan) -> list[str]:
    """What the numbers mean and what they leave out."""
    lines = list[str]()
    for name, time in plan.asked.trainings.items():
        parts = (time.compute, time.all_reduce, time.shared_bn, time.waiting)
        shares = [f"{100 * part / time.seconds:.1f} %" for part in parts]
        words = "compute {}, gradients {}, shared BN {}, waiting for clips {}".format(*shares)
        lines.append(f"{plan.asked.gpus:,} GPUs, {name}, {time.iterations:,} iterations: {words}.")
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
