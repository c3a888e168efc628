"""A recipe on clusters of 1 to 2,048 GPUs: what changes with their number, and the hours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from multigrid.cost import shortest_phase
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import scale_to_processes
from slowfast_patches.config.schedule import schedule_of, without_multigrid
from slowfast_patches.plan.cluster.gradients import Exchange, exchange_of
from slowfast_patches.plan.cluster.network import Cluster
from slowfast_patches.plan.cluster.times import ClipRate, Machine, Training
from slowfast_patches.plan.plan import short_phases
from slowfast_patches.plan.step_times import Timing

__all__ = ["ClusterPlan", "Estimate", "gpu_counts", "on_cluster", "plan_on_cluster"]

MOST_GPUS = 2048


@dataclass(frozen=True)
class Estimate:
    """A recipe and its baseline on one cluster; `notes` are what speaks against it there."""

    cluster: Cluster
    ours: Training
    baseline: Training
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
class ClusterPlan:
    """The estimate for the cluster that was asked for, and for each number of GPUs that its nodes
    can make an estimate, or the reason why there is none.

    `recipe` is the one as written; `source` says where the seconds of an iteration come from;
    `machine` is the name of the preset that was asked for.
    """

    recipe: Recipe
    exchange: Exchange
    source: str
    estimate: Estimate
    rows: Mapping[int, Estimate | str]
    reads: bool
    machine: str | None = None


def plan_on_cluster(
    recipe: Recipe,
    cluster: Cluster,
    num_videos: int,
    timing_of: Callable[[Recipe], Timing],
    clip_rate: ClipRate | None = None,
    machine: str | None = None,
) -> ClusterPlan:
    """The plan of a recipe, as written and not yet fitted to any processes, on a cluster.

    Args:
        recipe: the recipe.
        cluster: what it is to train on; the rows have other numbers of its GPUs.
        num_videos: in the training set.
        timing_of: asked once, for one GPU with its share of the clips.
        clip_rate: clips a second of a node's loaders; None leaves reading out.
        machine: the name of the preset that the cluster is a part of.

    Raises:
        ValueError: the recipe cannot be trained on that cluster, or has no times.
    """
    single = on_cluster(recipe, replace(cluster, gpus=1))
    timing, exchange = timing_of(single), exchange_of(single)
    assert timing.source is not None, "who asks for a cluster gives times"

    def estimate(gpus: int) -> Estimate:
        at = Machine(replace(cluster, gpus=gpus), exchange, clip_rate)
        return _estimate(recipe, at, num_videos, timing)

    rows = dict[int, Estimate | str]()
    asked_for = estimate(cluster.gpus)
    for gpus in gpu_counts(cluster.gpus_per_node, cluster.gpus):
        try:
            rows[gpus] = estimate(gpus)
        except ValueError as error:
            rows[gpus] = str(error)
    reads = clip_rate is not None
    return ClusterPlan(recipe, exchange, timing.source, asked_for, rows, reads, machine)


def _estimate(recipe: Recipe, machine: Machine, num_videos: int, timing: Timing) -> Estimate:
    assert timing.ours is not None
    assert timing.baseline is not None
    fitted = on_cluster(recipe, machine.cluster)
    schedule = schedule_of(fitted, num_videos)
    ours = machine.training(schedule, timing.ours)
    plain = schedule_of(without_multigrid(fitted), num_videos)
    notes = list[str]()
    if short_phases(schedule):
        notes.append(f"shortest phase: {shortest_phase(schedule).iterations} iterations")
    if fitted.bn_size > schedule.base.batch:
        notes.append(f"BN over {schedule.base.batch} clips")
    baseline = machine.training(plain, timing.baseline)
    return Estimate(machine.cluster, ours, baseline, tuple(notes))


def gpu_counts(gpus_per_node: int, also: int, most: int = MOST_GPUS) -> list[int]:
    """1, 2, 4, ... GPUs of a node, then 1, 2, 4, ... whole nodes, up to `most`, and as many as
    there are in `most`; and `also`."""
    nodes = most // gpus_per_node
    counts = {
        2**i for i in range(gpus_per_node.bit_length()) if 2**i < min(gpus_per_node, most + 1)
    }
    counts |= {gpus_per_node * 2**i for i in range(nodes.bit_length())}
    return sorted((counts | {gpus_per_node * nodes, also}) - {0})


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
    gpus = max(1, recipe.num_gpus) * machines
    if clips * machines % gpus:
        raise ValueError(
            f"TRAIN.BATCH_SIZE {clips} × NUM_SHARDS {machines} does not divide over the {gpus} "
            "GPUs that the recipe is for (NUM_GPUS × NUM_SHARDS); set TRAIN.BATCH_SIZE, or "
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
