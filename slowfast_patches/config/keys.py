"""Lists of keys with a given property, and the text of docs/keys.md."""

from __future__ import annotations

from collections.abc import Iterable

from slowfast_patches.config.later_releases import IGNORED
from slowfast_patches.config.recipe import KEYS, default_recipe, values_by_key

_COMMON = (
    "DATA.PATH_TO_DATA_DIR",
    "DATA.PATH_PREFIX",
    "MODEL.NUM_CLASSES",
    "MODEL.ARCH",
    "DATA.NUM_FRAMES",
    "DATA.SAMPLING_RATE",
    "DATA.TRAIN_CROP_SIZE",
    "MULTIGRID.LONG_CYCLE",
    "MULTIGRID.SHORT_CYCLE",
    "MULTIGRID.EPOCH_FACTOR",
    "NUM_GPUS",
    "TRAIN.BATCH_SIZE",
    "SOLVER.REFERENCE_WORLD_SIZE",
    "SOLVER.BASE_LR",
    "SOLVER.LENGTH",
    "TRAIN.MIXED_PRECISION",
    "DATA_LOADER.NUM_WORKERS",
    "TRAIN.CHECKPOINT_FILE_PATH",
    "TEST.CHECKPOINT_FILE_PATH",
    "OUTPUT_DIR",
)
"""Keys that most users change, in the order in which users need them."""

_SCORED = ("MODEL", "SLOWFAST", "TSM", "HF", "RESNET", "NONLOCAL", "DETECTION", "DATA")
"""Sections of keys that determine how a model reads and scores a video."""
_HEADER = """# Keys

All keys of a recipe, with their defaults. Set a key in a YAML file or at the end of a command line:

```bash
multigrid-train --cfg configs/Demo/OWN_VIDEOS.yaml NUM_GPUS 1 SOLVER.LENGTH 0.25
```

<input id="keys-filter" type="search" placeholder="Filter the keys, for example: crop" aria-label="Filter the keys">"""  # noqa: E501

_FOOTER = """
<script src="../assets/keys.js"></script>

---

This page is generated from the fields in slowfast_patches/config:

```bash
python -c "from slowfast_patches.config.keys import format_keys as f; print(f())" > docs/keys.md
```"""

_LATER = """
## Keys of other PySlowFast releases

Recipes of later PySlowFast releases can be loaded without changes. The keys in this table are
translated or have no effect. A key without effect causes a warning, unless its value describes what
this package does anyway.
"""


def may_differ(name: str) -> bool:
    """Return whether a run may be resumed with a different value of a key.

    Such a key changes results by rounding errors at most, or sets a limit that stops a run because
    of unreadable videos.
    """
    return name in KEYS and KEYS[name].may_differ


def changes_scores(name: str) -> bool:
    """Return whether the value of a key changes the scores that a trained model gives a video.

    The keys of TEST, such as the number of views, do not count. They describe a test, not a model.
    """
    section = name.partition(".")[0]
    if section not in _SCORED or may_differ(name):
        return False
    return name not in KEYS or not KEYS[name].only_training


def speed_keys() -> tuple[str, ...]:
    """Return the keys that affect how long an iteration with a given shape takes."""
    return tuple(name for name, key in KEYS.items() if key.speed or key.switch)


def speed_switches() -> tuple[str, ...]:
    """Return the keys whose value True makes iterations faster and has no other effect."""
    return tuple(name for name, key in KEYS.items() if key.switch)


def format_keys() -> str:
    """Return the text of docs/keys.md."""
    lines = [_HEADER, "", "## Keys you will change", "", _format_rows(_COMMON)]
    sections: dict[str, list[str]] = {}
    for name in KEYS:
        section = name.partition(".")[0] if "." in name else "Machines and files"
        sections.setdefault(section, []).append(name)
    for section, names in sections.items():
        lines += ["", f"## {section}", "", _format_rows(names)]
    rows = [(f"`{name}`", key.later[0]) for name, key in KEYS.items() if key.later]
    rows += [(f"`{name}`", note) for name, (note, _) in IGNORED.items()]
    return "\n".join([*lines, _LATER, _format_table(("key", "what happens"), rows), _FOOTER])


def _format_rows(names: Iterable[str]) -> str:
    defaults = values_by_key(default_recipe())
    rows = []
    for name in names:
        check = KEYS[name].check
        wanted = f" Must be {check.wanted}." if check else ""
        rows.append((f"`{name}`", f"`{defaults[name]!r}`", KEYS[name].help + wanted))
    return _format_table(("key", "default", "meaning"), rows)


def _format_table(headers: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    # Do not pad the cells, so that changing one row changes only one line of the file.
    return "\n".join(f"| {' | '.join(row)} |" for row in (headers, ("---",) * len(headers), *rows))
