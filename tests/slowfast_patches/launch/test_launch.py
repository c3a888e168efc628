"""Test how runs of two processes end: the error is reported once, with the rank, without a hang."""

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
import torch.distributed as dist

from tests.conftest import free_port


@pytest.fixture
def start(start_python, tmp_path) -> Callable[..., Popen[str]]:
    """Return `start(deed, KEY, VALUE, ..., NAME=value)`, which starts deeds.py on the CPU."""
    for name in ("out", "temp"):
        (tmp_path / name).mkdir()

    def run(deed: str, *keys: object, **environment: str) -> Popen[str]:
        command = (
            Path(__file__).with_name("scripted_run.py"),
            "NUM_GPUS",
            0,
            "OUTPUT_DIR",
            "out",
            *keys,
        )
        variables = {"DEED": deed, "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": str(tmp_path / "temp")}
        environment = os.environ | variables | environment
        return start_python(*command, cwd=tmp_path, env=environment, stdout=PIPE)

    return run


def end_of(process: Popen[str]) -> tuple[int, str]:
    """Return exit status and errors once all processes that write to the terminal have ended."""
    said = process.communicate()[1]
    return process.returncode, said


@pytest.fixture
def training(start) -> Callable[..., Popen[str]]:
    """Return `training()`, which starts a command and waits until its two processes train."""

    def begin(**environment: str) -> Popen[str]:
        process = start("train", SPAWN="fork", **environment)
        assert [process.stdout.readline() for _ in range(2)] == ["trains\n"] * 2
        return process

    return begin


@pytest.fixture
def two_machines(start) -> Callable[..., list[Popen[str]]]:
    """Return `two_machines(deed, KEY, VALUE, ...)`, which starts a command for each machine.

    NUM_SHARDS and SHARD_ID say which machine it is. The given keys are for the second machine.
    """

    def run(deed: str, *own: object, **environment: str) -> list[Popen[str]]:
        keys, where = ("NUM_SHARDS", 2, "DIST_TIMEOUT_SECONDS", 2), f"tcp://127.0.0.1:{free_port()}"
        places = (("SHARD_ID", 0), ("SHARD_ID", 1, *own))
        return [start(deed, *keys, *place, ADDRESS=where, **environment) for place in places]

    return run


def await_file(path: Path, process: Popen[str]) -> None:
    while not path.exists() and process.poll() is None:
        time.sleep(0.02)


def sums(folder: Path) -> list[str]:
    """Return the number of ranks that each rank has found, and its local rank."""
    return [path.read_text() for path in sorted((folder / "out").glob("rank_?"))]


# To the end.


def test_spawned_processes_meet_with_the_users_modules_and_end_well(start, tmp_path):
    text = "import os, pathlib\npathlib.Path(f'imported_{os.getpid()}').touch()\n"
    (tmp_path / "my_module.py").write_text(text)
    for name in ("random", "queue", "copy", "selectors"):  # in place of Python's own modules
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)")
    assert end_of(start("nothing", "IMPORTS", "my_module", SPAWN="spawn")) == (0, "")
    assert sums(tmp_path) == ["2 0", "2 1"]
    assert len(list(tmp_path.glob("imported_*"))) == 3, "in the command and in both processes"


# A failure.


@pytest.mark.parametrize(
    ("deed", "expected"),
    [
        ("mistake", (2, "error: rank 1: a key of the recipe is wrong\n")),
        ("kill", (2, "error: rank 1 was killed by SIGKILL. The machine may be out of memory\n")),
    ],
)
def test_a_failure_is_one_line_with_its_rank(start, deed, expected):
    assert end_of(start(deed, SPAWN="fork")) == expected


def test_a_bug_is_one_traceback_and_ends_a_rank_that_is_in_no_collective(start, tmp_path):
    status, said = end_of(start("bug", SPAWN="fork"))
    assert status == 1
    assert said.startswith("error: rank 1: KeyError in ")
    assert said.count("Traceback") == said.count("KeyError: 'no such thing'") == 1
    assert said.endswith("in iteration 7\n")
    assert "Traceback" in (tmp_path / "out" / "logs" / "rank_0001.log").read_text()


def test_a_rank_that_does_not_answer_ends_other_machines(two_machines):
    first, second = two_machines("silence")
    status, said = end_of(first)
    second.kill()
    assert status == 2
    expected = "error: rank 0: Another rank failed, or did not answer within DIST_TIMEOUT"
    assert said.startswith(expected)
    assert said.count("\n") == 1


# Processes that do not join.


def test_another_recipe_is_refused_key_by_key(two_machines, tmp_path):
    other = ("SOLVER.BASE_LR", 0.3, "DATA.PATH_PREFIX", "/here")
    for status, said in map(end_of, two_machines("nothing", *other, SPAWN="fork")):
        assert status == 2
        assert said.count("\n") == 1
        assert "recipe than rank 0 (there): SOLVER.BASE_LR 0.1 there, 0.3 here" in said
        assert "DATA.PATH_PREFIX" not in said, "machines may have their data in other places"
    assert not list((tmp_path / "temp").iterdir())


