"""What the command lines that train several runs share."""

from __future__ import annotations

import argparse
from itertools import takewhile

__all__ = ["add_seeds", "take_seeds"]


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
    args.overrides = args.seeds[len(seeds) :] + args.overrides
    args.seeds = list(dict.fromkeys(map(int, seeds)))
