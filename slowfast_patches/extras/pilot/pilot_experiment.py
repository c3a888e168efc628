"""Pilot: train a baseline and several multigrid cycles for the same short time.

A pilot shows whether multigrid is worth using in a long training. All runs are ordinary runs of the
recipe with fewer epochs. Step times are measured first, to choose lengths that take equal times.
`pilot_report` evaluates the results.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import torch

from multigrid import GENTLE, PAPER, MultigridError, Shape
from multigrid.cost import MIN_FINAL_ITERATIONS, final_iterations
from slowfast_patches.config.metrics import metric_names
from slowfast_patches.config.recipe_cycles import check_world_size, cycle_keys
from slowfast_patches.config.scale import as_overrides
from slowfast_patches.datasets.lists.dataset_lists import load_with_classes
from slowfast_patches.experiments.runs import Experiment
from slowfast_patches.experiments.variants import (
    Seen,
    Variant,
    check_experiment,
    make_variant,
    step_seconds,
    step_seconds_of,
    with_length,
)
from slowfast_patches.launch.device import check_gpus, process_device, set_up_device
from slowfast_patches.launch.placement import find_placement
from slowfast_patches.models.build_model import build_model
from slowfast_patches.plan.evaluations import evaluation_share
from slowfast_patches.plan.flops import check_shapes
from slowfast_patches.plan.recipe_times import shapes_to_measure
from slowfast_patches.plan.step_times import (
    MisfitError,
    clock_here,
    read_step_times,
    step_times_content,
    time_row,
    write_step_times,
)
from slowfast_patches.train.step import Stepper
from slowfast_patches.train.step_timer import time_steps
from slowfast_patches.utils.clock import format_duration
from slowfast_patches.utils.errors import UserError

CYCLES = (
    GENTLE,
    replace(GENTLE, long_cycle=((1.0, 0.5), (1.0, 1.0)), name="GENTLE, all frames"),
    replace(GENTLE, long_cycle=((0.5, 1.0), (1.0, 1.0)), name="GENTLE, all pixels"),
    replace(PAPER, short_cycle=(), epoch_factor=1.0, name="PAPER, long cycle alone"),
)
"""Cycles to try in this order, as many as the time allows."""

_ITERATIONS = 300
"""Minimum number of iterations of the baseline."""

_FINAL = 1.2 * MIN_FINAL_ITERATIONS
"""Minimum number of iterations at the baseline's shape at the end of a cycle, with a margin."""

_SMALLEST_CROP = 32
"""Minimum crop size of a cycle in pixels. It is the stride of the last feature map."""

_PRECISE = 6
"""Maximum number of mini-batches for precise BN. More are not needed to compare variants."""

_NEVER = 10**6
"""Number of epochs between evaluations that is longer than any training."""

_START = 10.0
"""Estimated start-up time of a run in seconds."""


Kind = tuple[Shape, int | None]
"""A shape, and the number of clips that share BN statistics."""


class ShortBaselineError(UserError):
    """Error raised when a full training of the baseline takes no longer than the pilot."""


def pilot_variants(cfg_file: Path, overrides: Sequence[str]) -> list[Variant]:
    """Build full-length variants: the baseline, and one for each cycle that fits the recipe.

    Each variant is evaluated once on the validation set, after its last iteration.

    Returns:
        The variants, the baseline first.

    Raises:
        ValueError: The recipe cannot be trained on this machine or has several labels per video, or
            no cycle fits the recipe.
    """
    check_experiment([cfg_file], overrides)
    if clashes := [key for key in cycle_keys(PAPER) if key in overrides[::2]]:
        raise UserError(f"{clashes[0]} is set for each variant of the pilot. Do not set it.")
    recipe = load_with_classes(cfg_file, overrides)
    placement = find_placement(recipe, os.environ)
    if placement.machines > 1 or (placement.local_rank is not None and placement.size > 1):
        raise UserError(
            "The pilot starts its training processes itself, on this machine only. Run it without "
            "a launcher such as torchrun, with NUM_SHARDS 1 and SOLVER.REFERENCE_BATCH_SIZE "
            f"{recipe.base_shape.batch} (to scale the learning rates)."
        )
    check_gpus(recipe, placement)
    if metric_names(recipe)[0] != "top1":
        raise UserError(
            "The pilot only supports tasks whose first metric is top-1 accuracy. Compare full "
            "trainings with multigrid-compare instead."
        )
    keys: dict[str, object] = {
        "TEST.ENABLE": False,
        # Evaluate only after the last iteration.
        "MULTIGRID.EVAL_FREQ": 0,
        "TRAIN.EVAL_PERIOD": _NEVER,
        "MODEL.EMA_DECAY": 0.0,
        "BN.NUM_BATCHES_PRECISE": min(_PRECISE, recipe.bn.num_batches_precise),
    }
    off: dict[str, object] = {"MULTIGRID.LONG_CYCLE": False, "MULTIGRID.SHORT_CYCLE": False}
    seen: Seen = {}
    variants = [_make_variant("baseline", cfg_file, (*overrides, *as_overrides(keys | off)), seen)]
    reasons = list[str]()
    for cycles in CYCLES:
        pairs = (*overrides, *as_overrides(keys | cycle_keys(cycles)))
        try:
            variants.append(_make_variant(cycles.name, cfg_file, pairs, seen))
        except MultigridError as error:
            reasons.append(str(error))
    if len(variants) == 1:
        raise UserError(
            f"No cycle fits the shape {variants[0].schedule.base}: {'; '.join(reasons)}"
        )
    return variants


