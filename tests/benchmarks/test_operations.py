"""Tests of benchmarks/operations.py: what is counted, and ceilings for training steps."""

from __future__ import annotations

import pytest
import torch
from steps.case import checked_recipe
from steps.count import _Counting, total

from multigrid import Shape

RECIPES = "configs/Kinetics/{}_MULTIGRID.yaml"
VIDEOMAE = ["HF.MODEL", "videomae", "HF.CONFIG", "{'num_hidden_layers': 4}"]
KEYS = ["NUM_GPUS", "0", "TRAIN.BATCH_SIZE", "8", "DATA.PATH_TO_DATA_DIR", "/x"]


def test_operations_with_values_are_counted_and_views_are_not():
    x = torch.ones(2, 3, device="meta")
    with _Counting() as counting:
        y = torch.empty_like(x).copy_(x).view(3, 2).t()[:1]
        torch._foreach_add_([x, y], 1.0)
    assert counting.counts == {("input", "copy_"): 1, ("input", "_foreach_add_"): 1}
    counting.mark("input")
    with counting:
        x.sum()
    assert total(counting.counts, "forward") == 1


@pytest.mark.slow("counts the operations of whole networks")
@pytest.mark.parametrize(
    ("name", "keys", "one_group", "several"),
    [
        ("SLOWFAST_8x8_R50", ["MODEL.EMA_DECAY", "0.999"], 752, 761),
        ("SLOWFAST_8x8_R50", ["MODEL.CHANNELS_LAST", "True"], 750, 1089),
        ("SLOWFAST_8x8_R50", ["SOLVER.ACCUMULATION_STEPS", "3"], None, 2400),
        ("I3D_8x8_R50_1GPU", [], 371, 380),
        ("I3D_NL_16x4_R50", ["MODEL.EMA_DECAY", "0.999"], 495, 504),
        ("TSM_8x8_R50", ["MODEL.EMA_DECAY", "0.999"], 477, 486),
        ("VIDEOMAE_B_16x4", [*VIDEOMAE, "SOLVER.ACCUMULATION_STEPS", "3"], None, 1429),
    ],
)
def test_a_step_has_no_more_operations_than_this(load_program, name, keys, one_group, several):
    """A layer that does alone what all layers could do together adds an operation per layer."""
    program = load_program("benchmarks/operations.py")
    like_gpu = ["TRAIN.MIXED_PRECISION", "True", "SOLVER.FUSED", "True"]
    recipe = checked_recipe(RECIPES.format(name), [*like_gpu, *KEYS, *keys])
    bn_group_size = 8 if recipe.model.has_batchnorm else None
    shapes = [(Shape(24, 8, 32), bn_group_size)] + [(Shape(8, 8, 32), None)] * (
        one_group is not None
    )
    rows = program.count_recipe(recipe, shapes, has_host=False)
    ceilings = [several, one_group]
    totals = [row["total"] for row in rows]
    assert all(n <= most for n, most in zip(totals, ceilings, strict=False)), (totals, rows)


@pytest.mark.slow("counts the operations of whole networks")
def test_the_program_prints_both_steps_and_fails_above_a_limit(load_program, tiny_recipe, capsys):
    program = load_program("benchmarks/operations.py")
    off = ["MULTIGRID.LONG_CYCLE", "False", "MULTIGRID.SHORT_CYCLE", "False"]
    assert program.main(["--cfg", str(tiny_recipe), "--most", "100", *off]) == 1
    printed = capsys.readouterr()
    assert "PySlowFast" in printed.out
    assert "more than 100" in printed.err
