"""The checkpoint from which a run resumes, and the reasons why a run must not resume."""

import errno
from unittest.mock import MagicMock

import pytest
import torch

from slowfast_patches.datasets.lists.dataset_lists import list_digest, read_list
from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train import resume
from tests.slowfast_patches.train.made_checkpoint import made


def test_what_changes_the_training_is_listed(tiny_config, tmp_path):
    stored = tiny_config(tmp_path).text
    changed = ("SOLVER.BASE_LR", 0.5, "TRAIN.CHECKPOINT_FILE_PATH", "other.pyth")
    moved = ("LOG_PERIOD", 7, "DATA_LOADER.NUM_WORKERS", 2, "TRAIN.EVAL_PERIOD", 9)
    here = tiny_config(tmp_path / "elsewhere", *changed, *moved)
    with pytest.raises(ValueError, match="another recipe") as caught:
        resume.check_same_recipe(stored, here, tmp_path / "c.pyth")
    keys = "SOLVER.BASE_LR 0.01 there, 0.5 here; TRAIN.CHECKPOINT_FILE_PATH  there, other.pyth here"
    assert f"another recipe: {keys}. " in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_videos": 25, "list_digest": "a"}, r"on another list.* 24 videos, .*csv has 25"),
        ({"phases": ("0 to 8", "8 to 13")}, "another schedule"),
    ],
)
def test_a_run_on_another_list_or_by_another_schedule_is_not_continued(tmp_path, changed, said):
    facts = {"num_videos": 24, "list_digest": "abc", "phases": ("0 to 8", "8 to 12")}
    found = resume.Resumable(tmp_path / "c.pyth", made(**facts))
    resume.check_same_data(found, tmp_path / "train.csv", facts)
    with pytest.raises(ValueError, match=said):
        resume.check_same_data(found, tmp_path / "train.csv", facts | changed)


def test_a_list_is_known_by_paths_labels_and_order_wherever_the_data_lie(tiny_config, tmp_path):
    def digest(*lines: str, keys: tuple[str, ...] = ()) -> str:
        (tmp_path / "train.csv").write_text("\n".join(lines))
        cfg = tiny_config(tmp_path, "DATA.PATH_TO_DATA_DIR", tmp_path, *keys)
        return list_digest(cfg, read_list(cfg, "train"))

    known = digest("a/1.mp4 0", "a/2.mp4 1")
    assert digest("a/1.mp4 0", "a/2.mp4 1", keys=("DATA.PATH_PREFIX", "/elsewhere/")) == known
    assert digest("a/2.mp4 1", "a/1.mp4 0") != known
    assert digest("a/1.mp4 0", "a/2.mp4 2") != known
    assert digest("a/1.mp4 0", "b/2.mp4 1") != known


def test_a_damaged_one_is_set_aside_and_the_one_before_it_continued(tiny_config, tmp_path, caplog):
    cfg = tiny_config(tmp_path)
    paths = [checkpoints.save(tmp_path, made(iteration=n, cfg=cfg.text)) for n in (2, 4, 6)]
    content = bytearray(paths[2].read_bytes())
    content[len(content) // 2] ^= 4
    paths[2].write_bytes(content)
    paths[1].write_bytes(paths[1].read_bytes()[:-400])
    found = resume.find_resumable(cfg)
    assert (found.path, found.checkpoint.iteration) == (paths[0], 2)
    assert checkpoints.all_checkpoints(tmp_path) == paths[:1]
    for path in paths[1:]:
        assert path.with_name(f"{path.name}.damaged").is_file()
        assert f"{path} is damaged" in caplog.text


def test_one_that_cannot_be_read_is_not_taken_for_damaged(tiny_config, tmp_path, monkeypatch):
    cfg = tiny_config(tmp_path)
    path = checkpoints.save(tmp_path, made(cfg=cfg.text))
    monkeypatch.setattr(torch, "load", MagicMock(side_effect=OSError(errno.EIO, "a bad disk")))
    with pytest.raises(OSError, match="a bad disk"):
        resume.find_resumable(cfg)
    assert checkpoints.all_checkpoints(tmp_path) == [path]


@pytest.mark.parametrize("count", ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"])
def test_a_run_that_starts_over_continues_when_it_is_restarted(
    tiny_config, tmp_path, monkeypatch, count
):
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    cfg = tiny_config(tmp_path, "TRAIN.AUTO_RESUME", False)
    checkpoints.save(tmp_path, made(cfg=cfg.text))
    monkeypatch.setenv(count, "0")
    assert resume.find_resumable(cfg) is None
    assert list(tmp_path.glob("checkpoints_before_1/*")) == [
        tmp_path / "checkpoints_before_1" / "checkpoint_iter_00000003.pyth"
    ]
    checkpoints.save(tmp_path, made(iteration=5, cfg=cfg.text))
    monkeypatch.setenv(count, "1")
    assert resume.find_resumable(cfg).checkpoint.iteration == 5
