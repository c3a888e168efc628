"""A run: train, test, and say in result.json what came of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from contextlib import ExitStack, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import simplejson
import yaml
from torch import nn

from multigrid import Schedule, baseline_cost, schedule_cost
from slowfast_patches import patching
from slowfast_patches.config import check_recipe
from slowfast_patches.config.metrics import COUNTS, EMA, format_metrics, metric_names, with_suffix
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import check_world_size, schedule_of
from slowfast_patches.datasets.lists.in_use import reading
from slowfast_patches.datasets.lists.list_warnings import list_warnings
from slowfast_patches.datasets.lists.lists import class_names, list_path, read_list
from slowfast_patches.datasets.loader import build_dataset, evaluation_loader, evaluation_rounds
from slowfast_patches.launch.device import set_up_device
from slowfast_patches.launch.launch import check_gpus, for_processes, launch, processes_of
from slowfast_patches.launch.output_lock import held
from slowfast_patches.launch.placement import find_placement
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.models.build import build_model
from slowfast_patches.models.flops import check_shapes, flops_per_clip
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.solver import Precision
from slowfast_patches.models.weights import check_file, load_weights
from slowfast_patches.plan.picture import plot_plan
from slowfast_patches.plan.plan import format_plan, make_plan
from slowfast_patches.train import checkpoints
from slowfast_patches.train.class_names import names_of_data
from slowfast_patches.train.evaluate import Evaluation, evaluate
from slowfast_patches.train.loop import Trainer
from slowfast_patches.train.predictions import write_predictions, write_tables
from slowfast_patches.train.record.logs import check_log_files, setup_logging
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.files import written_whole
from slowfast_patches.utils.machine import machine, versions

__all__ = ["run"]

logger = logging.getLogger(__name__)

_TOLERANCE = 0.1
"""Part of DATA.NUM_TRAIN_VIDEOS that may be missing, as videos vanish, without a warning."""
_LOOKED_AT = 20
"""Videos of a list of which one at least must be there."""


def run(recipe: Recipe, init_method: str | None = None) -> None:
    """Check the recipe, then train and test it on all its processes.

    Raises:
        ValueError: the recipe cannot run as it is; said before anything is trained.
        SystemExit: one of several processes failed, and has said why.
    """
    patching.apply()
    with ExitStack() as lists:
        launch(recipe, init_method, _main, partial(_check, lists))


def _check(lists: ExitStack, recipe: Recipe) -> None:
    """Try what can be tried before any process trains; `lists` keeps what is read as it is."""
    recipe = for_processes(recipe)
    world_size = processes_of(recipe)
    check_recipe(recipe, world_size)
    check_gpus(recipe)
    lists.enter_context(reading(_lists(recipe)))
    schedule = _check_training(recipe, world_size) if recipe.train.enable else None
    if recipe.test.enable:
        _count_videos(recipe, "test")
        if schedule is None and _starts_main(recipe):
            path, kind, section = _tested_file(recipe)
            check_file(path, kind, section=section)
    if recipe.train.enable and _starts_main(recipe):
        with held(recipe.output_dir):  # refused before processes are started for nothing
            pass


def _lists(recipe: Recipe) -> list[Path]:
    """The lists that the run reads: as it begins to train and, anew, as it begins to test."""
    splits = ["train", "val"] * recipe.train.enable + ["test"] * recipe.test.enable
    return [list_path(recipe, split) for split in splits]


def _starts_main(recipe: Recipe) -> bool:
    """Whether the main process is this one, or one that this one starts."""
    return find_placement(recipe, os.environ).first_rank == 0


def _check_training(recipe: Recipe, world_size: int) -> Schedule:
    """The schedule, after trying what can be tried before training and without the checkpoints in
    OUTPUT_DIR."""
    if not _continues(recipe):
        class_names(recipe)  # raises where their number is not MODEL.NUM_CLASSES
    videos, expected = _count_videos(recipe, "train"), recipe.data.num_train_videos
    if expected and abs(videos - expected) > _TOLERANCE * expected:
        logger.warning(
            "the recipe was made for %d training videos (DATA.NUM_TRAIN_VIDEOS), the list has %d: "
            "its epochs are as many, its iterations are not",
            expected,
            videos,
        )
    _count_videos(recipe, "val")
    schedule = schedule_of(recipe, videos)
    check_world_size(recipe, schedule, world_size)
    check_shapes(recipe, schedule.shapes)
    if _starts_main(recipe):
        _check_weights(recipe)
    return schedule


def _continues(recipe: Recipe) -> bool:
    return (
        checkpoints.continues(recipe) and checkpoints.last_checkpoint(recipe.output_dir) is not None
    )


def _check_weights(recipe: Recipe) -> None:
    """Look at the file that a training starts from, where it does not continue another."""
    if _continues(recipe):
        return
    if recipe.train.checkpoint_file_path:
        check_file(recipe.train.checkpoint_file_path, recipe.train.checkpoint_type)
    elif recipe.train.checkpoint_inflate:
        raise ValueError(
            "TRAIN.CHECKPOINT_INFLATE True has nothing to inflate: set TRAIN.CHECKPOINT_FILE_PATH, "
            "or CHECKPOINT_INFLATE False to start from scratch"
        )


def _count_videos(recipe: Recipe, split: str) -> int:
    """Videos in a list that parses, after a look whether they are where it says."""
    videos = read_list(recipe, split)
    paths = [videos[number].path for number in range(min(_LOOKED_AT, len(videos)))]
    if not any(Path(path).exists() for path in paths):
        raise ValueError(
            f"none of the first videos of {list_path(recipe, split)} exists, such as {paths[0]}; "
            f"set "
            "DATA.PATH_PREFIX to the folder that their paths start from"
        )
    if _starts_main(recipe):
        for text in list_warnings(recipe, split, videos):
            logger.warning("%s", text)
    return len(videos)


def _prepare_folder(recipe: Recipe, trainer: Trainer) -> None:
    """OUTPUT_DIR's config.yaml, plan.txt, plan.json and plan.png, and nothing of a run before that
    this one does not continue."""
    folder, schedule = Path(recipe.output_dir), trainer.schedule
    checkpoints.clean(folder)
    left = [folder / name for name in ("result.json", "result_classes.csv", "result_confusion.png")]
    if recipe.test.save_results_path:
        left.append(folder / recipe.test.save_results_path)
    best = checkpoints.best_checkpoint(folder)
    if best is not None and not trainer.best:
        left.append(best)
    for path in left:
        path.unlink(missing_ok=True)
    plan = make_plan(schedule, flops_per_clip(recipe))
    (folder / "config.yaml").write_text(recipe.text, encoding="utf-8")
    (folder / "plan.txt").write_text(format_plan(plan) + "\n", encoding="utf-8")
    (folder / "plan.json").write_text(simplejson.dumps(plan.to_json(), indent=2), encoding="utf-8")
    plot_plan(schedule, folder / "plan.png")


def _main(recipe: Recipe, world: World) -> None:
    """What each process does. What was scaled for the processes is said here, in the log."""
    patching.apply()
    set_up_device(recipe)
    if not recipe.train.enable:
        setup_logging(recipe.output_dir, world, "test")  # a training may be at work there
        recipe = for_processes(recipe)
        _finish(recipe, world, None, _test(recipe, world))
        return
    with held(recipe.output_dir) if world.is_main else nullcontext():
        setup_logging(recipe.output_dir, world)
        if world.is_main:
            with checkpoints.writes("OUTPUT_DIR", 0, recipe.output_dir):
                checkpoints.start_over(recipe)
        with StopRequest(world, timedelta(seconds=recipe.dist_stall_seconds)) as stop:
            _train_and_test(for_processes(recipe), world, stop)


def _train_and_test(recipe: Recipe, world: World, stop: StopRequest) -> None:
    trainer, metrics = _start(recipe, world, stop), None
    trainer.train()
    if recipe.test.enable:
        with checkpoints.explain_dead_workers(recipe.output_dir):
            metrics, named = dict[str, float](), set[str]()
            for model, suffix in zip(trainer.models, ("", EMA), strict=False):
                metrics |= with_suffix(_test(recipe, world, trainer, model, named), suffix)
    _finish(recipe, world, trainer, metrics)


def _start(recipe: Recipe, world: World, stop: StopRequest) -> Trainer:
    """What trains, where it starts from; and the folder of the run, if that is as it must be."""
    found = checkpoints.find_resumable(recipe) if world.is_main else None
    trainer = Trainer(recipe, world, stop, found)
    if world.is_main:
        with checkpoints.writes("the plan", trainer.start, recipe.output_dir):
            _prepare_folder(recipe, trainer)
        if recipe.log_model_info:
            _log_model(recipe, trainer)
        logger.info("the plan:\n%s", (Path(recipe.output_dir) / "plan.txt").read_text("utf-8"))
    return trainer


def _log_model(recipe: Recipe, trainer: Trainer) -> None:
    base = trainer.schedule.base
    logger.info(
        "%s: %d parameters, %.3g training FLOPs per clip of %d frames of %d²",
        recipe.model.arch,
        sum(p.numel() for p in trainer.model.parameters()),
        flops_per_clip(recipe)(base.frames, base.crop),
        base.frames,
        base.crop,
    )


def _test(
    recipe: Recipe,
    world: World,
    trainer: Trainer | None = None,
    model: nn.Module | None = None,
    named: set[str] | None = None,
) -> dict[str, float]:
    """Multi-view metrics of a model of the trainer's, or of a checkpoint where nothing was trained;
    `named` as for `evaluate`."""
    if model is None:
        model = build_model(recipe).to(world.device)
        if world.is_main:
            _load_tested(model, recipe)
        model.load_state_dict(checkpoints.share(model.state_dict(), world))
    dataset = build_dataset(recipe, "test")
    local = max(1, recipe.test.batch_size * recipe.num_shards // world.size)
    batches: Iterable[Any] = evaluation_loader(recipe, dataset, local, world.rank, world.size)
    if trainer is not None:
        rounds = evaluation_rounds(len(dataset), local, world.size)
        batches = trainer.stop.between(batches, rounds)
    found = evaluate(
        model,
        batches,
        InputTransform.of_recipe(recipe, world.device),
        world,
        num_videos=len(dataset.videos),
        num_clips=len(dataset) // len(dataset.videos),
        num_classes=recipe.model.num_classes,
        multi_label=recipe.data.multi_label,
        ensemble=recipe.data.ensemble_method,
        autocast=Precision(recipe, world.device).autocast,
        max_bad=recipe.data.max_bad_fraction,
        named=named,
    )
    averaged = trainer is not None and model is not trainer.model
    logger.info(
        "test%s on %d views × %d crops: %s",
        " of the averaged weights" if averaged else "",
        recipe.test.num_ensemble_views,
        recipe.test.num_spatial_crops,
        format_metrics(found.metrics),
    )
    if world.is_main and not averaged:
        done = 0 if trainer is None else trainer.done
        with checkpoints.writes("the test's tables", done, recipe.output_dir):
            _write_tables(recipe, dataset, found, "test" if trainer is None else "result")
    return found.metrics


def _write_tables(recipe: Recipe, dataset: Any, found: Evaluation, name: str) -> None:
    """OUTPUT_DIR's tables beside {name}.json, and the predictions where they are asked for."""
    names = names_of_data(recipe)
    write_tables(Path(recipe.output_dir), name, found, names)
    if recipe.test.save_results_path:
        paths = [str(getattr(video, "path", video)) for video in dataset.videos]
        path = Path(recipe.output_dir, recipe.test.save_results_path)
        scores = zip(found.probabilities.cpu(), found.scored.tolist(), strict=True)
        rows = [row if scored else None for row, scored in scores]
        write_predictions(path, paths, rows, names, found.labels.cpu())
        logger.info("the predictions: %s", path)


