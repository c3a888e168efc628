"""Tests of files of step times: which recipes they fit, and the hours of a plan by hand."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from multigrid import Shape
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.experiments.variants import step_seconds_of
from slowfast_patches.plan import recipe_times, step_times
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.plan.recipe_times import (
    UNTIMED,
    find_times,
    measured_times,
    shapes_to_measure,
)
from slowfast_patches.plan.step_times import (
    MisfitError,
    clock_here,
    clock_of,
    model_of,
    read_step_times,
    step_times_content,
    time_row,
    write_step_times,
)
from slowfast_patches.utils.errors import UserError

ROWS = [
    ([8, 16, 64], 8, None, 90),
    ([32, 16, 32], 32, 32, 120),
    ([16, 16, 45], 16, 16, 135.0),
    ([8, 16, 64], 8, 8, 105),
]


@pytest.fixture
def recipe(short_cycle_recipe: Path) -> Path:
    return short_cycle_recipe


def content(cfg: Recipe, rows: list[tuple] = ROWS) -> dict[str, Any]:
    """Return the content of a file from the benchmark, including entries that are never read."""
    return {
        "command": "python benchmarks/step_time.py",
        "format": 1,
        "device": {"type": "cpu", "name": "Abacus 9"},
        "date": "2026-01-02T03:04:05+00:00",
        "model": model_of(cfg),
        "shapes": [
            {
                "shape": shape,
                "local_clips": clips,
                "bn_group_size": bn_group_size,
                "seconds": {"median": seconds},
            }
            for shape, clips, bn_group_size, seconds in rows
        ],
    }


def write(path: Path, data: object) -> Path:
    path.write_text(json.dumps(data))
    return path


@pytest.fixture
def times(tmp_path: Path, recipe: Path) -> Path:
    return write(tmp_path / "times.json", content(load_recipe(recipe)))


def test_the_plans_hours_by_hand(recipe, times, capsys, load_program):
    """8 × (120 + 135 + 105) s are 0.8 h; the baseline's 56 iterations of 90 s are 1.4 h."""
    assert (
        load_program("tools/plan.py").main(["--cfg", str(recipe), "--step-times", str(times)]) == 0
    )
    text = capsys.readouterr().out
    (line,) = [line for line in text.splitlines() if line.startswith("time ")]
    assert line.split() == ["time", "48", "min", "84", "min", "1.75×"]
    assert "Wall-clock speed-up: 1.75×, not counting data loading" in text
    assert f"{times}, measured on Abacus 9 (cpu), " in text


def test_a_time_holds_for_every_recipe_whose_processes_have_that_many_clips(recipe, times):
    """Three machines with 8 clips each train on 24, 48 and 96."""
    cfg = load_recipe(recipe, ["NUM_SHARDS", 3])
    timing = measured_times([times], cfg)
    assert timing.ours(Shape(96, 16, 32)) == 120
    assert timing.ours(Shape(24, 16, 64)) == 105
    assert timing.baseline(Shape(24, 16, 64)) == 90
    assert "without communication between the 3 processes" in timing.source


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["MODEL.NUM_CLASSES", 5], "for another model: MODEL.NUM_CLASSES 4 there, 5 here"),
        (["NUM_GPUS", 8], "device cpu there, cuda here"),
    ],
)
def test_times_of_another_recipe_are_refused_with_a_way_out(
    recipe, times, refused, load_program, overrides, message
):
    options = ["--cfg", str(recipe), "--dataset-size", "6400", "--step-times", str(times)]
    error = refused(load_program("tools/plan.py"), [*options, *map(str, overrides)])
    assert message in error
    assert "--step-seconds S" in error


def test_a_file_from_before_a_key_was_measured_at_its_default(recipe, tmp_path):
    """The file lacks TRAIN.COMPILE. The initial weights do not affect the speed."""
    old = content(load_recipe(recipe))
    del old["model"]["TRAIN.COMPILE"]
    found = read_step_times(write(tmp_path / "old.json", old))
    other = load_recipe(recipe, ["RESNET.ZERO_INIT_FINAL_BN", True, "MODEL.DROPOUT_RATE", 0.1])
    assert found.of_recipe(other)(Shape(16, 16, 45)) == 135
    with pytest.raises(MisfitError, match=r"TRAIN\.COMPILE False there, True here"):
        found.of_recipe(load_recipe(recipe, ["TRAIN.COMPILE", True]))


