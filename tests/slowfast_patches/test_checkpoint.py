"""Checkpoints: whole or not there, read without running anything, never mixed up."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fvcore.common.config import CfgNode

from slowfast_patches.engine import checkpoints


def test_what_was_saved_is_what_is_loaded(tmp_path: Path):
    path = checkpoints.save(tmp_path, 12, {"iteration": 12, "weights": torch.arange(3)})
    assert path == tmp_path / "checkpoints" / "checkpoint_iter_00000012.pyth"
    content = checkpoints.load(path)
    assert content["iteration"] == 12
    assert torch.equal(content["weights"], torch.arange(3))


def test_the_last_is_the_one_of_most_iterations(tmp_path: Path):
    assert checkpoints.last_checkpoint(tmp_path) is None
    for iteration in (900, 1000, 99):
        checkpoints.save(tmp_path, iteration, {})
    (tmp_path / "checkpoints" / "checkpoint_iter_00002000.tmp").write_bytes(b"half")
    last = checkpoints.last_checkpoint(tmp_path)
    assert last is not None
    assert last.name == "checkpoint_iter_00001000.pyth"


def test_a_write_that_fails_leaves_the_earlier_checkpoint_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    earlier = checkpoints.save(tmp_path, 5, {"iteration": 5})

    def full_disk(payload: object, file) -> None:
        file.write(b"half of it")
        raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    for iteration in (5, 6):
        with pytest.raises(OSError, match="No space"):
            checkpoints.save(tmp_path, iteration, {"iteration": iteration})
    assert list((tmp_path / "checkpoints").iterdir()) == [earlier]
    assert checkpoints.load(earlier)["iteration"] == 5


class Evil:
    def __reduce__(self):
        return (Path.touch, (Path("executed"),))


def test_nothing_in_a_file_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model_state": Evil()}, tmp_path / "evil.pyth")
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps(Evil()))
    for name in ("evil.pyth", "evil.pkl"):
        with pytest.raises(ValueError, match="cannot be read as a PyTorch checkpoint"):
            checkpoints.load(tmp_path / name)
    assert not (tmp_path / "executed").exists()


def test_what_is_no_checkpoint_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match=r"gone\.pyth: no such checkpoint"):
        checkpoints.load(tmp_path / "gone.pyth")
    whole = checkpoints.save(tmp_path, 1, {"weights": torch.zeros(1000)})
    whole.write_bytes(whole.read_bytes()[:2000])
    with pytest.raises(ValueError, match=r"iter_00000001\.pyth cannot be read"):
        checkpoints.load(whole)
    torch.save([1, 2], tmp_path / "list.pyth")
    with pytest.raises(ValueError, match="holds a list"):
        checkpoints.load(tmp_path / "list.pyth")


# Whose checkpoint it is.


def saved(cfg: CfgNode) -> dict:
    return {"cfg": cfg.dump(), "iteration": 3, "num_videos": 24}


def test_what_does_not_change_the_training_may_change(
    tiny_config: Callable[..., CfgNode], tmp_path: Path
):
    content = saved(tiny_config(tmp_path))
    moved = ("LOG_PERIOD", 7, "TEST.NUM_SPATIAL_CROPS", 3, "DATA_LOADER.NUM_WORKERS", 2)
    here = tiny_config(tmp_path / "elsewhere", *moved, "TRAIN.EVAL_PERIOD", 9)
    checkpoints.check_same_recipe(content, here, tmp_path / "c.pyth")


def test_what_changes_the_training_is_listed(tiny_config: Callable[..., CfgNode], tmp_path: Path):
    content = saved(tiny_config(tmp_path))
    changed = ("SOLVER.BASE_LR", 0.5, "MULTIGRID.SHORT_CYCLE", False)
    here = tiny_config(tmp_path, *changed, "TRAIN.CHECKPOINT_FILE_PATH", "other.pyth")
    with pytest.raises(ValueError, match="another recipe") as caught:
        checkpoints.check_same_recipe(content, here, tmp_path / "c.pyth")
    message = str(caught.value)
    assert "SOLVER.BASE_LR: 0.01 there, 0.5 here" in message
    assert "MULTIGRID.SHORT_CYCLE: True there, False here" in message
    assert "TRAIN.CHECKPOINT_FILE_PATH:  there, other.pyth here" in message
    assert message.count(" there, ") == 3
    assert "TRAIN.AUTO_RESUME False" in message


def test_weights_alone_cannot_be_continued(tiny_config: Callable[..., CfgNode], tmp_path: Path):
    with pytest.raises(ValueError, match=r"TRAIN\.CHECKPOINT_FILE_PATH"):
        checkpoints.check_same_recipe({"model_state": {}}, tiny_config(tmp_path), tmp_path)


def test_a_run_on_another_list_is_not_continued(
    tiny_config: Callable[..., CfgNode], tmp_path: Path
):
    cfg = tiny_config(tmp_path)
    assert checkpoints.find_resumable(cfg, 24) is None
    path = checkpoints.save(tmp_path, 3, saved(cfg))
    found = checkpoints.find_resumable(cfg, 24)
    assert found is not None
    assert found[0] == path
    with pytest.raises(ValueError, match="trained on 24 videos, the list now has 25"):
        checkpoints.find_resumable(cfg, 25)
    assert checkpoints.find_resumable(tiny_config(tmp_path, "TRAIN.AUTO_RESUME", False), 25) is None


def test_setting_aside_never_overwrites(tmp_path: Path):
    assert checkpoints.set_aside(tmp_path) is None
    for number in (1, 2):
        checkpoints.save(tmp_path, number, {"iteration": number})
        assert checkpoints.set_aside(tmp_path) == tmp_path / f"checkpoints_before_{number}"
        assert checkpoints.last_checkpoint(tmp_path) is None
    kept = tmp_path / "checkpoints_before_1" / "checkpoint_iter_00000001.pyth"
    assert checkpoints.load(kept)["iteration"] == 1
