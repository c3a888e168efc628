"""What the commands share: exit statuses, error reports, option types; quick to import."""

from __future__ import annotations

import argparse
import functools
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from itertools import takewhile
from types import FrameType
from typing import Any, NoReturn, TextIO, cast

from slowfast_patches.utils.signals import (
    BY_HAND_STATUS,
    INTERRUPTED_STATUS,
    TrainingInterruptedError,
)

__all__ = [
    "MISTAKE_STATUS",
    "ToolError",
    "above_zero",
    "add_at_once",
    "add_overrides",
    "add_seeds",
    "at_least_one",
    "command_parser",
    "ends_early",
    "exit_status",
    "key_value",
    "option_of",
    "printable",
    "report",
    "split_pairs",
    "take_numbers",
    "tool",
    "whole_number",
]

MISTAKE_STATUS = 2
_FAILED = 1
_CONTROL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, but tabs and the ends of lines, and bytes of a name that are no UTF-8."""

_BUG = "This is a bug in slowfast-multigrid: please report it with the lines above."

Main = Callable[..., int]


class ToolError(RuntimeError):
    """A failure that is neither the user's mistake nor a bug: reported without a traceback."""

    exit_status = _FAILED


def exit_status(error: BaseException) -> int:
    """The exit status of an error: its own `exit_status`, 130 for Ctrl-C, 2 for a mistake of the
    user's, 1 for a bug."""
    if isinstance(error, KeyboardInterrupt):
        return BY_HAND_STATUS
    mistake = isinstance(error, (ValueError, OSError, ImportError))
    return getattr(error, "exit_status", MISTAKE_STATUS if mistake else _FAILED)


def report(error: BaseException, who: str = "", *, terminal: bool = True) -> int:
    """Log the error that ended a program, a bug with its traceback; returns the exit status.

    It goes to the log files and the terminal, after `who`, such as "rank 1: ".
    """
    status = exit_status(error)
    interrupted = status in (0, INTERRUPTED_STATUS)  # torchrun starts all again but 0
    text = "\n".join([str(error) or type(error).__name__, *getattr(error, "__notes__", ())])
    if status == _FAILED and not isinstance(error, ToolError):
        text = "".join([*traceback.format_exception(error), _BUG])
    text = printable(f"interrupted: {text}" if interrupted else f"error: {who}{text}")
    if terminal:
        sys.stderr.write(text + "\n")  # in one piece: other ranks may write, too
        sys.stderr.flush()
    level = logging.WARNING if interrupted else logging.ERROR
    record = logging.LogRecord(__name__, level, __file__, 0, text, None, None)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            handler.handle(record)
    return status


def ends_early(*, resumes: bool = False) -> None:
    """Until a `tool` begins, Ctrl-C ends the program at once, with one line and status 130.

    One that `resumes` ends so by SIGTERM, too, as an interrupted training with status 75.
    To be called before the imports that take seconds. Of several processes that a launcher starts
    on a node, the first prints the line.
    """
    for number in (signal.SIGINT, signal.SIGTERM)[: 1 + resumes]:
        signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    if _is_first_here():
        os.write(2, b"interrupted\n")
    by_hand = number == signal.SIGINT
    os._exit(BY_HAND_STATUS if by_hand else TrainingInterruptedError().exit_status)


def _is_first_here() -> bool:
    """Whether this is the first of the processes that torchrun or srun starts on this node."""
    return os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) == "0"


def tool(*, interrupted: str = "interrupted") -> Callable[[Main], Main]:
    """Decorate the `main` of a program: its errors end it as `report` does.

    Ctrl-C prints the line `interrupted`. Where standard output was closed, as by `| head`, nothing
    is printed. Control characters in the output are escaped.
    """

    def decorate(main: Main) -> Main:
        @functools.wraps(main)
        def run(*arguments: Any) -> int:
            if signal.getsignal(signal.SIGINT) is _end:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            out, err = (cast(TextIO, _Printable(stream)) for stream in (sys.stdout, sys.stderr))
            with redirect_stdout(out), redirect_stderr(err):
                try:
                    status = main(*arguments)
                    sys.stdout.flush()
                    return status
                except SystemExit:
                    raise
                except BrokenPipeError:
                    # Python flushes once more as it ends; as its documentation has it.
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                    return _FAILED
                except KeyboardInterrupt as error:
                    print(interrupted, file=sys.stderr)
                    return exit_status(error)
                except BaseException as error:
                    return report(error, terminal=_is_first_here())

        return run

    return decorate


