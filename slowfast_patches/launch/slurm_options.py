"""Options of SLURM jobs on the command line. This module must not import slow packages."""

import argparse
from collections.abc import Callable
from typing import Any

from slowfast_patches.utils.command_line import (
    above_zero,
    add_option,
    at_least_one,
    from_zero,
    key_value,
    option_of,
)

HOURS, CPUS, REQUEUES, WARNING_SECONDS = 24.0, 8, 50, 120
"""Defaults of the options, and of the attributes of `slurm.Slurm` with these names."""
DEFAULTS: dict[str, float] = {
    "hours": HOURS,
    "cpus": CPUS,
    "requeues": REQUEUES,
    "warning_seconds": WARNING_SECONDS,
}
OPTIONS: dict[str, str] = {
    "hours": "hours after which a job saves a checkpoint and is requeued",
    "cpus": "number of CPU cores per GPU, or per machine without GPUs",
    "requeues": "number of restarts after which a job does not requeue itself again",
    "warning_seconds": "seconds before the time limit at which the job is told to save a "
    "checkpoint; they must be enough for one iteration and the checkpoint",
}
"""Maps attributes of `slurm.Slurm` to the help texts of their options."""


_KINDS: dict[str, Callable[[str], float]] = {"hours": above_zero, "requeues": from_zero}
"""Types of the options that are not whole numbers of at least 1."""


def add_slurm_options(parser: argparse.ArgumentParser, partition: str, **more: Any) -> None:
    """Add the options of SLURM jobs.

    Args:
        parser: The parser.
        partition: Name of the option for the partition.
        **more: Other arguments of `add_argument` for this option.
    """
    group = parser.add_argument_group("SLURM jobs")
    text = "partition of the jobs"
    add_option(group, partition, "PARTITION", text, dest="partition", **more)
    for name, text in OPTIONS.items():
        default = DEFAULTS[name]
        kind = _KINDS.get(name, at_least_one)
        add_option(group, option_of(name), "N", f"{text} (default: {default:g})", kind)
    text = "additional option of sbatch, such as account=vision; can be repeated"
    add_option(group, "--option", "KEY=VALUE", text, key_value, action="append", dest="options")
