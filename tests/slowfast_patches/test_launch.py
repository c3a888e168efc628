"""Runs of two real processes that end in every way: said once, with the rank, and never a hang."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch.distributed as dist

WORKER = Path(__file__).with_name("launch_worker.py")


class Ended(NamedTuple):
    """How a command ended: its exit status, and what it wrote to the terminal."""

    status: int
    said: str


class Commands:
    """Commands of runs, in forks of a process that has imported everything."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def ask(self, **request: object) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(self, folder: Path, *keys: object, stdout: str = os.devnull, **environment: str):
        """Start a command with a file in `folder` as its terminal; gives its number and that."""
        path = folder / f"stderr_{len(list(folder.glob('stderr_*')))}"
        path.touch()
        options = ["NUM_GPUS", 0, "OUTPUT_DIR", str(folder / "out"), *keys]
        start = {"GLOO_SOCKET_IFNAME": "lo"} | environment
        number = self.ask(start=start, keys=options, stdout=str(stdout), stderr=str(path))
        return number, path

    def wait(self, number: int, path: Path) -> Ended:
        return Ended(self.ask(wait=number), path.read_text())


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with subprocess.Popen(
        [sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Commands(process)
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def spawned(commands: Commands, tmp_path: Path) -> Callable[[str], Ended]:
    """`spawned(deed)`: one command that spawns two processes."""

    def run(deed: str, method: str = "fork", **environment: str) -> Ended:
        (tmp_path / "out").mkdir()
        return commands.wait(*commands.start(tmp_path, DEED=deed, SPAWN=method, **environment))

    return run


@pytest.fixture
def two_machines(
    commands: Commands, tmp_path: Path, free_port: Callable[[], int]
) -> Callable[..., list[Ended]]:
    """`two_machines(deed, KEY, VALUE, ...)`: by the host's convention, each on its terminal."""

    def run(deed: str, *keys: object, address: str = "") -> list[Ended]:
        (tmp_path / "out").mkdir()
        where = address or f"tcp://127.0.0.1:{free_port()}"
        started = [
            commands.start(
                tmp_path, "NUM_SHARDS", 2, "SHARD_ID", machine, *keys, DEED=deed, ADDRESS=where
            )
            for machine in range(2)
        ]
        return [commands.wait(*one) for one in started]

    return run


def logs(folder: Path) -> list[str]:
    """What ranks 0 and 1 have in their log files."""
    paths = (folder / "out" / "train.log", folder / "out" / "logs" / "rank_0001.log")
    return [path.read_text() for path in paths]


def sums(folder: Path) -> list[str]:
    """What each rank had from the other, and its number on its machine."""
    return [(folder / "out" / f"rank_{rank}").read_text() for rank in range(2)]


# To the end.


def test_spawned_processes_meet_at_a_free_port_and_end_well(spawned, tmp_path):
    assert spawned("nothing", "spawn") == Ended(0, "")
    assert sums(tmp_path) == ["2 0", "2 1"]
    assert (tmp_path / "out" / "prepared").exists()


def test_machines_meet_in_a_file_that_is_gone_afterwards(two_machines, tmp_path):
    ended = two_machines("nothing", address=f"file://{tmp_path}/meet")
    assert ended == [Ended(0, "")] * 2
    assert sums(tmp_path) == ["2 0", "2 0"]
    assert not (tmp_path / "meet").exists()


def test_tasks_of_srun(commands, tmp_path):
    """Two tasks on one machine; the job's port is taken from them."""
    (tmp_path / "out").mkdir()
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}
    step |= {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost"}
    started = []
    for task in ("0", "1"):
        place = {"SLURM_NODEID": "0", "SLURM_PROCID": task, "SLURM_LOCALID": task}
        started.append(commands.start(tmp_path, DEED="nothing", **step, **place))
    assert [commands.wait(*one) for one in started] == [Ended(0, "")] * 2
    assert sums(tmp_path) == ["2 0", "2 1"]


def test_an_interruption_waits_for_all_and_is_no_failure(spawned, tmp_path):
    ended = spawned("interrupt")
    assert ended == Ended(75, "stopped by a signal after iteration 7\n")
    assert all((tmp_path / "out" / f"saved_{rank}").exists() for rank in range(2))
    assert all("WARNING stopped by a signal" in log for log in logs(tmp_path))


# A failure.


@pytest.mark.parametrize(
    ("deed", "text"),
    [("mistake", "a key of the recipe is wrong"), ("stop", "the disk is full")],
)
def test_a_mistake_is_one_line_with_its_rank(spawned, tmp_path, deed, text):
    assert spawned(deed) == Ended(2, f"error: rank 1: {text}\n")
    first, second = logs(tmp_path)
    assert f"ERROR error: rank 1: {text}" in second
    assert "rank 1" in first or "rank 0: " in first  # what came of it


def test_a_bug_is_one_traceback_and_ends_a_rank_that_is_in_no_collective(spawned, tmp_path):
    ended = spawned("bug")
    assert ended.status == 1
    assert ended.said.startswith("error: rank 1: Traceback")
    assert ended.said.count("Traceback") == ended.said.count("KeyError: 'no such thing'") == 1
    assert ended.said.endswith("in iteration 7\n")
    first, second = logs(tmp_path)
    assert "Traceback" in second
    assert "rank 1 on" in first
    assert "failed: KeyError: 'no such thing'\nin iteration 7" in first


def test_a_killed_process_is_named(spawned):
    assert spawned("kill") == Ended(1, "error: rank 1 was killed by SIGKILL, perhaps for memory\n")


def test_a_rank_that_does_not_answer_is_waited_for_as_long_as_is_said(two_machines):
    first, second = two_machines("silence", "DIST_STALL_SECONDS", 1)
    assert (first.status, second.status) == (1, 1)
    assert first.said.startswith("error: rank 0 has lost another process of the run (")
    assert "1000ms" in first.said
    assert first.said.count("\n") == second.said.count("\n") == 1


def test_a_mistake_on_one_machine_is_said_on_both_terminals(two_machines, tmp_path):
    first, second = two_machines("check")
    assert second == Ended(2, "error: no videos on this machine\n")
    assert first.status == 2
    assert first.said.endswith("failed: no videos on this machine\n")
    assert not (tmp_path / "out" / "prepared").exists()


def test_the_survivor_on_another_machine_says_that_a_process_is_lost(two_machines):
    first, second = two_machines("kill")
    assert second == Ended(-signal.SIGKILL, "")
    assert first.status == 1
    assert first.said.startswith("error: rank 0 has lost another process of the run (")
    assert first.said.count("\n") == 1


@pytest.mark.parametrize(("deed", "lines"), [("mistake", 1), ("kill", 1)])
def test_processes_of_torchrun_share_a_terminal(commands, tmp_path, deed, lines):
    (tmp_path / "out").mkdir()
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    run = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1"}
    run |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "1"}
    run |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(agent.port), "LOCAL_WORLD_SIZE": "2"}
    started = [
        commands.start(tmp_path, DEED=deed, **run, RANK=rank, LOCAL_RANK=rank) for rank in "01"
    ]
    first, second = [commands.wait(*one) for one in started]
    assert first.status == (2 if deed == "mistake" else 1)
    assert (first.said + second.said).count("\n") == lines
    assert "rank 1: a key" in second.said or "has lost another process" in first.said


# A signal to what has spawned the others, or its end.


def test_processes_end_with_what_has_spawned_them_and_so_do_their_workers(commands, tmp_path):
    """Even where they ignore the signal that tells them. The pipe ends when all of them have."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "out").mkdir()
    number, path = commands.start(tmp_path, DEED="worker", SPAWN="fork", stdout=pipe)
    with pipe.open() as written:
        assert [written.readline() for _ in range(2)] == ["worker\n"] * 2
        os.kill(number, signal.SIGKILL)
        assert written.read() == ""
    assert commands.wait(number, path).status == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_a_training_can_save_ends_all_as_interrupted(commands, tmp_path, number):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "out").mkdir()
    process, path = commands.start(tmp_path, DEED="sleep", SPAWN="fork", stdout=pipe)
    with pipe.open() as written:
        assert [written.readline() for _ in range(2)] == ["asleep\n"] * 2
        os.kill(process, number)
        assert written.read() == ""
    assert commands.wait(process, path) == Ended(75, "")
