"""Keys by what they may do, the keys without effect, and docs/keys.md."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import NamedTuple

from slowfast_patches.config.recipe import KEYS, default_recipe, keys_of

__all__ = [
    "NO_EFFECT",
    "NoEffect",
    "format_keys",
    "may_differ",
    "no_effect",
    "speed_keys",
    "speed_switches",
]


class NoEffect(NamedTuple):
    """Why a key changes nothing and what to write instead, and values that ask for nothing."""

    why: str
    quiet: tuple[object, ...]


_GROUPS = "Clips share statistics by number: BN.GROUP_SIZE, with a cycle MULTIGRID.BN_BASE_SIZE."
_FILLED = "The baseline's mini-batch follows from other keys; write "
_FOLLOWS = "MODEL.ARCH decides what is built; write that."

NO_EFFECT: Mapping[str, NoEffect] = {
    "BN.NORM_TYPE": NoEffect(_GROUPS, ("batchnorm",)),
    "BN.NUM_SPLITS": NoEffect(_GROUPS, (1,)),
    "BN.NUM_SYNC_DEVICES": NoEffect(_GROUPS, (1,)),
    "BN.GLOBAL_SYNC": NoEffect(_GROUPS, (False,)),
    "BN.EPSILON": NoEffect("The host builds its models with 1e-5; leave it out.", (1e-5,)),
    "BN.MOMENTUM": NoEffect("The host builds its models with 0.1; leave it out.", (0.1,)),
    "MULTIGRID.DEFAULT_B": NoEffect(_FILLED + "TRAIN.BATCH_SIZE.", (0,)),
    "MULTIGRID.DEFAULT_T": NoEffect(_FILLED + "DATA.NUM_FRAMES.", (0,)),
    "MULTIGRID.DEFAULT_S": NoEffect(_FILLED + "DATA.TRAIN_CROP_SIZE.", (0,)),
    "MULTIGRID.LONG_CYCLE_SAMPLING_RATE": NoEffect(
        "The stride of a shape is drawn between the baseline's and the one with the same span; "
        "write DATA.SAMPLING_RATE.",
        (0,),
    ),
    "DATA.DECODING_BACKEND": NoEffect("Videos are read with PyAV; write pyav.", ("pyav",)),
    "MODEL.MODEL_NAME": NoEffect(_FOLLOWS, ("SlowFast", "ResNet")),
    "MODEL.SINGLE_PATHWAY_ARCH": NoEffect(_FOLLOWS, ()),
    "MODEL.MULTI_PATHWAY_ARCH": NoEffect(_FOLLOWS, (["slowfast"],)),
    "SOLVER.STEP_SIZE": NoEffect("No policy reads it; write SOLVER.STEPS.", (1,)),
    "SOLVER.WARMUP_FACTOR": NoEffect(
        "The warm-up starts at SOLVER.WARMUP_START_LR; write that.", (0.1,)
    ),
    "SOLVER.LARS_TRUST": NoEffect("LARS was removed; leave the key out.", (0.001,)),
    "MIXUP.LABEL_SMOOTH_VALUE": NoEffect(
        "Labels are smoothed by MODEL.LABEL_SMOOTHING; write that.", (0,)
    ),
    "AUG.NUM_SAMPLE": NoEffect("A video gives one clip an epoch; leave it out.", (1,)),
    "AUG.INTERPOLATION": NoEffect(
        "Clips are rotated, sheared and moved bilinearly; leave it out.", ("bilinear", "bicubic")
    ),
    "AUG.RE_SPLIT": NoEffect("Every clip may be erased; leave it out.", (False,)),
    "TRAIN.CHECKPOINT_EPOCH_RESET": NoEffect(
        "A training that starts from TRAIN.CHECKPOINT_FILE_PATH starts at iteration 0; one in "
        "OUTPUT_DIR is continued by TRAIN.AUTO_RESUME.",
        (False, True),
    ),
    "TENSORBOARD.*": NoEffect(
        "Event files are always written to OUTPUT_DIR and hold scalars only; leave it out.",
        (True, "", 0, False, None),
    ),
    "AVA.BGR": NoEffect("Write DATA.REVERSE_INPUT_CHANNEL.", (False,)),
    "AVA.IMG_PROC_BACKEND": NoEffect("All clips are read in one way.", ("cv2", "pytorch")),
    "AVA.TEST_FORCE_FLIP": NoEffect("Clips are tested as they are.", (False,)),
    "AVA.TRAIN_USE_COLOR_AUGMENTATION": NoEffect("Colours stay as they are.", (False,)),
    "AVA.TRAIN_PCA_JITTER_ONLY": NoEffect("Colours stay as they are.", (True, False)),
    "AVA.TRAIN_PCA_EIGVAL": NoEffect("Colours stay as they are.", ([0.225, 0.224, 0.229],)),
    "AVA.TRAIN_PCA_EIGVEC": NoEffect("Colours stay as they are.", ()),
    "DEMO.*": NoEffect(
        "There is no demo on a camera or a single file; leave the section out.", (False,)
    ),
}
"""Keys of the host and of its later releases that a recipe may have and that change nothing."""

_HEADER = """# Keys

Written from the fields in slowfast_patches/config by

    python -c "from slowfast_patches.config.keys import format_keys as f; print(f())" > docs/keys.md"""  # noqa: E501


def no_effect(name: str) -> NoEffect | None:
    """The row of a key that changes nothing, its full name before its section's; else None."""
    return NO_EFFECT.get(name) or NO_EFFECT.get(name.partition(".")[0] + ".*")


def may_differ(name: str) -> bool:
    """Whether a key may change between a checkpoint and the run that continues it.

    Such keys change no result by more than rounding, or are those that a run which stopped over
    unreadable videos asks to change.
    """
    return name in KEYS and KEYS[name].may_differ


def speed_keys() -> tuple[str, ...]:
    """Keys that decide how long an iteration of a shape takes."""
    return tuple(name for name, key in KEYS.items() if key.speed or key.switch)


def speed_switches() -> tuple[str, ...]:
    """Keys that, where True, make iterations faster and change nothing else."""
    return tuple(name for name, key in KEYS.items() if key.switch)


def format_keys() -> str:
    """docs/keys.md: a line for each key."""
    defaults = keys_of(default_recipe())
    lines = [_HEADER]
    title = ""
    for name, key in KEYS.items():
        if not key.help:
            continue
        section = name.partition(".")[0] if "." in name else "Machines and files"
        if section != title:
            lines += ["", f"## {section}", ""]
            title = section
        check = f" Must be {key.check.wanted}." if key.check else ""
        lines.append(_wrap(f"- `{name}` `{defaults[name]!r}`: {key.help}{check}"))
    lines += ["", "## Accepted without effect", ""]
    lines += [_wrap(f"- `{name}`: {row.why}") for name, row in NO_EFFECT.items()]
    others = ", ".join(f"`{name}`" for name in sorted(KEYS) if not KEYS[name].help)
    return "\n".join([*lines, "", "## The host's other keys", "", _wrap(f"{others}.")])


def _wrap(text: str) -> str:
    return textwrap.fill(text, 100, subsequent_indent="  ", break_on_hyphens=False)
