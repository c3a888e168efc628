"""Stopped on four processes and continued on two, a run is the run on one."""

import re
import socket
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fvcore.common.config import CfgNode

from multigrid import MultigridBatchSampler
from slowfast_patches.config.schedule import schedule_from_config

WORKER = Path(__file__).with_name("elastic_worker.py")
NEVER = 10**6

# Dropout differs from rank to rank; the rate is one at which rounding stays rounding.
OPTIONS = (
    *("MODEL.DROPOUT_RATE", 0.0, "BN.USE_PRECISE_STATS", False, "SOLVER.BASE_LR", 0.002),
    *("SOLVER.MAX_EPOCH", 3, "SOLVER.STEPS", [0, 2], "TEST.ENABLE", False),
    *("MULTIGRID.LONG_CYCLE_FACTORS", [[0.5, 0.71], [1, 1]], "TRAIN.CHECKPOINT_PERIOD", 100),
)


@pytest.fixture
def torchrun(
    start_run_net: Callable[..., subprocess.Popen[str]],
) -> Callable[[int, Path, int], tuple[int, str]]:
    """`torchrun(processes, folder, stop_at)`: its exit status and what it said."""

    def run(processes: int, folder: Path, stop_at: int = NEVER) -> tuple[int, str]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        where = ("--master-addr", "127.0.0.1", "--master-port", port)
        worker = (str(WORKER), str(folder / f"notes_{processes}"), str(stop_at))
        launcher = ("-m", "torch.distributed.run", "--nproc-per-node", str(processes), *where)
        process = start_run_net(
            folder, *OPTIONS, launcher=(*launcher, *worker), GLOO_SOCKET_IFNAME="lo"
        )
        error = process.communicate(timeout=280)[1]
        return process.returncode, error

    return run


def clips_asked_for(folder: Path, processes: int) -> dict[int, list[tuple[int, int]]]:
    """(video, epoch) of each iteration, from all processes."""
    asked = defaultdict(list)
    for rank in range(processes):
        for line in (folder / f"notes_{processes}.{rank}").read_text().splitlines():
            iteration, video, epoch = map(int, line.split())
            asked[iteration].append((video, epoch))
    return {iteration: sorted(clips) for iteration, clips in asked.items()}


def test_stopped_on_four_processes_it_continues_on_two(
    torchrun: Callable[..., tuple[int, str]],
    train: Callable[..., Path],
    tiny_config: Callable[..., CfgNode],
    tmp_path: Path,
    opened: type,
):
    status, error = torchrun(4, tmp_path, 2)
    assert status != 0
    assert "stopped by SIGTERM" in error
    content = opened(tmp_path).checkpoint
    done = content["iteration"]
    assert done in (3, 4)
    assert content["running_stats"] is None or len(content["running_stats"]) == 4
    status, error = torchrun(2, tmp_path)
    assert status == 0, error
    assert re.findall(r"continuing after iteration (\d+)", opened(tmp_path).log) == [str(done)]

    cfg = tiny_config(tmp_path, *OPTIONS)
    schedule = schedule_from_config(cfg, 24)
    batches = MultigridBatchSampler(schedule, cfg.RNG_SEED)
    wanted = {i: sorted((r.video, r.epoch) for r in batch) for i, batch in enumerate(batches)}
    first, second = clips_asked_for(tmp_path, 4), clips_asked_for(tmp_path, 2)
    assert first == {i: clips for i, clips in wanted.items() if i < done}
    assert second == {i: clips for i, clips in wanted.items() if i >= done}

    undisturbed = opened(train(tmp_path / "one", *OPTIONS))
    ours, theirs = opened(tmp_path), undisturbed
    assert ours.checkpoint["iteration"] == theirs.checkpoint["iteration"] == schedule.iterations
    weights = theirs.checkpoint["model_state"]
    for name, weight in ours.checkpoint["model_state"].items():
        # Absolutely, what rounding leaves of a bias that starts at 0; updates are near 1e-3.
        torch.testing.assert_close(weight, weights[name], rtol=1e-5, atol=1e-6)
    for kind in ("train", "val"):
        for found, expected in zip(ours.metrics(kind), theirs.metrics(kind), strict=True):
            assert found["iteration"] == expected["iteration"]
            assert found["top1"] == pytest.approx(expected["top1"], rel=1e-5)