def _load_tested(model: nn.Module, recipe: Recipe) -> None:
    """Load the weights to test; a training that is at work there may delete them meanwhile."""
    path, kind, section = tested = _tested_file(recipe)
    try:
        load_weights(model, path, kind=kind, complete=True, section=section)
    except ValueError:
        path, kind, section = newer = _tested_file(recipe)
        if newer == tested:
            raise
        load_weights(model, path, kind=kind, complete=True, section=section)


def _tested_file(recipe: Recipe) -> tuple[str, str, str]:
    """The file whose model is tested, its CHECKPOINT_TYPE, and the section that names it."""
    found = checkpoints.last_checkpoint(recipe.output_dir)
    if recipe.test.checkpoint_file_path:
        return recipe.test.checkpoint_file_path, recipe.test.checkpoint_type, "TEST"
    if found is not None:
        return str(found), "pytorch", "TEST"
    if recipe.train.checkpoint_file_path:
        return recipe.train.checkpoint_file_path, recipe.train.checkpoint_type, "TRAIN"
    raise ValueError(
        f"nothing to test: {recipe.output_dir} has no checkpoint; set TEST.CHECKPOINT_FILE_PATH, "
        f"or "
        "TRAIN.ENABLE True"
    )


def _finish(
    recipe: Recipe, world: World, trainer: Trainer | None, metrics: dict[str, float] | None
) -> None:
    """Say what came of the run."""
    if not world.is_main:
        return
    done = 0 if trainer is None else trainer.done
    with checkpoints.writes("the result", done, recipe.output_dir):
        _write_result(recipe, world, trainer, metrics)
        check_log_files()


