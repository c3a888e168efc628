"""Tests of `compare`: reports by hand from made-up results, and which runs are trained."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from slowfast_patches.config.recipe import default_recipe
from slowfast_patches.experiments import beside
from slowfast_patches.experiments.beside import train_beside
from slowfast_patches.experiments.comparison import compare, make_variants
from slowfast_patches.experiments.report import Report
from slowfast_patches.experiments.runs import Experiment, train
from slowfast_patches.experiments.score import CLEAR, SPREAD, chance_of, score_of
from slowfast_patches.experiments.variants import Variant

BASE = """
TRAIN: {DATASET: kinetics, BATCH_SIZE: 8}
TEST: {DATASET: kinetics}
DATA: {NUM_FRAMES: 16, TRAIN_JITTER_SCALES: [64, 80], TRAIN_CROP_SIZE: 64, TEST_CROP_SIZE: 64,
       INPUT_CHANNEL_NUM: [3], NUM_TRAIN_VIDEOS: 136}
RESNET: {WIDTH_PER_GROUP: 8}
NONLOCAL: {LOCATION: [[[]], [[]], [[]], [[]]], GROUP: [[1], [1], [1], [1]]}
MODEL: {ARCH: slowonly, NUM_CLASSES: 8}
SOLVER: {BASE_LR: 0.1, LR_POLICY: steps_with_relative_lrs, STEPS: [0, 4], LRS: [1, 0.1],
         MAX_EPOCH: 6, WARMUP_EPOCHS: 0.5}
NUM_GPUS: 0
"""
DELTA = "_BASE_: baseline.yaml\nMULTIGRID: {LONG_CYCLE: True, EPOCH_FACTOR: 1.0}\n"

SEVERAL_LABELS = """
_BASE_: {base}
TRAIN: {{DATASET: charades}}
TEST: {{DATASET: charades}}
DATA: {{MULTI_LABEL: True, ENSEMBLE_METHOD: max}}
MODEL: {{LOSS_FUNC: bce_logit, HEAD_ACT: sigmoid}}
"""

# Stands in for tools/run_net.py: notes that it was called, and "trains" by copying a result.
FAKE_RUN_NET = """
import os, shutil, signal, sys, time
from pathlib import Path
here = Path(__file__).parent
folder = Path(sys.argv[-1])
def stop(*_):
    (here / "stopped").touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, stop)
with (here / "calls.txt").open("a") as calls:
    calls.write(f"{folder.parent.name} {folder.name}" + chr(10))
with (here / "priorities.txt").open("a") as priorities:
    priorities.write(f"{os.getpriority(os.PRIO_PROCESS, 0)} ")
if folder.name == "seed13":
    sys.exit(3)
if folder.name == "seed15":
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(60)
folder.mkdir(parents=True, exist_ok=True)
deadline = time.time() + 30
while os.environ.get("OTHERS") and time.time() < deadline:  # wait for the run beside this one
    if len((here / "calls.txt").read_text().splitlines()) >= int(os.environ["OTHERS"]):
        break
    time.sleep(0.05)
else:
    assert not os.environ.get("OTHERS"), "no other run was started"
