"""Set up logging to the terminal and to one file for each process."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.errors import printable, writing

_CHATTY = ("fvcore", "fsspec", "botocore", "aiobotocore")
"""Libraries that log what is of no interest here, such as every block that fsspec reads."""
_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def setup_logging(output_dir: str, world: World, kind: str = "train") -> None:
    """Set up logging for this process.

    Rank 0 logs to the terminal and to OUTPUT_DIR/train.log. The progress bar replaces lines about
    iterations on the terminal (see `ProgressBar`). Rank 1 logs to OUTPUT_DIR/logs/rank_0001.log,
    and so on. A rank above 0 that cannot write its file logs to its terminal.

    Args:
        output_dir: The folder of the run.
        world: Rank, world size and device of this process.
        kind: "train" or "test". For "test", the files are test.log and logs/test_rank_0001.log.

    Raises:
        RunError: Rank 0 cannot write the log file.
    """
    prefix = "" if kind == "train" else f"{kind}_"
    name = f"logs/{prefix}rank_{world.rank:04d}.log" if world.rank else f"{kind}.log"
    path = Path(output_dir, name)
    handlers: list[logging.Handler] = [_Terminal()] if world.is_main else []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(path, encoding="utf-8"))
    except OSError:
        with writing(path, "OUTPUT_DIR"):
            if world.is_main:
                raise
        handlers = [_Terminal()]
    logging.raiseExceptions = False  # ignore a full disk: `LogMetrics` raises an error
    for handler in handlers:
        handler.setFormatter(_Formatter(_FORMAT, "%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
    for library in _CHATTY:
        logging.getLogger(library).setLevel(logging.WARNING)
    logging.captureWarnings(True)


def terminal_bar(name: str, total: int, done: int = 0, *, is_main: bool) -> tqdm[None]:
    """Return a progress bar on standard error that disappears when it is closed.

    The bar is disabled if standard error is not a terminal, outside the main process, and by the
    environment variable TQDM_DISABLE.

    Args:
        name: Text before the bar.
        total: Number of iterations.
        done: Number of iterations that are already finished.
        is_main: Whether this is the main process.
    """
    return tqdm(
        desc=name,
        total=total,
        initial=done,
        disable=not (is_main and shows_bars()),
        leave=False,
        dynamic_ncols=True,
        smoothing=0.05,
        bar_format="{desc} {percentage:.0f}%|{bar}| {n_fmt}/{total_fmt} [{remaining} left, "
        "{rate_fmt}{postfix}]",
    )


def shows_bars() -> bool:
    return sys.stderr.isatty() and not os.environ.get("TQDM_DISABLE")


class _Terminal(logging.StreamHandler[TextIO]):
    """Handler that writes to standard error, above the progress bar if there is one.

    If bars are shown, it leaves out records with the attribute `is_on_bar`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._process = os.getpid()
        self.addFilter(lambda record: not (hasattr(record, "is_on_bar") and shows_bars()))

    def emit(self, record: logging.LogRecord) -> None:
        # A data loader worker must not use its copy of tqdm's lock, which may be locked forever.
        has_bar = os.getpid() == self._process
        with tqdm.external_write_mode(self.stream) if has_bar else nullcontext():
            super().emit(record)


class _Formatter(logging.Formatter):
    """Formatter that escapes control characters, which the names of videos may contain."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))
