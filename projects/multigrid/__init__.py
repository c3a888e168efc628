"""Multigrid training of video models (Wu et al., CVPR 2020), usable with any training loop."""

from multigrid.batchnorm import (
    GroupedBatchNorm3d,
    average_running_stats,
    check_processes,
    convert_batchnorm,
    form_bn_process_groups,
    form_groups,
    group_order,
    possible_processes,
    set_group_size,
)
from multigrid.cost import Cost, baseline_cost, schedule_cost
from multigrid.cycles import GENTLE, PAPER, Cycles, recommend_cycles
from multigrid.errors import MultigridError
from multigrid.frame_clips import FrameClips
from multigrid.gradient_layout import fix_gradient_layout
from multigrid.grids import Grid, SamplingOptions, make_grid
from multigrid.learning_rate import (
    CosineRate,
    LearningRate,
    SteppedRate,
    Warmup,
    batch_rate_factor,
)
from multigrid.micro_batches import MicroBatch
from multigrid.phases import make_schedule
from multigrid.positions import (
    FollowsGrid,
    Patches,
    check_patches,
    convert_positions,
    place_positions,
    set_coverage,
)
from multigrid.prepare_step import MultigridLR, prepare_step
from multigrid.sampler import (
    Batch,
    MultigridBatchSampler,
    clip_numbers,
    collate,
    empty_clips,
    network_input,
    stream,
)
from multigrid.sampling import (
    ClipPlan,
    Sampling,
    Shown,
    Video,
    Window,
    clip_generator,
    plan_test,
    plan_train,
)
from multigrid.sampling_weights import balanced_weights
from multigrid.schedule import Phase, Schedule, ScheduleStep
from multigrid.shapes import ClipRequest, Shape, scale_shape
from multigrid.stages import Stage
from multigrid.training import Training

__all__ = [
    "GENTLE",
    "PAPER",
    "Batch",
    "ClipPlan",
    "ClipRequest",
    "CosineRate",
    "Cost",
    "Cycles",
    "FollowsGrid",
    "FrameClips",
    "Grid",
    "GroupedBatchNorm3d",
    "LearningRate",
    "MicroBatch",
    "MultigridBatchSampler",
    "MultigridError",
    "MultigridLR",
    "Patches",
    "Phase",
    "Sampling",
    "SamplingOptions",
    "Schedule",
    "ScheduleStep",
    "Shape",
    "Shown",
    "Stage",
    "SteppedRate",
    "Training",
    "Video",
    "Warmup",
    "Window",
    "average_running_stats",
    "balanced_weights",
    "baseline_cost",
    "batch_rate_factor",
    "check_patches",
    "check_processes",
    "clip_generator",
    "clip_numbers",
    "collate",
    "convert_batchnorm",
    "convert_positions",
    "empty_clips",
    "fix_gradient_layout",
    "form_bn_process_groups",
    "form_groups",
    "group_order",
    "make_grid",
    "make_schedule",
    "network_input",
    "place_positions",
    "plan_test",
    "plan_train",
    "possible_processes",
    "prepare_step",
    "recommend_cycles",
    "scale_shape",
    "schedule_cost",
    "set_coverage",
    "set_group_size",
    "stream",
]
