"""A run whose backbone is frozen: trained, interrupted, continued."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.slowfast_patches.train.conftest import At, hooked, save_and_die

pytestmark = pytest.mark.slow


def test_the_backbone_stays_bit_for_bit_and_a_killed_run_goes_on(
    train: Callable[..., Path],
    multigrid_run: Path,
    tmp_path: Path,
    opened: type,
    assert_same_run: Callable[..., None],
):
    """The recipe has precise BN, which computes the statistics of all that learns anew."""
    start = max((multigrid_run / "checkpoints").glob("*.pyth"))
    keys = ("TRAIN.FREEZE", "s1,s2,s3,s[1-3]_fuse", "TRAIN.CHECKPOINT_FILE_PATH", start)
    keys += ("MODEL.EMA_DECAY", 0.5, "SOLVER.WEIGHT_DECAY", 0.1)
    whole = train(tmp_path / "whole", *keys)

    with hooked(At(4, save_and_die)), pytest.raises(SystemExit):
        train(tmp_path / "killed", *keys)
    assert_same_run(opened(train(tmp_path / "killed", *keys)), opened(whole))

    before, after = opened(multigrid_run).checkpoint, opened(whole).checkpoint
    frozen = ("s1.", "s1_", "s2.", "s2_", "s3.", "s3_")
    for state in (after["model_state"], after["ema_state"]):
        for name, value in before["model_state"].items():
            same = torch.equal(state[name], value)
            assert same == name.startswith(frozen), name
