"""Helpers for command-line programs: signals, output, and types of options.

This module must not import slow packages.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import select
import shlex
import signal
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from io import TextIOWrapper
from itertools import islice, takewhile
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn, cast

from slowfast_patches.utils.interruption import (
    BY_HAND_STATUS,
    TrainingInterruptedError,
    interrupted_status,
)
from slowfast_patches.utils.signals import STOP_SIGNALS, finished

Main = Callable[..., int]


def start_program(*, resumes: bool = False) -> None:
    """Prepare the process of a command-line program. Call this before slow imports.

    Ctrl-C then ends the program with a one-line message and status 130 instead of a traceback. This
    applies until a function decorated with `tool` is called. Only the first process of a machine
    prints the message.

    The folder of the program is removed from the import path, so that its files cannot hide modules
    of the user (option --import).

    Args:
        resumes: Whether the program is a training that can be resumed. SIGTERM and SIGUSR1 then end
            the program with status 75. When its `main` has returned, they are ignored.
    """
    # File names may contain bytes that are not UTF-8.
    cast(TextIOWrapper, sys.stdout).reconfigure(errors="backslashreplace")
    if sys.path[0] == os.path.dirname(os.path.abspath(sys.argv[0])):
        del sys.path[0]
    for number in STOP_SIGNALS if resumes else (signal.SIGINT,):
        signal.signal(number, _end)


def answer_help(new_parser: Callable[[], argparse.ArgumentParser]) -> None:
    """Print the help and exit, if the command line of this program asks for it.

    Call this before slow imports, with a function that needs none of them. In a process without
    `start_program`, such as that of a test, this does nothing.
    """
    if signal.getsignal(signal.SIGINT) is _end and {"-h", "--help"} & set(sys.argv[1:]):
        new_parser().parse_args(["--help"])


def _end(number: int, frame: FrameType | None) -> None:
    if finished.is_set():
        return
    if _is_first_here():
        os.write(2, b"interrupted\n")
    by_hand = number == signal.SIGINT
    os._exit(BY_HAND_STATUS if by_hand else interrupted_status())


def _is_first_here() -> bool:
    """Return whether this is the first process that torchrun or srun started on this machine."""
    return os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) == "0"


def tool(main: Main) -> Main:
    """Decorate the `main` function of a program, which returns the exit status.

    Errors are passed to `report`. If standard output is closed, for example by `| head`, the
    program ends without a message.
    """

    @functools.wraps(main)
    def run(*arguments: Any) -> int:
        resumes = signal.getsignal(signal.SIGTERM) is _end
        if signal.getsignal(signal.SIGINT) is _end:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            status = main(*arguments)
            sys.stdout.flush()
            return status
        except KeyboardInterrupt:
            print("interrupted. To continue, repeat the command", file=sys.stderr)
            return BY_HAND_STATUS
        except (Exception, TrainingInterruptedError) as error:
            if isinstance(error, BrokenPipeError) and _is_closed(1):
                # Python flushes stdout again at exit. Redirect it, so that this does not fail.
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                return 1
            from slowfast_patches.utils.errors import report  # Lazy: this imports torch.

            return report(error, terminal=_is_first_here())
        finally:
            for number in STOP_SIGNALS if resumes else ():
                signal.signal(number, signal.SIG_IGN)

    return run


def _is_closed(number: int) -> bool:
    """Return whether the reader of a pipe has closed it."""
    poll = select.poll()
    poll.register(number, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def command_parser(about: str) -> argparse.ArgumentParser:
    """Return an argument parser with the option --version.

    Args:
        about: Description of the program for --help. Line breaks are kept.
    """
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=layout)
    text = "print package versions and a description of the machine, then exit"
    parser.add_argument("--version", action=_Version, nargs=0, help=text)
    return parser


class ExtraOption(NamedTuple):
    """Option that an extra adds to a command, from a table COMMAND.NAME of its options.toml.

    Attributes:
        name: Name of the option without "--".
        metavar: Placeholder of the value in --help, which is a path.
        help: Description for --help.
        text: Paragraph for the description of the command.
        write: Module and name of the function that does what the option asks for.
        is_file: Whether the value is a file. Otherwise it is a folder.
        keys: Keys and values in turn that the option sets in the recipe.
    """

    name: str
    metavar: str
    help: str
    text: str
    write: str
    is_file: bool
    keys: list[Any]


def extra_options(command: str) -> list[ExtraOption]:
    """Return the options that the extras add to a command."""
    files = sorted((Path(__file__).parents[1] / "extras").glob("*/options.toml"))
    tables = [tomllib.loads(file.read_text(encoding="utf-8")) for file in files]
    options = [item for table in tables for item in table.get(command, {}).items()]
    return [ExtraOption(name, **values) for name, values in options]


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


def add_step_times(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Add --step-times and --step-seconds, which exclude each other."""
    group = parser.add_mutually_exclusive_group(required=required)
    text = (
        "result file of benchmarks/step_time.py with the times at all shapes; if this option is "
        "repeated, the first file that fits the recipe is used"
    )
    add_list(group, "--step-times", text)
    text = (
        "seconds per iteration at the baseline's shape; times at other shapes are estimated from "
        "their FLOPs"
    )
    add_option(group, "--step-seconds", "S", text, above_zero)


def add_cfg(group: argparse._ActionsContainer) -> None:
    """Add --cfg, the recipe."""
    add_option(group, "--cfg", "FILE", "recipe, a YAML file", Path, required=True)


def add_output(group: argparse._ActionsContainer, default: str) -> None:
    """Add --output, the folder of an experiment."""
    text = "folder for runs and reports (default: %(default)s)"
    add_option(group, "--output", "DIR", text, Path, Path(default))


