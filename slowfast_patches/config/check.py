"""What can be trained and tested, checked before anything starts.

What a single key can be is in config/recipe.py and checked where it is loaded; here are the checks
across keys.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from slowfast_patches.config.recipe import PER_PATHWAY, Recipe, default_recipe
from slowfast_patches.config.schedule import learning_rate_of
from slowfast_patches.utils.tables import format_list

__all__ = ["check_frames", "check_large_batch", "check_recipe"]

logger = logging.getLogger(__name__)

_FITTING: Mapping[bool, Mapping[str, str]] = {
    False: {"LOSS_FUNC": "cross_entropy", "HEAD_ACT": "softmax"},
    True: {"LOSS_FUNC": "bce_logit", "HEAD_ACT": "sigmoid"},
}
"""Keys of MODEL by DATA.MULTI_LABEL. Sigmoid scores of a softmax training depend on an offset that
nothing trains; softmax scores of several labels do not compare between videos, which mAP ranks."""

_ADAPTIVE = ("adam", "adamw")
"""Methods whose rate follows the square root of the batch (Malladi et al., 2022)."""

_STRIDE = 32
"""Pixels of the input to one of the last feature map's."""


def check_recipe(recipe: Recipe, world_size: int = 1) -> None:
    """Refuse a recipe that cannot train or test as it says; `world_size` counts processes.

    Raises:
        ValueError: what is wrong, with the numbers and a way out.
    """
    if recipe.detection.enable:
        raise ValueError("DETECTION.ENABLE True: detection is not trained here; set it to False")
    _check_labels(recipe)
    _check_solver(recipe)
    check_large_batch(recipe)
    _warn_of_linear_rates(recipe)
    _warn_of_what_has_no_effect(recipe)
    _check_sizes(recipe)
    _check_pathways(recipe)
    _check_shift(recipe)
    cycle = recipe.multigrid.long_cycle_factors if recipe.multigrid.long_cycle else [(1.0, 1.0)]
    factors = [time for time, _ in cycle]
    check_frames(recipe.model.arch, recipe.data.num_frames, recipe.slowfast.alpha, factors)
    _check_crops(recipe)
    _check_processes(recipe, world_size)
    _check_mixup(recipe, world_size)
    _check_speed(recipe, world_size)


