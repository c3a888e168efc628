"""Jobs on a real SLURM: what ends them, and that they go on bit for bit.

Jobs run side by side, and mostly wait. Trainings that are to be interrupted pause at each step.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from slowfast_patches.config import load_recipe
from slowfast_patches.launch.slurm import Slurm, batch_file, queue
from slowfast_patches.study import jobs
from slowfast_patches.study.compare import make_arms
from slowfast_patches.study.runs import Study

RUN_NET = Path(__file__).parents[2] / "faults" / "faulty_run_net.py"
KEYS = ("DATA_LOADER.NUM_WORKERS", 0, "BN.USE_PRECISE_STATS", False, "MODEL.DROPOUT_RATE", 0.0)
KEYS += ("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False, "TRAIN.EVAL_PERIOD", 99)
KEYS += ("SOLVER.STEPS", [0], "SOLVER.LRS", [1], "SOLVER.MAX_EPOCH", 4, "DIST_JOIN_SECONDS", 10)
LONG = ("MODEL.NUM_CLASSES", 8, "NUM_GPUS", 0, "SOLVER.LENGTH", 2)
SLURM = Slurm("batch", cpus=1)


@pytest.fixture(scope="module")
def cluster(load_program: Callable[[str], ModuleType]) -> Iterator[Any]:
    module = load_program("tests/slowfast_patches/launch/slurm_cluster.py")
    if not module.is_possible():
        pytest.skip("SLURM jobs: needs root and apt-get install slurm-wlm munge")
    made = module.Cluster()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(made.config))
        patch.setenv("ONE_BLOCK", "1")
        yield made
    made.close()


@pytest.fixture(scope="module")
def keys(tiny_recipe: Path, one_block_keys: tuple[object, ...]) -> tuple[object, ...]:
    return ("DATA.PATH_TO_DATA_DIR", tiny_recipe.parent, *one_block_keys, *KEYS)


@pytest.fixture(scope="module")
def submit(cluster: Any, tiny_recipe: Path, keys: tuple[object, ...]) -> Callable[..., str]:
    """`submit(folder, nodes, KEY, value, ..., slurm=..., NAME=value)`: the ID of a job."""

    def call(
        folder: Path, nodes: int, *own: object, slurm: Slurm = SLURM, **environment: str
    ) -> str:
        batch = ("TRAIN.BATCH_SIZE", 4 // nodes, "NUM_SHARDS", nodes, "OUTPUT_DIR", folder)
        words = (sys.executable, RUN_NET, "--cfg", tiny_recipe, *keys, *batch, *own)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            recipe = load_recipe(tiny_recipe, list(map(str, (*keys, *batch))))
            return jobs.submit_recipe(recipe, list(map(str, words)), slurm)

    return call


@pytest.fixture(scope="module")
def undisturbed(
    submit: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> dict[int, tuple[str, Path]]:
    """Job and folder of an undisturbed run on one and on two nodes."""
    folders = {nodes: tmp_path_factory.mktemp(f"nodes_{nodes}") for nodes in (1, 2)}
    return {nodes: (submit(folder, nodes), folder) for nodes, folder in folders.items()}


@pytest.fixture(scope="module")
def timed_out(
    submit: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A job that takes longer than its time limit, queued before all others."""
    folder = tmp_path_factory.mktemp("timed_out")
    slurm = Slurm("batch", cpus=1, hours=2 / 60, warning_seconds=60)
    return submit(folder, 1, slurm=slurm, PAUSE="2.5"), folder


def output(folder: Path) -> str:
    [path] = (folder / "slurm").glob("*.out")
    return path.read_text()


def number_of(folder: Path) -> str:
    return json.loads((folder / "slurm" / "jobs.json").read_text())["."]


def trains(folder: Path, iterations: int = 3) -> Callable[[], bool]:
    """Whether a run has done some iterations."""
    path = folder / "metrics.jsonl"
    return lambda: path.exists() and path.read_text().count('"train"') >= iterations


@pytest.fixture(autouse=True)
def _started(timed_out: object, undisturbed: object) -> None:
    """Jobs that others are compared with, or that take long, start first."""