new = shutil.copy(here / folder.parent.name / folder.name / "result.json", folder / "new")
os.replace(new, folder / "result.json")  # at once, as the experiment may look at any time
"""


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("configs")
    (folder / "baseline.yaml").write_text(BASE)
    (folder / "multigrid.yaml").write_text(DELTA)
    return [folder / "baseline.yaml", folder / "multigrid.yaml"]


@pytest.fixture(scope="module")
def three(configs: list[Path]) -> list[Variant]:
    """Baseline, shortened baseline, multigrid: 102, 36 and 36 iterations."""
    return make_variants(configs, [], equal_iterations=True)


@pytest.fixture
def experiment(three: list[Variant], tmp_path: Path) -> Experiment:
    """Baseline and multigrid, two seeds."""
    return Experiment([three[0], three[2]], [0, 1], tmp_path / "runs")


def report_of(experiment: Experiment, *step_times: str) -> Report:
    return compare(experiment, experiment.runs(), "multigrid-compare --cfg x", *step_times)


def cells_of(text: str, name: str) -> list[str]:
    (row,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return re.split(" {2,}", row)


def test_a_report_by_hand(experiment, write_run):
    baseline, multigrid = experiment.variants
    other = {"processor": "slide rule", "cores": 1, "gpus": []}
    common = "3 of the 8 videos of val are also in train"
    write_run(experiment, baseline, 0, 300, top1=80.0, top5=90.0, overlaps=[common])
    write_run(experiment, baseline, 1, 400, top1=84.0, top5=90.0, overlaps=[common])
    write_run(experiment, multigrid, 0, 100, top1=83.0, top5=90.0)
    write_run(experiment, multigrid, 1, 200, top1=83.0, top5=90.0, machine=other)
    report = report_of(experiment)
    first, second = report.content["configs"]
    assert (first["seconds"]["mean"], second["seconds"]["mean"]) == pytest.approx((350, 150))
    # The ratio of the seed that was trained on the same machine for both.
    assert second["speed_up"]["mean"] == pytest.approx(3)
    assert first["top1"] == pytest.approx({"mean": 82.0, "std": 8**0.5})
    assert second["config"]["MULTIGRID"]["LONG_CYCLE"] is True
    cells = cells_of(str(report), "multigrid")
    assert cells[:6] == ["multigrid", "2 of 2", "36", "2.83×", "6.0", "288"]
    assert cells[6:] == ["36 GFLOP", "2.5 min", "2.62 min", "3.00×", "83.0 ± 0.0", "90.0 ± 0.0"]
    report.write(experiment.output)
    text = (experiment.output / "report.md").read_text()
    assert "different machines" in text
    assert text.count(common) == 1
    assert "    multigrid-compare --cfg x" in text
    assert json.loads((experiment.output / "report.json").read_text())["metric"] == "top1"
    assert (experiment.output / "report.png").read_bytes().startswith(b"\x89PNG")


def test_step_times_take_the_place_of_seconds(experiment, write_run):
    """The runs took 300 and 200 s. Measured alone, their steps take 280 and 100 s."""
    experiment = replace(experiment, step_seconds={"baseline": 280.0, "multigrid": 100.0})
    for variant, seconds in zip(experiment.variants, (300, 200), strict=True):
        write_run(experiment, variant, 0, seconds, top1=80.0, top5=90.0)
    report = report_of(experiment, "steps.json, measured on an abacus")
    assert cells_of(str(report), "multigrid")[7:11] == ["3.33 min", "3.45 min", "100 s", "2.80×"]
    assert "iterations × the step times of steps.json" in report.notes[0]
    of_steps, of_clock = report.content["verdicts"][1:3]
    where = "By the step times of steps.json, measured on an abacus"
    assert of_steps == f"{where}, multigrid trains 2.80× as fast."
    assert "wall-clock" in of_clock
    assert "1.48× as fast" in of_clock


def test_recipes_of_several_labels_are_compared_by_map_and_with_no_others(
    configs, tmp_path, write_run
):
    paths = [path.with_name(f"several_{path.name}") for path in configs]
    for path, base in zip(paths, configs, strict=True):
        path.write_text(SEVERAL_LABELS.format(base=base.name))
    experiment = Experiment(make_variants(paths, []), [0, 1], tmp_path)
    for seed in experiment.seeds:
        write_run(experiment, experiment.variants[0], seed, 300, map=38.0)
        write_run(experiment, experiment.variants[1], seed, 100, map=38.5)
    verdict, *_ = report_of(experiment).content["verdicts"]
    assert "mAP of several_multigrid differs by 0.5 ± 8.5 points" in verdict
    assert "undecided" in verdict
    with pytest.raises(ValueError, match="'baseline': 'top1, top5', 'several_multigrid': 'map'"):
        make_variants([configs[0], paths[1]], [])


def test_the_verdict_by_hand(experiment, write_run):
    """Of 48 videos, 34 and 9 are right (70.8 and 18.8 %) with both seeds.

    The videos cause errors of 6.56 and 5.63 points. Of a single seed, the model says 8.26 and 6.09
    points. It counts as four seeds more than the two, which agree: √(8.26² · 4 / 5 / 2) = 5.23, and
    3.85. Together, 8.39 and 6.83. With evaluation, the 300 and 100 s become 303 and 311 s.
    """
    baseline, multigrid = experiment.variants
    for seed in experiment.seeds:
        spent = {"training": 300, "loading": 0, "evaluating": 3}
        write_run(
            experiment, baseline, seed, 300, top1=70.8333, top5=99.0, videos=48, seconds=spent
        )
    assert report_of(experiment).content["verdicts"] == []
    for seed in experiment.seeds:
        spent = {"training": 90, "loading": 10, "evaluating": 200, "testing": 11}
        write_run(experiment, multigrid, seed, 100, top1=18.75, top5=90.0, videos=48, seconds=spent)
    said = [
        "Verdict: compared with baseline, the top-1 of multigrid differs by -52.1 ± 10.8 points "
        "(18.8 ± 6.8 % against 70.8 ± 8.4 %).",
        "By wall-clock time without evaluation and test, multigrid trains 3.00× as fast.",
        "By wall-clock time with data loading, evaluation and test, multigrid is 0.97× as fast.",
    ]
    report = report_of(experiment)
    assert "Chance is 12.5 %." in report.notes[0]
    assert report.content["configs"][1]["total"]["mean"] == 311
    # 18.8 - 2 · 6.8 is below chance; the training ends with 6 iterations at the baseline's shape
    end, low = report.content["warnings"]
    assert "at the baseline's shape" in end
    assert low.startswith("The accuracy of multigrid is not clearly above chance")
    assert report.result == [f"Warning: {end}", f"Warning: {low}", *said]
    [differs] = [note for note in report.notes if note.startswith("multigrid differs")]
    assert "MULTIGRID.LONG_CYCLE False there, True here" in differs


def test_a_difference_within_two_errors_is_undecided(three, experiment, write_run):
    """The seeds reach 80 and 82, 79 and 80, 99 and 99.

    The model says 6.16, 6.52 and 0.40 points for one seed. With the sample variances 2, 0.5 and 0,
    the errors are √((4 · 6.16² + 2) / 5 / 2) = 3.92, 4.13 and 0.25.
    """
    experiment = replace(experiment, variants=three)
    for variant, scores in zip(three, ((80, 82), (79, 80), (99, 99)), strict=True):
        for seed, top1 in enumerate(scores):
            write_run(experiment, variant, seed, 100, top1=float(top1), top5=90.0)
    texts = report_of(experiment).content["verdicts"]
    short, multigrid = (text for text in texts if text.startswith("Verdict"))
    assert "differs by -1.5 ± 5.7 points (79.5 ± 4.1 % against 81.0 ± 3.9 %, undecided)" in short
    assert "differs by 18.0 ± 3.9 points (99.0 ± 0.3 % against 81.0 ± 3.9 %)." in multigrid


def test_one_seed_of_the_same_recipe_gives_no_verdict_but_a_command(three, experiment, write_run):
    """The scores are those of three seeds of one recipe."""
    experiment = replace(experiment, variants=three, seeds=[4])
    for variant, top1 in zip(three, (80.9, 69.1, 54.7), strict=True):
        write_run(experiment, variant, 4, 100, top1=top1, top5=90.0, videos=160)
    report = report_of(experiment)
    verdicts = [text for text in report.content["verdicts"] if "erdict" in text]
    assert len(verdicts) == 2
    assert all(text.startswith("No verdict") for text in verdicts)
    assert "the error between seeds is unknown" in verdicts[0]
    assert report.content["verdicts"][-1].endswith("    multigrid-compare --seeds 4 0 1 --cfg x")


@pytest.mark.parametrize("seeds", [2, 3, 8])
@pytest.mark.parametrize("accuracy", [50.0, 80.0, 95.0])
def test_two_variants_of_one_recipe_are_rarely_clearly_different(seeds, accuracy):
    """Draw the scores of 300 pairs of variants from one distribution."""
    rng = np.random.default_rng(0)
    spread = SPREAD * accuracy / 100 * (1 - accuracy / 100)
    clear = 0
    for _ in range(300):
        drawn = np.clip(rng.normal(accuracy, spread, (2, seeds)), 0, 100)
        rows = [
            ("ab"[variant], top1, {"videos": 5000}) for variant in (0, 1) for top1 in drawn[variant]
        ]
        runs = pd.DataFrame(rows, columns=["variant", "top1", "result"])
        change = score_of(runs, "a", "top1") - score_of(runs, "b", "top1")
        clear += abs(change.mean) >= CLEAR * change.stdev
    assert clear / 300 < 0.1


def test_variants_that_were_scored_on_different_numbers_of_videos_have_no_verdict(
    experiment, write_run
):
    for variant, videos in zip(experiment.variants, (100, 5000), strict=True):
        for seed in experiment.seeds:
            write_run(experiment, variant, seed, 100, top1=70.0, videos=videos, unreadable=3)
    verdict, *_ = report_of(experiment).content["verdicts"]
    assert verdict == "No verdict: multigrid was scored on 4997 videos, and baseline on 97."


def test_a_run_that_was_resumed_elsewhere_has_no_times(experiment, write_run):
    for variant in experiment.variants:
        clocks = ["1 × CPU abacus"] + ["1 × CPU slide rule"] * (variant is experiment.variants[1])
        write_run(experiment, variant, 0, 100, top1=70.0, clocks=clocks)
    report = report_of(experiment)
    assert cells_of(str(report), "multigrid")[7:10] == ["missing", "missing", "missing"]
    assert "multigrid, seed 0" in " ".join(report.content["warnings"])
    assert not any("wall-clock" in text for text in report.content["verdicts"])


def test_chance_is_the_share_of_the_commonest_class_that_is_tested(configs, tmp_path):
    """Three of six test videos have the same class."""
    for name, labels in (("val", [0, 1]), ("test", [0, 1, 1, 1, 2, 3])):
        lines = (f"{number}.mp4 {label}\n" for number, label in enumerate(labels))
        (tmp_path / f"{name}.csv").write_text("".join(lines))
    recipe = make_variants(configs, ["DATA.PATH_TO_DATA_DIR", str(tmp_path)])[0].recipe
    assert chance_of(recipe) == 50
    assert chance_of(default_recipe()) == 0.25
    assert chance_of(default_recipe().replaced({"DATA.MULTI_LABEL": True})) is None


def test_equal_iterations_scales_every_length_by_the_ratio_of_iterations(configs):
    full, short, multigrid = make_variants(
        configs, ["SOLVER.BASE_LR", "0.2"], equal_iterations=True
    )
    assert (full.iterations, short.iterations, multigrid.iterations) == (102, 36, 36)
    assert (short.name, short.folder) == ("baseline x0.3529", "baseline_x0.3529")
    solver, ratio = short.recipe.solver, 36 / 102
    lengths = [solver.max_epoch, *solver.steps, solver.warmup_epochs]
    assert lengths == pytest.approx([6 * ratio, 0, 4 * ratio, 0.5 * ratio], rel=1e-5)
    assert solver.base_lr == 0.2
    assert short.overrides == ("SOLVER.BASE_LR", "0.2", "SOLVER.LENGTH", str(ratio))
    assert short.length == ratio
    with pytest.raises(ValueError, match="longer config first"):
        make_variants(configs[::-1], [], equal_iterations=True)


@pytest.fixture
def fake_run_net(three, tmp_path, write_run, monkeypatch) -> Path:
    """Return a program that ends at once, so that it is looked at often."""
    monkeypatch.setattr(beside, "_PERIOD", 0.02)
    script = tmp_path / "fake" / "run_net.py"
    for variant in three:
        write_run(Experiment(three, [0], script.parent), variant, 0, 100, top1=80.0, top5=90.0)
    script.write_text(FAKE_RUN_NET)
    return script


def train_all(experiment: Experiment, run_net: Path) -> list[int]:
    """Train, and return the number of finished runs in each result that `train` yields."""
    return [len(runs) for runs in train(experiment, run_net)]


def test_all_variants_are_trained_with_a_seed_before_the_next_and_none_twice(
    three, experiment, fake_run_net, write_run
):
    """The runs with seed 13 fail. The others are trained, and each failed run is in the report."""
    experiment = replace(experiment, variants=three, seeds=[13, 0])
    write_run(experiment, three[2], 0, 55, top1=81.0, top5=90.0)
    train_all(experiment, fake_run_net)
    calls = fake_run_net.with_name("calls.txt")
    trained = calls.read_text()
    runs = ["baseline_x0.3529 seed{}", "baseline seed{}", "multigrid seed13"]
    assert trained.split("\n")[:-1] == [
        *(run.format(13) for run in runs),
        *(run.format(0) for run in runs[:2]),
    ]
    assert experiment.runs()["top1"].tolist() == [80, 80, 81]
    assert cells_of(str(report_of(experiment)), "multigrid")[1] == "1 of 2, 1 failed"
    assert "exit status 3, see the log in" in " ".join(report_of(experiment).content["warnings"])
    assert train_all(replace(experiment, seeds=[0]), fake_run_net) == [3]
    assert calls.read_text() == trained


def test_sigterm_stops_the_run_as_well(experiment, fake_run_net):
    with pytest.raises(KeyboardInterrupt):
        train_all(replace(experiment, variants=experiment.variants[:1], seeds=[15]), fake_run_net)
    assert fake_run_net.with_name("stopped").exists()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_runs_are_trained_beside_each_other_without_wall_clock_speed_ups(
    three, experiment, fake_run_net, monkeypatch, capfd
):
    """The first two runs wait for each other, and the third begins when one of them has ended."""
    monkeypatch.setenv("OTHERS", "2")
    seconds = {variant.name: 60.0 * variant.iterations / 102 for variant in three}
    experiment = replace(experiment, variants=three, seeds=[0], step_seconds=seconds)
    counts = [len(runs) for runs in train_beside(experiment, fake_run_net, 2)]
    assert counts[0] == 0
    assert counts[-1] == 3
    runs = experiment.runs()
    assert runs["beside"].all()
    assert runs["total_speed_up"].isna().all()
    assert runs["speed_up"].tolist() == pytest.approx([1, 102 / 36, 102 / 36])
    said = capfd.readouterr().err
    assert "3 runs, 2 at a time: about 78" in said.replace("1.3 min", "78 s")


def test_the_longest_run_starts_first_and_has_priority(three, experiment, fake_run_net):
    """The experiment ends no earlier than its longest run."""
    seconds = {
        variant.name: second for variant, second in zip(three, (253.0, 75.0, 84.0), strict=True)
    }
    experiment = replace(experiment, variants=three, seeds=[1, 0], step_seconds=seconds)
    list(train_beside(experiment, fake_run_net, 1))
    calls = fake_run_net.with_name("calls.txt").read_text().splitlines()
    order = ["baseline", "multigrid", "baseline_x0.3529"]
    assert calls == [f"{name} seed{seed}" for seed in (1, 0) for name in order]
    priorities = map(int, fake_run_net.with_name("priorities.txt").read_text().split())
    here = os.getpriority(os.PRIO_PROCESS, 0)
    assert list(priorities) == [min(19, here + nicer) for nicer in (0, 5, 10, 10, 10, 10)]


def test_a_run_beside_others_that_fails_is_noted_and_the_others_go_on(
    three, experiment, fake_run_net
):
    seconds = dict.fromkeys((variant.name for variant in three), 1.0)
    experiment = replace(experiment, variants=three, seeds=[13, 0], step_seconds=seconds)
    *_, runs = train_beside(experiment, fake_run_net, 3)
    assert len(runs) == 3
    assert set(experiment.failed()) == {(variant.name, 13) for variant in three}


def test_jobs_without_step_times_are_refused(configs, load_program, capsys):
    program = load_program("tools/compare.py")
    with pytest.raises(SystemExit):
        program.parse_args(["--cfg", str(configs[0]), "--cfg", str(configs[1]), "--jobs", "2"])
    assert "Add --step-times" in " ".join(capsys.readouterr().err.split())


WAITING = """
import signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
def stop(*_):
    (folder / "stopped").touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, stop)
