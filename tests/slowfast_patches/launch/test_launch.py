"""Runs of two real processes that end in every way: said once, with the rank, and never a hang."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from slowfast_patches.config import load_recipe
from slowfast_patches.launch.launch import launch

Ended = tuple[int, str]
"""How a command ended: its exit status, and what all of its processes wrote to the terminal."""


@pytest.fixture
def start(start_python: Callable[..., Popen[str]], tmp_path: Path) -> Callable[..., Popen[str]]:
    """`start(deed, KEY, VALUE, ...)`: a command of deeds.py, on the CPU."""
    (tmp_path / "out").mkdir()

    def run(deed: str, *keys: object, **environment: str) -> Popen[str]:
        command = (Path(__file__).with_name("deeds.py"), "NUM_GPUS", 0, "OUTPUT_DIR", "out", *keys)
        variables = os.environ | {"DEED": deed, "GLOO_SOCKET_IFNAME": "lo"} | environment
        return start_python(*command, cwd=tmp_path, env=variables, stdout=PIPE)

    return run


def end_of(process: Popen[str]) -> Ended:
    """Once all that write to its terminal have ended."""
    said = process.communicate()[1]
    return process.returncode, said


@pytest.fixture
def spawned(start) -> Callable[..., Ended]:
    """`spawned(deed)`: one command that spawns two processes."""
    return lambda deed, method="fork": end_of(start(deed, SPAWN=method))


@pytest.fixture
def two_machines(start, tmp_path: Path) -> Callable[..., list[Popen[str]]]:
    """`two_machines(deed, KEY, VALUE, ...)`: by the host's convention, the keys for the second."""

    def run(deed: str, *own: object) -> list[Popen[str]]:
        keys, where = ("NUM_SHARDS", 2, "DIST_STALL_SECONDS", 2), f"file://{tmp_path}/meet"
        places = (("SHARD_ID", 0), ("SHARD_ID", 1, *own))
        return [start(deed, *keys, *place, ADDRESS=where) for place in places]

    return run


def logs(folder: Path) -> list[str]:
    """What ranks 0 and 1 have in their log files."""
    paths = (folder / "out" / "train.log", folder / "out" / "logs" / "rank_0001.log")
    return [path.read_text() for path in paths]


def sums(folder: Path) -> list[str]:
    """The number of ranks that each rank found, and its number on its machine."""
    return [(folder / "out" / f"rank_{rank}").read_text() for rank in range(2)]


# To the end.


def test_spawned_processes_meet_and_end_well(spawned, tmp_path):
    assert spawned("nothing", "spawn") == (0, "")
    assert sums(tmp_path) == ["2 0", "2 1"]


def test_machines_meet_in_a_file(two_machines, tmp_path):
    assert list(map(end_of, two_machines("nothing"))) == [(0, "")] * 2
    assert sums(tmp_path) == ["2 0", "2 0"]


def test_an_interruption_waits_for_all_and_is_no_failure(spawned, tmp_path):
    assert spawned("interrupt") == (75, "interrupted: stopped by a signal after iteration 7\n")
    assert all((tmp_path / "out" / f"saved_{rank}").exists() for rank in range(2))
    assert all("WARNING interrupted: stopped by a signal" in log for log in logs(tmp_path))


# A failure.


def test_a_mistake_is_one_line_with_its_rank(spawned, tmp_path):
    assert spawned("mistake") == (2, "error: rank 1: a key of the recipe is wrong\n")
    assert "ERROR error: rank 1: a key of the recipe is wrong" in logs(tmp_path)[1]


def test_a_bug_is_one_traceback_and_ends_a_rank_that_is_in_no_collective(spawned, tmp_path):
    start = time.monotonic()
    status, said = spawned("bug")
    assert time.monotonic() - start < 30
    assert status == 1
    assert said.startswith("error: rank 1: Traceback")
    assert said.count("Traceback") == said.count("KeyError: 'no such thing'") == 1
    assert said.endswith("in iteration 7\n")
    assert "Traceback" in logs(tmp_path)[1]


def test_a_killed_process_is_named(spawned):
    assert spawned("kill") == (1, "error: rank 1 was killed by SIGKILL, perhaps for memory\n")


def test_a_mistake_that_a_machine_finds_before_the_processes_meet(spawned):
    assert spawned("check") == (2, "error: no videos on this machine\n")


def test_a_rank_that_does_not_answer_is_waited_for_as_long_as_is_said(two_machines):
    first, second = two_machines("silence")
    status, said = end_of(first)
    second.kill()
    assert status == 1
    assert said.startswith("error: rank 0: another process of the run is lost")
    assert "2000ms" in said


