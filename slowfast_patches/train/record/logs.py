"""Where log lines go: the terminal, and a file for each process."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from slowfast_patches.utils.distributed import World

__all__ = ["LogFile", "check_log_files", "setup_logging"]

logger = logging.getLogger(__name__)

_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def setup_logging(output_dir: str, world: World, kind: str = "train") -> None:
    """Log to OUTPUT_DIR/train.log and the terminal; other ranks than 0 to files of their own.

    These are OUTPUT_DIR/logs/rank_0001.log and so on, and all that those ranks write. On the
    terminal they would repeat, once for each process, what rank 0 says there. A machine on which
    the files cannot be written says so once, and shows their warnings on the terminal. A run of
    kind "test" has files of its own beside a training's: test.log, and logs/test_rank_0001.log.
    """
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    level, handlers, problem = logging.INFO, _handlers(Path(output_dir), world.rank, kind), None
    if isinstance(handlers, OSError):
        level, handlers, problem = logging.WARNING, [logging.StreamHandler()], handlers
    logging.basicConfig(level=level, format=_FORMAT, datefmt="%H:%M:%S", handlers=handlers)
    logging.getLogger("fvcore").setLevel(logging.WARNING)
    logging.captureWarnings(True)
    if problem is not None and world.local_rank == 0:
        logger.warning("the processes of this machine have no log files: %s", problem)


def _handlers(folder: Path, rank: int, kind: str) -> list[logging.Handler] | OSError:
    """Of a rank; what is wrong where one other than 0 cannot write.

    Raises:
        OSError: rank 0 cannot write, and a run without a log is none.
    """
    prefix = "" if kind == "train" else f"{kind}_"
    path = folder / (f"logs/{prefix}rank_{rank:04d}.log" if rank else f"{kind}.log")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = LogFile(path, encoding="utf-8")
    except OSError as error:
        if rank == 0:
            raise
        return error
    return [logging.StreamHandler(), file] if rank == 0 else [file]


class LogFile(logging.FileHandler):
    """Keeps the error of a record that it cannot write, for `check_log_files`.

    logging's own handler prints a traceback for each record, and the program goes on.
    """

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
        try:
            super().close()
        except OSError as error:
            self.failure = self.failure or error


def check_log_files() -> None:
    """Raise the OSError of a log file of this process that could not be written, if any."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogFile) and handler.failure is not None:
            raise handler.failure
