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
from fvcore.common.config import CfgNode
from torch import nn

from multigrid import Schedule, baseline_cost, schedule_cost
from slowfast_patches import patching
from slowfast_patches.config import check_config
from slowfast_patches.config.metrics import COUNTS, EMA, format_metrics, metric_names, with_suffix
from slowfast_patches.config.schedule import check_world_size, schedule_from_config
from slowfast_patches.datasets.lists.in_use import reading
from slowfast_patches.datasets.lists.list_warnings import list_warnings
from slowfast_patches.datasets.lists.lists import class_names, list_path, read_list
from slowfast_patches.datasets.loader import build_dataset, evaluation_loader, evaluation_rounds
from slowfast_patches.launch.device import set_up_device
from slowfast_patches.launch.launch import check_gpus, for_processes, launch, processes_of
from slowfast_patches.launch.output_lock import held
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
from slowfast_patches.utils.placement import find_placement

__all__ = ["run"]

logger = logging.getLogger(__name__)

_TOLERANCE = 0.1
"""Part of DATA.NUM_TRAIN_VIDEOS that may be missing, as videos vanish, without a warning."""
_LOOKED_AT = 20
"""Videos of a list of which one at least must be there."""


def run(cfg: CfgNode, init_method: str | None = None) -> None:
    """Check the recipe, then train and test it on all its processes.

    Raises:
        ValueError: the recipe cannot run as it is; said before anything is trained.
        SystemExit: one of several processes failed, and has said why.
    """
    patching.apply()
    with ExitStack() as lists:
        launch(cfg, init_method, _main, partial(_check, lists))


def _check(lists: ExitStack, recipe: CfgNode) -> None:
    """Try what can be tried before any process trains; `lists` keeps what is read as it is."""
    cfg = for_processes(recipe)
    world_size = processes_of(cfg)
    check_config(cfg, world_size)
    check_gpus(cfg)
    lists.enter_context(reading(_lists(cfg)))
    schedule = _check_training(cfg, world_size) if cfg.TRAIN.ENABLE else None
    if cfg.TEST.ENABLE:
        _count_videos(cfg, "test")
        if schedule is None and _starts_main(cfg):
            path, kind, section = _tested_file(cfg)
            check_file(path, kind, section=section)
    if cfg.TRAIN.ENABLE and _starts_main(cfg):
        with held(cfg.OUTPUT_DIR):  # refused before processes are started for nothing
            pass


def _lists(cfg: CfgNode) -> list[Path]:
    """The lists that the run reads: as it begins to train and, anew, as it begins to test."""
    splits = ["train", "val"] * cfg.TRAIN.ENABLE + ["test"] * cfg.TEST.ENABLE
    return [list_path(cfg, split) for split in splits]


def _starts_main(cfg: CfgNode) -> bool:
    """Whether the main process is this one, or one that this one starts."""
    return find_placement(cfg, os.environ).first_rank == 0


def _check_training(cfg: CfgNode, world_size: int) -> Schedule:
    """The schedule, after trying what can be tried before training and without the checkpoints in
    OUTPUT_DIR."""
    if not _continues(cfg):
        class_names(cfg)  # raises where their number is not MODEL.NUM_CLASSES
    videos, expected = _count_videos(cfg, "train"), cfg.DATA.NUM_TRAIN_VIDEOS
    if expected and abs(videos - expected) > _TOLERANCE * expected:
        logger.warning(
            "the recipe was made for %d training videos (DATA.NUM_TRAIN_VIDEOS), the list has %d: "
            "its epochs are as many, its iterations are not",
            expected,
            videos,
        )
    _count_videos(cfg, "val")
    schedule = schedule_from_config(cfg, videos)
    check_world_size(cfg, schedule, world_size)
    check_shapes(cfg, schedule.shapes)
    if _starts_main(cfg):
        _check_weights(cfg)
    return schedule


def _continues(cfg: CfgNode) -> bool:
    return checkpoints.continues(cfg) and checkpoints.last_checkpoint(cfg.OUTPUT_DIR) is not None


def _check_weights(cfg: CfgNode) -> None:
    """Look at the file that a training starts from, where it does not continue another."""
    if _continues(cfg):
        return
    if cfg.TRAIN.CHECKPOINT_FILE_PATH:
        check_file(cfg.TRAIN.CHECKPOINT_FILE_PATH, cfg.TRAIN.CHECKPOINT_TYPE)
    elif cfg.TRAIN.CHECKPOINT_INFLATE:
        raise ValueError(
            "TRAIN.CHECKPOINT_INFLATE True has nothing to inflate: set TRAIN.CHECKPOINT_FILE_PATH, "
            "or CHECKPOINT_INFLATE False to start from scratch"
        )


def _count_videos(cfg: CfgNode, split: str) -> int:
    """Videos in a list that parses, after a look whether they are where it says."""
    videos = read_list(cfg, split)
    paths = [videos[number].path for number in range(min(_LOOKED_AT, len(videos)))]
    if not any(Path(path).exists() for path in paths):
        raise ValueError(
            f"none of the first videos of {list_path(cfg, split)} exists, such as {paths[0]}; set "
            "DATA.PATH_PREFIX to the folder that their paths start from"
        )
    if _starts_main(cfg):
        for text in list_warnings(cfg, split, videos):
            logger.warning("%s", text)
    return len(videos)


