"""A cluster plan as text and as plain data."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

from multigrid.schedule import Phase
from slowfast_patches.plan.cluster.gradients import BACKWARD, Bucket
from slowfast_patches.plan.cluster.network import MACHINES, Cluster
from slowfast_patches.plan.cluster.plan import ClusterPlan, Estimate
from slowfast_patches.plan.cluster.times import Times, Training
from slowfast_patches.plan.plan import short_phases
from slowfast_patches.utils.report import (
    format_count,
    format_duration,
    format_factor,
    format_table,
)

__all__ = ["cluster_json", "format_cluster_plan"]

LARGEST_TRAINED = 512
"""Clips of a mini-batch of the baseline's shape that the paper trained, on 128 GPUs."""

LARGEST_TSM = 12_288
"""Clips with which Lin, Gan and Han (2019) trained TSM, without multigrid, on 1,536 GPUs."""


def format_cluster_plan(plan: ClusterPlan) -> str:
    """The phases and totals on the cluster asked for, the numbers of GPUs, and what to know."""
    warnings = [f"warning: {text}" for text in short_phases(plan.estimate.ours.schedule)]
    tables = [_phases(plan.estimate), _totals(plan), _rows(plan)]
    return "\n\n".join([_cluster(plan), *tables, "\n".join(_notes(plan)), *warnings])


def _cluster(plan: ClusterPlan) -> str:
    cluster = plan.estimate.cluster
    between, inside = (
        "no limit" if math.isinf(speed) else f"{speed / 1e9:g} GB/s"
        for speed in (cluster.network, cluster.node_network)
    )
    text = (
        f"{_count(cluster.gpus, 'GPU')} on {_count(cluster.nodes, 'node')}. Network: {between} a "
        f"node and direction (--network), {inside} between the GPUs of a node (--node-network), "
        f"{1e6 * cluster.latency:g} µs a message (--latency)."
    )
    if plan.machine is None:
        return text
    preset = MACHINES[plan.machine]
    given = [
        f"--{name.replace('_', '-')}"
        for name in ("gpus_per_node", "network", "node_network", "latency")
        if not math.isclose(getattr(cluster, name), getattr(preset.node, name))
    ]
    but = f" Not of the machine, but as given: {', '.join(given)}." if given else ""
    return f"{text}\nMachine: {preset.what} ({preset.sources}).{but}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


_SHARES = ("compute", "all-reduce", "BN", "waiting")


def _shares(times: Times) -> list[str]:
    """Compute, exposed all-reduce, shared BN and waiting: parts of the time, 100 % in all."""
    parts = (times.compute, times.exposed, times.shared_bn, times.waiting)
    return ["–" if part == 0 else f"{100 * part / times.seconds:.1f} %" for part in parts]


