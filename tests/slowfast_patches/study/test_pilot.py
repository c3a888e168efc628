"""The pilot: verdicts worked out by hand from made-up results, its arms, and one that is run."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from multigrid import GENTLE, PAPER, Shape, scale_shape
from multigrid.cost import final_iterations
from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.schedule import cycle_keys, cycles_of, schedule_of
from slowfast_patches.study import pilot
from slowfast_patches.study.arms import Arm
from slowfast_patches.study.pilot import (
    CYCLES,
    ShortBaselineError,
    one_process,
    pilot_study,
    step_seconds,
    train_pilot,
)
from slowfast_patches.study.pilot_report import Pilot, pilot_report, recipe_text
from slowfast_patches.study.runs import RunFailedError, Study

DEMO = Path("configs/Demo/SLOWFAST_DEMO.yaml")


@pytest.fixture(scope="module")
def whole_arms(tmp_path_factory: pytest.TempPathFactory) -> list[Arm]:
    """Baseline and all cycles on 640 videos: 2,400 iterations of the baseline."""
    folder = tmp_path_factory.mktemp("lists")
    for split, videos in (("train", 640), ("val", 300)):
        lines = [f"{number}.mp4 {number % 10 // 3}\n" for number in range(videos)]
        (folder / f"{split}.csv").write_text("".join(lines))
    return pilot.pilot_arms(DEMO, ["DATA.PATH_TO_DATA_DIR", str(folder)])


@pytest.fixture
def made_up(whole_arms, tmp_path, write_run) -> Callable[..., Pilot]:
    """`made_up(20.0, 30.0, videos=400)`: a pilot of a minute with these scores; a baseline of 16
    minutes, four times as long as a cycle."""

    def make(*scores: float, videos: int = 400, length: float = 1.0, loading: float = 0.0) -> Pilot:
        arms = whole_arms[: len(scores)]
        arms = [arms[0], *(replace(arm, length=4.0) for arm in arms[1:])]
        arms = [pilot._shortened(arm, arm.length * length) for arm in arms]
        study = Study(arms, [0], tmp_path, {arm.name: 23.0 for arm in arms})
        spent = {"training": 23.0, "loading": loading, "waiting": 0.0, "evaluating": 7.0}
        for arm, score in zip(arms, scores, strict=True):
            write_run(study, arm, 0, 23.0, top1=score, videos=videos, seconds=spent)
        return Pilot(study, study.runs(), 960.0, 1, "command")

    return make


def test_the_standard_error_of_a_score_by_hand(made_up):
    """At 20 %, the videos cause √(0.2 · 0.8 / 400), 2 points, and the seed 40 · 0.2 · 0.8, 6.4.

    No hit at all is as uncertain as one hit. Four seeds halve the second error.
    """
    found = made_up(20.0, 20.0)
    baseline, cycle = found.study.arms
    assert found.errors(baseline) == pytest.approx((2.0, 6.4))
    assert made_up(0.0, 0.25).errors(baseline) == made_up(0.25, 0.25).errors(baseline)
    four = replace(found, study=replace(found.study, seeds=[0, 1, 2, 3]))
    assert four.errors(cycle) == pytest.approx((2.0, 3.2))


@pytest.mark.parametrize("study", ["words", "digits"])
def test_seeds_differ_by_about_what_the_error_counts_with(made_up, study):
    """Of a million videos, beside the spread over seeds in the curves of the words and digits."""
    configs = json.loads(Path(f"benchmarks/results/{study}.json").read_text())["configs"]
    scores = [config["top1"] for config in configs]
    ratios = list[float]()
    for score in scores:
        found = made_up(score["mean"], 0.0, videos=10**6)
        ratios.append(score["std"] / found.errors(found.study.arms[0])[1])
    assert 0.6 < (sum(r * r for r in ratios) / len(ratios)) ** 0.5 < 1.3


@pytest.mark.parametrize(
    ("baseline", "cycle", "verdict", "ahead"),
    [
        # 9 points are 0.829 of √(2² + 6.4² + 2.27² + 8.24²)
        (20.0, 29.0, "use multigrid", 0.796),
        (20.0, 24.0, "undecided", 0.653),
        (20.0, 20.0, "undecided", 0.5),
        (32.0, 20.0, "do not use multigrid", 0.143),
        (1.0, 99.0, "use multigrid", 0.95),  # one seed proves no more
        (99.0, 1.0, "do not use multigrid", 0.05),
    ],
)
def test_verdicts(made_up, baseline, cycle, verdict, ahead):
    found = made_up(baseline, cycle)
    assert found.verdict == verdict
    assert found.ahead == pytest.approx(ahead, abs=0.001)
    text = str(pilot_report(found))
    assert len(re.findall("(?i)use multigrid|undecided", text)) == 1
    side = found.ahead if verdict != "do not use multigrid" else 1 - found.ahead
    assert f"with a probability of {100 * side:.0f} %" in text


def test_several_cycles_and_fewer_videos_are_less_sure(made_up):
    """A chance of 20.4 % for one of two cycles to be as far above by luck is 40.8 %."""
    assert made_up(20.0, 29.0, videos=30).verdict == "undecided"
    one, two = made_up(20.0, 29.0), made_up(20.0, 29.0, 29.0)
    assert two.ahead == pytest.approx(1 - 2 * (1 - one.ahead))
    assert two.verdict == "undecided"


def test_few_iterations_after_the_change_of_shape_are_no_evidence_against_a_cycle(made_up):
    short = {"length": 0.05}
    assert final_iterations(made_up(32.0, 20.0, **short).best.schedule) < 100
    assert made_up(32.0, 20.0, **short).verdict == "undecided"
    assert "iterations followed" in str(pilot_report(made_up(32.0, 20.0, **short)))
    assert made_up(32.0, 50.0, **short).verdict == "use multigrid"


def test_a_cycle_that_waited_for_data_had_no_equal_time(made_up):
    found = made_up(20.0, 50.0, loading=23.0)
    assert found.verdict == "undecided"
    assert "waited for data in 50 % of its training" in str(pilot_report(found))


def test_an_undecided_pilot_says_what_would_tell_more(made_up):
    """Twice the minute, unless the whole baseline takes no longer than that, or another seed.

    At 22 %, 400 videos cause 2.1 points of the error, and the seed 6.9.
    """
    found = made_up(20.0, 22.0)
    text = str(pilot_report(found))
    for part in ("--minutes 2)", "--seeds 0 1;", "±6.9 of", "±7.2)", "cause ±2.1"):
        assert part in text
    assert "baseline would take 16 min" in text
    short = str(pilot_report(replace(found, baseline_seconds=110.0)))
    assert short.endswith("train both with multigrid-compare.")


def test_the_report_has_the_scores_and_the_speed_up(made_up, tmp_path):
    """At equal times the cycle is four times as long: all of it takes a quarter of the time."""
    found = made_up(20.0, 30.0)
    report = pilot_report(found)
    report.write(tmp_path)
    assert "takes 1/4.00 of the baseline's time, for 0.75 × the clips" in str(report)
    data = json.loads((tmp_path / "pilot.json").read_text())
    assert (data["advice"], data["best"], data["speed_up"]) == ("use multigrid", "GENTLE", 4.0)
    assert data["chance"] == 30  # of the val list, where labels 0, 1 and 2 are as common
    assert [arm["top1"]["mean"] for arm in data["arms"]] == [20.0, 30.0]
    assert "\n    command" in (tmp_path / "pilot.md").read_text()


def test_arms_take_equal_times(whole_arms, tmp_path, monkeypatch):
    """A step takes a second at the baseline's shape, and less with fewer pixels: 2,400 s in all."""
    monkeypatch.setattr(pilot, "_START", 0.0)

    def cost(arm: Arm) -> float:
        return sum(step.shape.volume / arm.schedule.base.volume for step in arm.schedule.steps())

    seconds = [cost(arm) for arm in whole_arms]
    study = pilot_study(whole_arms, seconds, 25, [0], tmp_path)
    lengths = [cost(arm) for arm in study.arms]
    assert len(lengths) == 4
    again = pilot_study(whole_arms, seconds, 25, [0, 1], tmp_path)
    assert [arm.folder for arm in again.arms] == [arm.folder for arm in study.arms]
    assert lengths == pytest.approx([study.step_seconds["baseline"]] * 4, rel=0.01)
    assert sum(lengths) < 1500 < 1.2 * sum(lengths)  # the rest is evaluation
    assert len(pilot_study(whole_arms, seconds, 11.5, [0], tmp_path).arms) == 2
    assert all(final_iterations(arm.schedule) >= 100 for arm in study.arms[1:])


