"""What a pilot found, for people: a table, a picture, and the keys to paste."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slowfast_patches.config.metrics import metric_title
from slowfast_patches.study.pilot.verdict import Arm, Pilot
from slowfast_patches.study.report import write_report
from slowfast_patches.utils.pictures import COLOURS, new_figure, save_figure
from slowfast_patches.utils.tables import format_duration, format_table

__all__ = ["advice_of", "format_pilot", "keys_of", "pilot_json", "write_pilot"]


def format_pilot(pilot: Pilot) -> str:
    """The evidence as a table, and what follows from it, for a terminal."""
    table = [_table(pilot)] if pilot.arms else []
    return "\n\n".join([*table, *_notes(pilot), *advice_of(pilot)])


def _table(pilot: Pilot, *, markdown: bool = False) -> str:
    headers = ["cycle", "shape", "seconds", "clips", "clips/s", "loss"]
    headers += [f"{metric_title(pilot.metric)}, %,\non its grid"]
    rows = list[list[str]]()
    for arm in pilot.arms:
        scores = [None, None, arm.own, arm.score][-len(arm.stages) :]
        for number, (stage, score) in enumerate(zip(arm.stages, scores, strict=True)):
            cells = [arm.cycle.name * (number == 0), str(stage.shape), f"{stage.seconds:.1f}"]
            cells += [f"{stage.clips:,}", f"{1 / stage.seconds_per_clip:.1f}"]
            shown = "" if score is None else f"{score:.1f} ± {pilot.error(score):.1f}"
            rows.append([*cells, f"{stage.loss:.2f}", shown])
    if markdown:
        headers = [header.replace("\n", " ") for header in headers]
    return format_table(headers, rows, left=2, markdown=markdown)


def _notes(pilot: Pilot) -> list[str]:
    several = f", on {pilot.processes} processes" if pilot.processes > 1 else ""
    times = (
        f"The pilot took {format_duration(pilot.seconds)}; the whole baseline would take "
        f"{format_duration(pilot.baseline_seconds)}{several}."
    )
    if not pilot.arms:
        return [times]
    chance = f"; the commonest class has {pilot.chance:.1f} %" if pilot.chance else ""
    return [
        f"Scores are {metric_title(pilot.metric)} on {pilot.videos} videos that nothing was "
        "trained on, at the grid just trained on, after precise BN there; ± is the standard error "
        f"of that many{chance}. The loss is the training's, in a stage's last tenth. Seconds are "
        "with loading; one seed.",
        times,
    ]


def advice_of(pilot: Pilot) -> list[str]:
    """What to do, how sure it is, and the keys."""
    verdict = pilot.verdict
    lines = [f"Advice: {verdict.text}."]
    if verdict.best is None:
        return lines
    faster = pilot.speed_up(verdict.best)
    above = verdict.best.score - pilot.arms[0].score
    lines.append(
        f"In the same short time it ended {abs(above):.1f} points "
        f"{'above' if above >= 0 else 'below'} the baseline. How sure: "
        f"{min(100 * verdict.sure, 99.9):.0f} %, by the number of videos that were scored and by "
        "how much seeds usually differ. As many clips as the whole baseline's pass "
        f"{faster:.2f} times as fast. Expect it above a baseline that is shortened to that time; "
        "whether it ends where the whole baseline does is another question: on the words its lead "
        "shrank as both trained longer (docs/proof.md). EPOCH_FACTOR makes it longer or shorter, "
        "and tools/compare.py --lengths draws both curves."
    )
    return [*lines, f"Keys:\n\n{keys_of(verdict.best)}"]


def keys_of(arm: Arm) -> str:
    """The keys of an arm's cycle as YAML."""
    lines = ["MULTIGRID:"]
    for key, value in arm.cycle.overrides.items():
        shown = (
            [[round(x, 4) for x in pair] for pair in value] if isinstance(value, list) else value
        )
        lines.append(f"  {key.removeprefix('MULTIGRID.')}: {shown}")
    return "\n".join(lines)


def pilot_json(pilot: Pilot) -> dict[str, Any]:
    """All of it as plain data."""
    verdict = pilot.verdict
    return {
        "advice": verdict.text,
        "best": verdict.best and verdict.best.cycle.name,
        "sure": verdict.sure,
        "speed_up": verdict.best and pilot.speed_up(verdict.best),
        "keys": verdict.best and verdict.best.cycle.overrides,
        "metric": pilot.metric,
        "videos": pilot.videos,
        "chance": pilot.chance,
        "baseline_seconds": pilot.baseline_seconds,
        "seconds": pilot.seconds,
        "arms": [
            {
                "cycle": arm.cycle.name,
                "own_grid": arm.own,
                pilot.metric: arm.score,
                "standard_error": pilot.error(arm.score),
                "stages": [
                    {
                        "shape": str(stage.shape),
                        "seconds": stage.seconds,
                        "iterations": stage.iterations,
                        "clips": stage.clips,
                        "loss": stage.loss,
                    }
                    for stage in arm.stages
                ],
            }
            for arm in pilot.arms
        ],
    }


def write_pilot(pilot: Pilot, folder: Path, command: str) -> None:
    """Write pilot.md, pilot.json and pilot.png into a folder."""
    if pilot.arms:
        _plot(pilot, folder / "pilot.png")
    advice = advice_of(pilot)
    if len(advice) > 1:
        advice[-1] = "```yaml\n" + advice[-1].split("\n\n", 1)[1] + "\n```"
    paragraphs = ["# Pilot"]
    if pilot.arms:
        paragraphs += [_table(pilot, markdown=True), "![Pilot](pilot.png)"]
    paragraphs += [*_notes(pilot), *advice, f"To reproduce:\n\n    {command}"]
    write_report(folder, "pilot", pilot_json(pilot), paragraphs)


def _plot(pilot: Pilot, path: Path) -> None:
    """A bar for each arm: its time, cut into its shapes, ends at its score."""
    figure, [axes] = new_figure(rows=1, width=8, height=1.2 + 0.7 * len(pilot.arms))
    shapes = list(dict.fromkeys(s.shape for arm in reversed(pilot.arms) for s in arm.stages))
    for place, arm in enumerate(pilot.arms):
        left = 0.0
        for stage in arm.stages:
            colour = COLOURS[shapes.index(stage.shape) % len(COLOURS)]
            axes.barh(place, stage.seconds, left=left, color=colour, edgecolor="white")
            middle = left + stage.seconds / 2
            axes.text(middle, place, str(stage.shape), ha="center", va="center", fontsize=8)
            left += stage.seconds
        text = f" {arm.score:.1f} ± {pilot.error(arm.score):.1f} %"
        axes.text(left, place, text, va="center", fontweight="bold")
    longest = max(sum(stage.seconds for stage in arm.stages) for arm in pilot.arms)
    axes.set_xlim(0, 1.25 * longest)
    axes.set_yticks(range(len(pilot.arms)), [arm.cycle.name for arm in pilot.arms])
    axes.invert_yaxis()
    axes.set_xlabel("training time, loading included (s)")
    axes.set_title(f"{metric_title(pilot.metric)} after equal times", fontsize=10)
    save_figure(figure, path)
