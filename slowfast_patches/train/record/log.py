"""Set up logging to the terminal and to a file for each process."""

from __future__ import annotations

import logging
from pathlib import Path

from slowfast_patches.utils.command_line import printable
from slowfast_patches.utils.distributed import World

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def setup_logging(output_dir: str, world: World, kind: str = "train") -> None:
    """Log rank 0 to OUTPUT_DIR/train.log and the terminal, and other ranks to files.

    Other ranks log to OUTPUT_DIR/logs/rank_0001.log and so on. If these files cannot be written,
    their warnings go to the terminal.

    Args:
        output_dir: the run's folder.
        world: this process among all.
        kind: "train" or "test". A test logs to test.log and logs/test_rank_0001.log.

    Raises:
        OSError: rank 0 cannot write its log.
    """
    prefix = "" if kind == "train" else f"{kind}_"
    name = f"logs/{prefix}rank_{world.rank:04d}.log" if world.rank else f"{kind}.log"
    path = Path(output_dir, name)
    handlers: list[logging.Handler] = [] if world.rank else [logging.StreamHandler()]
    level = logging.INFO
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(path, encoding="utf-8"))
    except OSError:
        if world.is_main:
            raise
        handlers = [logging.StreamHandler()]
        level = logging.WARNING
    logging.raiseExceptions = False  # on a full disk the record of the run raises
    for handler in handlers:
        handler.setFormatter(_Formatter(_FORMAT, "%H:%M:%S"))
    logging.basicConfig(level=level, handlers=handlers, force=True)
    logging.getLogger("fvcore").setLevel(logging.WARNING)
    logging.captureWarnings(True)


class _Formatter(logging.Formatter):
    """Formatter that escapes control characters, which a video's name may contain."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))
