"""The pilot: verdicts worked out by hand from made-up scores, and a race that is run."""

import json
import re
import shlex
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from multigrid import GENTLE, PAPER, Shape, scale_shape
from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.schedule import cycle_keys, cycles_of, schedule_of
from slowfast_patches.study.pilot import race
from slowfast_patches.study.pilot.race import CYCLES, ShortBaselineError, one_process, pilot_seconds
from slowfast_patches.study.pilot.report import (
    Pilot,
    PilotArm,
    Stage,
    pilot_report,
    recipe_text,
)
from slowfast_patches.train.step import Stepper
from tests.slowfast_patches.datasets.charades_form import write_charades_form

FINE, COARSE = Shape(8, 16, 64), Shape(16, 16, 32)
# 30 epochs of 640 clips; a clip takes 0.05 s, on the coarse grid 0.01 s.
BASELINE = (Stage(FINE, 100.0, 250, 2.8),)
CYCLE = (Stage(COARSE, 12.8, 80, 2.0), Stage(FINE, 40.0, 100, 2.5))


def made_up(baseline: float, cycle: float, videos: int = 400) -> Pilot:
    """A pilot of a minute, of a baseline of 16."""
    recipe = load_recipe("configs/Demo/SLOWFAST_DEMO.yaml")
    arms = (
        PilotArm(None, BASELINE, baseline),
        PilotArm(CYCLES[1], CYCLE, cycle),
    )
    schedule = schedule_of(recipe, 640)
    return Pilot(recipe, schedule, arms, "top1", videos, 10.0, 1, 960.0, 720.0, 60.0)


def test_the_standard_error_of_a_score_by_hand():
    """At 20 %, the videos cause √(0.2 · 0.8 / 400), 2 points, and the seed 40 · 0.2 · 0.8, 6.4.

    No hit at all is as uncertain as one hit.
    """
    assert made_up(20, 20).error(20.0) == pytest.approx((2.0**2 + 6.4**2) ** 0.5)
    assert made_up(20, 20).error(0.0) == made_up(20, 20).error(0.25)


@pytest.mark.parametrize("study", ["words", "digits"])
def test_seeds_differ_by_about_what_the_error_counts_with(study):
    """Of a million videos, beside the spread over seeds in the curves of the words and digits."""
    configs = json.loads(Path(f"benchmarks/results/{study}.json").read_text())["configs"]
    pilot = made_up(20, 20, videos=10**6)
    scores = [config["top1"] for config in configs]
    ratios = [score["std"] / pilot.error(score["mean"]) for score in scores]
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
def test_verdicts(baseline, cycle, verdict, ahead):
    pilot = made_up(baseline, cycle)
    assert pilot.verdict == verdict
    assert pilot.ahead == pytest.approx(ahead, abs=0.001)
    text = str(pilot_report(pilot, "command"))
    assert len(re.findall("(?i)use multigrid|undecided", text)) == 1


def test_the_certainty_is_of_the_claim_beside_it():
    """83.3 beside 75.9 on 108 videos: 7.4 points are 0.692 of 10.7."""
    text = str(pilot_report(made_up(75.9, 83.3, videos=108), "command"))
    claim = (
        'use multigrid ("GENTLE, all frames"). After equal time it is ahead of the baseline with a '
    )
    assert f"{claim}probability of 76 %, according to these 108 videos and one seed." in text
    assert "83.3 ± 6.6" in text
    assert "75.9 ± 8.4" in text
    text = str(pilot_report(made_up(32, 20), "command"))
    assert (
        'the baseline is ahead of the best cycle ("GENTLE, all frames") with a probability of 86 %'
        in text
    )


def test_few_iterations_after_the_change_of_shape_are_no_evidence_against_a_cycle():
    pilot = made_up(32, 20)
    short = replace(pilot.arms[1], stages=(CYCLE[0], Stage(FINE, 16.0, 40, 2.5)))
    pilot = replace(pilot, arms=(pilot.arms[0], short))
    assert pilot.verdict == "undecided"
    assert "Only 40 iterations" in str(pilot_report(pilot, "command"))
    better = replace(pilot, arms=(pilot.arms[0], replace(short, score=50.0)))
    assert better.verdict == "use multigrid"


def test_an_undecided_pilot_says_what_would_tell_more():
    """It suggests twice the minute, unless the whole baseline takes no longer than that.

    At 22 %, 400 videos cause 2.1 points of the error, and the seed 6.9.
    """
    pilot = made_up(20, 22)
    text = str(pilot_report(pilot, "command"))
    assert "(--minutes 2), another seed (RNG_SEED 1; the single seed causes ±6.9 of" in text
    assert "the best score's ±7.2), or more validation videos" in text
    assert "these 400 cause ±2.1). Or train both with multigrid-compare." in text
    assert "The whole baseline would take 16 min, according to the 250 iterations" in text
    assert "(The first estimate, from a few steps, was 12 min.)" in text
    short = replace(pilot, baseline_seconds=110.0)
    assert str(pilot_report(short, "command")).endswith("train both with multigrid-compare.")


