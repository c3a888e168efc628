"""Whatever is changed between two runs is named, or cannot change the result."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from slowfast_patches.config.recipe import KEYS, Recipe, plain
from slowfast_patches.plan import facts
from slowfast_patches.plan.run_identity import (
    EXPERIMENT,
    RESULT,
    TRAINING,
    Identity,
    clock_text,
    differences_between,
    remarks_between,
    run_identity,
)
from slowfast_patches.seams import SECTIONS, BatchTransform

FREE = {
    # Places. What lies there is compared by content.
    *("OUTPUT_DIR", "DATA.PATH_TO_DATA_DIR", "DATA.PATH_PREFIX", "IMPORTS"),
    # The loaded recipe has the scaled rates.
    *("NUM_SHARDS", "SHARD_ID", "SOLVER.REFERENCE_BATCH_SIZE"),
    # The schedule is compared instead.
    "DATA.NUM_TRAIN_VIDEOS",
    # Logs, checkpoints and trackers
    *("LOG_PERIOD", "LOG_MODEL_INFO", "TRAIN.CHECKPOINT_PERIOD", "TRAIN.CHECKPOINTS_KEPT"),
    *("TEST.SAVE_RESULTS_PATH", "TRAIN.AUTO_RESUME"),
    *("TRAIN.ACCEPT_CHANGES", "TRAIN.CHECKPOINT_SHARE"),
    # The stream of clips does not depend on the workers, and a limit only ends a run.
    *("DATA_LOADER.NUM_WORKERS", "DATA_LOADER.PIN_MEMORY", "DATA.MAX_BAD_FRACTION"),
    *("DIST_BACKEND", "DIST_JOIN_SECONDS", "DIST_TIMEOUT_SECONDS"),
}
"""Keys that change no result and no time that is compared, listed by hand."""


def other_value(value: object) -> object:
    """Return another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, tuple):
        return (*value, *(value[:1] or ("x",)))
    return 7.5 if value is None else {"x": 1}


@pytest.fixture
def recipe(tiny_config, tiny_data, tmp_path) -> Recipe:
    """The tiny recipe on a copy of the lists."""
    for path in tiny_data.glob("*.csv"):
        shutil.copy(path, tmp_path)
    places = ("DATA.PATH_TO_DATA_DIR", tmp_path, "DATA.PATH_PREFIX", tiny_data)
    return tiny_config(tmp_path / "run", *places)


def test_each_key_is_named_or_cannot_change_the_result(recipe):
    core = [name for name in KEYS if name.partition(".")[0] not in SECTIONS]
    assert named_changes(recipe, core) == set(core) - FREE


def named_changes(recipe, names):
    """Change each key alone, and return the keys that are named as differences.

    The values need not make sense: only the keys are compared.
    """
    identity = Identity(values_of(recipe), {})
    found = set()
    for name in names:
        changed = Identity(values_of(recipe.replaced({name: other_value(recipe[name])})), {})
        named = differences_between(identity, changed, EXPERIMENT)
        assert named.keys() <= {name}
        found |= named.keys()
    return found


def values_of(recipe: Recipe) -> dict[str, object]:
    return {name: plain(recipe[name]) for name in KEYS}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("BN.GROUP_SIZE", 16),
        ("SOLVER.COSINE_AFTER_WARMUP", True),
    ],
)
def test_a_key_without_effect_is_no_difference(recipe, key, value):
    changed = recipe.replaced({key: value})
    named = differences_between(
        run_identity(recipe, clips=False), run_identity(changed, clips=False), RESULT
    )
    assert named == {}


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


CHANGES = {
    "another label": lambda lines: [f"{lines[0].split()[0]} 7", *lines[1:]],
    "another order": lambda lines: lines[::-1],
    "one less": lambda lines: lines[1:],
    "another path": lambda lines: [lines[1].split()[0] + " " + lines[0].split()[1], *lines[1:]],
}


@pytest.mark.parametrize("split", ["train", "val", "test"])
@pytest.mark.parametrize("change", CHANGES)
def test_each_change_of_a_list_is_named(recipe, tmp_path, split, change):
    before = run_identity(recipe, clips=False)
    path = tmp_path / f"{split}.csv"
    path.write_text("\n".join(CHANGES[change](lines_of(path))) + "\n")
    after = run_identity(recipe, clips=False)
    named = differences_between(before, after, RESULT)
    assert f"{split}_list" in named
    assert ("labels" in named[f"{split}_list"]) == (change != "another path")
    assert named.keys() <= {f"{split}_list", "schedule", "rates"}
    if split == "test":  # no part of a training
        assert differences_between(before, after, TRAINING) == {}


