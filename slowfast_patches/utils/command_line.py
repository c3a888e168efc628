"""What the command lines share; quick to import, so that `ends_early` can go before torch."""

from __future__ import annotations

import argparse
import functools
import os
import signal
import sys
from collections.abc import Callable, Mapping
from itertools import takewhile
from types import FrameType
from typing import Any, NoReturn

from slowfast_patches.utils.signals import BY_HAND_STATUS

__all__ = [
    "ToolError",
    "add_at_once",
    "add_lengths",
    "add_old_name",
    "add_options",
    "add_seeds",
    "command_parser",
    "ends_early",
    "key_value",
    "option_of",
    "take_lengths",
    "take_seeds",
    "tool",
]

_MISTAKE, _FAILED = 2, 1

Main = Callable[..., int]


class ToolError(RuntimeError):
    """What was asked for was begun and failed; the message says how. The exit status is 1."""


def ends_early() -> None:
    """Until a `tool` begins, Ctrl-C ends the program at once, with one line and status 130.

    To be called by a program before the imports that take seconds. Of several processes that a
    launcher starts on a machine, the first speaks.
    """
    signal.signal(signal.SIGINT, _end)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    if os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) == "0":
        os.write(2, b"interrupted\n")
    os._exit(BY_HAND_STATUS)


def tool(*, interrupted: str = "interrupted") -> Callable[[Main], Main]:
    """Decorate the `main` of a program: what a user can cause ends it with one line, at most.

    A mistake (ValueError, OSError, ImportError) has status 2, a `ToolError` 1, Ctrl-C 130 and the
    line `interrupted`. Where standard output was closed, as by `| head`, nothing is said.
    """

    def decorate(main: Main) -> Main:
        @functools.wraps(main)
        def run(*arguments: Any) -> int:
            if signal.getsignal(signal.SIGINT) is _end:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                status = main(*arguments)
                sys.stdout.flush()
            except BrokenPipeError:
                # Python flushes once more as it ends; as its documentation has it.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return _FAILED
            except (ValueError, OSError, ImportError, ToolError) as error:
                print(f"error: {error}", file=sys.stderr)
                return _FAILED if isinstance(error, ToolError) else _MISTAKE
            except KeyboardInterrupt:
                print(interrupted, file=sys.stderr)
                return BY_HAND_STATUS
            return status

        return run

    return decorate


def command_parser(about: str) -> argparse.ArgumentParser:
    """A parser whose --help begins with the program's own text."""
    layout = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(description=about, formatter_class=layout)


def add_options(group: argparse._ActionsContainer, options: Mapping[str, tuple[Any, ...]]) -> None:
    """Add options: name -> (type, placeholder, help), and the default where there is one.

    A switch is name -> (bool, help); one that may be given more than once has [type].
    """
    for name, (kind, *words) in options.items():
        if kind is bool:
            group.add_argument(name, action="store_true", help=words[0])
            continue
        several = isinstance(kind, list)
        placeholder, text, default = (*words, [] if several else None)[:3]
        group.add_argument(
            name,
            type=kind[0] if several else kind,
            action="append" if several else "store",
            metavar=placeholder,
            help=text,
            default=default,
        )


def key_value(text: str) -> tuple[str, str]:
    """The type of an option that takes KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"it takes KEY=VALUE, not {text}")
    return key, value


def option_of(name: str) -> str:
    """The option that a name of the parsed arguments stands for."""
    return "--" + name.replace("_", "-")


def add_old_name(
    parser: argparse.ArgumentParser, old: str, dest: str, type: Callable[[str], Any] = str
) -> None:
    """Keep an earlier name of an option as a synonym that --help does not show."""
    hidden = argparse.SUPPRESS
    parser.add_argument(old, dest=dest, type=type, default=hidden, help=hidden)


def add_seeds(parser: argparse.ArgumentParser) -> None:
    """Add --seeds; `take_seeds` is to follow."""
    parser.add_argument(
        "--seeds", nargs="+", default=["0"], metavar="SEED", help="whole numbers (default: 0)"
    )


def take_seeds(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Make `args.seeds` whole numbers, each once; KEY VALUE pairs that followed them are given back
    to `args.overrides`."""
    seeds = list(takewhile(str.isdigit, args.seeds))
    if not seeds:
        parser.error(f"--seeds takes whole numbers, not {args.seeds[0]}")
    rest = args.seeds[len(seeds) :]
    if rest and not rest[0][:1].isalpha():
        parser.error(f"--seeds takes whole numbers, not {rest[0]}")
    args.overrides = rest + args.overrides
    args.seeds = list(dict.fromkeys(map(int, seeds)))


def add_at_once(group: argparse._ActionsContainer) -> None:
    """Add --at-once."""
    text = (
        "runs that train side by side (%(default)s); their seconds are then not those of a run "
        "alone: --step-times has such"
    )
    group.add_argument("--at-once", type=_at_least_one, default=1, metavar="N", help=text)


def _at_least_one(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"it takes a whole number from 1, not {text}")
    return int(text)


def add_lengths(group: argparse._ActionsContainer) -> None:
    """Add --lengths; `take_lengths` is to follow."""
    text = "train each config at these multiples of its length, and draw curves: 0.25 0.5 1 2"
    group.add_argument("--lengths", nargs="+", default=[], metavar="L", help=text)


def take_lengths(args: argparse.Namespace) -> None:
    """Make `args.lengths` numbers; KEY VALUE pairs that followed them are given back to
    `args.overrides`.

    Raises:
        ValueError: the first, or one before any KEY, is no number.
    """
    lengths = list(takewhile(_is_number, args.lengths))
    rest = args.lengths[len(lengths) :]
    if rest and not (lengths and rest[0][:1].isalpha()):
        raise ValueError(f"--lengths takes numbers, not {rest[0]}")
    args.overrides = rest + args.overrides
    args.lengths = list(map(float, lengths))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
