"""Command lines of PySlowFast's training script, whose parser changed between releases."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from multigrid.errors import MultigridError

NO_CYCLE = (
    "MULTIGRID.LONG_CYCLE and MULTIGRID.SHORT_CYCLE are False, so this would train the baseline. "
    "Add MULTIGRID.LONG_CYCLE True MULTIGRID.SHORT_CYCLE True to the end of the command (after "
    "--opts, if your PySlowFast has this option), or set them in the recipe. To train the "
    "baseline, start the script without multigrid.integrations.pyslowfast"
)
"""Message for a training without a cycle."""


def check_arguments(arguments: Any) -> None:
    """Check that PySlowFast's parser did not read config keys as names of config files.

    Args:
        arguments: Result of `parse_args` of PySlowFast. In later releases, `cfg_files` has all
            words after --cfg, and `opts` all words after --opts. In earlier releases, `opts` has
            all words after FILE in --cfg FILE.

    Raises:
        ValueError: The parser did so. The message contains the correct command line.
    """
    files = list(getattr(arguments, "cfg_files", None) or ())
    options = list(getattr(arguments, "opts", None) or ())
    found = [file for file in files if Path(file).is_file()]
    missing = [file for file in files if file not in found]
    if missing:
        right = " ".join(["--cfg", *(found or ["FILE"]), "--opts", *missing, *options])
        raise MultigridError(
            f"there is no config file {missing[0]}. This PySlowFast takes all words after --cfg "
            f"for config files. If {missing[0]} is a key, write: {right}"
        )


@contextmanager
def explained_options(words: Sequence[str]) -> Iterator[None]:
    """Explain --opts if the parser in the `with` statement ends the program.

    Args:
        words: Words of the command line.
    """
    try:
        yield
    except SystemExit as end:
        if end.code and "--opts" in words:
            place = list(words).index("--opts")
            right = " ".join([*words[1:place], *words[place + 1 :]])
            print(f"If this PySlowFast has no --opts, write: {right}", file=sys.stderr)
        raise
