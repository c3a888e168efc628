"""Seconds of a training step: of a recipe at every shape of its schedule, or of several recipes.

    python benchmarks/step_time.py --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml \\
        --output demo_steps.json
    python tools/plan.py --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml --dataset-size 640 \\
        --step-times demo_steps.json

    python benchmarks/step_time.py --cfg configs/Kinetics/TSM_8x8_R50.yaml \\
        --cfg configs/Kinetics/I3D_8x8_R50_1GPU.yaml \\
        --cfg configs/Kinetics/I3D_8x8_R50_NOPOOL.yaml \\
        --cfg configs/Kinetics/SLOWFAST_8x8_R50.yaml \\
        --clips 2 --rounds 5 --output models.json NUM_GPUS 0 DATA_LOADER.NUM_WORKERS 0

Made-up clips go the way that training sends them: normalised and packed, forward, loss, backward,
optimizer, in the recipe's precision, with the recipe's BN at each shape. The baseline's shape is
measured with the baseline's BN too. One process does the work of one of the recipe's NUM_GPUS ×
NUM_SHARDS: its share of the clips. What processes say to each other is not measured, nor is
loading; one GPU is enough. NUM_GPUS 0 measures the CPU.

Several recipes are compared at their baselines' shapes with equally many clips, beside their
parameters, multiply-adds and the gradients that processes would exchange. Overrides are for all.
On the CPU, give torch more threads than one (DATA_LOADER.NUM_WORKERS 0 leaves no core to readers):
with one, and fewer than 16 clips, it computes convolutions of 1 × 1 × 1 and 3 × 1 × 1 without
oneDNN, the latter slowly.

Every round times each shape, or recipe, once, in random order, so that whatever else the machine
does falls on all of them; what is relative is of one round. A shape that does not fit into the
GPU's memory is reported, and the others go on.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from fvcore.common.config import CfgNode
from step_bench import (
    Bench,
    Case,
    add_options,
    load_recipe,
    prepare_device,
    provenance,
    time_in_turns,
    write_result,
)
from step_models import format_models, measure_models

from multigrid import Shape
from slowfast_patches import patching
from slowfast_patches.engine.launch import processes_of
from slowfast_patches.engine.step_times import FORMAT, model_of, shapes_to_measure
from slowfast_patches.models.flops import check_shapes
from slowfast_patches.utils.report import format_table

__all__ = ["main", "measure"]


def measure(cfg: CfgNode, rounds: int, seconds: float) -> dict[str, Any]:
    """The time of each shape, over `rounds` rounds that together take about `seconds` of each.

    Raises:
        ValueError: the model cannot take a shape.
    """
    shapes = shapes_to_measure(cfg)
    check_shapes(cfg, [shape for shape, _ in shapes])
    device = prepare_device(cfg)
    bench = Bench(cfg, device)
    cases = [Case(bench, shape, bn_size) for shape, bn_size in shapes]
    time_in_turns(cases, rounds, seconds)
    return {
        "format": FORMAT,
        "precision": bench.precision_name(),
        "processes": processes_of(cfg),
        **provenance(device),
        "model": model_of(cfg),
        "shapes": [_row(case) for case in cases],
    }


def _row(case: Case) -> dict[str, Any]:
    return {
        "shape": [case.shape.batch, case.shape.frames, case.shape.crop],
        "local_clips": case.clips,
        "bn_size": case.bn_size,
        **case.to_json(),
    }


def format_result(result: dict[str, Any]) -> str:
    """A table of the shapes, and what they were measured on."""
    rows = []
    for row in result["shapes"]:
        spread = row["seconds"]
        cells = (
            [row["failure"], "", ""]
            if spread is None
            else [f"{spread[key]:.4f}" for key in ("median", "quartile_1", "quartile_3")]
        )
        bn_size = "batch" if row["bn_size"] is None else str(row["bn_size"])
        rows.append([str(Shape(*row["shape"])), str(row["local_clips"]), bn_size, *cells])
    headers = ["shape", "clips here", "BN clips", "s per iteration", "quartile 1", "quartile 3"]
    return (
        f"{format_table(headers, rows)}\n\n{result['device']['name']}, {result['precision']}, "
        f"{result['machine']['threads']} CPU threads; one process of {result['processes']}, "
        "without loading, evaluation, and communication between processes"
    )


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cfg",
        required=True,
        action="append",
        metavar="FILE",
        help="the recipe, a YAML file; several are compared, with the first",
    )
    parser.add_argument(
        "--clips",
        type=int,
        metavar="N",
        help="clips of one process, for several recipes; needed where theirs differ",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE.json",
        help="write the numbers here, too; those of one recipe are for tools/plan.py",
    )
    add_options(parser, rounds=7, of_each="shape or recipe")
    args = parser.parse_intermixed_args(argv)
    if args.clips is not None and args.clips < 1:
        parser.error("--clips takes 1 or more")
    if args.clips is not None and len(args.cfg) == 1:
        parser.error("--clips is for several --cfg; of one, TRAIN.BATCH_SIZE and its cycles decide")
    return args


def main(argv: list[str] | None = None) -> int:
    """Measure, print and write; returns the exit status."""
    args = parse_args(argv)
    try:
        patching.apply()
        recipes = [(path, load_recipe(path, args.overrides)) for path in args.cfg]
        if len(recipes) > 1:
            result = measure_models(recipes, args.clips, args.rounds, args.seconds)
            print(format_models(result))
        else:
            result = measure(recipes[0][1], args.rounds, args.seconds)
            print(format_result(result))
        if args.output:
            write_result(args.output, "step_time.py", argv, result)
    except torch.OutOfMemoryError as error:
        print(f"error: the networks, all kept at once, do not fit: {error}", file=sys.stderr)
        return 2
    except (ValueError, ImportError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