def add_json(group: argparse._ActionsContainer, more: str = "") -> None:
    """Add --json."""
    group.add_argument("--json", action="store_true", help=f"print JSON only{more}")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from slowfast_patches.utils.machine import machine, versions  # Lazy: this imports torch.

        for name, value in (versions() | machine()).items():
            print(f"{name}: {value}")
        parser.exit()


def key_value(text: str) -> tuple[str, str]:
    """Split KEY=VALUE into (key, value). Use this as `type` of an argparse option."""
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
    """Add the option --import and the positional argument `overrides` to a parser.

    `overrides` takes config keys and values, as KEY VALUE or KEY=VALUE.

    Args:
        group: Parser or argument group.
        text: Help text of `overrides`.
    """
    add_imports(group)
    add = group.add_argument
    add("overrides", action=_Pairs, nargs="*", default=[], metavar="KEY VALUE", help=text)


def add_imports(group: argparse._ActionsContainer) -> None:
    """Add the option --import, which sets the config key IMPORTS (see `imports_pair`)."""
    text = (
        "Python module to import first, such as my_model for my_model.py in this folder. Such a "
        "module registers models, data sets or augmentations (docs/extend.md). The option can be "
        "repeated. It sets the key IMPORTS"
    )
    add = group.add_argument
    add("--import", dest="imports", action="append", default=[], metavar="MODULE", help=text)


def imports_pair(args: argparse.Namespace) -> list[str]:
    """Convert the options --import to a pair of the key IMPORTS and its value.

    Returns:
        ["IMPORTS", value], or [] if there is no option --import.
    """
    return ["IMPORTS", ",".join(args.imports)] if args.imports else []


def split_pairs(words: Sequence[Any]) -> list[Any]:
    """Return a list of alternating keys and values.

    Args:
        words: Config keys and values, either as KEY, VALUE or as KEY=VALUE.
    """
    pairs = list[Any]()
    for word in words:
        key, equals, value = str(word).partition("=")
        pairs += [key, value] if equals and len(pairs) % 2 == 0 else [word]
    return pairs


def option_of(name: str) -> str:
    """Return the option of an argparse attribute: `step_times` becomes `--step-times`."""
    return "--" + name.replace("_", "-")


def add_seeds(parser: argparse.ArgumentParser) -> None:
    """Add the option --seeds. After parsing, call `take_numbers(args, "seeds", from_zero)`."""
    text = "random seeds, whole numbers from 0 (default: 0)"
    parser.add_argument("--seeds", nargs="+", default=["0"], metavar="SEED", help=text)


def more_seeds(seeds: Sequence[int], count: int = 3) -> list[int]:
    """Return the seeds, with further ones until there are `count`."""
    others = (number for number in range(count + len(seeds)) if number not in seeds)
    return [*seeds, *islice(others, max(0, count - len(seeds)))]


def with_seeds(command: str, seeds: Iterable[int]) -> str:
    """Return a command line with other values of --seeds."""
    words = shlex.split(command)
    if "--seeds" in words:
        start = words.index("--seeds")
        end = start + 1
        while end < len(words) and words[end].isdigit():
            end += 1
        del words[start:end]
    options = [n for n, word in enumerate(words) if word.startswith("--")]
    where = options[0] if options else len(words)
    words[where:where] = ["--seeds", *map(str, seeds)]
    return shlex.join(words)


def add_accepted(parser: argparse.ArgumentParser) -> None:
    """Add the option --accept-change."""
    text = (
        "accept a difference that an error message names, such as val_list or SOLVER.BASE_LR; "
        "can be repeated"
    )
    add_option(parser, "--accept-change", "NAME", text, str, [], action="append")


def take_numbers(args: argparse.Namespace, name: str, kind: Callable[[str], float]) -> None:
    """Convert the values of an option that takes several different numbers, in place.

    argparse cannot know where the numbers end. If config keys and values follow the numbers on the
    command line, argparse assigns them to the option as well. Move them to `args.overrides`.

    Args:
        args: Parsed arguments.
        name: Name of the option in `args`.
        kind: Function that converts a word to a number, as `type` of an argparse option.

    Raises:
        UserError: A word is neither such a number nor a config key.
    """
    from slowfast_patches.utils.errors import UserError  # Lazy: this imports torch.

    words = getattr(args, name)
    # A key starts with a letter.
    numbers = list(takewhile(lambda word: not word[:1].isalpha(), words))
    if words and not numbers:
        raise UserError(f"{option_of(name)} takes numbers, not {words[0]}")
    args.overrides = split_pairs(words[len(numbers) :]) + args.overrides
    try:
        setattr(args, name, list(dict.fromkeys(map(kind, numbers))))
    except argparse.ArgumentTypeError as error:
        raise UserError(f"{option_of(name)}: {error}") from None


_MOST = 1e12
"""Maximum value of numbers on the command line."""


def from_zero(text: str) -> int:
    """Convert to an integer of at least 0. Use this as `type` of an argparse option."""
    return _whole(text, 0)


def at_least_one(text: str) -> int:
    """Convert to an integer of at least 1. Use this as `type` of an argparse option."""
    return _whole(text, 1)


def above_zero(text: str) -> float:
    """Convert to a number above 0. Use this as `type` of an argparse option."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= _MOST:
        raise argparse.ArgumentTypeError(f"expected a number above 0, not {text}")
    return number


def _whole(text: str, least: int) -> int:
    # `int` also takes 1_000 and digits of other scripts, and refuses very long texts.
    number = int(text) if re.fullmatch("[0-9]{1,13}", text) else -1
    if not least <= number <= _MOST:
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at least {least}, not {text:.40}"
        )
    return number
