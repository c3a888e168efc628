"""The pilot: verdicts worked out by hand from made-up scores, and a race that is run."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from multigrid import Shape, scale_shape
from slowfast_patches.config import load_recipe
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.datasets.demo.charades_form import write_charades_form
from slowfast_patches.study.pilot import race
from slowfast_patches.study.pilot.race import CYCLES, one_process
from slowfast_patches.study.pilot.report import format_pilot, keys_of
from slowfast_patches.study.pilot.verdict import Arm, Pilot, Stage
from slowfast_patches.train.step import Stepper

FINE, COARSE = Shape(8, 16, 64), Shape(16, 16, 32)
# 30 epochs of 640 clips; a clip takes 0.05 s, on the coarse grid 0.01 s.
BASELINE = (Stage(FINE, 10.0, 25, 3.0), Stage(FINE, 10.0, 25, 2.8))
CYCLE = (Stage(COARSE, 12.8, 80, 2.0), Stage(FINE, 40.0, 100, 2.5))


SPACE = next(cycle for cycle in CYCLES if cycle.name == "space")


def made_up(baseline: float, cycle: float, videos: int = 400, own: float = 10.0) -> Pilot:
    """The baseline is at chance until three fifths of its time; `own` is the coarse grid's then."""
    recipe = load_recipe("configs/Demo/SLOWFAST_DEMO.yaml")
    arms = (Arm(CYCLES[0], BASELINE, 10.0, baseline), Arm(SPACE, CYCLE, own, cycle))
    schedule = schedule_of(recipe, 640)
    return Pilot(recipe, schedule, arms, "top1", videos, 10.0, 1, 960.0, 60.0)


def test_the_standard_error_of_a_score_by_hand():
    """√(0.2 · 0.8 / 400) is 0.02; of no hit at all, as of one."""
    assert made_up(20, 20).error(20.0) == pytest.approx(2.0)
    assert made_up(20, 20).error(0.0) == pytest.approx(100 * (399 / 400 / 400 / 400) ** 0.5)


@pytest.mark.parametrize(
    ("baseline", "cycle", "advice", "sure"),
    [
        # 9 / √(2² + 2.269² + 2 · 3²) is 1.727 standard deviations, 3 being those of seeds
        (20.0, 29.0, "use multigrid (space)", 0.9579),
        (20.0, 24.0, "do not use multigrid here: no cycle is clearly better", 0.2188),
        (20.0, 20.0, "do not use multigrid here: no cycle is clearly better", 0.5),
        (32.0, 20.0, "do not use multigrid here: the baseline learns faster", 0.9890),
        (10.0, 12.9, "do not use multigrid here on this evidence: nothing was learned", 0.5),
    ],
)
def test_verdicts(baseline, cycle, advice, sure):
    pilot = made_up(baseline, cycle)
    assert pilot.verdict.text.startswith(advice)
    assert pilot.verdict.sure == pytest.approx(sure, abs=0.002)
    assert (pilot.verdict.best is None) == (not advice.startswith("use"))
    assert advice in format_pilot(pilot)
    assert ("BATCH_EXPONENT: 0.5" in format_pilot(pilot)) == advice.startswith("use")


def test_few_iterations_after_the_change_of_shape_are_no_evidence_against_a_cycle():
    """40 of the 100 in a pilot of a minute: it takes two and a half."""
    pilot = made_up(32, 20)
    short = replace(pilot.arms[1], stages=(CYCLE[0], Stage(FINE, 16.0, 40, 2.5)))
    verdict = replace(pilot, arms=(pilot.arms[0], short)).verdict
    assert (verdict.best, verdict.sure) == (None, 0.5)
    assert verdict.text.startswith("undecided: in 40 iterations")
    assert verdict.text.endswith("give --minutes 3")
    better = replace(short, score=50.0)
    assert replace(pilot, arms=(pilot.arms[0], better)).verdict.best is better


def test_coarse_shapes_that_teach_faster_are_advised_where_it_carries_over():
    """30 % at the coarse grid after the same time: the change of shape cost the lead, and yet the
    rest ends far above what the baseline had by then, which is chance."""
    promising = made_up(20, 19, own=30.0)
    assert promising.verdict.best is promising.arms[1]
    assert "as long as the baseline's" in promising.verdict.text
    assert promising.verdict.sure == pytest.approx(0.9667, abs=0.002)  # of 19 above 10
    lost = made_up(20, 11, own=30.0)  # what was learned at the coarse grid is of no use
    assert lost.verdict.text == "do not use multigrid here: the baseline learns faster"


def test_a_race_that_the_baseline_alone_has_finished():
    pilot = made_up(20, 20)
    assert "diverged" in replace(pilot, arms=pilot.arms[:1]).verdict.text


def test_of_several_cycles_one_is_above_by_chance_more_easily():
    """A chance of 4.2 % for one of two to be as far above is 8.4 %."""
    one = made_up(20, 29)
    two = replace(one, arms=(*one.arms, one.arms[1]))
    assert two.verdict.sure == pytest.approx(2 * (1 - one.verdict.sure))
    assert two.verdict.best is None


def test_fewer_videos_are_less_sure():
    assert made_up(20, 29, videos=100).verdict.best is None


def test_the_speed_up_of_as_many_clips_by_hand():
    """A long cycle is four fifths of the pixels, half of them coarse: two fifths, at a quarter of a
    clip's. Of 1.6 + 0.6 parts of the clips, 1.6 take a fifth of the baseline's time."""
    pilot = made_up(20, 30)
    share = 1.6 / 2.2
    assert pilot.speed_up(pilot.arms[1]) == pytest.approx(1 / (share / 5 + 1 - share), rel=0.01)


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