(folder / "started").touch()
time.sleep(60)
"""
PARENT = """
import signal, sys
from slowfast_patches.experiments.runs import _run
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would have it ignored
_run(sys.argv[1:])
"""


def wait_for(path: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.05)


@pytest.mark.slow("starts programs")
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGKILL])
def test_a_training_ends_with_the_experiment_however_it_ends(tmp_path, number):
    script = tmp_path / "waiting.py"
    script.write_text(WAITING)
    command = [sys.executable, "-c", PARENT, sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as experiment:
        wait_for(tmp_path / "started")
        experiment.send_signal(number)
        wait_for(tmp_path / "stopped", 10)


def test_a_run_of_another_config_is_refused(configs, experiment, write_run):
    """A key that is missing in an older run had its default value."""
    write_run(experiment, experiment.variants[0], 0, 100, top1=80.0, top5=90.0)
    path = experiment.folder(experiment.variants[0], 0) / "result.json"
    result = json.loads(path.read_text())
    del result["identity"]["keys"]["DATA.ENSEMBLE_METHOD"]
    path.write_text(json.dumps(result))

    def runs(*keys: object) -> int:
        return len(replace(experiment, variants=make_variants(configs, keys)).runs())

    # A failed run advises to change these keys.
    assert runs("DATA_LOADER.NUM_WORKERS", 0, "DATA.MAX_BAD_FRACTION", 0.5) == 1
    with pytest.raises(ValueError, match=r"ENSEMBLE_METHOD sum there, max here.*another --output"):
        runs("DATA.ENSEMBLE_METHOD", "max")
    with pytest.raises(ValueError, match="102 iterations there, 204 here"):
        runs("DATA.NUM_TRAIN_VIDEOS", 272)


def test_a_damaged_result_and_one_of_several_rates_are_refused(experiment, write_run):
    baseline = experiment.variants[0]
    write_run(experiment, baseline, 0, 100, top1=80.0, changes=["after iteration 6: BASE_LR 1"])
    with pytest.raises(ValueError, match=r"other settings .*after iteration 6"):
        experiment.runs()
    path = experiment.folder(baseline, 0) / "result.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ValueError, match="not a valid result"):
        experiment.runs()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RNG_SEED", "1"], "--seeds"),
        (["--cfg", "{0}"], "cannot have the same name"),
        (["--lengths", "0.5", "1", "0.01"], "baseline x0.01: the training is too short"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    configs, tmp_path, refused, load_program, arguments, message
):
    files = [word for path in configs for word in ("--cfg", str(path))]
    command = [*files, "--output", str(tmp_path / "runs"), "--seeds", "0", "1"]
    command += [word.format(configs[0]) for word in arguments]
    assert message in refused(load_program("tools/compare.py"), command)


def test_the_command_reports_what_is_there(
    configs, experiment, capsys, load_program, monkeypatch, write_run
):
    tool = load_program("tools/compare.py")
    files = [word for path in configs for word in ("--cfg", str(path))]
    command = ["--output", str(experiment.output), "--seeds", "0", "1", "SOLVER.BASE_LR", "0.1"]
    monkeypatch.setattr(tool, "train", lambda experiment, *_: [experiment.runs()])
    assert tool.main([*files, *command]) == 0
    assert "missing" in capsys.readouterr().out
    assert not experiment.output.exists()  # no report without a result
    for variant, seconds in zip(experiment.variants, (300, 100), strict=True):
        write_run(experiment, variant, 0, seconds, top1=80.0, top5=90.0)
    times = (
        {variant.name: variant.iterations for variant in experiment.variants},
        "steps.json, measured on abacus",
    )
    monkeypatch.setattr(tool, "step_seconds_of", lambda variants, files: times)
    assert tool.main([*files, "--step-times", "steps.json", *command]) == 0
    assert "multigrid trains 2.83× as fast" in capsys.readouterr().out
    assert "--seeds 0 1 SOLVER.BASE_LR 0.1" in (experiment.output / "report.md").read_text()
