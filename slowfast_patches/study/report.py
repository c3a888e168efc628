"""The finished runs of a study as a table, and how a report is written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from slowfast_patches.study.arms import Arm
from slowfast_patches.study.runs import Result, Results, working_seconds
from slowfast_patches.utils.tables import Mean, mean_of

__all__ = [
    "MISSING",
    "as_json",
    "format_mean",
    "mean_over_seeds",
    "provenance",
    "runs_table",
    "write_report",
]

MISSING = "missing"

_COLUMNS = (
    *("arm", "label", "length", "seed", "iterations", "epochs", "clips", "flops"),
    *("seconds", "evaluating", "waiting", "clock", "machine", "versions"),
)


def runs_table(
    arms: Iterable[Arm],
    seeds: Sequence[int],
    results: Results,
    metrics: Sequence[str],
    baselines: Mapping[str, str],
    step_seconds: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """The finished runs, a row each.

    - arm, label, length, seed: which run it is; `Arm` says what they mean.
    - iterations, epochs, clips, flops: of training, FLOPs of forward and backward.
    - seconds, evaluating: of training with loading, and of evaluation, by the clock.
    - waiting: the share of training without a core (of a single process on the CPU).
    - clock: the seconds that arms are compared by, those of `step_seconds` by the arm's name where
      they are given, else `seconds`.
    - speed_up, iteration_factor: the clock and the iterations of the run of `baselines[arm]` with
      the same seed, as a multiple of this run's; nan where that one is not finished.
    - machine, versions: what it ran on.
    - each of `metrics`, in per cent.
    """
    finished = [(arm, seed) for arm in arms for seed in seeds if (arm.name, seed) in results]
    rows = [_row(arm, seed, results[arm.name, seed], metrics) for arm, seed in finished]
    runs = pd.DataFrame(rows, columns=[*_COLUMNS, *metrics])
    runs["clock"] = runs["arm"].map(step_seconds) if step_seconds else runs["seconds"]
    index = pd.MultiIndex.from_frame(runs[["arm", "seed"]])
    baseline = pd.MultiIndex.from_arrays([runs["arm"].map(baselines), runs["seed"]])
    for factor, column in (("speed_up", "clock"), ("iteration_factor", "iterations")):
        values = runs[column].set_axis(index)
        runs[factor] = values.reindex(baseline).to_numpy() / runs[column]
    return runs


def _row(arm: Arm, seed: int, result: Result, metrics: Sequence[str]) -> dict[str, Any]:
    seconds = result["seconds"]
    return {
        "arm": arm.name,
        "label": arm.label,
        "length": arm.length,
        "seed": seed,
        **{name: result[name] for name in ("iterations", "epochs", "clips", "flops")},
        "seconds": working_seconds(result),
        "evaluating": seconds["evaluating"],
        "waiting": seconds["waiting"] / seconds["training"],
        "machine": _machine(result),
        "versions": ", ".join(f"{name} {v}" for name, v in result["versions"].items()),
        **{name: result.get(name) for name in metrics},
    }


def _machine(result: Result) -> str:
    machine = result["machine"]
    if machine["gpus"]:
        return f"{result['world_size']} × {machine['gpus'][0]}"
    return f"CPU: {machine['processor']}, {machine['cores']} cores"


def mean_over_seeds(runs: pd.DataFrame, arm: str, column: str) -> Mean | None:
    """Of a column of an arm's runs; None before the first is finished."""
    values = runs.loc[runs["arm"] == arm, column]
    return mean_of(map(float, values.dropna()))


def format_mean(mean: Mean | None, digits: int = 1, unit: str = "") -> str:
    """As `76.4 ± 0.2`, or "missing"."""
    return MISSING if mean is None else f"{mean.format(digits)}{unit}"


def as_json(mean: Mean | None) -> dict[str, float | None] | None:
    """A mean as plain data, null where there is none."""
    return None if mean is None else mean._asdict()


def provenance(runs: pd.DataFrame, command: str) -> list[str]:
    """Paragraphs with the machines and versions of some runs, and the command that made them."""
    machines = list(runs["machine"].unique())
    paragraphs = [f"Machines: {' | '.join(machines) or MISSING}"]
    if len(runs):
        paragraphs.append(f"Versions: {' | '.join(runs['versions'].unique())}")
    if len(machines) > 1:
        paragraphs.append("The runs are of different machines: their times do not compare.")
    return [*paragraphs, f"To reproduce:\n\n    {command}"]


def write_report(folder: Path, name: str, data: Any, paragraphs: Iterable[str]) -> None:
    """Write NAME.json, a report as plain data, and NAME.md, the same for people."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(data, indent=2, ensure_ascii=False)
    (folder / f"{name}.json").write_text(content + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")
