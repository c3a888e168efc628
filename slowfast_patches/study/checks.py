"""Checks of a study before anything is trained, submitted or written.

What a finished or an interrupted run was computed from must be what its arm says now. The arms must
be scored alike. A study must not write where it reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from slowfast_patches.config.key_lists import changes_times, describes_test
from slowfast_patches.config.load import recipe_files
from slowfast_patches.datasets.lists.dataset_lists import list_path
from slowfast_patches.models.weights.files import local_file
from slowfast_patches.plan.identity import (
    DATA,
    TRAINING,
    Aspect,
    Identity,
    differences_between,
    run_identity,
    splits_of,
)
from slowfast_patches.study.arms import Arm
from slowfast_patches.study.runs import ADVICE, Study, with_seed
from slowfast_patches.train.checkpoint import DamagedError, head_of, last_checkpoint, load
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.storage import is_remote
from slowfast_patches.utils.tables import shorten_list

STARTED = Aspect(lambda name: TRAINING.key(name) or changes_times(name), TRAINING.facts)
"""What must be equal for an interrupted run to be continued by a study."""
SCORING = Aspect(describes_test, DATA.facts)
"""What must be equal for the scores of two arms to be compared."""


def report_files(*names: str) -> tuple[str, ...]:
    """Return the names of the files of reports."""
    return tuple(f"{name}.{suffix}" for name in names for suffix in ("md", "json", "png"))


def checked(
    study: Study,
    inputs: Iterable[Path] = (),
    *,
    trains: bool,
    writes: Iterable[str] = report_files("report"),
) -> Study:
    """Check a study, and return it with the videos of its arms looked at.

    Args:
        study: The study.
        inputs: Files that the command reads besides the recipes, lists and weights of the arms.
        trains: Whether runs are about to be trained or submitted. If not, or if all runs have
            finished, the videos are not looked at.
        writes: Names of the files that the command writes to --output, beside the folders of runs.

    Raises:
        ValueError: The study must not go on as it is. The message names the differences.
    """
    check_folders(study)
    check_outputs(study, inputs, writes)
    if trains and study.missing():
        study = replace(study, arms=_with_clips(study.arms))
    for arm in study.arms:
        for seed in study.seeds:
            check_started(study, arm, seed)
    check_alike(study)
    study.runs()  # raises an error if a result is of another run
    return study


def _with_clips(arms: Iterable[Arm]) -> list[Arm]:
    seen = dict[object, dict[str, Any]]()
    return [replace(arm, identity=run_identity(arm.recipe, seen=seen)) for arm in arms]


def check_folders(study: Study) -> None:
    """Check that no two arms have the same folder, also where file names ignore case.

    Raises:
        ValueError: Two arms have the same folder.
    """
    names = dict[str, str]()
    for arm in study.arms:
        other = names.setdefault(arm.folder.casefold(), arm.name)
        if other != arm.name:
            raise UserError(
                f"The runs of {other} and {arm.name} would have the same folder, "
                f"{study.output / arm.folder}. Rename one of the config files."
            )


def check_outputs(study: Study, inputs: Iterable[Path], writes: Iterable[str]) -> None:
    """Check that a study does not write to a file that it reads.

    Raises:
        ValueError: A recipe, list, weight file or one of `inputs` would be overwritten.
    """
    read = dict.fromkeys(inputs)
    for arm in study.arms:
        read |= dict.fromkeys(_files_of(arm))
    folders = [(study.output / arm.folder).resolve() for arm in study.arms]
    written = {(study.output / name).resolve() for name in writes}
    for path in (path.resolve() for path in read if not is_remote(str(path))):
        inside = any(folder in path.parents for folder in folders)
        if path in written or inside:
            raise UserError(
                f"{path} is read by this command, which would also write it. Choose another "
                "--output."
            )


def _files_of(arm: Arm) -> list[Path]:
    recipe = arm.recipe
    files = [*recipe_files(arm.cfg_file), *(list_path(recipe, s) for s in splits_of(recipe))]
    for weights in (recipe.train.checkpoint_file_path, recipe.test.checkpoint_file_path):
        if weights and not weights.startswith("https://"):
            files.append(local_file(weights))
    return files


def check_started(study: Study, arm: Arm, seed: int) -> None:
    """Check that an interrupted run in the folder of an arm is a run of this arm.

    Raises:
        ValueError: Its last checkpoint is of another run, or of another version of the package.
    """
    folder = study.folder(arm, seed)
    path = last_checkpoint(folder)
    if path is None or (folder / "result.json").is_file():
        return
    head = head_of(path)
    if head is None:
        try:
            load(path)  # raises an error for another version
        except DamagedError:  # the run itself goes back to an older checkpoint
            return
        return
    there = Identity.of_json(head.identity)
    differing = differences_between(there, with_seed(arm.identity, seed), STARTED)
    if head.changes:
        differing["changes"] = f"changes: {'; '.join(head.changes)}"
    if texts := [text for name, text in differing.items() if name not in study.accepted]:
        raise UserError(
            f"The interrupted run in {folder} was started differently "
            f"({shorten_list(texts, 5)}). {ADVICE}"
        )


def check_alike(study: Study) -> None:
    """Check that the arms are trained and scored on the same labels, and tested in the same way.

    Raises:
        ValueError: They are not, and --accept-change does not name the difference.
    """
    arms = {arm.name: arm for arm in study.arms}
    for arm in study.arms:
        baseline = arms.get(arm.baseline, arm)
        differing = unlike(baseline.identity, arm.identity)
        if texts := [text for name, text in differing.items() if name not in study.accepted]:
            raise UserError(
                f"{arm.name} cannot be compared with {baseline.name} (there): {'; '.join(texts)}. "
                "Use the same lists and the same test for all configs. If the difference is "
                f"wanted, add --accept-change {' --accept-change '.join(differing)}."
            )


def unlike(baseline: Identity, arm: Identity) -> dict[str, str]:
    """Describe why the scores of two arms cannot be compared, by the name of the difference.

    Lists may name other files, such as prepared ones, if the labels are the same in the same order.
    Other video files, weights and keys are what a study compares.
    """
    differing = differences_between(baseline, arm, SCORING)
    differing.pop("TEST.CHECKPOINT_FILE_PATH", None)
    named = dict[str, str]()
    for name, text in differing.items():
        if name in baseline.facts:
            if not name.endswith("_list"):
                continue
            before, now = ({**each.facts[name], "names": None} for each in (baseline, arm))
            if before == now:
                continue
        named[name] = text
    return named
