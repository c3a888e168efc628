"""Train and test a recipe.

    python tools/run_net.py --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml \\
        DATA.PATH_TO_DATA_DIR /data/kinetics NUM_GPUS 8

Keys and values after the options replace those of the recipe.
"""

from __future__ import annotations

import argparse
import sys

from torch.multiprocessing.spawn import ProcessException

from slowfast_patches.config import load_config
from slowfast_patches.engine.run import run
from slowfast_patches.engine.stopping import (
    INTERRUPTED_STATUS,
    TrainingInterruptedError,
    TrainingStoppedError,
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cfg", required=True, metavar="FILE", help="the recipe, a YAML file")
    parser.add_argument(
        "--init_method",
        default="tcp://localhost:9999",
        metavar="URL",
        help="where the processes meet, without torchrun (default: %(default)s)",
    )
    parser.add_argument("--shard_id", type=int, help="this machine's number: SHARD_ID")
    parser.add_argument("--num_shards", type=int, help="the number of machines: NUM_SHARDS")
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="keys to replace")
    args = parser.parse_args()
    overrides = list(args.overrides)
    for key, value in (("SHARD_ID", args.shard_id), ("NUM_SHARDS", args.num_shards)):
        if value is not None:
            overrides += [key, str(value)]
    try:
        run(load_config(args.cfg, overrides), args.init_method)
    except TrainingInterruptedError as error:
        print(f"interrupted: {error}", file=sys.stderr)
        return INTERRUPTED_STATUS
    except (ValueError, ImportError, OSError, TrainingStoppedError, ProcessException) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