def test_a_job_that_fails_on_another_node_than_the_first_ends_once(
    cluster: Any, submit: Callable[..., str], tmp_path: Path
) -> None:
    """An import that fails there, and a killed rank."""
    text = "import os\nif os.environ['SLURM_NODEID'] == '1':\n    import no_such_module\n"
    (tmp_path / "node_module.py").write_text(text)
    path = {"PYTHONPATH": str(tmp_path)}
    folders = [tmp_path / "imports", tmp_path / "killed"]
    imports = submit(folders[0], 2, "IMPORTS", "node_module", **path)
    killed = submit(folders[1], 2, FAULT="step:3", FAULTY_RANK="1")
    assert cluster.end(imports) == "FAILED 2:0"
    assert "no_such_module" in output(folders[0])
    assert ": task 1: Exited with exit code 2" in output(folders[0])
    assert cluster.end(killed) == "FAILED 137:0"
    assert ": task 1: Killed" in output(folders[1])
    assert "error: rank 0: another rank failed" in output(folders[1])
    assert [cluster.restarts(job) for job in (imports, killed)] == [0, 0]


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_is_the_run_itself(
    cluster: Any, undisturbed: dict[int, tuple[str, Path]], nodes: int, opened: type
) -> None:
    job, folder = undisturbed[nodes]
    assert cluster.end(job) == "COMPLETED 0:0"
    assert opened(folder).result["world_size"] == nodes
    assert cluster.restarts(job) == 0


def test_a_cancelled_job_saves_and_goes_on_when_it_is_submitted_again(
    cluster: Any,
    submit: Callable[..., str],
    undisturbed: dict[int, tuple[str, Path]],
    tmp_path: Path,
    opened: type,
    assert_same_run: Callable[..., None],
) -> None:
    job = submit(tmp_path, 2, PAUSE="0.3")
    with pytest.raises(ValueError, match=f"Job {job} for .* is already queued or running"):
        submit(tmp_path, 2)
    cluster.until(trains(tmp_path))
    cluster.run("scancel", job)
    assert cluster.end(job).startswith("CANCELLED")
    assert opened(tmp_path).checkpoint["iteration"] >= 3
    assert cluster.end(submit(tmp_path, 2)) == "COMPLETED 0:0"
    assert_same_run(opened(tmp_path), opened(undisturbed[2][1]))


def test_a_job_that_is_requeued_goes_on_unless_that_was_too_often(
    cluster: Any,
    submit: Callable[..., str],
    undisturbed: dict[int, tuple[str, Path]],
    tmp_path: Path,
    opened: type,
    assert_same_run: Callable[..., None],
) -> None:
    """By SLURM, as after a preemption, or by itself, as after a warning."""
    requeued, warned, given_up = (tmp_path / name for name in ("requeued", "warned", "given_up"))
    no_more = Slurm("batch", cpus=1, requeues=0)
    commands = dict[Path, list[str]]()
    for folder, slurm, *command in (
        (requeued, SLURM, "scontrol", "requeue"),
        (warned, SLURM, "scancel", "--signal=USR1"),
        (given_up, no_more, "scancel", "--signal=TERM"),
    ):
        submit(folder, 1, slurm=slurm, PAUSE="0.2")
        commands[folder] = command
    for folder, command in commands.items():
        cluster.until(trains(folder))
        cluster.run(*command, number_of(folder))
    for folder in (requeued, warned):
        job = number_of(folder)
        assert cluster.end(job) == "COMPLETED 0:0"
        assert cluster.restarts(job) == 1
        assert_same_run(opened(folder), opened(undisturbed[1][1]))
    assert cluster.end(number_of(given_up)) == "FAILED 75:0"
    assert "has been restarted 0 times" in output(given_up)


def test_a_study_is_an_array_and_no_run_is_queued_twice(
    cluster: Any, tiny_recipe: Path, keys: tuple[object, ...], tmp_path: Path
) -> None:
    other = shutil.copy(tiny_recipe, tmp_path / "other.yaml")
    study = Study(make_arms([tiny_recipe, other], list(map(str, keys))), [0], tmp_path / "100 % x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAUSE", "0.2")
        queued = jobs.submit_study(study, RUN_NET, SLURM)
    first, second = queued.values()
    assert jobs.submit_study(study, RUN_NET, SLURM) == {}
    cluster.until(trains(study.folder(study.arms[1], 0)))
    cluster.run("scancel", "--signal=USR1", second)
    assert cluster.end(first) == cluster.end(second) == "COMPLETED 0:0"
    assert (cluster.restarts(first), cluster.restarts(second)) == (0, 1)
    assert len(study.runs()) == 2
    assert jobs.submit_study(study, RUN_NET, SLURM) == {}


