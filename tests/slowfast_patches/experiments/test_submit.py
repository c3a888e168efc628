"""tools/submit.py: what it checks, warns of and refuses. What becomes of jobs: test_slurm.py."""

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from slowfast_patches.launch.slurm import Slurm
from slowfast_patches.utils.errors import UserError


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


@pytest.mark.slow("plans whole schedules")
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


def test_a_rejected_job_leaves_no_folder(
    submit: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\necho invalid account >&2\nexit 1\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    status, _, said = submit()
    assert status == 2
    assert "SLURM's sbatch failed: invalid account" in said
    assert not (tmp_path / "run").exists()


def test_a_failing_squeue_submits_nothing(
    submit: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which jobs are queued is then unknown."""
    for name, text in (
        ("sbatch", f"touch {tmp_path}/submitted"),
        ("squeue", "echo down >&2; exit 1"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    jobs = tmp_path / "run" / "slurm" / "jobs.json"
    jobs.parent.mkdir(parents=True)
    jobs.write_text('{".": ["7", "train"]}')
    status, _, said = submit()
    assert status == 2
    assert "SLURM's squeue failed: down" in said
    assert not (tmp_path / "submitted").exists()
    assert jobs.read_text() == '{".": ["7", "train"]}'


@pytest.mark.parametrize(
    ("hours", "minutes"), [(1.1, 66), (1.5, 90), (24.0, 1440), (0.0701, 5), (2 / 3, 40)]
)
def test_the_time_limit_is_rounded_up_to_minutes(hours: float, minutes: int) -> None:
    assert Slurm("gpu", hours=hours).minutes == minutes


@pytest.mark.parametrize("options", [{"cpus": 0}, {"cpus": -2}, {"requeues": -1}])
def test_numbers_that_slurm_cannot_take_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(UserError, match="1 core or more"):
        Slurm("gpu", **options)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["NUM_GPUS", 3], "does not divide evenly over 3 processes"),
        (["--hours", 0.035], r"3 minutes, .* is 120 seconds\. .* --hours to 0\.067 or more"),
        (["--hours", 0.005, "--warning-seconds", 10], r"1 minutes, .* is 10 seconds"),
        (["NUM_SHARDS", 2, "SHARD_ID", 1], "SHARD_ID is 1, .* Remove SHARD_ID"),
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


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--partition", " "], "the name of the partition is empty"),
        (["--hours", 0], "--hours: expected a number above 0, not 0"),
        (["--hours", -1], "--hours: expected a number above 0, not -1"),
        (["--cpus", 0], "--cpus: expected a whole number of at least 1, not 0"),
        (["--requeues", -1], "--requeues: expected a whole number of at least 0, not -1"),
        (["--warning-seconds", 0], "--warning-seconds: expected a whole number of at least 1"),
    ],
)
def test_options_without_a_meaning_are_refused(
    submit: Callable, capsys: pytest.CaptureFixture[str], argv: list[object], message: str
) -> None:
    with pytest.raises(SystemExit) as end:
        submit("--dry-run", *argv)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_lists_in_the_current_folder_are_not_those_of_the_job(
    submit: Callable, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the recipe is on the nodes alone, so the number of videos is not known."""
    monkeypatch.chdir(tiny_recipe.parent)
    assert Path("train.csv").is_file()
    status, _, said = submit("--dry-run", data=tmp_path / "on_the_nodes")
    assert status == 0
    assert f"warning: {tmp_path}/on_the_nodes/train.csv is not on this machine" in said
    assert "Training set" not in said


@pytest.mark.slow("plans whole schedules")
def test_what_this_machine_does_not_see_is_only_warned_of(submit: Callable, tmp_path: Path) -> None:
    hidden = tmp_path / "on_the_nodes"
    keys = ["TRAIN.CHECKPOINT_FILE_PATH", hidden / "weights.pyth", "DATA.NUM_TRAIN_VIDEOS", 24]
    status, _, said = submit("--dry-run", *keys, data=hidden)
    assert status == 0
    for name in ("train.csv", "val.csv", "test.csv", "weights.pyth"):
        assert f"warning: {hidden / name} is not on this machine" in said
    assert "Training set: 24 videos" in said


@pytest.mark.slow("plans whole schedules")
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
