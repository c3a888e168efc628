"""Parts of a pilot by hand: how its steps are timed, how its time is divided, and its advice."""

import json
from pathlib import Path

import pytest

from multigrid.batchnorm import GroupedBatchNorm3d
from multigrid.cost import final_iterations
from slowfast_patches.experiments.variants import Variant
from slowfast_patches.extras.pilot import pilot_experiment as pilots
from slowfast_patches.extras.pilot import pilot_report
from slowfast_patches.extras.pilot.pilot_experiment import (
    ShortBaselineError,
    measured_seconds,
    pilot_experiment,
    pilot_variants,
)
from slowfast_patches.extras.pilot.pilot_report import PilotResult
from slowfast_patches.launch.placement import Placement
from slowfast_patches.plan.evaluations import evaluation_iterations
from slowfast_patches.plan.recipe_times import shapes_to_measure
from slowfast_patches.utils.errors import UserError
from tests.slowfast_patches.extras.pilot.conftest import DEMO

# Variants.


def test_each_variant_is_scored_once_by_its_own_weights_and_few_batches(whole_variants):
    for variant in whole_variants:
        recipe = variant.recipe
        last = [variant.iterations]
        assert sorted(evaluation_iterations(recipe, variant.schedule)) == last, variant.name
        assert not recipe.test.enable
        assert recipe.model.ema_decay == 0
        assert recipe.bn.num_batches_precise == 6
    assert [variant.recipe.uses_multigrid for variant in whole_variants] == [False] + [True] * 4


@pytest.mark.parametrize(
    ("placement", "is_refused"),
    [
        (Placement(1, 0, 1, None), False),
        (Placement(1, 0, 2, None), False),  # it starts both processes itself
        (Placement(1, 0, 1, 0), False),
        (Placement(1, 0, 2, 0), True),
        (Placement(2, 0, 1, None), True),
    ],
)
def test_a_pilot_in_a_launcher_of_several_processes_is_refused(monkeypatch, placement, is_refused):
    class AcceptedError(Exception):
        pass

    def accept(*_: object) -> None:
        raise AcceptedError

    monkeypatch.setattr(pilots, "find_placement", lambda recipe, environment: placement)
    monkeypatch.setattr(pilots, "check_gpus", accept)
    with pytest.raises(UserError if is_refused else AcceptedError):
        pilot_variants(DEMO, [])


def test_a_cycle_with_crops_below_the_last_feature_map_is_refused(whole_variants, monkeypatch):
    cycle = whole_variants[1]
    smallest = min(shape.crop for shape in cycle.schedule.shapes)
    asked = (cycle.name, cycle.cfg_file, cycle.overrides, {})
    monkeypatch.setattr(pilots, "make_variant", lambda *_: cycle)
    monkeypatch.setattr(pilots, "_SMALLEST_CROP", smallest)
    assert pilots._make_variant(*asked) is cycle
    monkeypatch.setattr(pilots, "_SMALLEST_CROP", smallest + 1)
    with pytest.raises(UserError, match=f"a crop of {smallest} pixels is smaller than"):
        pilots._make_variant(*asked)
    monkeypatch.setattr(pilots, "make_variant", lambda *_: whole_variants[0])
    assert pilots._make_variant(*asked) is whole_variants[0]  # whatever its crops


def test_a_cycle_that_a_check_refuses_is_left_out(whole_variants, monkeypatch):
    monkeypatch.setattr(pilots, "make_variant", lambda *_: whole_variants[1])
    for name in ("check_world_size", "check_shapes"):
        with monkeypatch.context() as patch:
            patch.setattr(pilots, name, lambda *_: (_ for _ in ()).throw(UserError("too small")))
            with pytest.raises(UserError, match="too small"):
                pilots._make_variant("cycle", DEMO, (), {})


# Step times.


