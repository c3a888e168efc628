"""Parts of experiments by hand: jobs, runs beside each other, step times, checks and tables."""

import json
import math
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.experiments import (
    beside,
    checks,
    comparison,
    paper,
    reproduction,
    runs,
    variants,
)
from slowfast_patches.experiments.comparison import make_variants
from slowfast_patches.experiments.paper import PAPER_TABLES, PaperTable, Row
from slowfast_patches.experiments.report import (
    Report,
    Table,
    count_cell,
    experiment_warnings,
    variant_json,
    variants_table,
)
from slowfast_patches.experiments.reproduction import report_table
from slowfast_patches.experiments.runs import Experiment
from slowfast_patches.experiments.slurm_jobs import check_resumable, submit_experiment
from slowfast_patches.experiments.variants import Variant, hidden_files, step_seconds_of
from slowfast_patches.launch import slurm
from slowfast_patches.launch.slurm import Slurm, submit
from slowfast_patches.plan.run_identity import Identity, run_identity
from slowfast_patches.plan.step_times import MisfitError
from slowfast_patches.train import checkpoint as checkpoints
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.pictures import new_figure
from slowfast_patches.utils.tables import Mean
from tests.slowfast_patches.experiments.test_compare import BASE, DELTA
from tests.slowfast_patches.train.made_checkpoint import made


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Variant]:
    """Baseline and multigrid: 102 and 36 iterations."""
    folder = tmp_path_factory.mktemp("configs")
    for name, text in (("baseline", BASE), ("multigrid", DELTA)):
        (folder / f"{name}.yaml").write_text(text)
    return make_variants([folder / "baseline.yaml", folder / "multigrid.yaml"], [])


@pytest.fixture
def experiment(two: list[Variant], tmp_path: Path) -> Experiment:
    seconds = {"baseline": 60.0, "multigrid": 20.0}
    return Experiment(two, [4, 7], tmp_path / "out", step_seconds=seconds)


# Jobs of SLURM.


