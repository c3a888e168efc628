"""What can be trained and tested, checked before anything starts.

Checks of single keys are in the keys' fields and made while loading; here are those across keys.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from slowfast_patches.config.families import FAMILIES
from slowfast_patches.config.fields import CYCLE
from slowfast_patches.config.recipe import KEYS, PER_PATHWAY, Recipe, default_recipe, plain
from slowfast_patches.utils.tables import format_list

__all__ = ["check_frames", "check_recipe"]

logger = logging.getLogger(__name__)

_FITTING = {
    "DETECTION.ENABLE True": {"LOSS_FUNC": "bce", "HEAD_ACT": "sigmoid"},
    "DATA.MULTI_LABEL True": {"LOSS_FUNC": "bce_logit", "HEAD_ACT": "sigmoid"},
    "DATA.MULTI_LABEL False": {"LOSS_FUNC": "cross_entropy", "HEAD_ACT": "softmax"},
}
"""Keys of MODEL by what is scored. Sigmoid scores of a softmax training depend on an offset that
nothing trains; softmax scores of several labels do not compare between videos, which mAP ranks."""

_STRIDE = 32
"""Pixels of the input to one of the last feature map's."""


def check_recipe(recipe: Recipe, world_size: int = 1) -> None:
    """Refuse a recipe that cannot train or test; `world_size` counts processes.

    Raises:
        ValueError: what is wrong, with the numbers and a way out.
    """
    _check_labels(recipe)
    _check_class_weights(recipe)
    if recipe.detection.enable:
        _check_detection(recipe)
    _check_solver(recipe)
    _warn(recipe)
    _check_model(recipe)
    multigrid = recipe.multigrid
    factors = [time for time, _ in multigrid.long_cycle_factors] if multigrid.long_cycle else [1.0]
    check_frames(recipe.model.arch, recipe.data.num_frames, recipe.slowfast.alpha, factors)
    _check_crops(recipe)
    _check_batch(recipe, world_size)


def _check_labels(recipe: Recipe) -> None:
    """DATA.ENSEMBLE_METHOD is free: the sum and the maximum of probabilities over views both rank
    classes and videos."""
    is_set = (key for key in _FITTING if str(recipe[key.split()[0]]) == key.split()[1])
    name, given = next(is_set).split()
    for key, fitting in _FITTING[f"{name} {given}"].items():
        if (value := recipe[f"MODEL.{key}"]) != fitting:
            raise ValueError(
                f"MODEL.{key} {value!r} does not fit {name} {given}; set MODEL.{key} {fitting}, or "
                f"{name} {given == 'False'}"
            )


def _check_class_weights(recipe: Recipe) -> None:
    weights = recipe.solver.class_weights
    classes = recipe.model.num_classes
    if weights and weights != "balanced" and len(weights) != classes:
        raise ValueError(
            f"SOLVER.CLASS_WEIGHTS has {len(weights)} weights, and MODEL.NUM_CLASSES is {classes}; "
            "give one for each class, or balanced"
        )


def _check_detection(recipe: Recipe) -> None:
    """What boxes at key frames cannot have, and the scale that the network's strides give."""
    wanted = {
        "DATA.CLIP_SAMPLING": (("auto", "stride"), "a clip is centred on its key frame"),
        "DATA.ENSEMBLE_METHOD": (("sum",), "a box's scores are averaged by what crops show of it"),
        "TEST.NUM_ENSEMBLE_VIEWS": ((1,), "a key frame has one clip along the video"),
        "MIXUP.ENABLE": ((False,), "boxes cannot be blended"),
        "AUG.ENABLE": ((False,), "boxes do not follow what it does to a clip"),
        "SOLVER.CLASS_WEIGHTS": (((),), "a box's classes have no weights"),
        "TRAIN.COMPILE": ((False,), "clips have different numbers of boxes"),
    }
    for key, (fitting, reason) in wanted.items():
        if recipe[key] not in fitting:
            raise ValueError(
                f"{key} {recipe[key]} does not fit DETECTION.ENABLE True: {reason}; set it to "
                f"{plain(fitting[0])}"
            )
    if recipe.model.family.is_transformer:
        raise ValueError(
            f"MODEL.ARCH {recipe.model.arch} does not fit DETECTION.ENABLE True: it has no map of "
            "features to take boxes from; use one of PySlowFast's"
        )
    scale = 4 * math.prod(stage[0] for stage in recipe.resnet.spatial_strides)
    if recipe.detection.spatial_scale_factor != scale:
        raise ValueError(
            f"DETECTION.SPATIAL_SCALE_FACTOR {recipe.detection.spatial_scale_factor} does not fit "
            f"RESNET.SPATIAL_STRIDES {plain(recipe.resnet.spatial_strides)}, which make {scale} "
            f"pixels one of the last map's; set it to {scale}, or change the strides (for AVA the "
            "last stage has 1, and SPATIAL_DILATIONS 2)"
        )


