"""Keys of TSM."""

from __future__ import annotations

from dataclasses import dataclass

from slowfast_patches.config.fields import Check, ExtraKeys, only_with, speed_key

_SHIFT = Check(lambda value: value == 0 or value >= 2, "2 or more, or 0 for no shift")


@dataclass(frozen=True)
class TsmKeys(ExtraKeys):
    shift_div: int = speed_key(
        8,
        "Shift 1/SHIFT_DIV of the channels one frame backward, and the same number of channels one "
        "frame forward. 0 means no shift.",
        _SHIFT,
        needs=only_with("MODEL.ARCH", "tsm"),
    )
