"""Batch sizes that keep the FLOPs or the seconds of an iteration constant."""

import json
from pathlib import Path

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.plan.flops import flops_per_clip
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.plan.step_times import model_of


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
