"""Variants of an experiment: named recipes to train."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from multigrid import MultigridError, Schedule, schedule_cost
from slowfast_patches.config import Recipe, check_recipe
from slowfast_patches.config.load_recipe import load_unscaled
from slowfast_patches.datasets.lists.dataset_lists import list_path, load_with_classes, read_list
from slowfast_patches.launch.launch import resolve
from slowfast_patches.models.weights.weight_files import format_of, local_file
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.plan.recipe_times import measured_times
from slowfast_patches.plan.run_identity import Identity, run_identity
from slowfast_patches.plan.training_plan import dataset_size
from slowfast_patches.utils.errors import UserError


@dataclass(frozen=True)
class Variant:
    """Named recipe of an experiment.

    Attributes:
        name: Name of the variant in tables.
        cfg_file: Config file of the recipe.
        overrides: Alternating config keys and values that override the config file.
        recipe: Recipe with the overrides applied.
        schedule: Schedule of the recipe.
        label: Name shared by all variants that train the same recipe for different lengths.
        baseline: Name of the variant that speed-ups are relative to.
        identity: Everything that determines the result of a run, without the videos.
        length: Length of the training as a multiple of the recipe's own length.
    """

    name: str
    cfg_file: Path
    overrides: tuple[str, ...]
    recipe: Recipe
    schedule: Schedule
    label: str
    baseline: str
    identity: Identity
    length: float = 1.0

    @property
    def folder(self) -> str:
        """Folder for the runs of the variant, relative to the experiment's output folder."""
        return self.name.replace(", ", "_").replace(" ", "_")

    @property
    def iterations(self) -> int:
        return self.schedule.iterations


Seen = MutableMapping[object, dict[str, Any]]
"""Facts about lists that the variants of an experiment share, as in `run_identity`."""


def make_variant(
    name: str, cfg_file: Path, overrides: Sequence[str], seen: Seen | None = None
) -> Variant:
    """Build a variant from a config file.

    Args:
        name: Name of the variant.
        cfg_file: Config file of the recipe.
        overrides: Alternating config keys and values that override the config file.
        seen: Cache of facts about lists, which the variants share.

    Raises:
        ValueError: The recipe cannot be trained. The message starts with the name of the variant.
    """
    try:
        recipe = resolve(load_with_classes(cfg_file, overrides))
        check_recipe(recipe)
        schedule = schedule_of(recipe, dataset_size(recipe))
        identity = run_identity(recipe, seen=seen, clips=False)
    except MultigridError as error:
        raise UserError(f"{name}: {error}") from error
    return Variant(name, cfg_file, tuple(overrides), recipe, schedule, name, name, identity)


def with_length(variant: Variant, length: float, seen: Seen | None = None) -> Variant:
    """Return a variant that is trained for a multiple of its length (SOLVER.LENGTH).

    Args:
        variant: Variant to copy. For length 1, it is returned itself.
        length: Factor that multiplies the variant's own SOLVER.LENGTH.
        seen: As for `make_variant`.
    """
    if length == 1:
        return variant
    own = load_unscaled(variant.cfg_file, variant.overrides).solver.length
    overrides = (*variant.overrides, "SOLVER.LENGTH", str(own * length))
    other = make_variant(f"{variant.name} x{length:.4g}", variant.cfg_file, overrides, seen)
    return replace(
        other, label=variant.label, baseline=variant.baseline, length=variant.length * length
    )


def check_experiment(cfg_files: Sequence[Path], overrides: Sequence[str]) -> None:
    """Check the config files and overrides of an experiment.

    Raises:
        ValueError: Two config files have the same name, or an override sets a key that the
            experiment sets for each run.
    """
    if len({path.stem for path in cfg_files}) < len(cfg_files):
        raise UserError(
            "Runs are named after the config files, so two config files cannot have the same name. "
            "Rename one of them."
        )
    for key, option in {"RNG_SEED": "--seeds", "OUTPUT_DIR": "--output"}.items():
        if key in overrides[::2]:
            raise UserError(f"{key} is set for each run. Use {option} instead.")


def step_seconds(variant: Variant, files: Sequence[Path]) -> float:
    """Return the time of all training steps of a variant, in seconds.

    Args:
        variant: The variant.
        files: Step-time files of benchmarks/step_time.py. The first file that fits is used.

    Raises:
        MisfitError: No file fits the recipe.
    """
    ours = measured_times(files, variant.recipe).ours
    seconds = schedule_cost(variant.schedule, None, ours).seconds
    assert seconds is not None, "A file that fits has the times of all shapes."
    return seconds


def step_seconds_of(
    variants: Sequence[Variant], files: Sequence[Path]
) -> tuple[dict[str, float], str]:
    """Return the seconds of all training steps of each variant, and where they are from.

    Args:
        variants: The variants.
        files: Step-time files. For each variant, the first file that fits is used.

    Raises:
        MisfitError: No file fits one of the recipes.
        ValueError: The times of the variants were measured on different machines or with different
            numbers of threads or versions, so they cannot be compared.
    """
    found = [measured_times(files, variant.recipe) for variant in variants]
    if len(clocks := sorted(set().union(*(times.clocks for times in found)))) > 1:
        raise UserError(
            f"The step times of the configs were measured with {' and with '.join(clocks)}, so "
            "they cannot be compared. Measure all of them on one machine."
        )
    seconds = {variant.name: step_seconds(variant, files) for variant in variants}
    return seconds, "; ".join(dict.fromkeys(times.source or "" for times in found))


def hidden_files(recipe: Recipe) -> list[Path]:
    """Check the lists and weights of a recipe, and return those that are not on this machine.

    Raises:
        ValueError: A file is invalid, or DATA.PATH_TO_DATA_DIR is not set.
    """
    if not recipe.data.path_to_data_dir:
        raise UserError(
            f"{recipe.train.dataset}: DATA.PATH_TO_DATA_DIR, the folder of the lists, is not set"
        )
    hidden = list[Path]()
    for split in ["train", "val"] * recipe.train.enable + ["test"] * recipe.test.enable:
        if (path := list_path(recipe, split)).is_file():
            read_list(recipe, split)
        else:
            hidden.append(path)
    needed = recipe.train if recipe.train.enable else recipe.test
    weights = needed.checkpoint_file_path
    if weights and not weights.startswith("https://"):
        if (file := local_file(weights)).exists():
            format_of(file)
        else:
            hidden.append(file)
    return hidden
