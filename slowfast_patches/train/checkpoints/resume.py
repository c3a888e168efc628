"""From which checkpoint a run goes on, if from any."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.placement import is_restart
from slowfast_patches.train.checkpoints.folder import NOTE, all_checkpoints, load, set_aside
from slowfast_patches.train.checkpoints.recipe import check_same_recipe
from slowfast_patches.utils.files import written_whole

__all__ = ["Found", "continues", "find_resumable", "start_over"]

logger = logging.getLogger(__name__)

_JOBS = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
"""What names a job: the same in all its attempts."""


class Found(NamedTuple):
    """The checkpoint that a run continues, and what is in it."""

    path: Path
    content: dict[str, Any]


def continues(recipe: Recipe) -> bool:
    """Whether a run goes on from the checkpoints in OUTPUT_DIR, if there are any.

    With TRAIN.AUTO_RESUME False the user starts over; what restarts the job after it has does not.
    An attempt that ended before it could, or a job requeued before it began, has not.
    """
    if recipe.train.auto_resume:
        return True
    return is_restart(os.environ) and _has_started_over(Path(recipe.output_dir), os.environ)


def start_over(recipe: Recipe) -> None:
    """Set the checkpoints in OUTPUT_DIR aside, unless the run continues them; a note says for which
    job that was done.

    For the main process, which holds OUTPUT_DIR, before anything else.

    Raises:
        OSError: the folder cannot be written to.
    """
    if continues(recipe):
        return
    folder = Path(recipe.output_dir)
    if kept := set_aside(folder):
        logger.warning("TRAIN.AUTO_RESUME False starts over; earlier checkpoints: %s", kept)
    with written_whole(folder / NOTE) as file:
        file.write(json.dumps(_job(os.environ)).encode())


def _job(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in _JOBS if name in environ}


def _has_started_over(folder: Path, environ: Mapping[str, str]) -> bool:
    """Whether an attempt of this job has. torchrun may give each attempt of a SLURM job an id."""
    try:
        noted = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    return any(noted.get(name) == value for name, value in _job(environ).items())


def find_resumable(recipe: Recipe) -> Found | None:
    """The newest checkpoint that is whole, if the run continues; None where it starts anew.

    For the main process, which holds OUTPUT_DIR. Damaged checkpoints that are newer are renamed.

    Raises:
        ValueError: all checkpoints are damaged, one cannot be read, though it may be whole, or
            another recipe made them; nothing is renamed.
    """
    if not continues(recipe):
        return None
    paths, damaged = all_checkpoints(recipe.output_dir), list[tuple[Path, ValueError]]()
    for path in reversed(paths):
        try:
            content = load(path)
        except ValueError as error:
            damaged.append((path, error))
            continue
        except OSError as error:
            raise ValueError(
                f"{path} cannot be read: {error.strerror or error}. It may be whole: make it "
                "readable, or remove it to continue from the one before, and give the same command "
                "again"
            ) from error
        check_same_recipe(content, recipe, path)
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
