"""Registries of models, data sets, tasks and augmentations, by their names in recipes.

The package registers its own entries with the same functions as users. Call them in a module of
yours, and name the module in the config key IMPORTS.

The extras, which are the folders of slowfast_patches/extras, register themselves. Their
`__init__.py` describes what they add, and imports nothing else of the extra than its keys: `Lazy`
imports the functions when they are called. No other code names an extra.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from slowfast_patches import extras
from slowfast_patches.utils.blame import register_role
from slowfast_patches.utils.errors import UserError

__all__ = [
    "DatasetSpec",
    "ModelSpec",
    "TaskSpec",
    "register_augmentation",
    "register_dataset",
    "register_model",
    "register_task",
]

T = TypeVar("T")

BUILT_IN = (
    "slowfast_patches.models.build",
    "slowfast_patches.datasets.lists.dataset_lists",
    "slowfast_patches.tasks.task",
)
"""Modules that register the entries of the core. The first lookup of a name imports them."""

Augment = Callable[[NDArray[np.uint8], np.random.Generator], NDArray[np.uint8]]
"""Function that takes a training clip (T, S, S, 3) and a random generator, and returns a clip of
the same shape."""


class Registry(Mapping[str, T]):
    """Entries by name, in the order of their registration.

    Args:
        kind: Noun for an entry in error messages, such as "model".
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.entries = dict[str, T]()

    def add(self, name: str, entry: T) -> None:
        """Register an entry.

        Raises:
            ValueError: The name is taken, or has invalid characters.
        """
        if name in self.entries or not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
            raise UserError(
                f"{name!r} cannot be the name of a new {self.kind}: it is taken, or has characters "
                "other than letters, digits, '_', '.' and '-', with a letter first."
            )
        self.entries[name] = entry
        register_role(self.kind, name, entry)

    def find(self, name: str, key: str, advice: str = "") -> T:
        """Return the entry that a key of the recipe names.

        Args:
            name: Value of the key.
            key: Name of the key, for the error message.
            advice: Further advice for the error message.

        Raises:
            ValueError: No entry has this name.
        """
        if name not in self:
            raise UserError(
                f"{key} is {name!r}, but the registered {self.kind}s are {', '.join(self)}."
                f"{advice} If your module registers the {self.kind}, add --import MODULE."
            )
        return self[name]

    def __getitem__(self, name: str) -> T:
        import_built_in()
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        import_built_in()
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


@cache
def import_built_in() -> None:
    """Import the modules that register the entries of the package.

    This happens at the first lookup, because the modules themselves import this module.
    """
    for module in BUILT_IN:
        import_module(module)
    import_extras()


@cache
def import_extras() -> None:
    """Let all extras register themselves."""
    for module in iter_modules(extras.__path__, f"{extras.__name__}."):
        import_module(module.name)


@dataclass(frozen=True)
class Lazy:
    """Function that imports another one when it is called, and calls it.

    Attributes:
        path: Module and name of the function, such as "package.module:function". The name may be
            that of a class, or of a method, such as "Class.method".
    """

    path: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, name = self.path.split(":")
        function: Any = import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        return function(*args, **kwargs)


@dataclass(frozen=True)
class ExtraHook:
    """Hook that an extra adds to a training, after all other hooks.

    Attributes:
        is_used: Function (recipe) that returns whether the training has the hook.
        build: Function (recipe, iterations) that returns the hook, a `trainer.Hook`. The second
            argument has the numbers of finished iterations after which the run is saved.
        check: Function (recipe) that raises ValueError if the hook cannot work. The first process
            calls it before the training, if the hook is used.
    """

    is_used: Callable[[Any], bool]
    build: Callable[..., Any]
    check: Callable[[Any], None] | None = None


