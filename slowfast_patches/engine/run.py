"""A run: train, test, and say in result.json what came of it."""

from __future__ import annotations

import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import simplejson
import torch
import yaml
from fvcore.common.config import CfgNode

from multigrid import MultigridBatchSampler, Schedule, baseline_cost, schedule_cost
from slowfast_patches import patching
from slowfast_patches.config import check_config
from slowfast_patches.config.metrics import format_metrics, metric_names
from slowfast_patches.config.schedule import schedule_from_config
from slowfast_patches.datasets.in_use import reading
from slowfast_patches.datasets.lists import list_path, read_list
from slowfast_patches.datasets.loader import build_dataset, evaluation_loader
from slowfast_patches.engine import checkpoint
from slowfast_patches.engine.evaluate import evaluate
from slowfast_patches.engine.heartbeat import Heartbeat
from slowfast_patches.engine.launch import check_gpus, for_processes, launch, processes_of
from slowfast_patches.engine.monitor import setup_logging
from slowfast_patches.engine.plan import format_plan, make_plan
from slowfast_patches.engine.plan_picture import plot_plan
from slowfast_patches.engine.pulse import Pulse, WatchedBatches
from slowfast_patches.engine.train import Trainer
from slowfast_patches.models.build import build_model
from slowfast_patches.models.flops import check_shapes, flops_per_clip
from slowfast_patches.models.inputs import InputTransform
from slowfast_patches.models.solver import Precision
from slowfast_patches.models.weights import check_file, load_weights
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.machine import machine, versions

__all__ = ["run"]

logger = logging.getLogger(__name__)

_TOLERANCE = 0.1
"""Part of DATA.NUM_TRAIN_VIDEOS that may be missing, as videos vanish, without a warning."""
_LOOKED_AT = 20
"""Videos of a list of which one at least must be there."""


def run(cfg: CfgNode, init_method: str) -> None:
    """Check the recipe, then train and test it on all its processes.

    Raises:
        ValueError: the recipe cannot run as it is; said before anything is trained.
    """
    patching.apply()
    recipe, cfg = cfg, for_processes(cfg)
    check_config(cfg, processes_of(cfg))
    check_gpus(cfg)
    with reading(_lists(cfg)):
        _check_and_run(recipe, cfg, init_method)


def _lists(cfg: CfgNode) -> list[Path]:
    """The lists that the run reads: as it begins to train and, anew, as it begins to test."""
    splits = ["train", "val"] * cfg.TRAIN.ENABLE + ["test"] * cfg.TEST.ENABLE
    return [list_path(cfg, split) for split in splits]


def _check_and_run(recipe: CfgNode, cfg: CfgNode, init_method: str) -> None:
    """Go through with the recipe; `cfg` is what it is for the processes of this run."""
    schedule = _check_training(cfg, processes_of(cfg)) if cfg.TRAIN.ENABLE else None
    if cfg.TEST.ENABLE:
        _count_videos(cfg, "test")
        if schedule is None:
            path, kind, section = _tested_file(cfg)
            check_file(path, kind, section=section)
    if schedule is not None and cfg.SHARD_ID == 0 and int(os.environ.get("RANK", 0)) == 0:
        _prepare_folder(cfg, schedule)
    launch(recipe, init_method, _main)


def _check_training(cfg: CfgNode, world_size: int) -> Schedule:
    """The schedule, after trying everything that can be tried before training."""
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
    MultigridBatchSampler(schedule, cfg.RNG_SEED, 0, world_size)
    check_shapes(cfg, schedule.shapes)
    resumed = checkpoint.find_resumable(cfg, schedule.num_videos)
    if resumed is None and cfg.TRAIN.CHECKPOINT_FILE_PATH:
        check_file(cfg.TRAIN.CHECKPOINT_FILE_PATH, cfg.TRAIN.CHECKPOINT_TYPE)
    elif resumed is None and cfg.TRAIN.CHECKPOINT_INFLATE:
        raise ValueError(
            "TRAIN.CHECKPOINT_INFLATE True has nothing to inflate: set TRAIN.CHECKPOINT_FILE_PATH, "
            "or CHECKPOINT_INFLATE False to start from scratch"
        )
    return schedule


def _count_videos(cfg: CfgNode, split: str) -> int:
    """Videos in a list that parses, after a look whether they are where it says."""
    videos = read_list(cfg, split)
    paths = [videos[number].path for number in range(min(_LOOKED_AT, len(videos)))]
    if not any(Path(path).exists() for path in paths):
        raise ValueError(
            f"none of the first videos of {list_path(cfg, split)} exists, such as {paths[0]}; set "
            "DATA.PATH_PREFIX to the folder that their paths start from"
        )
    return len(videos)


