"""PySlowFast 1.0's loop trains at the schedule's shapes.

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
VIDEOS = 8
PAIRS = ["TRAIN.BATCH_SIZE", "4", "MULTIGRID.BN_BASE_SIZE", "4", "SOLVER.MAX_EPOCH", "10"]
PAIRS += ["SOLVER.STEPS", "[0, 7]", "MULTIGRID.LONG_CYCLE_FACTORS", "[[0.5, 0.71], [1.0, 1.0]]"]
PAIRS += ["RESNET.NUM_BLOCK_TEMP_KERNEL", "[[1, 1], [1, 1], [1, 1], [1, 1]]"]


def run_as_rank(rank, folder, data, one_block) -> None:
    """Run the example; write down the shapes that the network was given."""
    os.chdir(folder)
    shapes, convert = [], PySlowFastMultigrid.convert

    def noting_convert(self, model):
        converted = convert(self, model)
        model.register_forward_pre_hook(
            lambda _, inputs: shapes.append([model.training, *inputs[0][-1].shape])
        )
        return converted

    PySlowFastMultigrid.convert = noting_convert
    sys.argv = [EXAMPLE.name, str(folder), "DATA.PATH_PREFIX", str(data), *PAIRS]
    with Path(f"{rank}.log").open("w") as said, contextlib.redirect_stdout(said), one_block():
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert is_initialized()
    Path(f"{rank}.json").write_text(json.dumps(shapes))


def test_the_example_trains_what_the_trainer_would_on_two_processes(
    demo_data: Path,
    tmp_path: Path,
    run_ranks: Callable[..., None],
    one_block: Callable[[], contextlib.AbstractContextManager[None]],
):
    for split in ("train", "val"):
        lines = (demo_data / f"{split}.csv").read_text().splitlines()[:VIDEOS]
        (tmp_path / f"{split}.csv").write_text("".join(f"{line}\n" for line in lines))
    run_ranks(2, run_as_rank, tmp_path, demo_data, one_block)
    schedule = schedule_of(load_recipe(EXAMPLE.with_suffix(".yaml"), PAIRS), VIDEOS)
    shapes = [step.shape for step in schedule.steps()]
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        trained = [shape for is_training, *shape in found if is_training]
        assert trained == [[s.batch // 2, 3, s.frames, s.crop, s.crop] for s in shapes]
        tested = {tuple(shape[1:]) for is_training, *shape in found if not is_training}
        assert tested == {(3, 8, 32, 32)}, "evaluations are at the baseline's shape"
    assert '"_type": "val_epoch", "epoch": "8/8"' in (tmp_path / "0.log").read_text()
