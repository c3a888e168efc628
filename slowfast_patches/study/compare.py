"""Comparison of recipes: build the arms to train, and report the finished runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

import pandas as pd

from multigrid.cost import short_ends
from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.study.arms import Arm, check_study, make_arm, scaled
from slowfast_patches.study.curves import curves_of, draw_curves, leads_table, levels_table
from slowfast_patches.study.report import (
    Report,
    Table,
    arms_table,
    origin,
    study_json,
    study_warnings,
)
from slowfast_patches.study.runs import Study, mean
from slowfast_patches.study.score import CLEAR, format_score, score_of
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.pictures import COLOURS, MUTED, add_legend, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = ("iterations", "iteration_factor", "epochs", "clips", "flops", "seconds", "total")


def make_arms(
    cfg_files: Sequence[Path],
    overrides: Sequence[str],
    *,
    equal_iterations: bool = False,
    lengths: Sequence[float] = (),
) -> list[Arm]:
    """Build the arms of a comparison.

    Speed-ups are relative to the first recipe at length 1. If `lengths` does not include 1,
    speed-ups are relative to the longest training of the first recipe.

    Args:
        cfg_files: Config files of the recipes, the baseline first.
        overrides: Alternating config keys and values for all recipes.
        equal_iterations: Also train a copy of the first recipe with as many iterations as the
            second recipe (the paper's "Baseline 1/3.3").
        lengths: Lengths to train each recipe for, as multiples of the recipe's own length. By
            default, only length 1 is trained. MULTIGRID.EPOCH_FACTOR does not change, because it
            multiplies the scaled number of epochs.

    Returns:
        The arms in the order of the recipes.

    Raises:
        ValueError: Two config files have the same name, a recipe cannot be trained, or the metrics
            of the recipes differ.
    """
    check_study(cfg_files, overrides)
    arms = [make_arm(path.stem, path, overrides) for path in cfg_files]
    metrics = {arm.name: ", ".join(metric_names(arm.recipe)) for arm in arms}
    if len(set(metrics.values())) > 1:
        raise UserError(f"The metrics of the configs differ, so they cannot be compared: {metrics}")
    if equal_iterations:
        arms.insert(1, _shortened(*arms[:2]))
    if lengths:
        arms = [scaled(arm, length) for arm in arms for length in sorted(lengths)]
    own = [arm for arm in arms if arm.label == arms[0].label]
    baseline = max(own, key=lambda arm: (arm.length == 1, arm.length))
    return [replace(arm, baseline=baseline.name) for arm in arms]


def _shortened(long: Arm, short: Arm) -> Arm:
    """Return a copy of the arm `long` with as many iterations as the arm `short`."""
    if long.iterations <= short.iterations:
        raise UserError(
            "--equal-iterations shortens the first config to the iterations of the second, but the "
            f"first config has {long.iterations} iterations and the second has {short.iterations}. "
            "Give the longer config first."
        )
    arm = scaled(long, short.iterations / long.iterations)
    return replace(arm, label=arm.name, length=1.0)


def compare(
    study: Study, runs: pd.DataFrame, command: str, step_times: str | None = None
) -> Report:
    """Return the report of a comparison of arms that share one baseline.

    Args:
        study: Arms and seeds.
        runs: Table returned by `Study.runs`.
        command: Command line that reproduces the report.
        step_times: Names of the step-time files that `Study.step_seconds` is computed from. None if
            speed-ups are computed from wall-clock times.
    """
    first = study.arms[0]
    metrics = metric_names(first.recipe)
    scores = {name: score_of(runs, name, metrics[0]) for name in runs["arm"].unique()}
    content = study_json(study, runs, command)
    verdicts = _verdicts(study, runs, scores)
    warnings = [*_warnings(study, scores, content["chance"] or 0.0), *study_warnings(runs)]
    times = f"iterations × the step times of {step_times}" if step_times else "wall-clock times"
    columns = [*_COLUMNS, *["clock"] * bool(step_times), "speed_up", *metrics]
    tables: list[str | Table] = [arms_table(study, runs, columns)]
    curves = curves_of(runs, "clock", metrics[0])
    has_lengths = any(arm.length != 1 for arm in study.arms)
    if has_lengths and first.label in curves:
        tables = [levels_table(curves, metric_title(metrics[0])), leads_table(curves), *tables]
    return Report(
        name="report",
        title="Comparison",
        result=[f"Warning: {text}" for text in warnings] + verdicts,
        tables=tables,
        notes=[_explain(first.baseline, times, content["chance"]), *origin(runs, command)],
        content=content | {"seconds": times, "verdicts": verdicts, "warnings": warnings},
        figure=_figure(runs, metrics[0], content["chance"], times, has_lengths=has_lengths),
    )


def _verdicts(study: Study, runs: pd.DataFrame, scores: Mapping[str, NormalDist]) -> list[str]:
    """Return a sentence for each arm that compares it with its baseline.

    Arms that are longer or shorter than the baseline are left out, and arms that have no finished
    run with the seed of a finished run of the baseline.
    """
    baseline = next(arm for arm in study.arms if arm.name == arm.baseline)
    title = metric_title(metric_names(baseline.recipe)[0])
    texts = list[str]()
    for arm in study.arms:
        speed_up, total = (mean(runs, arm.name, n) for n in ("speed_up", "total_speed_up"))
        if arm is baseline or arm.length != baseline.length or not speed_up or not total:
            continue
        before = scores[baseline.name]
        after = scores[arm.name]
        change = after - before
        clear = 0 < CLEAR * change.stdev <= abs(change.mean)
        texts.append(
            f"Verdict: compared with {baseline.name}, {arm.name} is {speed_up.mean:.2f}× as fast "
            f"({total.mean:.2f}× with evaluation and test), and its {title} differs by "
            f"{format_score(change)} points ({format_score(after)} % against "
            f"{format_score(before)} %{'' if clear else ', undecided'})."
        )
    return texts


def _warnings(study: Study, scores: Mapping[str, NormalDist], chance: float) -> list[str]:
    """Return warnings about speed-ups and accuracies that may be misleading."""
    texts = [f"{arm.name}: {text}." for arm in study.arms for text in short_ends(arm.schedule)]
    low = [name for name, each in scores.items() if each.mean - CLEAR * each.stdev <= chance]
    if low and chance:
        texts.append(
            f"The accuracy of {', '.join(low)} is not clearly above chance. A speed-up at this "
            "accuracy means nothing."
        )
    return texts


def _explain(baseline: str, times: str, chance: float | None) -> str:
    """Return a paragraph that explains the tables and the verdict."""
    return (
        f"Speed-up and iteration factor are relative to {baseline}. The speed-up is the training "
        "time of the baseline divided by the training time of the config with the same seed, "
        f"averaged over seeds. It is computed from {times}. Wall-clock times of the training "
        "include data loading but not evaluation. Step times exclude both. ± in the verdict is the "
        "standard error due to the numbers of videos and seeds. In the tables, ± is the sample "
        "standard deviation over seeds. FLOPs are the training FLOPs of forward and backward "
        "passes. With several lengths, accuracies are the best up to each time. Between two "
        "lengths, they are interpolated linearly in the logarithm of the time. ≤ means that even "
        "the shortest training exceeds the accuracy."
        + (f" Chance is {chance:.1f} %." if chance else "")
    )


def _figure(
    runs: pd.DataFrame, metric: str, chance: float | None, times: str, *, has_lengths: bool
) -> Figure:
    """Draw the primary metric against the training time.

    With --lengths, additional panels show the metric against iterations and FLOPs. Without
    --lengths, a thin line shows the validations of each run, as in Figure 1 of the paper.
    """
    titles = {"clock": f"seconds of training ({times})"}
    if has_lengths:
        titles |= {"iterations": "iterations", "flops": "training FLOPs"}
    colours = dict(zip(runs["label"].unique(), cycle(COLOURS), strict=False))
    figure, panels = new_figure(1, 4 + 4 * len(titles), 5, columns=len(titles))
    for axes, (cost, title) in zip(panels, titles.items(), strict=True):
        axes.set_xlabel(title)
        draw_curves(axes, curves_of(runs, cost, metric), colours, runs)
        if chance is not None:
            axes.axhline(chance, color=MUTED, ls="--", lw=1, label=f"chance, {chance:.1f} %")
    for run in [] if has_lengths else runs.itertuples():
        points = pd.DataFrame(run.result["evaluations"])
        seconds = points["seconds"] * run.clock / run.seconds
        panels[0].plot(seconds, points[metric], color=colours[run.label], alpha=0.5)
        panels[0].set_xlim(left=0)
    panels[0].set_ylabel(f"{metric_title(metric)} (%)")
    add_legend(figure, panels[0], "mean ± standard deviation over n seeds", 2)
    return figure
