"""What can be trained and tested, checked before anything starts."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from slowfast_patches.config.architecture import check_architecture
from slowfast_patches.config.keys import AUTO_OR_COUNT
from slowfast_patches.config.labels import check_labels
from slowfast_patches.config.large_batch import check_large_batch
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.speed import check_speed
from slowfast_patches.patching import DETECTRON2_HINT
from slowfast_patches.utils.report import format_list

__all__ = ["check_recipe"]

logger = logging.getLogger(__name__)

_CHOICES: dict[str, tuple[object, ...]] = {
    "MODEL.ARCH": ("slowfast", "slowonly", "c2d", "c2d_nopool", "i3d", "i3d_nopool", "tsm"),
    # The host's basic_transform cannot be built: it does not take the host's own arguments.
    "RESNET.TRANS_FUNC": ("bottleneck_transform",),
    "SOLVER.LR_POLICY": ("cosine", "steps_with_relative_lrs"),
    "SOLVER.OPTIMIZING_METHOD": ("sgd", "adam", "adamw", "lars"),
    "DATA.ENSEMBLE_METHOD": ("sum", "max"),
    "TRAIN.CHECKPOINT_TYPE": ("pytorch", "caffe2"),
    "TEST.CHECKPOINT_TYPE": ("pytorch", "caffe2"),
    "TEST.NUM_SPATIAL_CROPS": (1, 3),
    "DIST_BACKEND": ("auto", "nccl", "gloo"),
}

_AT_LEAST_ONE = (
    "MODEL.NUM_CLASSES",
    "DATA.NUM_FRAMES",
    "DATA.SAMPLING_RATE",
    "DATA.TARGET_FPS",
    "DATA.MAX_FRAME_PIXELS",
    "SLOWFAST.ALPHA",
    "SLOWFAST.BETA_INV",
    "TRAIN.BATCH_SIZE",
    "TRAIN.EVAL_PERIOD",
    "TRAIN.CHECKPOINT_PERIOD",
    "SOLVER.ACCUMULATION_STEPS",
    "TEST.BATCH_SIZE",
    "TEST.NUM_ENSEMBLE_VIEWS",
    "MULTIGRID.BN_BASE_SIZE",
    "MULTIGRID.EVAL_FREQ",
    "MULTIGRID.SIZE_DIVISOR",
    "NUM_SHARDS",
    "LOG_PERIOD",
)

_ABOVE_ZERO = (
    "MULTIGRID.EPOCH_FACTOR",
    "SOLVER.MAX_EPOCH",
    "SOLVER.BASE_LR",
    "SOLVER.LARS_TRUST",
    "DIST_JOIN_SECONDS",
    "DIST_STALL_SECONDS",
)

_FROM_ZERO_BELOW_ONE = ("MODEL.LABEL_SMOOTHING", "MODEL.EMA_DECAY")

_STRIDE = 32
"""Pixels of the input to one of the last feature map's."""


def check_recipe(recipe: Recipe, world_size: int = 1) -> None:
    """Refuse a config that cannot train or test as it says; `world_size` counts processes.

    Raises:
        ValueError: what is wrong, with the numbers and a way out.
        ImportError: a package that the config asks for is not installed; names it.
    """
    checks: tuple[Callable[[Recipe], None], ...] = (
        _check_values,
        _check_detection,
        check_labels,
        _check_solver,
        check_large_batch,
        _check_multigrid,
        _check_groups,
        check_architecture,
        _check_crops,
    )
    for check in checks:
        check(recipe)
    _check_processes(recipe, world_size)
    check_speed(recipe, world_size)


