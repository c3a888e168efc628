"""Runs of two real processes that end in every way: said once, with the rank, and never a hang."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

Ended = tuple[int, str]
"""How a command ended: its exit status, and what it wrote to the terminal."""


@pytest.fixture
def start(commands, tmp_path: Path) -> Callable[..., int]:
    """`start(deed, KEY, VALUE, ...)`: a command, on the CPU, with its number."""
    (tmp_path / "out").mkdir()

    def run(deed: str, *keys: object, **environment: str) -> int:
        options = ["NUM_GPUS", 0, "OUTPUT_DIR", str(tmp_path / "out"), *keys]
        return commands.start(tmp_path, *options, DEED=deed, **environment)

    return run


@pytest.fixture
def spawned(commands, start) -> Callable[..., Ended]:
    """`spawned(deed)`: one command that spawns two processes."""
    return lambda deed, method="fork": commands.wait(start(deed, SPAWN=method))


@pytest.fixture
def two_machines(commands, start, free_port) -> Callable[..., list[Ended]]:
    """`two_machines(deed, KEY, VALUE, ...)`: by the host's convention, each on its terminal."""

    def run(deed: str, *keys: object, address: str = "") -> list[Ended]:
        where = address or f"tcp://127.0.0.1:{free_port()}"
        machines = [("NUM_SHARDS", 2, "SHARD_ID", number, *keys) for number in range(2)]
        started = [start(deed, *machine, ADDRESS=where) for machine in machines]
        return [commands.wait(number) for number in started]

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
    assert spawned("nothing", "spawn") == (0, "")
    assert sums(tmp_path) == ["2 0", "2 1"]


def test_machines_meet_in_a_file_that_is_gone_afterwards(two_machines, tmp_path):
    assert two_machines("nothing", address=f"file://{tmp_path}/meet") == [(0, "")] * 2
    assert sums(tmp_path) == ["2 0", "2 0"]
    assert not (tmp_path / "meet").exists()


def test_an_interruption_waits_for_all_and_is_no_failure(spawned, tmp_path):
    assert spawned("interrupt") == (75, "interrupted: stopped by a signal after iteration 7\n")
    assert all((tmp_path / "out" / f"saved_{rank}").exists() for rank in range(2))
    assert all("WARNING interrupted: stopped by a signal" in log for log in logs(tmp_path))


# A failure.


@pytest.mark.parametrize(
    ("deed", "text"),
    [("mistake", "a key of the recipe is wrong"), ("stop", "the disk is full")],
)
def test_a_mistake_is_one_line_with_its_rank(spawned, tmp_path, deed, text):
    assert spawned(deed) == (2, f"error: rank 1: {text}\n")
    first, second = logs(tmp_path)
    assert f"ERROR error: rank 1: {text}" in second
    assert "ERROR error: rank 0: " in first, "what came of it"


def test_a_bug_is_one_traceback_and_ends_a_rank_that_is_in_no_collective(spawned, tmp_path):
    status, said = spawned("bug")
    assert status == 1
    assert said.startswith("error: rank 1: Traceback")
    assert said.count("Traceback") == said.count("KeyError: 'no such thing'") == 1
    assert said.endswith("in iteration 7\n")
    first, second = logs(tmp_path)
    assert "Traceback" in second
    assert "failed: KeyError: 'no such thing'\nin iteration 7" in first


def test_a_killed_process_is_named(spawned):
    assert spawned("kill") == (1, "error: rank 1 was killed by SIGKILL, perhaps for memory\n")


def test_a_rank_that_does_not_answer_is_waited_for_as_long_as_is_said(two_machines):
    (first, first_said), (second, second_said) = two_machines("silence", "DIST_STALL_SECONDS", 2)
    assert (first, second) == (1, 1)
    assert first_said.startswith("error: rank 0 has lost another process of the run (")
    assert "2000ms" in first_said
    assert first_said.count("\n") == second_said.count("\n") == 1


def test_a_mistake_on_one_machine_is_said_on_both_terminals(two_machines, tmp_path):
    (status, said), second = two_machines("check")
    assert second == (2, "error: no videos on this machine\n")
    assert status == 2
    assert said.endswith("failed: no videos on this machine\n")


def test_the_survivor_on_another_machine_says_that_a_process_is_lost(two_machines):
    (status, said), second = two_machines("kill")
    assert second == (-signal.SIGKILL, "")
    assert status == 1
    assert said.startswith("error: rank 0 has lost another process of the run (")
    assert said.count("\n") == 1


