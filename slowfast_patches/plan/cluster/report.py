"""A cluster plan as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multigrid import Shape
from slowfast_patches.utils.tables import (
    format_count,
    format_duration,
    format_factor,
    format_table,
)

__all__ = ["format_cluster_plan"]

LARGEST_TRAINED = 512
"""Clips of a mini-batch of the baseline's shape that the paper trained, on 128 GPUs."""

LARGEST_TSM = 12_288
"""Clips with which Lin, Gan and Han (2019) trained TSM, without multigrid, on 1,536 GPUs."""

Plan = Mapping[str, Any]
"""Of `plan_on_cluster`, or a part of it."""


def format_cluster_plan(plan: Plan) -> str:
    """The phases and totals on the cluster asked for, the numbers of GPUs, and what to know."""
    tables = [_phases(plan["plan"]), _totals(plan), _rows(plan)]
    warnings = [f"warning: {text}" for text in plan["warnings"]]
    return "\n\n".join([_cluster(plan), *tables, "\n".join(_notes(plan)), *warnings])


def _cluster(plan: Plan) -> str:
    between, inside = (
        "no limit" if speed is None else f"{speed / 1e9:g} GB/s"
        for speed in (plan["network_bytes_per_second"], plan["node_network_bytes_per_second"])
    )
    text = (
        f"{_count(plan['gpus'], 'GPU')} on {_count(plan['nodes'], 'node')}. Network: {between} a "
        f"node and direction (--network), {inside} between the GPUs of a node (--node-network), "
        f"{1e6 * plan['latency_seconds']:g} µs a message (--latency)."
    )
    if plan["machine"] is None:
        return text
    given = ", ".join(plan["differs_from_machine"])
    but = f" Not of the machine, but as given: {given}." if given else ""
    return f"{text}\nMachine: {plan['machine']} ({plan['machine_sources']}).{but}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


_SHARES = {
    "compute": "compute",
    "exposed": "all-reduce",
    "shared_bn": "BN",
    "waiting": "waiting",
}
"""The parts of the time, and how they are called."""


def _shares(times: Plan) -> list[str]:
    shares = [times[part] / times["seconds"] for part in _SHARES]
    return ["–" if share == 0 else f"{100 * share:.1f} %" for share in shares]


def _phases(training: Plan) -> str:
    headers = ["phase", "base shape", "clips\na GPU", "iterations", "time"]
    headers += [*(f"\n{name}" for name in _SHARES.values()), "limits", "clips/s\nneeded"]
    rows = [
        [
            str(phase["number"]),
            str(Shape(**phase["shapes"][-1])),
            ", ".join(map(str, phase["clips_per_gpu"])),
            format_count(phase["iterations"]),
            format_duration(phase["seconds"]),
            *_shares(phase),
            phase["limit"],
            format_count(round(phase["clips_per_second"])),
        ]
        for phase in training["phases"]
    ]
    return format_table(headers, rows, left=2)


_TOTALS = (("iterations", "iterations", format_count), ("time", "seconds", format_duration))


def _totals(plan: Plan) -> str:
    ours, baseline = plan["plan"], plan["baseline"]
    rows = [
        [name, write(ours[key]), write(baseline[key]), format_factor(ours[key], baseline[key])]
        for name, key, write in _TOTALS
    ]
    for name, a, b in zip(_SHARES.values(), _shares(ours), _shares(baseline), strict=True):
        rows.append([f"  {name}", a, b, ""])
    rows.append(["limits", ours["limit"], baseline["limit"], ""])
    if plan["multigrid"]:
        return format_table(["", "this plan", "baseline", ""], rows)
    return format_table(["", "this plan"], [row[:2] for row in rows])


def _rows(plan: Plan) -> str:
    headers = ["GPUs", "nodes", "batch", "time", "efficiency", "limits"]
    if plan["multigrid"]:
        headers += ["baseline\ntime", "\nefficiency", "\nlimits", "speed-up"]
    headers += ["clips/s needed\na node", "\nin all", ""]
    cells, reasons = list[list[str]](), list[str]()
    for row in plan["gpu_counts"]:
        start = [f"{row['gpus']:,}", f"{row['nodes']:,}"]
        if "reason" in row:
            cells.append([*start, *[""] * (len(headers) - 3), "cannot train"])
            reasons.append(f"{start[0]} GPUs: {row['reason']}")
            continue
        ours, baseline = row["plan"], row["baseline"]
        start += [f"{row['global_batch']:,}", *_time_cells(ours)]
        if plan["multigrid"]:
            start += [*_time_cells(baseline), f"{row['speed_up']:.2f}×"]
        peak = max(ours["peak_clips_per_second"], baseline["peak_clips_per_second"])
        needed = [format_count(round(peak / row["nodes"])), format_count(round(peak))]
        cells.append([*start, *needed, "; ".join(row["notes"])])
    return "\n".join([format_table(headers, cells, left=0), *reasons])


def _time_cells(times: Plan) -> list[str]:
    return [format_duration(times["seconds"]), f"{100 * times['efficiency']:.1f} %", times["limit"]]


def _notes(plan: Plan) -> list[str]:
    """What the numbers mean and what they leave out."""
    peak = max(plan["plan"]["phases"], key=lambda phase: phase["clips_per_second"])
    needed = peak["clips_per_second"]
    reads = plan["plan"]["reading"] is not None
    reading = "Waiting is for clips." if reads else "Reading is left out: --loader adds it."
    return [
        f"Shares of the time: compute; all-reduce, what backward does not hide of the exchange of "
        f"{plan['gradient_bytes'] / 1e6:,.1f} MB of gradients; BN, statistics shared by GPUs. "
        f"{reading} Efficiency is the share of compute. Limits: what alone would take longest.",
        f"Clips: phase {peak['number']} needs the most, {format_count(round(needed))} a second "
        f"from the storage, {format_count(round(needed / plan['nodes']))} on each node.",
        f"Each GPU keeps the clips that the recipe gives each of "
        f"{_count(plan['reference_gpus'], 'GPU')} ({plan['reference_gpus_from']}); batch and rates "
        "grow with the number of GPUs, iterations shrink.",
        f"Seconds of an iteration: {plan['seconds_source']}. Evaluation, checkpoints, starting up, "
        "and the slowest of many GPUs are left out.",
        *_beyond_trained(plan),
    ]


def _beyond_trained(plan: Plan) -> list[str]:
    """Which batches of the rows nobody has trained, and who trained the largest."""
    rows = [row for row in plan["gpu_counts"] if "reason" not in row]
    last = max(rows, key=lambda row: int(row["global_batch"]))
    batch, largest = last["global_batch"], last["largest_batch"]
    tsm = plan["architecture"] == "tsm"
    if batch <= (LARGEST_TSM if tsm and not plan["multigrid"] else LARGEST_TRAINED):
        return []
    also = f", {largest:,} at multigrid's smallest shape" if largest > batch else ""
    trained = f"the paper trained {LARGEST_TRAINED} at the baseline's shape"
    trained += f", Lin et al. (2019) {LARGEST_TSM:,} of TSM without multigrid" if tsm else ""
    return [
        f"On {last['gpus']:,} GPUs a batch has {batch:,} clips{also}: {trained}, Goyal et al. "
        "(2017) kept the accuracy of images up to 8,192. Beyond what was trained, the hours are "
        "arithmetic and promise no accuracy."
    ]
