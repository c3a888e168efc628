"""What a long-cycle boundary costs, in ordinary iterations of the same run.

    python benchmarks/boundary.py --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml \\
        --output runs/boundary DATA.PATH_TO_DATA_DIR runs/demo/data SOLVER.MAX_EPOCH 12 \\
        SOLVER.STEPS "[0, 9]"

Trains the recipe, logging every iteration, without evaluation or checkpoints but at the end. The
extra time of a boundary is what its first short cycle takes beyond the median of the same shapes
later in the phase; the ratio is to the median iteration of the run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from tabulate import tabulate

from slowfast_patches.config import load_recipe
from slowfast_patches.train.run import run
from slowfast_patches.utils.command_line import tool

QUIET = ["LOG_PERIOD", 1, "TEST.ENABLE", False, "BN.USE_PRECISE_STATS", False]
NO_MILESTONES = ["MULTIGRID.EVAL_FREQ", 1, "TRAIN.CHECKPOINT_PERIOD", 10**6]
CYCLE = 3


@tool()
def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cfg", required=True, metavar="FILE")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--json", type=Path, help=argparse.SUPPRESS)  # an earlier place
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE")
    args = parser.parse_args()
    metrics = args.output / "metrics.jsonl"
    if not metrics.exists():
        pairs = [*args.overrides, *map(str, [*QUIET, *NO_MILESTONES, "OUTPUT_DIR", args.output])]
        run(load_recipe(args.cfg, pairs))
    result = measure(metrics)
    machine = json.loads((args.output / "result.json").read_text(encoding="utf-8"))
    result |= {key: machine[key] for key in ("machine", "versions", "date")}
    print(tabulate(result["boundaries"], headers="keys", floatfmt=".3f"))
    print(f"median iteration {result['median_seconds']:.3f} s")
    print(f"a boundary costs {result['median_ratio']:.2f} iterations (median)")
    for path in {args.output / "boundary.json", args.json} - {None}:
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(metrics: Path) -> dict[str, object]:
    """The extra time of each boundary of a run logged at every iteration."""
    lines = map(json.loads, metrics.read_text(encoding="utf-8").splitlines())
    steps = [line for line in lines if line["type"] == "train"]
    for before, step in zip([{"seconds": 0.0}, *steps], steps, strict=False):
        step["took"] = step["seconds"] - before["seconds"]
    median = statistics.median(step["took"] for step in steps)
    rows = []
    for phase in range(1, steps[-1]["phase"] + 1):
        own = [step for step in steps if step["phase"] == phase]
        first, later = own[:CYCLE], own[CYCLE:]
        usual = [_median_of(later, step["shape"]) for step in first]
        extra = sum(step["took"] for step in first) - sum(usual)
        rows.append(
            {
                "boundary before": f"phase {phase + 1}",
                "shape": "×".join(map(str, first[-1]["shape"])),
                "extra seconds": extra,
                "in iterations": extra / median,
            }
        )
    ratios = [row["in iterations"] for row in rows]
    return {
        "boundaries": rows,
        "median_seconds": median,
        "median_ratio": statistics.median(ratios),
        "spread": [min(ratios), max(ratios)],
    }


def _median_of(steps: list[dict[str, object]], shape: object) -> float:
    return statistics.median(float(str(s["took"])) for s in steps if s["shape"] == shape)


if __name__ == "__main__":
    sys.exit(main())