def test_several_cycles_and_fewer_videos_are_less_sure():
    """A chance of 20.4 % for one of two cycles to be as far above by luck is 40.8 %."""
    assert made_up(20, 29, videos=30).verdict == "undecided"
    one = made_up(20, 29)
    two = replace(one, arms=(*one.arms, one.arms[1]))
    assert two.ahead == pytest.approx(1 - 2 * (1 - one.ahead))
    assert two.verdict == "undecided"


@pytest.mark.parametrize(
    ("asked", "baseline", "seconds"), [(None, 1200, 180), (None, 2400, 240), (300, 1200, 300)]
)
def test_a_pilot_takes_a_tenth_of_the_baseline_or_what_it_needs(asked, baseline, seconds):
    assert pilot_seconds(asked, 180.0, baseline) == seconds


@pytest.mark.parametrize(
    ("asked", "least", "baseline", "message"),
    [
        (60, 170, 1200, r"--minutes 1 is too short .* Give --minutes 3\.4 or more \(.* 20 min\)"),
        (
            None,
            170,
            156,
            r"whole baseline takes about 2\.6 min, and a pilot 2\.83 min\. Train both",
        ),
        (180, 100, 156, r"whole baseline takes about 2\.6 min, and a pilot 3 min\. Train both"),
        (60, 170, 156, "Train both instead. That is more conclusive"),
    ],
)
def test_a_pilot_that_would_tell_nothing_is_refused(asked, least, baseline, message):
    kind = ShortBaselineError if baseline == 156 else ValueError
    with pytest.raises(kind, match=message):
        pilot_seconds(asked, least, baseline)


def test_the_speed_up_by_hand():
    """A long cycle has four fifths of the iterations, half of which have 16 clips.

    That makes 0.8 + 0.6 parts of clips, of which 0.8 take a fifth of the time of the baseline's.
    All clips are three quarters of the baseline's.
    """
    share = 0.8 / 1.4
    found = made_up(20, 30).speed_up
    assert found == pytest.approx(1 / 0.75 / (share / 5 + 1 - share), rel=0.01)


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
def test_one_process_trains_its_clips_at_their_rate(keys):
    """Four processes share 32 clips, at 0.4 however that is said: one has 8, at 0.1."""
    keys = ["NUM_GPUS", 4 if "NUM_SHARDS" not in keys else 2, "SOLVER.BASE_LR", 0.4, *keys]
    recipe = one_process(load_recipe("configs/Demo/SLOWFAST_DEMO.yaml", list(map(str, keys))))
    schedule = schedule_of(recipe, 640)
    assert schedule.base.batch == 8
    assert schedule.learning_rate.rates[0] == pytest.approx(0.1)


