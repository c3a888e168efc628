"""What the runs of an arm measured, beside those of its baseline, and how a report is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slowfast_patches.study.arms import Arm
from slowfast_patches.study.runs import Result, Results, working_seconds
from slowfast_patches.utils.tables import Mean, mean_of

__all__ = ["MISSING", "Measured", "as_json", "measure", "provenance", "write_report"]

MISSING = "missing"


@dataclass(frozen=True)
class Measured:
    """An arm and the results of its finished runs by seed; `baseline` has those of the arm that it
    is compared with."""

    arm: Arm
    runs: Mapping[int, Result]
    baseline: Mapping[int, Result]

    def mean(self, value: Callable[[Result], float]) -> Mean | None:
        """Of a value over the seeds; None before the first run is finished."""
        return mean_of(value(run) for run in self.runs.values())

    def metric(self, name: str) -> Mean | None:
        """In per cent, over the seeds."""
        return mean_of(run[name] for run in self.runs.values() if name in run)

    def factors(self, value: Callable[[Result], float]) -> dict[int, float]:
        """The baseline's value as a multiple of ours, for the seeds that both have finished."""
        return {
            seed: value(self.baseline[seed]) / value(run)
            for seed, run in self.runs.items()
            if seed in self.baseline
        }

    @property
    def speed_up(self) -> Mean | None:
        """In wall-clock time, loading included."""
        return mean_of(self.factors(working_seconds).values())

    @property
    def machines(self) -> list[str]:
        """What the runs were on, and how many of it."""
        return list(dict.fromkeys(map(_machine, self.runs.values())))


def measure(arm: Arm, baseline: Arm, seeds: Sequence[int], results: Results) -> Measured:
    """What the results hold of an arm and of its baseline."""

    def runs(name: str) -> dict[int, Result]:
        return {seed: results[name, seed] for seed in seeds if (name, seed) in results}

    return Measured(arm, runs(arm.name), runs(baseline.name))


def _machine(run: Result) -> str:
    machine = run["machine"]
    if machine["gpus"]:
        return f"{run['world_size']} × {machine['gpus'][0]}"
    cores = f", {machine['cores']} cores" if "cores" in machine else ""
    return f"CPU: {machine['processor']}{cores}".strip()


def provenance(rows: Iterable[Measured], command: str) -> list[str]:
    """Paragraphs that say on what the runs of a report were made, and by which command."""
    rows = list(rows)
    machines = list(dict.fromkeys(name for row in rows for name in row.machines))
    runs = [run for row in rows for run in row.runs.values()]
    versions = dict.fromkeys(
        ", ".join(f"{name} {version}" for name, version in run["versions"].items() if version)
        for run in runs
        if "versions" in run
    )
    paragraphs = [f"Machines: {' | '.join(machines) or MISSING}"]
    paragraphs += [f"Versions: {' | '.join(versions)}"] if versions else []
    if len(machines) > 1:
        paragraphs.append("The runs are of different machines: their times do not compare.")
    return [*paragraphs, f"To reproduce:\n\n    {command}"]


def write_report(folder: Path, name: str, data: Any, paragraphs: Iterable[str]) -> None:
    """Write NAME.json, what a report found as plain data, and NAME.md, the same for people."""
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps(data, indent=2, ensure_ascii=False)
    (folder / f"{name}.json").write_text(content + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")


def as_json(mean: Mean | None) -> dict[str, float | None] | None:
    """A mean as plain data, null where there is none."""
    return None if mean is None else mean._asdict()
