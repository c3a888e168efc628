"""Runs of recipes, one for each seed: trained once, one after another, and their results read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fvcore.common.config import CfgNode

from slowfast_patches.config.stored import keys_of, stored_keys
from slowfast_patches.utils.command_line import ToolError

__all__ = [
    "Recipe",
    "Result",
    "RunFailedError",
    "check_own_keys",
    "find_results",
    "run_command",
    "run_folder",
    "train_all",
    "working_seconds",
]

Result = dict[str, Any]
"""A run's result.json."""


class RunFailedError(ToolError):
    """A training ended without a result; the message names it, its exit status and its folder."""


@dataclass(frozen=True)
class Recipe:
    """A config, checked, under a name for people and one for its folder.

    `cfg` is what `cfg_file` and the KEY VALUE pairs `overrides` give; `iterations` how long it
    trains. `open_keys` are keys that are not known yet, as where results are only looked at: a run
    may have had any value of them.
    """

    name: str
    folder: str
    cfg_file: Path
    overrides: tuple[str, ...]
    cfg: CfgNode
    iterations: int
    open_keys: frozenset[str] = frozenset()


_OWN_KEYS = {"RNG_SEED": "--seeds", "OUTPUT_DIR": "--output"}


def check_own_keys(overrides: Sequence[str]) -> None:
    """Raise ValueError for keys that each run has for itself."""
    for key, option in _OWN_KEYS.items():
        if key in overrides[::2]:
            raise ValueError(f"{key} is set for each run; use {option}")


def working_seconds(result: Result) -> float:
    """Seconds of training, loading included, evaluation left out."""
    seconds: Mapping[str, float] = result["seconds"]
    return seconds["training"] + seconds["loading"]


def run_folder(output: Path, recipe: Recipe, seed: int) -> Path:
    """Where a run keeps its files."""
    return output / recipe.folder / f"seed{seed}"


def find_results(
    recipes: Sequence[Recipe], seeds: Sequence[int], output: Path
) -> dict[tuple[str, int], Result]:
    """The results that `output` holds, by recipe's name and seed.

    Raises:
        ValueError: one of them is of another config than the recipe's; says what differs.
    """
    found = {}
    for recipe in recipes:
        for seed in seeds:
            path = run_folder(output, recipe, seed) / "result.json"
            if path.is_file():
                found[recipe.name, seed] = _read_result(path, recipe, seed)
    return found


def _read_result(path: Path, recipe: Recipe, seed: int) -> Result:
    try:
        result: Result = json.loads(path.read_text(encoding="utf-8"))
        stored = stored_keys(result["config"])
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is no run's result ({error}); remove it to train anew") from error
    wanted = keys_of(recipe.cfg) | {"RNG_SEED": seed}
    # Where the run's own files lie, seen from wherever the command was given, changes no training.
    keys = sorted((stored.keys() | wanted.keys()) - {"OUTPUT_DIR"} - recipe.open_keys)
    different = [
        f"{key} {stored.get(key, '(absent)')} there, {wanted.get(key, '(absent)')} now"
        for key in keys
        if stored.get(key, _ABSENT) != wanted.get(key, _ABSENT)
    ]
    if different:
        more = f" and {len(different) - 5} more" if len(different) > 5 else ""
        raise ValueError(
            f"{path} is of another config ({'; '.join(different[:5])}{more}); choose another "
            "--output, or remove that run"
        )
    return result


_ABSENT = object()


def train_all(
    recipes: Sequence[Recipe], seeds: Sequence[int], output: Path, run_net: Path
) -> Iterator[dict[tuple[str, int], Result]]:
    """Train what `output` lacks, all recipes with one seed before the next seed.

    Each run is a process of `run_net` (tools/run_net.py); what it says goes to the terminal. Yields
    the results so far, by recipe's name and seed: before the first run, and after each.

    Raises:
        ValueError: as `find_results`, before anything is trained.
        RunFailedError: a run failed; those before it are kept.
    """
    results = find_results(recipes, seeds, output)
    yield dict(results)
    runs = [(recipe, seed) for seed in seeds for recipe in recipes]
    for number, (recipe, seed) in enumerate(runs, start=1):
        title = f"run {number} of {len(runs)}: {recipe.name}, seed {seed}"
        if (recipe.name, seed) in results:
            print(f"{title}: done before", flush=True)
            continue
        print(f"{title}: starts", flush=True)
        path = _train(recipe, seed, run_folder(output, recipe, seed), run_net)
        results[recipe.name, seed] = _read_result(path, recipe, seed)
        yield dict(results)


def run_command(recipe: Recipe, seed: int, folder: Path, run_net: Path) -> list[str]:
    """What trains a recipe with a seed into a folder."""
    command = [sys.executable, str(run_net), "--cfg", str(recipe.cfg_file)]
    return [*command, *recipe.overrides, "RNG_SEED", str(seed), "OUTPUT_DIR", str(folder)]


def _train(recipe: Recipe, seed: int, folder: Path, run_net: Path) -> Path:
    """Train one recipe with one seed; returns the path of its result."""
    command = run_command(recipe, seed, folder, run_net)
    status, path = subprocess.run(command).returncode, folder / "result.json"
    if status or not path.is_file():
        raise RunFailedError(
            f"{recipe.name}, seed {seed}, ended with exit status {status} and "
            f"{'a' if path.is_file() else 'no'} result; its log is in {folder}. Finished runs are "
            "kept: the same command continues"
        )
    return path