def test_steps_are_timed_with_grouped_bn_and_the_same_weights(
    whole_variants, tmp_path, monkeypatch, capsys
):
    seen = []

    def time_steps(stepper, kinds):
        seen.append((stepper, kinds))
        return dict.fromkeys(kinds, 0.5)

    monkeypatch.setattr(pilots, "time_steps", time_steps)
    variants = whole_variants[:2]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        measured = measured_seconds(variants, [], tmp_path / name)
        assert (measured.variants, measured.dropped) == (variants, {})
    (stepper, kinds), (again, _) = seen
    assert any(isinstance(module, GroupedBatchNorm3d) for module in stepper.model.modules())
    assert stepper.recipe == variants[0].recipe
    expected = [kind for variant in variants for kind in shapes_to_measure(variant.recipe)]
    assert kinds == list(dict.fromkeys(expected))
    assert f"each of {len(kinds)} shapes" in capsys.readouterr().err
    weights = [next(iter(each.model.parameters())) for each in (stepper, again)]
    assert weights[0].equal(weights[1])


def test_times_that_are_given_are_not_measured(whole_variants, tmp_path, monkeypatch):
    asked = []

    def of_files(variants, files):
        asked.append(files)
        return {variant.name: 5.0 * number for number, variant in enumerate(variants)}, "source"

    monkeypatch.setattr(pilots, "step_seconds_of", of_files)
    monkeypatch.setattr(pilots, "_measure", None)
    found = measured_seconds(whole_variants[:3], [Path("times.json")], tmp_path)
    assert found == (list(whole_variants[:3]), [0.0, 5.0, 10.0], {})
    assert asked == [[Path("times.json")]]


@pytest.mark.parametrize("left", ["seed0/checkpoints", "seed0/result.json"])
def test_old_times_are_kept_as_long_as_there_are_runs(whole_variants, tmp_path, monkeypatch, left):
    monkeypatch.setattr(pilots, "time_steps", lambda _, kinds: dict.fromkeys(kinds, 0.5))
    variants = whole_variants[:2]
    measured_seconds(variants, [], tmp_path)
    stored, baseline = tmp_path / "step_times.json", variants[0]
    assert pilots._is_usable(stored, baseline, tmp_path)
    content = json.loads(stored.read_text())
    stored.write_text(json.dumps(content | {"date": "2020-01-01T00:00:00+00:00"}))
    assert not pilots._is_usable(stored, baseline, tmp_path)
    (tmp_path / "baseline_x0.1" / left).mkdir(parents=True)
    assert pilots._is_usable(stored, baseline, tmp_path)
    stored.write_text("{}")
    assert not pilots._is_usable(stored, baseline, tmp_path)
    stored.unlink()
    assert not pilots._is_usable(stored, baseline, tmp_path)


def test_times_of_another_machine_are_measured_again_unless_there_are_runs(
    whole_variants, tmp_path, monkeypatch
):
    monkeypatch.setattr(pilots, "time_steps", lambda _, kinds: dict.fromkeys(kinds, 0.5))
    measured_seconds(whole_variants[:2], [], tmp_path)
    stored, baseline = tmp_path / "step_times.json", whole_variants[0]
    monkeypatch.setattr(pilots, "clock_here", lambda device: "a slide rule")
    assert not pilots._is_usable(stored, baseline, tmp_path)
    (tmp_path / "baseline_x0.1" / "seed0" / "checkpoints").mkdir(parents=True)
    with pytest.raises(UserError, match=r"but this is a slide rule\. .*Choose another --output"):
        pilots._is_usable(stored, baseline, tmp_path)


# Lengths. A step of the baseline takes a second: 2,400 s in all.


@pytest.fixture
def divide(whole_variants: list[Variant], tmp_path: Path):
    """`divide([2400, 1200], minutes)`: the experiment of as many variants as have seconds."""

    def call(seconds, minutes=None):
        variants = whole_variants[: len(seconds)]
        return pilot_experiment(variants, seconds, minutes, [3], tmp_path)

    return call


# Beside the steps: 10 s for the start, and of 19,200 clips' training a third of the time of 300
# validation videos and of 6 mini-batches of 8 clips for BN.
BESIDES = 10 + (300 + 6 * 8) / 3 / 19_200 * 2400


