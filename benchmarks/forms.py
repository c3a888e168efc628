"""What to store: the prepared form against others x264 could write.

    python benchmarks/forms.py --csv /data/kinetics/val.csv --videos 8

Encodes the same videos in every form, each to the same quality (the luma of the worst frame), and
reads the same clips of them, turn by turn, on one core: bytes, time of encoding, and time of
reading a clip, as ratios to the form that is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from common import (
    ROOT,
    new_parser,
    provenance,
    ratios,
    seconds_of,
    spread_text,
    take_turns,
    write_result,
)
from videos import add_videos, distinct_shapes, given_videos, size_of, use_one_core

from multigrid import Grid, make_grid, plan_train
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.preparing import encode
from slowfast_patches.datasets.reading.clip_reader import read_clip
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.tables import format_table

FORMS: dict[str, dict[str, object]] = {
    "as it is": {},
    "CABAC": {"cabac": 1},
    "deblocking": {"no-deblock": 0},
    "an anchor every 6 pictures": {"bframes": 5},
    "an anchor every 8 pictures": {"bframes": 7},
    "an anchor every 16 pictures": {"bframes": 15},
    "no partitions, no 8×8 transform": {"partitions": "none", "8x8dct": 0},
    "no macroblock tree": {"mbtree": 0},
    "trellis on all decisions": {"trellis": 2},
    "slower motion search": {"subme": 9, "me": "umh", "trellis": 2},
}
OURS = "as it is"


@tool()
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write; returns the exit status."""
    parser = new_parser(__doc__, rounds=7, folder="runs/forms", keys=False)
    add_videos(parser, default=8)
    args = parser.parse_args(argv)
    use_one_core()
    recipe = load_recipe(ROOT / "configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml", [])
    rows = measure(given_videos(args), args.output, recipe, args.rounds)
    headers = ["instead", "bytes", "encoding", *rows[0]["reading"]]
    cells = [
        [row["form"], f"{row['bytes']:.2f}×", f"{row['encoding']:.2f}×"]
        + [spread_text(spread) for spread in row["reading"].values()]
        for row in rows
    ]
    print(format_table(headers, cells, markdown=True))
    write_result(args.output / "forms.json", "forms.py", argv, {"forms": rows, **provenance()})
    return 0


def measure(videos: list[Path], output: Path, recipe: Recipe, rounds: int) -> list[dict[str, Any]]:
    """One row a form: ratios to the one that is used."""
    shapes = distinct_shapes(recipe)
    rate, sides = recipe.data.sampling_rate, recipe.data.train_jitter_scales
    grids = {
        f"{s.frames} × {s.crop}²": make_grid(s, recipe.base_shape, rate, sides)
        for s in (shapes[0], shapes[-1])
    }
    made, encoding = dict[str, list[Path]](), dict[str, float]()
    for form, options in FORMS.items():
        folder = output / form.replace(" ", "_")
        folder.mkdir(parents=True, exist_ok=True)
        made[form] = [folder / f"{video.name}.mp4" for video in videos]
        encoding[form] = seconds_of(partial(_encode, videos, made[form], options))
    turns = {(form, name): _turn(made[form], grid) for name, grid in grids.items() for form in made}
    times = take_turns(turns, rounds, warm_up=1)
    return [
        {
            "form": form,
            "bytes": size_of(made[form]) / size_of(made[OURS]),
            "encoding": encoding[form] / encoding[OURS],
            "reading": {name: ratios(times[form, name], times[OURS, name]) for name in grids},
        }
        for form in FORMS
    ]


def _encode(videos: list[Path], files: list[Path], options: dict[str, object]) -> None:
    with patch.dict(encode.X264, options):
        for video, file in zip(videos, files, strict=True):
            encode.write_prepared(str(video), scan(str(video)), file)


def _turn(files: list[Path], grid: Grid) -> Callable[[], float]:
    """Seconds of reading a clip of each file, another one every time."""
    records, numbers = [scan(str(file)) for file in files], count()

    def read(number: int) -> None:
        for video, (file, record) in enumerate(zip(files, records, strict=True)):
            rng = np.random.default_rng((number, video))
            read_clip(str(file), record, plan_train(rng, grid, record.video))

    return lambda: seconds_of(lambda: read(next(numbers)))


if __name__ == "__main__":
    sys.exit(main())
