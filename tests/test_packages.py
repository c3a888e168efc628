"""Both wheels: what they contain, and the package's programs away from the checkout."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
METHOD = ROOT / "projects" / "multigrid"
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"

pytestmark = pytest.mark.slow("builds wheels")


@pytest.fixture
def unpacked(tmp_path: Path) -> Callable[[Path], Path]:
    """Return `unpacked(source)`: a folder with the files of the wheel of a source tree."""

    def build(source: Path) -> Path:
        others = ("runs", "docs", "tests", "benchmarks", "build", "*.egg-info", "__pycache__", ".*")
        copied, folder = tmp_path / "source", tmp_path / "installed"
        shutil.copytree(source, copied, ignore=shutil.ignore_patterns(*others))
        subprocess.run(
            [sys.executable, "-c", BUILD, tmp_path],
            cwd=copied,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (wheel,) = tmp_path.glob("*.whl")
        ZipFile(wheel).extractall(folder)
        return folder

    return build


def missing(folder: Path, installed: Path) -> set[str]:
    """Return the files of a folder that are not installed: all but Python's need setup.py."""
    files = {path.relative_to(folder) for path in folder.rglob("*.*") if path.suffix != ".pyc"}
    return {str(file) for file in files if not (installed / file).exists()}


def test_the_method_is_whole_and_needs_torch_and_numpy_only(unpacked):
    installed = unpacked(METHOD)
    assert missing(METHOD, installed / "multigrid") == {"README.md", "pyproject.toml"}
    (metadata,) = installed.glob("*.dist-info/METADATA")
    needed = re.findall(r"^Requires-Dist: (\w+)[^;\n]*$", metadata.read_text(), re.MULTILINE)
    assert set(needed) == {"torch", "numpy"}


PROGRAMS = """
import sys
from pathlib import Path
import slowfast_patches, multigrid
from slowfast_patches.tools import main

assert all(Path(one.__file__).is_relative_to(sys.path[1]) for one in (slowfast_patches, multigrid))
recipe = ["--cfg", "configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml"]
keys = f'''DATA.PATH_TO_DATA_DIR {sys.argv[1]} SOLVER.MAX_EPOCH 3 SOLVER.STEPS [0,2]
    TRAIN.BATCH_SIZE 2 SOLVER.WARMUP_EPOCHS 0 BN.USE_PRECISE_STATS False TEST.ENABLE False
    MULTIGRID.EVAL_FREQ 0 TRAIN.EVAL_PERIOD 100 DATA_LOADER.NUM_WORKERS 0
    DATA.TRAIN_CROP_SIZE 32'''.split()
for command in (
    ["multigrid-plan", *recipe, "--dataset-size", "640"],
    ["multigrid-train", *recipe, *keys],
    ["multigrid-predict", "--checkpoint", "words-slowfast", f"{sys.argv[1]}/test/down_0000.mp4"],
):
    sys.argv = command
    assert main() == 0
"""


def test_the_package_plans_trains_and_predicts_from_an_empty_folder(unpacked, tiny_data, tmp_path):
    installed = unpacked(ROOT)
    assert not missing(ROOT / "slowfast_patches", installed / "slowfast_patches")
    assert not missing(ROOT / "configs", installed / "slowfast_patches" / "configs")
    (points,) = installed.glob("*.dist-info/entry_points.txt")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(re.findall(r"^(\S+) = slowfast_patches", points.read_text(), re.MULTILINE)) == {
        *scripts
    }
    folder = tmp_path / "empty"
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS, tiny_data],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"iterations +710 +2,400", done.stdout)
    assert re.search(r"phase 1 of \d+: iterations 0 to \d+: \d+×4×", done.stderr + done.stdout)
    assert (folder / "runs/demo/SLOWFAST_DEMO_MULTIGRID/result.json").is_file()
    assert " %  " in done.stdout
