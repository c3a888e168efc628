"""Tests of `plan`: totals by hand, published iteration factors, warnings, and commands."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest

from multigrid import PAPER, CosineRate, Cycles, Schedule, Shape, SteppedRate, make_schedule
from slowfast_patches import seams
from slowfast_patches.config import load_recipe
from slowfast_patches.plan import training_plan
from slowfast_patches.plan.recipe_times import RecipeTimes
from slowfast_patches.plan.training_plan import (
    Plan,
    dataset_size,
    format_plan,
    plan_of,
    plan_summary,
    plan_warnings,
)

LONG = ["SOLVER.STEPS", "[0,4]", "SOLVER.LRS", "[1,0.1]", "MULTIGRID.LONG_CYCLE", "True"]
# 8 clips of the baseline, 25 of a coarse shape, on two processes
UNEVEN = [
    *("NUM_SHARDS", "2", "TRAIN.BATCH_SIZE", "4", "MULTIGRID.SHORT_CYCLE", "False", *LONG),
    *("MULTIGRID.LONG_CYCLE_FACTORS", "[[0.5, 0.8], [1, 1]]", "MULTIGRID.BN_BASE_SIZE", "1"),
]


@pytest.fixture(scope="module")
def tool(load_program: Callable[[str], ModuleType]) -> ModuleType:
    return load_program("tools/plan.py")


@pytest.fixture
def plan_json(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict]:
    def call(*arguments: object) -> dict:
        assert tool.main([*map(str, arguments), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


def long_cycle(num_videos: int) -> Schedule:
    """Six phases of equal length with 64, 32, 16, 8, 8, 8 clips, 136 in an iteration of each.

    So 6 epochs of 136 videos are 6 iterations in each phase.
    """
    policy = SteppedRate((4.0, 6.0), (0.1, 0.01))
    return make_schedule(Shape(8, 16, 64), num_videos, policy, Cycles(PAPER.long_cycle))


def test_totals_and_phases_of_a_long_cycle_by_hand():
    found = Plan(long_cycle(136), lambda frames, crop: frames * crop).to_json()
    phases = found["phases"]
    assert [phase["iterations"] for phase in phases] == [6] * 6
    assert [phase["stage"] for phase in phases] == [1, 1, 1, 1, 2, 2]
    assert found["iterations"] == 36
    assert found["baseline"]["iterations"] == 102
    assert found["iteration_factor"] == pytest.approx(17 / 6)
    assert found["clips"] == found["baseline"]["clips"] == 816
    # 6 iterations each of 64×4×45, 32×8×45, 16×8×64 and three times 8×16×64
    assert found["flops"] == 6 * (11520 + 11520 + 8192 + 3 * 8192)
    assert found["baseline"]["flops"] == 816 * 1024


def test_a_phase_has_the_rates_of_its_first_and_last_iteration():
    """102 iterations on half a period of a cosine, the last of which begins at 101 / 102."""
    policy = CosineRate(0.1, 6.0)
    schedule = make_schedule(Shape(8, 16, 64), 136, policy, cycles=None, bn_group_size=None)
    (phase,) = Plan(schedule, lambda frames, crop: 1.0).phases
    last = 0.05 * (1 + math.cos(math.pi * 101 / 102))
    assert phase["lr"] == pytest.approx((0.1, last), rel=1e-9)
    assert (phase["number"], phase["stage"], phase["start"], phase["iterations"]) == (1, 1, 0, 102)
    assert phase["bn_group_sizes"] == (None,)
    assert phase["relative_flops"] == [1.0]
    text = format_plan(Plan(schedule, lambda frames, crop: 1.0))
    assert "0.1 → 2.371e-05" in text


def test_a_short_cycle_and_a_given_time_by_hand(plan_json, short_cycle_recipe):
    """Crops of 32, 45 and 64 pixels have 32, 16 and 8 clips.

    So 7 epochs of 64 videos are 8 cycles of 56 clips. The baseline has 56 iterations of 8 clips,
    which take 70 minutes at 75 s each.
    """
    found = plan_json("--cfg", short_cycle_recipe, "--step-seconds", 75)
    assert (found["iterations"], found["baseline"]["iterations"]) == (24, 56)
    assert found["baseline"]["seconds"] == pytest.approx(70 * 60)
    assert found["speed_up"] == pytest.approx(found["baseline"]["flops"] / found["flops"])
    assert "an estimate, from 75 s" in found["seconds_source"]


def test_the_text_has_a_row_for_each_phase_the_totals_and_a_warning_of_a_short_end():
    text = format_plan(Plan(long_cycle(136), lambda frames, crop: 1e9))
    head, _, first, *_ = text.splitlines()
    assert first.index("64×4×45²") == head.index("shapes"), "texts are aligned at the left"
    assert first.index(" 2.82") + 5 == head.index("epochs") + 6, "numbers end with their header"
    assert first[: head.index("iterations") + 10].endswith(" 6")
    rows = [line.split() for line in text.splitlines()]
    assert rows[2] == ["1", "1", "64×4×45²", "6", "2.82", "0.8", "8", "8.00", "–"]
    assert rows[6][:3] == ["5", "2", "fine-tuning"]
    assert ["iterations", "36", "102", "2.83×"] in rows
    assert ["training", "FLOPs", "816", "GFLOP", "816", "GFLOP", "1.00×"] in rows
    assert "warning: the training ends with 18 iterations at the baseline's shape" in text


def test_extras_say_what_to_do_about_a_short_end(monkeypatch):
    monkeypatch.setattr(seams, "LENGTH_ADVICE", [])
    plain, *others = plan_warnings(long_cycle(136))
    seams.register_length_advice("toss a coin")
    seams.register_length_advice("ask a friend")
    advised = [f"{plain}; toss a coin; ask a friend", *others]
    assert plan_warnings(long_cycle(136)) == advised
    assert "toss a coin" not in str(plan_warnings(long_cycle(13_600)))


def test_pictures_are_drawn_by_the_command(tool, tiny_recipe, tmp_path):
    paths = [tmp_path / "new" / name for name in ("clips.png", "plan.png")]
    data = ["DATA.PATH_TO_DATA_DIR", str(tiny_recipe.parent)]
    options = ["--clips", str(paths[0]), "--plot", str(paths[1])]
    assert tool.main(["--cfg", str(tiny_recipe), *options, *data]) == 0
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_the_config_at_an_iteration_is_printed_as_a_recipe(tool, capsys, tmp_path):
    """The second shape of the long cycle has 4 times the clips, and half the frames and pixels."""
    cfg = ["--cfg", "configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml", "--dataset-size", "240000"]
    assert tool.main([*cfg, "--at", "30000"]) == 0
    text = capsys.readouterr().out
    assert "# Iteration 30000 (epoch 79.20, phase 2 of 14): 512×16×112², LR 0.4" in text
    changed = "DATA.NUM_FRAMES 16, DATA.TRAIN_CROP_SIZE 158, SOLVER.BASE_LR 0.4"
    assert changed in text.splitlines()[1]
    (tmp_path / "at.yaml").write_text(text)
    found = load_recipe(tmp_path / "at.yaml", ["MULTIGRID.LONG_CYCLE", False])
    assert (found.train.batch_size, found.data.num_frames) == (256, 16)
    assert found.solver.base_lr == pytest.approx(0.4)


@pytest.mark.parametrize("number", [-1, 24])
def test_an_iteration_that_does_not_exist_is_refused(tool, refused, short_cycle_recipe, number):
    said = refused(tool, ["--cfg", str(short_cycle_recipe), "--at", str(number)])
    assert "the last iteration" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["DATA.NUM_TRAIN_VIDEOS", "0"], "--dataset-size"),
        (["--dataset-size", "4", *LONG], "too short"),
        (UNEVEN, "25 clips (25×8×51²) cannot be divided over 2 processes"),
    ],
)
def test_a_recipe_that_has_no_plan_is_refused(
    tool, short_cycle_recipe, refused, arguments, message
):
    assert message in refused(tool, ["--cfg", str(short_cycle_recipe), *arguments])


# Parts of a plan.


def test_the_log_has_a_summary_with_the_baseline_beside_cycles_alone():
    plan = Plan(long_cycle(136), lambda frames, crop: 1.0)
    assert plan_summary(plan).startswith(
        "The training has 36 iterations (the baseline: 102), or 6.0 epochs of 136 videos. It "
        "begins with mini-batches of 64×4×45² and ends with 8×16×64²"
    )
    policy = SteppedRate((6.0,), (0.1,))
    alone = make_schedule(Shape(8, 16, 64), 136, policy, cycles=None, bn_group_size=None)
    summary = plan_summary(Plan(alone, lambda frames, crop: 1.0))
    assert summary.startswith("The training has 102 iterations, or 6.0 epochs")


def test_the_text_has_notes_of_what_is_known():
    plan = Plan(long_cycle(136), lambda frames, crop: 1.0)
    for text in ("Evaluations:", "Wall-clock speed-up"):
        assert text not in format_plan(plan)
    assert "Global batch: 8 clips" in format_plan(plan)
    times = RecipeTimes(lambda shape: 2.0, lambda shape: 1.0, "a guess")
    whole = replace(plan, times=times, evaluations=(7, 0.251))
    text = format_plan(whole)
    assert "Evaluations: 7. Together with the test, they take 25 % of the" in text
    # 36 iterations of 2 s, and 102 of 1 s.
    assert whole.speed_up == pytest.approx(102 / 72)
    assert "Wall-clock speed-up: 1.42×" in text
    assert "Source of the times: a guess." in text
    found = whole.to_json()
    assert (found["evaluations"], found["evaluation_share"]) == (7, 0.251)
    assert found["seconds_source"] == "a guess"


@pytest.mark.parametrize("times", [(None, 1.0), (2.0, None), (None, None)])
def test_without_both_times_there_is_no_speed_up(times):
    ours, baseline = (time and (lambda shape, time=time: time) for time in times)
    plan = Plan(long_cycle(136), lambda frames, crop: 1.0, RecipeTimes(ours, baseline, None))
    assert plan.speed_up is None


def test_the_number_of_videos_is_given_counted_or_in_the_recipe(tmp_path):
    recipe = load_recipe(None, ["DATA.PATH_TO_DATA_DIR", str(tmp_path)])
    assert dataset_size(recipe, 5) == 5
    with pytest.raises(ValueError, match="has no list of training videos"):
        dataset_size(recipe)
    named = recipe.replaced({"DATA.NUM_TRAIN_VIDEOS": 1})
    assert dataset_size(named) == 1
    (tmp_path / "train.csv").write_text("v.mp4 0\n" * 3)
    assert dataset_size(named) == 3


def test_a_plan_is_of_shapes_and_processes_that_can_train(short_cycle_recipe, monkeypatch):
    recipe = load_recipe(short_cycle_recipe)
    for name in ("check_shapes", "check_world_size"):
        with monkeypatch.context() as patch:
            patch.setattr(training_plan, name, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                plan_of(recipe, 64)
    plan = plan_of(recipe, 64)
    assert (plan.schedule.iterations, plan.evaluations[1]) == (24, 0)
