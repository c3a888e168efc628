"""A run whose backbone is frozen."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow


def test_the_backbone_stays_bit_for_bit(
    train: Callable[..., Path],
    multigrid_run: Path,
    tmp_path: Path,
    opened: type,
):
    """The recipe has precise BN, which computes the statistics of all that learns anew."""
    start = max((multigrid_run / "checkpoints").glob("*.pyth"))
    keys = ("TRAIN.FREEZE", "s1,s2,s3,s[1-3]_fuse", "TRAIN.CHECKPOINT_FILE_PATH", start)
    keys += ("MODEL.EMA_DECAY", 0.5, "SOLVER.WEIGHT_DECAY", 0.1, "TEST.ENABLE", False)

    before, after = opened(multigrid_run).checkpoint, opened(train(tmp_path, *keys)).checkpoint
    frozen = ("s1.", "s1_", "s2.", "s2_", "s3.", "s3_")
    for state in (after["model_state"], after["ema_state"]):
        for name, value in before["model_state"].items():
            same = torch.equal(state[name], value)
            assert same == name.startswith(frozen), name
