"""Tests of the pilot: verdicts by hand from made-up results, its variants, and a real run."""

import json
import math
import os
import shlex
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from multigrid.cost import final_iterations
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe_cycles import cycles_of
from slowfast_patches.experiments.runs import Experiment
from slowfast_patches.experiments.score import score_of
from slowfast_patches.experiments.variants import Variant
from slowfast_patches.extras.pilot import pilot_experiment as pilots
from slowfast_patches.extras.pilot.pilot_experiment import (
    CYCLES,
    ShortBaselineError,
    measured_seconds,
    pilot_experiment,
    pilot_variants,
)
from slowfast_patches.extras.pilot.pilot_report import evaluate_pilot, recipe_text, report_pilot
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.plan.recipe_times import shapes_to_measure
from slowfast_patches.plan.training_plan import plan_warnings
from slowfast_patches.train import step_timer
from slowfast_patches.utils.errors import RunError, UserError
from tests.conftest import one_block
from tests.slowfast_patches.extras.pilot.conftest import DEMO
from tests.slowfast_patches.plan.test_plan import long_cycle


def test_the_standard_error_of_a_score_by_hand(made_up):
    """At 20 %, the videos cause √(0.2 · 0.8 / 400), 2 points, and the seed 40 · 0.2 · 0.8, 6.4.

    No hit at all is as uncertain as one hit. Of four seeds that agree, the model counts as four of
    seven, so that the second error is √(6.4² · 4 / 7 / 4) = 2.42.
    """
    runs, _ = made_up(20.0, 0.0, 0.25)
    one, none, hit = (score_of(runs, name, "top1") for name in runs["variant"])
    assert (one.mean, one.stdev) == pytest.approx((20.0, math.hypot(2.0, 6.4)))
    assert none.stdev == hit.stdev
    four = pd.concat([runs[runs["variant"] == "baseline"]] * 4)
    assert score_of(four, "baseline", "top1").stdev == pytest.approx(math.hypot(2.0, 2.419), 1e-3)


@pytest.mark.parametrize(
    ("scores", "options", "advice", "ahead"),
    [
        # 9 points are 0.829 of √(2² + 6.4² + 2.27² + 8.24²)
        ((20, 29), {}, "use multigrid", 0.796),
        ((32, 20), {}, "do not use multigrid", 0.143),
        ((1, 99), {}, "use multigrid", 0.95),  # one seed proves no more
        # a chance of 20.4 % for one of two cycles to be as far above by luck is 40.8 %
        ((20, 29, 29), {}, "undecided", 0.592),
        ((20, 29), {"videos": 30}, "undecided", 0.717),
        # few iterations after the change of shape are no evidence against a cycle
        ((32, 20), {"length": 0.05}, "undecided", 0.143),
        ((32, 50), {"length": 0.05}, "use multigrid", 0.906),
        # a cycle that waited for data had no equal time
        ((20, 50), {"loading": 23.0}, "undecided", 0.95),
    ],
)
def test_verdicts(made_up, scores, options, advice, ahead):
    _, report = made_up(*map(float, scores), **options)
    assert report.content["advice"] == advice
    assert report.content["ahead"] == pytest.approx(ahead, abs=0.01)
    text = str(report)
    assert f"Advice: {advice}." in text
    assert ("50 % of its training time waiting for data" in text) == ("loading" in options)
    assert ("iterations at the baseline's shape. About 100" in text) == ("length" in options)


def test_the_report_has_the_scores_and_the_speed_up(made_up, tmp_path):
    """In equal times, the cycle completes four times the share of its schedule: a speed-up of 4."""
    _, report = made_up(20.0, 30.0)
    report.write(tmp_path)
    data = json.loads((tmp_path / "pilot.json").read_text())
    assert (data["advice"], data["best"], data["speed_up"]) == ("use multigrid", "GENTLE", 4.0)
    assert data["chance"] == 30  # of the val list, where labels 0, 1 and 2 are as common
    assert [variant["top1"]["mean"] for variant in data["configs"]] == [20.0, 30.0]
    text = (tmp_path / "pilot.md").read_text()
    assert "takes 1/4.00 of the baseline's time and sees 0.75 × as many clips" in text
    assert "baseline 20.0 ± 6.7; GENTLE 30.0 ± " in text


