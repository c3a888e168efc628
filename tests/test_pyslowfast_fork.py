"""`enable` makes an unchanged training script of a later release train our schedule.

later_release/ stands for that release: its script, and its calling conventions on PySlowFast 1.0.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch.multiprocessing.spawn import ProcessRaisedException

from multigrid import ScheduleStep, Shape
from multigrid.integrations.pyslowfast import _mistake_in as mistake_in
from multigrid.integrations.pyslowfast import enable
from multigrid.integrations.pyslowfast_arguments import check_arguments, explained_options
from multigrid.integrations.pyslowfast_tools import provide_private_package
from slowfast_patches.config import load_recipe
from slowfast_patches.plan.recipe_schedule import schedule_of

LATER = Path(__file__).parent / "later_release"
TOOLS = LATER / "tools"
RECIPE = Path(__file__).parents[1] / "examples" / "pyslowfast_demo.yaml"
VIDEOS = 8
BOTH = (
    *("MULTIGRID.LONG_CYCLE", True, "MULTIGRID.SHORT_CYCLE", True),
    *("MULTIGRID.LONG_CYCLE_FACTORS", [[0.5, 0.71], [1.0, 1.0]]),
)
DRAWS = ("MODEL.DROPOUT_RATE", 0.5, "MIXUP.ENABLE", True, "BN.USE_PRECISE_STATS", True)
"""Keys of what draws random numbers in the training loop."""
NONE = ("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False)
PAIRS = (
    *("TRAIN.BATCH_SIZE", 4, "MULTIGRID.BN_BASE_SIZE", 4, "SOLVER.MAX_EPOCH", 10),
    *("SOLVER.STEPS", [0, 7], "RESNET.NUM_BLOCK_TEMP_KERNEL", [[1, 1]] * 4, "LOG_PERIOD", 1),
    *("TEST.BATCH_SIZE", 4, "DATA.TEST_CROP_SIZE", 32, "DATA_LOADER.NUM_WORKERS", 0),
)


def run_later(rank: int, runs: list[list[object]], is_enabled: bool) -> None:
    """Run the script of the later release, as a process that has imported no slowfast.

    It runs once with each list of arguments, whose last one is the output folder.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] == "slowfast"]:
        del sys.modules[name]
    sys.path[:0] = [str(LATER), str(TOOLS)]
    provide_private_package(TOOLS)
    if is_enabled:
        enable()
        enable()
    for arguments in runs:
        sys.argv = ["run_net.py", *map(str, arguments)]
        log = Path(str(arguments[-1]), f"{rank}.log")
        with log.open("w") as file, contextlib.redirect_stdout(file):
            runpy.run_path(str(TOOLS / "run_net.py"), run_name="__main__")


@pytest.fixture
def data_pairs(tiny_data: Path, tmp_path: Path) -> tuple[object, ...]:
    """Return config pairs of a data set of a few videos."""
    for split in ("train", "val", "test"):
        lines = (tiny_data / f"{split}.csv").read_text().splitlines()[:VIDEOS]
        (tmp_path / f"{split}.csv").write_text("".join(f"{line}\n" for line in lines))
    return ("DATA.PATH_TO_DATA_DIR", tmp_path, "DATA.PATH_PREFIX", tiny_data)


@pytest.fixture
def train_later(
    run_ranks: Callable[..., None], data_pairs: tuple[object, ...], tmp_path: Path
) -> Callable[..., None]:
    """Return `train_later(processes, {name: pairs, ...})`, which runs the script.

    It trains with each of the pairs, one after the other, in a folder of the name.
    """
    import_module("slowfast.utils.meters")  # for the packages that it imports, in all forks

    def run(
        processes: int, trainings: dict[str, tuple[object, ...]], is_enabled: bool = True
    ) -> None:
        runs = list[list[object]]()
        for name, pairs in trainings.items():
            (tmp_path / name / "checkpoints").mkdir(parents=True, exist_ok=True)
            opts = [*PAIRS, *data_pairs, "NUM_GPUS", processes, *pairs]
            runs.append(["--cfg", RECIPE, "--opts", *opts, "OUTPUT_DIR", tmp_path / name])
        run_ranks(processes, run_later, runs, is_enabled)

    return run


def seen_in(folder: Path, rank: int = 0):
    return json.loads((folder / f"{rank}.json").read_text())