@dataclass(frozen=True)
class Section:
    """Section of keys that an extra adds to the recipe.

    Attributes:
        keys: Frozen dataclass with the keys, a subclass of `fields.ExtraKeys`.
        scores: Whether the keys determine how a trained model reads and scores a video.
        rules: Rules for values that contradict each other, see `fields.Rule`.
        ignored: Keys of other PySlowFast releases that have no effect, see `fields.Ignored`.
    """

    keys: Any
    scores: bool = False
    rules: Sequence[Any] = ()
    ignored: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ClipTransform:
    """Change of training clips in the DataLoader workers, after the crop and before the flip.

    Attributes:
        switch: Key that turns the change on, if its value is True.
        build: Function (recipe) that returns a function (clip, epoch, index of the video). It
            changes a clip (T, S, S, 3) uint8 in place.
        check: Function (recipe, frames, crop) that raises UserError if clips of this size cannot be
            changed. It is called before a training starts.
    """

    switch: str
    build: Callable[[Any], Callable[..., None]]
    check: Callable[[Any, int, int], None]


@dataclass(frozen=True)
class BatchTransform:
    """Change of training mini-batches on the device of the model, after normalisation.

    Attributes:
        switch: Key that turns the change on, if its value is True.
        build: Function (recipe) that returns a function (pathways, targets, clips). It changes the
            pathways (N, C, T, H, W) in place and returns the new targets. `clips` are the indices
            of the N clips in the data stream.
        is_divided: Function (recipe) that returns whether the result depends on how the clips are
            divided into processes and micro-batches.
    """

    switch: str
    build: Callable[[Any], Callable[..., Any]]
    is_divided: Callable[[Any], bool]


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


MODELS = Registry[ModelSpec]("model")
DATASETS = Registry[DatasetSpec]("data set")
TASKS = Registry[TaskSpec]("task")
AUGMENTATIONS = Registry[Augment]("augmentation")
HOOKS = list["ExtraHook"]()
"""Hooks of the extras."""
WEIGHT_NAMES = list[tuple[Callable[..., Any], Callable[..., Any]]]()
"""Functions that read weight files of other programs, see `register_weight_names`."""
CLIP_TRANSFORMS = list[ClipTransform]()
"""Changes of training clips, in the order in which they are made."""
BATCH_TRANSFORMS = list[BatchTransform]()
"""Changes of training mini-batches, in the order in which they are made."""
SECTIONS = dict[str, Section]()
"""Sections of the extras by name."""
LENGTH_ADVICE = list[str]()
"""Clauses that `register_length_advice` has added."""
MAPPINGS = set[str]()
"""Keys of the extras whose values are mappings."""

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


def register_model(name: str, spec: ModelSpec | None = None) -> Callable[[_Decorated], _Decorated]:
    """Return a decorator that registers a model under a name for MODEL.ARCH.

    The decorated class or function takes a `Recipe` and returns a `torch.nn.Module`. The module
    takes a list of pathways (N, C, T, H, W) and returns logits (N, classes). In evaluation, the
    activation of MODEL.HEAD_ACT converts the logits to scores.

    Args:
        name: Name of the model in MODEL.ARCH.
        spec: Properties of the model. By default, the model has one pathway.

    Raises:
        ValueError: The name is taken or invalid.
    """
    return _registering(MODELS, name, spec or ModelSpec())


def register_dataset(name: str, dataset: DatasetSpec) -> None:
    """Register a data set under a name for TRAIN.DATASET and TEST.DATASET.

    Args:
        name: Name in a recipe. Upper and lower case make no difference.
        dataset: Properties of the data set.

    Raises:
        ValueError: The name is already registered or invalid.
    """
    DATASETS.add(name.lower(), dataset)


def register_task(name: str, spec: TaskSpec | None = None) -> Callable[[_Decorated], _Decorated]:
    """Return a decorator that registers a task under a name for `DatasetSpec.task` and DATA.TASK.

    The decorated class is a subclass of `slowfast_patches.tasks.Task`. It defines the
    arguments of the network, the loss, how scores are collected, and the metrics.

    Args:
        name: Name of the task.
        spec: Properties of the task, and the keys that it determines.

    Raises:
        ValueError: The name is taken or invalid.
    """
    spec = spec or TaskSpec()
    if spec.switch[0] == "DATA.TASK":
        spec = replace(spec, switch=("DATA.TASK", name))
    return _registering(TASKS, name, spec)


