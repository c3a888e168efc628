"""Checkpoints: whole or not there, read without executing anything, and never mixed up."""

from slowfast_patches.train.checkpoints.failing import (
    cannot_write,
    explain_dead_workers,
    writes,
)
from slowfast_patches.train.checkpoints.folder import (
    all_checkpoints,
    best_checkpoint,
    checkpoint_of,
    clean,
    describe_last,
    last_checkpoint,
    load,
    prune,
    save,
    save_best,
    set_aside,
)
from slowfast_patches.train.checkpoints.recipe import check_same_list, check_same_recipe
from slowfast_patches.train.checkpoints.resume import Found, continues, find_resumable, start_over
from slowfast_patches.train.checkpoints.share import from_every_rank, share
from slowfast_patches.train.checkpoints.writer import Writer

__all__ = [
    "Found",
    "Writer",
    "all_checkpoints",
    "best_checkpoint",
    "cannot_write",
    "check_same_list",
    "check_same_recipe",
    "checkpoint_of",
    "clean",
    "continues",
    "describe_last",
    "explain_dead_workers",
    "find_resumable",
    "from_every_rank",
    "last_checkpoint",
    "load",
    "prune",
    "save",
    "save_best",
    "set_aside",
    "share",
    "start_over",
    "writes",
]
