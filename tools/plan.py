"""Print what a config will train, phase by phase, and what it costs beside its baseline.

No data and no GPU is needed. Example:

    python tools/plan.py --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml \\
        --dataset-size 240436 --plot plan.png MULTIGRID.EPOCH_FACTOR 1.0
"""

import argparse
import json
import sys
from pathlib import Path

from slowfast_patches.config import check_config, load_config
from slowfast_patches.engine.launch import for_processes
from slowfast_patches.engine.plan import format_plan, plan_config, plot_plan


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
        help="training videos (default: the length of train.csv, else DATA.NUM_TRAIN_VIDEOS)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw shapes and LR over the iterations"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY VALUE", help="config keys to set, after the options"
    )
    return parser.parse_intermixed_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Print the plan, or say in one line why there is none; returns the exit status."""
    args = parse_args(argv)
    try:
        cfg = for_processes(load_config(args.cfg, args.overrides))
        check_config(cfg)
        schedule, plan = plan_config(cfg, args.dataset_size)
        if args.plot:
            plot_plan(schedule, args.plot)
    except (ValueError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(plan.to_json(), indent=2) if args.json else format_plan(plan))
    if args.plot and not args.json:
        print(f"\nPicture: {args.plot}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
