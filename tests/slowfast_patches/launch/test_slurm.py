"""Jobs on a real SLURM cluster: their resources, how they end, and when they are requeued."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slowfast_patches.config import load_recipe
from slowfast_patches.experiments.comparison import make_variants
from slowfast_patches.experiments.runs import Experiment
from slowfast_patches.experiments.slurm_jobs import submit_experiment
from slowfast_patches.launch.slurm import Slurm, batch_file
from slowfast_patches.launch.slurm import submit as submit_runs

RUN_NET = Path(__file__).parents[2] / "faults" / "faulty_run_net.py"
SLURM = Slurm("batch", cpus=1)


@pytest.fixture(scope="module")
def cluster(load_program) -> Iterator[Any]:
    module = load_program("tests/slowfast_patches/launch/slurm_cluster.py")
    if not module.is_possible():
        pytest.skip("SLURM jobs: needs root and apt-get install slurm-wlm munge")
    made = module.Cluster()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(made.config))
        yield made
    made.close()


RUN = """
import os, pathlib, signal, sys, time

signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
if "other" in " ".join(sys.argv) and os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
    pathlib.Path(__file__).with_name("waits").touch()
    time.sleep(240)
"""


def test_an_experiment_is_queued_once_and_a_run_that_is_warned_starts_again(
    cluster, tiny_recipe, tmp_path
):
    """A job that SLURM rejects is not taken for queued."""
    other = shutil.copy(tiny_recipe, tmp_path / "other.yaml")
    data = ["DATA.PATH_TO_DATA_DIR", str(tiny_recipe.parent)]
    experiment = Experiment(make_variants([tiny_recipe, other], data), [0], tmp_path / "100 % x")
    program = tmp_path / "run.py"
    program.write_text(RUN)
    with pytest.raises(ValueError, match=r"SLURM's sbatch failed: .* invalid partition"):
        submit_experiment(experiment, program, Slurm("nowhere"))
    first, second = submit_experiment(experiment, program, SLURM).values()
    assert submit_experiment(experiment, program, SLURM) == {}
    cluster.until((tmp_path / "waits").exists)
    cluster.run("scancel", "--signal=USR1", second)
    assert cluster.end(first) == cluster.end(second) == "COMPLETED 0:0"
    assert (cluster.restarts(first), cluster.restarts(second)) == (0, 1)


def test_a_training_on_two_nodes_fails_once_if_a_rank_is_killed(
    cluster, tiny_recipe, tmp_path, monkeypatch
):
    keys = ("DATA.PATH_TO_DATA_DIR", tiny_recipe.parent, "OUTPUT_DIR", tmp_path)
    keys += ("NUM_SHARDS", 2, "TRAIN.BATCH_SIZE", 2, "DATA_LOADER.NUM_WORKERS", 0)
    words = (sys.executable, RUN_NET, "--cfg", tiny_recipe, *keys)
    for name, value in {"ONE_BLOCK": "1", "FAULT": "step:3", "FAULTY_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    recipe = load_recipe(tiny_recipe, list(map(str, keys)))
    job = submit_runs({".": (recipe, list(map(str, words)))}, tmp_path, SLURM)["."]
    assert cluster.end(job) == "FAILED 137:0"
    said = (tmp_path / "slurm" / f"{job}.out").read_text()
    assert ": task 1: Killed" in said
    assert "error: rank 0: Another rank failed" in said
    assert cluster.restarts(job) == 0


@pytest.mark.parametrize(
    ("status", "restarts", "requeued"),
    [(0, 0, False), (1, 0, False), (75, 6, True), (75, 7, False), (138, 0, True)],
)
def test_a_job_requeues_itself_if_it_can_resume(tiny_config, tmp_path, status, restarts, requeued):
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