def register_hook(
    is_used: Callable[[Any], bool],
    build: Callable[..., Any],
    check: Callable[[Any], None] | None = None,
) -> None:
    """Register a hook that keys of an extra add to a training. See `ExtraHook`."""
    HOOKS.append(ExtraHook(is_used, build, check))


def used_hooks(recipe: Any) -> list[ExtraHook]:
    """Return the hooks of the extras that a training has."""
    return [hook for hook in HOOKS if hook.is_used(recipe)]


def register_weight_names(rename: Callable[..., Any], problems: Callable[..., Any]) -> None:
    """Register a form of weight files, whose tensors have other names.

    Args:
        rename: Function (tensors) that returns the tensors with the names of torchvision's ResNets.
            It returns tensors of another form unchanged.
        problems: Function (tensors, model) that maps a difference between the file and the model to
            its description, if only the names in the file show the difference.
    """
    WEIGHT_NAMES.append((rename, problems))


def register_length_advice(clause: str) -> None:
    """Register what a user can do about a training that may be too short for its cycles.

    Args:
        clause: End of a sentence, which names a command of an extra.
    """
    LENGTH_ADVICE.append(clause)


def length_advice() -> tuple[str, ...]:
    """Return what users can do about a training that may be too short for its cycles."""
    import_extras()
    return tuple(LENGTH_ADVICE)


def register_clip_transform(
    switch: str, build: Callable[..., Any], check: Callable[[Any, int, int], None]
) -> None:
    """Register a change of training clips. See `ClipTransform` for the arguments."""
    CLIP_TRANSFORMS.append(ClipTransform(switch, build, check))


def register_batch_transform(
    switch: str, build: Callable[..., Any], is_divided: Callable[[Any], bool]
) -> None:
    """Register a change of training mini-batches. See `BatchTransform` for the arguments."""
    BATCH_TRANSFORMS.append(BatchTransform(switch, build, is_divided))


def register_section(name: str, keys: type, **more: Any) -> None:
    """Register a section of keys of an extra. The extra can then be used in every recipe.

    Args:
        name: Name of the section.
        keys: See `Section`.
        **more: Other attributes of `Section`.
    """
    assert name not in SECTIONS
    SECTIONS[name] = Section(keys, **more)
    own = [f.name for f in fields(keys) if str(f.type).startswith("Mapping")]
    MAPPINGS.update(f"{name}.{key.upper()}" for key in own)


def register_augmentation(name: str) -> Callable[[Augment], Augment]:
    """Return a decorator that registers a function as an augmentation, which recipes can name.

    Args:
        name: Name of the augmentation in a recipe.

    Raises:
        UserError: The name is taken or invalid, or the function takes other arguments.
    """

    def decorate(augment: Augment) -> Augment:
        _check_arguments(augment, name)
        AUGMENTATIONS.add(name, augment)
        return augment

    return decorate


def _check_arguments(augment: Augment, name: str) -> None:
    """Raise UserError if an augmentation is no function of a clip and a generator."""
    try:
        signature(augment).bind("clip", "generator")
    except (TypeError, ValueError) as error:
        raise UserError(
            f"the augmentation {name!r} must be a function of a clip and a random generator "
            f"({error})"
        ) from error


def _registering(
    registry: Registry[Any], name: str, spec: Any
) -> Callable[[_Decorated], _Decorated]:
    """Return a decorator that registers a class or function as `build` of a spec."""

    def decorate(build: _Decorated) -> _Decorated:
        registry.add(name, replace(spec, build=build))
        return build

    return decorate


def task_name(values: Any) -> str:
    """Return the name of the task that the keys of a recipe select.

    Args:
        values: A recipe, or a mapping from full keys to values.
    """

    def precedence(name: str) -> int:
        # Every recipe has a value of DATA.MULTI_LABEL, so all other keys take precedence.
        return {"DATA.MULTI_LABEL": 0, "DATA.TASK": 2}.get(TASKS[name].switch[0], 1)

    selected = [n for n, f in TASKS.items() if values[f.switch[0]] == f.switch[1]]
    return max(selected, key=precedence)
