"""A cluster plan as text and as plain data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from slowfast_patches.plan.cluster.gradients import BACKWARD
from slowfast_patches.plan.cluster.machines import Preset
from slowfast_patches.plan.cluster.network import Cluster
from slowfast_patches.plan.cluster.plan import ClusterPlan, Estimate, Row
from slowfast_patches.plan.cluster.times import PhaseTimes, Times, TrainingTimes
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
    estimate = plan.estimate
    parts = [
        "\n".join(_describe(estimate.cluster, plan.preset)),
        _phases(estimate.ours),
        _totals(estimate, plan.multigrid),
        _rows(plan),
        "\n".join(_notes(plan)),
        *(f"warning: {text}" for text in estimate.warnings),
    ]
    return "\n\n".join(parts)


def cluster_json(plan: ClusterPlan) -> dict[str, Any]:
    """The plan as plain data: bytes, seconds, clips. Without limit, or not known, is null."""
    base = plan.estimate.ours.schedule.base
    return {
        "seconds_source": plan.source,
        "reference_gpus": plan.reference,
        "reference_gpus_from": plan.reference_key,
        "gradient_bytes": _gradient_bytes(plan),
        "buckets": [
            {"bytes": bucket.size, "ready_at_share_of_backward": bucket.ready}
            for bucket in plan.exchange.buckets(base.frames, base.crop)
        ],
        "machine": None if plan.preset is None else plan.preset.what,
        "machine_sources": None if plan.preset is None else plan.preset.sources,
        "bn_layers": len(plan.exchange.norms),
        "backward_share_of_compute": BACKWARD,
        **_estimate_json(plan.estimate, phases=True),
        "gpu_counts": [_row_json(row) for row in plan.rows],
    }


def _describe(cluster: Cluster, preset: Preset | None) -> list[str]:
    between, inside = _speed(cluster.network), _speed(cluster.node_network)
    lines = [
        f"{_count(cluster.gpus, 'GPU')} on {_count(cluster.nodes, 'node')}. Network: {between} a "
        f"node and direction (--network), {inside} between the GPUs of a node (--node-network), "
        f"{1e6 * cluster.latency:g} µs a message (--latency)."
    ]
    if preset is not None:
        given = [
            f"--{name.replace('_', '-')}" for name in _CHOSEN if _differs(name, cluster, preset)
        ]
        but = f" Not of the machine, but as given: {', '.join(given)}." if given else ""
        lines.append(f"Machine: {preset.what} ({preset.sources}).{but}")
    return lines


_CHOSEN = ("gpus_per_node", "network", "node_network", "latency")
"""What a preset says of a cluster."""


def _differs(name: str, cluster: Cluster, preset: Preset) -> bool:
    return not math.isclose(getattr(cluster, name), getattr(preset.node, name))


def _speed(bandwidth: float) -> str:
    return "no limit" if math.isinf(bandwidth) else f"{bandwidth / 1e9:g} GB/s"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


_SHARES = ("compute", "all-reduce", "BN", "waiting")


def _shares(times: Times) -> list[float]:
    """Compute, exposed all-reduce, shared BN and waiting, of the time; their sum is 1."""
    parts = (times.compute, times.exposed, times.shared_bn, times.waiting)
    return [part / times.seconds for part in parts]


def _phases(training: TrainingTimes) -> str:
    headers = ["phase", "base shape", "clips\na GPU", "iterations", "time"]
    headers += [*(f"\n{name}" for name in _SHARES), "limits", "clips/s\nneeded"]
    return format_table(headers, [_phase_cells(phase) for phase in training.phases], left=2)


def _phase_cells(phase: PhaseTimes) -> list[str]:
    times = phase.times
    return [
        str(phase.number),
        str(phase.phase.base_shape),
        ", ".join(map(str, phase.clips_per_gpu)),
        format_count(times.iterations),
        format_duration(times.seconds),
        *(_percent(share) for share in _shares(times)),
        times.limit,
        format_count(round(times.clips_per_second)),
    ]


def _percent(share: float) -> str:
    return "–" if share == 0 else f"{100 * share:.1f} %"


def _totals(estimate: Estimate, multigrid: bool) -> str:
    ours, baseline = estimate.ours.total, estimate.baseline.total
    rows = [
        _total_cells("iterations", ours.iterations, baseline.iterations, format_count),
        _total_cells("time", ours.seconds, baseline.seconds, format_duration),
        *(
            [f"  {name}", _percent(a), _percent(b), ""]
            for name, a, b in zip(_SHARES, _shares(ours), _shares(baseline), strict=True)
        ),
        ["limits", ours.limit, baseline.limit, ""],
    ]
    if multigrid:
        return format_table(["", "this plan", "baseline", ""], rows)
    return format_table(["", "this plan"], [row[:2] for row in rows])


def _total_cells(
    name: str, ours: float, baseline: float, write: Callable[[float], str]
) -> list[str]:
    return [name, write(ours), write(baseline), format_factor(ours, baseline)]


def _rows(plan: ClusterPlan) -> str:
    headers = ["GPUs", "nodes", "batch", "time", "efficiency", "limits"]
    if plan.multigrid:
        headers += ["baseline\ntime", "\nefficiency", "\nlimits", "speed-up"]
    headers += ["clips/s needed\na node", "\nin all", ""]
    cells = [_row_cells(row, plan.multigrid) for row in plan.rows]
    reasons = [f"{row.cluster.gpus:,} GPUs: {row.reason}" for row in plan.rows if row.reason]
    return "\n".join([format_table(headers, cells, left=0), *reasons])


def _row_cells(row: Row, multigrid: bool) -> list[str]:
    start = [f"{row.cluster.gpus:,}", f"{row.cluster.nodes:,}"]
    if row.estimate is None:
        return [*start, *[""] * (10 if multigrid else 6), "cannot train"]
    ours, estimate = row.estimate.ours, row.estimate
    cells = [*start, f"{estimate.batch:,}", *_time_cells(ours.total)]
    if multigrid:
        cells += [*_time_cells(estimate.baseline.total), f"{estimate.speed_up:.2f}×"]
    peak = max(t.peak.times.clips_per_second for t in (ours, estimate.baseline))
    cells += [format_count(round(peak / row.cluster.nodes)), format_count(round(peak))]
    return [*cells, "; ".join(estimate.notes)]


def _time_cells(times: Times) -> list[str]:
    return [format_duration(times.seconds), f"{100 * times.efficiency:.1f} %", times.limit]


def _notes(plan: ClusterPlan) -> list[str]:
    """What the numbers mean and what they leave out."""
    peak = plan.estimate.ours.peak
    needed = peak.times.clips_per_second
    reading = "Waiting is for clips." if plan.reads else "Reading is left out: --loader adds it."
    notes = [
        f"Shares of the time: compute; all-reduce, what backward does not hide of the exchange of "
        f"{_gradient_bytes(plan) / 1e6:,.1f} MB of gradients; BN, statistics shared by GPUs. "
        f"{reading} Efficiency is the share of compute. Limits: what alone would take longest.",
        f"Clips: phase {peak.number} needs the most, {format_count(round(needed))} a second from "
        f"the storage, {format_count(round(needed / plan.estimate.cluster.nodes))} on each node.",
        f"Each GPU keeps the clips that the recipe gives each of {_count(plan.reference, 'GPU')} "
        f"({plan.reference_key}); batch and rates grow with the number of GPUs, iterations "
        "shrink.",
        f"Seconds of an iteration: {plan.source}. Evaluation, checkpoints, starting up, and the "
        "slowest of many GPUs are left out.",
    ]
    return notes + _beyond_trained(plan)


def _beyond_trained(plan: ClusterPlan) -> list[str]:
    """Which batches of the rows nobody has trained, and who trained the largest."""
    last = max(
        (row.estimate for row in plan.rows if row.estimate is not None), key=lambda e: e.batch
    )
    tsm = plan.architecture == "tsm"
    if last.batch <= (LARGEST_TSM if tsm and not plan.multigrid else LARGEST_TRAINED):
        return []
    largest = max(shape.batch for phase in last.ours.phases for shape in phase.phase.shapes)
    also = f", {largest:,} at multigrid's smallest shape" if largest > last.batch else ""
    trained = f"the paper trained {LARGEST_TRAINED} at the baseline's shape"
    trained += f", Lin et al. (2019) {LARGEST_TSM:,} of TSM without multigrid" if tsm else ""
    return [
        f"On {last.cluster.gpus:,} GPUs a batch has {last.batch:,} clips{also}: {trained}, Goyal "
        "et al. (2017) kept the accuracy of images up to 8,192. Beyond what was trained, the hours "
        "are arithmetic and promise no accuracy."
    ]


def _gradient_bytes(plan: ClusterPlan) -> int:
    base = plan.estimate.ours.schedule.base
    return sum(bucket.size for bucket in plan.exchange.buckets(base.frames, base.crop))


def _row_json(row: Row) -> dict[str, Any]:
    if row.estimate is None:
        return {"gpus": row.cluster.gpus, "nodes": row.cluster.nodes, "reason": row.reason}
    return _estimate_json(row.estimate, phases=False)


def _estimate_json(estimate: Estimate, *, phases: bool) -> dict[str, Any]:
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
        "warnings": list(estimate.warnings),
        "notes": list(estimate.notes),
        "plan": _training_json(estimate.ours, phases=phases),
        "baseline": _training_json(estimate.baseline, phases=phases),
    }


def _training_json(training: TrainingTimes, *, phases: bool) -> dict[str, Any]:
    found = {**_times_json(training.total), "peak_clips_per_second": _peak(training)}
    if phases:
        found["phases"] = [
            {
                "number": phase.number,
                "stage": phase.phase.stage + 1,
                "shapes": [asdict(shape) for shape in phase.phase.shapes],
                "bn_sizes": phase.phase.bn_sizes,
                "clips_per_gpu": phase.clips_per_gpu,
                **_times_json(phase.times),
            }
            for phase in training.phases
        ]
    return found


def _peak(training: TrainingTimes) -> float:
    return training.peak.times.clips_per_second


def _times_json(times: Times) -> dict[str, Any]:
    return {
        **asdict(times),
        "seconds": times.seconds,
        "hours": times.seconds / 3600,
        "efficiency": times.efficiency,
        "limit": times.limit,
        "clips_per_second": times.clips_per_second,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