def test_of_several_files_each_recipe_takes_the_first_that_fits(recipe, tmp_path):
    """One file has the baseline, one has multigrid, and one is for another model."""
    cfg, other = load_recipe(recipe), load_recipe(recipe, ["MODEL.NUM_CLASSES", 9])
    paths = [
        write(tmp_path / "other.json", content(other)),
        write(tmp_path / "baseline.json", content(cfg, ROWS[:1])),
        write(tmp_path / "multigrid.json", content(cfg, ROWS[1:])),
    ]
    timing = measured_times(paths, cfg)
    assert (timing.ours(Shape(8, 16, 64)), timing.baseline(Shape(8, 16, 64))) == (105, 90)
    assert re.search(r"multigrid\.json.*baseline\.json", timing.source)
    with pytest.raises(
        MisfitError, match=r"other\.json is for another .*; .*baseline\.json has no"
    ):
        measured_times(paths[:2], cfg)


def test_what_is_written_is_read(recipe, tmp_path):
    """The benchmark adds entries to rows and files. A shape that did not fit has no time."""
    cfg = load_recipe(recipe)
    rows = [
        time_row(cfg, Shape(8, 16, 64), None, {"median": 0.5, "rounds": [0.5]}) | {"parts": {}},
        time_row(cfg, Shape(16, 16, 45), 16, None),
        time_row(cfg, Shape(32, 16, 32), 32, {"median": 0.25}),
    ]
    write_step_times(
        path := tmp_path / "new" / "times.json",
        step_times_content(cfg, torch.device("cpu"), rows) | {"command": "x"},
    )
    found = read_step_times(path)
    assert dict(found.seconds) == {(8, 16, 64, False): 0.5, (32, 16, 32, True): 0.25}
    assert (found.device, found.clock) == ("cpu", clock_here("cpu"))
    found.check_model(cfg)


@pytest.mark.parametrize(
    "other",
    [
        {"device": {"type": "cpu", "name": "Abacus 10"}},
        {"machine": {"threads": 2}},
        {"versions": {"torch": "1.0"}},
    ],
)
def test_times_of_two_machines_are_not_compared(recipe, tmp_path, other):
    cfg = load_recipe(recipe)
    paths = [
        write(tmp_path / "baseline.json", content(cfg, ROWS[:1])),
        write(tmp_path / "multigrid.json", content(cfg, ROWS[1:]) | other),
    ]
    variant = SimpleNamespace(name="multigrid", recipe=cfg)
    with pytest.raises(
        UserError, match=r"measured with .* and with .*, so they cannot be compared"
    ):
        step_seconds_of([variant], paths)


def test_what_is_measured_is_what_a_schedule_meets_and_the_baseline(tiny_config, tmp_path):
    """The tiny recipe has 32 × 4 × 16² with BN groups of 8 and 16. Only the smaller is measured."""
    cfg = tiny_config(tmp_path)
    found = shapes_to_measure(cfg)
    assert found[0] == (Shape(4, 8, 32), None)
    assert {shape for shape, _ in found} == set(schedule_of(cfg, 10**4).shapes)
    assert dict(found[1:])[Shape(32, 4, 16)] == 8


@pytest.mark.parametrize(
    ("given", "smallest"),
    [((4, 2), 2), ((2, 4), 2), ((4, None), 4), ((None, 4), 4), ((None, None), None)],
)
def test_of_several_bn_groups_of_a_shape_the_smallest_is_measured(given, smallest):
    """Without MULTIGRID.BN_BASE_SIZE, a stage without a size has the clips of a process."""
    rows = [{"shape": [8, 16, 64], "until": 10 * (n + 1)} for n in range(2)]
    rows = [row | ({"bn_group_size": n} if n else {}) for row, n in zip(rows, given, strict=True)]
    keys = ["TRAIN.BATCH_SIZE", 8, "SOLVER.MAX_EPOCH", 20, "MULTIGRID.BN_BASE_SIZE", 0]
    recipe = load_recipe(None, [*keys, "MULTIGRID.STAGES", rows])
    assert shapes_to_measure(recipe)[1:] == [(Shape(8, 16, 64), smallest)]


def test_a_recipe_without_times_has_none_and_one_with_a_misfit_is_told_what_to_do(recipe, times):
    cfg = load_recipe(recipe)
    assert find_times(cfg, None, []) is UNTIMED
    assert find_times(cfg, None, [times]).ours(Shape(16, 16, 45)) == 135
    other = load_recipe(recipe, ["MODEL.NUM_CLASSES", 5])
    with pytest.raises(UserError, match=r"another model: .*\. Measure .* with --step-seconds S"):
        find_times(other, None, [times])


