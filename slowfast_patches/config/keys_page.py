"""Text of docs/keys.md, generated from the fields of the recipe.

To add a key, see config/recipe.py. The page then includes the key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from slowfast_patches.config.later_releases import TRANSLATED, ignored_keys
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
    "SOLVER.BASE_LR",
    "SOLVER.REFERENCE_BATCH_SIZE",
    "SOLVER.LENGTH",
    "TRAIN.MIXED_PRECISION",
    "DATA_LOADER.NUM_WORKERS",
    "TRAIN.CHECKPOINT_FILE_PATH",
    "TEST.CHECKPOINT_FILE_PATH",
    "OUTPUT_DIR",
)
"""Keys that most users change, in the order in which users need them."""

_WITHOUT_VALUE = {"MODEL.NUM_CLASSES": "auto"}
"""What the page shows for keys whose default value is not used, because another one is found."""

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
python -c "from slowfast_patches.config.keys_page import format_keys as f; print(f())" > docs/keys.md
```"""  # noqa: E501

_LATER = """
## Keys of other PySlowFast releases

Recipes of later PySlowFast releases can be loaded without changes. The keys in this table are
translated or have no effect. A key without effect causes a warning, unless its value describes what
this package does anyway.
"""


def format_keys() -> str:
    """Return the text of docs/keys.md."""
    sections = defaultdict[str, list[str]](list)
    sections["Keys you will change"] += _COMMON
    for name in KEYS:
        section = name.partition(".")[0] if "." in name else "Machines and files"
        sections[section].append(name)
    later = [(f"`{name}`", key.later[0]) for name, key in KEYS.items() if key.later]
    later += [(f"`{name}`", row.note) for name, row in TRANSLATED.items()]
    later += [(f"`{name}`", row.note) for name, row in ignored_keys().items()]
    parts = [f"\n## {section}\n\n{_format_rows(names)}" for section, names in sections.items()]
    return "\n".join(
        [_HEADER, *parts, _LATER, _format_table(("key", "what happens"), later), _FOOTER]
    )


def _format_rows(names: Iterable[str]) -> str:
    defaults = values_by_key(default_recipe()) | _WITHOUT_VALUE
    rows = []
    for name in names:
        check = KEYS[name].check
        wanted = f" Must be {check.wanted}." if check else ""
        rows.append((f"`{name}`", f"`{defaults[name]!r}`", KEYS[name].help + wanted))
    return _format_table(("key", "default", "meaning"), rows)


def _format_table(headers: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    # Do not pad the cells, so that changing one row changes only one line of the file.
    return "\n".join(f"| {' | '.join(row)} |" for row in (headers, ("---",) * len(headers), *rows))