def test_the_survivor_on_another_machine_says_that_a_process_is_lost(two_machines):
    (status, said), second = map(end_of, two_machines("kill"))
    assert second == (-signal.SIGKILL, "")
    assert status == 1
    assert said.startswith("error: rank 0: another process of the run is lost")
    assert said.count("\n") == 1


def test_another_recipe_is_told_key_by_key(two_machines):
    other = ("SOLVER.BASE_LR", 0.3, "DATA.PATH_PREFIX", "/here")
    (first, there), (second, here) = map(end_of, two_machines("nothing", *other))
    assert (first, second) == (1, 2)
    assert "error: rank 1: " in here
    assert "SOLVER.BASE_LR 0.1 there, 0.3 on rank 1" in here
    assert "DATA.PATH_PREFIX" not in here, "machines may have their data in other places"
    assert "rank 1 has another recipe" in there


def test_who_does_not_come_is_named(start, free_port):
    keys = ("NUM_SHARDS", 3, "DIST_JOIN_SECONDS", 1)
    status, said = end_of(start("nothing", *keys, ADDRESS=f"tcp://localhost:{free_port()}"))
    assert status == 2
    assert "rank 1, 2 did not come" in said


@pytest.mark.parametrize("address", ["first:9999", "tcp://first", "tcp://first:x", "file://"])
def test_addresses_that_are_none(address):
    with pytest.raises(ValueError, match=f"--init-method {address}: .* tcp://HOST:PORT"):
        launch(load_recipe(None, ["NUM_GPUS", 0, "NUM_SHARDS", 2]), address, print)


# A signal to what has spawned the others, to all of them, or its end. A pipe that all of them have
# open ends when the last of them has.


@pytest.mark.parametrize(
    ("sent", "send"),
    [(signal.SIGTERM, os.kill), (signal.SIGUSR1, os.killpg), (signal.SIGINT, os.killpg)],
)
def test_signals_end_a_training_after_an_iteration_with_all_saved(start, tmp_path, sent, send):
    process = start("train", SPAWN="fork")
    assert [process.stdout.readline() for _ in range(2)] == ["trains\n"] * 2
    send(process.pid, sent)
    status, said = end_of(process)
    assert status == 75
    assert said.count("interrupted: stopped by SIG") == 1
    saved = [(tmp_path / "out" / f"saved_{rank}").read_text() for rank in range(2)]
    assert saved[0] == saved[1], "in the same iteration"


def test_a_late_signal_does_not_kill_a_process_that_waits_for_one_that_saves(start, tmp_path):
    process = start("train", SPAWN="fork")
    assert [process.stdout.readline() for _ in range(2)] == ["trains\n"] * 2
    process.terminate()
    while not (saved := tmp_path / "out" / "saved_1").exists() and process.poll() is None:
        time.sleep(0.05)
    process.terminate()
    assert end_of(process) == (75, "interrupted: stopped by SIGTERM\n")
    assert saved.read_text() == saved.with_name("saved_0").read_text()


def test_a_second_ctrl_c_ends_all_at_once(start, tmp_path):
    process = start("train", SPAWN="fork")
    assert [process.stdout.readline() for _ in range(2)] == ["trains\n"] * 2
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.5)
    assert end_of(process)[0] == 130
    assert not (tmp_path / "out" / "saved_0").exists()


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_before_a_training_can_save_ends_all(start, sent, status):
    process = start("sleep", SPAWN="fork")
    assert [process.stdout.readline() for _ in range(2)] == ["asleep\n"] * 2
    process.send_signal(sent)
    ended, said = end_of(process)
    assert ended == status
    assert said.startswith("interrupted")
    assert said.count("\n") == 1


def test_processes_and_their_workers_end_with_what_has_spawned_them(start):
    process = start("train", SPAWN="fork")
    assert [process.stdout.readline() for _ in range(2)] == ["trains\n"] * 2
    process.kill()
    assert end_of(process)[0] == -signal.SIGKILL


# torchrun.


@pytest.mark.parametrize(("restarts", "status"), [("0", 75), ("2", 0)])
def test_torchrun_does_not_start_an_interrupted_run_again(start, free_port, restarts, status):
    run = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1"}
    run |= {"TORCHELASTIC_MAX_RESTARTS": restarts, "LOCAL_WORLD_SIZE": "2"}
    run |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = [start("interrupt", **run, RANK=rank, LOCAL_RANK=rank) for rank in "01"]
    said = "interrupted: stopped by a signal after iteration 7\n"
    assert list(map(end_of, started)) == [(status, said), (status, "")]
