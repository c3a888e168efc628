"""Train several recipes with several seeds, one after another, skipping what is done."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from fvcore.common.config import CfgNode

from slowfast_patches.config import check_config, get_cfg, load_config
from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.config.scale import scaled_lengths
from slowfast_patches.config.schedule import schedule_from_config
from slowfast_patches.engine.launch import for_processes, processes_of
from slowfast_patches.engine.plan import dataset_size
from slowfast_patches.models.flops import check_shapes

__all__ = [
    "Recipe",
    "Result",
    "RunFailedError",
    "find_results",
    "make_recipes",
    "run_command",
    "run_folder",
    "train_all",
]

Result = dict[str, Any]
"""A run's result.json."""

_OWN_KEYS = {"RNG_SEED": "--seeds", "OUTPUT_DIR": "--output"}


class RunFailedError(RuntimeError):
    """A training ended without a result; the message names it, its exit status and its folder."""


@dataclass(frozen=True)
class Recipe:
    """A config, checked, under a name for people and one for its folder.

    `cfg` is what `cfg_file` and the KEY VALUE pairs `overrides` give; `iterations` how long it
    trains.
    """

    name: str
    folder: str
    cfg_file: Path
    overrides: tuple[str, ...]
    cfg: CfgNode
    iterations: int


def make_recipes(
    cfg_files: Sequence[Path], overrides: Sequence[str], *, equal_time: bool = False
) -> list[Recipe]:
    """The recipes to compare, the reference first; `equal_time` adds one after it.

    That one is the first, shortened to the second's iterations (the paper's "Baseline 1/3.3").

    Raises:
        ValueError: fewer than two configs, two of the same name, one that cannot be trained, one
            that is judged by other metrics than the first.
    """
    if len(cfg_files) < 2:
        raise ValueError("a comparison takes two configs or more: --cfg A.yaml --cfg B.yaml")
    stems = [path.stem for path in cfg_files]
    if len(set(stems)) < len(stems):
        raise ValueError(f"the configs need different file names, which name their runs: {stems}")
    for key, option in _OWN_KEYS.items():
        if key in overrides[::2]:
            raise ValueError(f"{key} belongs to the comparison; use {option}")
    recipes = [_make_recipe(path.stem, path.stem, path, overrides) for path in cfg_files]
    for recipe in recipes[1:]:
        _check_metrics(recipes[0], recipe)
    if equal_time:
        recipes.insert(1, _shorten(recipes[0], recipes[1]))
    return recipes


def _make_recipe(name: str, folder: str, cfg_file: Path, overrides: Sequence[str]) -> Recipe:
    """A recipe after trying what can be tried before training."""
    try:
        cfg = for_processes(load_config(cfg_file, overrides))
        check_config(cfg, processes_of(cfg))
        schedule = schedule_from_config(cfg, dataset_size(cfg))
        check_shapes(cfg, schedule.shapes)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return Recipe(name, folder, cfg_file, tuple(overrides), cfg, schedule.iterations)


def _check_metrics(first: Recipe, other: Recipe) -> None:
    """Refuse recipes whose results are of different kinds."""
    ours, theirs = metric_names(first.cfg), metric_names(other.cfg)
    if ours != theirs:
        raise ValueError(
            f"{first.name} is judged by {_titles(ours)} (DATA.MULTI_LABEL "
            f"{first.cfg.DATA.MULTI_LABEL}) and {other.name} by {_titles(theirs)} "
            f"(DATA.MULTI_LABEL {other.cfg.DATA.MULTI_LABEL}), which do not compare; give recipes "
            "of the same data set"
        )


def _titles(names: Sequence[str]) -> str:
    return " and ".join(map(metric_title, names))


def _shorten(long: Recipe, short: Recipe) -> Recipe:
    """The recipe `long` with its lengths divided so that it has the iterations of `short`."""
    factor = long.iterations / short.iterations
    if factor <= 1:
        raise ValueError(
            f"--equal-time shortens the first config, {long.name} with {long.iterations} "
            f"iterations, to the second, {short.name} with {short.iterations}; give the longer "
            "one first"
        )
    pairs = scaled_lengths(long.cfg, 1 / factor)
    return _make_recipe(
        f"{long.name} at 1/{factor:.1f}",
        f"{long.folder}_1_over_{factor:.1f}",
        long.cfg_file,
        (*long.overrides, *(str(item) for pair in pairs.items() for item in pair)),
    )


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
        # A key that the run was too early for is at its default, which changes nothing.
        stored = dict(_flatten(yaml.safe_load(get_cfg().dump()))) | dict(_flatten(result["config"]))
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is no run's result ({error}); remove it to train anew") from error
    wanted = dict(_flatten(yaml.safe_load(recipe.cfg.dump()))) | {"RNG_SEED": seed}
    # Where the files lie, seen from wherever the command was given, changes no training. A place
    # that is not given, as where results are only looked at, may have been any.
    places = {"OUTPUT_DIR", *(key for key in _PLACES if not wanted[key])}
    keys = sorted((stored.keys() | wanted.keys()) - places)
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

_PLACES = ("DATA.PATH_TO_DATA_DIR", "TRAIN.CHECKPOINT_FILE_PATH")


def _flatten(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


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
    return [*command, "RNG_SEED", str(seed), "OUTPUT_DIR", str(folder), *recipe.overrides]


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
