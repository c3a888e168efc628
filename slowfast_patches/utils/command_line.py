"""Shared parts of the command lines: exit statuses, error reports, and option types.

This module must be quick to import.
"""

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
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO, cast

from slowfast_patches.utils.signals import (
    BY_HAND_STATUS,
    INTERRUPTED_STATUS,
    TrainingInterruptedError,
)

MISTAKE_STATUS = 2
_FAILED = 1
_CONTROL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters other than tabs and line ends, and bytes of file names outside UTF-8."""

_BUG = "This is a bug in slowfast-multigrid. Please report it with the lines above."

Main = Callable[..., int]


class ToolError(RuntimeError):
    """Failure that is not a bug or a mistake of the user, reported without a traceback."""

    exit_status = _FAILED


def exit_status(error: BaseException) -> int:
    """Return the exit status for an error.

    Returns:
        The `exit_status` of the error if it has one. Otherwise 130 for Ctrl-C, 2 for a mistake of
        the user, and 1 for a bug.
    """
    if isinstance(error, KeyboardInterrupt):
        return BY_HAND_STATUS
    mistake = isinstance(error, (ValueError, OSError, ImportError))
    return getattr(error, "exit_status", MISTAKE_STATUS if mistake else _FAILED)


def report(error: BaseException, who: str = "", *, terminal: bool = True) -> int:
    """Report the error that ended a program, in the log files and on the terminal.

    Bugs have a traceback.

    Args:
        error: The error.
        who: Prefix of the text, such as "rank 1: ".
        terminal: Whether to write to the terminal.

    Returns:
        The exit status.
    """
    status = exit_status(error)
    interrupted = status in (
        0,
        INTERRUPTED_STATUS,
    )  # Under torchrun, an interrupted run has status 0.
    text = "\n".join([str(error) or type(error).__name__, *getattr(error, "__notes__", ())])
    if status == _FAILED and not isinstance(error, ToolError):
        text = "".join([*traceback.format_exception(error), _BUG])
    text = printable(f"interrupted: {text}" if interrupted else f"error: {who}{text}")
    if terminal:
        sys.stderr.write(text + "\n")  # In one piece, because other ranks may write, too.
        sys.stderr.flush()
    level = logging.WARNING if interrupted else logging.ERROR
    record = logging.LogRecord(__name__, level, __file__, 0, text, None, None)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            handler.handle(record)
    return status


def ends_early(*, resumes: bool = False) -> None:
    """Let Ctrl-C end the program with one line and status 130 until a `tool` begins.

    Call this before slow imports. Only the first process of a node prints the line.

    Args:
        resumes: Let SIGTERM end the program with status 75, as an interrupted training.
    """
    for number in (signal.SIGINT, signal.SIGTERM)[: 1 + resumes]:
        signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    if _is_first_here():
        os.write(2, b"interrupted\n")
    by_hand = number == signal.SIGINT
    os._exit(BY_HAND_STATUS if by_hand else TrainingInterruptedError().exit_status)


def _is_first_here() -> bool:
    """Return whether this is the first process that torchrun or srun started on this node."""
    return os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) == "0"


def tool(*, interrupted: str = "interrupted") -> Callable[[Main], Main]:
    """Decorate the `main` function of a program, so that errors are reported by `report`.

    The decorated function escapes control characters in the output, and is silent if standard
    output is closed, for example by `| head`.

    Args:
        interrupted: Line to print on Ctrl-C.
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
                    # Python flushes again at exit. Its documentation recommends this.
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
    """Escape control characters. They may be in file names, and a terminal would obey them."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


class _Printable:
    """Stream that escapes control characters and writes to another stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def command_parser(about: str) -> argparse.ArgumentParser:
    """Return a parser with --version, whose --help starts with the text `about`."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=layout)
    text = "print the versions of the packages and describe the machine, then exit"
    parser.add_argument("--version", action=_Version, nargs=0, help=text)
    return parser


def add_option(
    group: argparse._ActionsContainer,
    name: str,
    metavar: str | None,
    help: str,
    kind: Callable[[str], Any] = str,
    default: Any = None,
    **more: Any,
) -> None:
    """Add an option with a value. `more` are other arguments of `add_argument`."""
    group.add_argument(name, metavar=metavar, help=help, type=kind, default=default, **more)


def add_list(group: argparse._ActionsContainer, name: str, help: str, **more: Any) -> None:
    """Add an option for a file that can be repeated."""
    add_option(group, name, "FILE", help, Path, [], action="append", **more)


def add_pairs(group: argparse._ActionsContainer, name: str) -> None:
    """Add an option of sbatch's options."""
    text = "additional option of sbatch, such as account=vision; can be repeated"
    add_option(group, name, "KEY=VALUE", text, key_value, [], action="append")