def least(variant: Variant) -> float:
    return 120 / final_iterations(variant.schedule)


def test_without_minutes_each_variant_gets_what_it_needs(divide, whole_variants):
    """300 iterations of the baseline take 300 s."""
    made = divide([2400.0, 1200.0])
    share = max(300.0, least(whole_variants[1]) * 1200)
    assert [*made.step_seconds.values()] == pytest.approx([share, share], abs=1e-6)
    lengths = [variant.length for variant in made.variants]
    assert lengths == pytest.approx([share / 2400, share / 1200])
    assert {variant.baseline for variant in made.variants} == {made.variants[0].name}
    assert set(made.step_seconds) == {variant.name for variant in made.variants}
    assert made.seeds == [3]


def test_minutes_are_divided_among_the_variants_and_what_is_beside(divide, capsys):
    made = divide([2400.0, 1200.0], 20)
    share = 1200 / 2 - BESIDES
    assert [*made.step_seconds.values()] == pytest.approx([share, share], abs=1e-6)
    said = capsys.readouterr().err
    assert "takes about 20 min per seed" in said
    assert said.rstrip().endswith("baseline; GENTLE.")


def test_a_pilot_as_long_as_the_baseline_is_refused(divide):
    divide([2400.0, 1200.0], 39.9)
    with pytest.raises(ShortBaselineError, match="takes about 40 min, and a pilot 40 min"):
        divide([2400.0, 1200.0], 40)


def test_a_third_variant_is_trained_if_all_get_what_they_need(divide, whole_variants):
    needs = max(300, *(least(variant) * 600 for variant in whole_variants[1:3])) + BESIDES
    seconds = [2400.0, 600.0, 600.0]
    assert len(divide(seconds, (3 * needs + 1) / 60).variants) == 3
    assert len(divide(seconds, (3 * needs - 1) / 60).variants) == 2


# The advice.


@pytest.mark.parametrize(
    ("ahead", "waiting", "final", "advice"),
    [
        (0.75, 0.149, 5, "use multigrid"),
        (0.749, 0.0, 500, "undecided"),
        (0.75, 0.15, 500, "undecided"),
        (0.25, 0.5, 100, "do not use multigrid"),
        (0.25, 0.0, 99, "undecided"),
        (0.251, 0.0, 500, "undecided"),
    ],
)
def test_the_advice_at_its_bounds(whole_variants, monkeypatch, ahead, waiting, final, advice):
    monkeypatch.setattr(pilot_report, "final_iterations", lambda schedule: final)
    result = PilotResult({}, whole_variants[1], ahead, waiting, 3.0)
    assert result.advice == advice
    *warnings, last = pilot_report._explain(result)
    assert [("waiting for data" in text) for text in warnings] == [
        *[True] * (waiting >= 0.15),
        *[False] * (final < 100),
    ]
    assert last.startswith(f"Advice: {advice}. After equal time, the best cycle")
    assert f"with a probability of {100 * ahead:.0f} %" in last
    assert ("takes 1/3.00 of the" in last) is (advice == "use multigrid")
    assert ("give more --minutes" in last) is (advice == "undecided")


def test_the_report_has_the_time_of_a_seed(made_up):
    """Each of two runs trains for 23 s, and is evaluated for 7 s."""
    _, report = made_up(20.0, 30.0)
    content = report.content
    assert (content["seconds"], content["videos"], content["baseline_seconds"]) == (60, 400, 960)
    assert content["standard_errors"]["baseline"] == pytest.approx(6.7, abs=0.01)
    assert "took 60 s per seed. A full training of the baseline would take 16 min" in str(report)
    assert "Chance is 30.0." in str(report)


def test_the_best_cycle_is_the_one_with_the_highest_score(made_up):
    _, report = made_up(50.0, 20.0, 40.0, 30.0)
    assert report.content["best"] == "GENTLE, all frames"
