"""Two processes give the same training as one, whether the user, srun or torchrun starts them."""

import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest
import torch

from tests.conftest import Folder, free_port

# Dropout and precise BN are tested in test_equivalence.py.
OPTIONS = (
    *("MODEL.DROPOUT_RATE", 0.0, "BN.USE_PRECISE_STATS", False, "SOLVER.BASE_LR", 0.002),
    *("SOLVER.MAX_EPOCH", 3, "SOLVER.STEPS", [0, 2]),
    *("MULTIGRID.LONG_CYCLE_FACTORS", [[0.5, 0.71], [1, 1]]),
)
RUN_NET = Path(__file__).parents[2] / "faults" / "faulty_run_net.py"
SMALL = {"GLOO_SOCKET_IFNAME": "lo", "ONE_BLOCK": "1"}


@pytest.fixture(scope="module")
def data(tiny_data, tmp_path_factory) -> tuple[object, ...]:
    """Return keys for the tiny data with one unreadable video.

    All processes must replace and count that video in the same way.
    """
    folder = tmp_path_factory.mktemp("lists")
    for split in ("train", "val", "test"):
        shutil.copy(tiny_data / f"{split}.csv", folder)
    lines = (folder / "train.csv").read_text().splitlines()
    (folder / "broken.mp4").write_text("not a video")
    lines[5] = f"{folder / 'broken.mp4'} {lines[5].split()[-1]}"
    (folder / "train.csv").write_text("\n".join(lines) + "\n")
    return ("DATA.PATH_TO_DATA_DIR", folder, "DATA.PATH_PREFIX", tiny_data)


@pytest.fixture(scope="module")
def one_process(train, data, tmp_path_factory) -> Folder:
    return Folder(train(tmp_path_factory.mktemp("one_process"), *OPTIONS, *data))


def assert_same_training(found: Folder, expected: Folder) -> None:
    assert (found.result["world_size"], expected.result["world_size"]) == (2, 1)
    assert found.result["global_batch"] == expected.result["global_batch"] == 4
    weights = expected.checkpoint["model_state"]
    for name, weight in found.checkpoint["model_state"].items():
        # Absolutely, what rounding leaves of a bias that starts at 0; updates are near 1e-3.
        torch.testing.assert_close(weight, weights[name], rtol=1e-5, atol=1e-6)
    for kind, keys in (("train", ("iteration", "lr", "shape", "loss")), ("val", ("iteration",))):
        for ours, theirs in zip(found.metrics(kind), expected.metrics(kind), strict=True):
            for key in (*keys, "top1"):
                assert ours[key] == pytest.approx(theirs[key], rel=1e-5), key
    count = r"epoch (\d+) done: (\d+) videos"
    assert set(re.findall(count, found.log)) == set(re.findall(count, expected.log))
    assert re.search(r"done: [1-9]", found.log)


@pytest.fixture
def start(start_python, tiny_recipe, data) -> Callable[..., Popen[str]]:
    """Return `start(folder, OPTION, ..., NAME=value)`, which starts run_net in a folder.

    The names are environment variables. The output is in the subfolder "out".
    """
    keys = ("OUTPUT_DIR", "out", "DATA_LOADER.NUM_WORKERS", 0)

    def run(folder: Path, *options: object, **environment: object) -> Popen[str]:
        folder.mkdir(exist_ok=True)
        command = (RUN_NET, *options, "--cfg", tiny_recipe, *keys, *OPTIONS, *data)
        variables = SMALL | {name: str(value) for name, value in environment.items()}
        return start_python(*command, cwd=folder, env=os.environ | variables)

    return run


def said_by(processes: list[Popen[str]], status: int = 0) -> list[str]:
    """Wait until all processes have ended with this status, and return their terminal output."""
    said = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [status] * len(processes), said
    return said


def test_two_machines_train_what_one_process_does(start, one_process, tmp_path):
    where = ("--init-method", f"tcp://127.0.0.1:{free_port()}", "--num-shards", 2)
    keys = ("TRAIN.BATCH_SIZE", 2)
    said_by([start(tmp_path / n, *where, "--shard-id", n, *keys) for n in ("0", "1")])
    assert_same_training(Folder(tmp_path / "0" / "out"), one_process)
    written = [path.name for path in (tmp_path / "1" / "out").rglob("*")]
    assert sorted(written) == ["logs", "rank_0001.log"], "only the first process writes"


def test_stopped_on_four_tasks_of_srun_it_continues_on_two_processes_of_torchrun(
    start, one_process, tmp_path
):
    step = {"SLURM_STEP_ID": 0, "SLURM_STEP_NUM_TASKS": 4, "SLURM_STEP_NUM_NODES": 1}
    step |= {"SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": os.getpid(), "SLURM_NODEID": 0}
    started = [start(tmp_path, **step, SLURM_PROCID=task, SLURM_LOCALID=task) for task in range(4)]
    folder = Folder(tmp_path / "out")
    metrics, deadline = folder.path / "metrics.jsonl", time.monotonic() + 240
    while not metrics.exists() or metrics.read_text().count('"train"') < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    started[-1].send_signal(signal.SIGTERM)
    assert "stopped by SIGTERM" in said_by(started, status=75)[0]
    done = folder.checkpoint["iteration"]
    run = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": 2, "GROUP_WORLD_SIZE": 1}
    run |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    said_by([start(tmp_path, **run, RANK=rank, LOCAL_RANK=rank) for rank in range(2)])
    assert f"Resuming after iteration {done}" in folder.log
    assert_same_training(folder, one_process)
