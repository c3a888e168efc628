"""Find out in minutes whether multigrid training helps a model on its data, and which cycle.

    multigrid-pilot --cfg RECIPE.yaml DATA.PATH_TO_DATA_DIR data

The pilot trains the baseline and one cycle or more for equal times, from
TRAIN.CHECKPOINT_FILE_PATH or from scratch. Each training ends at the baseline's shape, where all
are scored. The pilot prints the scores, whether to use multigrid, how probable that is, and the
expected speed-up. It writes the same to pilot.md, pilot.json and pilot.png in the output folder,
and the recipe with the best cycle to multigrid.yaml.

By default the pilot takes a tenth of the baseline's time, but no less than about 600 iterations of
the baseline. It times a few steps first. If --minutes is too short, it stops at once. If the whole
baseline takes no longer than the pilot, it prints the command that trains both.

The pilot is one process. For a recipe of several GPUs, it trains the share of one of them. It uses
neither CUDA graphs nor averaged weights, whatever the recipe says.
"""

import argparse
import json
import logging
import math
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from slowfast_patches.utils import command_line

if __name__ == "__main__":
    command_line.ends_early()

from multigrid import PAPER, Cycles
from slowfast_patches import patching
from slowfast_patches.config.load import load_recipe, recipe_path
from slowfast_patches.datasets.lists.dataset_lists import load_with_classes
from slowfast_patches.launch.device import check_gpus, process_device, set_up_device
from slowfast_patches.launch.placement import find_placement
from slowfast_patches.study.pilot.race import ShortBaselineError, one_process, run_pilot
from slowfast_patches.study.pilot.report import pilot_report, recipe_text

_OFF = replace(PAPER, long_cycle=(), short_cycle=())


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = command_line.command_parser(__doc__)
    text = "config of the baseline"
    parser.add_argument("--cfg", type=Path, required=True, metavar="FILE", help=text)
    text = (
        "approximate time of the pilot (default: a tenth of the baseline's time, if that is enough)"
    )
    parser.add_argument("--minutes", type=float, metavar="M", help=text)
    text = "folder for the report (default: %(default)s)"
    parser.add_argument("--output", type=Path, default=Path("runs/pilot"), metavar="DIR", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON only")
    text = "config keys to set"
    command_line.add_overrides(parser, text)
    args = parser.parse_intermixed_args(argv)
    if args.minutes is not None and not 0 < args.minutes < math.inf:
        parser.error(f"--minutes takes a number above 0, not {args.minutes:g}.")
    return args


def next_command(args: argparse.Namespace, cycles: Cycles | None, *, compare: bool) -> str:
    """Write a recipe with some cycles, and return the command that trains it.

    Args:
        args: the command line of the pilot.
        cycles: cycles of the recipe.
        compare: whether the command trains the baseline, too.
    """
    assert cycles is not None, "the best arm is a cycle"
    recipe = args.output / "multigrid.yaml"
    args.output.mkdir(parents=True, exist_ok=True)
    given = recipe_path(args.cfg).resolve()
    recipe.write_text(recipe_text(cycles, str(given)), encoding="utf-8")
    if not compare:
        return shlex.join(["multigrid-train", "--cfg", str(recipe), *args.overrides])
    pairs = zip(args.overrides[::2], args.overrides[1::2], strict=True)
    shared = [text for pair in pairs if pair[0] not in ("OUTPUT_DIR", "RNG_SEED") for text in pair]
    baseline = args.cfg
    if load_recipe(given, args.overrides).uses_multigrid:
        baseline = args.output / "baseline.yaml"
        baseline.write_text(recipe_text(_OFF, str(given)), encoding="utf-8")
    both = ["--cfg", str(baseline), "--cfg", str(recipe), "--equal-iterations"]
    return shlex.join(["multigrid-compare", *both, *shared])


def show(text: str, data: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the text, or else the data as JSON."""
    print(json.dumps(data, indent=2, ensure_ascii=False) if as_json else text)


@command_line.tool()
def main(argv: list[str] | None = None) -> int:
    """Run the pilot, print its report, and return the exit status."""
    args = parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("slowfast_patches.study.pilot.race").setLevel(logging.INFO)
    patching.apply()
    recipe = load_with_classes(recipe_path(args.cfg), args.overrides)
    check_gpus(recipe, find_placement(recipe, os.environ))
    alone = one_process(recipe)
    set_up_device(alone)
    seconds = None if args.minutes is None else 60 * args.minutes
    try:
        pilot = run_pilot(recipe, seconds, process_device(alone, 0))
    except ShortBaselineError as error:
        advised = next_command(args, error.cycles, compare=True)
        data = {"advice": "train both", "reason": str(error), "command": advised}
        show(f"{error}\n\n    {advised}", data, as_json=args.json)
        return 0
    except FloatingPointError as error:
        raise command_line.ToolError(str(error)) from error
    command = shlex.join(["multigrid-pilot", *(sys.argv[1:] if argv is None else argv)])
    report = pilot_report(pilot, command)
    report.write(args.output)
    advised = next_command(args, pilot.best.cycles, compare=pilot.verdict != "use multigrid")
    text = str(report)
    if pilot.verdict != "do not use multigrid":
        text += f"\n\n    {advised}"
    text += f"\n\nReport: {args.output / 'pilot.md'}, pilot.json, pilot.png"
    show(text, report.data, as_json=args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
