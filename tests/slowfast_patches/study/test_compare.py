"""`compare`: reports worked out by hand from made-up results, and what is trained and what not."""

import json
from pathlib import Path

import pytest
import yaml

from multigrid import Cost
from slowfast_patches.plan.step_times import Timing
from slowfast_patches.study.arms import Arm
from slowfast_patches.study.compare import (
    Comparison,
    format_comparison,
    make_arms,
    write_comparison,
)
from slowfast_patches.study.runs import (
    RunFailedError,
    each_seed,
    find_results,
    run_folder,
    train_all,
)
from slowfast_patches.utils import pictures as utils_pictures

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
import json, sys
from pathlib import Path
here = Path(__file__).parent
arguments = sys.argv[1:]
cfg, pairs = arguments[1], dict(zip(arguments[2::2], arguments[3::2]))
with (here / "calls.txt").open("a") as calls:
    calls.write(Path(pairs["OUTPUT_DIR"]).parent.name + " " + pairs["RNG_SEED"] + chr(10))
if pairs["RNG_SEED"] == "13":
    sys.exit(3)
folder = Path(pairs["OUTPUT_DIR"])
result = json.loads((here / (folder.parent.name + ".json")).read_text())
result["config"] |= {"RNG_SEED": int(pairs["RNG_SEED"]), "OUTPUT_DIR": str(folder)}
folder.mkdir(parents=True, exist_ok=True)
(folder / "result.json").write_text(json.dumps(result))
"""


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("configs")
    (folder / "baseline.yaml").write_text(BASE)
    (folder / "multigrid.yaml").write_text(DELTA)
    return [folder / "baseline.yaml", folder / "multigrid.yaml"]


@pytest.fixture(scope="module")
def three(configs: list[Path]) -> list[Arm]:
    """Baseline, shortened baseline, multigrid."""
    return make_arms(configs, [], equal_iterations=True)


@pytest.fixture(scope="module")
def arms(three: list[Arm]) -> list[Arm]:
    """Baseline and multigrid."""
    return [three[0], three[2]]


def make_result(arm, seed: int, seconds: float, top1: float, waiting=0.0, **changes) -> dict:
    """What run_net writes, with made-up numbers; a tenth of the time is loading."""
    spent = {"training": seconds * 0.9, "loading": seconds * 0.1, "waiting": waiting}
    evaluations = [
        {"iteration": n, "epoch": n, "seconds": seconds * n / 4, "top1": top1 * n / 4, "top5": 90.0}
        for n in (1, 2, 3, 4)
    ]
    config = yaml.safe_load(arm.recipe.text) | {"RNG_SEED": seed, "OUTPUT_DIR": "elsewhere"}
    return {
        "config": config,
        "versions": {"torch": "2.0"},
        "machine": {"processor": "abacus", "cores": 2, "gpus": []},
        "seed": seed,
        "date": "2020-06-14T00:00:00+00:00",
        "seconds": spent | {"evaluating": 7.0},
        "iterations": arm.iterations,
        "epochs": 6.0,
        "clips": 816,
        "flops": 2e12,
        "top1": top1,
        "top5": 90.0,
        "evaluations": evaluations,
        "finished": True,
    } | changes


def as_map(result: dict, value: float) -> dict:
    """The result as of a run that is judged by mAP."""
    for evaluation in result["evaluations"]:
        evaluation["map"] = evaluation.pop("top1") / 2
        del evaluation["top5"]
    del result["top1"], result["top5"]
    return result | {"metric": "map", "map": value}


def store(output: Path, arm, seed: int, result: dict) -> None:
    folder = run_folder(output, arm, seed)
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result))


OTHER = {"processor": "slide rule", "cores": 1, "gpus": []}


def test_a_report_by_hand(arms, tmp_path):
    results = {
        ("baseline", 0): make_result(arms[0], 0, seconds=300, top1=80.0),
        ("baseline", 1): make_result(arms[0], 1, seconds=400, top1=84.0),
        ("multigrid", 0): make_result(arms[1], 0, seconds=100, top1=83.0),
        ("multigrid", 1): make_result(arms[1], 1, seconds=200, top1=83.0, machine=OTHER),
    }
    comparison = Comparison(arms, [0, 1], results, "multigrid-compare --cfg x")
    write_comparison(comparison, tmp_path / "out")
    first, second = json.loads((tmp_path / "out" / "report.json").read_text())["configs"]
    assert (first["seconds"]["mean"], second["seconds"]["mean"]) == pytest.approx((350, 150))
    assert [run["speed_up"] for run in second["runs"]] == pytest.approx([3.0, 2.0])
    # the mean of the ratios, not the ratio of the means (2.33)
    assert second["speed_up"]["mean"] == pytest.approx(2.5)
    # 102 iterations against 36: see the plan's tests
    assert second["iteration_factor"]["mean"] == pytest.approx(102 / 36)
    assert first["top1"] == pytest.approx({"mean": 82.0, "std": 8**0.5})
    assert second["top1"]["std"] == 0
    assert first["speed_up"]["mean"] == first["iteration_factor"]["mean"] == 1
    assert second["config"]["MULTIGRID"]["LONG_CYCLE"] is True
    text = (tmp_path / "out" / "report.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| multigrid")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:6] == ["multigrid", "2", "36", "2.83×", "6.0", "816"]
    assert cells[6:] == ["2 TFLOP", "2.5 min", "7 s", "2.50 ± 0.71×", "83.0 ± 0.0", "90.0 ± 0.0"]
    assert "different machines" in text
    assert "    multigrid-compare --cfg x" in text
    assert (tmp_path / "out" / "report.png").read_bytes().startswith(b"\x89PNG")


def test_by_step_times_one_speed_up_is_in_the_table_the_json_and_the_picture(
    arms, tmp_path, monkeypatch
):
    """Side by side the runs took 300 and 200 s; alone their steps take 280 and 100."""
    results = {
        ("baseline", 0): make_result(arms[0], 0, seconds=300, top1=80.0, waiting=54),
        ("multigrid", 0): make_result(arms[1], 0, seconds=200, top1=83.0, waiting=72),
    }
    seconds = {"baseline": 280.0, "multigrid": 100.0}
    comparison = Comparison(arms, [0], results, "command", seconds, "steps.json")
    drawn = []
    monkeypatch.setattr(utils_pictures, "save_figure", lambda figure, path: drawn.append(figure))
    write_comparison(comparison, tmp_path)
    text = (tmp_path / "report.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| multigrid")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[7:11] == ["3.33 min", "7 s", "100 s", "2.80×"]
    assert "1.50×" not in text
    assert "iterations × the step times of steps.json" in text
    assert "busy" not in text
    found = json.loads((tmp_path / "report.json").read_text())["configs"][1]
    assert found["speed_up"] == {"mean": 2.8, "std": None}
    assert (found["seconds"]["mean"], found["step_seconds"]) == (200, 100)
    [axes] = drawn[0].axes
    assert axes.get_xlabel() == "training time, by step times (seconds)"
    ends = {line.get_xdata()[-1] for line in axes.lines}
    assert ends == {280, 100}


def test_why_wall_clock_times_may_mislead(arms):
    """A machine that was busy, and evaluations that took longer than the training."""
    results = {
        ("baseline", 0): make_result(arms[0], 0, seconds=300, top1=80.0, waiting=13),
        ("multigrid", 0): make_result(arms[1], 0, seconds=6, top1=83.0, waiting=2.7),
    }
    text = format_comparison(Comparison(arms, [0], results, "command"))
    assert "waited for a core for 50 % of multigrid. These" in text
    assert "Evaluation took longer than training in multigrid, and" in text
    results["multigrid", 0]["seconds"]["waiting"] = 0.2
    assert "busy" not in format_comparison(Comparison(arms, [0], results, "command"))


@pytest.fixture(scope="module")
def several_labels(configs: list[Path]) -> list[Path]:
    """The two configs for a data set of several labels a video."""
    paths = [path.with_name(f"several_{path.name}") for path in configs]
    for path, base in zip(paths, configs, strict=True):
        path.write_text(SEVERAL_LABELS.format(base=base.name))
    return paths


def test_recipes_of_several_labels_are_compared_by_map_and_with_no_others(
    configs, several_labels, tmp_path
):
    arms = make_arms(several_labels, [])
    results = {
        (arm.name, 0): as_map(make_result(arm, 0, seconds, top1=70.0), value)
        for arm, seconds, value in zip(arms, (300, 100), (38.0, 38.5), strict=True)
    }
    write_comparison(Comparison(arms, [0], results, "command"), tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "![Mean average precision against training time](report.png)" in text
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["metric"] == "map"
    assert report["configs"][0]["map"] == {"mean": 38.0, "std": None}
    assert "top1" not in report["configs"][0]
    with pytest.raises(ValueError, match=r"baseline is judged by top-1 and top-5 .* several_mul.*"):
        make_arms([configs[0], several_labels[1]], [])


def test_what_is_missing_is_shown_as_missing(arms, tmp_path):
    results = {("baseline", 0): make_result(arms[0], 0, seconds=300, top1=80.0)}
    comparison = Comparison(arms, [0, 1], results, "command")
    lines = format_comparison(comparison).splitlines()
    (first,) = [line for line in lines if line.startswith("baseline")]
    (second,) = [line for line in lines if line.startswith("multigrid")]
    assert "1 (1 missing)" in first
    assert "0 (2 missing)" in second
    assert second.count("missing") == 11
    write_comparison(comparison, tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["configs"][1]["top1"] is None
    assert [run["finished"] for run in report["configs"][0]["runs"]] == [True, False]


def test_equal_iterations_scales_every_length_by_the_ratio_of_iterations(configs):
    full, short, multigrid = make_arms(configs, ["SOLVER.BASE_LR", "0.2"], equal_iterations=True)
    assert (full.iterations, multigrid.iterations) == (102, 36)
    assert short.iterations == 36
    assert short.name == "baseline at 1/2.8"
    assert short.folder == "baseline_1_over_2.8"
    solver, ratio = short.recipe.solver, 36 / 102
    lengths = [solver.max_epoch, *solver.steps, solver.warmup_epochs]
    assert lengths == pytest.approx([6 * ratio, 0, 4 * ratio, 0.5 * ratio], rel=1e-5)
    assert solver.base_lr == 0.2
    with pytest.raises(ValueError, match="longer one first"):
        make_arms(configs[::-1], [], equal_iterations=True)


def train(arms: list[Arm], seeds: list[int], output: Path, run_net: Path, seconds=None, at_once=1):
    """All that `train_all` yields; counting models would take time."""
    cost = Cost(iterations=1, epochs=1.0, clips=1, flops=1.0, seconds=seconds)
    return list(train_all(each_seed(arms, seeds), output, run_net, lambda arm: cost, at_once))


@pytest.fixture
def fake_run_net(three: list[Arm], tmp_path: Path) -> Path:
    script = tmp_path / "fake" / "run_net.py"
    script.parent.mkdir()
    script.write_text(FAKE_RUN_NET)
    for arm in three:
        result = make_result(arm, seed=0, seconds=100, top1=80.0)
        (script.parent / f"{arm.folder}.json").write_text(json.dumps(result))
    return script


def calls(script: Path) -> list[str]:
    return (script.parent / "calls.txt").read_text().splitlines()


@pytest.mark.slow
def test_all_configs_are_trained_with_a_seed_before_the_next_and_none_twice(
    three, fake_run_net, tmp_path
):
    arms, output = three, tmp_path / "runs"
    store(output, arms[2], 0, make_result(arms[2], 0, seconds=55, top1=81.0))
    seen = train(arms, [0, 5], output, fake_run_net)
    short = "baseline_1_over_2.8"
    trained = ["baseline 0", f"{short} 0", "baseline 5", f"{short} 5", "multigrid 5"]
    assert calls(fake_run_net) == trained
    assert [len(results) for results in seen] == [1, 2, 3, 4, 5, 6]
    assert seen[-1]["multigrid", 0]["top1"] == 81.0
    assert find_results(each_seed(arms, [0, 5]), output).keys() == seen[-1].keys()
    assert len(train(arms, [0, 5], output, fake_run_net)) == 1
    assert calls(fake_run_net) == trained


@pytest.mark.slow
def test_the_time_that_is_left_is_said_to_standard_error(arms, fake_run_net, tmp_path, capsys):
    """By step times before the first run, by what runs took (107 s each) after it."""
    train(arms, [0], tmp_path / "runs", fake_run_net)
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert out == ""
    assert "baseline, seed 0: starts; " in first
    assert "2 runs with 2 FLOP of training" in first
    assert second == "run 2 of 2: multigrid, seed 0: starts; about 107 s left for 1 run"
    train(arms, [1], tmp_path / "runs", fake_run_net, seconds=20.0)
    assert "starts; about 40 s left for 2 runs" in capsys.readouterr().err


@pytest.mark.slow
def test_a_failed_run_is_named_and_the_others_kept(arms, fake_run_net, tmp_path):
    output = tmp_path / "runs"
    with pytest.raises(RunFailedError, match=r"baseline, seed 13, .* status 3 .*seed13"):
        train(arms, [1, 13], output, fake_run_net)
    found = find_results(each_seed(arms, [1, 13]), output)
    assert set(found) == {("baseline", 1), ("multigrid", 1)}


# Stands in for a run that is there, and for one that "trains" until another is there.
MEETS = """
import sys, time
from pathlib import Path
here, seed = Path(__file__).parent, sys.argv[sys.argv.index("RNG_SEED") + 1]
(here / f"met{seed}").touch()
while len(list(here.glob("met*"))) < 2:
    time.sleep(0.01)