def _check_values(recipe: Recipe) -> None:
    for key, choices in _CHOICES.items():
        if recipe[key] not in choices:
            raise ValueError(
                f"{key} {recipe[key]!r} is not known; use {format_list(choices, 'or')}"
            )
    for key in _AT_LEAST_ONE:
        if recipe[key] < 1:
            raise ValueError(f"{key} must be 1 or more, not {recipe[key]}")
    for key in AUTO_OR_COUNT:
        if recipe[key] != "auto" and recipe[key] < 0:
            raise ValueError(f"{key} must be 0 or more, or auto, not {recipe[key]}")
    if recipe.train.checkpoints_kept < 0:
        raise ValueError(
            f"TRAIN.CHECKPOINTS_KEPT must be 1 or more, or 0 to keep all, not "
            f"{recipe.train.checkpoints_kept}"
        )
    for key in _ABOVE_ZERO:
        if not recipe[key] > 0:
            raise ValueError(f"{key} must be above 0, not {recipe[key]}")
    for key in _FROM_ZERO_BELOW_ONE:
        if not 0 <= recipe[key] < 1:
            raise ValueError(f"{key} lies in [0, 1), not {recipe[key]}; 0 is off")
    if not 0 <= recipe.data.max_bad_fraction <= 1:
        raise ValueError(
            f"DATA.MAX_BAD_FRACTION lies in [0, 1], not {recipe.data.max_bad_fraction}"
        )
    predictions = recipe.test.save_results_path
    if predictions and not predictions.endswith(".csv"):
        raise ValueError(
            f"TEST.SAVE_RESULTS_PATH {predictions}: predictions are written as CSV; give a name "
            "that ends in .csv"
        )


def _check_detection(recipe: Recipe) -> None:
    if not recipe.detection.enable:
        return
    if importlib.util.find_spec("detectron2") is None:
        raise ImportError(f"DETECTION.ENABLE True needs {DETECTRON2_HINT}.")
    raise ValueError(
        "DETECTION.ENABLE True: the training loop trains classification only; build the detection "
        "model with slowfast_patches.models.build.build_model for a loop of your own, or set "
        "DETECTION.ENABLE False"
    )


def _check_solver(recipe: Recipe) -> None:
    solver = recipe.solver
    if not 0 <= solver.warmup_epochs < solver.max_epoch:
        raise ValueError(
            f"SOLVER.WARMUP_EPOCHS {solver.warmup_epochs:g} must lie in [0, SOLVER.MAX_EPOCH), and "
            f"MAX_EPOCH is {solver.max_epoch:g}; shorten the warm-up"
        )
    if solver.clip_grad_val and solver.clip_grad_l2norm:
        raise ValueError(
            f"SOLVER.CLIP_GRAD_VAL {solver.clip_grad_val:g} and SOLVER.CLIP_GRAD_L2NORM "
            f"{solver.clip_grad_l2norm:g}: one of them clips; set the other to None"
        )
    if solver.lr_policy == "steps_with_relative_lrs":
        _check_steps(list(solver.steps), list(solver.lrs), solver.max_epoch)
    elif solver.steps:
        logger.warning(
            "SOLVER.STEPS %s has no effect: SOLVER.LR_POLICY %s has no steps; write "
            "steps_with_relative_lrs or leave STEPS out.",
            solver.steps,
            solver.lr_policy,
        )


def _check_steps(steps: list[Any], rates: list[Any], max_epoch: float) -> None:
    """Steps are epochs at which stages start; rates are relative to BASE_LR, one a stage."""
    for key, values in (("SOLVER.STEPS", steps), ("SOLVER.LRS", rates)):
        if not all(_is_number(value) for value in values):
            raise ValueError(f"{key} is a list of numbers, not {values}")
    if steps and steps[0] != 0:
        raise ValueError(
            f"SOLVER.STEPS {steps} must start at epoch 0, where the first rate begins; write "
            f"{[0, *steps]}"
        )
    if any(later <= step for step, later in pairwise([*steps, max_epoch])):
        raise ValueError(
            f"SOLVER.STEPS {steps} must ascend and end before SOLVER.MAX_EPOCH {max_epoch:g}; "
            "move the steps or raise MAX_EPOCH"
        )
    stages = max(1, len(steps))
    if rates and len(rates) != stages:
        raise ValueError(
            f"SOLVER.LRS has {len(rates)} rates for the {stages} stages of SOLVER.STEPS {steps}; "
            "give one for each, or leave LRS empty for powers of SOLVER.GAMMA"
        )


