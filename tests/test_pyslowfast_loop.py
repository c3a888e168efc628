"""PySlowFast 1.0's loop trains at the schedule's shapes, on one process and two.

What each iteration has beside its shape is tested in tests/multigrid/test_pyslowfast.py.
"""

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

from multigrid.integrations.pyslowfast import PySlowFastMultigrid
from slowfast_patches.config import load_recipe
from slowfast_patches.plan.recipe_schedule import schedule_of

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[1] / "examples" / "pyslowfast_loop.py"
PAIRS = ["TRAIN.BATCH_SIZE", "4", "MULTIGRID.BN_BASE_SIZE", "4", "SOLVER.MAX_EPOCH", "5"]
PAIRS += ["SOLVER.STEPS", "[0, 4]", "TRAIN.EVAL_PERIOD", "4"]


def run_as_rank(rank, folder, data, one_block, pairs) -> None:
    """Run the example; write down the shapes that the network was given."""
    os.chdir(folder)
    shapes, convert = [], PySlowFastMultigrid.convert

    def noting_convert(self, model):
        converted = convert(self, model)
        model.register_forward_pre_hook(lambda _, inputs: shapes.append(shape_of(inputs, model)))
        return converted

    PySlowFastMultigrid.convert = noting_convert
    sys.argv = [EXAMPLE.name, str(data), *pairs]
    with Path(f"{rank}.log").open("w") as said, contextlib.redirect_stdout(said), one_block():
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert is_initialized() == ("RANK" in os.environ)
    Path(f"{rank}.json").write_text(json.dumps(shapes))


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
    run_ranks(processes, run_as_rank, tmp_path, demo_data, one_block, pairs)
    schedule = schedule_of(load_recipe(EXAMPLE.with_suffix(".yaml"), pairs), 24)
    for rank in range(processes):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        trained = [shape for *shape, training in found if training]
        shapes = [step.shape for step in schedule.steps()]
        assert trained == [[s.batch // processes, s.frames, s.crop, s.crop] for s in shapes]
        tested = {tuple(shape) for _, *shape, training in found if not training}
        assert tested == {(8, 32, 32)}, "evaluations are at the baseline's shape"
    said = (tmp_path / "0.log").read_text()
    assert '"_type": "val_epoch", "epoch": "7/7"' in said
