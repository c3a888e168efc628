"""From which checkpoint a run goes on, if from any."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fvcore.common.config import CfgNode

from slowfast_patches.engine.checkpoints.folder import all_checkpoints, load
from slowfast_patches.engine.checkpoints.recipe import check_same_recipe

__all__ = ["Found", "continues", "find_resumable", "is_restart"]

logger = logging.getLogger(__name__)

_COUNTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


class Found(NamedTuple):
    """The checkpoint that a run continues, and what is in it."""

    path: Path
    content: dict[str, Any]


def is_restart(environ: Mapping[str, str]) -> bool:
    """Whether torchrun or SLURM has started this run before, and it failed or was requeued."""
    return any(int(environ.get(name) or 0) > 0 for name in _COUNTS)


def continues(cfg: CfgNode) -> bool:
    """Whether a run goes on from the checkpoints in OUTPUT_DIR, if there are any.

    With TRAIN.AUTO_RESUME False the user starts over; what restarts the run after that does not.
    """
    return bool(cfg.TRAIN.AUTO_RESUME) or is_restart(os.environ)


def find_resumable(cfg: CfgNode) -> Found | None:
    """The newest checkpoint that is whole, if the run continues; None where it starts anew.

    For the main process, which holds OUTPUT_DIR. Damaged checkpoints that are newer are renamed.

    Raises:
        ValueError: all checkpoints are damaged, or another recipe made them; nothing is renamed.
    """
    if not continues(cfg):
        return None
    paths, damaged = all_checkpoints(cfg.OUTPUT_DIR), list[tuple[Path, ValueError]]()
    for path in reversed(paths):
        try:
            content = load(path)
        except ValueError as error:
            damaged.append((path, error))
            continue
        check_same_recipe(content, cfg, path)
        for torn, reason in damaged:
            _rename(torn, reason, path)
        return Found(path, content)
    if damaged:
        raise ValueError(
            f"no checkpoint in {paths[0].parent} can be read, the newest because {damaged[0][1]}; "
            "put back a whole one, use another OUTPUT_DIR, or TRAIN.AUTO_RESUME False to start over"
        )
    return None


def _rename(path: Path, reason: ValueError, used: Path) -> None:
    aside = path.replace(path.with_name(f"{path.name}.damaged"))
    logger.warning("%s; renamed to %s, continuing from %s", reason, aside.name, used.name)
