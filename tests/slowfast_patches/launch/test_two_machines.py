"""torchrun on two machines, which are network namespaces here, and a connection that breaks."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen

import pytest

RUN_NET = Path(__file__).parents[2] / "faults" / "faulty_run_net.py"
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
def test_a_broken_connection_ends_the_training_on_both_machines_and_it_goes_on(
    machines: list[str],
    tiny_recipe: Path,
    one_block_keys: tuple[object, ...],
    tmp_path: Path,
    opened: type,
    assert_same_run: Callable[..., None],
) -> None:
    keys = ("DATA_LOADER.NUM_WORKERS", 0, "BN.USE_PRECISE_STATS", False, "TRAIN.BATCH_SIZE", 2)
    keys += ("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False, "SOLVER.MAX_EPOCH", 3)
    keys += ("SOLVER.STEPS", [0], "SOLVER.LRS", [1], "TRAIN.EVAL_PERIOD", 99)
    keys += ("TRAIN.CHECKPOINT_PERIOD", 1)
    keys += ("DATA.PATH_TO_DATA_DIR", tiny_recipe.parent)

    def start(folder: Path, *own: object, pause: float = 0.0) -> list[Popen[str]]:
        variables = {"GLOO_SOCKET_IFNAME": "wire", "ONE_BLOCK": "1", "PAUSE": str(pause)}
        run = ("--cfg", tiny_recipe, *keys, *one_block_keys, *own, "OUTPUT_DIR", folder)
        agents = []
        for number, name in enumerate(machines):
            torchrun = ("ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run")
            torchrun += ("--nnodes", 2, "--node-rank", number, "--master-addr", "10.7.0.1")
            command = list(map(str, (*torchrun, RUN_NET, *run)))
            environment = os.environ | variables
            agents.append(Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
        return agents

    broken, whole = tmp_path / "broken", tmp_path / "whole"
    agents = start(broken, "DIST_STALL_SECONDS", 12, pause=0.3)
    metrics, deadline = broken / "metrics.jsonl", time.monotonic() + PATIENCE
    while not metrics.exists() or metrics.read_text().count('"train"') < 8:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    ip("-n", machines[0], "link", "set", "wire", "down")
    for rank, agent in enumerate(agents):
        said = agent.communicate(timeout=PATIENCE)[1]
        assert agent.returncode == 1
        assert f"error: rank {rank}: another rank failed, or did not answer within DIST" in said
    ip("-n", machines[0], "link", "set", "wire", "up")
    for folder in (broken, whole):
        for agent in start(folder):
            assert agent.communicate(timeout=PATIENCE)[1] is not None
            assert agent.returncode == 0
    assert "Resuming after iteration" in opened(broken).log
    assert_same_run(opened(broken), opened(whole))
