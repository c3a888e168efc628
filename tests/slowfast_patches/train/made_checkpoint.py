"""A checkpoint that no training has written."""

from dataclasses import fields
from typing import Any

from slowfast_patches.train.checkpoint import VERSION, Checkpoint
from slowfast_patches.train.trainer import Progress


def made(**values: Any) -> Checkpoint:
    """Of a small training after 3 iterations, but for the given values."""
    unset = {f.name: None for f in fields(Checkpoint) if f.name not in vars(Progress())}
    small = {
        "iteration": 3,
        "epoch": 0.5,
        "cfg": "",
        "model_state": {},
        "optimizer_state": {},
        "scaler_state": {},
        "world_size": 1,
        "num_videos": 24,
        "identity": {},
        "averaged": False,
        "version": VERSION,
    }
    return Checkpoint(**unset | small | values)
