"""`enable` makes an unchanged training script of a later release train our schedule.

later_release/ stands for that release: its script, and its calling conventions on PySlowFast 1.0.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch

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


def run_later(rank: int, folder: Path, arguments: list[str], enabled: bool) -> None:
    """Run the script of the later release, as a process that has imported no slowfast."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "slowfast"]:
        del sys.modules[name]
    sys.path.insert(0, str(LATER))
    sys.argv = ["run_net.py", *arguments]
    with (folder / f"{rank}.log").open("w") as log, contextlib.redirect_stdout(log):
        if enabled:
            enable()
            enable()
        runpy.run_path(str(LATER / "run_net.py"), run_name="__main__")


@pytest.fixture
def train_later(run_ranks: Callable[..., None], demo_data: Path, tmp_path: Path):
    """`train_later(name, processes, KEY, value, ...)`: run the script on a few videos.

    Returns its folder.
    """
    import_module("slowfast.utils.meters")  # for the packages that it imports, in all forks
    for split in ("train", "val", "test"):
        lines = (demo_data / f"{split}.csv").read_text().splitlines()[:VIDEOS]
        (tmp_path / f"{split}.csv").write_text("".join(f"{line}\n" for line in lines))

    def run(name: str, processes: int, *pairs: object, enabled: bool = True, start: str = ""):
        folder = tmp_path / name
        (folder / "checkpoints").mkdir(parents=True)
        if start:
            shutil.copy(tmp_path / start, folder / "checkpoints")
        data = ("DATA.PATH_TO_DATA_DIR", tmp_path, "DATA.PATH_PREFIX", demo_data)
        places = (*data, "OUTPUT_DIR", folder, "NUM_GPUS", processes)
        arguments = [RECIPE, *PAIRS, *places, *pairs]
        run_ranks(processes, run_later, folder, list(map(str, arguments)), enabled)
        return folder

    return run


def seen_in(folder: Path, rank: int = 0):
    return json.loads((folder / f"{rank}.json").read_text())


def state(folder: Path):
    """Return the tensors of the last checkpoint, as lists."""
    path = max((folder / "checkpoints").iterdir())
    return {name: t.tolist() for name, t in torch.load(path)["model_state"].items()}


@pytest.mark.slow
def test_two_processes_train_the_schedule_and_a_resumed_training_ends_with_the_same_weights(
    train_later,
):
    pairs = (*BOTH, "BN.NORM_TYPE", "sync_batchnorm")
    whole = train_later("whole", 2, *pairs)
    recipe = load_recipe(RECIPE, [*PAIRS, "NUM_GPUS", 2, *BOTH])
    steps = list(schedule_of(recipe, VIDEOS).steps())
    ranks = [seen_in(whole, rank) for rank in range(2)]
    for seen in ranks:
        for row, step in zip(seen["train"], steps, strict=True):
            shape = step.shape
            assert row["shape"] == [shape.batch // 2, shape.frames, shape.crop, shape.crop]
            assert (row["lr"], row["rates"]) == (step.lr, [step.lr / 2, step.lr])
            assert row["sizes"] == [step.bn_size]
        for what, shape, sizes in seen["eval"]:
            assert shape == [2, 8, 32, 32], "evaluations are at the baseline's shape"
            assert what != "precise BN" or sizes == [0]
    counts = Counter(video for seen in ranks for row in seen["train"] for video in row["videos"])
    assert max(counts.values()) - min(counts.values()) <= 1
    places = [row["place"] for row in ranks[0]["train"]]
    last = places[-1][0]
    assert [epoch for epoch, number, _ in places if number == 0] == list(range(last + 1))
    assert all(len([p for p in places if p[0] == epoch]) == size for epoch, _, size in places)
    assert ranks[0]["schedule"][-1] == [1, [4, 8, 32], last + 1]
    said = (whole / "0.log").read_text()
    assert "BN.NORM_TYPE sync_batchnorm is replaced" in said
    assert '"eta": "-' not in said
    assert all(int(n) <= int(of) for n, of in re.findall(r'"iter": "(\d+)/(\d+)"', said))
    again = train_later(
        "again", 2, *pairs, start=f"whole/checkpoints/checkpoint_epoch_{last:05d}.pyth"
    )
    assert seen_in(again)["train"][0]["place"][:2] == [last, 0]
    assert state(again) == state(whole)


@pytest.mark.slow
def test_without_a_cycle_nothing_changes(train_later):
    pairs = (*NONE, "SOLVER.MAX_EPOCH", 1, "SOLVER.STEPS", [0])
    ours, theirs = (train_later(str(on), 1, *pairs, enabled=on) for on in (True, False))
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


NAMES = (
    *("config.defaults.get_cfg", "utils.multigrid.MultigridSchedule", "models.build.build_model"),
    *("datasets.loader.construct_loader", "datasets.loader.shuffle_dataset"),
    *("models.optimizer.get_epoch_lr", "models.optimizer.set_lr"),
    "utils.misc.aggregate_sub_bn_stats",
)


@pytest.mark.slow
def test_the_module_enables_multigrid_in_a_script_and_its_processes(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    for name in NAMES:
        *folders, module, function = ("slowfast", *name.split("."))
        folder = tmp_path.joinpath(*folders)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{module}.py").open("a") as file:
            file.write(f"def {function}(): ...\n")
    (tmp_path / "slowfast" / "__init__.py").touch()
    command = [sys.executable, "-m", "multigrid.integrations.pyslowfast", tmp_path / "script.py"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, tmp_path / "seen", "--cfg"], env=environment, check=True)
    assert (tmp_path / "seen").read_text() == "script _Fork --cfg\nchild _Fork --cfg\n"


def test_a_pyslowfast_without_one_of_the_names_is_refused():
    with pytest.raises(ImportError, match=r"no slowfast\.utils\.multigrid\.MultigridSchedule"):
        enable()
