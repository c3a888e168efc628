"""What a pilot found, for people: a table, a picture, and the keys to paste."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from multigrid.cost import MIN_FINAL_ITERATIONS
from slowfast_patches.config.metrics import metric_title
from slowfast_patches.study.pilot.verdict import Pilot
from slowfast_patches.study.report import write_report
from slowfast_patches.utils.pictures import COLOURS, new_figure, save_figure
from slowfast_patches.utils.tables import format_duration, format_table

__all__ = ["advice_of", "format_pilot", "keys_of", "pilot_json", "write_pilot"]


def format_pilot(pilot: Pilot) -> str:
    """The evidence as a table, and what follows from it, for a terminal."""
    keys = (
        [f"Keys to add to the recipe:\n\n{keys_of(pilot.best.keys)}"]
        if pilot.verdict == "use multigrid"
        else []
    )
    return "\n\n".join([_table(pilot), *_notes(pilot), advice_of(pilot), *keys])


def _table(pilot: Pilot, *, markdown: bool = False) -> str:
    headers = ["arm", "clips × frames × pixels", "seconds", "iterations", "clips/s", "loss"]
    headers += [f"{metric_title(pilot.metric)} in the end, %"]
    rows = list[list[str]]()
    for arm in pilot.arms:
        for number, stage in enumerate(arm.stages):
            cells = [arm.name * (number == 0), str(stage.shape), f"{stage.seconds:.1f}"]
            cells += [f"{stage.iterations:,}", f"{1 / stage.seconds_per_clip:.1f}"]
            is_last = number == len(arm.stages) - 1
            score = f"{arm.score:.1f} ± {pilot.error(arm.score):.1f}" if is_last else ""
            rows.append([*cells, f"{stage.loss:.2f}", score])
    return format_table(headers, rows, left=2, markdown=markdown)


def _notes(pilot: Pilot) -> list[str]:
    title = metric_title(pilot.metric)
    chance = f", of which the commonest class has {pilot.chance:.1f} %" if pilot.chance else ""
    several = f" on {pilot.processes} processes" if pilot.processes > 1 else ""
    return [
        f"The {title} is that of {pilot.videos} validation videos{chance}, at the baseline's shape "
        "and of one seed; ± is the standard error that so few videos and a single seed give it. "
        "The loss is the training's, the mean of a shape's last tenth.",
        f"The pilot took {format_duration(pilot.seconds)}; the whole baseline would take "
        f"{format_duration(pilot.baseline_seconds)}{several}.",
    ]


def advice_of(pilot: Pilot) -> str:
    """The verdict, how probable its one claim is, and what to do."""
    name = pilot.best.name
    percent = round(100 * pilot.ahead)
    evidence = f"by these {pilot.videos} videos and one seed"
    if pilot.verdict == "use multigrid":
        return (
            f'Advice: use multigrid ("{name}"). After equal time it is ahead of the baseline with '
            f"a probability of {percent} %, {evidence}. A whole training with the keys below sees "
            f"as many clips as the whole baseline in 1/{pilot.speed_up:.2f} of its time; what both "
            "reach, multigrid-compare shows."
        )
    if pilot.verdict == "do not use multigrid":
        return (
            "Advice: do not use multigrid here. After equal time the baseline is ahead of the best "
            f'cycle ("{name}") with a probability of {100 - percent} %, {evidence}.'
        )
    text = (
        f'Undecided: after equal time the best cycle ("{name}") is ahead of the baseline with a '
        f"probability of {percent} %, {evidence}."
    )
    if pilot.final_iterations < MIN_FINAL_ITERATIONS:
        text += (
            f" Only {pilot.final_iterations} iterations followed its last coarse shape; what that "
            f"taught shows after some {MIN_FINAL_ITERATIONS}."
        )
    if 2 * pilot.seconds < pilot.baseline_seconds:
        return f"{text} Twice the time may tell: --minutes {math.ceil(pilot.seconds / 30)}."
    return f"{text} To know, train both with multigrid-compare."


def keys_of(keys: Mapping[str, object]) -> str:
    """The keys of a cycle as YAML."""
    lines = ["MULTIGRID:"]
    for key, value in keys.items():
        shown = (
            [[round(x, 4) for x in pair] for pair in value] if isinstance(value, list) else value
        )
        lines.append(f"  {key.removeprefix('MULTIGRID.')}: {shown}")
    return "\n".join(lines)


def pilot_json(pilot: Pilot) -> dict[str, Any]:
    """All of it as plain data; `ahead` is the probability that the best cycle is."""
    return {
        "advice": pilot.verdict,
        "best": pilot.best.name,
        "ahead": pilot.ahead,
        "speed_up": pilot.speed_up,
        "metric": pilot.metric,
        "videos": pilot.videos,
        "chance": pilot.chance,
        "baseline_seconds": pilot.baseline_seconds,
        "seconds": pilot.seconds,
        "arms": [
            {
                "arm": arm.name,
                "keys": arm.keys,
                pilot.metric: arm.score,
                "standard_error": pilot.error(arm.score),
                "stages": [{**asdict(stage), "shape": str(stage.shape)} for stage in arm.stages],
            }
            for arm in pilot.arms
        ],
    }


def write_pilot(pilot: Pilot, folder: Path, command: str) -> None:
    """Write pilot.md, pilot.json and pilot.png into a folder."""
    _plot(pilot, folder / "pilot.png")
    paragraphs = ["# Pilot", _table(pilot, markdown=True), "![Pilot](pilot.png)", *_notes(pilot)]
    paragraphs.append(advice_of(pilot))
    if pilot.verdict == "use multigrid":
        paragraphs.append(f"```yaml\n{keys_of(pilot.best.keys)}\n```")
    paragraphs.append(f"To reproduce:\n\n    {command}")
    write_report(folder, "pilot", pilot_json(pilot), paragraphs)


def _plot(pilot: Pilot, path: Path) -> None:
    """A bar for each arm: its time, cut into its shapes, ends at its score."""
    figure, [axes] = new_figure(rows=1, width=8, height=1.2 + 0.7 * len(pilot.arms))
    shapes = list(dict.fromkeys(s.shape for arm in pilot.arms for s in arm.stages))
    for place, arm in enumerate(pilot.arms):
        left = 0.0
        for stage in arm.stages:
            colour = COLOURS[shapes.index(stage.shape) % len(COLOURS)]
            axes.barh(place, stage.seconds, left=left, color=colour, edgecolor="white")
            middle = left + stage.seconds / 2
            axes.text(
                middle, place, str(stage.shape), ha="center", va="center", fontsize=8, color="white"
            )
            left += stage.seconds
        text = f" {arm.score:.1f} ± {pilot.error(arm.score):.1f} %"
        axes.text(left, place, text, va="center", fontweight="bold")
    longest = max(sum(stage.seconds for stage in arm.stages) for arm in pilot.arms)
    axes.set_xlim(0, 1.25 * longest)
    axes.set_yticks(range(len(pilot.arms)), [arm.name for arm in pilot.arms])
    axes.invert_yaxis()
    axes.set_xlabel("training time, loading included (s)")
    axes.grid(visible=False)
    title = f"{metric_title(pilot.metric)} after equal times, {pilot.videos} videos, one seed"
    axes.set_title(title, fontsize=10)
    save_figure(figure, path)