@pytest.mark.parametrize(
    ("asked", "baseline", "seconds"), [(None, 1200, 180), (None, 2400, 240), (300, 1200, 300)]
)
def test_a_pilot_takes_a_tenth_of_the_baseline_or_what_it_needs(asked, baseline, seconds):
    assert pilot._checked_seconds(asked, 180.0, baseline, GENTLE) == seconds


@pytest.mark.parametrize(
    ("asked", "least", "baseline", "message"),
    [
        (60, 170, 1200, r"too short .* Give --minutes 3\.4 or more"),
        (None, 170, 156, r"takes about 2\.6 min, and a pilot 2\.83 min\. Train both"),
        (180, 100, 156, "a pilot 3 min"),
        (60, 170, 156, "Train both"),
    ],
)
def test_a_pilot_that_would_tell_nothing_is_refused(asked, least, baseline, message):
    kind = ShortBaselineError if baseline == 156 else ValueError
    with pytest.raises(kind, match=message):
        pilot._checked_seconds(asked, least, baseline, GENTLE)


MACHINES, SCALED = ("NUM_SHARDS", 2), ("SOLVER.BASE_LR_SCALE_NUM_SHARDS", True)


@pytest.mark.parametrize(
    "keys",
    [
        ["TRAIN.BATCH_SIZE", 32],
        ["TRAIN.BATCH_SIZE", 32, "SOLVER.REFERENCE_BATCH_SIZE", 8, "SOLVER.BASE_LR", 0.1],
        ["TRAIN.BATCH_SIZE", 16, *MACHINES],
        ["TRAIN.BATCH_SIZE", 16, *MACHINES, *SCALED, "SOLVER.BASE_LR", 0.2],
    ],
)
def test_one_process_trains_its_clips_at_their_rate(demo_data, keys):
    """Four processes share 32 clips, at 0.4 however that is said: one has 8, at 0.1."""
    keys = ["NUM_GPUS", 4 if "NUM_SHARDS" not in keys else 2, "SOLVER.BASE_LR", 0.4, *keys]
    keys = [*map(str, keys), "DATA.PATH_TO_DATA_DIR", str(demo_data)]
    for arm in pilot.pilot_arms(DEMO, keys)[:2]:
        assert arm.schedule.base.batch == 8
        assert arm.schedule.learning_rate.rates[0] == pytest.approx(0.1)
        assert (arm.recipe.num_gpus, arm.recipe.num_shards) == (1, 1)


