"""Properties of models, data sets and tasks, which their registration states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slowfast_patches.utils.errors import UserError


@dataclass(frozen=True)
class ModelSpec:
    """Properties of an architecture.

    Attributes:
        pathways: Number of input pathways: 1, or 2 for a slow and a fast pathway.
        is_resnet: Whether the model is a PySlowFast ResNet, configured by RESNET and NONLOCAL.
        has_batchnorm: Whether the model may have BN layers.
        compiles: Whether torch.compile can compile the model to a single graph.
        is_cast: Whether all weights are used by operations that autocast casts, so that they can be
            cast once an iteration. This is unknown for a registered model.
        undecayed_axes: Numbers of axes of the parameters without weight decay, if
            SOLVER.ZERO_WD_1D_PARAM is True.
        without_effect: Maps each key that has no effect on the model to the reason.
        check: Function (recipe) that raises ValueError if the model cannot be built or trained.
        depths: Function (model) that returns the depth of each parameter, for SOLVER.LAYER_DECAY.
        weight_files: Function (recipe) that returns the files of initial weights that other keys
            than TRAIN.CHECKPOINT_FILE_PATH name, or None if the initial weights are random.
        of_folder: Function (recipe, folder) that returns the recipe for a model whose folder has
            been published and is now at `folder`.
        published: Function (model, recipe, class names) that returns the recipe to publish with the
            weights, and the content of JSON files by name, with which other programs load the
            model.
        build: The registered class or function, which takes a `Recipe` and returns the model.
    """

    pathways: int = 1
    is_resnet: bool = False
    has_batchnorm: bool = True
    compiles: bool = True
    is_cast: bool = False
    undecayed_axes: tuple[int, ...] = (0, 1)
    without_effect: Mapping[str, str] = field(default_factory=dict)
    check: Callable[[Any], None] | None = None
    depths: Callable[[Any], Any] | None = None
    weight_files: Callable[[Any], Sequence[Path] | None] | None = None
    of_folder: Callable[[Any, Path], Any] | None = None
    published: Callable[..., Any] | None = None
    build: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.pathways not in (1, 2):
            raise UserError(f"pathways is {self.pathways!r}, but a model has 1 or 2 pathways")

    @property
    def input_channels(self) -> list[int]:
        """Number of channels of the clips, which are RGB, in each pathway."""
        return [3] * self.pathways


@dataclass(frozen=True)
class DatasetSpec:
    """Properties of a data set. The default values fit Kinetics. Functions take a `Recipe`.

    Attributes:
        path: Function (recipe, split) that returns the path of the file that lists the split. By
            default, this is train.csv, val.csv or test.csv in DATA.PATH_TO_DATA_DIR.
        read: Function (recipe, path, split) that reads the videos of a split from the list at
            `path`. By default, the list has a line "path label" for each video.
        classes: Function (recipe) that reads the class names, or returns None if there is no file
            of class names. By default, the file is classes.json or classes.txt beside the list.
        task: Name of a registered task, which determines the form of the labels.
        flip_keeps_label: Whether a clip keeps its label when it is flipped horizontally.
        segments: How frames are sampled if DATA.CLIP_SAMPLING is "auto". If true, divide the video
            into equal segments and take one frame from each. If false, take frames at a fixed
            stride.
        counts_frames: Whether strides count frames of the video, regardless of the frame rate.
        views_to_end: Whether the last of several test views ends with the last frame of the video.
            In PySlowFast, it ends earlier.
        build: Function (recipe, split) that builds the torch data set. Without `read`, the data set
            has no lists, and its attribute `videos` replaces them.
        files: Function (recipe, split) that returns the other files that the score on a split
            depends on, such as annotations that `read` does not read.
    """

    path: Callable[[Any, str], Path] | None = None
    read: Callable[[Any, Path, str], Sequence[Any]] | None = None
    classes: Callable[[Any], tuple[str, ...] | None] | None = None
    task: str = "single_label"
    flip_keeps_label: bool = True
    segments: bool = False
    counts_frames: bool = False
    views_to_end: bool = False
    build: Callable[[Any, str], Any] | None = None
    files: Callable[[Any, str], Sequence[Path]] | None = None

    @property
    def has_lists(self) -> bool:
        return self.build is None or self.read is not None


@dataclass(frozen=True)
class TaskSpec:
    """Properties of a task, and the keys that it determines or restricts.

    Attributes:
        targets: Targets of one video in a data set for this task, such as "one label".
        switch: Key that selects the task, and the value that selects it. By default, the key
            DATA.TASK with the name of the task.
        derived: Maps each key that the task determines to its only valid value. The loss and the
            activation must match. After training with softmax, sigmoid scores would depend on an
            arbitrary offset of the logits. Softmax scores of several labels cannot be compared
            between videos, as mAP requires.
        required: Maps each key that the task restricts to its valid values, with the default first,
            and the reason.
        multi_label: Whether labels are vectors (classes,) instead of class indices.
        metrics: Names of the metrics in result files, with the primary metric first.
        scores_clips: Whether the network takes only clips, and returns one row of scores for each.
        check: Function (recipe) that raises ValueError if the recipe cannot be used for the task.
        build: The registered class, a subclass of `slowfast_patches.tasks.Task`.
    """

    targets: str = "labels of another form"
    switch: tuple[str, object] = ("DATA.TASK", "")
    derived: Mapping[str, str] = field(default_factory=dict)
    required: Mapping[str, tuple[tuple[Any, ...], str]] = field(default_factory=dict)
    multi_label: bool = False
    metrics: tuple[str, ...] = ("top1", "top5")
    scores_clips: bool = True
    check: Callable[[Any], None] | None = None
    build: Callable[[Any], Any] | None = None

    @property
    def defaults(self) -> dict[str, Any]:
        """Default values of the keys that the task determines or restricts."""
        return {**self.derived, **{key: valid[0] for key, (valid, _) in self.required.items()}}
