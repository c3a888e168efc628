"""Resources and batch files of SLURM jobs, and their options on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from slowfast_patches.config import load_recipe
from slowfast_patches.launch.slurm import Slurm, batch_file
from slowfast_patches.launch.slurm_options import DEFAULTS, OPTIONS, add_slurm_options
from slowfast_patches.utils.errors import UserError


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"warning_seconds": 0}, "from 1 to 65535"),
        ({"warning_seconds": 65_536}, "from 1 to 65535"),
        ({"hours": 10_000}, "from 1 to 65535"),
        ({"hours": 0.05, "warning_seconds": 180}, "shorter than the time limit"),
        ({"hours": 1 / 15, "warning_seconds": 121}, r"4 minutes, .*--hours to 0\.067 or more"),
        ({"cpus": 0}, "0 CPU cores"),
        ({"requeues": -1}, "requeues itself -1 times"),
        ({"options": {"time": "0"}}, "--option time is not allowed.* set by --hours"),
        ({"options": {"nodes": "4"}}, "--option nodes is not allowed.* set by NUM_SHARDS"),
        ({"options": {"no-requeue": ""}}, "--option no-requeue .* set by --requeues 0"),
    ],
)
def test_times_and_numbers_that_slurm_or_a_training_cannot_have_are_refused(options, said):
    with pytest.raises(UserError, match=said):
        Slurm("batch", **options)


def test_the_least_and_the_greatest_are_accepted():
    Slurm("batch", hours=1 / 15, warning_seconds=120)  # 4 minutes: 2 for the warning, 2 others
    Slurm("batch", hours=9999, warning_seconds=65_535)
    Slurm("batch", cpus=1, requeues=0, warning_seconds=1)


@pytest.mark.parametrize(("hours", "minutes"), [(24, 1440), (0.51, 31), (1 / 6, 10), (0.7, 42)])
def test_a_time_limit_is_in_whole_minutes_rounded_up(hours, minutes):
    assert Slurm("batch", hours=hours).minutes == minutes


def directives(recipe, slurm, logs):
    text = batch_file(["python", "a b.py"], recipe, slurm, logs)
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH --")]
    return text, {line.removeprefix("#SBATCH --").partition("=")[0]: line for line in lines}


def test_a_batch_file_asks_for_what_the_recipe_needs(tmp_path):
    recipe = load_recipe(None, ["NUM_SHARDS", 3, "NUM_GPUS", 4])
    slurm = Slurm("gpu", hours=2, cpus=6, requeues=9, warning_seconds=200)
    text, found = directives(recipe, slurm, tmp_path / "50%")
    assert text.startswith("#!/bin/bash\n")
    assert found["nodes"] == "#SBATCH --nodes=3"
    assert found["ntasks-per-node"] == "#SBATCH --ntasks-per-node=1"
    assert found["gpus-per-node"] == "#SBATCH --gpus-per-node=4"
    assert found["cpus-per-task"] == "#SBATCH --cpus-per-task=24"
    assert found["time"] == "#SBATCH --time=120"
    assert found["signal"] == "#SBATCH --signal=USR1@200"
    assert found["partition"] == "#SBATCH --partition=gpu"
    assert found["requeue"] == "#SBATCH --requeue"
    assert found["output"].endswith("/50%%/%j.out"), "SLURM takes a single % for a placeholder"
    assert "python 'a b.py'" in text
    assert "-lt 9 ]" in text


def test_without_gpus_none_are_asked_for_and_options_of_the_user_replace_others(tmp_path):
    recipe = load_recipe(None, ["NUM_GPUS", 0])
    slurm = Slurm("cpu", cpus=5, options={"job-name": "my job", "exclusive": "", "output": "x"})
    _, found = directives(recipe, slurm, tmp_path)
    assert "gpus-per-node" not in found
    assert found["cpus-per-task"] == "#SBATCH --cpus-per-task=5"
    assert found["job-name"] == "#SBATCH --job-name='my job'"
    assert found["exclusive"] == "#SBATCH --exclusive"
    assert found["output"] == "#SBATCH --output=x"


def parsed(*words, **more):
    parser = argparse.ArgumentParser()
    add_slurm_options(parser, "--partition", **more)
    return parser.parse_args(words), parser


def test_options_have_the_defaults_of_the_jobs_and_their_help_says_so():
    found, parser = parsed("--partition", "gpu")
    assert found.partition == "gpu"
    for name in OPTIONS:
        assert getattr(found, name) in (None, DEFAULTS[name], getattr(Slurm("gpu"), name))
        assert f"(default: {DEFAULTS[name]:g})" in " ".join(parser.format_help().split())


def test_options_are_numbers_in_their_range_and_others_of_sbatch_are_collected():
    found, _ = parsed("--partition", "a", "--hours", "0.5", "--requeues", "0", "--cpus", "1")
    assert (found.hours, found.requeues, found.cpus) == (0.5, 0, 1)
    found, _ = parsed("--partition", "a", "--option", "account=x=y", "--option", "job-name=b")
    assert dict(found.options) == {"account": "x=y", "job-name": "b"}
    for words in (("--hours", "0"), ("--requeues", "-1"), ("--cpus", "0"), ("--option", "x")):
        with pytest.raises(SystemExit):
            parsed("--partition", "a", *words)


def test_a_partition_may_be_required():
    with pytest.raises(SystemExit):
        parsed(required=True)
    assert parsed()[0].partition is None


def test_logs_are_named_by_the_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, found = directives(load_recipe(None, ["NUM_GPUS", 0]), Slurm("cpu"), Path("logs"))
    assert found["output"] == f"#SBATCH --output={tmp_path}/logs/%j.out"
