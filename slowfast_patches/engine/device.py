"""What a recipe asks of the device as a whole."""

from __future__ import annotations

import torch
from fvcore.common.config import CfgNode

__all__ = ["set_up_device"]


def set_up_device(cfg: CfgNode, device: torch.device) -> None:
    """Set torch's own switches, which hold for the whole process, as a recipe has them.

    TRAIN.TF32, TRAIN.CUDNN_BENCHMARK and TRAIN.DETERMINISTIC; the first two are a GPU's alone.
    """
    train = cfg.TRAIN
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = train.TF32
        torch.backends.cudnn.allow_tf32 = train.TF32
        torch.backends.cudnn.benchmark = train.CUDNN_BENCHMARK
        torch.backends.cudnn.deterministic = train.DETERMINISTIC
    torch.use_deterministic_algorithms(train.DETERMINISTIC)