def cost(variant: Variant) -> float:
    """A step takes a second at the baseline's shape, and less with fewer pixels: 2,400 s in all."""
    return sum(
        step.shape.volume / variant.schedule.base.volume for step in variant.schedule.steps()
    )


def test_variants_take_equal_times(whole_variants, tmp_path, monkeypatch):
    monkeypatch.setattr(pilots, "_START", 0.0)
    seconds = [cost(variant) for variant in whole_variants]
    experiment = pilot_experiment(whole_variants, seconds, 25, [0], tmp_path)
    lengths = [cost(variant) for variant in experiment.variants]
    assert lengths == pytest.approx([*experiment.step_seconds.values()], rel=0.01)
    assert sum(lengths) < 1500 < 1.2 * sum(lengths)  # the rest is evaluation
    assert len(pilot_experiment(whole_variants, seconds, 11.5, [0], tmp_path).variants) == 2
    assert all(final_iterations(variant.schedule) >= 100 for variant in experiment.variants[1:])


@pytest.mark.parametrize(
    ("part", "minutes", "outcome"),
    [
        (1, None, 660),  # two variants of 300 iterations of a second, scored
        (0.1, None, 240),  # a tenth
        (1, 1, 660),
        (8, None, r"takes about 40 min, and a pilot .* min\. Train both"),
    ],
)
def test_a_pilot_takes_a_tenth_of_the_baseline_or_what_it_needs(
    whole_variants, tmp_path, monkeypatch, part, minutes, outcome
):
    """A variant needs at least a fraction of 300 iterations."""
    monkeypatch.setattr(pilots, "_ITERATIONS", 300 * part)
    monkeypatch.setattr(pilots, "_FINAL", 120 * part)
    seconds = [cost(variant) for variant in whole_variants]

    def experiment() -> Experiment:
        return pilot_experiment(whole_variants, seconds, minutes, [0], tmp_path)

    if isinstance(outcome, str):
        with pytest.raises(ShortBaselineError, match=outcome):
            experiment()
        return
    made = experiment()
    # A third of 300 videos and 48 clips for BN, of the 19,200 clips of the training.
    besides = pilots._START + 348 / 3 / 19_200 * seconds[0]
    took = len(made.variants) * (max(made.step_seconds.values()) + besides)
    assert took == pytest.approx(outcome, rel=0.05)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["DATA.MULTI_LABEL", "True"], "top-1 accuracy"),
        (["NUM_SHARDS", "2"], r"NUM_SHARDS 1 and SOLVER\.REFERENCE_BATCH_SIZE 16"),
    ],
)
def test_several_machines_and_labels_are_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        pilot_variants(DEMO, keys)


@pytest.mark.parametrize("cycles", CYCLES, ids=lambda cycles: cycles.name)
def test_the_recipe_gives_what_was_tried_whatever_its_base_had(whole_variants, tmp_path, cycles):
    """On a base with multigrid of its own, it trains the shapes of the pilot. The warm-up, which
    that base scales, is not part of the cycles."""
    base = Path("configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml").resolve()
    path = tmp_path / "multigrid.yaml"
    path.write_text(recipe_text(cycles, str(base)))
    recipe = load_recipe(path, ["MULTIGRID.WARMUP_IN_EPOCHS", True])
    assert cycles_of(recipe) == cycles
    [tried] = [variant.schedule for variant in whole_variants if variant.name == cycles.name]
    assert schedule_of(recipe, 640) == tried


@pytest.fixture
def small(monkeypatch):
    """Shorten the pilot to a few iterations."""
    for name, value in (("_ITERATIONS", 2), ("_FINAL", 2), ("_START", 0.0)):
        monkeypatch.setattr(pilots, name, value)
    monkeypatch.setattr(step_timer, "_ROUNDS", 1)


@pytest.fixture
def run(small, tiny_recipe, load_program, tmp_path):
    """The tool, and a function that calls it for a pilot of a second; a baseline of minutes."""
    tool = load_program("tools/pilot.py")

    def main(*arguments: str) -> int:
        keys = ["DATA.PATH_TO_DATA_DIR", str(tiny_recipe.parent)]
        keys += ["SOLVER.MAX_EPOCH", "1000", "SOLVER.STEPS", "[0,600]"]
        keys += ["DATA_LOADER.NUM_WORKERS", "0"]
        options = ["--minutes", "0.02", "--output", str(tmp_path)]
        with one_block():
            return tool.main(["--cfg", str(tiny_recipe), *options, *keys, *arguments])

    return SimpleNamespace(tool=tool, main=main)


