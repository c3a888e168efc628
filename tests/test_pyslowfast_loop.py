"""PySlowFast 1.0's loop under multigrid trains the trainer's schedule, on one process and two."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed import is_initialized

from multigrid import GroupedBatchNorm3d
from multigrid.integrations.pyslowfast import PySlowFastMultigrid
from slowfast_patches.config import load_recipe
from slowfast_patches.config.schedule import recipe_at, schedule_of

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[1] / "examples" / "pyslowfast_loop.py"
KEYS = ("TRAIN.BATCH_SIZE", "DATA.NUM_FRAMES", "DATA.TRAIN_CROP_SIZE", "SOLVER.BASE_LR")
PAIRS = ["TRAIN.BATCH_SIZE", "4", "MULTIGRID.BN_BASE_SIZE", "4", "MULTIGRID.EPOCH_FACTOR", "2.0"]
PAIRS += ["SOLVER.MAX_EPOCH", "6", "SOLVER.STEPS", "[0, 4]", "TRAIN.EVAL_PERIOD", "6"]


def run_as_rank(rank, folder, processes, data, one_block, pairs) -> None:
    """Run the example; write down what each iteration had."""
    os.chdir(folder)
    steps, shapes, begin = [], [], PySlowFastMultigrid.begin
    convert = PySlowFastMultigrid.convert

    def noting_begin(self, cfg, optimizer):
        step = begin(self, cfg, optimizer)
        norms = [m for m in self.training.model.modules() if isinstance(m, GroupedBatchNorm3d)]
        (size,) = {norm.group_size for norm in norms}
        (rate,) = {group["lr"] for group in optimizer.param_groups}
        steps.append([step.iteration, rate, size, [value_of(cfg, key) for key in KEYS]])
        return step

    def noting_convert(self, model):
        model.register_forward_pre_hook(lambda _, inputs: shapes.append(shape_of(inputs, model)))
        return convert(self, model)

    PySlowFastMultigrid.begin, PySlowFastMultigrid.convert = noting_begin, noting_convert
    sys.argv = [EXAMPLE.name, str(data), *pairs]
    with Path(f"{rank}.log").open("w") as said, contextlib.redirect_stdout(said), one_block():
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert is_initialized() == (processes > 1)
    Path(f"{rank}.json").write_text(json.dumps({"steps": steps, "shapes": shapes}))


def value_of(cfg, name):
    section, key = name.split(".")
    return getattr(getattr(cfg, section), key)


def shape_of(inputs, model):
    """Clips, frames and crop of the fast pathway; whether it is training."""
    clips, _, frames, height, width = inputs[0][-1].shape
    return [clips, frames, height, width, model.training]


@pytest.mark.parametrize("processes", [1, 2])
def test_the_example_trains_what_the_trainer_would(
    processes: int,
    demo_data: Path,
    tmp_path: Path,
    run_ranks: Callable[..., None],
    one_block: Callable[[], contextlib.AbstractContextManager[None]],
):
    pairs = [*PAIRS, "RESNET.NUM_BLOCK_TEMP_KERNEL", "[[1, 1], [1, 1], [1, 1], [1, 1]]"]
    run_ranks(processes, run_as_rank, tmp_path, processes, demo_data, one_block, pairs)
    recipe = load_recipe(EXAMPLE.with_suffix(".yaml"), pairs)
    schedule = schedule_of(recipe, 24)
    for rank in range(processes):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        trained = [shape[:4] for shape in found["shapes"] if shape[4]]
        for step, said, shape in zip(schedule.steps(), found["steps"], trained, strict=True):
            wanted = recipe_at(recipe, schedule, step.iteration)
            assert said == [step.iteration, step.lr, step.bn_size, [wanted[key] for key in KEYS]]
            batch, frames, crop = step.shape.batch, step.shape.frames, step.shape.crop
            assert shape == [batch // processes, frames, crop, crop]
        seen = {tuple(shape[1:4]) for shape in found["shapes"] if not shape[4]}
        assert seen == {(8, 32, 32)}, "evaluations are at the baseline's shape"
    said = (tmp_path / "0.log").read_text()
    assert '"_type": "val_epoch", "epoch": "12/12"' in said
