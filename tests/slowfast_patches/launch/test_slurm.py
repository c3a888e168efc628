"""Jobs on a real SLURM: what ends them, and that they go on bit for bit.

Jobs run side by side, and mostly wait. Trainings that are to be interrupted pause at each step.
"""

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
from slowfast_patches.study.submit import queue, submit_study
from slowfast_patches.study.submit import submit as submit_runs

RUN_NET = Path(__file__).parents[2] / "faults" / "faulty_run_net.py"
KEYS = ("DATA_LOADER.NUM_WORKERS", 0, "BN.USE_PRECISE_STATS", False, "MODEL.DROPOUT_RATE", 0.0)
KEYS += ("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False, "TRAIN.EVAL_PERIOD", 99)
KEYS += ("SOLVER.STEPS", [0], "SOLVER.LRS", [1], "SOLVER.MAX_EPOCH", 2, "DIST_JOIN_SECONDS", 10)
SLURM = Slurm("batch", cpus=1)


@pytest.fixture(scope="module")
def cluster(load_program: Callable[[str], ModuleType]) -> Iterator[Any]:
    module = load_program("tests/slowfast_patches/launch/slurm_cluster.py")
    if not module.is_possible():
        pytest.skip("SLURM jobs: needs root and apt-get install slurm-wlm munge")
    made = module.Cluster()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(made.config))
        patch.setenv("ONE_BLOCK", "1")
        yield made
    made.close()


@pytest.fixture(scope="module")
def keys(tiny_recipe: Path, one_block_keys: tuple[object, ...]) -> tuple[object, ...]:
    return ("DATA.PATH_TO_DATA_DIR", tiny_recipe.parent, *one_block_keys, *KEYS)


@pytest.fixture(scope="module")
def submit(cluster: Any, tiny_recipe: Path, keys: tuple[object, ...]) -> Callable[..., str]:
    """`submit(folder, nodes, KEY, value, ..., slurm=..., NAME=value)`: the ID of a job."""

    def call(
        folder: Path, nodes: int, *own: object, slurm: Slurm = SLURM, **environment: str
    ) -> str:
        batch = ("TRAIN.BATCH_SIZE", 4 // nodes, "NUM_SHARDS", nodes, "OUTPUT_DIR", folder)
        words = (sys.executable, RUN_NET, "--cfg", tiny_recipe, *keys, *batch, *own)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            recipe = load_recipe(tiny_recipe, list(map(str, (*keys, *batch))))
            queued = submit_runs({".": (recipe, list(map(str, words)))}, folder, slurm)
            return queued.get(".", "already queued")

    return call


def output(folder: Path) -> str:
    [path] = (folder / "slurm").glob("*.out")
    return path.read_text()


def trains(folder: Path, iterations: int = 3) -> Callable[[], bool]:
    """Whether a run has done some iterations."""
    path = folder / "metrics.jsonl"
    return lambda: path.exists() and path.read_text().count('"train"') >= iterations


def test_what_a_job_gets(cluster: Any, tiny_config: Callable[..., Any], tmp_path: Path) -> None:
    """All CPUs of a task, which srun of SLURM 22.05 takes from its own option alone."""
    script = "scontrol show step $SLURM_JOB_ID.$SLURM_STEP_ID; scontrol show job $SLURM_JOB_ID"
    slurm = Slurm("batch", cpus=3, hours=1.5, options={"comment": "a b", "nice": "7"})
    recipe = tiny_config(tmp_path, "NUM_SHARDS", 2)
    job = queue(batch_file([["bash", "-c", script]], recipe, slurm, tmp_path))
    assert cluster.end(job) == "COMPLETED 0:0"
    said = (tmp_path / f"{job}.out").read_text()
    for text in ("CPUs=6 Tasks=2", "TimeLimit=01:30:00", "Comment=a b", "Nice=7", "Requeue=1"):
        assert text in said


def test_a_rejected_job_is_not_recorded_and_a_queued_one_is_not_queued_again(
    cluster: Any, submit: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "of" / "run"
    with pytest.raises(ValueError, match=r"SLURM rejected the jobs: .* invalid partition"):
        submit(folder, 1, slurm=Slurm("nowhere"))
    assert not list(folder.rglob("jobs.json"))
    job = submit(folder, 1, slurm=Slurm("batch", options={"hold": ""}))
    assert submit(folder, 1) == "already queued"
    (tmp_path / "squeue").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(ValueError, match="SLURM does not answer"):
        submit(folder, 1)
    assert json.loads((folder / "slurm" / "jobs.json").read_text()) == {".": job}
    cluster.run("scancel", job)


def test_runs_go_on_bit_for_bit_after_a_warning_and_fail_once_if_a_rank_is_killed(
    cluster: Any,
    submit: Callable[..., str],
    tiny_recipe: Path,
    keys: tuple[object, ...],
    tmp_path: Path,
    opened: type,
    assert_same_run: Callable[..., None],
) -> None:
    """The same run twice, as an array, and one on two nodes, side by side."""
    killed = submit(tmp_path / "killed", 2, FAULT="step:3", FAULTY_RANK="1")
    other = shutil.copy(tiny_recipe, tmp_path / "other.yaml")
    study = Study(make_arms([tiny_recipe, other], list(map(str, keys))), [0], tmp_path / "100 % x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAUSE", "0.2")
        first, second = submit_study(study, RUN_NET, SLURM).values()
    assert submit_study(study, RUN_NET, SLURM) == {}
    whole, warned = (study.folder(arm, 0) for arm in study.arms)
    cluster.until(trains(warned))
    cluster.run("scancel", "--signal=USR1", second)
    assert cluster.end(first) == cluster.end(second) == "COMPLETED 0:0"
    assert (cluster.restarts(first), cluster.restarts(second)) == (0, 1)
    assert_same_run(opened(warned), opened(whole))
    assert submit_study(study, RUN_NET, SLURM) == {}
    assert cluster.end(killed) == "FAILED 137:0"
    assert ": task 1: Killed" in output(tmp_path / "killed")
    assert "error: rank 0: Another rank failed" in output(tmp_path / "killed")
    assert cluster.restarts(killed) == 0


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
    text = batch_file([["train", "one"], ["train", "two"]], tiny_config(tmp_path), slurm, tmp_path)
    ids = {"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "1", "SLURM_CPUS_PER_TASK": "1"}
    environment = {"PATH": f"{tmp_path}:/bin:/usr/bin", "SLURM_RESTART_COUNT": str(restarts)} | ids
    done = subprocess.run(["bash", "-c", text], env=environment, capture_output=True, text=True)
    assert done.returncode == status
    assert (done.stderr == "requeue 12_1\n") is requeued
    assert ("submit it again" in done.stdout) is (status == 75 and not requeued)
