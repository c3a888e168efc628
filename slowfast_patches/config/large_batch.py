"""Checks of what large mini-batches need: rates that follow the batch, and LARS."""

from __future__ import annotations

import importlib.util
import logging

from fvcore.common.config import CfgNode

from slowfast_patches.config.keys import get_cfg
from slowfast_patches.config.schedule import base_shape, learning_rate_from_config

__all__ = ["check_large_batch"]

logger = logging.getLogger(__name__)


def check_large_batch(cfg: CfgNode) -> None:
    """Refuse rates that are scaled twice, and LARS without its package; warn of what LARS leaves.

    Raises:
        ValueError: SOLVER.REFERENCE_BATCH_SIZE is below 0, or not the only key that scales.
        ImportError: pytorch-optimizer is not installed.
    """
    _check_reference(cfg)
    _check_lars(cfg)


def _check_reference(cfg: CfgNode) -> None:
    solver, clips = cfg.SOLVER, cfg.SOLVER.REFERENCE_BATCH_SIZE
    if clips < 0:
        raise ValueError(
            f"SOLVER.REFERENCE_BATCH_SIZE {clips} is below 0; it is the clips of a mini-batch that "
            "SOLVER.BASE_LR belongs to, or 0 to train any mini-batch at BASE_LR"
        )
    if clips and solver.BASE_LR_SCALE_NUM_SHARDS:
        raise ValueError(
            f"SOLVER.REFERENCE_BATCH_SIZE {clips} and SOLVER.BASE_LR_SCALE_NUM_SHARDS True would "
            "both scale the learning rates; set one of them to 0 or False"
        )
    target = learning_rate_from_config(cfg).at(solver.WARMUP_EPOCHS)
    if clips and solver.WARMUP_EPOCHS and target < solver.WARMUP_START_LR:
        logger.warning(
            "SOLVER.WARMUP_START_LR %g is above %g, the rate of %d clips in a mini-batch "
            "(SOLVER.BASE_LR %g for SOLVER.REFERENCE_BATCH_SIZE %d): the rate would fall in the "
            "warm-up; set SOLVER.WARMUP_EPOCHS 0",
            *(solver.WARMUP_START_LR, target, base_shape(cfg).batch, solver.BASE_LR, clips),
        )


def _check_lars(cfg: CfgNode) -> None:
    trust, lars = cfg.SOLVER.LARS_TRUST, cfg.SOLVER.OPTIMIZING_METHOD == "lars"
    if not lars and trust != get_cfg().SOLVER.LARS_TRUST:
        logger.warning(
            "SOLVER.LARS_TRUST %g has no effect with SOLVER.OPTIMIZING_METHOD %s; write lars, or "
            "leave it out",
            *(trust, cfg.SOLVER.OPTIMIZING_METHOD),
        )
    if lars and importlib.util.find_spec("pytorch_optimizer") is None:
        raise ImportError(
            "SOLVER.OPTIMIZING_METHOD lars needs the package pytorch-optimizer, which is not "
            "installed: pip install pytorch-optimizer"
        )
    if lars and cfg.BN.WEIGHT_DECAY:
        logger.warning(
            "BN.WEIGHT_DECAY %g has no effect with SOLVER.OPTIMIZING_METHOD lars, which decays no "
            "parameter of one dimension; write 0.0",
            cfg.BN.WEIGHT_DECAY,
        )
