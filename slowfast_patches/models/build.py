"""Build the host's models so that they train at every shape of a schedule."""

from __future__ import annotations

import torch
from fvcore.common.config import CfgNode
from torch import nn

from multigrid import convert_batchnorm
from slowfast_patches import patching
from slowfast_patches.models.dropout import ClipDropout
from slowfast_patches.models.pooling import TrainingGlobalPool3d, convert_pools
from slowfast_patches.models.tsm import build_tsm

__all__ = ["build_model", "build_on_meta"]


def build_model(cfg: CfgNode, *, grouped_bn: bool = False) -> nn.Module:
    """The model of a config, the host's or TSM, on the default device; keys are the host's.

    Its weights are in the memory format of MODEL.CHANNELS_LAST.

    Args:
        cfg: which model; read as the host reads it.
        grouped_bn: put BN over a fixed number of clips in place of the host's BN.

    Raises:
        ValueError: an architecture that is not known.
        ImportError: detection without detectron2.
    """
    patching.apply()
    from slowfast.models.model_builder import _MODEL_TYPES

    # The host has these two in its tables of kernels and pools, and no entry for them here.
    without_pool = {f"{name}_nopool": _MODEL_TYPES[name] for name in ("c2d", "i3d")}
    builders = {**_MODEL_TYPES, **without_pool, "tsm": build_tsm}
    if cfg.MODEL.ARCH not in builders:
        known = ", ".join(sorted(builders))
        raise ValueError(f"MODEL.ARCH {cfg.MODEL.ARCH!r} is not a model; there are {known}")
    model: nn.Module = builders[cfg.MODEL.ARCH](cfg)
    head = model.head
    assert isinstance(head, nn.Module)
    for name, pool in list(head.named_children()):
        if name.endswith("_avgpool"):
            assert isinstance(pool, nn.AvgPool3d)
            setattr(head, name, TrainingGlobalPool3d(pool.kernel_size, stride=pool.stride))
    dropout = getattr(head, "dropout", None)
    if isinstance(dropout, nn.Dropout):
        assert isinstance(head.projection, nn.Linear)
        head.dropout = ClipDropout(dropout.p, cfg.RNG_SEED, head.projection.in_features)
    if cfg.MODEL.HEAD_ACT == "sigmoid":
        head.act = nn.Sigmoid()
    model = convert_pools(model)
    if cfg.MODEL.CHANNELS_LAST:
        model.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    return convert_batchnorm(model) if grouped_bn else model


def build_on_meta(cfg: CfgNode) -> nn.Module:
    """The model without weights, for shapes and operation counts."""
    with torch.device("meta"):
        return build_model(cfg)
