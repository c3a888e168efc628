"""Write result.json at the end of a training, or test.json after a test."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from multigrid import baseline_cost, schedule_cost
from slowfast_patches.config.metrics import metric_names
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.overlaps import Overlap
from slowfast_patches.plan.flops import flops_per_clip
from slowfast_patches.plan.run_identity import Identity
from slowfast_patches.train.trainer import Trainer
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.files import write_text
from slowfast_patches.utils.machine import machine, versions

_WHEN = ("iteration", "epoch", "seconds")
"""Entries of a validation that are no metrics."""


def write_result(
    recipe: Recipe,
    world: World,
    identity: Identity,
    trainer: Trainer | None,
    metrics: Mapping[str, float],
    overlaps: Sequence[Overlap],
) -> None:
    """Write result.json after a training, or test.json after a test without training.

    Args:
        recipe: The recipe of the run.
        world: Rank, world size and device of this process.
        identity: The identity of the run.
        trainer: The finished training, or None after a test without training.
        metrics: The metrics of the test. If empty, those of the last validation are written.
        overlaps: Videos that several lists have in common.
    """
    result: dict[str, Any] = {
        "config": yaml.safe_load(recipe.text),
        "identity": identity.to_json(),
        "versions": versions(),
        "machine": machine(),
        "seed": recipe.rng_seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "world_size": world.size,
        "finished": True,
        "metric": metric_names(recipe)[0],
    }
    if overlaps:
        result["overlaps"] = [lists.remark for lists in overlaps]
    if trainer is not None:
        result |= _facts_of_training(recipe, trainer)
        metrics = metrics or trainer.progress.evaluations[-1]
    result |= {k: round(v, 4) for k, v in metrics.items() if k not in _WHEN}
    path = Path(recipe.output_dir, "test.json" if trainer is None else "result.json")
    write_text(path, json.dumps(result, indent=2) + "\n")


def _facts_of_training(recipe: Recipe, trainer: Trainer) -> dict[str, Any]:
    """Return the length, the cost and the validations of a training."""
    progress = trainer.progress
    phases = [
        replace(phase, stop=min(phase.stop, progress.iteration))
        for phase in trainer.schedule.phases
        if phase.start < progress.iteration
    ]
    cost = schedule_cost(trainer.schedule, flops_per_clip(recipe), phases=phases)
    # The last checkpoint precedes the test, so its seconds do not include the test.
    seconds = progress.seconds | {"testing": trainer.clock.seconds["testing"]}
    facts = {
        "seconds": {key: round(value, 3) for key, value in seconds.items()},
        "iterations": cost.iterations,
        "baseline_iterations": baseline_cost(trainer.schedule).iterations,
        "epochs": round(cost.epochs, 4),
        "clips": cost.clips,
        "flops": cost.flops,
        "global_batch": trainer.schedule.base.batch,
        "evaluations": progress.evaluations,
        "training": progress.training,
        "clocks": progress.clocks,
    }
    sometimes: dict[str, Any] = {"best": progress.best, "changes": progress.changes}
    if progress.ended:
        sometimes["planned_iterations"] = trainer.schedule.iterations
    return facts | {key: value for key, value in sometimes.items() if value}
