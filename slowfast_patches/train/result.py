"""Test a trained model on several views of each video, and write result.json."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from multigrid import baseline_cost, schedule_cost
from slowfast_patches.config.metrics import EMA, format_metrics, metric_names, with_suffix
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import TEST_IS_VAL, is_tested_on_val
from slowfast_patches.datasets.lists.overlaps import Overlap
from slowfast_patches.datasets.loader import build_dataset, evaluation_bytes, limit_workers
from slowfast_patches.models.build import build_model
from slowfast_patches.models.weights import load_weights
from slowfast_patches.plan.flops import flops_per_clip
from slowfast_patches.train.checkpoint import last_checkpoint
from slowfast_patches.train.evaluate import evaluate
from slowfast_patches.train.record.tables import (
    names_of_data,
    predictions_path,
    write_predictions,
    write_tables,
)
from slowfast_patches.train.trainer import Trainer
from slowfast_patches.utils.distributed import World, broadcast_from_main
from slowfast_patches.utils.files import write_text
from slowfast_patches.utils.machine import machine, versions

logger = logging.getLogger(__name__)


def multi_view_test(
    recipe: Recipe, world: World, trainer: Trainer | None, overlaps: Sequence[Overlap]
) -> dict[str, float]:
    """Test a trained model, and write tables and predictions to OUTPUT_DIR.

    Args:
        recipe: The recipe of the test.
        world: Rank, world size and device of this process.
        trainer: The finished training whose model is tested. With MODEL.EMA_DECAY, its averaged
            weights are tested as well. If None, the model is loaded from `tested_file`.
        overlaps: Videos that several lists have in common, to log beside the metrics.

    Returns:
        Maps the name of a metric to its value. Names end in "_ema" for the averaged weights.

    Raises:
        RunError: Too many videos cannot be read.
        TrainingInterruptedError: The run was asked to stop.
    """
    dataset = build_dataset(recipe, "test")
    metrics = dict[str, float]()
    local = max(1, recipe.test.batch_size * recipe.num_shards // world.size)
    remarks = [TEST_IS_VAL] * is_tested_on_val(recipe) + [lists.remark for lists in overlaps]
    recipe = limit_workers(recipe, evaluation_bytes(recipe, dataset, local))
    models = [_tested_model(recipe, world)] if trainer is None else trainer.stepper.models
    stop = None if trainer is None else trainer.stop
    for model, suffix in zip(models, ("", EMA), strict=False):
        evaluation = evaluate(model, recipe, dataset, local, world, stop)
        metrics |= with_suffix(evaluation.metrics, suffix)
        logger.info(
            "test%s on %d views × %d crops: %s%s",
            " of the averaged weights" if suffix else "",
            *(recipe.test.num_ensemble_views, recipe.test.num_spatial_crops),
            format_metrics(evaluation.metrics),
            f" ({'; '.join(remarks)})" if remarks else "",
        )
        if suffix or not world.is_main:
            continue
        names = names_of_data(recipe)
        name = "test" if trainer is None else "result"
        write_tables(Path(recipe.output_dir), name, evaluation, names)
        if path := predictions_path(recipe, "test_" if trainer is None else ""):
            videos = (str(getattr(video, "path", video)) for video in dataset.videos)
            paths = evaluation.names or list(videos)
            scores = zip(evaluation.probabilities.cpu(), evaluation.scored, strict=True)
            rows = [row if scored else None for row, scored in scores]
            write_predictions(path, paths, rows, names, evaluation.labels.cpu())
            logger.info("Predictions written to %s.", path)
    return metrics


def tested_file(recipe: Recipe) -> tuple[str, str]:
    """Return the checkpoint to test if the run does not train.

    The first of these that exists is used: TEST.CHECKPOINT_FILE_PATH, the last checkpoint in
    OUTPUT_DIR, and TRAIN.CHECKPOINT_FILE_PATH.

    Returns:
        (path, section): the file, and the section of the recipe, TEST or TRAIN, that names it.

    Raises:
        ValueError: There is no checkpoint.
    """
    last = last_checkpoint(recipe.output_dir)
    if recipe.test.checkpoint_file_path:
        return recipe.test.checkpoint_file_path, "TEST"
    if last is not None:
        return str(last), "TEST"
    if recipe.train.checkpoint_file_path:
        return recipe.train.checkpoint_file_path, "TRAIN"
    raise ValueError(
        f"There is no model to test, because {recipe.output_dir} has no checkpoint. Set "
        "TEST.CHECKPOINT_FILE_PATH to a checkpoint, or set TRAIN.ENABLE True."
    )


def write_result(
    recipe: Recipe,
    world: World,
    trainer: Trainer | None,
    metrics: Mapping[str, float] | None,
    overlaps: Sequence[Overlap],
) -> None:
    """Write result.json after a training, or test.json after a test without training.

    Args:
        recipe: The recipe of the run.
        world: Rank, world size and device of this process.
        trainer: The finished training, or None after a test without training.
        metrics: The metrics of the test. If None, the metrics of the last validation are written.
        overlaps: Videos that several lists have in common.
    """
    result: dict[str, Any] = {
        "config": yaml.safe_load(recipe.text),
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
        progress = trainer.progress
        cost = schedule_cost(trainer.schedule, flops_per_clip(recipe))
        # The last checkpoint precedes the test, so its seconds do not include the test.
        seconds = progress.seconds | {"testing": trainer.clock.seconds["testing"]}
        result |= {
            "seconds": {key: round(value, 3) for key, value in seconds.items()},
            "iterations": cost.iterations,
            "baseline_iterations": baseline_cost(trainer.schedule).iterations,
            "epochs": round(cost.epochs, 4),
            "clips": cost.clips,
            "flops": cost.flops,
            "global_batch": trainer.schedule.base.batch,
            "evaluations": progress.evaluations,
        }
        more = {"best": progress.best, "rate_changes": progress.rate_changes}
        result |= {key: value for key, value in more.items() if value}
        if metrics is None:
            when = ("iteration", "epoch", "seconds")
            metrics = {k: v for k, v in progress.evaluations[-1].items() if k not in when}
    result |= {name: round(value, 4) for name, value in (metrics or {}).items()}
    path = Path(recipe.output_dir, "test.json" if trainer is None else "result.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(result, indent=2) + "\n")


def read_result(path: Path) -> dict[str, Any]:
    """Read result.json or test.json.

    Raises:
        ValueError: The file is not a JSON object.
    """
    result = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(result, dict):
        raise ValueError("not a JSON object")
    return result


def _tested_model(recipe: Recipe, world: World) -> nn.Module:
    """Build the model to test. The main process loads the weights and broadcasts them."""
    model = build_model(recipe)
    if world.is_main:
        path, section = tested_file(recipe)
        load_weights(model, path, complete=True, section=section)
    model.load_state_dict(broadcast_from_main(model.state_dict))
    return model.to(world.device)
