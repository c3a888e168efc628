"""Keys of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slowfast_patches.config.fields import (
    BELOW_ONE,
    ExtraKeys,
    all_of,
    only_with,
    speed_key,
    training_key,
    with_backbone,
)


@dataclass(frozen=True)
class HfKeys(ExtraKeys):
    model: str = speed_key(
        "videomae",
        "One of: a model type (videomae, timesformer, vivit or vjepa2) to train from scratch; a "
        "folder with config.json and weights in `*.safetensors`; the name of a model on the "
        "Hugging Face Hub with such files, which are downloaded once.",
        needs=only_with("MODEL.ARCH", "hf"),
    )
    config: Mapping[str, Any] = speed_key(
        {},
        "Values that override the model's configuration, such as hidden_size. On the command line, "
        "set each value separately: HF.CONFIG.hidden_size 192. The input size and the number of "
        "classes follow from DATA and MODEL.NUM_CLASSES.",
        needs=only_with("MODEL.ARCH", "hf"),
    )
    drop_path: float = training_key(
        0.0,
        "Stochastic depth (Huang et al., 2016): the probability that a clip skips a residual "
        "branch of the last layer. The probability rises linearly from 0 at the first layer.",
        BELOW_ONE,
        needs=all_of(only_with("MODEL.ARCH", "hf"), with_backbone),
    )
