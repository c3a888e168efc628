"""Checks of an experiment before anything is trained, submitted or written.

A finished or interrupted run must have the same recipe, lists, videos and weights as its variant
has now. All variants must be scored in the same way. An experiment must not overwrite its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from slowfast_patches.config.key_lists import changes_times, describes_test
from slowfast_patches.config.load_recipe import recipe_files
from slowfast_patches.datasets.lists.dataset_lists import list_path
from slowfast_patches.experiments.runs import ADVICE, Experiment, with_seed
from slowfast_patches.experiments.variants import Variant
from slowfast_patches.models.weights.weight_files import local_file
from slowfast_patches.plan.facts import splits_of
from slowfast_patches.plan.run_identity import (
    DATA,
    TRAINING,
    Aspect,
    Identity,
    differences_between,
    run_identity,
)
from slowfast_patches.train.checkpoint import DamagedError, head_of, last_checkpoint, load
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.storage import is_remote
from slowfast_patches.utils.tables import shorten_list

STARTED = Aspect(lambda name: TRAINING.key(name) or changes_times(name), TRAINING.facts)
"""What must be equal for an interrupted run to be continued by an experiment."""
SCORING = Aspect(describes_test, DATA.facts)
"""What must be equal for the scores of two variants to be compared."""


def report_files(*names: str) -> tuple[str, ...]:
    """Return the names of the files of reports."""
    return tuple(f"{name}.{suffix}" for name in names for suffix in ("md", "json", "png"))


def checked(
    experiment: Experiment,
    inputs: Iterable[Path] = (),
    *,
    trains: bool,
    writes: Iterable[str] = report_files("report"),
) -> Experiment:
    """Check an experiment, and return a copy whose variants describe their videos too.

    Args:
        experiment: The experiment.
        inputs: Files that the command reads besides the recipes, lists and weights of the variants.
        trains: Whether runs are about to be trained or submitted. If not, or if all runs have
            finished, the videos are not looked at.
        writes: Names of the files that the command writes to --output, beside the folders of runs.

    Raises:
        ValueError: The experiment must not continue. The message names the differences.
    """
    check_folders(experiment)
    check_outputs(experiment, inputs, writes)
    if trains and experiment.missing():
        experiment = replace(experiment, variants=_with_clips(experiment.variants))
    for variant in experiment.variants:
        for seed in experiment.seeds:
            check_started(experiment, variant, seed)
    check_alike(experiment)
    experiment.runs()  # raises an error if a result is of another run
    return experiment


def _with_clips(variants: Iterable[Variant]) -> list[Variant]:
    seen = dict[object, dict[str, Any]]()
    return [
        replace(variant, identity=run_identity(variant.recipe, seen=seen)) for variant in variants
    ]


def check_folders(experiment: Experiment) -> None:
    """Check that no two variants have the same folder, also where file names ignore case.

    Raises:
        ValueError: Two variants have the same folder.
    """
    names = dict[str, str]()
    for variant in experiment.variants:
        other = names.setdefault(variant.folder.casefold(), variant.name)
        if other != variant.name:
            raise UserError(
                f"The runs of {other} and {variant.name} would have the same folder, "
                f"{experiment.output / variant.folder}. Rename one of the config files."
            )


def check_outputs(experiment: Experiment, inputs: Iterable[Path], writes: Iterable[str]) -> None:
    """Check that an experiment does not write to a file that it reads.

    Raises:
        ValueError: A recipe, list, weight file or one of `inputs` would be overwritten.
    """
    read = dict.fromkeys(inputs)
    for variant in experiment.variants:
        read |= dict.fromkeys(_files_of(variant))
    folders = [(experiment.output / variant.folder).resolve() for variant in experiment.variants]
    written = {(experiment.output / name).resolve() for name in writes}
    for path in (path.resolve() for path in read if not is_remote(str(path))):
        inside = any(folder in path.parents for folder in folders)
        if path in written or inside:
            raise UserError(
                f"{path} is read by this command, which would also write it. Choose another "
                "--output."
            )


def _files_of(variant: Variant) -> list[Path]:
    recipe = variant.recipe
    files = [*recipe_files(variant.cfg_file), *(list_path(recipe, s) for s in splits_of(recipe))]
    for weights in (recipe.train.checkpoint_file_path, recipe.test.checkpoint_file_path):
        if weights and not weights.startswith("https://"):
            files.append(local_file(weights))
    return files


def check_started(experiment: Experiment, variant: Variant, seed: int) -> None:
    """Check that an interrupted run in the folder of a variant is a run of this variant.

    Raises:
        ValueError: Its last checkpoint is of another run, or of another version of the package.
    """
    folder = experiment.folder(variant, seed)
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
    differing = differences_between(there, with_seed(variant.identity, seed), STARTED)
    if head.changes:
        differing["changes"] = f"changes: {'; '.join(head.changes)}"
    if texts := [text for name, text in differing.items() if name not in experiment.accepted]:
        raise UserError(
            f"The interrupted run in {folder} was started differently "
            f"({shorten_list(texts, 5)}). {ADVICE}"
        )


def check_alike(experiment: Experiment) -> None:
    """Check that the variants have the same labels, and are tested in the same way.

    Raises:
        ValueError: They differ, and --accept-change does not name the difference.
    """
    variants = {variant.name: variant for variant in experiment.variants}
    for variant in experiment.variants:
        baseline = variants.get(variant.baseline, variant)
        differing = unlike(baseline.identity, variant.identity)
        if texts := [text for name, text in differing.items() if name not in experiment.accepted]:
            raise UserError(
                f"{variant.name} (here) cannot be compared with {baseline.name} (there): "
                f"{'; '.join(texts)}. Use the same lists and the same test for all configs. If the "
                f"difference is wanted, add --accept-change {' --accept-change '.join(differing)}."
            )


def unlike(baseline: Identity, variant: Identity) -> dict[str, str]:
    """Return the differences that make two variants incomparable, by name.

    Lists may name other files, such as prepared ones, if the labels are the same in the same order.
    Experiments may compare different video files, weights and keys.
    """
    differing = differences_between(baseline, variant, SCORING)
    differing.pop("TEST.CHECKPOINT_FILE_PATH", None)
    named = dict[str, str]()
    for name, text in differing.items():
        if name in baseline.facts:
            if not name.endswith("_list"):
                continue
            before, now = ({**each.facts[name], "names": None} for each in (baseline, variant))
            if before == now:
                continue
        named[name] = text
    return named
