"""Schedule of a PySlowFast config."""

from __future__ import annotations

import logging
import math
from ast import literal_eval
from itertools import accumulate
from operator import mul
from typing import Any

from multigrid.config_values import base_shape, rate_from, schedule_from
from multigrid.errors import MultigridError
from multigrid.integrations.pyslowfast_checks import check_config
from multigrid.integrations.pyslowfast_keys import (
    find_key,
    get_key,
    has_cycles,
    uses_multigrid,
)
from multigrid.learning_rate import LearningRate
from multigrid.phases import make_schedule
from multigrid.schedule import Schedule
from multigrid.stage_rows import stages_from_rows

logger = logging.getLogger(__name__)


def schedule_of(cfg: Any, num_videos: int, learning_rate: LearningRate | None = None) -> Schedule:
    """Build the schedule that a config describes.

    If both cycles are off, this is the schedule of the baseline.

    Args:
        cfg: The config, unchanged since it was loaded. TRAIN.BATCH_SIZE is the batch size per
            machine, and NUM_SHARDS the number of machines.
        num_videos: Number of training videos.
        learning_rate: Learning-rate policy of the baseline. None means the policy in SOLVER.

    Raises:
        ValueError: The config describes no valid schedule, or multigrid cannot train with it
            (`check_config`).
    """
    if "MULTIGRID" not in cfg:
        raise MultigridError(
            "the config has no section MULTIGRID. Call add_multigrid_config(cfg) before you merge "
            "a recipe into the config"
        )
    check_config(cfg)
    changed = _keys_of_model(cfg) if uses_multigrid(cfg) else {"MULTIGRID.BN_BASE_SIZE": 0}

    def value_of(name: str) -> Any:
        return changed[name] if name in changed else get_key(cfg, name)

    bn_group_size = value_of("MULTIGRID.BN_BASE_SIZE")
    rows = get_key(cfg, "MULTIGRID.STAGES")
    if rows:
        stages = stages_from_rows(
            rows,
            machines=cfg.NUM_SHARDS,
            bn_group_size=None if _is_mvit(cfg) else bn_group_size,
            end=cfg.SOLVER.MAX_EPOCH,
            has_cycles=has_cycles(cfg),
        )
        if learning_rate is None and any(stage.rate is None for stage in stages):
            learning_rate = rate_from(value_of)
        return make_schedule(base_shape(value_of), num_videos, learning_rate, stages=stages)
    return schedule_from(value_of, num_videos, bn_group_size, learning_rate)


def _keys_of_model(cfg: Any) -> dict[str, Any]:
    """Return the values of keys that follow from the model, if it is an MViT.

    An MViT has no batch normalisation. Its crops must be multiples of `_crop_divisor`.

    Raises:
        ValueError: MULTIGRID.SIZE_DIVISOR is not a multiple of `_crop_divisor`.
    """
    if not _is_mvit(cfg):
        return {}
    needed, given = _crop_divisor(cfg.MVIT), get_key(cfg, "MULTIGRID.SIZE_DIVISOR")
    divisor = needed if given == 1 else given
    if divisor % needed:
        raise MultigridError(
            f"MULTIGRID.SIZE_DIVISOR {given} does not suit this MViT. Its patches and pooling "
            f"layers need crops that are multiples of {needed}. Set MULTIGRID.SIZE_DIVISOR {needed}"
        )
    logger.info(
        f"The model is an MViT, so multigrid trains with MULTIGRID.SIZE_DIVISOR {divisor} and "
        "MULTIGRID.BN_BASE_SIZE 0."
    )
    return {"MULTIGRID.SIZE_DIVISOR": divisor, "MULTIGRID.BN_BASE_SIZE": 0}


def _is_mvit(cfg: Any) -> bool:
    name = find_key(cfg, "MODEL.MODEL_NAME")
    is_named = name == "MViT" if name else find_key(cfg, "MODEL.ARCH") == "mvit"
    return is_named and "MVIT" in cfg


def _crop_divisor(mvit: Any) -> int:
    """Return the number of pixels that must divide each crop, for its patches and all pools.

    A pool of the queries shrinks the feature map for all following layers. A pool of keys and
    values shrinks it only for the attention in its own layer.
    """
    *_, patch = _numbers(mvit.PATCH_STRIDE)
    queries, keys = dict[int, int](), dict[int, int]()
    for strides, key in ((queries, "POOL_Q_STRIDE"), (keys, "POOL_KV_STRIDE")):
        for layer, *stride in mvit.get(key) or ():
            strides[layer] = max(stride[1:])
    depth = range(mvit.DEPTH)
    shrunk = [1, *accumulate((queries.get(layer, 1) for layer in depth), mul)]
    adaptive = max(_numbers(mvit.get("POOL_KV_STRIDE_ADAPTIVE") or (1, 1, 1))[1:])
    pools = [shrunk[layer] * keys.get(layer, 1) for layer in depth]
    return patch * math.lcm(*shrunk, adaptive, *pools)


def _numbers(value: Any) -> tuple[int, ...]:
    """Return a list of numbers, which recipes may write as the text "(2, 4, 4)"."""
    return tuple(literal_eval(value) if isinstance(value, str) else value)
