"""The checkpoint from which a run resumes, and the reasons why a run must not resume."""

import errno
from unittest.mock import MagicMock

import pytest
import torch

from slowfast_patches.datasets.lists.dataset_lists import list_digest, read_list
from slowfast_patches.plan.run_identity import run_identity
from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.train import resume
from slowfast_patches.train.hooks import settle_best
from slowfast_patches.train.trainer import Progress
from tests.slowfast_patches.train.made_checkpoint import made


def identity_of(recipe):
    return run_identity(recipe, clips=False)


def of_run(recipe, **values):
    """Return a checkpoint of a run of a recipe."""
    return made(cfg=recipe.text, identity=identity_of(recipe).to_json(), **values)


def test_what_changes_the_training_is_listed_and_accepted_by_name(tiny_config, tmp_path):
    stored = of_run(tiny_config(tmp_path))
    changed = ("SOLVER.BASE_LR", 0.5, "TRAIN.CHECKPOINT_FILE_PATH", "other.pyth")
    moved = ("LOG_PERIOD", 7, "DATA_LOADER.NUM_WORKERS", 2, "TRAIN.EVAL_PERIOD", 9)
    here = tiny_config(tmp_path / "elsewhere", *changed, *moved)

    def check(*names, **options):
        recipe = here.replaced({"TRAIN.ACCEPT_CHANGES": names})
        path = tmp_path / "c.pyth"
        return resume.check_same_run(stored, identity_of(here), recipe, path, **options)

    with pytest.raises(ValueError, match="is of another run") as caught:
        check()
    keys = "SOLVER.BASE_LR 0.01 there, 0.5 here; TRAIN.CHECKPOINT_FILE_PATH  there, other.pyth here"
    assert f"another run: {keys}; rates: " in str(caught.value)
    assert "ACCEPT_CHANGES SOLVER.BASE_LR,TRAIN.CHECKPOINT_FILE_PATH,rates." in str(caught.value)
    with pytest.raises(ValueError, match=r"run: TRAIN\.CHECKPOINT_FILE_PATH  there"):
        check(rates_may_differ=True)
    assert check("TRAIN.CHECKPOINT_FILE_PATH", "SOLVER.BASE_LR", "rates")[0] == keys.split("; ")[0]
    with pytest.raises(ValueError, match=r"SOLVER\.BASE_LR"):
        check("TRAIN.CHECKPOINT_FILE_PATH", "rates")


def test_other_rates_that_no_key_explains_are_refused(tiny_config, tmp_path):
    """Other rates of the same keys are those of another version of the package."""
    recipe = tiny_config(tmp_path)
    stored = of_run(recipe)
    stored.identity["facts"]["rates"]["rates"][0] = "0.5 in iteration 0"
    with pytest.raises(ValueError, match=r"rates: rates 0\.5 in iteration 0"):
        resume.check_same_run(
            stored, identity_of(recipe), recipe, tmp_path / "c.pyth", rates_may_differ=True
        )


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
    paths = [checkpoints.save(tmp_path, of_run(cfg, iteration=n)) for n in (2, 4, 6)]
    content = bytearray(paths[2].read_bytes())
    content[len(content) // 2] ^= 4
    paths[2].write_bytes(content)
    paths[1].write_bytes(paths[1].read_bytes()[:-400])
    found = resume.find_resumable(cfg, identity_of(cfg))
    assert (found.path, found.checkpoint.iteration) == (paths[0], 2)
    assert checkpoints.all_checkpoints(tmp_path) == paths[:1]
    for path in paths[1:]:
        assert path.with_name(f"{path.name}.damaged").is_file()
        assert f"{path} is damaged" in caplog.text


def test_one_that_cannot_be_read_is_not_taken_for_damaged(tiny_config, tmp_path, monkeypatch):
    cfg = tiny_config(tmp_path)
    path = checkpoints.save(tmp_path, of_run(cfg))
    monkeypatch.setattr(torch, "load", MagicMock(side_effect=OSError(errno.EIO, "a bad disk")))
    with pytest.raises(OSError, match="a bad disk"):
        resume.find_resumable(cfg, identity_of(cfg))
    assert checkpoints.all_checkpoints(tmp_path) == [path]


JOBS = {
    "TORCHELASTIC_RESTART_COUNT": ("TORCHELASTIC_RUN_ID", "a", "b"),
    "SLURM_RESTART_COUNT": ("SLURM_JOB_ID", "7", "8"),
}


@pytest.mark.parametrize("count", JOBS)
def test_a_job_that_starts_over_continues_what_it_has_started_and_nothing_else(
    tiny_config, tmp_path, monkeypatch, count
):
    """The first attempt may die before it has moved the checkpoints of an earlier job."""
    for name, _, _ in JOBS.values():
        monkeypatch.delenv(name, raising=False)
    name, before, now = JOBS[count]
    cfg = tiny_config(tmp_path, "TRAIN.AUTO_RESUME", False)

    def attempt(job, number):
        monkeypatch.setenv(name, job)
        monkeypatch.setenv(count, number)
        found = resume.find_resumable(cfg, identity_of(cfg))
        return found and found.checkpoint.iteration

    checkpoints.save(tmp_path, of_run(cfg, iteration=3))
    (tmp_path / "result.json").write_text("{}")
    assert attempt(before, "0") is None
    folder = tmp_path / "checkpoints_before_1"
    assert {path.name for path in folder.iterdir()} == {
        *("checkpoint_iter_00000003.pyth", "result.json"),
    }
    checkpoints.save(tmp_path, of_run(cfg, iteration=5))
    assert attempt(before, "1") == 5
    assert attempt(now, "1") is None
    assert (tmp_path / "checkpoints_before_2").is_dir()
    checkpoints.save(tmp_path, of_run(cfg, iteration=6))
    assert attempt(now, "2") == 6
    assert attempt(now, "0") is None


@pytest.mark.parametrize("keep", [True, False])
def test_a_best_checkpoint_of_an_earlier_training_is_not_that_of_a_new_one(
    tiny_config, tmp_path, keep
):
    cfg = tiny_config(tmp_path, "TRAIN.KEEP_BEST", keep)
    checkpoints.save(tmp_path, of_run(cfg, iteration=9, optimizer_state=None))
    assert resume.find_resumable(cfg, identity_of(cfg)) is None
    assert checkpoints.best_checkpoint(tmp_path) is None
    assert list(tmp_path.glob("checkpoints_before_1/checkpoint_best.pyth"))


def test_best_and_newest_of_two_trainings_are_not_mistaken_for_one(tmp_path):
    checkpoints.save(tmp_path, made(iteration=9, training="a", optimizer_state=None))
    checkpoints.save(tmp_path, made(iteration=3, training="b"))
    with pytest.raises(ValueError, match=r"checkpoint_best.pyth and .* different trainings"):
        checkpoints.checkpoint_of(tmp_path)


def test_without_keep_best_a_resumed_run_has_no_best(tmp_path):
    best = {"iteration": 2, "top1": 70.0}
    values = {"training": "a", "best": best}
    checkpoints.save(tmp_path, made(iteration=2, optimizer_state=None, **values))
    progress = Progress(iteration=4, **values)
    settle_best(tmp_path, progress, keep=True)
    assert progress.best == best
    assert checkpoints.best_checkpoint(tmp_path)
    settle_best(tmp_path, progress, keep=False)
    assert progress.best == {}
    assert checkpoints.best_checkpoint(tmp_path) is None