def _write_result(
    recipe: Recipe, world: World, trainer: Trainer | None, metrics: dict[str, float] | None
) -> None:
    """OUTPUT_DIR/result.json: its presence says that the run is complete.

    Its metrics are those of the test, or of the last validation where nothing is tested; "metric"
    names the primary one. Beside them is how many videos could not be read.
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
    if trainer is not None:
        result |= _training_result(recipe, trainer)
        last = trainer.evaluations[-1]
        names = metric_names(recipe)
        names += (*(name + EMA for name in names), *COUNTS)
        validated = {name: last[name] for name in names if name in last}
        metrics = validated if metrics is None else metrics
    result |= {name: round(value, 4) for name, value in (metrics or {}).items()}
    folder = Path(recipe.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with written_whole(folder / ("result.json" if trainer is not None else "test.json")) as file:
        file.write((simplejson.dumps(result, indent=2) + "\n").encode())


def _training_result(recipe: Recipe, trainer: Trainer) -> dict[str, Any]:
    flops = flops_per_clip(recipe)
    cost, baseline = schedule_cost(trainer.schedule, flops), baseline_cost(trainer.schedule)
    return {
        "seconds": {key: round(value, 3) for key, value in trainer.clock.seconds.items()},
        "iterations": cost.iterations,
        "baseline_iterations": baseline.iterations,
        "epochs": round(cost.epochs, 4),
        "clips": cost.clips,
        "flops": cost.flops,
        "global_batch": trainer.schedule.base.batch,
        "evaluations": trainer.evaluations,
        **({"best": trainer.best} if trainer.best else {}),
    }
