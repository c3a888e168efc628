"""A checkpoint that no training has written."""

from typing import Any

from slowfast_patches.train.checkpoint import Checkpoint


def made(**values: Any) -> Checkpoint:
    """Of a small training after 3 iterations, but for the given values."""
    fields: dict[str, Any] = {
        "iteration": 3,
        "epoch": 0.5,
        "cfg": "",
        "cfg_at_iteration": "",
        "model_state": {},
        "ema_state": None,
        "optimizer_state": {},
        "scaler_state": {},
        "running_stats": None,
        "world_size": 1,
        "num_videos": 24,
        "list_digest": "abc",
        "class_names": None,
        "seconds": {},
        "evaluations": [],
        "best": {},
        "rate_changes": [],
        "evaluation_due": False,
        "unreadable": {},
    }
    return Checkpoint(**fields | values)
