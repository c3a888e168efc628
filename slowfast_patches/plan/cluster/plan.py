"""A recipe on clusters of 1 to 2,048 GPUs: what changes with their number, and the hours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from multigrid.cost import SecondsPerIteration
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import scale_to_processes
from slowfast_patches.config.schedule import (
    schedule_of,
    without_multigrid,
)
from slowfast_patches.plan.cluster.gradients import Exchange, exchange_of
from slowfast_patches.plan.cluster.machines import Preset
from slowfast_patches.plan.cluster.network import Cluster
from slowfast_patches.plan.cluster.times import ClipRate, Machine, TrainingTimes
from slowfast_patches.plan.plan import short_phases
from slowfast_patches.plan.timing import Timing

__all__ = [
    "MOST_GPUS",
    "ClusterPlan",
    "Estimate",
    "Row",
    "TimingOf",
    "gpu_counts",
    "on_cluster",
    "plan_on_cluster",
    "reference_gpus",
]

MOST_GPUS = 2048

TimingOf = Callable[[Recipe], Timing]
"""How long the iterations of a recipe take that one GPU trains alone."""


@dataclass(frozen=True)
class Estimate:
    """A recipe and its baseline on one cluster.

    `warnings` are what speaks against the recipe there, `notes` the same in a few words.
    """

    cluster: Cluster
    ours: TrainingTimes
    baseline: TrainingTimes
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def batch(self) -> int:
        """Clips of a mini-batch of the baseline's shape, over all nodes."""
        return self.ours.schedule.base.batch

    @property
    def speed_up(self) -> float:
        """The baseline's seconds as a multiple of ours, on the same cluster."""
        return self.baseline.total.seconds / self.ours.total.seconds


@dataclass(frozen=True)
class Row:
    """One number of GPUs: an estimate, or the reason why there is none."""

    cluster: Cluster
    estimate: Estimate | None
    reason: str = ""


@dataclass(frozen=True)
class ClusterPlan:
    """The estimate for the cluster asked for, and rows from 1 GPU to MOST_GPUS.

    `reference` is the number of GPUs that the recipe as written is for, `reference_key` says where
    it is taken from; `source` says where the seconds of an iteration come from. `preset` is the
    machine that was asked for by name, if one was; what was given beside it is in the cluster.
    """

    architecture: str
    multigrid: bool
    reference: int
    reference_key: str
    exchange: Exchange
    source: str
    estimate: Estimate
    rows: tuple[Row, ...]
    reads: bool
    preset: Preset | None = None


def plan_on_cluster(
    recipe: Recipe,
    cluster: Cluster,
    num_videos: int,
    timing_of: TimingOf,
    clip_rate: ClipRate | None = None,
    preset: Preset | None = None,
) -> ClusterPlan:
    """The plan of a recipe, as written and not yet fitted to any processes, on a cluster.

    Args:
        recipe: the recipe.
        cluster: what it is to train on; the rows have other numbers of its GPUs.
        num_videos: in the training set.
        timing_of: asked once, for one GPU with its share of the clips.
        clip_rate: clips a second of a node's loaders; None leaves reading out.
        preset: the machine that the cluster is a part of, where it has a name.

    Raises:
        ValueError: the recipe cannot be trained on that cluster, or has no times.
    """
    single = on_cluster(recipe, cluster.with_gpus(1))
    timing, exchange = timing_of(single), exchange_of(single)
    assert timing.ours is not None
    assert timing.baseline is not None
    assert timing.source is not None

    def estimate(at: Cluster) -> Estimate:
        return _estimate(recipe, Machine(at, exchange, clip_rate), num_videos, timing)

    def row(gpus: int) -> Row:
        at = cluster.with_gpus(gpus)
        try:
            return Row(at, estimate(at))
        except ValueError as error:
            return Row(at, None, str(error))

    reference, key = reference_gpus(recipe)
    return ClusterPlan(
        architecture=recipe.model.arch,
        multigrid=recipe.uses_multigrid,
        reference=reference,
        reference_key=key,
        exchange=exchange,
        source=timing.source,
        estimate=estimate(cluster),
        rows=tuple(row(gpus) for gpus in gpu_counts(cluster.gpus_per_node, cluster.gpus)),
        reads=clip_rate is not None,
        preset=preset,
    )


