"""Checks of combinations of keys, made before a run starts.

`load_recipe` checks each key on its own. plan/flops.py checks that the model accepts every shape.
"""

from __future__ import annotations

import logging

from multigrid.learning_rate import is_adaptive
from slowfast_patches.config.recipe import KEYS, PER_PATHWAY, Recipe, default_recipe, plain
from slowfast_patches.config.rules import check_rules
from slowfast_patches.registry import TASKS
from slowfast_patches.utils.errors import UserError

logger = logging.getLogger(__name__)

_STRIDE = 32
"""Stride of the last feature map of a ResNet in pixels."""


def check_recipe(recipe: Recipe) -> None:
    """Check that a model can be trained and tested with a recipe. Warn about keys without effect.

    Raises:
        ValueError: The keys contradict each other. The message says which key to change.
    """
    _check_task(recipe)
    _warn(recipe)
    _check_model(recipe)
    check_rules(recipe)
    _check_crops(recipe)
    batch = recipe.base_shape.batch
    if recipe.train.enable and batch % recipe.world_size:
        raise UserError(
            f"a global batch of {batch} clips (TRAIN.BATCH_SIZE times NUM_SHARDS) does not divide "
            f"evenly over {recipe.world_size} processes. Change TRAIN.BATCH_SIZE or NUM_GPUS."
        )


def _check_task(recipe: Recipe) -> None:
    """Check the keys whose values the task determines or restricts."""
    task = TASKS[recipe.task]
    switch, on = task.switch
    rules = {key: ((value,), "they must match") for key, value in task.derived.items()}
    for key, (valid, reason) in {**rules, **task.required}.items():
        if recipe[key] not in valid:
            raise UserError(
                f"{key} {recipe[key]} is not possible with {switch} {on}: {reason}. Set {key} "
                f"{plain(valid[0])}."
            )
    if task.check is not None:
        task.check(recipe)


def _warn(recipe: Recipe) -> None:
    """Warn about likely mistakes, and about keys that are set although they have no effect."""
    reasons = {name: key.needs(recipe) for name, key in KEYS.items() if key.needs}
    for name, spec_reason in recipe.model.spec.without_effect.items():
        if recipe[name]:
            reasons[name] = f"with MODEL.ARCH {recipe.model.arch}, {spec_reason}"
    for name, reason in reasons.items():
        value, default = plain(recipe[name]), plain(default_recipe()[name])
        if reason and value != default:
            logger.warning(f"{name} {value} has no effect {reason}. Remove it, or set {default}.")
    if recipe.train.enable and recipe.test.enable and recipe.train.dataset != recipe.test.dataset:
        logger.warning(
            f"TEST.DATASET is {recipe.test.dataset}, but TRAIN.DATASET is {recipe.train.dataset}. "
            f"Set TEST.DATASET {recipe.train.dataset} if both lists have the same format."
        )
    batch = recipe.base_shape.batch
    if recipe.bn_group_size > batch:
        logger.warning(
            f"{recipe.bn_key} {recipe.bn_group_size} is more than the global batch of {batch} "
            f"clips, so BN statistics are computed over {batch} clips. Use more GPUs or a larger "
            "TRAIN.BATCH_SIZE."
        )
    solver = recipe.solver
    grows = recipe.multigrid.long_cycle and recipe.multigrid.batch_exponent > 0
    if is_adaptive(solver.optimizing_method) and grows and solver.batch_rate_rule == "linear":
        logger.warning(
            f"SOLVER.BATCH_RATE_RULE linear is meant for sgd, but SOLVER.OPTIMIZING_METHOD is "
            f"{solver.optimizing_method}, and the long cycle scales the learning rate by this "
            "rule. Set SOLVER.BATCH_RATE_RULE sqrt (Malladi et al., 2022)."
        )


def _check_model(recipe: Recipe) -> None:
    """Check the number of entries per pathway."""
    spec = recipe.model.spec
    if spec.check is not None:
        spec.check(recipe)
    if spec.is_resnet:
        stages = {key: recipe[key] for key in PER_PATHWAY}
        for key, entries in stages.items():
            # Models with one pathway ignore the second entry, which NONLOCAL.POOL has by default.
            most = 2 if key == "NONLOCAL.POOL" else spec.pathways
            if not all(spec.pathways <= len(entry) <= most for entry in entries):
                raise UserError(
                    f"{key} {plain(recipe[key])} does not match MODEL.ARCH {recipe.model.arch}, "
                    f"which needs {spec.pathways} values for each stage, one for each pathway. "
                    f"Remove {key} to use the default."
                )


def _check_crops(recipe: Recipe) -> None:
    """Check the crop size of the test.

    In evaluation, the head pools over windows of CROP_SIZE // 32 features in height and width.
    """
    data = recipe.data
    train = data.train_crop_size
    if recipe.model.spec.is_resnet and data.test_crop_size // _STRIDE < train // _STRIDE:
        raise UserError(
            f"DATA.TEST_CROP_SIZE {data.test_crop_size} is too small: the head pools over a window "
            f"as large as the feature map of a training crop ({train} pixels). Set "
            f"DATA.TEST_CROP_SIZE to {train // _STRIDE * _STRIDE} or more."
        )
