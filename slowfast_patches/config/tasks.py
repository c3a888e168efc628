"""Tasks, and the keys that follow from each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TaskKeys:
    """What a task means for the keys of a recipe.

    Attributes:
        targets: What the videos of a data set for this task have.
        switch: The key that tells the task from others, with its value.
        derived: Keys that follow from the task, with their only valid values. Sigmoid scores of a
            model trained with softmax depend on an offset that is not trained. Softmax scores of
            several labels cannot be compared between videos, as mAP does.
        required: Valid values of other keys, the default first, with the reason.
        pools_boxes: Whether the head pools boxes from the last feature map.
    """

    targets: str
    switch: tuple[str, bool]
    derived: Mapping[str, str]
    required: Mapping[str, tuple[tuple[Any, ...], str]] = field(default_factory=dict)
    pools_boxes: bool = False

    @property
    def defaults(self) -> dict[str, Any]:
        """Values of keys that a recipe for this task leaves out."""
        return {**self.derived, **{key: valid[0] for key, (valid, _) in self.required.items()}}


TASKS: Mapping[str, TaskKeys] = {
    "single_label": TaskKeys(
        "one label",
        ("DATA.MULTI_LABEL", False),
        {"MODEL.LOSS_FUNC": "cross_entropy", "MODEL.HEAD_ACT": "softmax"},
    ),
    "multi_label": TaskKeys(
        "several labels",
        ("DATA.MULTI_LABEL", True),
        {"MODEL.LOSS_FUNC": "bce_logit", "MODEL.HEAD_ACT": "sigmoid"},
    ),
    "detection": TaskKeys(
        "boxes",
        ("DETECTION.ENABLE", True),
        {"MODEL.LOSS_FUNC": "bce", "MODEL.HEAD_ACT": "sigmoid"},
        {
            "TEST.NUM_ENSEMBLE_VIEWS": ((1,), "a key frame has one clip along the video"),
            "DATA.CLIP_SAMPLING": (("auto", "stride"), "clips are centred on their key frame"),
            "DATA.ENSEMBLE_METHOD": (("sum",), "the scores of a box are averaged over crops"),
            "MIXUP.ENABLE": ((False,), "boxes cannot be blended"),
            "AUG.ENABLE": ((False,), "boxes do not follow the augmentation"),
            "SOLVER.CLASS_WEIGHTS": (((),), "class weights are not supported for boxes"),
            "TRAIN.COMPILE": ((False,), "clips have different numbers of boxes"),
        },
        pools_boxes=True,
    ),
}
"""All tasks by name. `slowfast_patches.tasks` has what they do."""


def task_name(*, detects: bool, multi_label: bool) -> str:
    """Return the task of a recipe with these values of DETECTION.ENABLE and DATA.MULTI_LABEL."""
    if detects:
        return "detection"
    return "multi_label" if multi_label else "single_label"
