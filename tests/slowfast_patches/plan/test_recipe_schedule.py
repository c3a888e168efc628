"""Batch sizes that keep the FLOPs or the seconds of an iteration constant."""

import json
from pathlib import Path

import pytest

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.plan.flops import flops_per_clip
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.plan.step_times import model_of
from slowfast_patches.utils.errors import UserError


def recipe(*overrides: object) -> Recipe:
    return load_recipe(Path("configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml"), list(overrides))


def test_flops_are_level_to_half_a_bn_group():
    level = recipe("MULTIGRID.BATCH_BY", "flops")
    flops = flops_per_clip(level)
    schedule = schedule_of(level, 640)
    wanted = schedule.base.batch * flops(schedule.base.frames, schedule.base.crop)
    assert len(schedule.shapes) == 8
    for shape in schedule.shapes:
        per_clip = flops(shape.frames, shape.crop)
        assert abs(shape.batch * per_clip - wanted) <= 4 * per_clip
        assert shape.batch % 8 == 0
    [coarsest, *_] = schedule.phases
    assert coarsest.lr_scale == coarsest.base_shape.batch / 8
    assert schedule.shapes != schedule_of(recipe(), 640).shapes


def test_seconds_are_level_by_the_steps_with_the_most_clips(tmp_path):
    """A clip of 16 frames takes 0.1 s, and a shorter clip half of that, at any crop size."""
    path = tmp_path / "times.json"
    level = recipe("MULTIGRID.BATCH_BY", str(path))
    shapes = schedule_of(recipe(), 640).shapes
    rows = [
        {
            "shape": [shape.batch, shape.frames, shape.crop],
            "local_clips": clips,
            "bn_group_size": 8,
            "seconds": {"median": clips * (0.1 if shape.frames == 16 else 0.05) + slow},
        }
        for shape in shapes
        for clips, slow in ((shape.batch, 0.0), (1, 1.0))  # a clip alone is slow
    ]
    content = {"format": 1, "device": {"type": "cpu", "name": "x"}, "date": "today"}
    path.write_text(json.dumps(content | {"model": model_of(level), "shapes": rows}))
    found = {(s.frames, s.crop): s.batch for s in schedule_of(level, 640).shapes}
    assert {batch for (frames, _), batch in found.items() if frames == 16} == {8}
    assert {batch for (frames, _), batch in found.items() if frames < 16} == {16}


def test_the_rates_of_the_solver_are_those_of_stages_without_a_rate():
    """640 videos in mini-batches of 8 are 80 iterations an epoch."""

    def rates(*rows: dict[str, object], steps: tuple[float, ...] = (0, 2)) -> list[float]:
        keys = ["SOLVER.LR_POLICY", "steps_with_relative_lrs", "SOLVER.WARMUP_EPOCHS", 0]
        keys += ["SOLVER.STEPS", steps, "SOLVER.LRS", (1, 0.1)]
        keys += ["SOLVER.BASE_LR", 0.5, "SOLVER.MAX_EPOCH", 3, "MULTIGRID.STAGES", list(rows)]
        schedule = schedule_of(load_recipe(None, ["TRAIN.BATCH_SIZE", 8, *keys]), 640)
        return [schedule.at(iteration).lr for iteration in (0, 80, 160)]

    shape = {"shape": [8, 16, 64]}
    first, last = {**shape, "until": 1}, {**shape, "until": 3}
    assert rates(last) == pytest.approx([0.5, 0.5, 0.05])
    assert rates({**first, "rate": 0.2}, last) == pytest.approx([0.2, 0.5, 0.05])
    given = [{**first, "rate": 0.2}, {**last, "rate": 0.3}]
    assert rates(*given) == pytest.approx([0.2, 0.3, 0.3])
    # Keys that no stage needs are not looked at.
    assert rates(*given, steps=(0, 1, 2)) == pytest.approx([0.2, 0.3, 0.3])
    with pytest.raises(ValueError, match=r"SOLVER.LRS .* must have one value per step"):
        rates(*given[:1], last, steps=(0, 1, 2))


@pytest.mark.parametrize(("size", "is_valid"), [(0, True), (4, True), (3, False), (8, True)])
def test_the_batch_of_a_baseline_divides_into_its_bn_groups(size: int, is_valid: bool):
    keys = ["TRAIN.BATCH_SIZE", 8, "BN.GROUP_SIZE", size, "SOLVER.STEPS", (0,)]
    made = load_recipe(None, [*keys, "SOLVER.LRS", (1,)])
    if is_valid:
        assert schedule_of(made, 64).phases[0].bn_group_sizes == (size or None,)
        return
    said = (
        r"batch of 8 clips .TRAIN.BATCH_SIZE 8 × NUM_SHARDS 1. .*groups of 3.*BN\.GROUP_SIZE to a"
    )
    with pytest.raises(UserError, match=said):
        schedule_of(made, 64)
