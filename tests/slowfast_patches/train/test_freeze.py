"""A run whose backbone is frozen."""

import torch

from slowfast_patches.train.checkpoint import last_checkpoint
from tests.conftest import Folder

KEYS = (
    *("TRAIN.FREEZE", "s1,s2,s3,s[1-3]_fuse", "MODEL.EMA_DECAY", 0.5, "SOLVER.WEIGHT_DECAY", 0.1),
    *("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False, "TEST.ENABLE", False),
    *("SOLVER.MAX_EPOCH", 1, "SOLVER.STEPS", [0], "SOLVER.LRS", [1], "TRAIN.EVAL_PERIOD", 1),
)


def test_the_backbone_stays_bit_for_bit(train, multigrid_run, tmp_path):
    """The recipe has precise BN, which computes the statistics of all that learns anew."""
    start = ("TRAIN.CHECKPOINT_FILE_PATH", last_checkpoint(multigrid_run))
    before, after = (Folder(f).checkpoint for f in (multigrid_run, train(tmp_path, *KEYS, *start)))
    frozen = ("s1.", "s1_", "s2.", "s2_", "s3.", "s3_")
    for state in (after["model_state"], after["ema_state"]):
        for name, value in before["model_state"].items():
            same = torch.equal(state[name], value)
            assert same == name.startswith(frozen), name