def gpu_counts(gpus_per_node: int, also: int, most: int = MOST_GPUS) -> list[int]:
    """1, 2, 4, ... GPUs of a node, then 1, 2, 4, ... whole nodes, up to `most`, and as many as
    there are in `most`; and `also`."""
    inside = [2**i for i in range(gpus_per_node.bit_length()) if 2**i < gpus_per_node]
    all_nodes = most // gpus_per_node
    nodes = [2**i for i in range(all_nodes.bit_length())] + [all_nodes]
    counts = {*inside, *(gpus_per_node * number for number in nodes), also}
    return sorted(count for count in counts if 0 < count <= most or count == also)


def reference_gpus(recipe: Recipe) -> tuple[int, str]:
    """How many GPUs a recipe is written for, and the keys that say so."""
    if recipe.solver.reference_world_size:
        return recipe.solver.reference_world_size, "SOLVER.REFERENCE_WORLD_SIZE"
    return max(1, recipe.num_gpus) * recipe.num_shards, "NUM_GPUS × NUM_SHARDS"


def on_cluster(recipe: Recipe, cluster: Cluster) -> Recipe:
    """The recipe for a cluster: each GPU keeps its clips; the global batch and the rates follow
    their number by the linear rule (`scale_to_processes`), and the iterations the batch.

    Raises:
        ValueError: clips that do not divide over the GPUs that the recipe is written for.
    """
    changes: dict[str, object] = {"NUM_SHARDS": cluster.nodes, "SHARD_ID": 0}
    if not recipe.solver.reference_world_size:
        changes |= _on_one_machine(recipe)
    if recipe.num_gpus > 0:
        changes["NUM_GPUS"] = cluster.gpus_of_node
    return scale_to_processes(recipe.replaced(changes), cluster.gpus)


def _on_one_machine(recipe: Recipe) -> dict[str, object]:
    """The keys of a recipe as if one machine had all its GPUs, as SOLVER.REFERENCE_WORLD_SIZE means
    it: TRAIN.BATCH_SIZE is then the global batch."""
    machines, clips = recipe.num_shards, recipe.train.batch_size
    if machines < 1:
        raise ValueError(f"NUM_SHARDS must be 1 or more, not {machines}")
    gpus, source = reference_gpus(recipe)
    if clips * machines % gpus:
        raise ValueError(
            f"TRAIN.BATCH_SIZE {clips} × NUM_SHARDS {machines} does not divide over the {gpus} "
            f"GPUs that the recipe is for ({source}); set TRAIN.BATCH_SIZE, or "
            "SOLVER.REFERENCE_WORLD_SIZE to the GPUs that share it"
        )
    changes: dict[str, object] = {
        "SOLVER.REFERENCE_WORLD_SIZE": gpus,
        "TRAIN.BATCH_SIZE": clips * machines,
        "TEST.BATCH_SIZE": recipe.test.batch_size * machines,
    }
    if recipe.solver.base_lr_scale_num_shards:
        for rate in ("SOLVER.BASE_LR", "SOLVER.WARMUP_START_LR", "SOLVER.COSINE_END_LR"):
            changes[rate] = recipe[rate] * machines
        changes["SOLVER.BASE_LR_SCALE_NUM_SHARDS"] = False
    return changes


def _estimate(recipe: Recipe, machine: Machine, num_videos: int, timing: Timing) -> Estimate:
    def train(recipe: Recipe, seconds: SecondsPerIteration | None) -> TrainingTimes:
        assert seconds is not None
        return machine.training(schedule_of(recipe, num_videos), seconds)

    fitted = on_cluster(recipe, machine.cluster)
    ours = train(fitted, timing.ours)
    baseline = train(without_multigrid(fitted), timing.baseline)
    warnings = short_phases(ours.schedule.base, ours.schedule.phases)
    return Estimate(machine.cluster, ours, baseline, warnings, _notes(fitted, ours, bool(warnings)))


def _notes(recipe: Recipe, training: TrainingTimes, short: bool) -> tuple[str, ...]:
    notes = list[str]()
    if short:
        shortest = min(phase.times.iterations for phase in training.phases)
        notes.append(f"shortest phase: {shortest} iterations")
    wanted = recipe.multigrid.bn_base_size if recipe.uses_multigrid else recipe.bn.group_size
    if wanted > (batch := training.schedule.base.batch):
        notes.append(f"BN over {batch} clips")
    return tuple(notes)