def _prepare_folder(cfg: CfgNode, trainer: Trainer) -> None:
    """OUTPUT_DIR's config.yaml, plan.txt, plan.json and plan.png, and nothing of a run before that
    this one does not continue."""
    folder, schedule = Path(cfg.OUTPUT_DIR), trainer.schedule
    checkpoints.clean(folder)
    left = [folder / name for name in ("result.json", "result_classes.csv", "result_confusion.png")]
    if cfg.TEST.SAVE_RESULTS_PATH:
        left.append(folder / cfg.TEST.SAVE_RESULTS_PATH)
    best = checkpoints.best_checkpoint(folder)
    if best is not None and not trainer.best:
        left.append(best)
    for path in left:
        path.unlink(missing_ok=True)
    plan = make_plan(schedule, flops_per_clip(cfg))
    (folder / "config.yaml").write_text(cfg.dump(), encoding="utf-8")
    (folder / "plan.txt").write_text(format_plan(plan) + "\n", encoding="utf-8")
    (folder / "plan.json").write_text(simplejson.dumps(plan.to_json(), indent=2), encoding="utf-8")
    plot_plan(schedule, folder / "plan.png")


def _main(recipe: CfgNode, world: World) -> None:
    """What each process does. What was scaled for the processes is said here, in the log."""
    patching.apply()
    set_up_device(recipe)
    if not recipe.TRAIN.ENABLE:
        setup_logging(recipe.OUTPUT_DIR, world, "test")  # a training may be at work there
        cfg = for_processes(recipe)
        _finish(cfg, world, None, _test(cfg, world))
        return
    with held(recipe.OUTPUT_DIR) if world.is_main else nullcontext():
        setup_logging(recipe.OUTPUT_DIR, world)
        if world.is_main:
            with checkpoints.writes("OUTPUT_DIR", 0, recipe.OUTPUT_DIR):
                checkpoints.start_over(recipe)
        with StopRequest(world, timedelta(seconds=recipe.DIST_STALL_SECONDS)) as stop:
            _train_and_test(for_processes(recipe), world, stop)


def _train_and_test(cfg: CfgNode, world: World, stop: StopRequest) -> None:
    trainer, metrics = _start(cfg, world, stop), None
    trainer.train()
    if cfg.TEST.ENABLE:
        with checkpoints.explain_dead_workers(cfg.OUTPUT_DIR):
            metrics, named = dict[str, float](), set[str]()
            for model, suffix in zip(trainer.models, ("", EMA), strict=False):
                metrics |= with_suffix(_test(cfg, world, trainer, model, named), suffix)
    _finish(cfg, world, trainer, metrics)


def _start(cfg: CfgNode, world: World, stop: StopRequest) -> Trainer:
    """What trains, where it starts from; and the folder of the run, if that is as it must be."""
    found = checkpoints.find_resumable(cfg) if world.is_main else None
    trainer = Trainer(cfg, world, stop, found)
    if world.is_main:
        with checkpoints.writes("the plan", trainer.start, cfg.OUTPUT_DIR):
            _prepare_folder(cfg, trainer)
        if cfg.LOG_MODEL_INFO:
            _log_model(cfg, trainer)
        logger.info("the plan:\n%s", (Path(cfg.OUTPUT_DIR) / "plan.txt").read_text("utf-8"))
    return trainer


def _log_model(cfg: CfgNode, trainer: Trainer) -> None:
    base = trainer.schedule.base
    logger.info(
        "%s: %d parameters, %.3g training FLOPs per clip of %d frames of %d²",
        cfg.MODEL.ARCH,
        sum(p.numel() for p in trainer.model.parameters()),
        flops_per_clip(cfg)(base.frames, base.crop),
        base.frames,
        base.crop,
    )


