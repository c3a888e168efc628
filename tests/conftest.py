"""Fixtures shared by all tests: a tiny data set, a tiny recipe, and runs of the recipe.

Slow packages are imported inside functions, because the controller process of pytest-xdist (-n)
loads this file as well.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from subprocess import Popen
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from filelock import FileLock

if TYPE_CHECKING:
    from slowfast_patches.config.recipe import Recipe
    from slowfast_patches.train.trainer import Hook

# What is tested here must not depend on the number of cores; torch and runs read the variable.
os.environ["OMP_NUM_THREADS"] = "1"
# A shell has jobs in the background ignore it, and so would what the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore = ["later_release"]  # stands in for PySlowFast, whose tools have a file test_net.py

RUN_NET = Path(__file__).parents[1] / "tools" / "run_net.py"

# Files that take longest, which go first: at the end, one of them would keep one core alone.
LONG = (
    "test_slurm.py",
    "test_faults.py",
    "test_training.py",
    "test_examples.py",
    "test_packages.py",
    "test_loops.py",
    "test_distributed.py",
    "test_reproduce.py",
    "test_clip_reader.py",
    "test_equivalence.py",
    "test_stops.py",
    "test_launch.py",
)


# Reasons why tests in these folders, or with these fixtures, are slow.
SLOW_FOLDERS = {"benchmarks": "measures"}
SLOW_FIXTURES = {
    "cluster": "starts a SLURM cluster",
    "command_line": "trains for seconds",
    "multigrid_run": "trains for seconds",
    "start_python": "starts processes",
    "train": "trains for seconds",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        reasons = [SLOW_FOLDERS.get(item.path.parent.name)]
        values = getattr(getattr(item, "callspec", None), "params", {})  # these are no fixtures
        names = (name for name in getattr(item, "fixturenames", ()) if name not in values)
        reasons += map(SLOW_FIXTURES.get, names)
        for reason in filter(None, reasons):
            item.add_marker(pytest.mark.slow(reason))
        if any(not mark.args for mark in item.iter_markers("slow")):
            raise pytest.UsageError(f'{item.nodeid}: say why it is slow: @pytest.mark.slow("why")')
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONG)))


# 24 videos, two epochs of stage one and one of fine-tuning: 64, 32 and 16 clips in the first phase,
# and every phase but the last ends in the middle of an epoch. Without ZERO_INIT_FINAL_BN, so thin a
# network on groups of 4 clips turns rounding errors into per cents within ten iterations. With the
# temporal kernels in the first block of a stage alone, it may have as little as one (`one_block`).
RECIPE = """
TRAIN: {ENABLE: True, DATASET: kinetics, BATCH_SIZE: 4, EVAL_PERIOD: 1,
        CHECKPOINT_PERIOD: 4}
TEST: {ENABLE: True, DATASET: kinetics, BATCH_SIZE: 8, NUM_ENSEMBLE_VIEWS: 2, NUM_SPATIAL_CROPS: 1}
DATA: {NUM_FRAMES: 8, SAMPLING_RATE: 2, TRAIN_JITTER_SCALES: [36, 40], TRAIN_CROP_SIZE: 32,
       TEST_CROP_SIZE: 32}
SLOWFAST: {ALPHA: 2, BETA_INV: 4, FUSION_KERNEL_SZ: 3}
RESNET: {WIDTH_PER_GROUP: 8, ZERO_INIT_FINAL_BN: True,
         SPATIAL_STRIDES: [[1, 1], [2, 2], [2, 2], [2, 2]],
         SPATIAL_DILATIONS: [[1, 1], [1, 1], [1, 1], [1, 1]],
         NUM_BLOCK_TEMP_KERNEL: [[1, 1], [1, 1], [1, 1], [1, 1]]}
NONLOCAL: {LOCATION: [[[], []], [[], []], [[], []], [[], []]],
           GROUP: [[1, 1], [1, 1], [1, 1], [1, 1]]}
BN: {USE_PRECISE_STATS: True, NUM_BATCHES_PRECISE: 2}
SOLVER: {BASE_LR: 0.01, LR_POLICY: steps_with_relative_lrs, STEPS: [0, 4], LRS: [1, 0.1],
         MAX_EPOCH: 6, WARMUP_EPOCHS: 0.5, WARMUP_START_LR: 0.002, MOMENTUM: 0.9}
