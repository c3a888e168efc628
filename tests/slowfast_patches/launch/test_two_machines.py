"""torchrun itself: a rank that is killed, and a connection that breaks between two machines, which
are network namespaces here."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

PATIENCE = 240.0
"""Seconds for what takes a tenth of it on an idle machine."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def machines() -> Iterator[list[str]]:
    """Names of two namespaces, connected by their devices `wire`: 10.7.0.1 and 10.7.0.2."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("two machines: needs root and apt-get install iproute2")
    names = [f"machine{number}-{os.getpid()}" for number in (1, 2)]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ends = [("wire", "netns", name) for name in names]
        ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.7.0.{number}/24", "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")
        yield names
    finally:
        for name in names:  # A failed test leaves processes behind.
            running = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
            for pid in map(int, running.stdout.split()):
                os.kill(pid, signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def torchrun(
    deed: str, device: str, folder: Path, *options: object, prefix: tuple[str, ...] = ()
) -> Popen[str]:
    """Start deeds.py by torchrun. Its ranks give up a connection after 3 seconds."""
    program = (Path(__file__).with_name("deeds.py"), "NUM_GPUS", 0, "DIST_STALL_SECONDS", 3)
    command = (sys.executable, "-m", "torch.distributed.run", *options, *program)
    environment = os.environ | {"DEED": deed, "GLOO_SOCKET_IFNAME": device}
    words = list(map(str, (*prefix, *command, "OUTPUT_DIR", folder)))
    return Popen(words, env=environment, stdout=PIPE, stderr=PIPE, text=True)


@pytest.mark.slow
def test_torchrun_starts_all_ranks_again_if_one_is_killed(
    free_port: Callable[[], int], tmp_path: Path
) -> None:
    where = ("--master-addr", "127.0.0.1", "--master-port", free_port())
    run = torchrun("kill", "lo", tmp_path, "--nproc-per-node", 2, "--max-restarts", 1, *where)
    said = run.communicate(timeout=PATIENCE)[1]
    assert run.returncode == 0, said
    assert [path.read_text() for path in sorted(tmp_path.glob("rank_?"))] == ["2 0", "2 1"]


@pytest.mark.slow
def test_a_broken_connection_ends_the_training_on_both_machines(
    machines: list[str], tmp_path: Path
) -> None:
    agents = []
    for number, name in enumerate(machines):
        where = ("--nnodes", 2, "--node-rank", number, "--master-addr", "10.7.0.1")
        inside = ("ip", "netns", "exec", name)
        agents.append(torchrun("train", "wire", tmp_path, *where, prefix=inside))
    assert [agent.stdout.readline() for agent in agents] == ["trains\n"] * 2
    ip("-n", machines[0], "link", "set", "wire", "down")
    for rank, agent in enumerate(agents):
        said = agent.communicate(timeout=PATIENCE)[1]
        assert agent.returncode == 1
        assert f"error: rank {rank}: Another rank failed, or did not answer within DIST" in said
