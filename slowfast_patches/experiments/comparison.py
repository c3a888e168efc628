"""Comparison of recipes: build the variants to train, and report the finished runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from statistics import NormalDist
from textwrap import fill
from typing import TYPE_CHECKING, Any

import pandas as pd

from multigrid.cost import fine_tuning_warnings
from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.experiments.curves import curves_of, draw_curves, leads_table, levels_table
from slowfast_patches.experiments.report import (
    Report,
    Table,
    experiment_json,
    experiment_warnings,
    explain_differences,
    origin,
    variants_table,
)
from slowfast_patches.experiments.runs import Experiment, mean
from slowfast_patches.experiments.score import CLEAR, SPREAD, format_score, score_of, scored_videos
from slowfast_patches.experiments.variants import (
    Seen,
    Variant,
    check_experiment,
    make_variant,
    with_length,
)
from slowfast_patches.utils.command_line import more_seeds, with_seeds
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.pictures import COLOURS, MUTED, add_legend, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = ("iterations", "iteration_factor", "epochs", "clips", "flops", "seconds", "total")


def make_variants(
    cfg_files: Sequence[Path],
    overrides: Sequence[str],
    *,
    equal_iterations: bool = False,
    lengths: Sequence[float] = (),
) -> list[Variant]:
    """Build the variants of a comparison.

    Speed-ups are relative to the first recipe at length 1. If `lengths` does not include 1,
    speed-ups are relative to the longest training of the first recipe.

    Args:
        cfg_files: Config files of the recipes, the baseline first.
        overrides: Alternating config keys and values for all recipes.
        equal_iterations: Also train a copy of the first recipe with as many iterations as the
            second recipe (the paper's "Baseline 1/3.3").
        lengths: Lengths to train each recipe for, as multiples of its SOLVER.LENGTH. By default,
            only length 1 is trained. MULTIGRID.EPOCH_FACTOR does not change, because it multiplies
            the scaled number of epochs.

    Returns:
        The variants in the order of the recipes.

    Raises:
        ValueError: Two config files have the same name, a recipe cannot be trained, or the metrics
            of the recipes differ.
    """
    check_experiment(cfg_files, overrides)
    seen: Seen = {}
    variants = [make_variant(path.stem, path, overrides, seen) for path in cfg_files]
    metrics = {variant.name: ", ".join(metric_names(variant.recipe)) for variant in variants}
    if len(set(metrics.values())) > 1:
        raise UserError(f"The metrics of the configs differ, so they cannot be compared: {metrics}")
    if equal_iterations:
        variants.insert(1, _shortened(variants[0], variants[1], seen))
    if lengths:
        variants = [
            with_length(variant, length, seen) for variant in variants for length in sorted(lengths)
        ]
    own = [variant for variant in variants if variant.label == variants[0].label]
    baseline = max(own, key=lambda variant: (variant.length == 1, variant.length))
    return [replace(variant, baseline=baseline.name) for variant in variants]


def _shortened(long: Variant, short: Variant, seen: Seen) -> Variant:
    """Return a copy of the variant `long` with as many iterations as the variant `short`."""
    if long.iterations <= short.iterations:
        raise UserError(
            "--equal-iterations shortens the first config to the iterations of the second, but the "
            f"first config has {long.iterations} iterations and the second has {short.iterations}. "
            "Give the longer config first."
        )
    variant = with_length(long, short.iterations / long.iterations, seen)
    return replace(variant, label=variant.name)


def compare(
    experiment: Experiment, runs: pd.DataFrame, command: str, step_times: str | None = None
) -> Report:
    """Return the report of a comparison of variants that share one baseline.

    Args:
        experiment: Variants and seeds.
        runs: Table returned by `Experiment.runs`.
        command: Command line that reproduces the report.
        step_times: Source of the step times in `Experiment.step_seconds`. None if speed-ups are
            computed from wall-clock times.
    """
    first = experiment.variants[0]
    metrics = metric_names(first.recipe)
    scores = {name: score_of(runs, name, metrics[0]) for name in runs["variant"].unique()}
    content = experiment_json(experiment, runs, command)
    verdicts = [
        text
        for variant in _compared(experiment, runs)
        for text in (
            _verdict(experiment, runs, scores, variant),
            *_speeds(runs, variant, step_times),
        )
    ]
    if (runs.groupby("variant")["seed"].nunique() < 2).any() and len(scores) > 1:
        verdicts.append(f"To add seeds:\n\n    {with_seeds(command, more_seeds(experiment.seeds))}")
    warnings = [
        *_warnings(experiment, scores, content["chance"] or 0.0),
        *experiment_warnings(experiment, runs),
    ]
    times = f"iterations × the step times of {step_times}" if step_times else "wall-clock times"
    columns = [*_COLUMNS, *["clock"] * bool(step_times), "speed_up", *metrics]
    tables: list[str | Table] = [variants_table(experiment, runs, columns)]
    curves = curves_of(runs, "clock", metrics[0])
    # The variant of --equal-iterations is a recipe of its own: its label is its name.
    has_lengths = any(variant.label != variant.name for variant in experiment.variants)
    if has_lengths and first.label in curves:
        tables = [levels_table(curves, metric_title(metrics[0])), leads_table(curves), *tables]
    return Report(
        name="report",
        title="Comparison",
        result=[f"Warning: {text}" for text in warnings] + verdicts,
        tables=tables,
        notes=[
            _explain(first.baseline, times, content["chance"]),
            *explain_differences(experiment),
            *origin(runs, command),
        ],
        content=content | {"seconds": times, "verdicts": verdicts, "warnings": warnings},
        figure=_figure(runs, metrics[0], content["chance"], times, has_lengths=has_lengths),
    )


def _compared(experiment: Experiment, runs: pd.DataFrame) -> list[Variant]:
    """Return the finished variants that are not merely another length of a recipe."""
    baseline = _baseline(experiment)
    finished = set(runs["variant"])
    return [
        variant
        for variant in experiment.variants
        if variant is not baseline
        if variant.length == baseline.length or variant.label == variant.name
        if {variant.name, baseline.name} <= finished
    ]


def _baseline(experiment: Experiment) -> Variant:
    return next(variant for variant in experiment.variants if variant.name == variant.baseline)


def _verdict(
    experiment: Experiment, runs: pd.DataFrame, scores: Mapping[str, NormalDist], variant: Variant
) -> str:
    """Return a sentence that compares the accuracy of a variant with that of its baseline."""
    baseline = _baseline(experiment)
    title = metric_title(metric_names(baseline.recipe)[0])
    of_variants = [runs[runs["variant"] == each.name] for each in (variant, baseline)]
    after, before = scores[variant.name], scores[baseline.name]
    change = after - before
    found = f"{format_score(after)} % against {format_score(before)} %"
    counts = [scored_videos(own["result"]) for own in of_variants]
    if counts[0] != counts[1]:
        return (
            f"No verdict: {variant.name} was scored on {counts[0]} videos, and {baseline.name} on "
            f"{counts[1]}."
        )
    if min(len(own) for own in of_variants) == 1:
        return (
            f"No verdict: {variant.name} reaches a {title} of {found} for {baseline.name}, but "
            "with one seed, the error between seeds is unknown. ± is an estimate from other "
            "trainings."
        )
    clear = abs(change.mean) >= CLEAR * change.stdev > 0
    return (
        f"Verdict: compared with {baseline.name}, the {title} of {variant.name} differs by "
        f"{format_score(change)} points ({found}{'' if clear else ', undecided'})."
    )


def _speeds(runs: pd.DataFrame, variant: Variant, step_times: str | None) -> list[str]:
    """Return a sentence on the speed-up of a variant for each way of measuring time."""
    speed_up, total = (mean(runs, variant.name, n) for n in ("speed_up", "total_speed_up"))
    texts = list[str]()
    if step_times and speed_up:
        texts.append(
            f"By the step times of {step_times}, {variant.name} trains {speed_up.mean:.2f}× as "
            "fast."
        )
    elif speed_up:
        texts.append(
            f"By wall-clock time without evaluation and test, {variant.name} trains "
            f"{speed_up.mean:.2f}× as fast."
        )
    if total:
        texts.append(
            f"By wall-clock time with data loading, evaluation and test, {variant.name} is "
            f"{total.mean:.2f}× as fast."
        )
    return texts


def _warnings(experiment: Experiment, scores: Mapping[str, NormalDist], chance: float) -> list[str]:
    """Return warnings about speed-ups and accuracies that may be misleading."""
    texts = [
        f"{variant.name}: {text}."
        for variant in experiment.variants
        for text in fine_tuning_warnings(variant.schedule)
    ]
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
        "include data loading but not evaluation. Step times exclude both. ± in the verdict is "
        "the standard error due to the numbers of videos and seeds. The error due to seeds "
        "combines the standard deviation of the runs with that of earlier trainings, which is "
        f"{SPREAD:g} p (1 − p) points for an accuracy p, because few seeds estimate it badly. In "
        "the tables, ± is the sample standard deviation over seeds. FLOPs are the training FLOPs "
        "of forward and backward passes. With several lengths, accuracies are the best up to each "
        "time. Between two lengths, they are interpolated linearly in the logarithm of the time. "
        "≤ means that even the shortest training exceeds the accuracy."
        + (f" Chance is {chance:.1f} %." if chance else "")
    )


_CHANCE: dict[str, Any] = {"color": MUTED, "ls": "--", "lw": 1}
_THIN: dict[str, Any] = {"alpha": 0.5}
_LINE, _SHORT_LINE = 80, 50
"""Maximum characters in a line below a single panel, and below one of several panels."""


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
        axes.set_xlabel(fill(title, _LINE if len(titles) == 1 else _SHORT_LINE), parse_math=False)
        draw_curves(axes, curves_of(runs, cost, metric), colours, runs)
        if chance is not None:
            axes.axhline(chance, label=f"chance, {chance:.1f} %", **_CHANCE)
    for run in [] if has_lengths else runs.itertuples():
        points = pd.DataFrame(run.result["evaluations"])
        seconds = points["seconds"] * run.clock / run.seconds
        panels[0].plot(seconds, points[metric], color=colours[run.label], **_THIN)
        panels[0].set_xlim(left=0)
    panels[0].set_ylabel(f"{metric_title(metric)} (%)")
    add_legend(figure, panels[0], "mean ± standard deviation over n seeds", 2)
    return figure
