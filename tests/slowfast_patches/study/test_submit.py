"""tools/submit.py: what it checks, queues and refuses, and that its job is the run itself."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import submitit
import torch

CONFIGS = Path(__file__).parents[3] / "configs"


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


def test_its_job_trains_what_run_net_trains(
    submit: Callable, cluster: Any, tmp_path: Path, multigrid_run: Path, opened: Callable
) -> None:
    status, said, _ = submit()
    assert status == 0
    assert "job 4242 is queued" in said
    assert "Global batch: 1 × TRAIN.BATCH_SIZE 4 = 4 clips; SOLVER.BASE_LR 0.01" in said
    cluster.start()
    assert cluster.wait(600) == [0], cluster.log()
    direct, ours = opened(multigrid_run).checkpoint, opened(tmp_path / "run").checkpoint
    assert ours["iteration"] == direct["iteration"]
    for name, weights in direct["model_state"].items():
        assert torch.equal(ours["model_state"][name], weights), name
    assert opened(tmp_path / "run").result["top1"] == opened(multigrid_run).result["top1"]
    cluster.state("COMPLETED")
    assert "holds a finished run" in submit("--dry-run")[2]


def test_what_it_asks_slurm_for(submit: Callable, cluster: Any, tmp_path: Path) -> None:
    options = ["--nodes", 2, "--hours", 1.5, "--warning-seconds", 300, "--option", "account=vision"]
    assert submit(*options, "--job-name", "mine", "TRAIN.BATCH_SIZE", 2)[0] == 0
    lines = cluster.batch.splitlines()
    for option in (
        *("account=vision", "cpus-per-task=1", "job-name=mine", "nodes=2", "ntasks-per-node=1"),
        *("partition=gpu", "requeue", "signal=USR2@300", "time=90"),
    ):
        assert f"#SBATCH --{option}" in lines, option
    assert not any("gpus" in line for line in lines)  # the tiny recipe trains on the CPU
    [command] = [line for line in lines if line.startswith("srun ")]
    assert "--kill-on-bad-exit=1 --wait=0" in command
    noted = json.loads((tmp_path / "run" / "job.json").read_text())
    assert (noted["job"], noted["machines"], noted["gpus"]) == ("4242", 2, 0)
    keys = noted["command"][noted["command"].index("DATA_LOADER.NUM_WORKERS") :]
    assert dict(zip(keys[::2], keys[1::2], strict=True))["NUM_SHARDS"] == "2"


def test_a_run_has_one_job_at_a_time(submit: Callable, cluster: Any) -> None:
    assert submit()[0] == 0
    for state in ("PENDING", "COMPLETING"):
        cluster.state(state)
        status, _, said = submit()
        assert status == 2
        assert "job 4242 trains into" in said
        assert "scancel 4242" in said
    cluster.state("FAILED")
    assert submit()[0] == 0


def test_a_refusal_of_sbatch_is_passed_on(submit: Callable, cluster: Any, tmp_path: Path) -> None:
    (cluster.folder / "sbatch").write_text("#!/bin/sh\necho 'invalid partition' >&2; exit 1\n")
    status, _, said = submit()
    assert status == 2
    assert "sbatch refuses the jobs" in said
    assert "invalid partition" in said
    assert not (tmp_path / "run" / "job.json").exists()


def test_a_dry_run_prints_the_batch_file_and_leaves_nothing(
    submit: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no SLURM
    status, out, err = submit("--dry-run", "--nodes", 4, "TRAIN.BATCH_SIZE", 1)
    assert status == 0
    assert out.startswith("#!/bin/bash\n")
    assert "#SBATCH --nodes=4\n" in out
    assert "Global batch: 4 × TRAIN.BATCH_SIZE 1 = 4 clips" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_without_slurm_it_says_what_to_run_instead(
    submit: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    status, _, said = submit("--nodes", 2, "TRAIN.BATCH_SIZE", 2)
    assert status == 2
    assert "there is no SLURM on this machine (no sbatch)" in said
    torchrun, srun = [line.strip() for line in said.splitlines() if line.startswith("    ")]
    assert torchrun.startswith("torchrun --nnodes 2 ")
    assert srun.startswith("srun --partition gpu --nodes 2 --ntasks-per-node 1 ")
    assert all("run_net.py" in line and "NUM_SHARDS 2" in line for line in (torchrun, srun))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--gpus-per-node", 3], "does not divide over 3 processes"),
        (["--nodes", 2, "NUM_SHARDS", 2], "--nodes 2 sets NUM_SHARDS"),
        (["SHARD_ID", 1], "SHARD_ID is set on each machine"),
        (["--hours", 0.01], "would end before its warning"),
        (["TRAIN.CHECKPOINT_FILE_PATH", __file__], "no PyTorch checkpoint"),
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
    status, said, warned = submit(data=hidden)
    assert status == 0
    assert "no plan without the length of the list" in warned
    assert "Global batch" in said


@pytest.mark.slow
def test_a_batch_that_grows_without_its_learning_rate_is_warned_of(submit: Callable) -> None:
    machines = ["--dry-run", "--nodes", 2, "TRAIN.BATCH_SIZE", 2]
    alone = "the recipe's learning rates are for 2 clips an iteration, this has 4"
    warned = submit(*machines)[2]
    assert alone in warned
    assert "SOLVER.REFERENCE_BATCH_SIZE 2 the rates alone" in warned
    for key, value in (("REFERENCE_WORLD_SIZE", 1), ("REFERENCE_BATCH_SIZE", 2)):
        status, _, said = submit(*machines, f"SOLVER.{key}", value)
        assert status == 0
        assert "learning rates are for" not in said
        assert f"SOLVER.BASE_LR 0.02, scaled from 0.01 (SOLVER.{key})" in said


def test_the_paper_s_recipe_on_its_128_gpus(
    load_program: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = CONFIGS / "Kinetics" / "SLOWFAST_8x8_R50_MULTIGRID.yaml"
    command = [
        *("--cfg", str(recipe), "--partition", "gpu", "--nodes", "16", "--dry-run"),
        *("SOLVER.REFERENCE_WORLD_SIZE", "8", "DATA.PATH_TO_DATA_DIR", "/data/kinetics"),
    ]
    assert load_program("tools/submit.py").main(command) == 0
    said = capsys.readouterr()
    assert "128 processes. Global batch: 16 × TRAIN.BATCH_SIZE 64 = 1024 clips" in said.err
    for option in ("nodes=16", "gpus-per-node=8", "cpus-per-task=64", "time=1440"):
        assert f"#SBATCH --{option}\n" in said.out, option