MODEL: {NUM_CLASSES: 8, ARCH: slowfast, DROPOUT_RATE: 0.5}
MULTIGRID: {LONG_CYCLE: True, SHORT_CYCLE: True, BN_BASE_SIZE: 4, EVAL_FREQ: 1, EPOCH_FACTOR: 2.0}
DATA_LOADER: {NUM_WORKERS: 1, PIN_MEMORY: False}
NUM_GPUS: 0
LOG_PERIOD: 1
"""


# 8 clips with a short cycle of crops 32, 45, 64: 7 epochs of 64 videos are 8 short cycles of 32, 16
# and 8 clips, or 56 iterations of the baseline.
SHORT_CYCLE = """
TRAIN: {DATASET: kinetics, BATCH_SIZE: 8}
TEST: {DATASET: kinetics}
DATA: {NUM_FRAMES: 16, TRAIN_JITTER_SCALES: [64, 80], TRAIN_CROP_SIZE: 64, TEST_CROP_SIZE: 64,
       INPUT_CHANNEL_NUM: [3], NUM_TRAIN_VIDEOS: 64}
RESNET: {WIDTH_PER_GROUP: 8}
NONLOCAL: {LOCATION: [[[]], [[]], [[]], [[]]], GROUP: [[1], [1], [1], [1]]}
MODEL: {ARCH: slowonly, NUM_CLASSES: 4}
SOLVER: {BASE_LR: 0.1, LR_POLICY: steps_with_relative_lrs, STEPS: [0], LRS: [1], MAX_EPOCH: 7}
MULTIGRID: {SHORT_CYCLE: True, EPOCH_FACTOR: 1}
NUM_GPUS: 0
"""


def pytest_collection_finish() -> None:
    """Keep the garbage collector from searching the imported packages again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _unsynced() -> Iterator[None]:
    """Do not wait for the disk: no test needs its files after a power failure."""
    with mock.patch.object(os, "fsync", return_value=None):
        yield


@pytest.fixture
def short_cycle_recipe(tmp_path: Path) -> Path:
    """Return a recipe with only the short cycle, for plans. It is not trained."""
    path = tmp_path / "short_cycle.yaml"
    path.write_text(SHORT_CYCLE)
    return path


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return `made_once(name, make)`, which returns a folder filled by `make(folder)`.

    The folder is filled once for all processes of pytest-xdist. Tests must not write to it.
    """
    own = tmp_path_factory.getbasetemp()
    root = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def once(name: str, make: Callable[[Path], object]) -> Path:
        folder, whole = root / name, root / f"{name}.whole"
        with FileLock(root / f"{name}.lock"):
            if not whole.exists():
                make(folder)
                whole.touch()
        return folder

    return once


@pytest.fixture(scope="session")
def tiny_data(made_once: Callable[..., Path]) -> Path:
    """Return a folder with the tiny recipe and 24 training, 8 validation and 8 test videos.

    Each video has 20 frames of 48 × 40 pixels.
    """
    from tests.moving import write_moving_videos

    def make(folder: Path) -> None:
        write_moving_videos(folder)
        (folder / "tiny.yaml").write_text(RECIPE)

    return made_once("tiny_data", make)


@pytest.fixture(scope="session")
def tiny_recipe(tiny_data: Path) -> Path:
    """Return the tiny recipe: a SlowFast of 8 channels, trained with both cycles on `tiny_data`."""
    return tiny_data / "tiny.yaml"


@pytest.fixture(scope="session")
def tiny_config(tiny_recipe: Path) -> Callable[..., Recipe]:
    """Return `tiny_config(output, "KEY", value, ...)`: the tiny recipe with some keys replaced."""
    from slowfast_patches.config import load_recipe

    return lambda output, *overrides: load_recipe(
        tiny_recipe, run_net_command(tiny_recipe, output, *overrides)[4:]
    )


@contextmanager
def kept_logging() -> Iterator[None]:
    """Restore the logging of pytest after a run, which sets up logging for the whole process."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        for handler in [h for h in root.handlers if h not in handlers]:
            handler.close()
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)


@contextmanager
def one_block() -> Iterator[None]:
    """In the body, networks have one block per stage, so that they train fast."""
    from slowfast_patches import patching

    patching.apply()
    from slowfast.models import video_model_builder

    with mock.patch.dict(video_model_builder._MODEL_STAGE_DEPTH, {50: (1, 1, 1, 1)}):
        yield


@contextmanager
def small_runs() -> Iterator[None]:
    """In the body, runs train one block per stage and draw no pictures."""
    from slowfast_patches.train import run
    from slowfast_patches.train.record import result_tables

    pictures = ((run, "plot_plan"), (result_tables, "_plot_confusion"))
    plan, confusion = (mock.patch.object(*picture) for picture in pictures)
    with kept_logging(), one_block(), plan, confusion:
        yield


