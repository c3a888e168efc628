"""Where the time of a step goes: its kernels, or on the CPU its operators."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from step_bench import Case
from step_columns import Row
from step_variants import Run
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from multigrid import Shape
from slowfast_patches.utils.report import format_table

__all__ = ["find_case", "format_profile", "profile_case"]

_STEPS = 3
_SHOWN = 15


def find_case(runs: Sequence[Run], rows: Sequence[Sequence[Row]], wanted: str) -> tuple[Run, int]:
    """The variant and the number of the shape that --profile names.

    Args:
        rows: of each run, as measured.
        wanted: "[VARIANT:]SHAPE", a shape as "64x8x158" or "worst", which has the smallest share of
            the matrix rate. Without a variant it is "all" where that is measured, else the first.

    Raises:
        ValueError: a variant or shape that was not measured.
    """
    name, _, shape = wanted.rpartition(":")
    measured = {run.name: i for i, run in enumerate(runs) if run.failure is None}
    name = name or ("all" if "all" in measured else next(iter(measured), ""))
    if name not in measured:
        raise ValueError(f"--profile {wanted}: {name or 'a variant'} was not measured")
    number = measured[name]
    timed = {
        tuple(row["shape"]): place
        for place, row in reversed(list(enumerate(rows[number])))
        if row["seconds"] is not None
    }
    if shape == "worst" and timed:
        share = {place: rows[number][place]["matrix_share"]["median"] for place in timed.values()}
        return runs[number], min(share, key=share.__getitem__)
    sides = tuple(int(side) for side in re.findall(r"\d+", shape.removesuffix("²")))
    if sides not in timed:
        known = ", ".join("x".join(map(str, sides)) for sides in timed)
        raise ValueError(f"--profile {wanted}: there is no time for {shape}; there are {known}")
    return runs[number], timed[sides]


def profile_case(name: str, case: Case) -> dict[str, Any]:
    """The kernels of some steps by their time on the GPU, or the operators by theirs on the CPU.

    "busy" is the share of the steps' time in which a GPU computes: what is missing it waits, for
    the CPU that launches kernels. It is of the profiled steps, which the profiler makes longer.
    """
    on_gpu = case.bench.device.type == "cuda"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    with profile(activities=activities) as profiler:
        took = case.bench.time(case.step, case.batch, _STEPS)
    found = [
        (
            event.key,
            event.count,
            event.self_device_time_total if on_gpu else event.self_cpu_time_total,
        )
        for event in profiler.key_averages()
        if (event.device_type == DeviceType.CUDA) == on_gpu
    ]
    total = sum(microseconds for *_, microseconds in found)
    found.sort(key=lambda row: row[2], reverse=True)
    return {
        "variant": name,
        "shape": [case.shape.batch, case.shape.frames, case.shape.crop],
        "steps": _STEPS,
        "of": "kernels" if on_gpu else "operators",
        "seconds_per_step": took.seconds,
        "busy": total / 1e6 / (took.seconds * _STEPS) if on_gpu else None,
        "rows": [
            {
                "name": key,
                "calls_per_step": count / _STEPS,
                "seconds_per_step": microseconds / 1e6 / _STEPS,
                "share": microseconds / total,
            }
            for key, count, microseconds in found[:_SHOWN]
        ],
    }


def format_profile(found: dict[str, Any]) -> str:
    """The table of a profile."""
    rows = [
        [
            row["name"][:90],
            f"{row['calls_per_step']:.4g}",
            f"{1000 * row['seconds_per_step']:.3f}",
            f"{100 * row['share']:.1f} %",
        ]
        for row in found["rows"]
    ]
    title = (
        f"Profile of {found['variant']} at {Shape(*found['shape'])}: the {len(rows)} {found['of']} "
        f"that take most, over {found['steps']} steps"
    )
    busy = "" if found["busy"] is None else f"; computing {100 * found['busy']:.0f} % of that time"
    headers = [found["of"], "a step", "ms a step", "share"]
    return (
        f"{title}\n\n{format_table(headers, rows)}\n\n{1000 * found['seconds_per_step']:.1f} ms a "
        f"step while profiled{busy}"
    )
