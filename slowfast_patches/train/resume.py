"""Find the checkpoint to resume from, and compare the run with the run in the checkpoint."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from slowfast_patches.config.recipe import COMMAND_LINE, Recipe, stored_keys, values_by_key
from slowfast_patches.config.yaml_text import parse_yaml
from slowfast_patches.plan.run_identity import (
    SCORES,
    TRAINING,
    Identity,
    differences_between,
    remarks_between,
)
from slowfast_patches.train.checkpoint import (
    Checkpoint,
    DamagedError,
    all_checkpoints,
    head_of,
    load,
    move_earlier_checkpoints,
)
from slowfast_patches.train.trainer import Progress
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.files import write_text

logger = logging.getLogger(__name__)

_START_OVER = "To train from the start, set another OUTPUT_DIR or TRAIN.AUTO_RESUME False."
_RATES = ("SOLVER.BASE_LR", "SOLVER.COSINE_END_LR", "SOLVER.WARMUP_START_LR")
_STARTED_OVER = "started_over.txt"
"""File in OUTPUT_DIR that names the job that has started over."""


class Resumable(NamedTuple):
    """A checkpoint to resume from, and the path of its file."""

    path: Path
    checkpoint: Checkpoint


def continues(recipe: Recipe) -> bool:
    """Return whether the run resumes from the checkpoints in OUTPUT_DIR, if there are any.

    With TRAIN.AUTO_RESUME False, a job starts over once. If SLURM or torchrun restarts the job
    after that, the new attempt resumes.
    """
    if recipe.train.auto_resume:
        return True
    counts = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    restarted = any(os.environ.get(name, "0") not in ("", "0") for name in counts)
    marker = Path(recipe.output_dir, _STARTED_OVER)
    return restarted and marker.is_file() and marker.read_text(encoding="utf-8") == _job()


def _job() -> str:
    """Return a text that all attempts of a job of SLURM or torchrun have in common."""
    if job := os.environ.get("SLURM_JOB_ID"):
        return f"SLURM job {job}"
    # The agent of torchrun is the parent of the processes in all attempts.
    run = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return f"torchrun {run}, agent {os.getppid()} on {os.uname().nodename}"


def find_resumable(recipe: Recipe, identity: Identity) -> Resumable | None:
    """Return the newest undamaged checkpoint, or None if the run does not resume.

    If the run starts over, the checkpoints and results in OUTPUT_DIR are moved to another folder.
    Damaged checkpoints are renamed if an older checkpoint can be read. Differences that the user
    has accepted are added to `changes` of the returned checkpoint: those that
    TRAIN.ACCEPT_CHANGES names, and learning rates if the run has not finished.

    Args:
        recipe: The recipe of this run.
        identity: The identity of this run.

    Raises:
        ValueError: All checkpoints are damaged, or the newest undamaged checkpoint differs from
            this run or was written by another version of the trainer.
        OSError: The disk cannot read a checkpoint. The file itself may be undamaged.
    """
    if not continues(recipe):
        if kept := move_earlier_checkpoints(recipe.output_dir):
            logger.warning(
                "TRAIN.AUTO_RESUME False: starting over. Earlier checkpoints moved to %s.", kept
            )
        write_text(Path(recipe.output_dir, _STARTED_OVER), _job())
    damaged = dict[Path, DamagedError]()
    for path in reversed(all_checkpoints(recipe.output_dir)):
        try:
            checkpoint = load(path)
            break
        except DamagedError as error:
            damaged[path] = error
    else:
        for path, reason in damaged.items():
            raise UserError(
                f"No checkpoint in {path.parent} can be read. {_START_OVER} Error of the newest: "
                f"{reason}"
            )
        if kept := move_earlier_checkpoints(
            recipe.output_dir
        ):  # the best checkpoint or the result alone
            logger.warning("The training starts. Files of an earlier one moved to %s.", kept)
        return None
    finished = Path(recipe.output_dir, "result.json").exists()
    accepted = check_same_run(checkpoint, identity, recipe, path, rates_may_differ=not finished)
    if accepted:
        change = f"after iteration {checkpoint.iteration}: {', '.join(accepted)}"
        logger.warning("The training changes %s.", change)
        checkpoint = replace(checkpoint, changes=[*checkpoint.changes, change])
    for text in remarks_between(Identity.of_json(checkpoint.identity), identity):
        logger.warning("%s was trained with %s.", path, text)
    for torn, reason in damaged.items():
        torn.replace(f"{torn}.damaged")
        logger.warning("Renamed a damaged checkpoint, continuing from %s: %s", path.name, reason)
    return Resumable(path, checkpoint)


def check_same_run(
    checkpoint: Checkpoint,
    identity: Identity,
    recipe: Recipe,
    path: Path,
    *,
    rates_may_differ: bool = False,
) -> list[str]:
    """Check that a run may resume from a checkpoint.

    Args:
        checkpoint: The checkpoint.
        identity: The identity of this run.
        recipe: The recipe of the run, whose TRAIN.ACCEPT_CHANGES names accepted differences.
        path: The file of the checkpoint, for error messages.
        rates_may_differ: Accept other learning rates that the recipe sets.

    Returns:
        A description of each accepted difference.

    Raises:
        ValueError: There are other differences. The message lists them.
    """
    differing = differences_between(Identity.of_json(checkpoint.identity), identity, TRAINING)
    accepted = set(recipe.train.accept_changes)
    if rates_may_differ and not differing.keys().isdisjoint(_RATES):
        accepted.update(_RATES)
        differing.pop("rates", None)  # which follow from the keys
    if others := {name: text for name, text in differing.items() if name not in accepted}:
        raise UserError(
            f"{path} is of another run: {'; '.join(others.values())}. Restore what differs to "
            f"resume. {_START_OVER} To resume with these changes, set TRAIN.ACCEPT_CHANGES "
            f"{','.join(others)}."
        )
    return list(differing.values())


def check_same_scores(recipe: Recipe, path: Path) -> None:
    """Check that a recipe scores videos in the same way as the recipe in a checkpoint.

    Keys that the command line sets may differ, because the user has chosen their values. Files
    without a recipe are not checked.

    Args:
        recipe: The recipe of the test or the prediction.
        path: The file with the weights.

    Raises:
        ValueError: Another key differs that changes the scores. The message lists the keys.
    """
    stored = head_of(path)
    if stored is None:
        return
    differing = differences_between(
        Identity(stored_keys(parse_yaml(stored.cfg)), {}),
        Identity(values_by_key(recipe), {}),
        SCORES,
    )
    chosen = {key for key, source in recipe.given.items() if source == COMMAND_LINE}
    if others := [text for key, text in differing.items() if key not in chosen]:
        raise UserError(
            f"{path} was trained with other values of keys that change its scores: "
            f"{'; '.join(others)}. Use the recipe of the training, such as "
            "config.yaml in its OUTPUT_DIR. To use other values on purpose, set these keys on the "
            "command line."
        )


def note_clock(progress: Progress, clock: str) -> None:
    """Record how the following seconds are measured, unless the last entry is the same."""
    if progress.clocks[-1:] != [clock]:
        progress.clocks.append(clock)