"""
# ... and for one that says that it was told to stop.
STOPS = """
import signal
def stop(*_):
    (here / "stopped").touch()
    sys.exit(1)
signal.signal(signal.SIGTERM, stop)
"""


@pytest.mark.slow
def test_some_runs_train_side_by_side(arms, fake_run_net, tmp_path, capsys):
    """Neither of the first two ends before the other has begun."""
    fake_run_net.write_text(MEETS + FAKE_RUN_NET)
    seen = train(arms[:1], [0, 1, 2], tmp_path / "runs", fake_run_net, seconds=20.0, at_once=2)
    assert [len(results) for results in seen] == [0, 1, 2, 3]
    first, second, third = capsys.readouterr().err.splitlines()
    assert "about 30 s left for 3 runs" in first
    assert "seed 1: starts; about 30 s left for 3 runs" in second
    assert "about 107 s left for" in third  # by what runs took


@pytest.mark.slow
def test_when_a_run_fails_those_beside_it_are_stopped(arms, fake_run_net, tmp_path):
    wait = "import time\nif seed == '1':\n    time.sleep(60)\n"
    begin = MEETS.replace("(here /", f"{STOPS}(here /", 1)
    fake_run_net.write_text(begin + wait + FAKE_RUN_NET)
    with pytest.raises(RunFailedError, match=r"seed 13, .* status 3"):
        train(arms[:1], [1, 13], tmp_path / "runs", fake_run_net, at_once=2)
    assert (fake_run_net.parent / "stopped").exists()


def test_a_run_of_another_config_is_refused_before_anything_is_trained(
    configs, arms, fake_run_net, tmp_path
):
    """A key that did not exist yet was at its default."""
    result = make_result(arms[0], 0, seconds=100, top1=80.0)
    del result["config"]["DATA"]["ENSEMBLE_METHOD"]
    output = tmp_path / "runs"
    store(output, arms[0], 0, result)
    assert find_results([(arms[0], 0)], output)["baseline", 0]["top1"] == 80.0
    after = make_arms(configs, ["DATA.ENSEMBLE_METHOD", "max"])
    with pytest.raises(ValueError, match=r"ENSEMBLE_METHOD sum there, max now.*another --output"):
        train(after, [0], output, fake_run_net)
    assert not (fake_run_net.parent / "calls.txt").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checksum": "0"}, "no run's result .*checksum does not match"),
        ({"rate_changes": ["after iteration 6: SOLVER.BASE_LR 1"]}, "several rates .after iter"),
    ],
)
def test_a_damaged_result_and_one_of_several_rates_are_refused(arms, tmp_path, changes, message):
    result = make_result(arms[0], 0, seconds=100, top1=80.0)
    store(tmp_path, arms[0], 0, result | changes)
    with pytest.raises(ValueError, match=f"result.json.*{message}"):
        find_results([(arms[0], 0)], tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["SOLVER.BASE_LRR", "1"], "SOLVER.BASE_LR?"),
        (["RNG_SEED", "1"], "--seeds"),
        (["DATA.NUM_TRAIN_VIDEOS", "0"], "NUM_TRAIN_VIDEOS N"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    configs, tmp_path, refused, load_program, arguments, message
):
    files = [word for path in configs for word in ("--cfg", str(path))]
    command = [*files, "--output", str(tmp_path / "runs"), "--seeds", "0", "1", *arguments]
    assert message in refused(load_program("tools/compare.py"), command)
    assert not (tmp_path / "runs").exists()


def test_one_config_or_two_of_a_name_are_refused(configs):
    with pytest.raises(ValueError, match="two configs"):
        make_arms(configs[:1], [])
    with pytest.raises(ValueError, match="different file names"):
        make_arms([configs[0], configs[0]], [])


@pytest.mark.slow
def test_the_command_reports_what_is_there(
    configs, arms, tmp_path, capsys, load_program, monkeypatch
):
    """Without step times by the clock, with them by 1 s for each of 102 and 36 iterations."""
    output = tmp_path / "runs"
    for arm, seconds in zip(arms, (300, 100), strict=True):
        for seed in (0, 1):
            store(output, arm, seed, make_result(arm, seed, seconds, top1=80.0 + seed))
    files = [word for path in configs for word in ("--cfg", str(path))]
    overrides = ["SOLVER.BASE_LR", "0.1"]
    command = [*files, "--output", str(output), "--seeds", "0", "1", *overrides]
    assert load_program("tools/compare.py").main(command) == 0
    assert "3.00 ± 0.00×" in capsys.readouterr().out
    assert load_program("tools/compare.py").main([*command[:6], "--json", *command[6:]]) == 0
    assert json.loads(capsys.readouterr().out)["configs"][1]["speed_up"]["mean"] == 3
    text = (output / "report.md").read_text()
    assert "--seeds 0 1 SOLVER.BASE_LR 0.1" in text
    assert "    multigrid-compare --cfg" in text
    tool, second = load_program("tools/compare.py"), lambda shape: 1.0
    timing = Timing(second, second, "made up")
    monkeypatch.setattr(tool, "measured_times", lambda paths: lambda recipe, flops: timing)
    assert tool.main([*command[:6], "--step-times", "steps.json", *command[6:]]) == 0
    cells = capsys.readouterr().out.partition("\nmultigrid")[2].split()
    assert cells[11:14] == ["36", "s", "2.83×"]


def test_a_comparison_that_has_no_result_yet_writes_no_report(
    configs, tmp_path, capsys, load_program, monkeypatch
):
    tool = load_program("tools/compare.py")
    files = [word for path in configs for word in ("--cfg", str(path))]
    monkeypatch.setattr(tool, "train_all", lambda *_: (results for results in [{}]))
    assert tool.main([*files, "--output", str(tmp_path / "runs")]) == 0
    assert "missing" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()
