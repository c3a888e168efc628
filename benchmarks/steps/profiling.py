"""Where the time of a step goes: its kernels, or on the CPU its operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.autograd.profiler_util import FunctionEventAvg
from torch.profiler import ProfilerActivity, profile

from multigrid import Shape
from slowfast_patches.utils.tables import format_table
from steps.case import Case
from steps.rates import Row
from steps.variants import Variant

__all__ = ["find_case", "format_profile", "parse_profile", "profile_case", "summarise"]

_STEPS = 3
_SHOWN = 15


def parse_profile(wanted: str, variants: Sequence[Variant]) -> tuple[Variant, Shape | None]:
    """The variant and the shape that --profile names; no shape where it is the worst.

    Args:
        wanted: "[VARIANT:]SHAPE", a shape as "64x8x158" or "worst". Without a variant it is "all"
            where that can be measured, else the first that can.

    Raises:
        ValueError: no such variant or shape is measured.
    """
    name, _, text = wanted.rpartition(":")
    measured = {variant.name: variant for variant in variants if variant.failure is None}
    name = name or ("all" if "all" in measured else next(iter(measured), ""))
    if name not in measured:
        raise ValueError(f"--profile {wanted}: there is {' and '.join(measured) or 'no variant'}")
    shapes: dict[str, Shape | None] = {"worst": None}
    for case in measured[name].cases:
        shapes[f"{case.shape.batch}x{case.shape.frames}x{case.shape.crop}"] = case.shape
    if text not in shapes:
        raise ValueError(f"--profile {wanted}: there are {', '.join(shapes)}")
    return measured[name], shapes[text]


def find_case(variant: Variant, rows: Sequence[Row], shape: Shape | None) -> Case:
    """The case of a shape; without one, of that with the smallest share of the matrix rate.

    Args:
        rows: of the variant's cases, as measured.

    Raises:
        ValueError: it has no time.
    """
    timed = [
        (row["matrix_share"]["median"], number)
        for number, row in enumerate(rows)
        if row["seconds"] is not None and shape in (None, variant.cases[number].shape)
    ]
    if not timed:
        raise ValueError(f"--profile: {variant.name} has no time for {shape or 'any shape'}")
    return variant.cases[min(timed)[1]]


def profile_case(name: str, case: Case) -> dict[str, Any]:
    """The kernels of some steps by their time on the GPU, or the operators by theirs on the CPU.

    "busy" is the share of the steps' time in which a GPU computes; the rest it waits, for the CPU
    that launches kernels. It is of the profiled steps, which the profiler makes longer.
    """
    on_gpu = case.bench.device.type == "cuda"
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu
    with profile(activities=activities) as profiler:
        took = case.bench.time(case.step, case.batch, _STEPS)
    rows, seconds = summarise(profiler.key_averages(), on_gpu, _STEPS)
    return {
        "variant": name,
        "shape": [case.shape.batch, case.shape.frames, case.shape.crop],
        "steps": _STEPS,
        "of": "kernels" if on_gpu else "operators",
        "seconds_per_step": took.seconds,
        "busy": seconds / took.seconds if on_gpu else None,
        "rows": rows,
    }


def summarise(
    events: Iterable[FunctionEventAvg], on_gpu: bool, steps: int
) -> tuple[list[dict[str, Any]], float]:
    """The kernels, or operators, that take most, and the seconds of all of them in a step."""
    found = [
        (e.key, e.count, (e.self_device_time_total if on_gpu else e.self_cpu_time_total) / 1e6)
        for e in events
        # A GPU's list has the program's own annotations, too, over the kernels that they cover.
        if (e.device_type == DeviceType.CUDA) == on_gpu and not (on_gpu and e.is_user_annotation)
    ]
    total = sum(seconds for *_, seconds in found)
    rows = [
        {
            "name": key,
            "calls_per_step": count / steps,
            "seconds_per_step": seconds / steps,
            "share": seconds / total,
        }
        for key, count, seconds in sorted(found, key=lambda row: -row[2])[:_SHOWN]
    ]
    return rows, total / steps


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
    busy = "" if found["busy"] is None else f"; computing {100 * found['busy']:.0f} % of that time"
    return (
        f"Profile of {found['variant']} at {Shape(*found['shape'])}: the {len(rows)} {found['of']} "
        f"that take most, over {found['steps']} steps\n\n"
        f"{format_table([found['of'], 'a step', 'ms a step', 'share'], rows)}\n\n"
        f"{1000 * found['seconds_per_step']:.1f} ms a step while profiled{busy}"
    )