@pytest.mark.parametrize("name", ["compare", "reproduce"])
def test_a_command_queues_each_missing_run_once(
    cluster: Any,
    tiny_recipe: Path,
    load_program: Callable[[str], ModuleType],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    other = shutil.copy(tiny_recipe, tmp_path / "other.yaml")
    data = tiny_recipe.parent
    words = {
        "compare": ["--cfg", tiny_recipe, "--cfg", other, "DATA.PATH_TO_DATA_DIR", data],
        "reproduce": ["table4", "--kinetics", data, "--imagenet-weights", other, *LONG],
    }[name]
    slurm = ["--slurm", "batch", "--slurm-cpus", 1, "--slurm-warning-seconds", 30]
    slurm += ["--slurm-option", "hold=", "--output", tmp_path / "out"]
    tool, said = load_program(f"tools/{name}.py"), list[str]()
    for _ in range(2):
        assert tool.main(list(map(str, [*words[:1], *words[1:-2], *slurm, *words[-2:]]))) == 0
        said.append(capsys.readouterr().err)
    queued = re.search(r"2 jobs submitted: (\d+)_0, \1_1\n", said[0])
    assert "0 jobs submitted: all runs are finished or already queued" in said[1]
    cluster.run("scancel", queued[1])


def test_a_rejected_job_leaves_nothing(submit: Callable[..., str], tmp_path: Path) -> None:
    folder = tmp_path / "of" / "run"
    with pytest.raises(ValueError, match=r"SLURM rejected the jobs: .* invalid partition") as error:
        submit(folder, 1, slurm=Slurm("nowhere"))
    assert str(error.value).count("invalid partition") == 1
    assert list(tmp_path.iterdir()) == []


def test_what_a_job_gets(cluster: Any, tiny_config: Callable[..., Any], tmp_path: Path) -> None:
    """All CPUs of a task, which srun of SLURM 22.05 takes from its own option alone."""
    script = "scontrol show step $SLURM_JOB_ID.$SLURM_STEP_ID; scontrol show job $SLURM_JOB_ID"
    slurm = Slurm("batch", cpus=3, hours=1.5, options={"comment": "a b", "nice": "7"})
    job = queue(
        batch_file(
            [["bash", "-c", script]], tiny_config(tmp_path, "NUM_SHARDS", 2), slurm, tmp_path
        )
    )
    assert cluster.end(job) == "COMPLETED 0:0"
    said = (tmp_path / f"{job}.out").read_text()
    for text in ("CPUs=6 Tasks=2", "TimeLimit=01:30:00", "Comment=a b", "Nice=7", "Requeue=1"):
        assert text in said


@pytest.mark.parametrize("failures", [2, 9])
def test_a_failing_squeue_is_not_an_empty_queue(
    cluster: Any,
    submit: Callable[..., str],
    failures: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = tmp_path / "run"
    job = submit(run, 1, slurm=Slurm("batch", options={"hold": ""}))
    count, real = tmp_path / "count", shutil.which("squeue")
    count.write_text("")
    text = f'echo >> {count}; [ $(wc -l < {count}) -gt {failures} ] || exit 1; exec {real} "$@"'
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n{text}\n")
    (tmp_path / "squeue").chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        patch.setattr("slowfast_patches.launch.slurm._PAUSES", (0, 0, 0, 0))
        expected = "squeue fails" if failures == 9 else "already queued"
        with pytest.raises(ValueError, match=expected):
            submit(run, 1)
    assert json.loads((run / "slurm" / "jobs.json").read_text()) == {".": job}
    cluster.run("scancel", job)


def test_a_job_saves_before_its_time_limit_and_goes_on(
    cluster: Any,
    timed_out: tuple[str, Path],
    undisturbed: dict[int, tuple[str, Path]],
    opened: type,
    assert_same_run: Callable[..., None],
) -> None:
    job, folder = timed_out
    assert cluster.end(job) == "COMPLETED 0:0"
    assert cluster.restarts(job) > 0
    assert "Exited with exit code 75" in output(folder)
    assert_same_run(opened(folder), opened(undisturbed[1][1]))