def state(folder: Path):
    """Return the tensors of the last checkpoint, as lists."""
    path = max((folder / "checkpoints").iterdir())
    return {name: t.tolist() for name, t in torch.load(path)["model_state"].items()}


def steps_of(*pairs: object) -> list[ScheduleStep]:
    """Return the steps of the schedule that the trainer of this repository would train."""
    recipe = load_recipe(RECIPE, [*PAIRS, *pairs])
    return list(schedule_of(recipe, VIDEOS).steps())


def resume(folder: Path, copy: Path, epoch: int) -> None:
    """Copy the checkpoint of an epoch to the folder of a new training."""
    (copy / "checkpoints").mkdir(parents=True)
    shutil.copy(folder / f"checkpoints/checkpoint_epoch_{epoch:05d}.pyth", copy / "checkpoints")


@pytest.mark.slow("starts processes")
def test_two_processes_train_the_schedule_and_a_resumed_training_ends_with_the_same_weights(
    train_later, tmp_path
):
    """With dropout, mixup and precise BN, which draw from the global random generators."""
    whole, again = tmp_path / "whole", tmp_path / "again"
    pairs = (*BOTH, *DRAWS, "BN.NORM_TYPE", "sync_batchnorm")
    train_later(2, {"whole": pairs})
    steps = steps_of("NUM_GPUS", 2, *BOTH)
    ranks = [seen_in(whole, rank) for rank in range(2)]
    for seen in ranks:
        for row, step in zip(seen["train"], steps, strict=True):
            batch, *sides = row["shape"]
            assert Shape(batch * 2, *sides[:2]) == step.shape
            assert (row["rates"], row["sizes"]) == ([step.lr / 2, step.lr], [step.bn_group_size])
        for what, shape, sizes in seen["eval"]:
            assert shape == [2, 8, 32, 32], "evaluations are at the baseline's shape"
            assert what != "precise BN" or sizes == [0]
        assert seen["steps"] == list(range(len(steps))), "TensorBoard counts iterations"
    assert {what for what, *_ in ranks[0]["eval"]} == {"precise BN", "val"}
    places = [row["place"] for row in ranks[0]["train"]]
    last = places[-1][0]
    assert [epoch for epoch, number, _ in places if number == 0] == list(range(last + 1))
    assert all(len([p for p in places if p[0] == epoch]) == size for epoch, _, size in places)
    assert ranks[0]["schedule"][-1] == [1, [4, 8, 32], last + 1]
    assert "BN.NORM_TYPE sync_batchnorm is replaced" in (whole / "0.log").read_text()
    epoch = last // 2
    resume(whole, again, epoch)
    train_later(2, {"again": pairs})
    rest = [row for row in ranks[0]["train"] if row["place"][0] >= epoch]
    assert seen_in(again)["train"] == rest
    assert state(again) == state(whole)


@pytest.mark.slow("the quick tests have a case like it")
def test_without_a_cycle_nothing_changes(train_later, tmp_path):
    pairs = (*NONE, "SOLVER.MAX_EPOCH", 1, "SOLVER.STEPS", [0])
    train_later(1, {"off": pairs}, is_enabled=False)
    train_later(1, {"on": pairs})
    theirs, ours = tmp_path / "off", tmp_path / "on"
    assert seen_in(ours) == seen_in(theirs)
    assert state(ours) == state(theirs)


@pytest.mark.slow("the quick tests have a case like it")
def test_two_recipes_in_one_process_train_as_each_would_alone(train_later, tmp_path):
    """Also a recipe without a cycle after one with both."""
    other = (*BOTH, "TRAIN.BATCH_SIZE", 2, "MULTIGRID.BN_BASE_SIZE", 2)
    off = (*NONE, "SOLVER.MAX_EPOCH", 1, "SOLVER.STEPS", [0])
    train_later(1, {"first": BOTH, "second": other, "third": off})
    train_later(1, {"alone": other})
    assert seen_in(tmp_path / "second") == seen_in(tmp_path / "alone")
    assert state(tmp_path / "second") == state(tmp_path / "alone")
    seen = seen_in(tmp_path / "third")
    rows = [(row["shape"], row["sizes"]) for row in seen["train"]]
    assert rows == [([4, 8, 32, 32], [-1])] * 2, "the baseline, with layers that are not converted"
    assert seen["schedule"] is None


