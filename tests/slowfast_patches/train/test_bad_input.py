"""Mistakes of users cause a one-line message without a traceback."""

import re
import shutil
from pathlib import Path

import pytest

from tests.conftest import Folder

OFF = (
    *("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False, "TEST.ENABLE", False),
    *("SOLVER.MAX_EPOCH", 2, "SOLVER.STEPS", [0, 1], "BN.USE_PRECISE_STATS", False),
    *("SOLVER.WARMUP_EPOCHS", 0, "TRAIN.EVAL_PERIOD", 2),
)
"""Two epochs of 6 iterations at the baseline shape."""


@pytest.fixture
def lists(tiny_data: Path, tmp_path: Path) -> Path:
    """Copies of the csv files, to be spoiled."""
    folder = tmp_path / "lists"
    folder.mkdir()
    for path in tiny_data.glob("*.csv"):
        shutil.copy(path, folder)
    return folder


def change_line(path: Path, number: int, line: str) -> None:
    lines = path.read_text().splitlines()
    lines[number - 1] = line
    path.write_text("\n".join(lines) + "\n")


def assert_refused(answer: tuple[int, str], *said: str) -> None:
    status, error = answer
    assert status == 2
    [refusal] = [line for line in error.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in error
    for part in said:
        assert part in error[error.index(refusal) :]


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Before anything is trained.


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("SLOWFAST.ALPHA", 4), "SLOWFAST.ALPHA 4 must divide the number of frames"),
        (("DATA.PATH_PREFIX", "/nowhere"), "videos that were looked up in"),
        (("MODEL.NUM_CLASSES", 5), "has the names of 8 classes. Set MODEL.NUM_CLASSES 8"),
        (("TRAIN.ENABLE", False), "no model to test"),
        (("TEST.SAVE_RESULTS_PATH", "../new.csv"), "without a folder"),
        (("TRAIN.CHECKPOINT_INFLATE", True), "no weights to inflate"),
        (("TRAIN.FREEZE", "s1"), "TRAIN.FREEZE s1 would freeze random"),
        (("TRAIN.CHECKPOINT_FILE_PATH", "none.pyth"), "none.pyth: there is no such file"),
    ],
)
def test_mistakes_in_the_recipe(command_line, tmp_path, overrides, said):
    assert_refused(command_line(tmp_path / "run", *overrides), said)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_checkpoint_of_another_recipe_and_nothing_of_that_run_is_touched(
    command_line, multigrid_run, tmp_path
):
    finished = shutil.copytree(multigrid_run, tmp_path / "finished")
    before = files(finished)
    answer = command_line(finished, "SOLVER.BASE_LR", 0.5, "LOG_PERIOD", 3)
    assert_refused(answer, "is of another run", "SOLVER.BASE_LR 0.01 there, 0.5 here")
    after = files(finished)
    log = finished / "train.log"
    assert after.pop(log).startswith(before.pop(log))  # says what was refused
    assert after == before


# While training.


def test_a_loss_that_is_not_finite_ends_it_and_a_lower_rate_goes_on_from_the_checkpoint_before(
    command_line, tmp_path
):
    keys = (*OFF, "SOLVER.LRS", [0.1, 1e20], "TRAIN.CHECKPOINT_PERIOD", 1)
    answer = command_line(tmp_path, *keys)
    assert_refused(answer, "The loss of iteration ", "LR 1e+18", "SOLVER.BASE_LR")
    assert "checkpoint_iter_00000006.pyth" in answer[1]
    run = Folder(tmp_path)
    assert run.checkpoint["iteration"] == 6
    assert all(weight.isfinite().all() for weight in run.checkpoint["model_state"].values())

    assert command_line(tmp_path, *keys, "SOLVER.BASE_LR", 1e-21)[0] == 0
    change = "after iteration 6: SOLVER.BASE_LR 0.01 there, 1e-21 here"
    assert f"WARNING The training changes {change}" in run.log
    assert run.checkpoint["changes"] == run.result["changes"] == [change]
    rates = {record["iteration"]: record["lr"] for record in run.metrics()}
    assert (rates[6], rates[7]) == (pytest.approx(0.001), pytest.approx(0.1))


def test_common_and_unreadable_videos_are_in_the_log_and_beside_the_accuracy(
    command_line, lists, tiny_data, tmp_path
):
    """A video of train is also in val, which is the test, and another cannot be read."""
    name, label = (lists / "train.csv").read_text().splitlines()[0].split()
    shutil.copy(tiny_data / name, lists / "copy.mp4")
    change_line(lists / "val.csv", 2, f"{lists}/copy.mp4 {label}")
    shutil.copy(lists / "val.csv", lists / "test.csv")
    broken = lists / "broken.mp4"
    broken.write_text("this is text")
    change_line(lists / "train.csv", 3, f"{broken} 2")
    data = ("DATA.PATH_TO_DATA_DIR", lists, "DATA.PATH_PREFIX", tiny_data)
    data += ("DATA_LOADER.NUM_WORKERS", 1)
    assert command_line(tmp_path / "run", *OFF, *data, "TEST.ENABLE", True)[0] == 0
    run = Folder(tmp_path / "run")
    (remark,) = run.result["overlaps"]
    assert re.fullmatch(r"1 of the \d+ videos of val are also in train", remark)
    assert run.log.count(f"WARNING {remark}, so the accuracy on val is not that on new") == 1
    (tested,) = (line for line in run.log.splitlines() if " test on " in line)
    assert tested.endswith(f"(test is val; {remark})")
    assert f"WARNING {broken} cannot be opened" in run.log
    assert "another video is used instead" in run.log
    assert re.findall(r"epoch (\d) done: (\d) videos", run.log) == [("1", "1"), ("2", "1")]

    answer = command_line(tmp_path / "strict", *OFF, *data, "DATA.MAX_BAD_FRACTION", 0.04)
    assert_refused(answer, "1 of 24 videos of epoch 1", "DATA.MAX_BAD_FRACTION 0.04")