def test_a_pilot_first_says_what_it_does_and_whether_it_can_write(
    run, tmp_path, monkeypatch, capsys
):
    """Before it reads the lists, which may take minutes."""
    asked = list[object]()

    def stop(*_: object) -> None:
        asked.append(capsys.readouterr().err)
        raise UserError("the lists are wrong")

    monkeypatch.setattr(run.tool, "pilot_variants", stop)
    assert run.main() == 2
    assert "then train the baseline and multigrid briefly" in str(asked.pop())
    (tmp_path / "file").touch()
    assert run.main("--output", str(tmp_path / "file" / "pilot")) == 2
    said = capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert run.main() == 2
    assert "cannot be written" in said
    assert f"--output {tmp_path} cannot be written" in capsys.readouterr().err
    assert not asked


@pytest.mark.slow("trains for seconds")
def test_a_pilot_is_run_and_reported(run, tmp_path, monkeypatch, train):
    """Crops of 32 pixels cannot become smaller, so only fewer frames remain to be tried."""

    def train_here(experiment: Experiment, run_net: Path):
        for variant, seed in experiment.missing():
            train(experiment.folder(variant, seed), *variant.overrides, "RNG_SEED", seed)
        yield experiment.runs()

    monkeypatch.setattr(run.tool, "train", train_here)
    monkeypatch.setattr(pilots, "time_steps", lambda _, kinds: dict.fromkeys(kinds, 0.05))
    assert run.main() == 0
    found = json.loads((tmp_path / "pilot.json").read_text())
    baseline, cycle = found["configs"]
    assert (baseline["label"], cycle["label"]) == ("baseline", "GENTLE, all pixels")
    assert baseline["clock"] == cycle["clock"]
    assert 0 < baseline["length"] < cycle["length"] < 1
    assert found["videos"] == 8
    assert "\n    multigrid-pilot --cfg" in (tmp_path / "pilot.md").read_text()


@pytest.mark.slow("trains for seconds")
def test_of_a_baseline_that_is_shorter_than_a_pilot_the_command_is_said_that_trains_both(
    run, monkeypatch, capsys, load_program
):
    """The baseline has 36 iterations, but each variant needs the time of 300."""
    monkeypatch.setattr(pilots, "_ITERATIONS", 300)
    monkeypatch.setattr(run.tool, "train", None)
    short = ["SOLVER.MAX_EPOCH", "6", "SOLVER.STEPS", "[0,4]"]
    assert run.main(*short) == 0
    reason, command = capsys.readouterr().out.rstrip().split("\n\n    ")
    assert reason.startswith("No pilot is needed: a full training of the baseline takes about")
    program, *arguments = shlex.split(command)
    assert program == "multigrid-compare"
    compared = load_program("tools/compare.py").parse_args(arguments)
    baseline, multigrid = (load_recipe(path, compared.overrides) for path in compared.cfg)
    assert cycles_of(baseline) is None  # the tiny recipe has cycles of its own
    assert cycles_of(multigrid) == CYCLES[2]  # the first that fits its crops


def test_steps_are_timed_once_on_one_machine(whole_variants, small, tmp_path, monkeypatch):
    """A repeated pilot uses the same lengths, but not those of another machine or model."""
    variants = whole_variants[:2]
    for seconds, stored in ((0.5, 0.5), (1.0, 0.5)):
        monkeypatch.setattr(
            pilots, "time_steps", lambda _, kinds, s=seconds: dict.fromkeys(kinds, s)
        )
        measured = measured_seconds(variants, [], tmp_path)
        assert measured.seconds == pytest.approx(
            [stored * variant.iterations for variant in variants]
        )
    file = tmp_path / "step_times.json"
    content = json.loads(file.read_text())
    for other in (
        {"device": content["device"] | {"name": "abacus"}},
        {"machine": content["machine"] | {"threads": 99}},
        {"versions": content["versions"] | {"torch": "1.0"}},
        {"date": "2020-01-01T00:00:00+00:00"},
        {"model": content["model"] | {"MODEL.ARCH": "i3d"}},
        {"shapes": None},
    ):
        file.write_text(json.dumps(content | other))
        assert measured_seconds(variants, [], tmp_path).seconds[0] == variants[0].iterations, other
    file.write_text(json.dumps(content | {"device": content["device"] | {"name": "abacus"}}))
    run = tmp_path / "baseline_x0.5" / "seed0"
    run.mkdir(parents=True)
    (run / "result.json").touch()
    with pytest.raises(ValueError, match=r"measured with abacus .*runs in .* another --output"):
        measured_seconds(variants, [], tmp_path)