def _check_labels(recipe: Recipe) -> None:
    """DATA.ENSEMBLE_METHOD is free: the sum and the maximum of probabilities over views both rank
    classes and videos."""
    several = recipe.data.multi_label
    model = recipe.model
    if model.num_classes == 1 and not several:
        raise ValueError(
            "MODEL.NUM_CLASSES 1: where all videos have the same label there is nothing to learn; "
            "give the videos of at least one class more"
        )
    if several and model.label_smoothing:
        raise ValueError(
            f"MODEL.LABEL_SMOOTHING {model.label_smoothing:g} is for a video's one label among "
            "classes that compete, and DATA.MULTI_LABEL is True; set MODEL.LABEL_SMOOTHING 0.0"
        )
    for key, fitting in _FITTING[several].items():
        if (value := recipe[f"MODEL.{key}"]) != fitting:
            raise ValueError(
                f"MODEL.{key} {value!r} does not fit DATA.MULTI_LABEL {several}; set MODEL.{key} "
                f"{fitting}, or DATA.MULTI_LABEL {not several}"
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
        _check_steps(list(solver.steps), solver.lrs, solver.max_epoch)


def _check_steps(steps: list[float], rates: Sequence[float], max_epoch: float) -> None:
    """Steps are epochs at which stages start; rates are relative to BASE_LR, one a stage."""
    if steps and steps[0] != 0:
        raise ValueError(
            f"SOLVER.STEPS {steps} must start at epoch 0, where the first rate begins; write "
            f"{[0, *steps]}"
        )
    if any(later <= step for step, later in pairwise([*steps, max_epoch])):
        raise ValueError(
            f"SOLVER.STEPS {steps} must ascend and end before SOLVER.MAX_EPOCH {max_epoch:g}; "
            "move the steps or raise MAX_EPOCH; to shorten all of a recipe, leave MAX_EPOCH as it "
            "is and set SOLVER.LENGTH, such as 0.25"
        )
    if rates and len(rates) != max(1, len(steps)):
        raise ValueError(
            f"SOLVER.LRS has {len(rates)} rates for the {max(1, len(steps))} stages of "
            f"SOLVER.STEPS {steps}; give one for each, or none for powers of SOLVER.GAMMA"
        )


def check_large_batch(recipe: Recipe) -> None:
    """Refuse rates that are scaled twice, and warn of a warm-up that would go down.

    Raises:
        ValueError: SOLVER.REFERENCE_BATCH_SIZE is not the only key that scales.
    """
    solver = recipe.solver
    clips = recipe.solver.reference_batch_size
    if clips and solver.base_lr_scale_num_shards:
        raise ValueError(
            f"SOLVER.REFERENCE_BATCH_SIZE {clips} and SOLVER.BASE_LR_SCALE_NUM_SHARDS True would "
            "both scale the learning rates; set one of them to 0 or False"
        )
    start = solver.warmup_start_lr
    target = learning_rate_of(recipe).at(solver.warmup_epochs)
    if clips and solver.warmup_epochs and target < start:
        logger.warning(
            f"SOLVER.WARMUP_START_LR {start:g} is above {target:g}, the rate of "
            f"{recipe.base_shape.batch} clips in a mini-batch (SOLVER.REFERENCE_BATCH_SIZE "
            f"{clips}): the rate would fall in the warm-up; set SOLVER.WARMUP_EPOCHS 0"
        )


def _warn_of_linear_rates(recipe: Recipe) -> None:
    solver = recipe.solver
    multigrid = recipe.multigrid
    grows = multigrid.long_cycle and multigrid.batch_exponent > 0
    if grows and solver.batch_rate_rule == "linear" and solver.optimizing_method in _ADAPTIVE:
        logger.warning(
            f"SOLVER.OPTIMIZING_METHOD {solver.optimizing_method}: the long cycle multiplies its "
            "rate as it does the clips, which is SGD's rule; SOLVER.BATCH_RATE_RULE sqrt is the "
            "one of adaptive methods"
        )


def _warn_of_what_has_no_effect(recipe: Recipe) -> None:
    """Warn of each key that is not at its default and that nothing reads in this recipe."""
    for key, reason in _without_effect(recipe):
        default = _plain(default_recipe()[key])
        value = _plain(recipe[key])
        if value != default:
            logger.warning(
                f"{key} {value} has no effect {reason}; leave it out, or write {default}"
            )


def _without_effect(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Every key that has no effect in a recipe, whatever its value, and the reason."""
    arch = recipe.model.arch
    is_transformer = arch == "hf"
    solver = recipe.solver
    method = solver.optimizing_method
    optimizer = f"with SOLVER.OPTIMIZING_METHOD {method}"
    multigrid = recipe.multigrid
    cycle = recipe.uses_multigrid
    bn_size = multigrid.bn_base_size
    for holds, reason, keys in (
        (
            solver.lr_policy != "steps_with_relative_lrs",
            f"with SOLVER.LR_POLICY {solver.lr_policy}",
            "SOLVER.STEPS",
        ),
        (method != "lars", optimizer, "SOLVER.LARS_TRUST"),
        (method == "lars", f"{optimizer}, which decays no vectors", "BN.WEIGHT_DECAY"),
        (arch != "tsm", f"with MODEL.ARCH {arch}", "TSM.SHIFT_DIV"),
        (
            not is_transformer,
            f"with MODEL.ARCH {arch}",
            "HF.MODEL HF.CONFIG HF.DROP_PATH SOLVER.LAYER_DECAY",
        ),
        (
            is_transformer,
            "with MODEL.ARCH hf, which has no BN",
            "BN.USE_PRECISE_STATS BN.GROUP_SIZE MULTIGRID.BN_BASE_SIZE",
        ),
        (
            is_transformer,
            "with MODEL.ARCH hf, which computes on tokens",
            "MODEL.CHANNELS_LAST",
        ),
        (
            is_transformer and recipe.model.dropout_rate > 0,
            "with MODEL.ARCH hf, whose dropouts are HF.CONFIG's (as hidden_dropout_prob)",
            "MODEL.DROPOUT_RATE",
        ),
        # A transformer's recipe may have it for the pilot, which adds cycles.
        (not cycle and not is_transformer, "without a cycle", "MULTIGRID.SIZE_DIVISOR"),
        (
            not cycle,
            "without a cycle",
            "MULTIGRID.BATCH_EXPONENT MULTIGRID.KEEP_FIELD_OF_VIEW MULTIGRID.WARMUP_IN_EPOCHS "
            "MULTIGRID.FINE_TUNING",
        ),
        (not multigrid.long_cycle, "without a long cycle", "MULTIGRID.EQUAL_TIME"),
        (
            multigrid.long_cycle and multigrid.batch_exponent == 1,
            "with MULTIGRID.BATCH_EXPONENT 1, where all iterations take about as long",
            "MULTIGRID.EQUAL_TIME",
        ),
        (
            cycle and not solver.warmup_epochs,
            "without a warm-up",
            "MULTIGRID.WARMUP_IN_EPOCHS",
        ),
        (
            not recipe.mixup.enable,
            "with MIXUP.ENABLE False",
            "MIXUP.ALPHA MIXUP.CUTMIX_ALPHA MIXUP.PROB MIXUP.SWITCH_PROB",
        ),
        (
            recipe.data.clip_sampling == "segments",
            "with DATA.CLIP_SAMPLING segments",
            "DATA.EXACT_STRIDES",
        ),
        (
            cycle and not is_transformer and recipe.bn.group_size != bn_size,
            f"with a cycle, where MULTIGRID.BN_BASE_SIZE {bn_size} clips share statistics",
            "BN.GROUP_SIZE",
        ),
    ):
        if holds:
            yield from ((key, reason) for key in keys.split())


def _check_sizes(recipe: Recipe) -> None:
    divisor = recipe.multigrid.size_divisor
    crop = recipe.data.train_crop_size
    if divisor > crop:
        raise ValueError(
            f"MULTIGRID.SIZE_DIVISOR {divisor} is more than DATA.TRAIN_CROP_SIZE {crop}, and crops "
            "of coarser grids are multiples of it; write 16, or 1 for the paper's crops"
        )
    if recipe.bn_size > (batch := recipe.base_shape.batch):
        key = "MULTIGRID.BN_BASE_SIZE" if recipe.uses_multigrid else "BN.GROUP_SIZE"
        logger.warning(
            f"{key} {recipe.bn_size} is more than the global batch of {batch} clips: BN is over "
            f"{batch}; train on more GPUs or with a larger TRAIN.BATCH_SIZE"
        )


def _check_pathways(recipe: Recipe) -> None:
    if recipe.model.arch == "hf":  # which has none of these
        return
    pathways = 2 if recipe.model.arch == "slowfast" else 1
    for key in (*PER_PATHWAY, "DATA.INPUT_CHANNEL_NUM"):
        stages = [recipe[key]] if key.startswith("DATA.") else recipe[key]
        # What NONLOCAL.POOL has for a second pathway, as by default, is not read.
        most = 2 if key == "NONLOCAL.POOL" else pathways
        if not all(isinstance(s, tuple) and pathways <= len(s) <= most for s in stages):
            raise ValueError(
                f"{key} {_plain(recipe[key])} does not fit MODEL.ARCH {recipe.model.arch}, which "
                f"takes {pathways} in each place, one for each pathway; leave it out"
            )


def _check_shift(recipe: Recipe) -> None:
    """The first block of TSM sees the fewest channels, RESNET.WIDTH_PER_GROUP."""
    share = recipe.tsm.shift_div
    width = recipe.resnet.width_per_group
    if recipe.model.arch == "tsm" and share > width:
        raise ValueError(
            f"TSM.SHIFT_DIV {share} leaves nothing to shift of the {width} channels of the first "
            f"block (RESNET.WIDTH_PER_GROUP); write {width} or less, or 0 for no shift"
        )


def check_frames(
    arch: str, frames: int, alpha: int, time_factors: Sequence[float] = (1.0,)
) -> None:
    """Refuse frames that an architecture cannot take at the schedule's fractions of them.

    The slow pathway has frames // alpha frames and receives ceil(frames / alpha) from the fast
    one, so alpha must divide the frames. C2D and I3D halve the frames once, TSM shifts them.
    """
    counts = sorted({round(frames * factor) for factor in time_factors})
    least = 2 if arch in ("c2d", "i3d", "tsm") else 1
    clips = f"DATA.NUM_FRAMES {frames} gives clips of {format_list(counts)} frames, "
    if counts[0] < least:
        raise ValueError(f"{clips}and {arch} needs {least} at least; give more frames")
    if arch == "slowfast" and any(count % alpha for count in counts):
        fitting = [a for a in range(1, frames + 1) if not any(count % a for count in counts)]
        raise ValueError(
            f"{clips}and SLOWFAST.ALPHA {alpha} must divide each, to feed the slow pathway; "
            f"SLOWFAST.ALPHA {format_list(fitting, 'or')} would work, or more frames"
        )


def _check_crops(recipe: Recipe) -> None:
    """The head's test-time window is the feature map of a training crop, CROP_SIZE // 32."""
    data = recipe.data
    train = recipe.data.train_crop_size
    if data.crop_size != train:
        raise ValueError(
            f"DATA.CROP_SIZE {data.crop_size} is the crop that the head's test-time window is made "
            f"for, and DATA.TRAIN_CROP_SIZE is {train}; leave CROP_SIZE out, and it follows"
        )
    if recipe.model.has_batchnorm and data.test_crop_size // _STRIDE < train // _STRIDE:
        raise ValueError(
            f"DATA.TEST_CROP_SIZE {data.test_crop_size} is smaller than the head's window, made "
            f"for crops of {train}; set it to {train // _STRIDE * _STRIDE} or more"
        )
    jitter = list(data.train_jitter_scales)
    if len(jitter) != 2 or not train <= jitter[0] <= jitter[1]:
        raise ValueError(
            f"DATA.TRAIN_JITTER_SCALES {jitter} is [shortest, longest] short side in pixels, no "
            f"shorter than DATA.TRAIN_CROP_SIZE {train}"
        )


def _check_processes(recipe: Recipe, world_size: int) -> None:
    """TRAIN.BATCH_SIZE is one machine's, so the global batch is BATCH_SIZE × NUM_SHARDS."""
    clips = recipe.train.batch_size
    machines = recipe.num_shards
    batch = recipe.base_shape.batch
    if batch % world_size:
        enough = next(n for n in range(clips, clips + world_size) if n * machines % world_size == 0)
        raise ValueError(
            f"a global batch of {batch} clips (TRAIN.BATCH_SIZE {clips} × NUM_SHARDS {machines}) "
            f"does not divide over {world_size} processes; set TRAIN.BATCH_SIZE {enough}, or use a "
            f"number of processes that divides {batch}"
        )


def _check_mixup(recipe: Recipe, world_size: int) -> None:
    """Clips are mixed with others that pass the network with them."""
    mixup = recipe.mixup
    parts = recipe.solver.accumulation_steps
    if mixup.enable and mixup.alpha == mixup.cutmix_alpha == 0:
        raise ValueError(
            "MIXUP.ALPHA 0 and MIXUP.CUTMIX_ALPHA 0 mix nothing; set one of them above 0, or "
            "MIXUP.ENABLE False"
        )
    if mixup.enable and recipe.base_shape.batch < 2 * world_size * parts:
        raise ValueError(
            f"MIXUP.ENABLE True: a global batch of {recipe.base_shape.batch} clips on {world_size} "
            f"process(es), each in {parts} part(s) (SOLVER.ACCUMULATION_STEPS), leaves one to mix; "
            "set it to False, or train with a larger TRAIN.BATCH_SIZE or on fewer processes"
        )


def _check_speed(recipe: Recipe, world_size: int) -> None:
    """Refuse switches of speed and memory that do not go with each other, or with what trains.

    Raises:
        ValueError: names the keys, and says what to write instead.
    """
    solver = recipe.solver
    train = recipe.train
    if solver.fused and solver.optimizing_method == "lars":
        raise ValueError(
            "SOLVER.FUSED True: there is no fused lars; set SOLVER.FUSED False, or "
            "SOLVER.OPTIMIZING_METHOD sgd, adam or adamw"
        )
    if train.compile and recipe.model.arch == "hf":
        raise ValueError(
            "TRAIN.COMPILE True and MODEL.ARCH hf: not all of these models compile to one graph; "
            "set TRAIN.COMPILE False"
        )
    if train.compile and recipe.model.act_checkpoint:
        raise ValueError(
            "TRAIN.COMPILE True and MODEL.ACT_CHECKPOINT True: a compiled network decides by "
            "itself what it keeps for the backward pass; set one of them to False"
        )


def _plain(value: Any) -> Any:
    """Tuples as the lists that recipes have."""
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value