def test_a_given_time_is_estimated_at_other_shapes_by_their_flops(recipe, times, monkeypatch):
    """A clip of 16 frames and 64² pixels has 65,536 pixels. One of 32² has a quarter of them."""
    monkeypatch.setattr(
        recipe_times, "flops_per_clip", lambda recipe: lambda frames, crop: frames * crop**2
    )
    found = find_times(load_recipe(recipe), 6.0, [times])
    assert found.ours(Shape(8, 16, 64)) == found.baseline(Shape(8, 16, 64)) == pytest.approx(6)
    assert found.ours(Shape(16, 16, 32)) == pytest.approx(3)
    assert found.source.startswith("an estimate, from 6 s at the baseline's shape")


@pytest.mark.parametrize(("machines", "is_told"), [(1, False), (2, True)])
def test_several_processes_have_communication_that_is_left_out(recipe, times, machines, is_told):
    found = measured_times([times], load_recipe(recipe, ["NUM_SHARDS", machines]))
    assert ("without communication between the 2 processes" in found.source) is is_told


def test_a_file_fits_if_it_has_all_shapes_of_a_recipe(recipe, tmp_path):
    cfg = load_recipe(recipe)
    for missing, said in ((1, "32×16×32²"), (2, "16×16×45²")):
        rows = [row for number, row in enumerate(ROWS) if number != missing]
        path = write(tmp_path / "times.json", content(cfg, rows))
        with pytest.raises(MisfitError, match=f"no time for {said}"):
            measured_times([path], cfg)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("cpu", "Abacus", 4, "2.0"), "Abacus (cpu), 4 threads, torch 2.0"),
        (
            ("cpu", "Abacus", None, None),
            "Abacus (cpu), an unknown number of threads, unknown torch",
        ),
        (("cuda", "H9", 4, "2.0"), "H9 (cuda), torch 2.0"),
    ],
)
def test_a_clock_is_told_by_its_device_and_what_changes_its_times(given, text):
    assert clock_of(*given) == text


def test_a_device_is_the_first_gpu_or_the_processor(monkeypatch):
    here = {"gpus": ["first", "second"], "processor": "Abacus"}
    monkeypatch.setattr(step_times, "machine", lambda: here)
    assert [step_times.device_name(device) for device in ("cuda", "cpu")] == ["first", "Abacus"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"format": 2}, r"is not a file of step times: it has no shapes"),
        ({"shapes": []}, r"has no shapes\. Measure them with --variants recipe"),
        ({"shapes": [{}]}, r"times\.json is not a file of step times"),
        ({"model": 3}, r"times\.json is not a file of step times"),
    ],
)
def test_a_file_that_is_none_of_step_times_is_named(recipe, tmp_path, changed, said):
    path = write(tmp_path / "times.json", content(load_recipe(recipe)) | changed)
    with pytest.raises(UserError, match=said):
        read_step_times(path)


def test_a_shape_that_was_not_measured_has_no_time(recipe, times):
    found = read_step_times(times)
    cfg = load_recipe(recipe, ["NUM_SHARDS", 2])
    with pytest.raises(MisfitError, match="no time for 4×16×64² with 2 clips per process"):
        found.of_recipe(cfg)(Shape(4, 16, 64))
    per_clip = found.seconds_per_clip(cfg)
    assert per_clip(16, 45) == 135 / 16
    with pytest.raises(MisfitError, match="no time for 16 frames of 46² pixels"):
        per_clip(16, 46)
    other = load_recipe(recipe, ["MODEL.NUM_CLASSES", 5])
    for look_up in (found.of_recipe, found.seconds_per_clip):
        with pytest.raises(MisfitError, match="for another model"):
            look_up(other)


def test_a_row_has_the_clips_of_a_process(recipe):
    cfg = load_recipe(recipe, ["NUM_SHARDS", 3])
    row = time_row(cfg, Shape(24, 16, 64), 8, None)
    assert (row["shape"], row["local_clips"], row["bn_group_size"]) == ([24, 16, 64], 8, 8)


@pytest.mark.parametrize(("gpus", "device"), [(0, "cpu"), (1, "cuda"), (2, "cuda")])
def test_a_recipe_trains_on_gpus_if_it_has_some(recipe, gpus, device):
    assert step_times.device_of(load_recipe(recipe, ["NUM_GPUS", gpus])) == device