def test_a_launcher_of_several_processes_is_refused(monkeypatch):
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}
    sizes = {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for name, value in (ranks | sizes).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="without a launcher"):
        one_process(load_recipe(DEMO, ["NUM_GPUS", "2"]))


def test_a_recipe_of_boxes_is_refused():
    with pytest.raises(ValueError, match="detects boxes"):
        one_process(load_recipe("configs/Demo/AVA_DEMO.yaml"))


@pytest.mark.parametrize("cycles", CYCLES, ids=lambda cycles: cycles.name)
@pytest.mark.parametrize("divisor", [1, 16])
def test_the_recipe_gives_what_was_tried_whatever_its_base_had(tmp_path, cycles, divisor):
    """On a base with multigrid of its own, it trains the shapes of the pilot."""
    divide = ["MULTIGRID.SIZE_DIVISOR", str(divisor)]
    base = Path("configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml").resolve()
    path = tmp_path / "multigrid.yaml"
    path.write_text(recipe_text(cycles, str(base)))
    recipe = load_recipe(path, divide)
    assert cycles_of(recipe) == cycles
    schedule = schedule_of(recipe, 640)
    growth = (divisor, cycles.batch_exponent)
    shapes = [scale_shape(Shape(8, 16, 64), pair, *growth) for pair in cycles.long_cycle]
    assert schedule.shapes == tuple(shapes)
    assert schedule.clips == pytest.approx(cycles.epoch_factor * 30 * 640, abs=64)
    tried = one_process(load_recipe(base, divide)).replaced(cycle_keys(cycles))
    assert schedule_of(tried, 640) == schedule


