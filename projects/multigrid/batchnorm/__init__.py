"""Batch normalisation over a fixed number of clips, on one process or several."""

from multigrid.batchnorm.module import (
    GroupedBatchNorm3d,
    convert_batchnorm,
    group_order,
    set_group_size,
)
from multigrid.batchnorm.process_groups import (
    check_accumulation,
    check_processes,
    form_groups,
    possible_processes,
)
from multigrid.batchnorm.shared import (
    average_running_stats,
    channel_moments,
    form_bn_process_groups,
)

__all__ = [
    "GroupedBatchNorm3d",
    "average_running_stats",
    "channel_moments",
    "check_accumulation",
    "check_processes",
    "convert_batchnorm",
    "form_bn_process_groups",
    "form_groups",
    "group_order",
    "possible_processes",
    "set_group_size",
]