def _test(
    cfg: CfgNode,
    world: World,
    trainer: Trainer | None = None,
    model: nn.Module | None = None,
    named: set[str] | None = None,
) -> dict[str, float]:
    """Multi-view metrics of a model of the trainer's, or of a checkpoint where nothing was trained;
    `named` as for `evaluate`."""
    if model is None:
        model = build_model(cfg).to(world.device)
        if world.is_main:
            _load_tested(model, cfg)
        model.load_state_dict(checkpoints.share(model.state_dict(), world))
    dataset = build_dataset(cfg, "test")
    local = max(1, cfg.TEST.BATCH_SIZE * cfg.NUM_SHARDS // world.size)
    batches: Iterable[Any] = evaluation_loader(cfg, dataset, local, world.rank, world.size)
    if trainer is not None:
        rounds = evaluation_rounds(len(dataset), local, world.size)
        batches = trainer.stop.between(batches, rounds)
    found = evaluate(
        model,
        batches,
        InputTransform.from_config(cfg, world.device),
        world,
        num_videos=len(dataset.videos),
        num_clips=len(dataset) // len(dataset.videos),
        num_classes=cfg.MODEL.NUM_CLASSES,
        multi_label=cfg.DATA.MULTI_LABEL,
        ensemble=cfg.DATA.ENSEMBLE_METHOD,
        autocast=Precision(cfg, world.device).autocast,
        max_bad=cfg.DATA.MAX_BAD_FRACTION,
        named=named,
    )
    averaged = trainer is not None and model is not trainer.model
    logger.info(
        "test%s on %d views × %d crops: %s",
        " of the averaged weights" if averaged else "",
        cfg.TEST.NUM_ENSEMBLE_VIEWS,
        cfg.TEST.NUM_SPATIAL_CROPS,
        format_metrics(found.metrics),
    )
    if world.is_main and not averaged:
        done = 0 if trainer is None else trainer.done
        with checkpoints.writes("the test's tables", done, cfg.OUTPUT_DIR):
            _write_tables(cfg, dataset, found, "test" if trainer is None else "result")
    return found.metrics


def _write_tables(cfg: CfgNode, dataset: Any, found: Evaluation, name: str) -> None:
    """OUTPUT_DIR's tables beside {name}.json, and the predictions where they are asked for."""
    names = names_of_data(cfg)
    write_tables(Path(cfg.OUTPUT_DIR), name, found, names)
    if cfg.TEST.SAVE_RESULTS_PATH:
        paths = [str(getattr(video, "path", video)) for video in dataset.videos]
        path = Path(cfg.OUTPUT_DIR, cfg.TEST.SAVE_RESULTS_PATH)
        scores = zip(found.probabilities.cpu(), found.scored.tolist(), strict=True)
        rows = [row if scored else None for row, scored in scores]
        write_predictions(path, paths, rows, names, found.labels.cpu())
        logger.info("the predictions: %s", path)


def _load_tested(model: nn.Module, cfg: CfgNode) -> None:
    """Load the weights to test; a training that is at work there may delete them meanwhile."""
    path, kind, section = tested = _tested_file(cfg)
    try:
        load_weights(model, path, kind=kind, complete=True, section=section)
    except ValueError:
        path, kind, section = newer = _tested_file(cfg)
        if newer == tested:
            raise
        load_weights(model, path, kind=kind, complete=True, section=section)


def _tested_file(cfg: CfgNode) -> tuple[str, str, str]:
    """The file whose model is tested, its CHECKPOINT_TYPE, and the section that names it."""
    found = checkpoints.last_checkpoint(cfg.OUTPUT_DIR)
    if cfg.TEST.CHECKPOINT_FILE_PATH:
        return cfg.TEST.CHECKPOINT_FILE_PATH, cfg.TEST.CHECKPOINT_TYPE, "TEST"
    if found is not None:
        return str(found), "pytorch", "TEST"
    if cfg.TRAIN.CHECKPOINT_FILE_PATH:
        return cfg.TRAIN.CHECKPOINT_FILE_PATH, cfg.TRAIN.CHECKPOINT_TYPE, "TRAIN"
    raise ValueError(
        f"nothing to test: {cfg.OUTPUT_DIR} has no checkpoint; set TEST.CHECKPOINT_FILE_PATH, or "
        "TRAIN.ENABLE True"
    )


def _finish(
    cfg: CfgNode, world: World, trainer: Trainer | None, metrics: dict[str, float] | None
) -> None:
    """Say what came of the run."""
    if not world.is_main:
        return
    done = 0 if trainer is None else trainer.done
    with checkpoints.writes("the result", done, cfg.OUTPUT_DIR):
        _write_result(cfg, world, trainer, metrics)
        check_log_files()


def _write_result(
    cfg: CfgNode, world: World, trainer: Trainer | None, metrics: dict[str, float] | None
) -> None:
    """OUTPUT_DIR/result.json: its presence says that the run is complete.

    Its metrics are those of the test, or of the last validation where nothing is tested; "metric"
    names the primary one. Beside them is how many videos could not be read.
    """
    result: dict[str, Any] = {
        "config": yaml.safe_load(cfg.dump()),
        "versions": versions(),
        "machine": machine(),
        "seed": cfg.RNG_SEED,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "world_size": world.size,
        "finished": True,
        "metric": metric_names(cfg)[0],
    }
    if trainer is not None:
        result |= _training_result(cfg, trainer)
        last = trainer.evaluations[-1]
        names = metric_names(cfg)
        names += (*(name + EMA for name in names), *COUNTS)
        validated = {name: last[name] for name in names if name in last}
        metrics = validated if metrics is None else metrics
    result |= {name: round(value, 4) for name, value in (metrics or {}).items()}
    folder = Path(cfg.OUTPUT_DIR)
    folder.mkdir(parents=True, exist_ok=True)
    with written_whole(folder / ("result.json" if trainer is not None else "test.json")) as file:
        file.write((simplejson.dumps(result, indent=2) + "\n").encode())


def _training_result(cfg: CfgNode, trainer: Trainer) -> dict[str, Any]:
    flops = flops_per_clip(cfg)
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
