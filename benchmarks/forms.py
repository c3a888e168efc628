"""What to store: the prepared form against others x264 could write.

    python benchmarks/forms.py --csv /data/kinetics/val.csv --videos 8

Encodes the same videos in every form, each to the same quality (the luma of the worst frame), and
reads the same clips of them, turn by turn, on one core: bytes, time of encoding, and time of
reading a clip, as ratios to the form that is used.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import numpy as np
from loader_measure import KINETICS, distinct_shapes
from loader_sets import choose_videos, rendered_videos, use_one_core

from multigrid import make_grid, plan_train
from slowfast_patches.config import load_recipe
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.datasets.preparing import encode
from slowfast_patches.datasets.reading.clip_reader import read_clip
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_record import VideoRecord
from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.machine import machine, versions
from slowfast_patches.utils.report import format_table

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


@tool()
def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    recipe = Path(__file__).parents[1] / "configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml"
    parser.add_argument("--csv", type=Path, metavar="FILE", help="'path label' a line")
    parser.add_argument("--prefix", default="", help="DATA.PATH_PREFIX of the list")
    parser.add_argument("--separator", default=" ", help="DATA.PATH_LABEL_SEPARATOR of the list")
    parser.add_argument("--videos", type=int, default=8, help="of the list, at random (8)")
    parser.add_argument("--rounds", type=int, default=7, help="after one to warm up (7)")
    parser.add_argument("--output", type=Path, default=Path("runs/forms"), metavar="DIR")
    parser.add_argument("--json", type=Path, help=argparse.SUPPRESS)  # an earlier place
    args = parser.parse_args()
    use_one_core()
    if args.csv is None:
        videos = rendered_videos(args.output / "rendered")
    else:
        videos = choose_videos(args.csv, args.prefix, args.separator, args.videos)
    rows = measure(videos, args.output, str(recipe), args.rounds)
    headers = ["instead", "bytes", "encoding", *list(rows[0]["reading"])]
    cells = [
        [row["form"], f"{row['bytes']:.2f}×", f"{row['encoding']:.2f}×"]
        + ["{median:.2f}× ({low:.2f} to {high:.2f})".format(**r) for r in row["reading"].values()]
        for row in rows
    ]
    print(format_table(headers, cells, markdown=True))
    result = {"forms": rows, "machine": machine(), "versions": versions()}
    result["date"] = datetime.now(UTC).isoformat(timespec="seconds")
    for path in {args.output / "forms.json", args.json} - {None}:
        path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


def measure(
    videos: list[Path], output: Path, recipe_file: str, rounds: int
) -> list[dict[str, object]]:
    """One row a form: ratios to the first."""
    recipe = load_recipe(recipe_file, [])
    base, shapes = recipe.base_shape, distinct_shapes(schedule_of(recipe, KINETICS))
    sides = recipe.data.train_jitter_scales
    grids = {
        f"{s.frames} × {s.crop}²": make_grid(s, base, recipe.data.sampling_rate, tuple(sides))
        for s in (shapes[0], shapes[-1])
    }
    made = {form: _encode(form, videos, output) for form in FORMS}
    times = {form: {name: list[float]() for name in grids} for form in FORMS}
    for number in range(rounds + 1):
        for form, (files, _) in made.items():
            for name, grid in grids.items():
                began = time.perf_counter()
                for video, (path, record) in enumerate(files):
                    rng = np.random.default_rng((number, video))
                    read_clip(path, record, plan_train(rng, grid, record.video))
                if number:
                    times[form][name].append(time.perf_counter() - began)
    ours, (files, seconds) = times["as it is"], made["as it is"]
    return [
        {
            "form": form,
            "bytes": _bytes(made[form][0]) / _bytes(files),
            "encoding": made[form][1] / seconds,
            "reading": {name: _spread(times[form][name], ours[name]) for name in grids},
        }
        for form in FORMS
    ]


def _encode(
    form: str, videos: list[Path], output: Path
) -> tuple[list[tuple[str, VideoRecord]], float]:
    """The videos in a form, and the seconds it took to write them."""
    folder, seconds = output / form.replace(" ", "_"), 0.0
    folder.mkdir(parents=True, exist_ok=True)
    with patch.dict(encode.X264, FORMS[form]):
        for video in videos:
            began = time.perf_counter()
            encode.write_prepared(str(video), scan(str(video)), folder / f"{video.name}.mp4")
            seconds += time.perf_counter() - began
    paths = [str(folder / f"{video.name}.mp4") for video in videos]
    return [(path, scan(path)) for path in paths], seconds


def _bytes(files: list[tuple[str, VideoRecord]]) -> int:
    return sum(Path(path).stat().st_size for path, _ in files)


def _spread(times: list[float], ours: list[float]) -> dict[str, float]:
    ratios = [time / own for time, own in zip(times, ours, strict=True)]
    low, high = np.quantile(ratios, [0.25, 0.75]).tolist()
    return {"median": statistics.median(ratios), "low": low, "high": high}


if __name__ == "__main__":
    sys.exit(main())
