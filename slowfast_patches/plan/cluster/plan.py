"""A recipe on clusters of 1 to 2,048 GPUs: what changes with their number, and the hours.

The plan is plain data, what `tools/plan.py --gpus N --json` prints: bytes, seconds, clips; None is
no limit, or not known. The text and the picture are made of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from multigrid import Schedule
from multigrid.cost import SecondsPerIteration, shortest_phase
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import scale_to_processes
from slowfast_patches.config.schedule import schedule_of, without_multigrid
from slowfast_patches.plan.cluster.gradients import BACKWARD, exchange_of
from slowfast_patches.plan.cluster.network import MACHINES, Cluster
from slowfast_patches.plan.cluster.times import ClipRate, Machine, Times, add_up
from slowfast_patches.plan.plan import short_phases
from slowfast_patches.plan.step_times import Timing
from slowfast_patches.utils.command_line import option_of

__all__ = ["gpu_counts", "on_cluster", "plan_on_cluster"]

MOST_GPUS = 2048


def plan_on_cluster(
    recipe: Recipe,
    cluster: Cluster,
    num_videos: int,
    timing_of: Callable[[Recipe], Timing],
    clip_rate: ClipRate | None = None,
    machine: str | None = None,
) -> dict[str, Any]:
    """The plan of a recipe, as written and not yet fitted to any processes, on a cluster, and on
    other numbers of its GPUs.

    `timing_of` is asked once, for one GPU with its share of the clips; `clip_rate` None leaves
    reading out; `machine` is the name of the preset that the cluster is a part of.

    Raises:
        ValueError: the recipe cannot be trained on that cluster, or has no times.
    """
    single = on_cluster(recipe, replace(cluster, gpus=1))
    timing, exchange = timing_of(single), exchange_of(single)
    buckets = exchange.buckets(recipe.base_shape.frames, recipe.base_shape.crop)
    gpus, keys = _reference(recipe)
    preset = None if machine is None else MACHINES[machine]

    def estimate(gpus: int, phases: bool = False) -> dict[str, Any]:
        at = Machine(replace(cluster, gpus=gpus), exchange, clip_rate)
        return _estimate(recipe, at, num_videos, timing, phases)

    rows = list[dict[str, Any]]()
    for count in gpu_counts(cluster.gpus_per_node, cluster.gpus):
        try:
            rows.append(estimate(count))
        except ValueError as error:
            nodes = replace(cluster, gpus=count).nodes
            rows.append({"gpus": count, "nodes": nodes, "reason": str(error)})
    return {
        "architecture": recipe.model.arch,
        "multigrid": recipe.uses_multigrid,
        "seconds_source": timing.source,
        "reference_gpus": gpus,
        "reference_gpus_from": keys,
        "gradient_bytes": sum(bucket.size for bucket in buckets),
        "buckets": [{"bytes": b.size, "ready_at_share_of_backward": b.ready} for b in buckets],
        "machine": preset and preset.what,
        "machine_sources": preset and preset.sources,
        "differs_from_machine": _differing(cluster, machine),
        "bn_layers": len(exchange.norms),
        "backward_share_of_compute": BACKWARD,
        **estimate(cluster.gpus, phases=True),
        "gpu_counts": rows,
    }


def _differing(cluster: Cluster, machine: str | None) -> list[str]:
    """What was given instead of the machine's numbers, as options."""
    if machine is None:
        return []
    node = MACHINES[machine].node
    names = ("gpus_per_node", "network", "node_network", "latency")
    differing = (n for n in names if not math.isclose(getattr(cluster, n), getattr(node, n)))
    return [option_of(name) for name in differing]


def _reference(recipe: Recipe) -> tuple[int, str]:
    """How many GPUs a recipe is written for, and the keys that say so."""
    if gpus := recipe.solver.reference_world_size:
        return gpus, "SOLVER.REFERENCE_WORLD_SIZE"
    return max(1, recipe.num_gpus) * recipe.num_shards, "NUM_GPUS × NUM_SHARDS"


def _estimate(
    recipe: Recipe, machine: Machine, num_videos: int, timing: Timing, phases: bool
) -> dict[str, Any]:
    """The recipe and its baseline on a machine; with `phases`, phase by phase."""
    cluster = machine.cluster
    fitted = on_cluster(recipe, cluster)
    schedule = schedule_of(fitted, num_videos)
    notes = list[str]()
    if warnings := short_phases(schedule):
        notes.append(f"shortest phase: {shortest_phase(schedule).iterations} iterations")
    if fitted.bn_size > schedule.base.batch:
        notes.append(f"BN over {schedule.base.batch} clips")
    ours = _training(machine, schedule, timing.ours, phases)
    plain = schedule_of(without_multigrid(fitted), num_videos)
    baseline = _training(machine, plain, timing.baseline, phases)
    return {
        "gpus": cluster.gpus,
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "network_bytes_per_second": _finite(cluster.network),
        "node_network_bytes_per_second": _finite(cluster.node_network),
        "latency_seconds": cluster.latency,
        "global_batch": schedule.base.batch,
        "largest_batch": max(shape.batch for shape in schedule.shapes),
        "speed_up": baseline["seconds"] / ours["seconds"],
        "warnings": warnings,
        "notes": notes,
        "plan": ours,
        "baseline": baseline,
    }


def _training(
    machine: Machine, schedule: Schedule, seconds: SecondsPerIteration | None, phases: bool
) -> dict[str, Any]:
    assert seconds is not None, "who asks for a cluster gives times"
    times = [machine.phase(phase, seconds) for phase in schedule.phases]
    found = _times(machine, add_up((of_phase, 1) for of_phase in times))
    found["peak_clips_per_second"] = max(of_phase.clips_per_second for of_phase in times)
    if phases:
        found["phases"] = [
            {
                "number": number,
                "stage": phase.stage + 1,
                "shapes": [asdict(shape) for shape in phase.shapes],
                "bn_sizes": phase.bn_sizes,
                "clips_per_gpu": [shape.batch // machine.cluster.gpus for shape in phase.shapes],
                **_times(machine, of_phase),
            }
            for number, (phase, of_phase) in enumerate(
                zip(schedule.phases, times, strict=True), start=1
            )
        ]
    return found


def _times(machine: Machine, times: Times) -> dict[str, Any]:
    return times._asdict() | {
        "reading": times.reading if machine.clip_rate else None,
        "seconds": times.seconds,
        "hours": times.seconds / 3600,
        "efficiency": times.efficiency,
        "limit": times.limit,
        "clips_per_second": times.clips_per_second,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def gpu_counts(gpus_per_node: int, also: int, most: int = MOST_GPUS) -> list[int]:
    """1, 2, 4, ... GPUs of a node, then 1, 2, 4, ... whole nodes, up to `most`, and as many as
    there are in `most`; and `also`."""
    nodes = most // gpus_per_node
    counts = {2**i for i in range(most.bit_length()) if 2**i < min(gpus_per_node, most + 1)}
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
            "GPUs of the recipe; set it, or SOLVER.REFERENCE_WORLD_SIZE to the GPUs that share it"
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
