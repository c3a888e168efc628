"""What reading costs, for every shape of a schedule: the host's way and ours.

    python benchmarks/loader.py                                  # on videos that it renders
    python benchmarks/loader.py --csv /data/kinetics/val.csv --videos 40
    python benchmarks/loader.py --csv ... --resize 256           # as most people store Kinetics

One core reads clips of the same videos in three ways, turn by turn, round after round:

    pyslowfast 1.0    its own Kinetics data set on the files, its stride the mean of the grid's
    files             ours on the same files
    prepared          ours on what tools/prepare_data.py makes of them

`--resize N` measures copies of the videos that x264's defaults encoded at that short side. Such
copies at 256 pixels are made in any case: the bytes of the prepared videos are compared with
theirs. Clips are counted per second of wall-clock; the ratios are of one round each, and what is
printed is their median and quartiles.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from loader_measure import measure
from loader_report import plot, tables
from loader_sets import make_sets, use_one_core

from slowfast_patches.utils.command_line import tool

ROOT = Path(__file__).parents[1]


@tool()
def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    recipe = ROOT / "configs" / "Kinetics" / "SLOWFAST_8x8_R50_MULTIGRID.yaml"
    parser.add_argument("--csv", type=Path, metavar="FILE", help="'path label' a line")
    parser.add_argument("--prefix", default="", help="DATA.PATH_PREFIX of the list")
    parser.add_argument("--separator", default=" ", help="DATA.PATH_LABEL_SEPARATOR of the list")
    parser.add_argument("--resize", type=int, metavar="PIXELS", help="measure resized copies")
    parser.add_argument("--videos", type=int, default=24, help="of the list, at random (24)")
    parser.add_argument("--rounds", type=int, default=5, help="after one to warm up (5)")
    parser.add_argument("--cfg", default=str(recipe), metavar="FILE", help="whose schedule")
    parser.add_argument("--output", type=Path, default=Path("runs/loader"), metavar="DIR")
    parser.add_argument("--json", type=Path, help=argparse.SUPPRESS)  # an earlier place
    parser.add_argument("overrides", nargs="*", metavar="KEY VALUE", help="of the recipe")
    args = parser.parse_args()
    use_one_core()
    sets = make_sets(args.output, args.csv, args.prefix, args.separator, args.videos, args.resize)
    result = measure(sets, args.cfg, args.overrides, args.rounds)
    print(tables(result))
    for path in {args.output / "loader.json", args.json} - {None}:
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    plot(result, args.output / "loader.png")
    print(f"\n{args.output / 'loader.json'} and loader.png hold this")
    return 0


if __name__ == "__main__":
    sys.exit(main())
