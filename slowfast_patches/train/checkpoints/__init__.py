"""Checkpoints: whole or not there, read without executing anything, and never mixed up."""

from slowfast_patches.train.checkpoints.folder import (
    all_checkpoints,
    best_checkpoint,
    checkpoint_of,
    describe_last,
    last_checkpoint,
    load,
    prune,
    save,
    save_best,
    set_aside,
)
from slowfast_patches.train.checkpoints.resume import (
    Found,
    check_same_list,
    check_same_recipe,
    continues,
    find_resumable,
    start_over,
)
from slowfast_patches.train.checkpoints.writer import Writer, snapshot

__all__ = [
    "Found",
    "Writer",
    "all_checkpoints",
    "best_checkpoint",
    "check_same_list",
    "check_same_recipe",
    "checkpoint_of",
    "continues",
    "describe_last",
    "find_resumable",
    "last_checkpoint",
    "load",
    "prune",
    "save",
    "save_best",
    "set_aside",
    "snapshot",
    "start_over",
]
