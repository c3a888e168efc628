"""Print what a config will train, phase by phase, and what it costs beside its baseline.

No data and no GPU is needed. Example:

    python tools/plan.py --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml \\
        --dataset-size 240436 --plot plan.png MULTIGRID.EPOCH_FACTOR 1.0

What benchmarks/step_time.py measured turns it into hours and a wall-clock speed-up:

    python benchmarks/step_time.py --cfg RECIPE.yaml --output steps.json
    python tools/plan.py --cfg RECIPE.yaml --step-times steps.json
"""

import argparse
import json
import shlex
import sys
from pathlib import Path

from fvcore.common.config import CfgNode

from slowfast_patches.config import check_config, load_config
from slowfast_patches.engine.launch import for_processes, processes_of
from slowfast_patches.engine.plan import format_plan, plan_config
from slowfast_patches.engine.plan_picture import plot_plan
from slowfast_patches.engine.step_times import MisfitError, read_step_times
from slowfast_patches.engine.timing import UNTIMED, Timing, estimated_timing, measured_timing
from slowfast_patches.models.flops import flops_per_clip


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cfg", type=Path, required=True, metavar="FILE", help="the config file")
    parser.add_argument(
        "--dataset-size",
        type=int,
        metavar="N",
        help="training videos (default: the length of the list, else DATA.NUM_TRAIN_VIDEOS)",
    )
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument(
        "--step-times",
        type=Path,
        action="append",
        metavar="FILE",
        help="of benchmarks/step_time.py; of several, the first that has the recipe's shapes",
    )
    speed.add_argument(
        "--step-seconds",
        type=float,
        metavar="S",
        help="seconds of one iteration at the baseline's shape; the others by their FLOPs",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw shapes and LR over the iterations"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY VALUE", help="config keys to set, after the options"
    )
    return parser.parse_intermixed_args(argv)


def find_timing(cfg: CfgNode, args: argparse.Namespace) -> Timing:
    """How long iterations take, where the command line says it."""
    if args.step_seconds is not None:
        return estimated_timing(cfg, args.step_seconds, flops_per_clip(cfg))
    if args.step_times:
        return measured_timing([read_step_times(path) for path in args.step_times], cfg)
    return UNTIMED


def main(argv: list[str] | None = None) -> int:
    """Print the plan, or say in one line why there is none; returns the exit status."""
    args = parse_args(argv)
    try:
        cfg = for_processes(load_config(args.cfg, args.overrides))
        check_config(cfg, processes_of(cfg))
        schedule, plan = plan_config(cfg, args.dataset_size, find_timing(cfg, args))
        if args.plot:
            plot_plan(schedule, args.plot)
    except MisfitError as error:
        recipe = shlex.join(["--cfg", str(args.cfg), "--output", "FILE.json", *args.overrides])
        print(
            f"error: {error}; to measure it: python benchmarks/step_time.py {recipe}",
            file=sys.stderr,
        )
        return 2
    except (ValueError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(plan.to_json(), indent=2) if args.json else format_plan(plan))
    if args.plot and not args.json:
        print(f"\nPicture: {args.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