@pytest.mark.slow("the quick tests have a case like it")
def test_stages_train_without_a_cycle(train_later, tmp_path):
    """The script starts multigrid by the keys of the cycles."""
    rows = [
        {"shape": [8, 4, 16], "until": 2, "rate": 0.02},
        {"shape": [[8, 4, 32], [4, 8, 32]], "until": 4, "rate": [0.01, 0], "bn_group_size": 2},
    ]
    pairs = (*NONE, "MULTIGRID.STAGES", rows, "SOLVER.MAX_EPOCH", 4)
    train_later(1, {"stages": pairs})
    seen = seen_in(tmp_path / "stages")
    for row, step in zip(seen["train"], steps_of(*pairs), strict=True):
        assert Shape(*row["shape"][:3]) == step.shape
        assert row["rates"] == [step.lr / 2, step.lr]
        assert row["sizes"] == [step.bn_group_size]
    assert {what for what, *_ in seen["eval"]} == {"val"}


@pytest.mark.slow("trains for seconds")
def test_an_mvit_trains_the_schedule_and_learns(train_later, tmp_path):
    """Its crops are multiples of 8: patches of 4 pixels, and pools of 2 patches."""
    pairs = (*BOTH, "MODEL.ARCH", "mvit", "DATA.INPUT_CHANNEL_NUM", [3])
    rate = ("SOLVER.BASE_LR", 0.05, "SOLVER.MAX_EPOCH", 40, "SOLVER.STEPS", [0, 32])
    train_later(1, {"mvit": (*pairs, *rate)})
    seen = seen_in(tmp_path / "mvit")
    keys = ("MULTIGRID.SIZE_DIVISOR", 8)
    steps = steps_of(*BOTH, *rate, *keys)
    assert {step.shape.crop for step in steps} == {16, 24, 32}
    for row, step in zip(seen["train"], steps, strict=True):
        assert Shape(*row["shape"][:3]) == step.shape
        assert row["rates"] == [step.lr / 2, step.lr]
    losses = [row["loss"] for row in seen["train"]]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


# --- the command


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "SCRIPT is tools/run_net.py"),
        (["gone/run_net.py", "--cfg", "a.yaml"], "no script gone/"),
    ],
)
def test_the_command_names_a_script_that_is_missing(
    words: list[str], told: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "argv", ["-m", *words])
    monkeypatch.delitem(sys.modules, "multigrid.integrations.pyslowfast")
    with pytest.raises(SystemExit, match=told) as ended:
        runpy.run_module("multigrid.integrations.pyslowfast", run_name="__main__")
    assert "usage: python -m multigrid.integrations.pyslowfast SCRIPT" in ended.value.code