@pytest.mark.parametrize("deed", ["mistake", "kill"])
def test_processes_of_torchrun_share_a_terminal(commands, start, deed):
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    run = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1"}
    run |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "1"}
    run |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(agent.port), "LOCAL_WORLD_SIZE": "2"}
    started = [start(deed, **run, RANK=rank, LOCAL_RANK=rank) for rank in "01"]
    (first, first_said), (_, second_said) = [commands.wait(number) for number in started]
    if deed == "mistake":
        said = "error: rank 1: a key of the recipe is wrong\n"
        assert (first, first_said, second_said) == (2, "", said)
    else:
        assert (first, first_said.count("\n"), second_said) == (1, 1, "")
        assert "rank 0 has lost another process" in first_said


# A signal to what has spawned the others, or its end. A pipe that all of them have open ends when
# the last of them has.


def test_processes_end_with_what_has_spawned_them_and_so_do_their_workers(
    commands, start, tmp_path
):
    """Though they ignore the signal that tells them."""
    os.mkfifo(pipe := tmp_path / "pipe")
    number = start("worker", SPAWN="fork", stdout=str(pipe))
    with pipe.open() as written:
        assert [written.readline() for _ in range(2)] == ["worker\n"] * 2
        os.kill(number, signal.SIGKILL)
        assert written.read() == ""
    assert commands.wait(number)[0] == -signal.SIGKILL


@pytest.mark.parametrize(
    ("sent", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "SIGTERM")]
)
def test_a_signal_before_a_training_can_save_ends_all_as_interrupted(
    commands, start, tmp_path, sent, name
):
    os.mkfifo(pipe := tmp_path / "pipe")
    number = start("sleep", SPAWN="fork", stdout=str(pipe))
    with pipe.open() as written:
        assert [written.readline() for _ in range(2)] == ["asleep\n"] * 2
        os.kill(number, sent)
        assert written.read() == ""
    assert commands.wait(number) == (75, early(name))


def test_a_warning_while_a_run_waits_for_others_queues_its_job_again(
    commands, start, tmp_path, free_port
):
    """In a check that does not return to Python."""
    os.mkfifo(pipe := tmp_path / "pipe")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "scontrol").write_text('#!/bin/sh\necho "$@" > "$OUT"\n')
    (tools / "scontrol").chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "PATH": f"{tools}:{os.environ['PATH']}"}
    job |= {"OUT": str(tmp_path / "asked"), "ADDRESS": f"tcp://127.0.0.1:{free_port()}"}
    number = start("stuck", "NUM_SHARDS", 2, stdout=str(pipe), **job)
    with pipe.open() as written:
        assert written.readline() == "stuck\n"
        os.kill(number, signal.SIGUSR1)
        assert written.read() == ""
    assert commands.wait(number) == (75, early("SIGUSR1"))
    assert (tmp_path / "asked").read_text() == "requeue 7\n"


def early(name: str) -> str:
    text = f"stopped by {name} before the training began; the same command starts it"
    return f"interrupted: {text}\n"


# torchrun.


@pytest.mark.parametrize(("restarts", "status"), [("0", 75), ("2", 0)])
def test_torchrun_does_not_start_an_interrupted_run_again(commands, start, restarts, status):
    agent = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    run = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1"}
    run |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": restarts}
    run |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(agent.port), "LOCAL_WORLD_SIZE": "2"}
    started = [start("interrupt", **run, RANK=rank, LOCAL_RANK=rank) for rank in "01"]
    said = "interrupted: stopped by a signal after iteration 7\n"
    assert [commands.wait(number) for number in started] == [(status, said), (status, "")]


def test_two_agents_recover_from_a_killed_process(free_port, tmp_path):
    """Only one of them counts a failure; the other sees that it is waited for."""
    worker = Path(__file__).with_name("restart_worker.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--max-restarts"]
    command += ["2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", f"localhost:{free_port()}", str(worker), str(tmp_path)]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    agents = [subprocess.Popen(command, env=environment) for _ in range(2)]
    notes = [tmp_path / f"started_{rank}" for rank in range(2)]
    deadline = time.monotonic() + 120
    while not all(note.exists() and note.read_text() for note in notes):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (tmp_path / "killed").touch()
    os.kill(int(notes[1].read_text()), signal.SIGKILL)
    assert [agent.wait(timeout=120) for agent in agents] == [0, 0]
    assert [(tmp_path / f"sum_{rank}").read_text() for rank in range(2)] == ["2", "2"]
    assert [len(note.read_text().split()) for note in notes] == [2, 2]
