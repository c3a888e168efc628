"""Multi-view test: test a trained model on several views and crops of each video."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from slowfast_patches.config.metrics import EMA, format_metrics, with_suffix
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import TEST_IS_VAL, is_tested_on_val
from slowfast_patches.datasets.lists.overlaps import Overlap
from slowfast_patches.datasets.loader import build_dataset, evaluation_bytes, limit_workers
from slowfast_patches.datasets.protocol import VideoDataset
from slowfast_patches.models.build_model import build_model
from slowfast_patches.models.weights import load_weights
from slowfast_patches.tasks.scores import Evaluation
from slowfast_patches.train.checkpoint import last_checkpoint
from slowfast_patches.train.evaluate import evaluate
from slowfast_patches.train.record.result_tables import (
    names_of_data,
    write_predictions,
    write_tables,
)
from slowfast_patches.train.trainer import Trainer
from slowfast_patches.utils.distributed import World, broadcast_from_main
from slowfast_patches.utils.errors import UserError

logger = logging.getLogger(__name__)


def multi_view_test(
    recipe: Recipe,
    world: World,
    trainer: Trainer | None,
    overlaps: Sequence[Overlap],
    dataset: VideoDataset | None = None,
) -> dict[str, float]:
    """Test a trained model, and write tables and predictions to OUTPUT_DIR.

    Args:
        recipe: The recipe of the test.
        world: Rank, world size and device of this process.
        trainer: The finished training whose model is tested. With MODEL.EMA_DECAY, its averaged
            weights are tested as well. If None, the model is loaded from `tested_file`.
        overlaps: Videos that several lists have in common, to log beside the metrics.
        dataset: The data set of the test split, if it has been read.

    Returns:
        Maps the name of a metric to its value. Names end in "_ema" for the averaged weights.

    Raises:
        RunError: Too many videos cannot be read.
        TrainingInterruptedError: The run was asked to stop.
    """
    dataset = dataset or build_dataset(recipe, "test")
    clips = max(1, recipe.test.batch_size * recipe.num_shards // world.size)
    recipe = limit_workers(recipe, evaluation_bytes(recipe, dataset, clips))
    models = [_load_model(recipe, world)] if trainer is None else trainer.stepper.models
    stop = None if trainer is None else trainer.stop
    remarks = [TEST_IS_VAL] * is_tested_on_val(recipe) + [lists.remark for lists in overlaps]
    metrics = dict[str, float]()
    for model, suffix in zip(models, ("", EMA), strict=False):
        evaluation = evaluate(model, recipe, dataset, clips, world, stop)
        metrics |= with_suffix(evaluation.metrics, suffix)
        if world.is_main and not suffix:
            _write_files(recipe, dataset, evaluation, trained=trainer is not None)
    logger.info(
        "test on %d views × %d crops: %s%s",
        *(recipe.test.num_ensemble_views, recipe.test.num_spatial_crops, format_metrics(metrics)),
        f" ({'; '.join(remarks)})" if remarks else "",
    )
    return metrics


def _write_files(recipe: Recipe, dataset: Any, evaluation: Evaluation, *, trained: bool) -> None:
    """Write the accuracy of each class, and the file TEST.SAVE_RESULTS_PATH.

    The files of a test without training start with "test", so that they do not replace those of a
    training.
    """
    folder = Path(recipe.output_dir)
    names = names_of_data(recipe)
    write_tables(folder, "result" if trained else "test", evaluation, names)
    if name := recipe.test.save_results_path:
        path = folder / (name if trained else f"test_{name}")
        videos = evaluation.names or [getattr(v, "path", str(v)) for v in dataset.videos]
        scores = zip(evaluation.probabilities.cpu(), evaluation.scored, strict=True)
        rows = [row if scored else None for row, scored in scores]
        write_predictions(path, videos, rows, names, evaluation.labels.cpu())
        logger.info("Predictions written to %s.", path)


def tested_file(recipe: Recipe) -> str:
    """Return the checkpoint to test if the run does not train.

    The first of these that exists is used: TEST.CHECKPOINT_FILE_PATH, the last checkpoint in
    OUTPUT_DIR, and TRAIN.CHECKPOINT_FILE_PATH.

    Raises:
        ValueError: There is no checkpoint.
    """
    last = last_checkpoint(recipe.output_dir)
    if path := recipe.test.checkpoint_file_path or last or recipe.train.checkpoint_file_path:
        return str(path)
    raise UserError(
        f"There is no model to test, because {recipe.output_dir} has no checkpoint. Set "
        "TEST.CHECKPOINT_FILE_PATH to a checkpoint, or set TRAIN.ENABLE True."
    )


def _load_model(recipe: Recipe, world: World) -> nn.Module:
    """Build the model to test. The main process loads the weights and broadcasts them."""
    model = build_model(recipe)
    if world.is_main:
        load_weights(model, tested_file(recipe), complete=True)
    model.load_state_dict(broadcast_from_main(model.state_dict))
    return model.to(world.device)