def _prepare_folder(cfg: CfgNode, schedule: Schedule) -> None:
    """OUTPUT_DIR's config.yaml, plan.txt, plan.json and plan.png, and nothing of a run before that
    this one does not continue."""
    folder = Path(cfg.OUTPUT_DIR)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").unlink(missing_ok=True)
    if not cfg.TRAIN.AUTO_RESUME and (kept := checkpoint.set_aside(folder)):
        logger.warning("TRAIN.AUTO_RESUME False starts over; earlier checkpoints: %s", kept)
    plan = make_plan(schedule, flops_per_clip(cfg))
    (folder / "config.yaml").write_text(cfg.dump(), encoding="utf-8")
    (folder / "plan.txt").write_text(format_plan(plan) + "\n", encoding="utf-8")
    (folder / "plan.json").write_text(simplejson.dumps(plan.to_json(), indent=2), encoding="utf-8")
    plot_plan(schedule, folder / "plan.png")


def _main(recipe: CfgNode, world: World) -> None:
    """What each process does. What was scaled for the processes is said here, in the log."""
    patching.apply()
    setup_logging(recipe.OUTPUT_DIR if world.is_main else None)
    cfg = for_processes(recipe)
    torch.backends.cudnn.benchmark = True
    trainer, metrics = None, None
    if cfg.TRAIN.ENABLE:
        trainer = Trainer(cfg, world)
        if world.is_main:
            if cfg.LOG_MODEL_INFO:
                _log_model(cfg, trainer)
            logger.info("the plan:\n%s", (Path(cfg.OUTPUT_DIR) / "plan.txt").read_text("utf-8"))
        trainer.train()
    if cfg.TEST.ENABLE:
        metrics = _test(cfg, world, trainer)
    if world.is_main:
        _write_result(cfg, world, trainer, metrics)


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


def _test(cfg: CfgNode, world: World, trainer: Trainer | None) -> dict[str, float]:
    """Multi-view metrics of the trained model, or of a checkpoint where nothing was trained."""
    if trainer is not None:
        model = trainer.model
    else:
        model = build_model(cfg).to(world.device)
        path, kind, section = _tested_file(cfg)
        load_weights(model, path, kind=kind, complete=True, section=section)
    dataset = build_dataset(cfg, "test")
    local = max(1, cfg.TEST.BATCH_SIZE * cfg.NUM_SHARDS // world.size)
    loader = evaluation_loader(cfg, dataset, local, world.rank, world.size)
    pulse = Pulse()
    with Heartbeat(pulse, world), pulse.during("evaluating"):
        metrics = evaluate(
            model,
            WatchedBatches(loader, pulse, "the test"),
            InputTransform.from_config(cfg, world.device),
            world,
            num_videos=len(dataset.videos),
            num_classes=cfg.MODEL.NUM_CLASSES,
            multi_label=cfg.DATA.MULTI_LABEL,
            ensemble=cfg.DATA.ENSEMBLE_METHOD,
            autocast=Precision(cfg, world.device).autocast,
        )
    logger.info(
        "test on %d views × %d crops: %s",
        cfg.TEST.NUM_ENSEMBLE_VIEWS,
        cfg.TEST.NUM_SPATIAL_CROPS,
        format_metrics(metrics),
    )
    return metrics


def _tested_file(cfg: CfgNode) -> tuple[str, str, str]:
    """The file whose model is tested, its CHECKPOINT_TYPE, and the section that names it."""
    found = checkpoint.last_checkpoint(cfg.OUTPUT_DIR)
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


def _write_result(
    cfg: CfgNode, world: World, trainer: Trainer | None, metrics: dict[str, float] | None
) -> None:
    """OUTPUT_DIR/result.json: its presence says that the run is complete.

    Its metrics are those of the test, or of the last validation where nothing is tested; "metric"
    names the primary one.
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
        result |= {name: trainer.evaluations[-1][name] for name in metric_names(cfg)}
    if metrics is not None:
        result |= {name: round(value, 4) for name, value in metrics.items()}
    folder = Path(cfg.OUTPUT_DIR)
    folder.mkdir(parents=True, exist_ok=True)
    name = "result.json" if trainer is not None else "test.json"
    temporary = folder / f"{name}.tmp"
    temporary.write_text(simplejson.dumps(result, indent=2) + "\n", encoding="utf-8")
    temporary.replace(folder / name)


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
    }
