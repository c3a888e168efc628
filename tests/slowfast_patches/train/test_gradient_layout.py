"""Three processes that resume take the steps of an uninterrupted training, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

from multigrid import Schedule, clip_numbers, convert_batchnorm, form_groups
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.launch.device import with_precision
from slowfast_patches.models.build_model import build_model
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.train import parallel
from slowfast_patches.train.dry_run import made_up_batch
from slowfast_patches.train.parallel import in_parallel
from slowfast_patches.train.step import Stepper
from tests.conftest import assert_same_bits, one_block

pytestmark = pytest.mark.slow("starts processes")

PROCESSES = 3
CPU = torch.device("cpu")
CASES: dict[str, tuple[object, ...]] = {
    "BN groups of all processes": (
        *("MULTIGRID.BN_BASE_SIZE", 6, "MULTIGRID.LONG_CYCLE", False, "MODEL.EMA_DECAY", 0.9),
        *("TRAIN.FREEZE", ["s1", "s3"], "MODEL.ACT_CHECKPOINT", True),
    ),
    "micro-batches": (
        *("TRAIN.BATCH_SIZE", 4 * PROCESSES, "SOLVER.ACCUMULATION_STEPS", 2),
        *("SOLVER.CLIP_GRAD_L2NORM", 0.1, "TRAIN.MIXED_PRECISION", True),
    ),
}


@pytest.fixture(autouse=True)
def _one_block() -> Iterator[None]:
    with one_block():
        yield


def take_steps(
    recipe: Recipe, schedule: Schedule, rank: int, left: int, state: dict[str, Any] | None
) -> dict[int, dict[str, Any]]:
    """Train the last iterations of a schedule, and return the state after each of them."""
    torch.manual_seed(0)
    stepper = Stepper(recipe, convert_batchnorm(build_model(recipe)), CPU)
    if state is not None:
        stepper.load_state_dict(state)
    stepper.network = in_parallel(stepper.network, CPU)
    states = {}
    for step in schedule.steps(schedule.iterations - left):
        clips = clip_numbers(step, rank, PROCESSES)
        own_noise = recipe.replaced({"RNG_SEED": 10 * step.iteration + rank})
        stepper(step, made_up_batch(own_noise, len(clips), step.shape), clips)
        states[step.iteration] = tree_map_only(Tensor, Tensor.clone, stepper.state_dict())
    return states


def resume(rank: int, recipes: dict[str, Recipe]) -> None:
    dist.init_process_group("gloo")
    for case, asked in recipes.items():
        recipe = with_precision(asked, False)
        schedule = schedule_of(recipe, 96)
        form_groups(schedule)
        whole = take_steps(recipe, schedule, rank, 3, None)
        resumed = take_steps(recipe, schedule, rank, 2, whole[schedule.iterations - 3])
        assert_same_bits(resumed, {i: whole[i] for i in resumed}, case)
    dist.destroy_process_group()


def recipes_of(tiny_config: Any, folder: Path, cases: dict[str, Any]) -> dict[str, Recipe]:
    small = ("MULTIGRID.BN_BASE_SIZE", 2, "TRAIN.BATCH_SIZE", 2 * PROCESSES)
    return {case: tiny_config(folder, *small, *keys) for case, keys in cases.items()}


def test_three_processes_resume_as_if_uninterrupted(run_ranks, tiny_config, tmp_path):
    run_ranks(PROCESSES, resume, recipes_of(tiny_config, tmp_path, CASES))


def test_the_comparison_notices_the_layout_of_ddp(run_ranks, tiny_config, tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "fix_gradient_layout", lambda network: None)
    case = {"plain": ()}
    with pytest.raises(Exception, match=r"AssertionError: plain\.\d+\.model_state"):
        run_ranks(PROCESSES, resume, recipes_of(tiny_config, tmp_path, case))