def test_a_cycle_that_does_not_fit_is_a_row(whole_variants, small, tmp_path, monkeypatch):
    """A shape of the second cycle does not fit, and the shapes of the others are measured."""
    variants = whole_variants[:3]
    *others, last = (set(shapes_to_measure(variant.recipe)) for variant in variants)
    if not (alone := last.difference(*others)):  # the cycle of fewer frames has all its shapes
        variants = [variants[0], variants[2], variants[1]]
        alone = others[1] - others[0] - last
    bad = alone.pop()

    def time_steps(_, kinds):
        if bad in kinds:
            raise UserError("a shape does not fit into memory")
        return dict.fromkeys(kinds, 0.5)

    monkeypatch.setattr(pilots, "time_steps", time_steps)
    measured = measured_seconds(variants, [], tmp_path)
    assert measured.variants == variants[:2]
    assert measured.dropped == {variants[2].name: "a shape does not fit into memory"}
    bad = shapes_to_measure(variants[0].recipe)[0]
    (tmp_path / "step_times.json").unlink()
    with pytest.raises(ValueError, match="needs the baseline"):
        measured_seconds(variants, [], tmp_path)


def test_a_cycle_whose_run_failed_is_a_row_and_the_others_are_compared(
    whole_variants, tmp_path, write_run
):
    experiment = Experiment(
        whole_variants[:3], [0], tmp_path, dropped={"PAPER": "it does not fit into memory"}
    )
    write_run(experiment, experiment.variants[0], 0, 23.0, top1=20.0, videos=400)
    write_run(experiment, experiment.variants[1], 0, 23.0, top1=40.0, videos=400)
    folder = experiment.folder(experiment.variants[2], 0)
    folder.mkdir(parents=True)
    (folder / "failed.json").write_text("exit status 9")
    runs = experiment.runs()
    outcome = evaluate_pilot(experiment, runs)
    assert outcome.best.name == experiment.variants[1].name
    text = str(report_pilot(experiment, runs, outcome, "command", 960.0))
    assert "0 of 1, 1 failed" in text
    assert "exit status 9" in text
    assert "PAPER was not trained: it does not fit into memory." in text
    (experiment.folder(experiment.variants[0], 0) / "result.json").unlink()
    with pytest.raises(RunError, match="the baseline or all cycles failed"):
        evaluate_pilot(experiment, experiment.runs())


@pytest.mark.parametrize("name", ["multigrid.yaml", "baseline.yaml"])
def test_a_pilot_does_not_overwrite_the_recipe_that_it_reads(
    load_program, tiny_recipe, tmp_path, capsys, name
):
    """The recipe, or one that it inherits from, is the output of an earlier pilot."""
    own = tmp_path / name
    own.write_text(f"_BASE_: {tiny_recipe}\nMULTIGRID: {{LONG_CYCLE: True}}\n")
    heir = tmp_path / "heir.yaml"
    heir.write_text(f"_BASE_: {name}\n")
    before = own.read_text()
    tool = load_program("tools/pilot.py")
    for path in (own, heir):
        command = ["--cfg", str(path), "--output", str(tmp_path)]
        keys = ["DATA.PATH_TO_DATA_DIR", str(tiny_recipe.parent)]
        assert tool.main([*command, *keys]) == 2
        assert "is read by this command, which would also write it" in capsys.readouterr().err
    assert own.read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "heir.yaml"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["DATA.NUM_FRAMES", "2", "SLOWFAST.ALPHA", "2"], "No cycle fits the shape 4×2×32²"),
        (["MULTIGRID.EPOCH_FACTOR", "1"], "EPOCH_FACTOR is set for each variant of the pilot"),
    ],
)
def test_what_cannot_be_tried(run, capsys, arguments, message):
    assert run.main(*arguments) == 2
    assert message in capsys.readouterr().err


def test_the_plan_of_a_short_training_names_the_pilot():
    warning, *_ = plan_warnings(long_cycle(136))
    assert warning.endswith("; try it with multigrid-pilot")
