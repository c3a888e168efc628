"""Keys of a PySlowFast config with which multigrid cannot train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from multigrid.errors import MultigridError
from multigrid.integrations.pyslowfast_keys import find_key, uses_multigrid


class _Rule(NamedTuple):
    """Value of a key that is refused.

    Attributes:
        key: Full name of the key.
        refuses: Function of the value that returns whether it is refused.
        reason: Why multigrid cannot train with the value, and what to write instead.
    """

    key: str
    refuses: Callable[[Any], bool]
    reason: str


_PRETRAINING = (
    "This is pre-training without labels (MoCo, SimCLR, BYOL, SwAV, MAE or MaskFeat), whose loop "
    "and model need clips of one shape. Pre-train without multigrid. Then train or fine-tune with "
    "labels and multigrid"
)

_RULES = (
    _Rule(
        "TRAIN.DATASET",
        lambda name: str(name).lower().startswith("imagenet"),
        "It consists of images, but multigrid changes the number of frames. Use a data set of "
        "videos",
    ),
    _Rule("TASK", lambda task: task == "ssl", _PRETRAINING),
    _Rule("MASK.ENABLE", bool, _PRETRAINING),
    _Rule("AUG.GEN_MASK_LOADER", bool, _PRETRAINING),
    _Rule(
        "MODEL.MODEL_NAME",
        lambda name: name in ("ContrastiveModel", "MaskMViT"),
        _PRETRAINING,
    ),
    _Rule(
        "MODEL.MODEL_NAME",
        lambda name: name == "PTVMViT",
        "Its position embeddings fit a single clip shape. Use MODEL.MODEL_NAME MViT and the recipe "
        "of configs/Kinetics with the same name",
    ),
    _Rule(
        "MVIT.REV.ENABLE",
        bool,
        "A reversible MViT computes its backward pass for a single clip shape. Set it to False, or "
        "use the recipe of MViT with the same size",
    ),
    _Rule(
        "DETECTION.ENABLE",
        bool,
        "PySlowFast's AVA data set reads clips of a single shape. multigrid-train has recipes for "
        "AVA in configs/AVA",
    ),
    _Rule(
        "TRAIN.DATASET",
        lambda name: str(name).lower().startswith("ptv"),
        "The data sets of pytorchvideo read videos in an order of their own, and clips of a single "
        "shape. Use the data set without ptv in its name: kinetics, ssv2 or charades. The model "
        "may be one of pytorchvideo",
    ),
    _Rule(
        "DATA.LOADER_CHUNK_SIZE",
        lambda size: size > 0,
        "PySlowFast then reads a list in parts, but an epoch of multigrid takes every video once. "
        "Set it to 0, which reads the whole list",
    ),
    _Rule(
        "SOLVER.LARS_ON",
        bool,
        "PySlowFast's LARS is no torch optimizer, so the steps cannot be checked. Set it to False",
    ),
    _Rule(
        "MULTIGRID.EVAL_FREQ",
        lambda count: count == 0,
        "Only multigrid-train accepts 0. Set the number of evaluations in each phase, such as 1",
    ),
    _Rule(
        "MULTIGRID.DEFAULT_B",
        lambda batch: batch != 0,
        "Multigrid has already changed this config. Pass the config as it was loaded, and do not "
        "call the multigrid code of PySlowFast",
    ),
)


def refused_keys(cfg: Any) -> dict[str, str]:
    """Return the keys and values with which multigrid cannot train, grouped by reason."""
    found = dict[str, list[str]]()
    for rule in _RULES:
        value = find_key(cfg, rule.key)
        if value is not None and rule.refuses(value):
            found.setdefault(rule.reason, []).append(f"{rule.key} {value}")
    return {reason: ", ".join(keys) for reason, keys in found.items()}


def check_config(cfg: Any) -> None:
    """Check that multigrid can train with a config. Without a cycle, check nothing.

    Raises:
        ValueError: A key is refused. The message names each key, its value, and what to write.
    """
    if uses_multigrid(cfg) and (refused := refused_keys(cfg)):
        problems = [f"{keys}: {reason}" for reason, keys in refused.items()]
        raise MultigridError("multigrid cannot train with " + ". Nor with ".join(problems))