def test_a_launcher_of_several_processes_is_refused(monkeypatch):
    torchrun = {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
    for name, value in {
        **torchrun,
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    recipe = load_recipe("configs/Demo/SLOWFAST_DEMO.yaml", ["NUM_GPUS", "2"])
    with pytest.raises(ValueError, match=r"torchrun has started 2\. Start it without a launcher"):
        one_process(recipe)


def test_a_recipe_of_boxes_is_refused():
    with pytest.raises(ValueError, match=r"the recipe detects boxes .*. Train both to the end"):
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
def run(tiny_recipe, one_block, one_block_keys, load_program, monkeypatch, tmp_path):
    """Calls the tool on the tiny recipe for 12 seconds."""
    monkeypatch.setattr(race, "_TRIED", 0.2)
    monkeypatch.setattr(race, "_ARM", 2)
    monkeypatch.setattr(race, "_SHAPES", 0)

    def call(*arguments: str) -> int:
        keys = [*map(str, one_block_keys), "DATA.PATH_TO_DATA_DIR", str(tiny_recipe.parent)]
        keys += ["SOLVER.MAX_EPOCH", "10000"]
        output = ["--minutes", "0.2", "--output", str(tmp_path)]
        with one_block():
            tool = load_program("tools/pilot.py")
            return tool.main(["--cfg", str(tiny_recipe), *output, *keys, *arguments])

    return call


@pytest.mark.slow
def test_a_race_is_run_and_reported(run, tmp_path, capsys):
    """Crops of 32 pixels do not get smaller: what is left to try is fewer frames."""
    assert run("--json") == 0
    pilot = json.loads((tmp_path / "pilot.json").read_text())
    assert json.loads(capsys.readouterr().out) == pilot
    assert [arm["arm"] for arm in pilot["arms"]] == ["baseline", "GENTLE, all pixels"]
    shapes = [[stage["shape"] for stage in arm["stages"]] for arm in pilot["arms"]]
    assert shapes == [["4×8×32²"], ["4×4×32²", "4×8×32²"]]
    assert all(stage["iterations"] for arm in pilot["arms"] for stage in arm["stages"])
    assert all(0 <= arm["top1"] <= 100 for arm in pilot["arms"])
    assert pilot["videos"] == 8
    report = (tmp_path / "pilot.md").read_text()
    assert "\n    multigrid-pilot --cfg" in report
    assert (tmp_path / "pilot.png").stat().st_size > 5000


@pytest.mark.slow
def test_of_a_baseline_that_is_shorter_than_a_pilot_the_command_is_said_that_trains_both(
    run, monkeypatch, capsys, load_program
):
    """Six epochs of six iterations, where each arm needs the time of 300. Nothing is trained."""
    monkeypatch.setattr(race, "_ARM", 300)
    monkeypatch.delattr(race._Race, "run")
    assert run("SOLVER.MAX_EPOCH", "6", "RNG_SEED", "3") == 0
    reason, command = capsys.readouterr().out.rstrip().split("\n\n    ")
    assert reason.startswith("No pilot is needed: the whole baseline takes about")
    program, *arguments = shlex.split(command)
    assert program == "multigrid-compare"
    compared = load_program("tools/compare.py").parse_args(arguments)
    baseline, multigrid = (load_recipe(path, compared.overrides) for path in compared.cfg)
    assert cycles_of(baseline) is None  # the tiny recipe has cycles of its own
    assert cycles_of(multigrid) == CYCLES[2]  # the first that fits its crops
    check_recipe(baseline)
    assert "RNG_SEED" not in compared.overrides
    assert compared.overrides[-2:] == ["SOLVER.MAX_EPOCH", "6"]


@pytest.mark.slow
def test_cycles_that_diverge_are_out_of_the_race(run, monkeypatch, capsys):
    train = race._Race._train

    def diverging(self, stepper, *arguments):
        if stepper.recipe.uses_multigrid:
            raise FloatingPointError("the loss is nan")
        return train(self, stepper, *arguments)

    monkeypatch.setattr(race._Race, "_train", diverging)
    assert run() == 1
    assert capsys.readouterr().err.endswith("the loss is nan\n")


@pytest.mark.slow
def test_videos_of_several_labels_have_no_commonest_class(run, demo_data, tmp_path):
    write_charades_form(demo_data, tmp_path / "several")
    keys = ["TRAIN.DATASET", "charades", "TEST.DATASET", "charades", "DATA.MULTI_LABEL", "True"]
    keys += ["MODEL.LOSS_FUNC", "bce_logit", "MODEL.HEAD_ACT", "sigmoid"]
    keys += ["DATA.PATH_TO_DATA_DIR", str(tmp_path / "several")]
    assert run(*keys) == 0
    pilot = json.loads((tmp_path / "pilot.json").read_text())
    assert (pilot["metric"], pilot["chance"]) == ("map", 0)


@pytest.mark.slow
def test_a_baseline_that_diverges_is_said_in_a_line(run, capsys):
    assert run("SOLVER.BASE_LR", "1e30") == 1
    assert "Use a lower SOLVER.BASE_LR" in capsys.readouterr().err


@pytest.mark.slow
def test_it_starts_from_the_weights_that_the_recipe_names(run, tmp_path, capsys):
    torch.save({"model_state": {"nothing.weight": torch.zeros(1)}}, tmp_path / "other.pyth")
    assert run("TRAIN.CHECKPOINT_FILE_PATH", str(tmp_path / "other.pyth")) == 2
    assert "other.pyth" in capsys.readouterr().err


@pytest.mark.slow
def test_what_a_new_shape_takes_at_first_is_not_a_steps_time(run, tmp_path, monkeypatch):
    """A second, as a GPU may: without it, here, each of the baseline's 36 takes some hundredths."""

    class Slow(Stepper):
        waits = True

        def __call__(self, step, batch):
            time.sleep(self.waits)
            self.waits = False
            return super().__call__(step, batch)

    monkeypatch.setattr(race, "Stepper", Slow)
    assert run() == 0
    pilot = json.loads((tmp_path / "pilot.json").read_text())
    assert pilot["baseline_seconds"] < 60_000 / 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["DATA.NUM_FRAMES", "2", "SLOWFAST.ALPHA", "2"], "No cycle fits the shape 4×2×32²"),
        (["MULTIGRID.BN_BASE_SIZE", "3"], "BN groups of 3"),
        (["SOLVER.ACCUMULATION_STEPS", "2"], "set BN.GROUP_SIZE"),
        (["SOLVER.STEPS", "[0]", "SOLVER.LRS", "[1]"], "two LR stages"),
        (["DATA.PATH_TO_DATA_DIR", "/nowhere"], "/nowhere"),
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
