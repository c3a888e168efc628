"""What an experiment came to: the paper's numbers beside those of the runs, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slowfast_patches.config.metrics import metric_title
from slowfast_patches.study.reproduction.experiment import Experiment, Row, Training
from slowfast_patches.study.reproduction.recipes import trainings_of
from slowfast_patches.study.runs import Arm, Result, find_results, working_seconds
from slowfast_patches.utils.report import Mean, format_table, mean_of

__all__ = ["TOY_MARK", "Measured", "Outcome", "format_outcome", "make_outcome", "write_outcome"]

TOY_MARK = (
    "TOY SIZE: a test of the path on rendered videos; no number here is the paper's experiment."
)

_MISSING = "missing"


@dataclass(frozen=True)
class Measured:
    """What the finished runs of a row gave: means over seeds, None before the first.

    `speed_up` is in wall-clock, loading included, over the seeds that the row's baseline finished
    too. `machines` says what they ran on.
    """

    seeds: tuple[int, ...]
    iterations: int | None
    metrics: Mapping[str, Mean]
    speed_up: Mean | None
    hours: Mean | None
    machines: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """An experiment with what was measured of each row."""

    experiment: Experiment
    rows: Mapping[Row, Measured]
    recipes: Mapping[Row, Arm]
    seeds: tuple[int, ...]
    toy: bool
    command: str

    def to_json(self) -> dict[str, Any]:
        """As plain data; a mean has its `mean` and `std`, what is missing is null."""
        return {
            "experiment": self.experiment.name,
            "title": self.experiment.title,
            "scale": "toy" if self.toy else "paper",
            "note": TOY_MARK if self.toy else self.experiment.note,
            "command": self.command,
            "seeds": list(self.seeds),
            "published_runs": self.experiment.published_runs,
            "rows": [self._row_to_json(row) for row in self.experiment.rows],
        }

    def _row_to_json(self, row: Row) -> dict[str, Any]:
        measured, arm = self.rows[row], self.recipes[row]
        names = self.experiment.metrics
        return {
            "label": row.label,
            "curve": row.curve,
            "config": "/".join(arm.cfg_file.parts[-2:]),
            "overrides": list(arm.overrides),
            "iterations": measured.iterations or arm.iterations,
            "published": {name: _plain(row.published.metrics.get(name)) for name in names}
            | {"speed_up": row.published.speed_up},
            "measured": {name: _plain(measured.metrics.get(name)) for name in names}
            | {"speed_up": _plain(measured.speed_up), "hours": _plain(measured.hours)},
            "finished_seeds": list(measured.seeds),
            "machines": list(measured.machines),
        }


def make_outcome(
    experiment: Experiment,
    recipes: Mapping[Training, Arm],
    seeds: Sequence[int],
    output: Path,
    *,
    toy: bool,
    command: str,
) -> Outcome:
    """Gather the results that `output` holds.

    Raises:
        ValueError: one of them is of another config than the recipe's; says what differs.
    """
    own = [recipes[training] for training in trainings_of([experiment])]
    results = find_results(own, seeds, output)

    def runs(training: Training) -> dict[int, Result]:
        name = recipes[training].name
        return {seed: results[name, seed] for seed in seeds if (name, seed) in results}

    rows = {
        row: _measure(experiment, runs(row.training), runs(row.baseline)) for row in experiment.rows
    }
    of_rows = {row: recipes[row.training] for row in experiment.rows}
    return Outcome(experiment, rows, of_rows, tuple(seeds), toy, command)


def _measure(
    experiment: Experiment, runs: Mapping[int, Result], baseline: Mapping[int, Result]
) -> Measured:
    found = {
        name: mean_of(run[name] for run in runs.values() if name in run)
        for name in experiment.metrics
    }
    both = [
        (working_seconds(baseline[seed]), working_seconds(runs[seed]))
        for seed in runs
        if seed in baseline
    ]
    machines = dict.fromkeys(_machine(run) for run in runs.values())
    return Measured(
        seeds=tuple(runs),
        iterations=max((run["iterations"] for run in runs.values()), default=None),
        metrics={name: mean for name, mean in found.items() if mean is not None},
        speed_up=mean_of(theirs / ours for theirs, ours in both),
        hours=mean_of(working_seconds(run) / 3600 for run in runs.values()),
        machines=tuple(machines),
    )


def _machine(run: Result) -> str:
    """What it ran on, and how many of it."""
    machine = run["machine"]
    gpus = machine["gpus"]
    name = f"{run['world_size']} × {gpus[0]}" if gpus else f"CPU: {machine['processor']}"
    return name.strip()


def format_outcome(outcome: Outcome, *, markdown: bool = False) -> str:
    """The table of an experiment, published beside measured, for a terminal or in Markdown."""
    experiment = outcome.experiment
    headers, ours = ["", "iterations"], "toy" if outcome.toy else "measured"
    for name in experiment.metrics:
        title = metric_title(name)
        headers += [f"{title}, %\npublished", f"{title}, %\n{ours}"]
    headers += ["speed-up\npublished", f"speed-up\n{ours}", "runs"]
    if markdown:
        headers = [header.replace("\n", " ") for header in headers]
    rows = [_cells(outcome, row) for row in experiment.rows]
    return format_table(headers, rows, markdown=markdown)


def _cells(outcome: Outcome, row: Row) -> list[str]:
    measured, published = outcome.rows[row], row.published
    is_baseline = row.training == row.baseline
    cells = [row.label, f"{measured.iterations or outcome.recipes[row].iterations:,}"]
    for name in outcome.experiment.metrics:
        theirs, ours = published.metrics.get(name), measured.metrics.get(name)
        cells += [theirs.format(_digits(theirs)) if theirs else "–"]
        cells += [ours.format() if ours else _MISSING]
    cells.append("1×" if is_baseline else _times(published.speed_up))
    ours = measured.speed_up
    cells.append(_MISSING if ours is None else "1×" if is_baseline else f"{ours.format(2)}×")
    cells.append(f"{len(measured.seeds)} of {len(outcome.seeds)}")
    return cells


def _digits(mean: Mean) -> int:
    """As many decimals as the paper prints: two where it gives a standard deviation."""
    return 1 if mean.std is None else 2


def _times(factor: float | None) -> str:
    return "–" if factor is None else f"{factor:.2g}×"


def write_outcome(outcome: Outcome, folder: Path) -> Path:
    """Write NAME.md and NAME.json into a folder; returns the path of the former."""
    folder.mkdir(parents=True, exist_ok=True)
    name = outcome.experiment.name
    content = json.dumps(outcome.to_json(), indent=2, ensure_ascii=False)
    (folder / f"{name}.json").write_text(content + "\n", encoding="utf-8")
    path = folder / f"{name}.md"
    path.write_text(_markdown(outcome), encoding="utf-8")
    return path


def _markdown(outcome: Outcome) -> str:
    experiment = outcome.experiment
    machines = dict.fromkeys(m for row in outcome.rows.values() for m in row.machines)
    runs = experiment.published_runs
    parts = [
        f"# {experiment.title}",
        *([f"**{TOY_MARK}**"] if outcome.toy else []),
        format_outcome(outcome, markdown=True),
        *([f"![{experiment.title}]({experiment.name}.png)"] if experiment.is_figure else []),
        f"Published: Wu et al., CVPR 2020, on P100 GPUs{f', {runs} runs' if runs > 1 else ''}. "
        "Measured: means over seeds, ± the sample standard deviation; the speed-up is the ratio of "
        "wall-clock times to the baseline's of the same seed, loading included, evaluation left "
        f"out. “{_MISSING}”: no finished run yet; “–”: not in the paper's tables.",
        *([experiment.note] if experiment.note else []),
        f"Machines: {' | '.join(machines) or _MISSING}",
    ]
    if len(machines) > 1:
        parts.append("The runs are of different machines: their times do not compare.")
    parts.append(f"To reproduce:\n\n    {outcome.command}")
    return "\n\n".join(parts) + "\n"


def _plain(mean: Mean | None) -> dict[str, float | None] | None:
    return None if mean is None else mean._asdict()