class Cluster:
    """Stands in for SLURM's commands: notes what is submitted, and has the queued jobs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queue, self.submitted = list[str](), list[str]()
        self.limit = 9
        monkeypatch.setattr(slurm.shutil, "which", lambda name: f"/bin/{name}")
        monkeypatch.setattr(slurm, "_run", self.run)

    def run(self, name: str, *arguments: str, **options: Any) -> str:
        if name == "squeue":
            assert arguments == ("--all", "--noheader", "-o%i")
            return "\n".join(self.queue) + "\n"
        assert (name, arguments) == ("sbatch", ("--parsable",))
        if len(self.submitted) == self.limit:
            raise UserError("the queue is full")
        self.submitted.append(options["input"])
        return f"a line of the site\n{100 + len(self.submitted)};cluster\n"


@pytest.fixture
def slurm_commands(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


SLURM = Slurm("gpu")


def test_a_queued_job_with_another_command_is_refused_before_any_is_submitted(
    slurm_commands, two, tmp_path
):
    jobs = {"a": (two[0].recipe, ["train", "a"])}
    submit(jobs, tmp_path, SLURM)
    changed = {"b": (two[0].recipe, ["train", "b"]), "a": (two[0].recipe, ["train", "a", "LR"])}
    slurm_commands.queue = ["101"]
    with pytest.raises(UserError, match=r"Job 101 of a is queued .*: train a\. Cancel it .scancel"):
        submit(changed, tmp_path, SLURM)
    assert len(slurm_commands.submitted) == 1
    slurm_commands.queue = []
    assert submit(changed, tmp_path, SLURM) == {"b": "102", "a": "103"}


def test_folders_without_a_job_are_removed_and_jobs_before_a_failure_are_kept(
    slurm_commands, two, tmp_path
):
    jobs = {name: (two[0].recipe, ["train", name]) for name in ("a", "b")}
    slurm_commands.limit = 0
    with pytest.raises(UserError, match="the queue is full"):
        submit(jobs, tmp_path / "deep" / "out", SLURM)
    assert list(tmp_path.iterdir()) == []
    slurm_commands.limit = 1
    with pytest.raises(UserError, match="the queue is full"):
        submit(jobs, tmp_path / "out", SLURM)
    stored = json.loads((tmp_path / "out" / "slurm" / "jobs.json").read_text())
    assert stored == {"a": ["101", "train a"]}


def test_the_missing_runs_of_an_experiment_are_submitted(
    slurm_commands, experiment, write_run, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    experiment = replace(experiment, output=Path("out"))
    write_run(experiment, experiment.variants[0], 4, 10, top1=50.0)
    queued = submit_experiment(experiment, Path("tools/run_net.py"), SLURM)
    assert queued == {"multigrid/seed4": "101", "baseline/seed7": "102", "multigrid/seed7": "103"}
    assert f"{tmp_path}/tools/run_net.py --cfg" in slurm_commands.submitted[0]
    assert f"RNG_SEED 4 OUTPUT_DIR {tmp_path}/out/multigrid/seed4" in slurm_commands.submitted[0]
    assert capsys.readouterr().err == "3 jobs submitted: 101, 102, 103\n"
    slurm_commands.queue = ["101", "102", "103"]
    assert submit_experiment(experiment, Path("tools/run_net.py"), SLURM) == {}
    assert capsys.readouterr().err == (
        "0 jobs submitted: all runs are finished or already queued\n"
    )


def test_a_command_of_slurm_has_its_output_returned_and_its_failure_told():
    assert slurm._run("echo", "7") == "7\n"
    assert slurm._run("cat", input="text") == "text"
    with pytest.raises(UserError, match=r"SLURM's ls failed: .*No such"):
        slurm._run("ls", "/no such file", env={"LC_ALL": "C", "PATH": os.environ["PATH"]})
    with pytest.raises(UserError, match="SLURM's no-such-command cannot be started"):
        slurm._run("no-such-command")


def test_a_job_that_would_not_resume_is_refused_before_it_is_queued(two, tmp_path):
    recipe = two[0].recipe.replaced({"OUTPUT_DIR": str(tmp_path)})
    check_resumable(recipe)  # there is no checkpoint
    identity = {**two[0].identity.to_json()}
    checkpoints.save(tmp_path, made(cfg=recipe.text, identity=identity, changes=[]))
    check_resumable(recipe)
    other = recipe.replaced({"SOLVER.WEIGHT_DECAY": 0.5})
    with pytest.raises(UserError, match=r"is of another run: SOLVER\.WEIGHT_DECAY"):
        check_resumable(other)
    check_resumable(other.replaced({"TRAIN.AUTO_RESUME": False}))
    check_resumable(other.replaced({"TRAIN.ENABLE": False}))


def test_videos_are_not_looked_at_before_a_job_that_would_resume(two, tmp_path):
    """The job compares them. Here, the list exists, and the videos do not."""
    (tmp_path / "train.csv").write_text("a.mp4 0\n" * 136)
    recipe = two[0].recipe.replaced(
        {"DATA.PATH_TO_DATA_DIR": str(tmp_path), "OUTPUT_DIR": str(tmp_path / "run")}
    )
    identity = run_identity(recipe, clips=False).to_json()
    identity["facts"]["train_clips"] = {"readable": 136, "content": "as they were"}
    checkpoints.save(tmp_path / "run", made(cfg=recipe.text, identity=identity, changes=[]))
    check_resumable(recipe)
    (tmp_path / "train.csv").write_text("b.mp4 0\n" * 136)
    with pytest.raises(UserError, match="is of another run: train_list"):
        check_resumable(recipe)


# Runs beside each other.


def test_the_progress_of_a_run_is_the_last_whole_line(tmp_path):
    assert beside._iterations(tmp_path) == 0
    lines = [f'{{"iteration": {n}, "filling": "{"x" * 400}"}}' for n in range(1, 100)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert beside._iterations(tmp_path) == 99
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('\n[1]\n{"epoch": 3}\n{"iteration": 10')
    assert beside._iterations(tmp_path) == 99
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 3}\n')
    assert beside._iterations(tmp_path) == 3


def test_runs_are_announced_with_the_time_of_the_longest_or_of_all_on_the_cores(
    experiment, monkeypatch
):
    """Of 60, 20, 60 and 20 s: 160 / 2 · 1.3 s with two at a time, and 60 · 1.3 s with many."""
    todo = beside._longest_first(experiment)
    assert [(variant.name, seed) for variant, seed in todo] == [
        ("baseline", 4),
        ("multigrid", 4),
        ("baseline", 7),
        ("multigrid", 7),
    ]
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert beside._announcement(experiment, todo, 2) == "4 runs, 2 at a time: about 104 s"
    assert beside._announcement(experiment, todo, 8) == "4 runs, 8 at a time: about 78 s"
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert beside._announcement(experiment, todo, 8) == "4 runs, 8 at a time: about 3.47 min"


def test_a_run_beside_others_writes_to_its_folder_and_has_no_progress_bar(experiment, monkeypatch):
    prepared = list[object]()
    monkeypatch.setattr(beside, "end_with_parent", lambda: lambda: prepared.append("ends"))
    monkeypatch.setattr(beside.os, "nice", prepared.append)
    with mock.patch.object(subprocess, "Popen") as popen:
        assert beside._start(experiment, experiment.variants[0], 4, Path("net.py"), 5)
    (command,), options_of_run = popen.call_args
    folder = experiment.output / "baseline" / "seed4"
    assert command[-4:] == ["RNG_SEED", "4", "OUTPUT_DIR", str(folder)]
    assert options_of_run["stdout"].name == str(folder / "beside_others.log")
    assert options_of_run["stderr"] == subprocess.STDOUT
    assert options_of_run["env"]["TQDM_DISABLE"] == "1"
    options_of_run["preexec_fn"]()
    assert prepared == [5, "ends"]


class FakeRun:
    """A run that ends at the second look at it, or never."""

    def __init__(self, end: Callable[[], int | None]) -> None:
        self.end, self.looks, self.calls, self.returncode = end, 0, list[str](), None

    def poll(self) -> int | None:
        self.looks += 1
        self.returncode = self.end() if self.looks > 1 else None
        return self.returncode

    def terminate(self) -> None:
        self.calls.append("terminate")

    def wait(self) -> None:
        self.calls.append("wait")


def test_an_interruption_ends_the_runs_that_go_on_and_waits_for_them(
    experiment, monkeypatch, capsys
):
    """The second run waits until the first has ended."""
    started = list[tuple[FakeRun, int]]()

    def interrupt() -> int | None:
        raise KeyboardInterrupt

    def start(_: object, variant: Variant, seed: int, path: Path, nicer: int) -> FakeRun:
        started.append((FakeRun(interrupt if started else lambda: 1), nicer))
        return started[-1][0]

    monkeypatch.setattr(beside, "_start", start)
    waits = list[float]()
    monkeypatch.setattr(beside.time, "sleep", waits.append)
    tables = beside.train_beside(experiment, Path("net.py"), 1)
    assert len(next(tables)) == 0
    assert len(next(tables)) == 0
    assert capsys.readouterr().err.startswith("4 runs, 1 at a time: about")
    assert experiment.failed() == {("baseline", 4): mock.ANY}
    with pytest.raises(KeyboardInterrupt):
        next(tables)
    assert waits == [beside._PERIOD] * 4, "between two looks at the runs"
    (first, lowest), (second, nicer) = started
    assert (lowest, nicer) == (0, 5)
    assert (first.calls, second.calls) == ([], ["terminate", "wait"])


def test_the_progress_bar_counts_the_iterations_of_all_runs(experiment, monkeypatch):
    """Of 102 + 36 iterations with each seed, the first run has 5 at two looks, and then ends."""
    bar = mock.MagicMock(n=0)
    bar.update = lambda more: setattr(bar, "n", bar.n + more)
    made = list[dict[str, Any]]()

    def new_bar(**options: Any) -> Any:
        made.append(options)
        return mock.MagicMock(__enter__=lambda self: bar)

    def start(experiment: Experiment, variant: Variant, seed: int, *_: object) -> FakeRun:
        folder = experiment.folder(variant, seed)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").write_text('{"iteration": 5}\n')
        return FakeRun(lambda: 1)

    monkeypatch.setattr(beside, "tqdm", new_bar)
    monkeypatch.setattr(beside, "_start", start)
    monkeypatch.setattr(beside.time, "sleep", lambda seconds: None)
    counts = [bar.n for _ in beside.train_beside(experiment, Path("net.py"), 1)]
    assert counts == [0, 5, 10, 15, 20]
    assert made[0]["total"] == 2 * (102 + 36)


# Results of runs.


def ended(status: int) -> Any:
    return SimpleNamespace(returncode=status)


def test_a_run_has_failed_without_a_result_or_with_another_status(tmp_path, capsys):
    folder = tmp_path / "run"
    runs.note_failure(folder, "x, seed 0", ended(0))
    assert (folder / "failed.json").read_text() == f"exit status 0, see the log in {folder}\n"
    assert "The run of x, seed 0 failed: exit status 0" in capsys.readouterr().err
    (folder / "result.json").touch()
    runs.note_failure(folder, "x, seed 0", ended(0))
    assert not (folder / "failed.json").exists()
    runs.note_failure(folder, "x, seed 0", ended(0))
    runs.note_failure(folder, "x, seed 0", ended(9))
    assert "exit status 9" in (folder / "failed.json").read_text()


def test_missing_runs_are_trained_in_turn_and_a_failure_before_is_forgotten(
    experiment, write_run, monkeypatch, capsys
):
    """One run has finished. Of the others, those of multigrid fail, one of them again."""
    baseline, multigrid = experiment.variants
    write_run(experiment, baseline, 4, 10, top1=50.0)
    runs.note_failure(experiment.folder(multigrid, 4), "it", ended(9))
    assert list(experiment.failed()) == [("multigrid", 4)]
    commands = list[list[str]]()

    def run(command: list[str]) -> Any:
        assert experiment.failed().get(("multigrid", 4)) is None or len(commands) > 0
        commands.append(command[-4:])
        if "multigrid.yaml" in command[3]:
            return ended(3)
        write_run(experiment, baseline, 7, 10, top1=50.0)
        return ended(0)

    monkeypatch.setattr(runs, "_run", run)
    tables = runs.train(experiment, Path("net.py"))
    capsys.readouterr()
    assert [len(table) for table in tables] == [1, 1, 2, 2]
    folders = ["multigrid/seed4", "baseline/seed7", "multigrid/seed7"]
    assert [command[-1] for command in commands] == [f"{experiment.output}/{f}" for f in folders]
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Run ")]
    names = ["multigrid, seed 4", "baseline, seed 7", "multigrid, seed 7"]
    assert said == [f"Run {number} of 3: {name}" for number, name in enumerate(names, 1)]
    assert set(experiment.failed()) == {("multigrid", 4), ("multigrid", 7)}
    assert "exit status 3" in experiment.failed()["multigrid", 4]
    found = experiment.runs()
    assert count_cell(experiment, found, baseline) == "2 of 2"
    stored = variant_json(baseline, found, ["top1"])["runs"]
    assert [(run["seed"], "config" in run) for run in stored] == [(4, False), (7, False)]
    assert count_cell(experiment, found, multigrid) == "0 of 2, 2 failed"


@pytest.mark.parametrize("reason", ["another machine", "other runs beside it"])
def test_times_of_steps_are_compared_where_wall_clock_times_cannot_be(
    experiment, write_run, reason
):
    """Steps take 60 and 20 s, and 102 and 36 iterations are done."""
    baseline, multigrid = experiment.variants
    machine = {"processor": "slide rule", "cores": 1, "gpus": []}
    write_run(experiment, baseline, 4, 100, top1=50.0)
    more = {"machine": machine} if reason == "another machine" else {}
    write_run(experiment, multigrid, 4, 50, top1=50.0, **more)
    if not more:
        (experiment.folder(multigrid, 4) / "beside_others.log").touch()
    found = experiment.runs().iloc[1]
    assert (found["speed_up"], found["iteration_factor"]) == pytest.approx((3, 102 / 36))
    assert math.isnan(found["total_speed_up"])
    found = replace(experiment, step_seconds=None).runs().iloc[1]
    assert math.isnan(found["speed_up"])
    assert math.isnan(found["total_speed_up"])
    assert found["iteration_factor"] == pytest.approx(102 / 36)


def test_an_output_that_is_no_folder_is_refused_before_a_run(experiment):
    experiment.output.touch()
    with pytest.raises(UserError, match=r"^--output .*cannot be written: a file is in the place"):
        next(runs.train(experiment, Path("net.py")))


def test_the_output_of_a_run_goes_to_standard_error(capfd):
    assert runs._run(["sh", "-c", "echo said; exit 3"]).returncode == 3
    assert capfd.readouterr() == ("", "said\n")


def test_after_nohup_a_hangup_stops_nothing(monkeypatch):
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_DFL)
    assert runs.stop_signals() == [signal.SIGTERM, signal.SIGHUP]
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN)
    assert runs.stop_signals() == [signal.SIGTERM]


def test_the_hardware_of_a_run_is_its_gpus_or_its_processor_and_threads(experiment, write_run):
    cpu = {"processor": "abacus", "cores": 2, "threads": 1, "gpus": []}
    gpu = {**cpu, "gpus": ["H1", "H1"]}
    baseline = experiment.variants[0]
    write_run(experiment, baseline, 4, 10, top1=50.0, machine=cpu)
    write_run(experiment, baseline, 7, 10, top1=50.0, machine=gpu, world_size=4)
    found = experiment.runs()
    assert found["machine"].tolist() == ["CPU: abacus, 2 cores, 1 threads", "4 × H1"]
    assert found["seconds"].tolist() == [10, 10]
    assert found["loading"].tolist() == [0.25, 0.25]
    assert found["total"].tolist() == [17, 17]
    assert "versions" not in " ".join(experiment_warnings(experiment, found))


def test_each_reason_for_doubt_is_a_warning(experiment, write_run):
    """One of the runs was trained on a longer list, and another with another torch."""
    baseline, multigrid = experiment.variants
    for seed, values in ((4, {"versions": {"torch": "3.0"}}), (7, {"planned_iterations": 102})):
        write_run(experiment, baseline, seed, 10, top1=50.0, **values)
    write_run(experiment, multigrid, 4, 10, top1=50.0, planned_iterations=40, iterations=38)
    experiment = replace(
        experiment, accepted=frozenset(["iterations"]), dropped={"PAPER": "it does not fit"}
    )
    found = experiment.runs()
    assert experiment_warnings(experiment, found) == [
        "PAPER was not trained: it does not fit.",
        "multigrid, seed 4, was trained for 38 iterations, but 36 are planned here, without its "
        "list of videos.",
        "The runs come from different versions of packages.",
    ]
    table = variants_table(experiment, found, ["iterations", "seconds"])
    assert table.headers == ["config", "seeds", "iterations", "wall-clock,\ntraining"]
    assert table.rows == [
        ["baseline", "2 of 2", "102", "10 s"],
        ["multigrid", "1 of 2", "38", "10 s"],
        ["PAPER", "not trained", "missing", "missing"],
    ]


def test_a_report_ends_with_its_result_on_a_terminal_and_begins_with_it_in_its_file(tmp_path):
    table = Table(["a\nb"], [["c"]])
    report = Report("name", "Title", ["result"], ["text", table], ["note"], {"é": 1})
    text = str(report)
    assert text.startswith("text\n\n")
    assert text.endswith("\n\nresult")
    assert "note" not in text
    report.write(tmp_path)
    lines = (tmp_path / "name.md").read_text().split("\n\n")
    assert (lines[:3], lines[-1]) == (["# Title", "result", "text"], "note\n")
    assert (tmp_path / "name.json").read_text() == '{\n  "é": 1\n}\n'
    assert not (tmp_path / "name.png").exists()
    replace(report, figure=new_figure(1, 1, 1)[0]).write(tmp_path / "new" / "folder")
    lines = (tmp_path / "new" / "folder" / "name.md").read_text().split("\n\n")
    assert lines[:4] == ["# Title", "result", "![Title](name.png)", "text"]
    assert (tmp_path / "new" / "folder" / "name.png").is_file()


# Step times and files of variants.


def test_seconds_of_variants_are_from_one_machine(two, monkeypatch):
    """A step of the baseline takes half a second, and of multigrid a quarter."""

    def times(files: list[Path], recipe: Recipe, clocks: tuple[str, ...] = ("abacus",)) -> Any:
        seconds = 0.25 if recipe.uses_multigrid else 0.5
        return SimpleNamespace(
            ours=lambda *_: seconds, clocks=set(clocks), source=f"{files[0]} on abacus"
        )

    monkeypatch.setattr(variants, "measured_times", times)
    found, source = step_seconds_of(two, [Path("steps.json")])
    assert found == {"baseline": 51.0, "multigrid": 9.0}
    assert source == "steps.json on abacus"

    def others(files: list[Path], recipe: Recipe) -> Any:
        return times(files, recipe, ("slide rule",) if recipe.uses_multigrid else ("abacus",))

    monkeypatch.setattr(variants, "measured_times", others)
    with pytest.raises(UserError, match="measured with abacus and with slide rule, so they cannot"):
        step_seconds_of(two, [Path("steps.json")])


def test_files_that_this_machine_lacks_are_returned_and_others_are_read(two, tmp_path):
    recipe = two[0].recipe
    with pytest.raises(UserError, match=r"DATA\.PATH_TO_DATA_DIR, the folder of the lists, is not"):
        hidden_files(recipe)
    weights = tmp_path / "weights.pyth"
    keys = {"DATA.PATH_TO_DATA_DIR": str(tmp_path), "TRAIN.CHECKPOINT_FILE_PATH": str(weights)}
    recipe = recipe.replaced(keys)
    lists = [tmp_path / f"{split}.csv" for split in ("train", "val", "test")]
    assert hidden_files(recipe) == [*lists, weights]
    torch.save({"x": torch.zeros(1)}, weights)
    lists[0].write_text("a.mp4 0\n")
    assert hidden_files(recipe) == lists[1:]
    assert hidden_files(recipe.replaced({"TEST.ENABLE": False})) == [lists[1]]
    test = {"TRAIN.ENABLE": False, "TEST.CHECKPOINT_FILE_PATH": "https://some.org/weights.pyth"}
    assert hidden_files(recipe.replaced(test)) == [lists[2]]
    weights.write_text("damaged")
    with pytest.raises(UserError, match=r"weights\.pyth"):
        hidden_files(recipe)
    lists[0].write_text("a.mp4 no\n")
    with pytest.raises(UserError, match=r"train\.csv"):
        hidden_files(recipe)


def test_a_recipe_that_cannot_be_trained_is_named(two):
    """A crop of 32 pixels has no room for the window of the head over 64 pixels."""
    path = two[0].cfg_file
    with pytest.raises(UserError, match=r"^mine: DATA\.TEST_CROP_SIZE 32 is too small"):
        variants.make_variant("mine", path, ["DATA.TEST_CROP_SIZE", "32"])
    made = variants.make_variant("mine", path, ["DATA.TEST_CROP_SIZE", "96"])
    assert (made.name, made.label, made.baseline, made.length) == ("mine", "mine", "mine", 1)


def test_other_lengths_of_a_recipe_are_not_compared_with_the_baseline(two, write_run, tmp_path):
    """A recipe that is shortened to the iterations of another is."""
    files = [variant.cfg_file for variant in two]
    made = make_variants(files, [], equal_iterations=True)
    made += [variants.with_length(variant, 2) for variant in made[::2]]
    experiment = Experiment(made, [0], tmp_path)
    assert comparison._compared(experiment, experiment.runs()) == []
    for variant in made:
        write_run(experiment, variant, 0, 100, top1=50.0)
    names = [variant.name for variant in comparison._compared(experiment, experiment.runs())]
    assert names == ["baseline x0.3529", "multigrid"]


# Checks.


def test_a_damaged_checkpoint_is_left_to_the_run_and_one_of_another_version_is_refused(
    experiment, monkeypatch
):
    baseline = experiment.variants[0]
    folder = experiment.folder(baseline, 4)
    path = checkpoints.save(folder, made(identity={}, changes=[]))
    path.write_bytes(path.read_bytes()[:100])
    checks.check_started(experiment, baseline, 4)
    content = {"version": 1, "iteration": 3}
    torch.save(content, path)
    with pytest.raises(UserError, match="version"):
        checks.check_started(experiment, baseline, 4)
    (folder / "result.json").touch()
    checks.check_started(experiment, baseline, 4)


def test_lists_with_other_names_of_files_are_alike_and_those_with_other_labels_are_not():
    def identity(names: str, labels: str, kernel: int = 3, **keys: object) -> Identity:
        facts = {"val_list": {"names": names, "labels": labels}, "val_videos": {"sizes": names}}
        return Identity({"TEST.NUM_SPATIAL_CROPS": kernel, **keys}, facts)

    first = identity("a", "1 2")
    assert checks.unlike(first, identity("b", "1 2")) == {}
    assert list(checks.unlike(first, identity("a", "2 1"))) == ["val_list"]
    assert list(checks.unlike(first, identity("a", "1 2", 1))) == ["TEST.NUM_SPATIAL_CROPS"]
    weights = {"TEST.CHECKPOINT_FILE_PATH": "x"}
    assert checks.unlike(first, identity("a", "1 2", **weights)) == {}


# Tables of the paper.


def test_a_row_has_its_numbers_and_what_it_shares_with_the_table():
    content = {
        "title": "Title",
        "metrics": ["top1"],
        "recipe": "a.yaml",
        "baseline": "b.yaml",
        "start": "imagenet",
        "rows": [
            {"label": "one", "top1": 75.5, "top5": [91, 0.25], "source": "Table 1"},
            {"label": "two", "recipe": "c.yaml", "overrides": {"SOLVER.BASE_LR": 0.5}},
        ],
    }
    table = paper._paper_table(content)
    one, two = table.rows
    assert (one.recipe, one.baseline, one.start) == ("a.yaml", "b.yaml", "imagenet")
    assert one.metrics == {"top1": Mean(75.5, None), "top5": Mean(91, 0.25)}
    assert (two.recipe, two.overrides, two.metrics) == ("c.yaml", ("SOLVER.BASE_LR", "0.5"), {})
    alone = paper._paper_table({"title": "", "metrics": [], "rows": [{"label": "", "recipe": "d"}]})
    assert (alone.rows[0].baseline, alone.rows[0].start) == ("d", "scratch")


def test_rows_with_the_same_training_have_the_same_folder():
    row = Row("label", "Kinetics/A.yaml", "Kinetics/B.yaml", "imagenet", 0.5, ("X", "1"), "x")
    assert row.folder == "Kinetics/A_x_x0.5"
    assert replace(row, length=1.0, variant="").folder == "Kinetics/A"
    reference = row.reference
    assert (reference.folder, reference.start) == ("Kinetics/B", "imagenet")


@pytest.mark.parametrize(("count", "said"), [(1, "source. Measured"), (2, "source, 2 runs. Meas")])
def test_published_runs_are_counted(experiment, count, said):
    row = Row("one", "baseline.yaml", "baseline.yaml", metrics={"top1": Mean(70.0, 0.25)})
    table = PaperTable("Title", ["top1"], (row,), "source", count, "A note.")
    costs = {"baseline": SimpleNamespace(iterations=102, epochs=6.0, flops=1e12, seconds=None)}
    report = report_table("table9", table, experiment, experiment.runs(), costs, "command")
    assert report.notes[0].startswith(f"Published: {said}")
    assert report.notes[1] == "A note."
    assert report.content["published_runs"] == count
    assert report.figure is None
    (cells,) = report.tables[0].rows
    file = experiment.variants[0].cfg_file
    assert cells[:2] == ["one", f"{file.parent.name}/baseline.yaml"]
    assert cells[2:5] == ["102", "6.0", "1 TFLOP"]
    assert cells[5:] == ["?", "70.0 ± 0.25", "missing", "–", "missing", "0 of 2"]
    assert math.isclose(report.content["rows"][0]["published"]["top1"]["mean"], 70)


def test_costs_need_the_flops_of_each_model_once_and_no_step_times(two, monkeypatch, capsys):
    """6 epochs of 136 clips of 2 FLOPs, and 102 iterations of half a second."""
    counted = list[Recipe]()
    flops = SimpleNamespace(of=lambda recipe: counted.append(recipe) or (lambda *clip: 2.0))
    monkeypatch.setattr(reproduction, "flops_per_clip", flops.of)
    named = {variant.name: variant for variant in two}
    found = reproduction.costs_of(named, [])
    assert counted == [two[0].recipe]
    assert (found["baseline"].iterations, found["baseline"].flops) == (102, 2 * 6 * 136)
    assert [cost.seconds for cost in found.values()] == [None, None]
    deeper = replace(two[0], recipe=two[0].recipe.replaced({"RESNET.DEPTH": 101}))
    reproduction.costs_of({**named, "deeper": deeper}, [])
    assert counted[1:] == [two[0].recipe, deeper.recipe]

    def times(files: list[Path], recipe: Recipe) -> Any:
        if recipe.uses_multigrid:
            raise MisfitError("the file is for another model")
        return SimpleNamespace(ours=lambda shape: 0.5)

    monkeypatch.setattr(reproduction, "measured_times", times)
    found = reproduction.costs_of(named, [Path("steps.json")])
    assert [cost.seconds for cost in found.values()] == [51.0, None]
    said = "There are no step times for multigrid.yaml: the file is for another model\n\n"
    assert capsys.readouterr().out == said


def test_rows_need_their_weights_and_lists(two, tmp_path):
    scratch = Row("x", "baseline.yaml", "baseline.yaml")
    weights = replace(scratch, start="imagenet")

    def check(row: Row, **keys: str) -> None:
        given = {name.replace("__", "."): value for name, value in keys.items()}
        recipe = two[0].recipe.replaced({"DATA.PATH_TO_DATA_DIR": str(tmp_path), **given})
        reproduction.check_inputs([row], {"baseline": replace(two[0], recipe=recipe)})

    with pytest.raises(UserError, match=r"^baseline needs weights\. Give --imagenet-weights FILE"):
        check(weights)
    with pytest.raises(UserError, match=rf"baseline needs {tmp_path}/train\.csv, which does not"):
        check(scratch)
    for split in ("train", "val", "test"):
        (tmp_path / f"{split}.csv").write_text("a.mp4 0\n")
    check(scratch)
    check(weights, TRAIN__CHECKPOINT_FILE_PATH="https://some.org/a.pyth")


def test_every_row_of_the_paper_has_a_recipe():
    for table in PAPER_TABLES.values():
        for row in table.rows:
            assert (paper.CONFIGS / row.recipe).is_file(), row
            assert (paper.CONFIGS / row.baseline).is_file(), row


def test_weights_that_are_not_given_yet_are_not_compared_and_random_ones_are(tmp_path):
    torch.save({"x": torch.zeros(1)}, tmp_path / "r50.pyth")
    weights = {"imagenet": str(tmp_path / "r50.pyth")}
    made_of = {name: next(iter(PAPER_TABLES[name].rows)) for name in ("table1a", "table4")}
    assert [row.start for row in made_of.values()] == ["scratch", "imagenet"]

    def fact(name: str, **given: Any) -> object:
        row = made_of[name]
        found = paper.paper_variants([row], **given)[row.folder]
        assert (found.name, found.baseline) == (row.folder, row.reference.folder)
        return found.identity.facts.get("weights", "unknown")

    assert fact("table1a") == {}
    assert fact("table4") == "unknown"
    assert fact("table4", weights=weights)["file"] == "r50.pyth"