def test_videos_are_known_by_their_content_wherever_they_lie(recipe, tmp_path, tiny_data):
    """A copy of all videos is the same. A video of other content is another one."""
    copy = tmp_path / "copy"
    shutil.copytree(tiny_data, copy, ignore=shutil.ignore_patterns("*.json.gz"))
    for path in copy.glob("**/*.mp4"):
        os.utime(path, (1, 1))
    moved = recipe.replaced({"DATA.PATH_TO_DATA_DIR": str(copy), "DATA.PATH_PREFIX": str(copy)})
    before, after = run_identity(recipe), run_identity(moved)
    assert differences_between(before, after, RESULT) == {}
    assert "modification times" in " ".join(remarks_between(before, after))
    name = lines_of(copy / "val.csv")[0].split()[0]
    shutil.copy(tiny_data / lines_of(copy / "val.csv")[1].split()[0], copy / name)
    named = differences_between(before, run_identity(moved), RESULT)
    assert named.keys() == {"val_clips"}
    (copy / name).unlink()
    named = differences_between(before, run_identity(moved), RESULT)
    assert "8 readable videos there, 7 here" in named["val_clips"]


def test_weights_are_known_by_their_content(recipe, tmp_path):
    first, copy, other = (tmp_path / name for name in ("a.pyth", "b.pyth", "c.pyth"))
    for path, value in ((first, 0.0), (copy, 0.0), (other, 1.0)):
        torch.save({"x": torch.full((3,), value)}, path)
    shutil.copy(first, copy)

    def named(path: Path) -> set[str]:
        keys = "TRAIN.CHECKPOINT_FILE_PATH"
        runs = (recipe.replaced({keys: str(each)}) for each in (first, path))
        return set(differences_between(*(run_identity(r, clips=False) for r in runs), RESULT))

    assert named(first) == set()
    assert named(other) == {"weights"}
    assert named(tmp_path / "missing.pyth") == {"TRAIN.CHECKPOINT_FILE_PATH"}
    shutil.copy(other, first)
    assert named(other) == set()


def test_code_of_imports_counts(recipe, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "of_the_user_here.py"
    module.write_text("RATE = 1\n")
    own = recipe.replaced({"IMPORTS": (module.stem,)})
    before = run_identity(own, clips=False)
    module.write_text("RATE = 2  # changed\n")
    assert set(differences_between(before, run_identity(own, clips=False), RESULT)) == {"code"}


@pytest.mark.parametrize(
    ("keys", "matters"),
    [
        ({}, False),
        ({"MULTIGRID.LONG_CYCLE": False, "MULTIGRID.SHORT_CYCLE": False}, True),
    ],
)
def test_the_division_into_processes_counts_where_it_changes_the_result(recipe, keys, matters):
    """Without cycles, BN normalises over the clips of a process."""
    runs = [recipe.replaced(keys), recipe.replaced(keys | {"PROCESSES_PER_MACHINE": 2})]
    before, after = (run_identity(run, clips=False) for run in runs)
    assert ("division" in differences_between(before, after, TRAINING)) is matters


@pytest.mark.parametrize("is_divided", [True, False])
def test_a_change_of_mini_batches_says_whether_the_division_counts(recipe, monkeypatch, is_divided):
    change = BatchTransform("TRAIN.ENABLE", print, lambda recipe: is_divided)
    monkeypatch.setattr(facts, "BATCH_TRANSFORMS", [change])
    assert (facts.division_of(recipe) is not None) is is_divided
    monkeypatch.setattr(facts, "BATCH_TRANSFORMS", [replace(change, switch="TRAIN.COMPILE")])
    assert facts.division_of(recipe) is None


def test_what_is_unknown_is_not_compared_and_a_new_key_had_its_default(recipe):
    known = run_identity(recipe, clips=False)
    hidden = replace(known, facts={})
    assert differences_between(hidden, known, RESULT) == {}
    older = replace(known, keys={k: v for k, v in known.keys.items() if k != "RNG_SEED"})
    assert differences_between(older, known, RESULT) == {}
    later = replace(known, keys=known.keys | {"RNG_SEED": 5, "GONE.KEY": 1})
    assert set(differences_between(later, known, RESULT)) == {"RNG_SEED"}
    assert Identity.of_json(known.to_json()) == known


def test_the_clock_names_machine_processes_and_switches(recipe):
    plain_clock = clock_text(run_identity(recipe, clips=False))
    for key, value in (("SOLVER.FUSED", True), ("TRAIN.COMPILE", True), ("NUM_GPUS", 2)):
        assert clock_text(run_identity(recipe.replaced({key: value}), clips=False)) != plain_clock
