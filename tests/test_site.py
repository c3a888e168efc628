"""Tests of the site: the schedule page's numbers, and the data set of "Use your own Dataset"."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from py_mini_racer import MiniRacer

from multigrid import (
    GENTLE,
    PAPER,
    ClipRequest,
    Cycles,
    Schedule,
    Shape,
    SteppedRate,
    collate,
    make_schedule,
)
from slowfast_patches.config import load_recipe
from slowfast_patches.plan.recipe_schedule import schedule_of

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "docs" / "assets" / "schedule.js"
SHAPES = (Shape(64, 32, 224), Shape(16, 8, 64), Shape(8, 16, 90))
STAGES = (((94.0, 154.0, 196.0), (0.8, 0.08, 0.008)), ((30.0, 40.0), (0.1, 0.01)))
LONG_CYCLE = PAPER.long_cycle
SHORT_CYCLE = PAPER.short_cycle
CASES = [
    *((shape, 24_000, *STAGES[0], LONG_CYCLE, SHORT_CYCLE, 1.5, 1.0) for shape in SHAPES),
    (SHAPES[0], 24_000, *STAGES[1], (), SHORT_CYCLE, 1.5, 1.0),
    (SHAPES[0], 24_000, *STAGES[0], (), (), 1.0, 1.0),
    (SHAPES[1], 5_000, *STAGES[1], LONG_CYCLE, SHORT_CYCLE, 0.75, 0.5),
    (SHAPES[2], 5_000, *STAGES[1], LONG_CYCLE, (), 2.0, 0.3),
]


@pytest.fixture(scope="module")
def page() -> MiniRacer:
    page = MiniRacer()
    page.eval(SCRIPT.read_text())
    return page


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_page_has_the_phases_of_the_package(page: MiniRacer, case: tuple):
    shape, videos, ends, rates, long_cycle, short_cycle, epoch_factor, batch_exponent = case
    schedule = make_schedule(
        shape,
        videos,
        SteppedRate(ends, rates),
        Cycles(long_cycle, short_cycle, epoch_factor, batch_exponent),
        bn_group_size=None,
    )
    options = {
        "base": vars(shape),
        "videos": videos,
        "ends": ends,
        "rates": rates,
        "longCycle": long_cycle,
        "shortCycle": short_cycle,
        "epochFactor": epoch_factor,
        "batchExponent": batch_exponent,
    }
    drawn = json.loads(page.eval(f"JSON.stringify(makeSchedule({json.dumps(options)}))"))
    assert drawn["iterations"] == schedule.iterations
    assert drawn["baselineIterations"] == schedule.baseline_iterations
    for there, phase in zip(drawn["phases"], schedule.phases, strict=True):
        assert (there["start"], there["stop"]) == (phase.start, phase.stop)
        assert there["shapes"] == [vars(shape) for shape in phase.shapes]
        assert (there["stage"], there["fineTuning"]) == (phase.stage, phase.fine_tuning)
        assert there["rate"] == pytest.approx(schedule.at(phase.start).lr)


@pytest.mark.parametrize("number", range(3))
def test_presets_have_the_iterations_of_their_recipes(page: MiniRacer, number: int):
    preset = json.loads(page.eval(f"JSON.stringify(PRESETS[{number}])"))
    options = f"{{...PRESETS[{number}], ...CYCLES[PRESETS[{number}].cycles]}}"
    values = f"{{...{options}, cycles: PRESETS[{number}].cycles}}"
    drawn = json.loads(page.eval(f"JSON.stringify(makeSchedule(optionsOf({values})))"))
    recipe = load_recipe(ROOT / preset["recipe"])
    schedule = schedule_of(recipe, preset["videos"])
    assert drawn["phases"][-1]["shapes"][-1] == vars(schedule.base)
    assert drawn["baselineIterations"] == pytest.approx(schedule.baseline_iterations, abs=1)
    assert drawn["iterations"] == pytest.approx(schedule.iterations, abs=3)
    last = schedule.at(schedule.iterations - 1)
    assert drawn["phases"][-1]["rate"] == pytest.approx(last.lr)


def rows(schedule: Schedule) -> str:
    """Return the rows of a schedule's table of stages."""
    lines = []
    for phase in schedule.phases:
        shapes = ", ".join(str(shape) for shape in phase.shapes)
        end = (phase.first_clip + phase.clips) / schedule.num_videos
        sizes = ", ".join(str(size) for size in phase.bn_group_sizes)
        lines.append(f"| {shapes} | {end:.1f} | {schedule.at(phase.start).lr:.3g} | {sizes} |")
    return "\n".join(lines)


def test_the_tables_of_paper_and_gentle_are_their_schedules():
    text = (ROOT / "docs" / "schedule.md").read_text()
    kinetics = SteppedRate((94.0, 154.0, 196.0, 239.0), (0.1, 0.01, 0.001, 0.0001))
    paper = make_schedule(SHAPES[0], 239_933, kinetics, PAPER)
    gentle = make_schedule(Shape(8, 16, 64), 3000, SteppedRate((40.0, 50.0), (0.1, 0.01)), GENTLE)
    for schedule in (paper, gentle):
        assert rows(schedule) in text
        assert f"has {schedule.iterations:,} iterations" in text
        assert f"the baseline has {schedule.baseline_iterations:,}" in text


def test_the_table_of_the_page_is_the_same_in_python_and_in_a_recipe():
    text = (ROOT / "docs" / "schedule.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = dict[str, Schedule]()
    exec(code, names)
    (rows,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    table = yaml.safe_load(rows)["MULTIGRID"]["STAGES"]
    recipe = load_recipe(ROOT / "configs/Demo/SLOWFAST_DEMO.yaml", ["MULTIGRID.STAGES", table])
    assert list(schedule_of(recipe, 3000).steps()) == list(names["schedule"].steps())


def test_the_data_set_of_own_dataset_returns_the_wanted_clip(tmp_path: Path):
    text = (ROOT / "docs" / "own_dataset.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = dict[str, object]()
    exec(code, names)
    np.save(tmp_path / "video.npy", np.zeros((40, 90, 120, 3), np.uint8))
    clips = names["MyVideos"]([tmp_path / "video.npy"], [3], Shape(8, 16, 64), GENTLE.sampling)
    batch = collate([clips[ClipRequest(video=0, epoch=1, shape=Shape(24, 8, 32), iteration=5)]])
    assert batch["clips"].shape == (1, 8, 32, 32, 3)
    assert (batch["labels"].tolist(), batch["iteration"]) == ([3], 5)
