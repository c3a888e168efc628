"""Jobs on a real SLURM cluster: their resources, how they end, and when they are requeued."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from slowfast_patches.config import load_recipe
from slowfast_patches.launch.slurm import Slurm, batch_file
from slowfast_patches.study.compare import make_arms
from slowfast_patches.study.runs import Study
from slowfast_patches.study.slurm_jobs import submit as submit_runs
from slowfast_patches.study.slurm_jobs import submit_study

RUN_NET = Path(__file__).parents[2] / "faults" / "faulty_run_net.py"
KEYS = ("DATA_LOADER.NUM_WORKERS", 0, "BN.USE_PRECISE_STATS", False, "MODEL.DROPOUT_RATE", 0.0)
KEYS += ("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False, "TRAIN.EVAL_PERIOD", 99)
KEYS += ("SOLVER.STEPS", [0], "SOLVER.LRS", [1], "SOLVER.MAX_EPOCH", 2, "TRAIN.BATCH_SIZE", 2)
SLURM = Slurm("batch", cpus=1)


@pytest.fixture(scope="module")
def cluster(load_program: Callable[[str], ModuleType]) -> Iterator[Any]:
    module = load_program("tests/slowfast_patches/launch/slurm_cluster.py")
    if not module.is_possible():
        pytest.skip("SLURM jobs: needs root and apt-get install slurm-wlm munge")
    made = module.Cluster()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(made.config))
        yield made
    made.close()


def test_a_rejected_job_is_not_recorded_and_a_queued_one_is_not_queued_again(
    cluster: Any,
    tiny_config: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, runs = tmp_path / "of" / "run", {"a": (tiny_config(tmp_path), ["true"])}
    with pytest.raises(ValueError, match=r"SLURM's sbatch failed: .* invalid partition"):
        submit_runs(runs, folder, Slurm("nowhere"))
    assert not list(folder.rglob("jobs.json"))
    queued = submit_runs(runs, folder, Slurm("batch", options={"hold": ""}))
    assert submit_runs(runs, folder, SLURM) == {}
    (tmp_path / "squeue").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(ValueError, match="SLURM's squeue failed"):
        submit_runs(runs, folder, SLURM)
    assert json.loads((folder / "slurm" / "jobs.json").read_text()) == queued
    cluster.run("scancel", queued["a"])


RUN = """
import os, pathlib, signal, sys, time

signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
if "other" in " ".join(sys.argv) and os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
    pathlib.Path(__file__).with_name("waits").touch()
    time.sleep(240)
"""


def test_a_study_is_queued_once_and_a_run_that_is_warned_starts_again(
    cluster: Any, tiny_recipe: Path, tmp_path: Path
) -> None:
    other = shutil.copy(tiny_recipe, tmp_path / "other.yaml")
    data = ["DATA.PATH_TO_DATA_DIR", str(tiny_recipe.parent)]
    study = Study(make_arms([tiny_recipe, other], data), [0], tmp_path / "100 % x")
    program = tmp_path / "run.py"
    program.write_text(RUN)
    first, second = submit_study(study, program, SLURM).values()
    assert submit_study(study, program, SLURM) == {}
    cluster.until((tmp_path / "waits").exists)
    cluster.run("scancel", "--signal=USR1", second)
    assert cluster.end(first) == cluster.end(second) == "COMPLETED 0:0"
    assert (cluster.restarts(first), cluster.restarts(second)) == (0, 1)


def test_a_training_on_two_nodes_fails_once_if_a_rank_is_killed(
    cluster: Any, tiny_recipe: Path, one_block_keys: tuple[object, ...], tmp_path: Path
) -> None:
    keys = ("DATA.PATH_TO_DATA_DIR", tiny_recipe.parent, *one_block_keys, *KEYS)
    keys += ("NUM_SHARDS", 2, "OUTPUT_DIR", tmp_path)
    words = (sys.executable, RUN_NET, "--cfg", tiny_recipe, *keys)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"ONE_BLOCK": "1", "FAULT": "step:3", "FAULTY_RANK": "1"}.items():
            patch.setenv(name, value)
        recipe = load_recipe(tiny_recipe, list(map(str, keys)))
        job = submit_runs({".": (recipe, list(map(str, words)))}, tmp_path, SLURM)["."]
    assert cluster.end(job) == "FAILED 137:0"
    said = (tmp_path / "slurm" / f"{job}.out").read_text()
    assert ": task 1: Killed" in said
    assert "error: rank 0: Another rank failed" in said
    assert cluster.restarts(job) == 0


@pytest.mark.parametrize(
    ("status", "restarts", "requeued"),
    [(0, 0, False), (1, 0, False), (75, 6, True), (75, 7, False), (138, 0, True), (143, 0, True)],
)
def test_a_job_requeues_itself_if_it_can_resume(
    tiny_config: Callable[..., Any], tmp_path: Path, status: int, restarts: int, requeued: bool
) -> None:
    for name, text in (("srun", f"exit {status}"), ("scontrol", 'echo "$@" >&2')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    slurm = Slurm("batch", requeues=7)
    text = batch_file(["train", "one"], tiny_config(tmp_path), slurm, tmp_path)
    ids = {"SLURM_JOB_ID": "12", "SLURM_CPUS_PER_TASK": "1"}
    environment = {"PATH": f"{tmp_path}:/bin:/usr/bin", "SLURM_RESTART_COUNT": str(restarts)} | ids
    done = subprocess.run(["bash", "-c", text], env=environment, capture_output=True, text=True)
    assert done.returncode == status
    assert (done.stderr == "requeue 12\n") is requeued
    assert ("submit it again" in done.stdout) is (status == 75 and not requeued)
