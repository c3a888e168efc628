r"""Count the operations that a training step dispatches, at every shape of a recipe's schedule.

    python benchmarks/operations.py --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml \
        --output operations.json NUM_GPUS 0 TRAIN.BATCH_SIZE 8

The CPU dispatches one operation after another. If the operations are short, a step takes as long as
the CPU needs to dispatch them. The program counts operations on meta tensors, on the code path for
GPUs, so it needs no GPU. Views and allocations are not counted. An operation can launch several
kernels.

The first table shows the operations of the recipe by shape and by part of the step, beside those of
PySlowFast's own model and loop in float32, which has no BN groups. The second table shows the names
of the operations at the first and at the last shape. With --most N, the exit status is 1 if a step
has more than N operations.

By default, TRAIN.MIXED_PRECISION and SOLVER.FUSED are True, as for a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from common import Column, new_parser, provenance, table, write_result
from steps.case import Bench, Steps, checked_recipe
from steps.count import META, PLACES, by_name, count_operations, meta_like_gpu, total
from steps.host import HostBench, host_problem

from multigrid import Shape
from slowfast_patches import patching
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.plan.recipe_times import shapes_to_measure
from slowfast_patches.train.dry_run import made_up_batch
from slowfast_patches.train.step_timer import timed_step
from slowfast_patches.utils.command_line import add_option, at_least_one, tool

_LIKE_GPU = ("TRAIN.MIXED_PRECISION", True, "SOLVER.FUSED", True)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = new_parser(__doc__, rounds=1)
    add_option(parser, "--cfg", "FILE", "the recipe, a YAML file", required=True)
    text = "exit with status 1 if a step has more operations"
    add_option(parser, "--most", "N", text, at_least_one)
    return parser.parse_args(argv)


def count_recipe(
    recipe: Recipe, shapes: Sequence[tuple[Shape, int | None]], *, has_host: bool
) -> list[dict[str, Any]]:
    """Count the operations of a step of a recipe.

    Args:
        recipe: The recipe.
        shapes: Shapes of the mini-batch, with BN group sizes.
        has_host: Whether to count PySlowFast's own step as well, if PySlowFast has the model.

    Returns:
        A row of plain data for each shape.
    """
    patching.apply()
    rows = list[dict[str, Any]]()
    with meta_like_gpu():
        ours = Bench(recipe, META)
        plain = recipe.replaced({"TRAIN.MIXED_PRECISION": False, "SOLVER.FUSED": False})
        can_count = has_host and host_problem(recipe) is None
        host = HostBench(plain, META) if can_count else None
        for shape, bn_group_size in shapes:
            row = _count(ours, recipe, shape, bn_group_size)
            if host is not None:
                row["host"] = _count(host, plain, shape, None)
            rows.append(row)
    return rows


def _count(steps: Steps, recipe: Recipe, shape: Shape, bn_group_size: int | None) -> dict[str, Any]:
    clips = shape.batch // recipe.world_size
    batch = made_up_batch(recipe, clips, shape)
    counts = count_operations(steps, timed_step(shape, clips, bn_group_size), batch)
    places = {place: total(counts, place) for place in PLACES}
    groups = max(1, clips // (bn_group_size or clips))
    size = [shape.batch, shape.frames, shape.crop]
    return {
        "shape": size,
        "groups": groups,
        "total": total(counts),
        "places": places,
        "names": by_name(counts),
    }


def format_result(rows: Sequence[dict[str, Any]]) -> str:
    """Format the two tables."""
    columns: dict[str, Column] = {
        "shape": ("shape", lambda shape: "×".join(map(str, shape))),
        "BN groups": ("groups", str),
        **{place: (f"places|{place}", str) for place in PLACES},
        "all": ("total", str),
        "PySlowFast": ("host|total", str),
    }
    first, last = rows[0]["names"], rows[-1]["names"]
    names = [
        {"name": name, "first": first.get(name, 0), "last": last.get(name, 0)}
        for name in {**first, **last}
    ]
    of_names: dict[str, Column] = {
        "operation": ("name", str),
        "first shape": ("first", str),
        "last shape": ("last", str),
    }
    return f"{table(rows, columns)}\n\n{table(names, of_names)}"


@tool
def main(argv: Sequence[str] | None = None) -> int:
    """Count, print and write the result, and return the exit status."""
    args = parse_args(argv)
    recipe = checked_recipe(args.cfg, [*_LIKE_GPU, *args.overrides])
    rows = count_recipe(recipe, shapes_to_measure(recipe), has_host=True)
    print(format_result(rows))
    write_result(args.output, "operations.py", argv, {**provenance(), "shapes": rows})
    most = max(row["total"] for row in rows)
    if args.most is not None and most > args.most:
        print(f"A step has {most} operations, more than {args.most}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