def printable(text: str) -> str:
    """The text with control characters escaped, `\\x1b`: a file's name may have any, and a terminal
    obeys them."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


class _Printable:
    """A stream that escapes control characters on their way to another."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def command_parser(about: str) -> argparse.ArgumentParser:
    """A parser whose --help begins with the program's own text, with --version."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=layout)
    text = "print the versions of packages, and the machine"
    parser.add_argument("--version", action=_Version, nargs=0, help=text)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from slowfast_patches.utils.machine import machine, versions  # imports torch

        for name, value in (versions() | machine()).items():
            print(f"{name}: {value}")
        parser.exit()


def key_value(text: str) -> tuple[str, str]:
    """The type of an option that takes KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"it takes KEY=VALUE, not {text}")
    return key, value


class _Pairs(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any
    ) -> None:
        setattr(namespace, self.dest, split_pairs(values))


def add_overrides(group: argparse._ActionsContainer, text: str) -> None:
    """Add the KEY VALUE pairs as `overrides`; each may be written as KEY=VALUE."""
    add = group.add_argument
    add("overrides", action=_Pairs, nargs="*", default=[], metavar="KEY VALUE", help=text)


def split_pairs(words: Sequence[Any]) -> list[Any]:
    """Return KEY VALUE pairs with each KEY=VALUE among them split into two words."""
    pairs = list[Any]()
    for word in words:
        key, equals, value = str(word).partition("=")
        pairs += [key, value] if equals and len(pairs) % 2 == 0 else [word]
    return pairs


def option_of(name: str) -> str:
    """The option that a name of the parsed arguments stands for."""
    return "--" + name.replace("_", "-")


def add_seeds(parser: argparse.ArgumentParser) -> None:
    """Add --seeds; `take_numbers(args, "seeds", whole_number)` is to follow."""
    text = "whole numbers (default: 0)"
    parser.add_argument("--seeds", nargs="+", default=["0"], metavar="SEED", help=text)


def whole_number(word: str) -> int:
    """A whole number from 0; ValueError for anything else."""
    if not word.isdigit():
        raise ValueError(f"{word} is no whole number")
    return int(word)


def take_numbers(args: argparse.Namespace, name: str, kind: Callable[[str], float]) -> None:
    """Convert the words of an option with several numbers; KEY VALUE pairs that followed them on
    the command line are given back to `args.overrides`.

    Raises:
        ValueError: a word that is neither a number of that kind nor a key.
    """
    words = getattr(args, name)
    numbers = list(takewhile(functools.partial(_converts, kind), words))
    rest = words[len(numbers) :]
    if rest and not (numbers and rest[0][:1].isalpha()):
        kinds = "whole numbers" if kind is whole_number else "numbers"
        raise ValueError(f"{option_of(name)} takes {kinds}, not {rest[0]}")
    args.overrides = split_pairs(rest) + args.overrides
    setattr(args, name, list(map(kind, numbers)))


def _converts(kind: Callable[[str], float], word: str) -> bool:
    try:
        kind(word)
    except ValueError:
        return False
    return True


def add_at_once(group: argparse._ActionsContainer) -> None:
    """Add --at-once."""
    text = (
        "runs that train side by side (%(default)s); their seconds are then not those of a run "
        "alone: --step-times has such"
    )
    group.add_argument("--at-once", type=at_least_one, default=1, metavar="N", help=text)


def at_least_one(text: str) -> int:
    """The type of an option that takes a whole number from 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"it takes a whole number from 1, not {text}")
    return int(text)


def above_zero(text: str) -> float:
    """The type of an option that takes a number above 0."""
    if not (number := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"it takes a number above 0, not {text}")
    return number
