"""What an extra can add to the core, besides models, data sets, tasks and augmentations.

The extras, which are the folders of slowfast_patches/extras, register themselves. Their
`__init__.py` describes what they add, and imports nothing else of the extra than its keys: `Lazy`
imports the functions when they are called. No other code names an extra.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from slowfast_patches import extras


@cache
def import_extras() -> None:
    """Let all extras register themselves."""
    for module in iter_modules(extras.__path__, f"{extras.__name__}."):
        import_module(module.name)


@dataclass(frozen=True)
class Lazy:
    """Function that, when it is called, imports another function and calls it.

    Attributes:
        path: Module and name of the function, such as "package.module:function". The name may be
            that of a class, or of a method, such as "Class.method".
    """

    path: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.load()(*args, **kwargs)

    def load(self) -> Any:
        """Import the module, and return the function."""
        module, name = self.path.split(":")
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found


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


HOOKS = list[ExtraHook]()
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
        rename: Function (tensors) that returns the tensors with the names of torchvision's ResNets
            or of PySlowFast. It returns tensors of another form unchanged.
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
