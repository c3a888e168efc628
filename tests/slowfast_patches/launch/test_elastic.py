"""Stopped on four processes and continued on two, a run is the run on one."""

import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from multigrid import MultigridBatchSampler
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.launch.stopping import INTERRUPTED_STATUS

pytestmark = pytest.mark.slow

WORKER = Path(__file__).with_name("elastic_worker.py")
RUN_NET = Path(__file__).parents[3] / "tools" / "run_net.py"
NEVER = 10**6

# Dropout differs from rank to rank; the rate is one at which rounding stays rounding.
OPTIONS = (
    *("MODEL.DROPOUT_RATE", 0.0, "BN.USE_PRECISE_STATS", False, "SOLVER.BASE_LR", 0.002),
    *("SOLVER.MAX_EPOCH", 3, "SOLVER.STEPS", [0, 2], "TEST.ENABLE", False),
    *("MULTIGRID.LONG_CYCLE_FACTORS", [[0.5, 0.71], [1, 1]], "TRAIN.CHECKPOINT_PERIOD", 100),
    *("DATA_LOADER.NUM_WORKERS", 0),
)


def run_on(processes: int, recipe: Path, folder: Path, stop_at: int) -> tuple[list[int], str]:
    """The exit statuses of the processes, and what they said."""
    paths = ("DATA.PATH_TO_DATA_DIR", recipe.parent, "OUTPUT_DIR", folder)
    command = [WORKER, folder, processes, stop_at, RUN_NET, "--cfg", recipe, *paths, *OPTIONS]
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    return [int(status) for status in done.stdout.split()], done.stderr


def clips_asked_for(folder: Path, processes: int) -> dict[int, list[tuple[int, int]]]:
    """(video, epoch) of each iteration, from all processes."""
    asked = defaultdict(list)
    for rank in range(processes):
        for line in (folder / f"{processes}.{rank}").read_text().splitlines():
            iteration, video, epoch = map(int, line.split())
            asked[iteration].append((video, epoch))
    return {iteration: sorted(clips) for iteration, clips in asked.items()}


def test_stopped_on_four_processes_it_continues_on_two(
    train: Callable[..., Path],
    tiny_config: Callable[..., Recipe],
    tiny_recipe: Path,
    tmp_path: Path,
    opened: type,
):
    statuses, error = run_on(4, tiny_recipe, tmp_path, stop_at=2)
    assert statuses == [INTERRUPTED_STATUS] * 4, error
    assert "stopped by SIGTERM" in error
    content = opened(tmp_path).checkpoint
    done = content["iteration"]
    assert done in (3, 4)
    assert content["running_stats"] is None or len(content["running_stats"]) == 4
    statuses, error = run_on(2, tiny_recipe, tmp_path, stop_at=NEVER)
    assert statuses == [0, 0], error
    assert re.findall(r"continuing after iteration (\d+)", opened(tmp_path).log) == [str(done)]

    cfg = tiny_config(tmp_path, *OPTIONS)
    schedule = schedule_of(cfg, 24)
    batches = MultigridBatchSampler(schedule, cfg.rng_seed)
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
