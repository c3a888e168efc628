"""Keys with a given property: those that change the training, the scores, the test or the speed.

The properties are in the fields of the recipe. To add a key, see config/recipe.py.
"""

from __future__ import annotations

from slowfast_patches.config.recipe import KEYS
from slowfast_patches.seams import SECTIONS

_EXTRA = (name for name, section in SECTIONS.items() if section.scores)
_SCORED = ("MODEL", "SLOWFAST", "RESNET", "NONLOCAL", "DATA", *_EXTRA)
"""Sections of keys that determine how a model reads and scores a video."""
_TEST = (
    *("TEST.ENABLE", "TEST.DATASET", "TEST.NUM_ENSEMBLE_VIEWS", "TEST.NUM_SPATIAL_CROPS"),
    "TEST.CHECKPOINT_FILE_PATH",
)
_EVALUATIONS = ("TRAIN.EVAL_PERIOD", "TRAIN.KEEP_BEST")
_TIMES = ("NUM_GPUS", "TEST.BATCH_SIZE")


def may_differ(name: str) -> bool:
    """Return whether a run may be resumed with a different value of a key.

    Such a key changes results by rounding errors at most, or sets a limit that stops a run because
    of unreadable videos.
    """
    return KEYS[name].may_differ


def changes_training(name: str) -> bool:
    """Return whether the value of a key may change the weights that a training ends with."""
    return not KEYS[name].may_differ


def describes_test(name: str) -> bool:
    """Return whether a key determines how a trained model is scored in the test."""
    return name in _TEST


def describes_evaluations(name: str) -> bool:
    """Return whether a key determines which validations a result lists."""
    return name in _EVALUATIONS


def changes_times(name: str) -> bool:
    """Return whether a key changes the times of a run, but its result at most by rounding."""
    key = KEYS[name]
    return name in _TIMES or (key.may_differ and (key.speed or key.switch))


def changes_scores(name: str) -> bool:
    """Return whether the value of a key changes the scores that a trained model gives a video.

    The keys of TEST, such as the number of views, do not count. They describe a test, not a model.
    """
    key = KEYS[name]
    return name.partition(".")[0] in _SCORED and not key.may_differ and not key.only_training


def speed_keys() -> tuple[str, ...]:
    """Return the keys that affect how long an iteration with a given shape takes."""
    return tuple(name for name, key in KEYS.items() if key.speed or key.switch)


def speed_switches() -> tuple[str, ...]:
    """Return the keys whose value True makes iterations faster and has no other effect."""
    return tuple(name for name, key in KEYS.items() if key.switch)


def private_keys() -> tuple[str, ...]:
    """Return the keys whose values are paths on the machine, which are not published."""
    return tuple(name for name, key in KEYS.items() if key.private)