def _check_solver(recipe: Recipe) -> None:
    solver = recipe.solver
    if not 0 <= solver.warmup_epochs < solver.max_epoch:
        raise ValueError(
            f"SOLVER.WARMUP_EPOCHS {solver.warmup_epochs:g} must lie in [0, SOLVER.MAX_EPOCH), and "
            f"MAX_EPOCH is {solver.max_epoch:g}; shorten the warm-up"
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


def _warn(recipe: Recipe) -> None:
    """Warn of keys that are not at their defaults and have no effect, and of likely mistakes."""
    for key, reason in _without_effect(recipe):
        default = plain(default_recipe()[key])
        value = plain(recipe[key])
        if value != default:
            logger.warning(
                f"{key} {value} has no effect {reason}; leave it out, or write {default}"
            )
    batch = recipe.base_shape.batch
    if recipe.bn_size > batch:
        logger.warning(
            f"{recipe.bn_key} {recipe.bn_size} is more than the global batch of {batch} clips: BN "
            f"is over {batch}; train on more GPUs or with a larger TRAIN.BATCH_SIZE"
        )
    solver = recipe.solver
    multigrid = recipe.multigrid
    adaptive = solver.optimizing_method in ("adam", "adamw")
    grows = multigrid.long_cycle and multigrid.batch_exponent > 0
    if adaptive and grows and solver.batch_rate_rule == "linear":
        logger.warning(
            f"SOLVER.OPTIMIZING_METHOD {solver.optimizing_method}: the long cycle multiplies its "
            "rate as it does the clips, which is SGD's rule; SOLVER.BATCH_RATE_RULE sqrt is the "
            "one of adaptive methods (Malladi et al., 2022)"
        )


def _without_effect(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Every key that has no effect in a recipe, whatever its value, and the reason."""
    for name, key in KEYS.items():
        needed, *values = key.needs.split() or [""]
        if needed and str(recipe[needed]) not in values:
            yield (
                name,
                "without a cycle" if key.needs == CYCLE else f"with {needed} {recipe[needed]}",
            )
    for name, reason in recipe.model.family.without_effect.items():
        if recipe[name]:
            yield name, f"with MODEL.ARCH {recipe.model.arch}, {reason}"
    if "backbone" in recipe.train.freeze:
        for name in ("SOLVER.LAYER_DECAY", "HF.DROP_PATH", "BN.USE_PRECISE_STATS"):
            yield name, "with TRAIN.FREEZE backbone, where the head alone learns"
    if recipe.aug.enable and recipe.aug.aa_type:
        yield "AUG.COLOR_JITTER", f"with AUG.AA_TYPE {recipe.aug.aa_type}, in place of it"
    multigrid = recipe.multigrid
    if multigrid.long_cycle and multigrid.batch_exponent == 1:
        reason = "with MULTIGRID.BATCH_EXPONENT 1, where all iterations take about as long"
        yield "MULTIGRID.EQUAL_TIME", reason
    if recipe.uses_multigrid and not recipe.solver.warmup_epochs:
        yield "MULTIGRID.WARMUP_IN_EPOCHS", "without a warm-up"
    if recipe.uses_multigrid and recipe.bn_size not in (0, recipe.bn.group_size):
        reason = f"with a cycle, where {recipe.bn_key} {recipe.bn_size} clips share statistics"
        yield "BN.GROUP_SIZE", reason


def _check_model(recipe: Recipe) -> None:
    """The network's own keys, and the ways to compute it."""
    family = recipe.model.family
    arch = recipe.model.arch
    for key in () if family.is_transformer else (*PER_PATHWAY, "DATA.INPUT_CHANNEL_NUM"):
        stages = [recipe[key]] if key.startswith("DATA.") else recipe[key]
        # What NONLOCAL.POOL has for a second pathway, as by default, is not read.
        most = 2 if key == "NONLOCAL.POOL" else family.pathways
        if not all(family.pathways <= len(stage) <= most for stage in stages):
            raise ValueError(
                f"{key} {plain(recipe[key])} does not fit MODEL.ARCH {arch}, which takes "
                f"{family.pathways} in each place, one for each pathway; leave it out"
            )
    if recipe.train.compile and family.is_transformer:
        raise ValueError(
            f"TRAIN.COMPILE True and MODEL.ARCH {arch}: not all of these models compile to one "
            "graph; set TRAIN.COMPILE False"
        )
    if recipe.train.compile and recipe.model.act_checkpoint:
        raise ValueError(
            "TRAIN.COMPILE True and MODEL.ACT_CHECKPOINT True: a compiled network decides by "
            "itself what it keeps for the backward pass; set one of them to False"
        )


def check_frames(
    arch: str, frames: int, alpha: int, time_factors: Sequence[float] = (1.0,)
) -> None:
    """Refuse frames that an architecture cannot take at the schedule's fractions of them.

    The slow pathway has frames // alpha frames and receives ceil(frames / alpha) from the fast
    one, so alpha must divide the frames.
    """
    counts = sorted({round(frames * factor) for factor in time_factors})
    least = FAMILIES[arch].least_frames
    clips = f"DATA.NUM_FRAMES {frames} gives clips of {format_list(counts)} frames, "
    if counts[0] < least:
        raise ValueError(f"{clips}and {arch} needs {least} at least; give more frames")
    if FAMILIES[arch].pathways == 2 and any(count % alpha for count in counts):
        fitting = [a for a in range(1, frames + 1) if not any(count % a for count in counts)]
        raise ValueError(
            f"{clips}and SLOWFAST.ALPHA {alpha} must divide each, to feed the slow pathway; "
            f"SLOWFAST.ALPHA {format_list(fitting, 'or')} would work, or more frames"
        )


def _check_crops(recipe: Recipe) -> None:
    """The head's test-time window is the feature map of a training crop, CROP_SIZE // 32."""
    data = recipe.data
    train = data.train_crop_size
    if data.crop_size != train:
        raise ValueError(
            f"DATA.CROP_SIZE {data.crop_size} is the crop that the head's test-time window is made "
            f"for, and DATA.TRAIN_CROP_SIZE is {train}; leave CROP_SIZE out, and it follows"
        )
    window = 0 if recipe.model.family.is_transformer else train // _STRIDE
    if data.test_crop_size // _STRIDE < window:
        raise ValueError(
            f"DATA.TEST_CROP_SIZE {data.test_crop_size} is smaller than the head's window, made "
            f"for crops of {train}; set it to {window * _STRIDE} or more"
        )
    jitter = list(data.train_jitter_scales)
    if len(jitter) != 2 or not train <= jitter[0] <= jitter[1]:
        raise ValueError(
            f"DATA.TRAIN_JITTER_SCALES {jitter} is [shortest, longest] short side in pixels, no "
            f"shorter than DATA.TRAIN_CROP_SIZE {train}"
        )


def _check_batch(recipe: Recipe, world_size: int) -> None:
    """TRAIN.BATCH_SIZE is one machine's, so the global batch is BATCH_SIZE × NUM_SHARDS. Clips are
    mixed with others that pass the network with them."""
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
    aug = recipe.aug
    if aug.enable and not (aug.aa_type or aug.color_jitter or aug.re_prob):
        raise ValueError(
            "AUG.ENABLE True with AUG.AA_TYPE '', AUG.COLOR_JITTER 0 and AUG.RE_PROB 0 changes no "
            "clip; set one of them, or AUG.ENABLE False"
        )
    mixup = recipe.mixup
    parts = recipe.solver.accumulation_steps
    if mixup.enable and mixup.alpha == mixup.cutmix_alpha == 0:
        raise ValueError(
            "MIXUP.ALPHA 0 and MIXUP.CUTMIX_ALPHA 0 mix nothing; set one of them above 0, or "
            "MIXUP.ENABLE False"
        )
    if mixup.enable and batch < 2 * world_size * parts:
        raise ValueError(
            f"MIXUP.ENABLE True: a global batch of {batch} clips on {world_size} process(es), each "
            f"in {parts} part(s) (SOLVER.ACCUMULATION_STEPS), leaves one to mix; set it to False, "
            "or train with a larger TRAIN.BATCH_SIZE or on fewer processes"
        )