def _make_variant(name: str, cfg_file: Path, overrides: Sequence[str], seen: Seen) -> Variant:
    """Build a variant of a pilot. Raise ValueError if a shape of its schedule cannot be trained."""
    variant = make_variant(name, cfg_file, overrides, seen)
    check_world_size(variant.recipe, variant.schedule)
    smallest = min(shape.crop for shape in variant.schedule.shapes)
    if variant.recipe.uses_multigrid and smallest < _SMALLEST_CROP:
        raise UserError(f"{name}: a crop of {smallest} pixels is smaller than {_SMALLEST_CROP}")
    check_shapes(variant.recipe, variant.schedule.shapes)
    return variant


class Measured(NamedTuple):
    """Variants whose steps were timed.

    Attributes:
        variants: The variants that can train at all of their shapes on this machine, starting
            with the baseline.
        seconds: Time of all training steps of each of these variants, in seconds.
        dropped: Maps the name of each other variant to the reason.
    """

    variants: list[Variant]
    seconds: list[float]
    dropped: dict[str, str]


def measured_seconds(variants: Sequence[Variant], files: Sequence[Path], output: Path) -> Measured:
    """Return the time of all training steps of each variant that can be trained on this machine.

    Args:
        variants: Full-length variants, the baseline first.
        files: Step-time files of benchmarks/step_time.py. If there are none, step times are
            measured on this machine. The measured times are stored in step_times.json. A repeated
            pilot with the same processor or GPU, threads and torch reuses them for a day, or for as
            long as there are runs of the pilot.
        output: Folder of step_times.json.

    Raises:
        ValueError: No file in `files` fits a variant, the files were measured with different
            machines, or a shape of the baseline does not fit into memory. Or the folder has runs
            whose lengths follow from step times of another machine.
    """
    if files:
        seconds, _ = step_seconds_of(variants, files)
        return Measured(list(variants), list(seconds.values()), {})
    stored = output / "step_times.json"
    dropped = dict[str, str]()
    if not _is_usable(stored, variants[0], output):
        dropped = _measure(variants, stored)
    kept, seconds_of_variants = list[Variant](), list[float]()
    for variant in variants:
        try:
            seconds_of_variants.append(step_seconds(variant, [stored]))
            kept.append(variant)
        except MisfitError as error:
            dropped.setdefault(variant.name, str(error))
    if not kept or kept[0] is not variants[0] or len(kept) < 2:
        raise UserError(f"The pilot needs the baseline and a cycle: {'; '.join(dropped.values())}")
    return Measured(
        kept, seconds_of_variants, {n: dropped[n] for n in dropped if n not in _names(kept)}
    )


def _names(variants: Sequence[Variant]) -> set[str]:
    return {variant.name for variant in variants}


def _is_usable(stored: Path, baseline: Variant, output: Path) -> bool:
    """Return whether step times that an earlier pilot has stored are those of this machine.

    Raises:
        ValueError: They are from another machine, but there are runs whose lengths follow from
            them.
    """
    if not stored.is_file():
        return False
    has_runs = any(output.glob("*/seed*/checkpoints")) or any(output.glob("*/seed*/result.json"))
    try:
        times = read_step_times(stored)
        times.check_model(baseline.recipe)
    except UserError:
        return False
    here = clock_here(times.device)
    if times.clock == here:
        age = datetime.now(UTC) - datetime.fromisoformat(times.date)
        return has_runs or age < timedelta(days=1)
    if has_runs:
        raise UserError(
            f"{stored} was measured with {times.clock}, but this is {here}. The lengths of the "
            f"runs in {output} follow from those times. Choose another --output."
        )
    return False