def _phases(estimate: Estimate) -> str:
    headers = ["phase", "base shape", "clips\na GPU", "iterations", "time"]
    headers += [*(f"\n{name}" for name in _SHARES), "limits", "clips/s\nneeded"]
    rows = [
        [
            str(number),
            str(phase.base_shape),
            ", ".join(str(shape.batch // estimate.cluster.gpus) for shape in phase.shapes),
            format_count(times.iterations),
            format_duration(times.seconds),
            *_shares(times),
            times.limit,
            format_count(round(times.clips_per_second)),
        ]
        for number, (phase, times) in enumerate(_pairs(estimate.ours), start=1)
    ]
    return format_table(headers, rows, left=2)


def _totals(plan: ClusterPlan) -> str:
    ours, baseline = plan.estimate.ours.total, plan.estimate.baseline.total
    rows = [
        [name, show(a), show(b), format_factor(a, b)]
        for name, a, b, show in (
            ("iterations", ours.iterations, baseline.iterations, format_count),
            ("time", ours.seconds, baseline.seconds, format_duration),
        )
    ]
    for name, a, b in zip(_SHARES, _shares(ours), _shares(baseline), strict=True):
        rows.append([f"  {name}", a, b, ""])
    rows.append(["limits", ours.limit, baseline.limit, ""])
    if plan.recipe.uses_multigrid:
        return format_table(["", "this plan", "baseline", ""], rows)
    return format_table(["", "this plan"], [row[:2] for row in rows])


def _rows(plan: ClusterPlan) -> str:
    multigrid = plan.recipe.uses_multigrid
    headers = ["GPUs", "nodes", "batch", "time", "efficiency", "limits"]
    if multigrid:
        headers += ["baseline\ntime", "\nefficiency", "\nlimits", "speed-up"]
    headers += ["clips/s needed\na node", "\nin all", ""]
    cells, reasons = [], list[str]()
    for gpus, row in plan.rows.items():
        nodes = replace(plan.estimate.cluster, gpus=gpus).nodes
        cells.append([f"{gpus:,}", f"{nodes:,}"])
        if isinstance(row, str):
            cells[-1] += [*[""] * (len(headers) - 3), "cannot train"]
            reasons.append(f"{gpus:,} GPUs: {row}")
            continue
        cells[-1] += [f"{row.batch:,}", *_time_cells(row.ours.total)]
        if multigrid:
            cells[-1] += [*_time_cells(row.baseline.total), f"{row.speed_up:.2f}×"]
        peak = max(training.peak.clips_per_second for training in (row.ours, row.baseline))
        cells[-1] += [format_count(round(peak / nodes)), format_count(round(peak))]
        cells[-1] += ["; ".join(row.notes)]
    return "\n".join([format_table(headers, cells, left=0), *reasons])


def _time_cells(times: Times) -> list[str]:
    return [format_duration(times.seconds), f"{100 * times.efficiency:.1f} %", times.limit]


def _notes(plan: ClusterPlan) -> list[str]:
    """What the numbers mean and what they leave out."""
    ours = plan.estimate.ours
    peak, needed = ours.phases.index(ours.peak) + 1, ours.peak.clips_per_second
    reading = "Waiting is for clips." if plan.reads else "Reading is left out: --loader adds it."
    gpus, keys = _reference(plan)
    megabytes = sum(bucket.size for bucket in _buckets(plan)) / 1e6
    return [
        f"Shares of the time: compute; all-reduce, what backward does not hide of the exchange of "
        f"{megabytes:,.1f} MB of gradients; BN, statistics shared by GPUs. {reading} Efficiency is "
        "the share of compute. Limits: what alone would take longest.",
        f"Clips: phase {peak} needs the most, {format_count(round(needed))} a second from the "
        f"storage, {format_count(round(needed / plan.estimate.cluster.nodes))} on each node.",
        f"Each GPU keeps the clips that the recipe gives each of {_count(gpus, 'GPU')} ({keys}); "
        "batch and rates grow with the number of GPUs, iterations shrink.",
        f"Seconds of an iteration: {plan.source}. Evaluation, checkpoints, starting up, and the "
        "slowest of many GPUs are left out.",
        *_beyond_trained(plan),
    ]


def _beyond_trained(plan: ClusterPlan) -> list[str]:
    """Which batches of the rows nobody has trained, and who trained the largest."""
    estimates = [row for row in plan.rows.values() if isinstance(row, Estimate)]
    last = max(estimates, key=lambda estimate: estimate.batch)
    tsm, multigrid = plan.recipe.model.arch == "tsm", plan.recipe.uses_multigrid
    if last.batch <= (LARGEST_TSM if tsm and not multigrid else LARGEST_TRAINED):
        return []
    largest = max(shape.batch for shape in last.ours.schedule.shapes)
    also = f", {largest:,} at multigrid's smallest shape" if largest > last.batch else ""
    trained = f"the paper trained {LARGEST_TRAINED} at the baseline's shape"
    trained += f", Lin et al. (2019) {LARGEST_TSM:,} of TSM without multigrid" if tsm else ""
    return [
        f"On {last.cluster.gpus:,} GPUs a batch has {last.batch:,} clips{also}: {trained}, Goyal "
        "et al. (2017) kept the accuracy of images up to 8,192. Beyond what was trained, the hours "
        "are arithmetic and promise no accuracy."
    ]


def cluster_json(plan: ClusterPlan) -> dict[str, Any]:
    """The plan as plain data: bytes, seconds, clips. Without limit, or not known, is null."""
    preset = None if plan.machine is None else MACHINES[plan.machine]
    gpus, keys = _reference(plan)
    return {
        "seconds_source": plan.source,
        "reference_gpus": gpus,
        "reference_gpus_from": keys,
        "gradient_bytes": sum(bucket.size for bucket in _buckets(plan)),
        "buckets": [
            {"bytes": bucket.size, "ready_at_share_of_backward": bucket.ready}
            for bucket in _buckets(plan)
        ],
        "machine": preset and preset.what,
        "machine_sources": preset and preset.sources,
        "bn_layers": len(plan.exchange.norms),
        "backward_share_of_compute": BACKWARD,
        **_estimate_json(plan, plan.estimate, phases=True),
        "gpu_counts": [
            {"gpus": gpus, "nodes": replace(plan.estimate.cluster, gpus=gpus).nodes, "reason": row}
            if isinstance(row, str)
            else _estimate_json(plan, row)
            for gpus, row in plan.rows.items()
        ],
    }


def _estimate_json(plan: ClusterPlan, estimate: Estimate, phases: bool = False) -> dict[str, Any]:
    cluster = estimate.cluster
    return {
        "gpus": cluster.gpus,
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "network_bytes_per_second": _finite(cluster.network),
        "node_network_bytes_per_second": _finite(cluster.node_network),
        "latency_seconds": cluster.latency,
        "global_batch": estimate.batch,
        "speed_up": estimate.speed_up,
        "warnings": short_phases(estimate.ours.schedule),
        "notes": estimate.notes,
        "plan": _training_json(plan, estimate.ours, cluster, phases),
        "baseline": _training_json(plan, estimate.baseline, cluster, phases),
    }


def _training_json(
    plan: ClusterPlan, training: Training, cluster: Cluster, phases: bool
) -> dict[str, Any]:
    def as_json(times: Times) -> dict[str, Any]:
        found = times._asdict() | {name: getattr(times, name) for name in _DERIVED}
        return found | {
            "hours": times.seconds / 3600,
            "reading": times.reading if plan.reads else None,
        }

    found = as_json(training.total)
    found["peak_clips_per_second"] = training.peak.clips_per_second
    if phases:
        found["phases"] = [
            {
                "number": number,
                "stage": phase.stage + 1,
                "shapes": [asdict(shape) for shape in phase.shapes],
                "bn_sizes": phase.bn_sizes,
                "clips_per_gpu": [shape.batch // cluster.gpus for shape in phase.shapes],
                **as_json(times),
            }
            for number, (phase, times) in enumerate(_pairs(training), start=1)
        ]
    return found


_DERIVED = ("seconds", "efficiency", "limit", "clips_per_second")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _pairs(training: Training) -> list[tuple[Phase, Times]]:
    return list(zip(training.schedule.phases, training.phases, strict=True))


def _buckets(plan: ClusterPlan) -> tuple[Bucket, ...]:
    base = plan.estimate.ours.schedule.base
    return plan.exchange.buckets(base.frames, base.crop)


def _reference(plan: ClusterPlan) -> tuple[int, str]:
    """How many GPUs the recipe is written for, and the keys that say so."""
    recipe = plan.recipe
    if gpus := recipe.solver.reference_world_size:
        return gpus, "SOLVER.REFERENCE_WORLD_SIZE"
    return max(1, recipe.num_gpus) * recipe.num_shards, "NUM_GPUS × NUM_SHARDS"
