"""Multigrid training of video models (Wu et al., CVPR 2020), usable with any training loop."""

from multigrid.batchnorm import (
    GroupedBatchNorm3d,
    average_running_stats,
    check_processes,
    convert_batchnorm,
    form_groups,
    form_neighbours,
    group_order,
    possible_processes,
    set_group_size,
)
from multigrid.cost import Cost, baseline_cost, schedule_cost
from multigrid.learning_rate import CosineRate, LearningRate, SteppedRate, Warmup
from multigrid.sampler import (
    Batch,
    ClipRequest,
    MultigridBatchSampler,
    clip_numbers,
    collate,
    empty_clips,
    stream,
)
from multigrid.sampling import (
    Box,
    ClipPlan,
    Grid,
    Video,
    clip_generator,
    make_grid,
    plan_test,
    plan_train,
)
from multigrid.schedule import Phase, Schedule, Step, make_schedule
from multigrid.shapes import LONG_CYCLE, SHORT_CYCLE, Shape, scale_shape
from multigrid.training import MultigridLR, Training

__all__ = [
    "LONG_CYCLE",
    "SHORT_CYCLE",
    "Batch",
    "Box",
    "ClipPlan",
    "ClipRequest",
    "CosineRate",
    "Cost",
    "Grid",
    "GroupedBatchNorm3d",
    "LearningRate",
    "MultigridBatchSampler",
    "MultigridLR",
    "Phase",
    "Schedule",
    "Shape",
    "Step",
    "SteppedRate",
    "Training",
    "Video",
    "Warmup",
    "average_running_stats",
    "baseline_cost",
    "check_processes",
    "clip_generator",
    "clip_numbers",
    "collate",
    "convert_batchnorm",
    "empty_clips",
    "form_groups",
    "form_neighbours",
    "group_order",
    "make_grid",
    "make_schedule",
    "plan_test",
    "plan_train",
    "possible_processes",
    "scale_shape",
    "schedule_cost",
    "set_group_size",
    "stream",
]