@pytest.fixture(scope="session")
def train(tiny_config: Callable[..., Recipe]) -> Callable[..., Path]:
    """Return `train(output, "KEY", value, ..., hooks=())`.

    It runs the tiny recipe in this process, with one block per stage, and returns `output`.
    """
    from slowfast_patches.train.run import run

    def run_here(output: Path, *overrides: object, hooks: Sequence[Hook] = ()) -> Path:
        with small_runs():
            run(tiny_config(output, *overrides), hooks=hooks)
        return output

    return run_here


# The tiny recipe with one pathway, the short cycle alone and two epochs: 5 iterations of 16, 8, 4,
# 16 and 8 clips in three phases (the first epoch, the second, fine-tuning), instead of 12 of 4.
SMALL: tuple[object, ...] = (
    *("MODEL.ARCH", "c2d", "DATA.INPUT_CHANNEL_NUM", [3], "MULTIGRID.LONG_CYCLE", False),
    *("MULTIGRID.EPOCH_FACTOR", 1, "SOLVER.MAX_EPOCH", 2, "SOLVER.STEPS", [0, 1]),
    *("NONLOCAL.LOCATION", [[[]]] * 4, "NONLOCAL.GROUP", [[1]] * 4),
    *("RESNET.SPATIAL_STRIDES", [[1], [2], [2], [2]], "RESNET.SPATIAL_DILATIONS", [[1]] * 4),
    *("RESNET.NUM_BLOCK_TEMP_KERNEL", [[1]] * 4),
)


@pytest.fixture(scope="session")
def run_small(tiny_config: Callable[..., Recipe]) -> Callable[..., Folder]:
    """Return `run_small(output, "KEY", value, ..., hooks=())`, which returns a `Folder`.

    It runs the tiny recipe with the keys `SMALL` in this process, in less than a second.
    """
    from slowfast_patches.train.run import run

    def run_here(output: Path, *overrides: object, hooks: Sequence[Hook] = ()) -> Folder:
        with small_runs():
            run(tiny_config(output, *SMALL, *overrides), hooks=hooks)
        return Folder(output)

    return run_here


@pytest.fixture(scope="session")
def multigrid_run(train: Callable[..., Path], made_once: Callable[..., Path]) -> Path:
    """Return the folder of a finished run of the tiny recipe. Tests must not write to it."""
    return made_once("multigrid_run", train)