def test_a_machine_does_not_wait_longer_than_is_said(start):
    """The port of the first machine accepts connections but is silent."""
    with socket.create_server(("127.0.0.1", 0)) as port:
        address = f"127.0.0.1:{port.getsockname()[1]}"
        keys = ("NUM_SHARDS", 2, "SHARD_ID", 1, "DIST_JOIN_SECONDS", 1)
        status, said = end_of(start("nothing", *keys, ADDRESS=f"tcp://{address}"))
    assert status == 2
    assert f"did not meet at {address} within DIST_JOIN_SECONDS (1 s)" in said
    assert said.count("\n") == 1


def test_a_signal_ends_a_machine_that_waits_for_others(start):
    port = free_port()
    process = start("nothing", "NUM_SHARDS", 2, ADDRESS=f"tcp://127.0.0.1:{port}", SPAWN="fork")
    with socket.socket() as first:
        while first.connect_ex(("127.0.0.1", port)):
            time.sleep(0.05)
    process.terminate()
    status, said = end_of(process)
    assert status == 75
    assert said.startswith("interrupted")
    assert said.count("\n") == 1


# A signal to what has spawned the others, to all of them, or its end. A pipe that all of them have
# open ends when the last of them has.


@pytest.mark.parametrize(
    ("sent", "send"),
    [(signal.SIGTERM, os.kill), (signal.SIGINT, os.killpg)],
)
def test_signals_end_a_training_after_an_iteration_with_all_saved(training, tmp_path, sent, send):
    process = training()
    send(process.pid, sent)
    first, second = (tmp_path / "out" / f"saved_{rank}" for rank in (1, 0))
    await_file(first, process)
    process.terminate()  # while rank 1 waits for rank 0, which still saves
    status, said = end_of(process)
    assert status == 75
    assert said.count("interrupted: stopped by SIG") == 1
    assert first.read_text() == second.read_text(), "in the same iteration"


def test_a_second_ctrl_c_ends_all_at_once(training, tmp_path):
    process = training(SAVING="240")
    os.killpg(process.pid, signal.SIGINT)
    await_file(tmp_path / "out" / "saved_1", process)
    os.killpg(process.pid, signal.SIGINT)
    assert end_of(process)[0] == 130
    assert not (tmp_path / "out" / "saved_0").exists()


def test_processes_and_their_workers_end_with_what_has_spawned_them(training):
    process = training()
    process.kill()
    assert end_of(process)[0] == -signal.SIGKILL


# torchrun, which keeps its store on one machine when it restarts the ranks.


def test_ranks_that_torchrun_starts_again_meet_in_the_same_store(start, tmp_path):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    run = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1"}
    run |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "LOCAL_WORLD_SIZE": "2"}
    run |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    for count, statuses in (("0", [2, -signal.SIGKILL]), ("1", [0, 0])):
        run["TORCHELASTIC_RESTART_COUNT"] = count
        started = []
        for rank in "01":  # rank 0 must not find what rank 1 left before
            started.append(start("kill", **run, RANK=rank, LOCAL_RANK=rank))
            time.sleep(1 - int(rank))
        assert [end_of(process)[0] for process in started] == statuses
    assert sums(tmp_path) == ["2 0", "2 1"]


C10D = ("--rdzv-backend", "c10d", "--rdzv-id", "x", "--local-addr", "127.0.0.1")


@pytest.fixture
def two_agents(start_python, tmp_path) -> Callable[..., list[tuple[int, str]]]:
    """Return `two_agents(by_c10d, NAME=value)`, which runs torchrun on "two machines".

    Rank 1 is killed before the first restart. The result is the ends of both commands.
    """
    (tmp_path / "out").mkdir()

    def run(by_c10d: bool, **environment: str) -> list[tuple[int, str]]:
        port, processes = free_port(), []
        variables = {"DEED": "kill", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        for machine in range(2):
            where = ("--node-rank", machine, "--master-addr", "127.0.0.1", "--master-port", port)
            where = (*C10D, "--rdzv-endpoint", f"127.0.0.1:{port}") if by_c10d else where
            words = ("--nnodes", 2, "--nproc-per-node", 1, "--max-restarts", 1, *where)
            deeds = (
                Path(__file__).with_name("scripted_run.py"),
                "NUM_GPUS",
                0,
                "OUTPUT_DIR",
                "out",
            )
            code = "from torch.distributed.run import main; main()"
            env = os.environ | variables | environment
            processes.append(start_python("-c", code, *words, *deeds, cwd=tmp_path, env=env))
        return [end_of(process) for process in processes]

    return run


@pytest.mark.slow("starts programs")
def test_torchrun_starts_the_ranks_of_several_machines_again_with_c10d(two_agents, tmp_path):
    ends = two_agents(True, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    assert [status for status, _ in ends] == [0, 0], ends
    assert sums(tmp_path) == ["2 0", "2 0"]


@pytest.mark.slow("starts programs")
@pytest.mark.parametrize(("by_c10d", "variable"), [(False, "1"), (True, "0")])
def test_restarts_on_several_machines_without_a_new_store_are_refused(
    two_agents, tmp_path, by_c10d, variable
):
    for status, said in two_agents(by_c10d, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=variable):
        assert status == 1, said
        assert "error: On several machines, restarted processes would read" in said
    assert sums(tmp_path) == []
