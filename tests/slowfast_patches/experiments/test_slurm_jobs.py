"""Jobs of an experiment: what is submitted, what is known of it, and what is refused."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.experiments import slurm_jobs
from slowfast_patches.experiments.slurm_jobs import check, submit_experiment
from slowfast_patches.launch import slurm as slurm_module
from slowfast_patches.launch.slurm import Slurm, slurm_of, submit
from slowfast_patches.launch.slurm_options import OPTIONS
from slowfast_patches.utils.errors import UserError

GPU = Slurm("gpu")


class Queue:
    """SLURM that queues jobs 11, 12, ... and says which are active."""

    def __init__(self) -> None:
        self.active = ""
        self.sent = list[dict[str, Any]]()
        self.rejects = 99

    def run(self, *command: str, **options: Any) -> str:
        if command[0] == "squeue":
            return self.active
        assert command == ("sbatch", "--parsable")
        if len(self.sent) == self.rejects:
            raise UserError("SLURM's sbatch failed: limit")
        self.sent.append(options)
        return f"a warning\n{10 + len(self.sent)};cluster\n"


@pytest.fixture
def queue(monkeypatch) -> Queue:
    made = Queue()
    monkeypatch.setattr(slurm_module, "_run", made.run)
    monkeypatch.setattr(slurm_module.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(slurm_module, "batch_file", lambda command, *_: f"run {' '.join(command)}")
    return made


def runs(*names: str, word: str = "x y") -> dict[str, Any]:
    return {name: (default_recipe(), ["train", name, word]) for name in names}


def known(folder: Path) -> dict[str, list[str]]:
    return json.loads((folder / "slurm" / "jobs.json").read_text())


def test_each_run_is_a_job_whose_number_and_command_are_kept(queue, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_CONF", "/etc/conf")
    monkeypatch.setenv("MY_SLURM_X", "mine")
    assert submit(runs("a", "b"), tmp_path, GPU) == {"a": "11", "b": "12"}
    assert known(tmp_path) == {"a": ["11", "train a 'x y'"], "b": ["12", "train b 'x y'"]}
    assert [sent["input"] for sent in queue.sent] == ["run train a x y", "run train b x y"]
    inherited = queue.sent[0]["env"]
    assert {name for name in inherited if name.startswith("SLURM_")} == {"SLURM_CONF"}
    assert (inherited["PATH"], inherited["MY_SLURM_X"]) == (os.environ["PATH"], "mine")


def test_a_queued_run_is_not_submitted_again_and_one_that_ended_is(queue, tmp_path):
    submit(runs("a", "b"), tmp_path, GPU)
    queue.active = "12\n999\n"
    assert submit(runs("a", "b", "c"), tmp_path, GPU) == {"a": "13", "c": "14"}
    assert {name: job for name, (job, _) in known(tmp_path).items()} == {
        "a": "13",
        "b": "12",
        "c": "14",
    }
    queue.active = "12 13 14"
    assert submit(runs("a", "b", "c"), tmp_path, GPU) == {}
    assert (tmp_path / "slurm").exists()


def test_a_queued_run_with_another_command_is_refused(queue, tmp_path):
    submit(runs("a"), tmp_path, GPU)
    queue.active = "11"
    said = r"Job 11 of a is queued or running with another command: train a 'x y'\. Cancel it"
    with pytest.raises(UserError, match=said):
        submit(runs("b", "a", word="z"), tmp_path, GPU)
    assert len(queue.sent) == 1


def test_jobs_before_a_rejected_one_are_known(queue, tmp_path):
    queue.rejects = 1
    with pytest.raises(UserError, match="limit"):
        submit(runs("a", "b"), tmp_path / "new", GPU)
    assert known(tmp_path / "new").keys() == {"a"}
    queue.rejects = 1
    with pytest.raises(UserError, match="limit"):
        submit(runs("c"), tmp_path / "other", GPU)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 3}', '{"a": ["1"]}', '{"a": ["1", "2", "3"]}'])
def test_damaged_job_numbers_are_named(queue, tmp_path, text):
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "jobs.json").write_text(text)
    with pytest.raises(UserError, match=r"jobs\.json is damaged\. Delete it if no job"):
        submit(runs("a"), tmp_path, GPU)
    assert queue.sent == []


def test_the_missing_runs_of_an_experiment_are_submitted(queue, tmp_path, capsys, monkeypatch):
    variant = SimpleNamespace(recipe=default_recipe())
    experiment: Any = SimpleNamespace(
        output=tmp_path,
        missing=lambda: [(variant, 0), (variant, 3)],
        folder=lambda variant, seed: tmp_path / "base" / f"seed{seed}",
    )
    monkeypatch.setattr(slurm_jobs, "run_command", lambda variant, seed, *_: ["run", str(seed)])
    found = submit_experiment(experiment, Path("run_net.py"), GPU)
    assert found == {"base/seed0": "11", "base/seed3": "12"}
    assert "2 jobs submitted: 11, 12\n" in capsys.readouterr().err
    queue.active = "11 12"
    submit_experiment(experiment, Path("run_net.py"), GPU)
    said = "0 jobs submitted: all runs are finished or already queued\n"
    assert said in capsys.readouterr().err


def options(**given: Any) -> argparse.Namespace:
    names = dict.fromkeys((*OPTIONS, "options", "partition"))
    return argparse.Namespace(**(names | given))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"partition": " "}, "the name of the partition is empty"),
        ({"hours": 2.0}, "--hours has no effect without --slurm"),
        ({"options": [("account", "a")]}, "--options has no effect without --slurm"),
    ],
)
def test_options_of_slurm_need_a_partition(given, said, capsys):
    with pytest.raises(SystemExit):
        slurm_of(argparse.ArgumentParser(), options(**given))
    assert said in capsys.readouterr().err


def test_resources_are_those_of_the_options():
    parser = argparse.ArgumentParser()
    assert slurm_of(parser, options()) is None
    assert slurm_of(parser, options(partition="gpu")) == Slurm("gpu", options={})
    more = {"hours": 2.0, "options": [("account", "a"), ("qos", "b")]}
    found = slurm_of(parser, options(partition="gpu", **more))
    assert found == Slurm("gpu", hours=2.0, options={"account": "a", "qos": "b"})


def test_a_job_is_described_with_what_may_be_missing(tiny_config: Callable, tmp_path):
    written = tiny_config(tmp_path)
    text, warnings = check(written, written)
    assert "Global batch: 1 × TRAIN.BATCH_SIZE 4 = 4 clips on 1 processes" in text
    assert text.startswith("phase"), "the plan comes first"
    assert warnings == []
    larger = written.replaced({"TRAIN.BATCH_SIZE": 8, "TRAIN.ENABLE": False})
    assert "rates are for 4 clips per iteration, but this job has 8" in check(written, larger)[1][0]
    scaled = larger.replaced({"SOLVER.BASE_LR": 0.02})
    assert check(written, scaled)[1] == []
    with pytest.raises(UserError, match="SHARD_ID is 1, but"):
        check(written, written.replaced({"NUM_SHARDS": 2, "SHARD_ID": 1}))
