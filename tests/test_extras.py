"""The core does not need the extras: each can be deleted, and a training imports none."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

import pytest

from slowfast_patches import extras
from slowfast_patches.config.keys_page import format_keys
from slowfast_patches.tools import installed_commands
from tests.conftest import RECIPE

ROOT = Path(__file__).parents[1]
FOLDER = Path(extras.__path__[0])
EXTRAS = sorted(path.parent.name for path in FOLDER.glob("*/__init__.py"))

IMPORT_ALL = """
import importlib, pkgutil, sys
import multigrid, slowfast_patches
from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.load_recipe import CONFIGS
from slowfast_patches.seams import import_extras

import_extras()
assert {name.split(".")[2] for name in sys.modules if ".extras." in name} == set(sys.argv[1:])
for package in (multigrid, slowfast_patches):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
for path in CONFIGS.glob("*/*.yaml"):
    load_recipe(path)
"""
ONE_EPOCH = """
import sys
from slowfast_patches.train.run import run
from slowfast_patches.config import load_recipe

run(load_recipe(sys.argv[1], sys.argv[2:]))
used = [name.split(".")[2:] for name in sys.modules if name.startswith("slowfast_patches.extras.")]
print("used:", [".".join(name) for name in used if name[1:] not in ([], ["keys"])])
"""


def copy_without(names: Iterable[str], folder: Path) -> Path:
    """Copy the tree, and delete extras from the copy."""
    others = (".*", "runs", "site", "build", "*.egg-info", "__pycache__")
    copied = folder / "copy"
    shutil.copytree(ROOT, copied, ignore=shutil.ignore_patterns(*others), symlinks=True)
    for inner in ("tools", "configs"):  # as in a wheel
        (copied / "slowfast_patches" / inner).symlink_to(copied / inner)
    own = dict[str, None]()  # what needs two extras is listed by both
    for name in names:
        own.update({f"slowfast_patches/extras/{name}": None})
        own.update(dict.fromkeys(import_module(f"slowfast_patches.extras.{name}").FILES))
    for file in own:
        path = copied / file
        assert path.exists(), path
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return copied


def run_in(folder: Path, *words: object) -> str:
    """Run Python in a copy of the tree, and return its output."""
    path = os.pathsep.join(map(str, (folder, folder / "projects")))
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, f"without {folder}: {done.stdout[-5000:]}"
    return done.stdout


@pytest.mark.extras
@pytest.mark.slow("runs on a copy without an extra")
@pytest.mark.parametrize("name", EXTRAS)
def test_without_an_extra_all_else_is_imported_and_all_recipes_load(name, tmp_path):
    left = [other for other in EXTRAS if other != name]
    run_in(copy_without([name], tmp_path), "-c", IMPORT_ALL, *left)


@pytest.mark.extras
@pytest.mark.slow("runs on a copy without an extra")
@pytest.mark.parametrize("names", [EXTRAS, *([name] for name in EXTRAS)], ids=["all", *EXTRAS])
def test_the_quick_tests_of_what_is_left_pass(names, tmp_path):
    """`make core` deletes all extras, and `make extras` deletes each alone."""
    copied = copy_without(names, tmp_path)
    quick = "not slow and not gpu and not extras"
    words = ("-n", 2, "--dist", "loadfile", "-p", "no:cacheprovider", "-m", quick, "tests")
    run_in(copied, "-m", "pytest", *words)


@pytest.mark.slow("not among the quick tests of a copy without an extra")
def test_the_page_of_all_keys_is_up_to_date():
    page = (ROOT / "docs" / "keys.md").read_text(encoding="utf-8")
    assert page == format_keys() + "\n"


@pytest.mark.slow("not among the quick tests of a copy without an extra")
def test_every_installed_command_has_a_tool():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert installed_commands().keys() == scripts.keys()


@pytest.mark.slow("starts programs")
def test_a_training_on_single_labels_imports_no_extra(tiny_data, tmp_path):
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    keys = ("DATA.PATH_TO_DATA_DIR", tiny_data, "OUTPUT_DIR", tmp_path / "run", "NUM_GPUS", 0)
    said = run_in(ROOT, "-c", ONE_EPOCH, tmp_path / "tiny.yaml", *keys)
    assert "used: []" in said.splitlines()
