"""What a long-cycle boundary costs, in ordinary iterations of the same run.

    python benchmarks/boundary.py --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml \\
        --output runs/boundary DATA.PATH_TO_DATA_DIR runs/demo/data SOLVER.MAX_EPOCH 12 \\
        SOLVER.STEPS "[0, 9]"

Trains the recipe, logging every iteration, without evaluation or checkpoints but at the end. The
extra time of a boundary is what its first short cycle takes beyond the median of the same shapes
later in the phase; the ratio is to the median iteration of the run.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import iterations_of, new_parser, provenance, write_result
from tabulate import tabulate

from slowfast_patches.config import load_recipe
from slowfast_patches.train.run import run
from slowfast_patches.utils.command_line import tool

QUIET = ["LOG_PERIOD", 1, "TEST.ENABLE", False, "BN.USE_PRECISE_STATS", False]
NO_MILESTONES = ["MULTIGRID.EVAL_FREQ", 1, "TRAIN.CHECKPOINT_PERIOD", 10**6]
CYCLE = 3


@tool()
def main(argv: Sequence[str] | None = None) -> int:
    """Train, unless that was done before, measure, print and write."""
    parser = new_parser(__doc__, rounds=None, folder="runs/boundary")
    parser.add_argument("--cfg", required=True, metavar="FILE")
    args = parser.parse_intermixed_args(argv)
    if not (args.output / "metrics.jsonl").exists():
        keys = [*QUIET, *NO_MILESTONES, "OUTPUT_DIR", args.output]
        run(load_recipe(args.cfg, [*args.overrides, *map(str, keys)]))
    result = measure(args.output)
    print(tabulate(result["boundaries"], headers="keys", floatfmt=".3f"))
    print(f"median iteration {result['median_seconds']:.3f} s")
    print(f"a boundary costs {result['median_ratio']:.2f} iterations (median)")
    write_result(args.output / "boundary.json", "boundary.py", argv, result | provenance())
    return 0


def measure(folder: Path) -> dict[str, Any]:
    """The extra time of each boundary of a run logged at every iteration."""
    steps = iterations_of(folder)
    median = statistics.median(step["took"] for step in steps)
    rows = []
    for phase in range(1, steps[-1]["phase"] + 1):
        own = [step for step in steps if step["phase"] == phase]
        extra = 0.0
        for step in own[:CYCLE]:
            later = [other["took"] for other in own[CYCLE:] if other["shape"] == step["shape"]]
            extra += step["took"] - statistics.median(later)
        rows.append(
            {
                "boundary before": f"phase {phase + 1}",
                "shape": "×".join(map(str, own[:CYCLE][-1]["shape"])),
                "extra seconds": extra,
                "in iterations": extra / median,
            }
        )
    found = [row["in iterations"] for row in rows]
    spread = {"median_ratio": statistics.median(found), "spread": [min(found), max(found)]}
    return {"boundaries": rows, "median_seconds": median, **spread}


if __name__ == "__main__":
    sys.exit(main())