def test_several_processes_take_less_time():
    """The pilot's speed-up is that of clips, however many processes there are."""
    one = made_up(20, 30)
    four = replace(one, processes=4, baseline_seconds=one.baseline_seconds / 4)
    assert four.speed_up(four.arms[1]) == pytest.approx(one.speed_up(one.arms[1]))
    assert "on 4 processes" in format_pilot(four)


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
    with pytest.raises(ValueError, match="torchrun has started 2; start it by itself"):
        one_process(recipe)


@pytest.mark.parametrize("cycle", CYCLES[1:], ids=lambda cycle: cycle.name)
@pytest.mark.parametrize("divisor", [1, 16])
def test_the_keys_give_what_was_tried_whatever_the_recipe_had(tmp_path, cycle, divisor):
    """Pasted below a recipe with multigrid of its own, they train the shapes of the race, for as
    many clips as the baseline."""
    name = "SLOWFAST_DEMO_MULTIGRID.yaml"
    own = load_recipe(f"configs/Demo/{name}", ["MULTIGRID.SIZE_DIVISOR", str(divisor)])
    tried = [
        scale_shape(Shape(8, 16, 64), pair, divisor, exponent_of(cycle)) for pair in cycle.factors
    ]
    pasted = tmp_path / "pasted.yaml"
    base = Path("configs/Demo", name).resolve()
    keys = keys_of(Arm(cycle, (), 0.0, 0.0))
    pasted.write_text(f"_BASE_: {base}\n{keys}\n  SIZE_DIVISOR: {divisor}\n")
    schedule = schedule_of(load_recipe(pasted), 640)
    assert schedule.shapes == (*tried, Shape(8, 16, 64))
    assert schedule.clips == pytest.approx(30 * 640, abs=64)
    pilot = replace(made_up(20, 30), recipe=one_process(own))
    assert schedule_of(pilot.advised(Arm(cycle, (), 0.0, 0.0)), 640) == schedule


def exponent_of(cycle):
    return 1.0 if cycle.name == "paper" else 0.5


@pytest.fixture
def run(tiny_recipe, one_block, one_block_keys, load_program, monkeypatch, tmp_path):
    """Calls the tool on the tiny recipe for a few seconds."""
    monkeypatch.setattr(race, "_TRIED", 0.2)
    monkeypatch.setattr(race, "_FAIR", -1e9)  # a busy machine's scoring may take all the time

    def call(*arguments: str) -> int:
        keys = [*map(str, one_block_keys), "DATA.PATH_TO_DATA_DIR", str(tiny_recipe.parent)]
        output = ["--minutes", "0.2", "--output", str(tmp_path)]
        with one_block():
            tool = load_program("tools/pilot.py")
            return tool.main(["--cfg", str(tiny_recipe), *output, *keys, *arguments])

    return call


@pytest.mark.slow
def test_a_race_is_run_and_reported(run, tmp_path, capsys):
    """Crops of 32 pixels do not get smaller: what is left to try is fewer frames."""
    assert run("--json") == 0
    found = json.loads((tmp_path / "pilot.json").read_text())
    assert json.loads(capsys.readouterr().out) == found
    assert [arm["cycle"] for arm in found["arms"]] == ["baseline", "time"]
    shapes = [[stage["shape"] for stage in arm["stages"]] for arm in found["arms"]]
    assert shapes == [["4×8×32²"] * 2, ["4×4×32²", "4×8×32²"]]
    assert all(stage["clips"] >= 4 for arm in found["arms"] for stage in arm["stages"])
    assert all(0 <= arm[key] <= 100 for arm in found["arms"] for key in ("top1", "own_grid"))
    assert 1 <= found["videos"] <= 8 + 24 // 5  # few are made more by some of the training's
    report = (tmp_path / "pilot.md").read_text()
    assert "Advice" in report
    assert "tools/pilot.py" in report
    assert (tmp_path / "pilot.png").stat().st_size > 5000


@pytest.mark.slow
def test_videos_of_several_labels_have_no_commonest_class(run, demo_data, tmp_path):
    write_charades_form(demo_data, tmp_path / "several")
    keys = ["TRAIN.DATASET", "charades", "TEST.DATASET", "charades", "DATA.MULTI_LABEL", "True"]
    keys += ["MODEL.LOSS_FUNC", "bce_logit", "MODEL.HEAD_ACT", "sigmoid"]
    keys += ["DATA.PATH_TO_DATA_DIR", str(tmp_path / "several")]
    assert run("--minutes", "0.1", *keys) == 0
    found = json.loads((tmp_path / "pilot.json").read_text())
    assert (found["metric"], found["chance"]) == ("map", 0)
    assert 1 <= found["videos"] <= 8  # of the validation set, which is all labels of its videos


@pytest.mark.slow
def test_a_baseline_that_diverges_is_said_in_a_line(run, capsys):
    assert run("SOLVER.BASE_LR", "1e30") == 1
    assert "lower SOLVER.BASE_LR" in capsys.readouterr().err


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
    assert run("--minutes", "0.0001") == 0
    assert json.loads((tmp_path / "pilot.json").read_text())["baseline_seconds"] < 36 / 2


@pytest.mark.slow
def test_too_short_a_time_is_said(run, capsys):
    assert run("--minutes", "0.0001") == 0
    assert "too short to try anything" in capsys.readouterr().out


@pytest.mark.slow
def test_a_cycle_is_not_tried_in_much_less_time_than_the_baseline_had(run, monkeypatch, capsys):
    monkeypatch.setattr(race, "_FAIR", 1.0)
    trained = race._Race.run
    monkeypatch.setattr(race._Race, "run", lambda *of: time.sleep(6) or trained(*of))
    assert run() == 0
    assert "too short to try anything" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["DATA.NUM_FRAMES", "2", "SLOWFAST.ALPHA", "2"], "no coarser shape"),
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
