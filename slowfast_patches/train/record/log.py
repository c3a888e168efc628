"""Where log lines go: the terminal, and a file for each process."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from pathlib import Path

from slowfast_patches.utils.distributed import World

__all__ = ["LogFile", "check_log_files", "setup_logging"]

logger = logging.getLogger(__name__)

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def setup_logging(output_dir: str, world: World, kind: str = "train") -> None:
    """Log to OUTPUT_DIR/train.log and the terminal; other ranks to OUTPUT_DIR/logs/rank_0001.log
    alone and so on, or, where these cannot be written, their warnings to the terminal.

    The files of a run of kind "test" are test.log and logs/test_rank_0001.log.

    Raises:
        OSError: rank 0 cannot write, and a run without a log is none.
    """
    root, level, problem = logging.getLogger(), logging.INFO, None
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    prefix = "" if kind == "train" else f"{kind}_"
    name = f"logs/{prefix}rank_{world.rank:04d}.log" if world.rank else f"{kind}.log"
    handlers: list[logging.Handler] = [] if world.rank else [logging.StreamHandler()]
    try:
        Path(output_dir, name).parent.mkdir(parents=True, exist_ok=True)
        handlers.append(LogFile(Path(output_dir, name), encoding="utf-8"))
    except OSError as error:
        if world.is_main:
            raise
        level, handlers, problem = logging.WARNING, [logging.StreamHandler()], error
    logging.basicConfig(level=level, format=_FORMAT, datefmt="%H:%M:%S", handlers=handlers)
    logging.getLogger("fvcore").setLevel(logging.WARNING)
    logging.captureWarnings(True)
    if problem is not None and world.local_rank == 0:
        logger.warning("the processes of this machine have no log files: %s", problem)


class LogFile(logging.FileHandler):
    """Keeps the first error of writing, for `check_log_files`; logging's own handler prints it and
    goes on."""

    failure: OSError | None = None

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Called by logging where a record cannot be written."""
        error = sys.exception()
        if not isinstance(error, OSError):
            super().handleError(record)
        elif self.failure is None:
            self.failure = error
            error.filename = self.baseFilename

    def close(self) -> None:
        """As ever; what could not be written before cannot be now."""
        with suppress(OSError):
            super().close()


def check_log_files() -> None:
    """Raise the OSError of a log file of this process that could not be written, if any."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogFile) and handler.failure is not None:
            raise handler.failure
