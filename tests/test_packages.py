"""Both wheels, each installed into an environment of its own, away from the checkout."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from functools import cache
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

ROOT = Path(__file__).parents[1]
METHOD = ROOT / "projects" / "multigrid"
PIP = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check"]
OFFLINE = ["--no-index", "--no-deps"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """`build(source)`: the wheel of a source tree, beside the copy that it was built of; once."""
    return cache(lambda source: build_in(source, tmp_path_factory.mktemp("wheel")))


def build_in(source: Path, folder: Path) -> Path:
    """The wheel of a copy, since building leaves files in it."""
    others = ("runs", "docs", "tests", "benchmarks", "build", "*.egg-info", "__pycache__", ".*")
    shutil.copytree(source, folder / "source", ignore=shutil.ignore_patterns(*others))
    options = [*OFFLINE, "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*PIP, "wheel", "--quiet", *options, str(folder / "source")], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """The programs of a new environment with this wheel, and the tests' own for all else."""
    venv.create(folder, symlinks=True)
    programs = folder / "bin"
    (packages,) = folder.glob("lib/python3*/site-packages")
    # A path in a .pth file is only added: the editable installation in that folder is not found.
    (packages / "others.pth").write_text(str(Path(torch.__file__).parents[1]))
    target = [*PIP, "--python", str(programs / "python"), "install", "--quiet", *OFFLINE]
    subprocess.run([*target, str(wheel)], check=True)
    return programs


def missing(wheel: Path, folder: Path, root: Path, package: str = "") -> set[str]:
    """Files of a folder that are not in the wheel: those that are not Python need setup.py."""
    files = [path for path in folder.rglob("*.*") if path.suffix != ".pyc"]
    with ZipFile(wheel) as archive:
        return {f"{package}{path.relative_to(root)}" for path in files} - set(archive.namelist())


def run(folder: Path, *command: object) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    words = list(map(str, command))
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)


def test_the_method_is_whole_without_the_package(build, tmp_path):
    wheel = build(METHOD)
    python = install(wheel, tmp_path / "environment") / "python"
    others = {"multigrid/README.md", "multigrid/pyproject.toml"}
    assert missing(wheel, METHOD, METHOD.parent) == others
    project = tomllib.loads((METHOD / "pyproject.toml").read_text())["project"]
    assert {re.match(r"\w+", name)[0] for name in project["dependencies"]} == {"torch", "numpy"}
    assert run(tmp_path / "empty", python, "-c", "import slowfast_patches").returncode == 1
    done = run(tmp_path / "empty", python, "-c", "import multigrid as mg; print(mg.__file__)")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout).is_relative_to(tmp_path)


def test_the_package_plans_and_trains_one_of_its_recipes_from_an_empty_folder(build, tmp_path):
    wheel = build(ROOT)
    programs = install(wheel, tmp_path / "environment")
    assert not missing(wheel, ROOT / "slowfast_patches", ROOT)
    assert not missing(wheel, ROOT / "configs", ROOT, "slowfast_patches/")
    recipe = ("--cfg", "configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml")
    plan = run(tmp_path / "empty", programs / "multigrid-plan", *recipe, "--dataset-size", 640)
    assert plan.returncode == 0, plan.stderr
    assert re.search(r"iterations +710 +2,400", plan.stdout)
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert all((programs / name).is_file() for name in scripts)

    small = ("--train", 24, "--val", 8, "--test", 8, "--frames", 24)
    made = run(tmp_path / "empty", programs / "multigrid-demo-data", "--output", "data", *small)
    assert made.returncode == 0, made.stderr
    keys = ("DATA.PATH_TO_DATA_DIR", "data", "SOLVER.MAX_EPOCH", 3, "SOLVER.STEPS", "[0, 2]")
    keys += ("TRAIN.BATCH_SIZE", 2, "SOLVER.WARMUP_EPOCHS", 0, "BN.USE_PRECISE_STATS", False)
    keys += ("TEST.ENABLE", False, "MULTIGRID.EVAL_FREQ", 0, "TRAIN.EVAL_PERIOD", 100)
    trained = run(tmp_path / "empty", programs / "multigrid-train", *recipe, *keys)
    assert trained.returncode == 0, trained.stderr
    assert re.search(
        r"phase 1 of \d+: iterations 0 to \d+: \d+×4×", trained.stderr + trained.stdout
    )
    assert (tmp_path / "empty" / "runs/demo/SLOWFAST_DEMO_MULTIGRID/result.json").is_file()

    video = next((tmp_path / "empty" / "data" / "test").rglob("*.mp4"))
    predict = (programs / "multigrid-predict", "--checkpoint", "words-slowfast", video)
    assert " %  " in run(tmp_path / "empty", *predict).stdout