def _check_multigrid(recipe: Recipe) -> None:
    multigrid = recipe.multigrid
    long, short = list(multigrid.long_cycle_factors), list(multigrid.short_cycle_factors)
    well_formed = all(
        isinstance(pair, tuple) and len(pair) == 2 and all(map(_is_factor, pair)) for pair in long
    )
    if not (well_formed and long and long[-1] == (1, 1)):
        raise ValueError(
            "MULTIGRID.LONG_CYCLE_FACTORS is a list of [frames, crop] with factors in (0, 1], the "
            f"last [1, 1], not {long}"
        )
    if not short or not all(_is_factor(factor) for factor in short):
        raise ValueError(
            f"MULTIGRID.SHORT_CYCLE_FACTORS is a list of factors in (0, 1], not {short}; set "
            "MULTIGRID.SHORT_CYCLE False to train without"
        )
    if recipe.multigrid.size_divisor > recipe.data.train_crop_size:
        raise ValueError(
            f"MULTIGRID.SIZE_DIVISOR {recipe.multigrid.size_divisor} is more than "
            f"DATA.TRAIN_CROP_SIZE {recipe.data.train_crop_size}, and crops of coarser grids are "
            "multiples of it; write 16, or 1 for the paper's crops"
        )
    if recipe.multigrid.size_divisor > 1 and not recipe.uses_multigrid:
        logger.warning(
            "MULTIGRID.SIZE_DIVISOR %d has no effect without a cycle, where every crop is the "
            "baseline's; leave it out, or set MULTIGRID.LONG_CYCLE or SHORT_CYCLE True",
            recipe.multigrid.size_divisor,
        )


def _check_groups(recipe: Recipe) -> None:
    size, own = recipe.bn.group_size, recipe.multigrid.bn_base_size
    batch, cycles = recipe.base_shape.batch, recipe.uses_multigrid
    if size < 0:
        raise ValueError(f"BN.GROUP_SIZE must be 0 or more clips, not {size}")
    if size not in (0, own) and cycles:
        logger.warning(
            "BN.GROUP_SIZE %d has no effect with a cycle, where MULTIGRID.BN_BASE_SIZE %d clips "
            "share statistics; write that",
            *(size, own),
        )
    if (wanted := own if cycles else size) > batch:
        logger.warning(
            "%s %d is more than the global batch of %d clips: BN is over %d; train on more GPUs or "
            "with a larger TRAIN.BATCH_SIZE",
            *("MULTIGRID.BN_BASE_SIZE" if cycles else "BN.GROUP_SIZE", wanted, batch, batch),
        )


def _check_crops(recipe: Recipe) -> None:
    """The head's test-time window is the feature map of a training crop, CROP_SIZE // 32."""
    train, test, head = (
        recipe.data.train_crop_size,
        recipe.data.test_crop_size,
        recipe.data.crop_size,
    )
    if train < _STRIDE:
        raise ValueError(f"DATA.TRAIN_CROP_SIZE {train} is below {_STRIDE} pixels, the least")
    if head != train:
        raise ValueError(
            f"DATA.CROP_SIZE {head} is the crop that the head's test-time window is made for, and "
            f"DATA.TRAIN_CROP_SIZE is {train}; leave CROP_SIZE out, and it follows"
        )
    if test // _STRIDE < train // _STRIDE:
        raise ValueError(
            f"DATA.TEST_CROP_SIZE {test} is smaller than the head's window, made for crops of "
            f"{train}; set it to {train // _STRIDE * _STRIDE} or more"
        )
    jitter = list(recipe.data.train_jitter_scales)
    if len(jitter) != 2 or not train <= jitter[0] <= jitter[1]:
        raise ValueError(
            f"DATA.TRAIN_JITTER_SCALES {jitter} is [shortest, longest] short side in pixels, no "
            f"shorter than DATA.TRAIN_CROP_SIZE {train}"
        )


def _check_processes(recipe: Recipe, world_size: int) -> None:
    """TRAIN.BATCH_SIZE is one machine's, so the global batch is BATCH_SIZE × NUM_SHARDS."""
    if recipe.num_gpus < 0:
        raise ValueError(f"NUM_GPUS {recipe.num_gpus} is below 0; NUM_GPUS 0 is the CPU")
    clips, machines = recipe.train.batch_size, recipe.num_shards
    batch = clips * machines
    if batch % world_size:
        enough = next(n for n in range(clips, clips + world_size) if n * machines % world_size == 0)
        raise ValueError(
            f"a global batch of {batch} clips (TRAIN.BATCH_SIZE {clips} × NUM_SHARDS {machines}) "
            f"does not divide over {world_size} processes; set TRAIN.BATCH_SIZE {enough}, or use a "
            f"number of processes that divides {batch}"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_factor(value: Any) -> bool:
    return _is_number(value) and 0 < value <= 1
