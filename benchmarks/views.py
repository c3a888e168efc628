"""What it saves to read several clips of a video in one pass, as a test and DATA.REPEATED_CLIPS do.

    python benchmarks/views.py                                   # on videos that it renders
    python benchmarks/views.py --csv /data/kinetics/val.csv --videos 40

One core reads the test clips of each video, TEST.NUM_ENSEMBLE_VIEWS × NUM_SPATIAL_CROPS of the
recipe, and 2 and 4 random training clips, one after another and together, turn by turn, round after
round: from the files and from what tools/prepare_data.py makes of them. The clips are equal, which
is checked. A ratio is of one round.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from common import (
    ROOT,
    new_parser,
    provenance,
    quartiles,
    ratios,
    spread_text,
    take_turns,
    write_result,
)
from videos import Sets, add_videos, make_sets, use_one_core

from multigrid import ClipRequest
from slowfast_patches import patching
from slowfast_patches.config import load_recipe
from slowfast_patches.datasets.kinetics import Kinetics
from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.tables import format_table

__all__ = ["main", "measure"]


@tool()
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; returns the exit status."""
    parser = new_parser(__doc__, rounds=5, folder="runs/views")
    add_videos(parser, default=8)
    recipe = ROOT / "configs" / "Kinetics" / "SLOWFAST_8x8_R50.yaml"
    parser.add_argument("--cfg", default=str(recipe), metavar="FILE", help="whose test")
    args = parser.parse_intermixed_args(argv)
    use_one_core()
    result = measure(make_sets(args), args.cfg, args.overrides, args.rounds)
    headers = ["read from", "clips of a video", "one by one, s", "together, s", "ratio"]
    print(format_table(headers, [_cells(row) for row in result["ways"]], markdown=True))
    write_result(args.output / "views.json", "views.py", argv, result)
    return 0


def measure(sets: Sets, cfg_file: str, overrides: Sequence[str], rounds: int) -> dict[str, Any]:
    """Seconds of a video's clips, from files and prepared, one by one and together."""
    patching.apply()
    pairs = [*overrides, "DATA.PATH_PREFIX", "", "NUM_GPUS", 0, "DATA.PATH_LABEL_SEPARATOR", " "]
    rows = list[dict[str, Any]]()
    for way, folder in (("files", sets.files), ("prepared", sets.prepared)):
        # The sets have training lists.
        recipe = load_recipe(cfg_file, [*pairs, "DATA.PATH_TO_DATA_DIR", str(folder)])
        (folder / "test.csv").write_bytes((folder / "train.csv").read_bytes())
        training, test = Kinetics(recipe, "train"), Kinetics(recipe, "test")
        videos, base = range(len(test.videos)), recipe.base_shape
        asked: dict[tuple[str, int], Sequence[Any]] = {
            (split, k): [ClipRequest(v, epoch, base, 0) for v in videos for epoch in range(k)]
            for split, k in (("training", 2), ("training", 4))
        }
        asked["test", test.num_clips] = range(len(test))
        for (split, clips), requests in asked.items():
            dataset = test if split == "test" else training
            alone = torch.stack([torch.from_numpy(dataset[r]["clip"]) for r in requests[:clips]])
            assert torch.equal(dataset.__getitems__(requests[:clips])["clips"], alone)
            turns = {size: partial(_seconds, dataset, requests, size) for size in (1, clips)}
            taken = take_turns(turns, rounds, warm_up=1)
            rows.append(
                {
                    "way": way,
                    "split": split,
                    "clips": clips,
                    "one_by_one": quartiles([s / len(videos) for s in taken[1]]),
                    "together": quartiles([s / len(videos) for s in taken[clips]]),
                    "ratio": ratios(taken[1], taken[clips]),
                }
            )
    return {"videos": sets.facts, "ways": rows, **provenance()}


def _seconds(dataset: Kinetics, requests: Sequence[Any], at_once: int) -> float:
    start = time.perf_counter()
    for first in range(0, len(requests), at_once):
        dataset.__getitems__(requests[first : first + at_once])
    return time.perf_counter() - start


def _cells(row: dict[str, Any]) -> list[str]:
    medians = (f"{row[name]['median']:.2f}" for name in ("one_by_one", "together"))
    return [row["way"], f"{row['clips']} {row['split']}", *medians, spread_text(row["ratio"])]


if __name__ == "__main__":
    sys.exit(main())
