"""tools/submit.py: what it checks, queues and refuses, and that its job is the run itself."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import submitit


@pytest.fixture
def submit(
    load_program: Callable[[str], ModuleType],
    tiny_recipe: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str, str]]:
    """`submit(...)` of the tiny recipe, into tmp_path/run: exit status, and what it said."""
    program = load_program("tools/submit.py")

    def call(*argv: object, data: Path = tiny_recipe.parent) -> tuple[int, str, str]:
        options = ["--cfg", str(tiny_recipe), "--partition", "gpu", "--cpus-per-gpu", "1"]
        keys = ["DATA.PATH_TO_DATA_DIR", str(data), "OUTPUT_DIR", str(tmp_path / "run")]
        capsys.readouterr()
        submitit.SlurmJob.watcher.clear()  # each call is a process of its own, in truth
        status = program.main([*options, *map(str, argv), "DATA_LOADER.NUM_WORKERS", "0", *keys])
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


def test_its_job_is_the_run_itself_and_there_is_one_at_a_time(
    submit: Callable, cluster: Any, tmp_path: Path, opened: Callable
) -> None:
    short = ["SOLVER.MAX_EPOCH", 1, "SOLVER.STEPS", [0], "SOLVER.LRS", [1], "TEST.ENABLE", False]
    short += ["MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False]
    short += ["TRAIN.EVAL_PERIOD", 99, "BN.USE_PRECISE_STATS", False]
    status, said, _ = submit(*short)
    assert status == 0
    assert "Submitted job 4242" in said
    assert "Global batch: 1 × TRAIN.BATCH_SIZE 4 = 4 clips; SOLVER.BASE_LR 0.01" in said
    cluster.state("PENDING")
    status, _, refused = submit(*short, data=tmp_path)  # no list, no plan
    assert status == 2
    assert "is already queued or running" in refused
    assert "scancel 4242" in refused
    cluster.start()
    assert cluster.wait(600) == [0], cluster.log()
    [iterations] = [line.split()[1] for line in said.splitlines() if line.startswith("iterations")]
    assert opened(tmp_path / "run").result["iterations"] == int(iterations)
    cluster.state("COMPLETED")
    assert "has a finished run" in submit("--dry-run")[2]


def test_what_it_asks_slurm_for(submit: Callable, cluster: Any, tmp_path: Path) -> None:
    options = ["--nodes", 2, "--hours", 1.5, "--warning-seconds", 300, "--option", "account=vision"]
    few = ("TRAIN.BATCH_SIZE", 2)
    assert submit(*options, "--job-name", "mine", *few, data=tmp_path)[0] == 0
    lines = cluster.batch.splitlines()
    for option in (
        *("account=vision", "cpus-per-task=1", "job-name=mine", "nodes=2", "ntasks-per-node=1"),
        *("partition=gpu", "requeue", "signal=USR2@300", "time=90"),
    ):
        assert f"#SBATCH --{option}" in lines, option
    assert not any("gpus" in line for line in lines)  # the tiny recipe trains on the CPU
    [command] = [line for line in lines if line.startswith("srun ")]
    assert "--kill-on-bad-exit=1 --wait=0" in command
    assert json.loads((tmp_path / "run" / "slurm" / "jobs.json").read_text()) == {".": "4242"}


def test_a_refusal_of_sbatch_is_passed_on(submit: Callable, cluster: Any, tmp_path: Path) -> None:
    (cluster.folder / "sbatch").write_text("#!/bin/sh\necho 'invalid partition' >&2; exit 1\n")
    status, _, said = submit(data=tmp_path)
    assert status == 2
    assert "SLURM rejected the jobs" in said
    assert "invalid partition" in said
    assert not list(tmp_path.rglob("jobs.json"))


@pytest.mark.slow
def test_without_slurm_a_dry_run_prints_the_batch_file_and_leaves_nothing(
    submit: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    status, out, err = submit("--dry-run", "--nodes", 4, "TRAIN.BATCH_SIZE", 1)
    assert status == 0
    assert out.startswith("#!/bin/bash\n")
    assert "#SBATCH --nodes=4\n" in out
    assert "Global batch: 4 × TRAIN.BATCH_SIZE 1 = 4 clips" in err
    status, _, said = submit(data=tmp_path)
    assert status == 2
    assert "This machine has no SLURM (no sbatch)" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--gpus-per-node", 3], "does not divide evenly over 3 processes"),
        (["--nodes", 2, "NUM_SHARDS", 2], "--nodes 2 sets NUM_SHARDS"),
        (["SHARD_ID", 1], "SHARD_ID is set on each machine"),
        (["--hours", 0.01], "longer than the warning time of 120"),
        (["--warning-seconds", 0], "is 0 seconds, but must be from 1 to 65535"),
        (["TRAIN.CHECKPOINT_FILE_PATH", __file__], "not a PyTorch checkpoint"),
    ],
)
def test_mistakes_are_found_before_it_is_queued(
    submit: Callable, cluster: Any, argv: list[object], message: str
) -> None:
    status, _, said = submit(*argv)
    assert status == 2
    assert said.startswith("error: ")
    assert message in said
    assert not (cluster.folder / "batch").exists()


def test_what_this_machine_does_not_see_is_only_warned_of(
    submit: Callable, cluster: Any, tmp_path: Path
) -> None:
    hidden = tmp_path / "on_the_nodes"
    weights = ["TRAIN.CHECKPOINT_FILE_PATH", hidden / "weights.pyth"]
    status, said, warned = submit(*weights, "DATA.NUM_TRAIN_VIDEOS", 24, data=hidden)
    assert status == 0
    for name in ("train.csv", "val.csv", "test.csv", "weights.pyth"):
        assert f"warning: {hidden / name} is not on this machine" in warned
    assert "Training set: 24 videos" in said
    cluster.state("FAILED")
    status, _, warned = submit(data=hidden)
    assert status == 0
    assert "the training list is not on this machine" in warned


@pytest.mark.slow
def test_a_batch_that_grows_without_its_learning_rate_is_warned_of(
    submit: Callable, tmp_path: Path
) -> None:
    """No list, no plan: only the batch and its rate are looked at."""

    def dry_run(*keys: object) -> str:
        batch = ("--dry-run", "--nodes", 2, "TRAIN.BATCH_SIZE", 2)
        return submit(*batch, *keys, data=tmp_path / "on_the_nodes")[2]

    warned = dry_run()
    assert "the recipe's learning rates are for 2 clips per iteration, but this job has 4" in warned
    for key, value in (("REFERENCE_WORLD_SIZE", 1), ("REFERENCE_BATCH_SIZE", 2)):
        said = dry_run(f"SOLVER.{key}", value)
        assert "learning rates are for" not in said
        assert "SOLVER.BASE_LR 0.02" in said