@pytest.fixture
def command_line(
    tiny_recipe: Path,
    load_program: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str]]:
    """Return `command_line(output, "KEY", value, ...)`: exit status and output of run_net."""
    module = load_program("tools/run_net.py")

    def call(output: Path, *overrides: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", run_net_command(tiny_recipe, output, *overrides)[1:])
        capsys.readouterr()
        with small_runs():
            status = module.main()
        return status, capsys.readouterr().err

    return call


@pytest.fixture(scope="session")
def start_python(load_program: Callable[[str], ModuleType]) -> Iterator[Callable[..., Popen[str]]]:
    """Return `start_python("tools/plan.py", "--cfg", path, ...)`, or with "-c" and source code.

    It starts a program in a new process group, with the options of subprocess.Popen. The program is
    a fork of a process that has imported torch. Its stderr is a pipe.
    """
    server = load_program("tests/forked.py").Server()
    yield server.start
    server.close()


@pytest.fixture(scope="session")
def start_run_net(
    tiny_recipe: Path, start_python: Callable[..., Popen[str]]
) -> Callable[..., Popen[str]]:
    """Return `start_run_net(output, "KEY", value, ..., NAME=value)`.

    It starts run_net, or a `program` with the same arguments, by `start_python`. NAME is an
    environment variable.
    """

    def start(
        output: Path, *overrides: object, program: Path = RUN_NET, **environment: str
    ) -> Popen[str]:
        arguments = run_net_command(tiny_recipe, output, *overrides)[2:]
        return start_python(program, *arguments, env=os.environ | environment)

    return start


def free_port() -> int:
    """Return a port of this machine on which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def as_rank(rank: int, processes: int, port: int, function: Callable, arguments: tuple) -> None:
    import torch

    torch.set_num_threads(1)
    if processes > 1:
        place = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "TORCHELASTIC_RUN_ID": "test"}
        size = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ |= {key: str(value) for key, value in (place | size | where).items()}
    function(rank, *arguments)


@pytest.fixture(scope="session")
def run_ranks() -> Callable[..., None]:
    """Return `run_ranks(processes, function, ...)`, which calls `function(rank, ...)` in forks.

    Several forks have the environment variables that torchrun would set.
    """
    from torch.multiprocessing import start_processes

    importlib.import_module("torch._dynamo")  # once for all forks, whose optimizers import it

    def run(processes: int, function: Callable, *arguments: object) -> None:
        given = (processes, free_port(), function, arguments)
        start_processes(as_rank, given, nprocs=processes, start_method="fork")

    return run


def mount_small_shm(size: str) -> None:
    """Mount a /dev/shm of this size for this process and its children only."""
    if ctypes.CDLL(None).unshare(0x20000):  # CLONE_NEWNS
        raise OSError("unshare is not permitted")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", "/dev/shm"], check=True)


needs_mount = pytest.mark.skipif(
    not (hasattr(os, "geteuid") and os.geteuid() == 0), reason="only root can mount a /dev/shm"
)


def run_net_command(recipe: Path, output: Path, *overrides: object) -> list[str]:
    paths = ("DATA.PATH_TO_DATA_DIR", recipe.parent, "OUTPUT_DIR", output)
    options = ("DATA_LOADER.NUM_WORKERS", 0, *overrides)
    return [sys.executable, str(RUN_NET), "--cfg", str(recipe), *map(str, (*paths, *options))]


@pytest.fixture(scope="session")
def load_program() -> Callable[[str], ModuleType]:
    """Return `load_program("tools/plan.py")`, which imports a program of the repository."""

    def load(path: str) -> ModuleType:
        name = path.removesuffix(".py").replace("/", "_")
        spec = importlib.util.spec_from_file_location(name, RUN_NET.parents[1] / path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, for modules of a user. What they register is forgotten afterwards."""
    from slowfast_patches.registry import AUGMENTATIONS, DATASETS, MODELS, TASKS, import_built_in

    import_built_in()
    for registry in (MODELS, DATASETS, TASKS, AUGMENTATIONS):
        monkeypatch.setattr(registry, "entries", dict(registry.entries))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[[ModuleType, list[str]], str]:
    """Return `refused(tool, arguments)`: the one-line error message of a program, with status 2."""

    def message(tool: ModuleType, arguments: list[str]) -> str:
        assert tool.main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("error: ")
        assert len(err.splitlines()) == 1
        return err

    return message


class Folder:
    """Files that a run has left in its OUTPUT_DIR."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def result(self) -> dict:
        return json.loads((self.path / "result.json").read_text())

    @property
    def log(self) -> str:
        return (self.path / "train.log").read_text()

    @property
    def checkpoint(self) -> dict:
        """The last checkpoint."""
        from slowfast_patches.train import checkpoint as checkpoints

        path = checkpoints.last_checkpoint(self.path)
        assert path is not None, f"no checkpoint in {self.path}"
        return vars(checkpoints.load(path))

    def metrics(self, kind: str = "train") -> list[dict]:
        """Return the records of metrics.jsonl of a kind: "train" or "val"."""
        lines = (self.path / "metrics.jsonl").read_text().splitlines()
        return [r for r in map(json.loads, lines) if r["type"] == kind]


@pytest.fixture(scope="session")
def opened() -> type[Folder]:
    """Return `opened(path)`, which returns the `Folder` of a run."""
    return Folder


TIMES = ("clips_per_second", "loading_share", "seconds", "seconds_left")


def switched_on(*registered: Sequence[Any]) -> tuple[object, ...]:
    """Return the keys that turn on all changes of clips or mini-batches in some registries."""
    return tuple(part for each in chain(*registered) for part in (each.switch, True))


def assert_same_bits(found: object, expected: object, where: str = "") -> None:
    import torch

    if isinstance(expected, dict):
        assert isinstance(found, dict)
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_same_bits(found[key], value, f"{where}.{key}")
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected), where
    else:
        assert found == expected, where


def without_times(records: list[dict]) -> list[dict]:
    return [{k: v for k, v in record.items() if k not in TIMES} for record in records]


def assert_same_run(found: Folder, expected: Folder) -> None:
    """Check that two runs are equal except for their times."""
    ours, theirs = found.checkpoint, expected.checkpoint
    assert ours["iteration"] == theirs["iteration"]
    assert_same_bits(ours["model_state"], theirs["model_state"], "model")
    assert_same_bits(ours["optimizer_state"], theirs["optimizer_state"], "optimizer")
    for kind in ("train", "val"):
        assert without_times(found.metrics(kind)) == without_times(expected.metrics(kind))
    assert found.result["top1"] == expected.result["top1"]
    assert without_times(found.result["evaluations"]) == without_times(
        expected.result["evaluations"]
    )
