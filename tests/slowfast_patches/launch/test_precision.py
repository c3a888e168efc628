"""TRAIN.MIXED_PRECISION auto is replaced by the faster value on the device, once for all ranks."""

import pytest
import torch

from slowfast_patches.config import load_recipe
from slowfast_patches.launch.launch import resolve


@pytest.mark.parametrize(
    ("instructions", "pairs", "mixed"),
    [
        ((), (), False),
        (("avx512_bf16", "amx_tile"), (), True),
        (("amx_tile",), ("RESNET.WIDTH_PER_GROUP", 31), False),
        (("amx_tile",), ("RESNET.WIDTH_PER_GROUP", 32), True),
        ((), ("NUM_GPUS", 1, "RESNET.WIDTH_PER_GROUP", 8), True),
    ],
)
def test_auto_is_where_it_was_measured_to_help(instructions, pairs, mixed, monkeypatch, caplog):
    for name in ("avx512_bf16", "amx_tile"):
        found = name in instructions
        monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda found=found: found)
    asked = load_recipe(None, ["TRAIN.MIXED_PRECISION", "auto", "NUM_GPUS", 0, *pairs])
    with caplog.at_level("INFO"):
        assert resolve(asked).train.mixed_precision is mixed
    assert f"TRAIN.MIXED_PRECISION auto is {mixed}" in caplog.text
