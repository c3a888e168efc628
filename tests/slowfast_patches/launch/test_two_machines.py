"""torchrun on two machines, simulated by network namespaces, and a connection that breaks."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
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


@pytest.mark.slow
def test_a_broken_connection_ends_the_training_on_both_machines(
    machines: list[str], tmp_path: Path
) -> None:
    deeds = (Path(__file__).with_name("deeds.py"), "NUM_GPUS", 0, "DIST_STALL_SECONDS", 3)
    environment = os.environ | {"DEED": "train", "GLOO_SOCKET_IFNAME": "wire"}
    agents = []
    for number, name in enumerate(machines):
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--nnodes", 2)
        where = ("--node-rank", number, "--master-addr", "10.7.0.1")
        words = ("ip", "netns", "exec", name, *torchrun, *where, *deeds, "OUTPUT_DIR", tmp_path)
        command = list(map(str, words))
        agents.append(Popen(command, env=environment, stdout=PIPE, stderr=PIPE, text=True))
    assert [agent.stdout.readline() for agent in agents] == ["trains\n"] * 2
    ip("-n", machines[0], "link", "set", "wire", "down")
    for rank, agent in enumerate(agents):
        said = agent.communicate(timeout=PATIENCE)[1]
        assert agent.returncode == 1
        assert f"error: rank {rank}: Another rank failed, or did not answer within DIST" in said