def test_named_cycles_are_inherited_by_a_line_and_their_variations_by_two():
    assert recipe_text(GENTLE, "a.yaml") == "_BASE_: [a.yaml, configs/Cycles/GENTLE.yaml]\n"
    text = recipe_text(replace(PAPER, epoch_factor=1.0), "a.yaml")
    assert text.splitlines()[0] == "_BASE_: [a.yaml, configs/Cycles/PAPER.yaml]"
    assert text.splitlines()[1] == "MULTIGRID: {EPOCH_FACTOR: 1.0}"


@pytest.fixture
def small(monkeypatch):
    """A pilot of a few iterations."""
    monkeypatch.setattr(pilot, "_ITERATIONS", 2)
    monkeypatch.setattr(pilot, "_FINAL", 2)
    monkeypatch.setattr(pilot, "_START", 0.0)
    monkeypatch.setattr(pilot, "_ROUNDS", 1)


@pytest.fixture
def run(small, tiny_recipe, one_block, one_block_keys, load_program, tmp_path):
    """Calls the tool on the tiny recipe, for a pilot of a second; a baseline of minutes."""

    def call(*arguments: str) -> int:
        keys = [*map(str, one_block_keys), "DATA.PATH_TO_DATA_DIR", str(tiny_recipe.parent)]
        keys += ["SOLVER.MAX_EPOCH", "1000", "SOLVER.STEPS", "[0,600]"]
        keys += ["DATA_LOADER.NUM_WORKERS", "0"]
        options = ["--minutes", "0.02", "--output", str(tmp_path)]
        with one_block():
            tool = load_program("tools/pilot.py")
            return tool.main(["--cfg", str(tiny_recipe), *options, *keys, *arguments])

    return call


@pytest.fixture
def here(monkeypatch, train):
    """Runs are trained in this process. Returns the folders of what was trained."""
    folders = list[Path]()

    def finished(study: Study, run_net: Path):
        for arm, seed in study.missing():
            folders.append(study.folder(arm, seed))
            train(folders[-1], *arm.overrides, "RNG_SEED", seed)
        yield study.runs()

    monkeypatch.setattr(pilot, "train", finished)
    return folders


@pytest.mark.slow
def test_a_pilot_is_run_and_reported(run, here, tmp_path, capsys):
    """Crops of 32 pixels do not get smaller: what is left to try is fewer frames."""
    assert run("--json") == 0
    found = json.loads((tmp_path / "pilot.json").read_text())
    assert json.loads(capsys.readouterr().out) == found
    assert [arm["name"] for arm in found["arms"]] == ["baseline", "GENTLE, all pixels"]
    baseline, cycle = found["arms"]
    assert baseline["clock"] == cycle["clock"]
    assert 0 < baseline["length"] < cycle["length"]
    assert all(0 <= arm["top1"]["mean"] <= 100 for arm in found["arms"])
    assert found["videos"] == 8
    assert len(here) == 2
    assert "\n    multigrid-pilot --cfg" in (tmp_path / "pilot.md").read_text()


