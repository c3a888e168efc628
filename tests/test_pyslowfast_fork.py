"""`enable` makes an unchanged training script of a later release train our schedule.

later_release/ stands for that release: its script, and its calling conventions on PySlowFast 1.0.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch

from multigrid import Shape
from multigrid.integrations.pyslowfast import enable
from slowfast_patches.config import load_recipe
from slowfast_patches.plan.recipe_schedule import schedule_of

LATER = Path(__file__).parent / "later_release"
RECIPE = Path(__file__).parents[1] / "examples" / "pyslowfast_loop.yaml"
VIDEOS = 8
BOTH = (
    *("MULTIGRID.LONG_CYCLE", True, "MULTIGRID.SHORT_CYCLE", True),
    *("MULTIGRID.LONG_CYCLE_FACTORS", [[0.5, 0.71], [1.0, 1.0]]),
)
NONE = ("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False)
PAIRS = (
    *("TRAIN.BATCH_SIZE", 4, "MULTIGRID.BN_BASE_SIZE", 4, "SOLVER.MAX_EPOCH", 10),
    *("SOLVER.STEPS", [0, 7], "RESNET.NUM_BLOCK_TEMP_KERNEL", [[1, 1]] * 4, "LOG_PERIOD", 1),
    *("TEST.BATCH_SIZE", 4, "DATA.TEST_CROP_SIZE", 32, "DATA_LOADER.NUM_WORKERS", 0),
)


def run_later(rank: int, folders: list[Path], arguments: list[object], enabled: list[bool]) -> None:
    """Run the script of the later release, as a process that has imported no slowfast.

    It runs once in each folder, with multigrid enabled or not.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] == "slowfast"]:
        del sys.modules[name]
    sys.path.insert(0, str(LATER))
    for folder, is_enabled in zip(folders, enabled, strict=True):
        sys.argv = ["run_net.py", *map(str, arguments), "OUTPUT_DIR", str(folder)]
        with (folder / f"{rank}.log").open("w") as log, contextlib.redirect_stdout(log):
            if is_enabled:
                enable()
                enable()
            runpy.run_path(str(LATER / "run_net.py"), run_name="__main__")


@pytest.fixture
def train_later(run_ranks: Callable[..., None], demo_data: Path, tmp_path: Path):
    """Return `train_later(processes, names, KEY, value, ...)`, which runs the script.

    It trains on a few videos, in a folder of each name.
    """
    import_module("slowfast.utils.meters")  # for the packages that it imports, in all forks
    for split in ("train", "val", "test"):
        lines = (demo_data / f"{split}.csv").read_text().splitlines()[:VIDEOS]
        (tmp_path / f"{split}.csv").write_text("".join(f"{line}\n" for line in lines))

    def run(processes: int, names: list[str], *pairs: object) -> None:
        folders = [tmp_path / name for name in names]
        for folder in folders:
            (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        data = ("DATA.PATH_TO_DATA_DIR", tmp_path, "DATA.PATH_PREFIX", demo_data)
        arguments = [RECIPE, *PAIRS, *data, "NUM_GPUS", processes, *pairs]
        run_ranks(processes, run_later, folders, arguments, [name != "off" for name in names])

    return run


def seen_in(folder: Path, rank: int = 0):
    return json.loads((folder / f"{rank}.json").read_text())


def state(folder: Path):
    """Return the tensors of the last checkpoint, as lists."""
    path = max((folder / "checkpoints").iterdir())
    return {name: t.tolist() for name, t in torch.load(path)["model_state"].items()}


@pytest.mark.slow
def test_two_processes_train_the_schedule_and_a_resumed_training_ends_with_the_same_weights(
    train_later, tmp_path
):
    whole, again = tmp_path / "whole", tmp_path / "again"
    pairs = (*BOTH, "BN.NORM_TYPE", "sync_batchnorm")
    train_later(2, ["whole"], *pairs)
    recipe = load_recipe(RECIPE, [*PAIRS, "NUM_GPUS", 2, *BOTH])
    steps = list(schedule_of(recipe, VIDEOS).steps())
    ranks = [seen_in(whole, rank) for rank in range(2)]
    for seen in ranks:
        for row, step in zip(seen["train"], steps, strict=True):
            batch, *sides = row["shape"]
            assert Shape(batch * 2, *sides[:2]) == step.shape
            assert (row["rates"], row["sizes"]) == ([step.lr / 2, step.lr], [step.bn_size])
        for what, shape, sizes in seen["eval"]:
            assert shape == [2, 8, 32, 32], "evaluations are at the baseline's shape"
            assert what != "precise BN" or sizes == [0]
    places = [row["place"] for row in ranks[0]["train"]]
    last = places[-1][0]
    assert [epoch for epoch, number, _ in places if number == 0] == list(range(last + 1))
    assert all(len([p for p in places if p[0] == epoch]) == size for epoch, _, size in places)
    assert ranks[0]["schedule"][-1] == [1, [4, 8, 32], last + 1]
    assert "BN.NORM_TYPE sync_batchnorm is replaced" in (whole / "0.log").read_text()
    (again / "checkpoints").mkdir(parents=True)
    shutil.copy(whole / f"checkpoints/checkpoint_epoch_{last:05d}.pyth", again / "checkpoints")
    train_later(2, ["again"], *pairs)
    assert seen_in(again)["train"][0]["place"][:2] == [last, 0]
    assert state(again) == state(whole)


@pytest.mark.slow
def test_without_a_cycle_nothing_changes(train_later, tmp_path):
    train_later(1, ["off", "on"], *NONE, "SOLVER.MAX_EPOCH", 1, "SOLVER.STEPS", [0])
    theirs, ours = tmp_path / "off", tmp_path / "on"
    assert seen_in(ours) == seen_in(theirs)
    assert state(ours) == state(theirs)


SCRIPT = """
import sys
from multiprocessing import get_context
from slowfast.models.build import build_model

def note(name):
    with open(sys.argv[1], "a") as file:
        print(name, type(build_model.__self__).__name__, *sys.argv[2:], file=file)

if __name__ == "__main__":
    note("script")
    child = get_context("spawn").Process(target=note, args=("child",))
    child.start()
    child.join()
"""


FAKE = """
from sys import modules
from types import ModuleType

for name in (
    "config.defaults.get_cfg", "utils.multigrid.MultigridSchedule", "models.build.build_model",
    "datasets.loader.construct_loader", "datasets.loader.shuffle_dataset",
    "models.optimizer.get_epoch_lr", "models.optimizer.set_lr", "utils.misc.aggregate_sub_bn_stats",
):
    *folders, function = ("slowfast", *name.split("."))
    for end in range(2, len(folders) + 1):
        modules.setdefault(".".join(folders[:end]), ModuleType(folders[end - 1]))
    setattr(modules[".".join(folders)], function, lambda: None)
"""


@pytest.mark.slow
def test_the_module_enables_multigrid_in_a_script_and_its_processes(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "slowfast").mkdir()
    (tmp_path / "slowfast" / "__init__.py").write_text(FAKE)
    command = [sys.executable, "-m", "multigrid.integrations.pyslowfast", tmp_path / "script.py"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run([*command, tmp_path / "seen", "--cfg"], env=environment, check=True)
    assert (tmp_path / "seen").read_text() == "script _Fork --cfg\nchild _Fork --cfg\n"


def test_a_pyslowfast_without_one_of_the_names_is_refused():
    with pytest.raises(ImportError, match=r"no slowfast\.utils\.multigrid\.MultigridSchedule"):
        enable()
