"""Checks of what large mini-batches need: rates that follow the batch, and LARS."""

from __future__ import annotations

import importlib.util
import logging

from slowfast_patches.config.recipe import Recipe, default_recipe
from slowfast_patches.config.schedule import learning_rate_of

__all__ = ["check_large_batch"]

logger = logging.getLogger(__name__)


def check_large_batch(recipe: Recipe) -> None:
    """Refuse rates that are scaled twice, and LARS without its package; warn of what LARS leaves.

    Raises:
        ValueError: SOLVER.REFERENCE_BATCH_SIZE is below 0, or not the only key that scales.
        ImportError: pytorch-optimizer is not installed.
    """
    _check_reference(recipe)
    _check_lars(recipe)


def _check_reference(recipe: Recipe) -> None:
    solver, clips = recipe.solver, recipe.solver.reference_batch_size
    if clips < 0:
        raise ValueError(
            f"SOLVER.REFERENCE_BATCH_SIZE {clips} is below 0; it is the clips of a mini-batch that "
            "SOLVER.BASE_LR belongs to, or 0 to train any mini-batch at BASE_LR"
        )
    if clips and solver.base_lr_scale_num_shards:
        raise ValueError(
            f"SOLVER.REFERENCE_BATCH_SIZE {clips} and SOLVER.BASE_LR_SCALE_NUM_SHARDS True would "
            "both scale the learning rates; set one of them to 0 or False"
        )
    target = learning_rate_of(recipe).at(solver.warmup_epochs)
    if clips and solver.warmup_epochs and target < solver.warmup_start_lr:
        logger.warning(
            "SOLVER.WARMUP_START_LR %g is above %g, the rate of %d clips in a mini-batch "
            "(SOLVER.BASE_LR %g for SOLVER.REFERENCE_BATCH_SIZE %d): the rate would fall in the "
            "warm-up; set SOLVER.WARMUP_EPOCHS 0",
            *(solver.warmup_start_lr, target, recipe.base_shape.batch, solver.base_lr, clips),
        )


def _check_lars(recipe: Recipe) -> None:
    trust, lars = recipe.solver.lars_trust, recipe.solver.optimizing_method == "lars"
    if not lars and trust != default_recipe().solver.lars_trust:
        logger.warning(
            "SOLVER.LARS_TRUST %g has no effect with SOLVER.OPTIMIZING_METHOD %s; write lars, or "
            "leave it out",
            *(trust, recipe.solver.optimizing_method),
        )
    if lars and importlib.util.find_spec("pytorch_optimizer") is None:
        raise ImportError(
            "SOLVER.OPTIMIZING_METHOD lars needs the package pytorch-optimizer, which is not "
            "installed: pip install pytorch-optimizer"
        )
    if lars and recipe.bn.weight_decay:
        logger.warning(
            "BN.WEIGHT_DECAY %g has no effect with SOLVER.OPTIMIZING_METHOD lars, which decays no "
            "parameter of one dimension; write 0.0",
            recipe.bn.weight_decay,
        )
