"""Checks of combinations of keys, made before a run starts.

`load_recipe` checks each key on its own. plan/flops.py checks that the model accepts every shape.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise

from multigrid.learning_rate import is_adaptive
from slowfast_patches.config.recipe import KEYS, PER_PATHWAY, Recipe, default_recipe, plain
from slowfast_patches.registry import TASKS

logger = logging.getLogger(__name__)

_STRIDE = 32
"""Stride of the last feature map of a ResNet in pixels."""


def check_recipe(recipe: Recipe) -> None:
    """Check that a model can be trained and tested with a recipe. Warn about keys without effect.

    Raises:
        ValueError: The keys contradict each other. The message says which key to change.
    """
    _check_task(recipe)
    _check_class_weights(recipe)
    _check_solver(recipe)
    _warn(recipe)
    _check_model(recipe)
    _check_crops(recipe)
    _check_batch(recipe)


def _check_task(recipe: Recipe) -> None:
    """Check the keys whose values the task determines or restricts."""
    task = TASKS[recipe.task]
    switch, on = task.switch
    for key, fitting in task.derived.items():
        if recipe[key] != fitting:
            raise ValueError(
                f"{key} {recipe[key]!r} does not match {switch} {on}. Set {key} {fitting}, or "
                f"{switch} {not on if isinstance(on, bool) else repr('')}."
            )
    for key, (valid, reason) in task.required.items():
        if recipe[key] not in valid:
            raise ValueError(
                f"{key} {recipe[key]} is not possible with {switch} {on}: {reason}. Set {key} "
                f"{plain(valid[0])}."
            )
    if task.check is not None:
        task.check(recipe)


def _check_class_weights(recipe: Recipe) -> None:
    weights = recipe.solver.class_weights
    classes = recipe.model.num_classes
    if weights and weights != "balanced" and len(weights) != classes:
        raise ValueError(
            f"SOLVER.CLASS_WEIGHTS has {len(weights)} weights, but MODEL.NUM_CLASSES is {classes}. "
            "Set one weight for each class, or set SOLVER.CLASS_WEIGHTS balanced."
        )


def _check_solver(recipe: Recipe) -> None:
    solver = recipe.solver
    if not 0 <= solver.warmup_epochs < solver.max_epoch:
        raise ValueError(
            f"SOLVER.WARMUP_EPOCHS {solver.warmup_epochs:g} must be at least 0 and less than "
            f"SOLVER.MAX_EPOCH {solver.max_epoch:g}. Shorten the warm-up."
        )
    if solver.lr_policy == "steps_with_relative_lrs":
        _check_steps(list(solver.steps), solver.lrs, solver.max_epoch)


def _check_steps(steps: list[float], rates: Sequence[float], max_epoch: float) -> None:
    """Check the epochs at which the learning-rate stages start, and the number of rates."""
    if steps and steps[0] != 0:
        raise ValueError(
            f"SOLVER.STEPS {steps} must start with 0, where the first learning-rate stage starts. "
            f"Set {[0, *steps]}."
        )
    if any(later <= step for step, later in pairwise([*steps, max_epoch])):
        raise ValueError(
            f"SOLVER.STEPS {steps} must ascend and end before SOLVER.MAX_EPOCH {max_epoch:g}. "
            "Change the steps or raise SOLVER.MAX_EPOCH. To shorten a whole recipe, keep both and "
            "set SOLVER.LENGTH, for example to 0.25."
        )
    if rates and len(rates) != max(1, len(steps)):
        raise ValueError(
            f"SOLVER.LRS has {len(rates)} learning rates, but SOLVER.STEPS {steps} has "
            f"{max(1, len(steps))} stage(s). Set one learning rate for each stage, or [] for "
            "powers of SOLVER.GAMMA."
        )


def _warn(recipe: Recipe) -> None:
    """Warn about likely mistakes, and about keys that are set although they have no effect."""
    family = recipe.model.family.without_effect
    reasons = {name: key.needs(recipe) for name, key in KEYS.items() if key.needs}
    reasons |= {
        name: f"with MODEL.ARCH {recipe.model.arch}, {reason}"
        for name, reason in family.items()
        if recipe[name]
    }
    for name, reason in reasons.items():
        value, default = plain(recipe[name]), plain(default_recipe()[name])
        if reason and value != default:
            logger.warning(f"{name} {value} has no effect {reason}. Remove it, or set {default}.")
    if recipe.train.enable and recipe.test.enable and recipe.train.dataset != recipe.test.dataset:
        logger.warning(
            f"The test reads its list as TEST.DATASET {recipe.test.dataset}, but TRAIN.DATASET is "
            f"{recipe.train.dataset}. Set TEST.DATASET {recipe.train.dataset} if both lists are "
            "alike."
        )
    batch = recipe.base_shape.batch
    if recipe.bn_size > batch:
        logger.warning(
            f"{recipe.bn_key} {recipe.bn_size} is more than the global batch of {batch} clips, so "
            f"BN statistics are computed over {batch} clips. Use more GPUs or a larger "
            "TRAIN.BATCH_SIZE."
        )
    solver = recipe.solver
    multigrid = recipe.multigrid
    grows = multigrid.long_cycle and multigrid.batch_exponent > 0
    if is_adaptive(solver.optimizing_method) and grows and solver.batch_rate_rule == "linear":
        logger.warning(
            f"SOLVER.BATCH_RATE_RULE linear is meant for sgd, but SOLVER.OPTIMIZING_METHOD is "
            f"{solver.optimizing_method}, and the long cycle scales the learning rate by this "
            "rule. Set SOLVER.BATCH_RATE_RULE sqrt (Malladi et al., 2022)."
        )


def _check_model(recipe: Recipe) -> None:
    """Check the number of entries per pathway, and TRAIN.COMPILE."""
    family = recipe.model.family
    arch = recipe.model.arch
    for key in () if not family.is_resnet else (*PER_PATHWAY, "DATA.INPUT_CHANNEL_NUM"):
        stages = [recipe[key]] if key.startswith("DATA.") else recipe[key]
        # NONLOCAL.POOL has entries for two pathways by default. Single-pathway models ignore the
        # second entry.
        most = 2 if key == "NONLOCAL.POOL" else family.pathways
        if not all(family.pathways <= len(stage) <= most for stage in stages):
            raise ValueError(
                f"{key} {plain(recipe[key])} does not match MODEL.ARCH {arch}, which needs "
                f"{family.pathways} value(s) for each stage, one for each pathway. Remove {key} to "
                "use the default."
            )
    ratio = recipe.slowfast.fusion_conv_channel_ratio
    if arch == "slowfast" and recipe.slowfast.beta_inv < ratio:
        raise ValueError(
            f"SLOWFAST.BETA_INV {recipe.slowfast.beta_inv} must be at least "
            f"SLOWFAST.FUSION_CONV_CHANNEL_RATIO {ratio}. Change one of them."
        )
    if recipe.train.compile and family.is_transformer:
        raise ValueError(
            f"TRAIN.COMPILE True is not possible with MODEL.ARCH {arch}: some models of the "
            "package transformers do not compile to a single graph. Set TRAIN.COMPILE False."
        )
    if recipe.train.compile and recipe.model.act_checkpoint:
        raise ValueError(
            "TRAIN.COMPILE True is not possible with MODEL.ACT_CHECKPOINT True: torch.compile "
            "decides which activations to store. Set one of the two keys to False."
        )


def _check_crops(recipe: Recipe) -> None:
    """Check the crop sizes and the range of the short side.

    In evaluation, the head pools over windows of CROP_SIZE // 32 features in height and width.
    """
    data = recipe.data
    train = data.train_crop_size
    if data.crop_size != train:
        raise ValueError(
            f"DATA.CROP_SIZE {data.crop_size} does not match DATA.TRAIN_CROP_SIZE {train}. Remove "
            "DATA.CROP_SIZE: its value follows from DATA.TRAIN_CROP_SIZE."
        )
    window = train // _STRIDE if recipe.model.family.is_resnet else 0
    if data.test_crop_size // _STRIDE < window:
        raise ValueError(
            f"DATA.TEST_CROP_SIZE {data.test_crop_size} is too small: the head pools over a window "
            f"as large as the feature map of a training crop ({train} pixels). Set "
            f"DATA.TEST_CROP_SIZE to {window * _STRIDE} or more."
        )
    jitter = list(data.train_jitter_scales)
    if len(jitter) != 2 or not train <= jitter[0] <= jitter[1]:
        raise ValueError(
            f"DATA.TRAIN_JITTER_SCALES {jitter} must be [min, max] of the short side in pixels, "
            f"with min at least DATA.TRAIN_CROP_SIZE {train}."
        )


def _check_batch(recipe: Recipe) -> None:
    """Check that the batch of a training can be split over the processes, and check AUG and MIXUP.

    A test alone has no such batch, so its number of processes is free.
    """
    if not recipe.train.enable:
        return
    world_size = recipe.world_size
    clips = recipe.train.batch_size
    machines = recipe.num_shards
    batch = recipe.base_shape.batch
    if batch % world_size:
        enough = next(n for n in range(clips, clips + world_size) if n * machines % world_size == 0)
        raise ValueError(
            f"a global batch of {batch} clips (TRAIN.BATCH_SIZE {clips} × NUM_SHARDS {machines}) "
            f"does not divide evenly over {world_size} processes. Set TRAIN.BATCH_SIZE {enough}, "
            f"or use a number of processes that divides {batch}."
        )
    aug = recipe.aug
    if aug.enable and not (aug.aa_type or aug.color_jitter or aug.re_prob or aug.custom):
        raise ValueError(
            "AUG.ENABLE True has no effect with AUG.AA_TYPE '', AUG.COLOR_JITTER 0 and AUG.RE_PROB "
            "0. Set one of them, or AUG.ENABLE False."
        )
    mixup = recipe.mixup
    micro_batches = recipe.solver.accumulation_steps
    if mixup.enable and mixup.alpha == mixup.cutmix_alpha == 0:
        raise ValueError(
            "MIXUP.ENABLE True has no effect with MIXUP.ALPHA 0 and MIXUP.CUTMIX_ALPHA 0. Set one "
            "of them above 0, or MIXUP.ENABLE False."
        )
    if mixup.enable and batch < 2 * world_size * micro_batches:
        raise ValueError(
            f"MIXUP.ENABLE True needs two clips in each micro-batch, but a global batch of {batch} "
            f"clips is split over {world_size} process(es) and SOLVER.ACCUMULATION_STEPS "
            f"{micro_batches}. Set MIXUP.ENABLE False, use a larger TRAIN.BATCH_SIZE, or use "
            "fewer processes."
        )
