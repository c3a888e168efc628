"""tools/submit.py: what it checks, warns of and refuses. What becomes of jobs: test_slurm.py."""

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


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
        options = ["--cfg", str(tiny_recipe), "--partition", "gpu", "--cpus", "1"]
        keys = ["DATA.PATH_TO_DATA_DIR", str(data), "OUTPUT_DIR", str(tmp_path / "run")]
        capsys.readouterr()
        status = program.main([*options, *map(str, argv), "DATA_LOADER.NUM_WORKERS", "0", *keys])
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


@pytest.mark.slow
def test_what_it_asks_slurm_for(submit: Callable, tmp_path: Path) -> None:
    options = ["--hours", 1.5, "--warning-seconds", 300, "--option", "account=vision"]
    options += ["--requeues", 7, "--dry-run", "NUM_SHARDS", 2, "TRAIN.BATCH_SIZE", 2]
    _, text, err = submit(*options, data=tmp_path)
    assert "Global batch: 2 × TRAIN.BATCH_SIZE 2 = 4 clips" in err
    lines = text.splitlines()
    for option in (
        *("account=vision", "cpus-per-task=1", "nodes=2", "ntasks-per-node=1"),
        *("open-mode=append", "partition=gpu", "requeue", "signal=USR1@300", "time=90"),
        f"output={tmp_path}/run/slurm/%j.out",
    ):
        assert f"#SBATCH --{option}" in lines, option
    assert "-lt 7" in text
    assert "gpus" not in text  # the tiny recipe trains on the CPU
    assert "#SBATCH --gpus-per-node=2\n" in submit(*options, "NUM_GPUS", 2, data=tmp_path)[1]


def test_without_slurm_nothing_is_left(
    submit: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    status, _, said = submit(data=tmp_path)
    assert status == 2
    assert "This machine has no SLURM (no sbatch)" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["NUM_GPUS", 3], "does not divide evenly over 3 processes"),
        (["--hours", 0.03], "0.03 hours, .* is 120 seconds. .* shorter than the time limit"),
        (["TRAIN.CHECKPOINT_FILE_PATH", __file__], "is neither a file of PyTorch"),
    ],
)
def test_mistakes_are_found_before_it_is_queued(
    submit: Callable, argv: list[object], message: str
) -> None:
    status, _, said = submit(*argv)
    assert status == 2
    assert said.startswith("error: ")
    assert re.search(message, said)


@pytest.mark.slow
def test_what_this_machine_does_not_see_is_only_warned_of(submit: Callable, tmp_path: Path) -> None:
    hidden = tmp_path / "on_the_nodes"
    keys = ["TRAIN.CHECKPOINT_FILE_PATH", hidden / "weights.pyth", "DATA.NUM_TRAIN_VIDEOS", 24]
    status, _, said = submit("--dry-run", *keys, data=hidden)
    assert status == 0
    for name in ("train.csv", "val.csv", "test.csv", "weights.pyth"):
        assert f"warning: {hidden / name} is not on this machine" in said
    assert "Training set: 24 videos" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "is_warned"),
    [
        ([], True),
        (["SOLVER.REFERENCE_BATCH_SIZE", 2], False),
    ],
)
def test_a_batch_that_grows_without_its_learning_rate_is_warned_of(
    submit: Callable, tmp_path: Path, keys: list[object], is_warned: bool
) -> None:
    """The tiny recipe has 4 clips per iteration. No list, no plan."""
    batch = ("--dry-run", "NUM_SHARDS", 2)
    said = submit(*batch, *keys, data=tmp_path / "on_the_nodes")[2]
    assert ("learning rates are for 4 clips per iteration, but this job has 8" in said) is is_warned