def start_later(rank: int, script: str, arguments: list[object], told: Path) -> None:
    """Run a script of the later release by the command, and write how the command ends to `told`.

    It runs in a process that has imported no slowfast.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] == "slowfast"]:
        del sys.modules[name]
    sys.path.insert(0, str(LATER))
    sys.argv = ["-m", str(TOOLS / script), *map(str, arguments)]
    with (told.parent / "log").open("w") as log, contextlib.redirect_stdout(log):
        try:
            runpy.run_module("multigrid.integrations.pyslowfast", run_name="__main__")
            told.write_text("no error")
        except SystemExit as end:
            told.write_text(str(end.code))


@pytest.fixture
def start(run_ranks: Callable[..., None], data_pairs: tuple[object, ...], tmp_path: Path):
    """Return `start(script, pairs, opts)`, which returns how the command ends."""
    import_module("slowfast.utils.meters")

    def run(script: str, pairs: tuple[object, ...], opts: str = "--opts") -> str:
        output = ("OUTPUT_DIR", tmp_path / "run")
        arguments = ["--cfg", RECIPE, opts, *PAIRS, *data_pairs, *output, *pairs]
        told = tmp_path / "told"
        run_ranks(1, start_later, script, [word for word in arguments if word != ""], told)
        return told.read_text()

    return run


@pytest.mark.slow("starts programs")
@pytest.mark.parametrize("script", ["run_net.py", "train_net.py"])
def test_the_command_trains_and_tests(script, start, tmp_path):
    """run_net.py imports a private package. train_net.py only has functions."""
    assert start(script, BOTH) == "no error"
    shapes = [row["shape"] for row in seen_in(tmp_path / "run")["train"]]
    assert [Shape(*shape[:3]) for shape in shapes] == [step.shape for step in steps_of(*BOTH)]
    assert json.loads((tmp_path / "run" / "test.json").read_text()) == [4, 8, 32, 32]


@pytest.mark.slow("starts programs")
@pytest.mark.parametrize(
    ("pairs", "opts", "message"),
    [
        (NONE, "--opts", r"error: MULTIGRID\.LONG_CYCLE and .* would train the baseline\. Add "),
        (
            BOTH,
            "",
            r"error: there is no config file TRAIN\.BATCH_SIZE.*: --cfg \S+ --opts TRAIN\.B",
        ),
        (
            (*BOTH, "SOLVER.LARS_ON", True, "DATA.LOADER_CHUNK_SIZE", 9),
            "--opts",
            r"error: multigrid cannot train with DATA\.LOADER_CHUNK_SIZE 9: .*LARS_ON True: ",
        ),
    ],
    ids=["no cycle", "no --opts", "refused keys"],
)
def test_the_command_refuses_what_would_not_train_multigrid(pairs, opts, message, start, tmp_path):
    assert re.match(message, start("run_net.py", pairs, opts))
    assert not (tmp_path / "run" / "0.json").exists(), "nothing is trained"


@pytest.mark.slow("trains for seconds")
@pytest.mark.parametrize("cycles", [NONE, (*BOTH, "SOLVER.LARS_ON", True)], ids=["off", "on"])
def test_the_command_tests_a_model_with_any_keys(cycles, start, tmp_path):
    assert start("train_net.py", (*cycles, "TRAIN.ENABLE", False)) == "no error"
    assert json.loads((tmp_path / "run" / "test.json").read_text()) == [4, 8, 32, 32]


SCRIPT = """
import sys
from multiprocessing import get_context
from slowfast.models.build import build_model
from vision.fair.slowfast.tools.helper import note

if __name__ == "__main__":
    note("script", sys.argv)
    child = get_context("spawn").Process(target=note, args=("child", sys.argv))
    child.start()
    child.join()
"""

HELPER = """
import sys

def note(name, argv):
    build_model = sys.modules["slowfast.models.build"].build_model
    with open(argv[1], "a") as file:
        print(name, type(build_model.__self__).__name__, *argv[2:], file=file)
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


@pytest.mark.slow("starts programs")
def test_the_module_enables_multigrid_in_a_script_and_its_processes(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "slowfast").mkdir()
    (tmp_path / "slowfast" / "__init__.py").write_text(FAKE)
    command = [sys.executable, "-m", "multigrid.integrations.pyslowfast", tmp_path / "script.py"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run([*command, tmp_path / "seen", "--cfg"], env=environment, check=True)
    assert (tmp_path / "seen").read_text() == "script _Fork --cfg\nchild _Fork --cfg\n"


def test_a_pyslowfast_without_one_of_the_names_is_refused():
    with pytest.raises(ImportError, match=r"no slowfast\.utils\.multigrid\.MultigridSchedule"):
        enable()


def test_a_package_that_pyslowfast_needs_is_named():
    missing = ModuleNotFoundError("No module named 'pytorchvideo'", name="pytorchvideo")
    with (
        mock.patch("multigrid.integrations.pyslowfast_fork.resolve_name", side_effect=missing),
        pytest.raises(ImportError, match=r"there is no module pytorchvideo\. Install it"),
    ):
        enable()


def test_a_parser_without_opts_gets_the_line_without_it(capsys):
    """As in the releases of 2020."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cfg", dest="cfg_file")
    parser.add_argument("opts", nargs=argparse.REMAINDER)
    words = ["run_net.py", "--cfg", "a.yaml", "--opts", "MULTIGRID.LONG_CYCLE", "True"]
    with pytest.raises(SystemExit), explained_options(words):
        parser.parse_args(words[1:])
    assert "write: --cfg a.yaml MULTIGRID.LONG_CYCLE True\n" in capsys.readouterr().err
    with explained_options(words):
        check_arguments(parser.parse_args([*words[1:3], *words[4:]]))


def test_a_mistake_in_a_spawned_process_is_told_in_a_line():
    told = "Traceback (most recent call last):\n ...\nmultigrid.errors.MultigridError: Too short.\n"
    assert mistake_in(ProcessRaisedException(told, 0, 1)) == "Too short."
    assert mistake_in(ProcessRaisedException("RuntimeError: out of memory", 0, 1)) is None