def _measure(variants: Sequence[Variant], stored: Path) -> dict[str, str]:
    """Measure the steps of all variants, and store the times of the shapes that can be trained.

    Returns:
        Maps the name of each variant with a shape that cannot be trained to the reason.
    """
    recipe = variants[0].recipe
    set_up_device(recipe)
    device = process_device(recipe, 0)
    torch.manual_seed(recipe.rng_seed)
    stepper = Stepper(recipe, build_model(recipe, grouped_bn=True).to(device), device)
    of_variants = {variant.name: shapes_to_measure(variant.recipe) for variant in variants}
    kinds = list(dict.fromkeys(kind for shapes in of_variants.values() for kind in shapes))
    reasons = dict[Kind, str]()
    text = f"Timing a few training steps at each of {len(kinds)} shapes, to choose the lengths ..."
    print(text, file=sys.stderr, flush=True)
    try:
        times = time_steps(stepper, kinds)
    except MultigridError:  # a shape does not fit: find out which
        for kind in kinds:
            try:
                time_steps(stepper, [kind])
            except MultigridError as error:
                reasons[kind] = str(error)
                torch.cuda.empty_cache()
        times = time_steps(stepper, [kind for kind in kinds if kind not in reasons])
    rows = [time_row(recipe, *kind, {"median": seconds}) for kind, seconds in times.items()]
    write_step_times(stored, step_times_content(recipe, device, rows))
    del stepper
    torch.cuda.empty_cache()  # The runs are other processes and need the memory.
    failing = {
        name: [reasons[k] for k in shapes if k in reasons] for name, shapes in of_variants.items()
    }
    return {name: texts[0] for name, texts in failing.items() if texts}


def pilot_experiment(
    variants: Sequence[Variant],
    seconds_of_steps: Sequence[float],
    minutes: float | None,
    seeds: Sequence[int],
    output: Path,
) -> Experiment:
    """Choose as many variants as the time allows, and shorten them to equal training times.

    Args:
        variants: Full-length variants returned by `pilot_variants`, the baseline first.
        seconds_of_steps: Time of all training steps of each full-length variant, in seconds.
        minutes: Time of the pilot per seed. None means a tenth of the full baseline. The pilot
            takes at least as long as a useful result needs.
        seeds: Random seeds. Each variant is trained with each seed.
        output: Folder of the runs.

    Returns:
        The experiment that trains the shortened variants.

    Raises:
        ShortBaselineError: The full baseline takes no longer than the pilot.
    """
    whole = seconds_of_steps[0]
    _, evaluation = evaluation_share(
        variants[0].recipe, variants[0].schedule, lambda frames, crop: frames * crop**2
    )
    besides = _START + evaluation * whole
    needs = [
        besides + _least(variant) * s for variant, s in zip(variants, seconds_of_steps, strict=True)
    ]
    seconds = max(2 * max(needs[:2]), whole / 10 if minutes is None else 60 * minutes)
    if whole <= seconds:
        raise ShortBaselineError(
            "No pilot is needed: a full training of the baseline takes about "
            f"{format_duration(whole)}, and a pilot {format_duration(seconds)}. Train both the "
            "baseline and the multigrid recipe in full instead. The result is more reliable."
        )
    number = max(n for n in range(2, len(variants) + 1) if n * max(needs[:n]) <= seconds)
    share = seconds / number - besides
    tried = [
        with_length(variant, share / whole_variant)
        for variant, whole_variant in zip(variants[:number], seconds_of_steps, strict=False)
    ]
    tried = [replace(variant, baseline=tried[0].name) for variant in tried]
    print(
        f"The pilot takes about {format_duration(seconds)} per seed. Each of these variants is "
        f"trained for {format_duration(share)}: {'; '.join(variant.label for variant in tried)}.",
        file=sys.stderr,
    )
    return Experiment(tried, seeds, output, {variant.name: share for variant in tried})


def _least(variant: Variant) -> float:
    """Return the minimum length of a variant, as a fraction of its full length."""
    if not variant.recipe.uses_multigrid:
        return _ITERATIONS / variant.iterations
    return _FINAL / final_iterations(variant.schedule)
