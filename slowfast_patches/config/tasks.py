"""Tasks, and the keys that each task determines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TaskKeys:
    """Keys that a task determines or restricts.

    Attributes:
        targets: Targets of one video in a data set for this task, such as "one label".
        switch: Key that selects the task, and the value that selects it.
        derived: Maps each key that the task determines to its only valid value. The loss and the
            activation must match. After training with softmax, sigmoid scores would depend on an
            arbitrary offset of the logits. Softmax scores of several labels cannot be compared
            between videos, as mAP requires.
        required: Maps each key that the task restricts to its valid values, with the default first,
            and the reason.
        pools_boxes: Whether the head pools features of boxes from the last feature map.
    """

    targets: str
    switch: tuple[str, bool]
    derived: Mapping[str, str]
    required: Mapping[str, tuple[tuple[Any, ...], str]] = field(default_factory=dict)
    pools_boxes: bool = False

    @property
    def defaults(self) -> dict[str, Any]:
        """Default values of the keys that the task determines or restricts."""
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
            "TEST.NUM_ENSEMBLE_VIEWS": ((1,), "a key frame has only one temporal view"),
            "DATA.CLIP_SAMPLING": (("auto", "stride"), "clips are centred on key frames"),
            "DATA.ENSEMBLE_METHOD": (("sum",), "the scores of a box are averaged over crops"),
            "MIXUP.ENABLE": ((False,), "boxes cannot be blended"),
            "AUG.ENABLE": ((False,), "augmentations do not transform boxes"),
            "SOLVER.CLASS_WEIGHTS": (((),), "class weights are not supported for boxes"),
            "TRAIN.COMPILE": ((False,), "clips have different numbers of boxes"),
        },
        pools_boxes=True,
    ),
}
"""Keys of all tasks by task name. `slowfast_patches.tasks` implements the tasks."""


def task_name(*, detects: bool, multi_label: bool) -> str:
    """Return the name of the task that DETECTION.ENABLE and DATA.MULTI_LABEL select."""
    if detects:
        return "detection"
    return "multi_label" if multi_label else "single_label"