def add_cfg(group: argparse._ActionsContainer) -> None:
    """Add --cfg, the recipe."""
    add_option(group, "--cfg", "FILE", "recipe, a YAML file", Path, required=True)


def add_output(group: argparse._ActionsContainer, default: str) -> None:
    """Add --output, the folder of a study, and --json."""
    text = "folder for runs and reports (default: %(default)s)"
    add_option(group, "--output", "DIR", text, Path, Path(default))
    add_json(group)


def add_json(group: argparse._ActionsContainer, more: str = "") -> None:
    """Add --json."""
    group.add_argument("--json", action="store_true", help=f"print JSON only{more}")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from slowfast_patches.utils.machine import machine, versions  # imports torch

        for name, value in (versions() | machine()).items():
            print(f"{name}: {value}")
        parser.exit()


def key_value(text: str) -> tuple[str, str]:
    """Convert KEY=VALUE to a pair, as the type of an option."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, not {text}")
    return key, value


class _Pairs(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any
    ) -> None:
        setattr(namespace, self.dest, [*split_pairs(values), *imports_pair(namespace)])


def add_overrides(group: argparse._ActionsContainer, text: str) -> None:
    """Add --import and the argument `overrides`: pairs KEY VALUE, also written as KEY=VALUE."""
    add_imports(group)
    add = group.add_argument
    add("overrides", action=_Pairs, nargs="*", default=[], metavar="KEY VALUE", help=text)


def add_imports(group: argparse._ActionsContainer) -> None:
    """Add --import, which stands for the key IMPORTS (see `imports_pair`)."""
    text = (
        "Python module to import first, such as my_model for my_model.py in this folder, which "
        "registers models, data sets or augmentations (docs/extend.md); sets IMPORTS; can be "
        "repeated"
    )
    add = group.add_argument
    add("--import", dest="imports", action="append", default=[], metavar="MODULE", help=text)


def imports_pair(args: argparse.Namespace) -> list[str]:
    """Return the pair of the key IMPORTS that the options --import stand for, if any."""
    return ["IMPORTS", ",".join(args.imports)] if args.imports else []


def split_pairs(words: Sequence[Any]) -> list[Any]:
    """Split each KEY=VALUE among pairs into two words."""
    pairs = list[Any]()
    for word in words:
        key, equals, value = str(word).partition("=")
        pairs += [key, value] if equals and len(pairs) % 2 == 0 else [word]
    return pairs


def option_of(name: str) -> str:
    """Return the option of an argument name: `at_once` becomes `--at-once`."""
    return "--" + name.replace("_", "-")


def add_seeds(parser: argparse.ArgumentParser) -> None:
    """Add --seeds. After parsing, call `take_numbers(args, "seeds", whole_number)`."""
    text = "random seeds, whole numbers (default: 0)"
    parser.add_argument("--seeds", nargs="+", default=["0"], metavar="SEED", help=text)


def whole_number(word: str) -> int:
    """Convert a word to a whole number from 0.

    Raises:
        ValueError: The word is something else.
    """
    if not word.isdigit():
        raise ValueError(f"{word} is not a whole number")
    return int(word)


def take_numbers(args: argparse.Namespace, name: str, kind: Callable[[str], float]) -> None:
    """Convert the words of an option that takes several numbers.

    argparse also assigns to such an option the KEY VALUE pairs after it. They are moved to
    `args.overrides`.

    Args:
        args: Parsed arguments, changed in place.
        name: Name of the option in `args`.
        kind: Converter of a word.

    Raises:
        ValueError: A word is neither a number of this kind nor a key.
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
    """Add --at-once, the number of simultaneous runs."""
    text = (
        "number of runs to train at the same time (default: %(default)s); their times are then not "
        "those of a single run, which --step-times gives"
    )
    add_option(group, "--at-once", "N", text, at_least_one, 1)


def at_least_one(text: str) -> int:
    """Convert to a whole number from 1, as the type of an option."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, not {text}")
    return int(text)


def above_zero(text: str) -> float:
    """Convert to a number above 0, as the type of an option."""
    if not (number := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, not {text}")
    return number
