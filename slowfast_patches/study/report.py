"""What all reports of runs share: means over seeds, plain data, and how a report is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from slowfast_patches.config.metrics import metric_title
from slowfast_patches.config.yaml_text import parse_yaml
from slowfast_patches.study.arms import Arm
from slowfast_patches.utils.tables import (
    Mean,
    format_count,
    format_duration,
    format_flops,
    mean_of,
)

__all__ = [
    "COLUMNS",
    "MISSING",
    "arm_json",
    "format_mean",
    "machine_warnings",
    "mean",
    "provenance",
    "title_of",
    "write_report",
]

MISSING = "missing"


COLUMNS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "iterations": ("iterations", format_count),
    "iteration_factor": ("iteration\nfactor", "{:.2f}×".format),
    "epochs": ("epochs", "{:.1f}".format),
    "clips": ("clips", format_count),
    "flops": ("training\nFLOPs", format_flops),
    "seconds": ("wall-clock,\ntraining", format_duration),
    "total": ("wall-clock,\nwith evaluation", format_duration),
    "clock": ("steps\nalone", format_duration),
}
"""Columns of tables: headers, and how the numbers are written."""


def mean(runs: pd.DataFrame, arm: str, column: str) -> Mean | None:
    """The mean over seeds of a column of an arm's runs; None before the first is finished."""
    return mean_of(map(float, runs.loc[runs["arm"] == arm, column].dropna()))


def format_mean(value: Mean | None, digits: int = 1, unit: str = "") -> str:
    """A mean as `76.4 ± 0.2`, or "missing"."""
    return MISSING if value is None else f"{value.format(digits)}{unit}"


def title_of(metrics: Iterable[str]) -> str:
    """What runs are judged by: "top-1 and top-5"."""
    return " and ".join(map(metric_title, metrics))


def arm_json(arm: Arm, runs: pd.DataFrame, metrics: Sequence[str]) -> dict[str, Any]:
    """An arm and its runs as plain data: each mean has its `mean` and `std`, null where there is
    none. The runs are without the config, which is the arm's but for the seed."""
    means = {name: mean(runs, arm.name, name) for name in (*COLUMNS, "speed_up", *metrics)}
    ratios = runs["speed_up"].astype(object).where(runs["speed_up"].notna(), None)
    finished = zip(runs["arm"], runs["seed"], ratios, runs["result"], strict=True)
    return {
        "name": arm.name,
        "label": arm.label,
        "length": arm.length,
        "cfg_file": str(arm.cfg_file),
        "overrides": arm.overrides,
        **{name: value and value._asdict() for name, value in means.items()},
        "config": parse_yaml(arm.recipe.text),
        "runs": [
            {"seed": seed, "speed_up": ratio} | {k: v for k, v in run.items() if k != "config"}
            for name, seed, ratio, run in finished
            if name == arm.name
        ],
    }


def provenance(runs: pd.DataFrame, command: str) -> list[str]:
    """Paragraphs with the machines and versions of some runs, and the command that made them."""
    return [
        f"Machines: {' | '.join(runs['machine'].unique()) or MISSING}",
        f"Versions: {' | '.join(runs['versions'].unique()) or MISSING}",
        f"To reproduce:\n\n    {command}",
    ]


def machine_warnings(runs: pd.DataFrame) -> list[str]:
    """Return a warning if some runs are of different machines."""
    if runs["machine"].nunique() < 2:
        return []
    return ["The runs are of different machines: their times do not compare."]


def write_report(folder: Path, name: str, data: Any, paragraphs: Iterable[str]) -> None:
    """Write NAME.json, a report as plain data, and NAME.md, the same for people."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(data, indent=2, ensure_ascii=False)
    (folder / f"{name}.json").write_text(content + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")