@pytest.mark.slow
def test_of_a_baseline_that_is_shorter_than_a_pilot_the_command_is_said_that_trains_both(
    run, here, monkeypatch, capsys, load_program
):
    """Six epochs of six iterations, where each arm needs the time of 300. Nothing is trained."""
    monkeypatch.setattr(pilot, "_ITERATIONS", 300)
    short = ["SOLVER.MAX_EPOCH", "6", "SOLVER.STEPS", "[0,4]"]
    assert run(*short) == 0
    reason, command = capsys.readouterr().out.rstrip().split("\n\n    ")
    assert reason.startswith("No pilot is needed: the whole baseline takes about")
    program, *arguments = shlex.split(command)
    assert program == "multigrid-compare"
    compared = load_program("tools/compare.py").parse_args(arguments)
    baseline, multigrid = (load_recipe(path, compared.overrides) for path in compared.cfg)
    assert cycles_of(baseline) is None  # the tiny recipe has cycles of its own
    assert cycles_of(multigrid) == CYCLES[2]  # the first that fits its crops
    check_recipe(baseline)
    assert compared.overrides[-4:] == short
    assert not here


def test_cycles_that_fail_are_left_out_but_not_the_baseline(whole_arms, tmp_path, monkeypatch):
    failing = {"GENTLE"}

    def fails(study: Study, run_net: Path):
        if study.arms[0].name in failing:
            raise RunFailedError(study.arms[0].name)
        yield study

    monkeypatch.setattr(pilot, "train", fails)
    study = Study(whole_arms[:3], [0], tmp_path)
    kept = train_pilot(study, tmp_path)
    assert [arm.name for arm in kept.arms] == ["baseline", "GENTLE, all frames"]
    for name in ("GENTLE, all frames", "baseline"):  # every cycle, then all
        failing.add(name)
        with pytest.raises(RunFailedError, match=name):
            train_pilot(study, tmp_path)


def test_steps_are_timed_once(whole_arms, small, tmp_path, monkeypatch):
    """A repeated pilot needs the same lengths. Files of another model do not count."""
    arms = [whole_arms[0]]
    first = step_seconds(arms, [], tmp_path)
    monkeypatch.setattr(pilot, "_time", lambda *_: [1.0])
    assert step_seconds(arms, [], tmp_path) == first
    (tmp_path / "step_times.json").write_text("{}")
    assert step_seconds(arms, [], tmp_path) == [arms[0].iterations]
    given = [Path("benchmarks/results/step_time_demo_alone.json")]
    assert step_seconds(arms, given, tmp_path)[0] not in (first[0], arms[0].iterations)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["DATA.NUM_FRAMES", "2", "SLOWFAST.ALPHA", "2"], "No cycle fits the shape 4×2×32²"),
        (["MULTIGRID.BN_BASE_SIZE", "3"], "BN groups of 3"),
        (["SOLVER.ACCUMULATION_STEPS", "2"], "set BN.GROUP_SIZE"),
        (["SOLVER.STEPS", "[0]", "SOLVER.LRS", "[1]"], "two LR stages"),
        (["DATA.PATH_TO_DATA_DIR", "/nowhere"], "/nowhere"),
        (["DATA.NUM_TRAIN_VIDEOS", "9", "DATA.PATH_TO_DATA_DIR", "/nowhere"], "/nowhere"),
        (["RNG_SEED", "1"], "--seeds"),
        (["--step-times", "no.json"], "no.json"),
    ],
)
def test_what_cannot_be_tried(run, capsys, arguments, message):
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("minutes", ["0", "nan", "inf"])
def test_minutes_are_above_zero(run, capsys, minutes):
    with pytest.raises(SystemExit):
        run("--minutes", minutes)
    assert "--minutes" in capsys.readouterr().err
