"""What reading costs, for every shape of a schedule: the host's way and ours.

    python benchmarks/loader.py                                  # on videos that it renders
    python benchmarks/loader.py --csv /data/kinetics/val.csv --videos 40

One core reads clips of the same videos in three ways, turn by turn, round after round:

    pyslowfast 1.0    its own Kinetics data set on the files, its stride the mean of the grid's
    files             ours on the same files
    prepared          ours on what tools/prepare_data.py makes of them

Copies that x264's defaults encode at a short side of 256 pixels are made too: the bytes of the
prepared videos are compared with theirs. Clips are counted per second of wall-clock; the ratios are
of one round each, and what is printed is their median and quartiles.
"""

from __future__ import annotations

import cProfile
import pstats
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
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
from videos import Sets, add_videos, distinct_shapes, make_sets, use_one_core

from multigrid import ClipRequest, Shape, make_grid
from slowfast_patches import patching
from slowfast_patches.config import host_config, load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.kinetics import Kinetics
from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.pictures import COLOURS, new_figure, save_figure
from slowfast_patches.utils.tables import format_table

__all__ = ["main", "measure"]

WAYS = ("pyslowfast 1.0", "files", "prepared")
STAGES = {
    "open and read": ("open", "close", "pread", "stat", "seek", "demux"),
    "decode": ("decode", "flush_buffers"),
    "resize": ("resize",),
    "colour": ("reformat", "to_ndarray"),
}
Result = dict[str, Any]
Read = Callable[[int, int], object]
"""Read a clip: (video, round)."""


@tool()
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, draw and write; returns the exit status."""
    parser = new_parser(__doc__, rounds=5, folder="runs/loader")
    add_videos(parser, default=24)
    recipe = ROOT / "configs" / "Kinetics" / "SLOWFAST_8x8_R50_MULTIGRID.yaml"
    parser.add_argument("--cfg", default=str(recipe), metavar="FILE", help="whose schedule")
    args = parser.parse_intermixed_args(argv)
    use_one_core()
    result = measure(make_sets(args), args.cfg, args.overrides, args.rounds)
    print(tables(result))
    write_result(args.output / "loader.json", "loader.py", argv, result)
    plot(result, args.output / "loader.png")
    print(f"\n{args.output / 'loader.json'} and loader.png hold this")
    return 0


def measure(sets: Sets, cfg_file: str, overrides: Sequence[str], rounds: int) -> Result:
    """Clips per second of every shape and way."""
    patching.apply()
    pairs = [*overrides, "DATA.PATH_PREFIX", "", "NUM_GPUS", 0, "DATA.PATH_LABEL_SEPARATOR", " "]
    host, files, prepared = (
        load_recipe(cfg_file, [*pairs, "DATA.PATH_TO_DATA_DIR", str(folder)])
        for folder in (sets.files, sets.files, sets.prepared)
    )
    ours = {"files": Kinetics(files, "train"), "prepared": Kinetics(prepared, "train")}
    shapes, videos, rows = distinct_shapes(files), len(ours["files"]), list[Result]()
    for shape in shapes:
        reads = {WAYS[0]: _host(host, shape)} | {w: _ours(d, shape) for w, d in ours.items()}
        turns = {way: partial(_spent, read, videos, count()) for way, read in reads.items()}
        rows.append(_row(shape, take_turns(turns, rounds, warm_up=1)))
    finest = max(rows, key=lambda row: row["frames"] * row["crop"] ** 2)
    seconds = finest["reading_seconds_per_iteration"][WAYS[0]]
    for row in rows:
        took = row["reading_seconds_per_iteration"]
        row["iteration_over_hosts_finest"] = {way: took[way] / seconds for way in WAYS}
    stages = [
        {"way": way, "frames": shape.frames, "crop": shape.crop}
        | {"shares": _stages(_ours(dataset, shape), videos)}
        for way, dataset in ours.items()
        for shape in (shapes[0], shapes[-1])
    ]
    return {"videos": sets.facts, "shapes": rows, "stages": stages, **provenance()}


def _host(recipe: Recipe, shape: Shape) -> Read:
    """The host's own data set, whose recipe says the shape; it draws from global generators."""
    from slowfast.datasets.kinetics import Kinetics as HostKinetics

    sides = recipe.data.train_jitter_scales
    grid = make_grid(shape, recipe.base_shape, recipe.data.sampling_rate, sides)
    config = host_config(recipe)
    config.DATA.NUM_FRAMES, config.DATA.TRAIN_CROP_SIZE = shape.frames, shape.crop
    config.DATA.SAMPLING_RATE = round(statistics.mean(grid.strides))
    config.DATA.TRAIN_JITTER_SCALES = list(grid.short_sides)
    dataset = HostKinetics(config, "train")

    def read(video: int, number: int) -> object:
        random.seed(1000 * number + video)
        np.random.seed(1000 * number + video)
        return dataset[video]

    return read


def _ours(dataset: Kinetics, shape: Shape) -> Read:
    return lambda video, number: dataset[ClipRequest(video, number, shape, 0)]


def _spent(read: Read, videos: int, rounds: count[int]) -> tuple[float, float]:
    """Seconds of a clip, by the clock and of the CPU: of one clip of each video."""
    number, wall, cpu = next(rounds), time.perf_counter(), time.process_time()
    for video in range(videos):
        read(video, number)
    return (time.perf_counter() - wall) / videos, (time.process_time() - cpu) / videos


def _row(shape: Shape, times: dict[str, list[tuple[float, float]]]) -> Result:
    wall, cpu = ({way: [t[i] for t in spent] for way, spent in times.items()} for i in (0, 1))
    return {
        "frames": shape.frames,
        "crop": shape.crop,
        "batch": shape.batch,
        "clips_per_second": {way: quartiles([1 / s for s in wall[way]]) for way in WAYS},
        "cpu_seconds_per_clip": {way: quartiles(cpu[way]) for way in WAYS},
        "times_the_hosts": {way: ratios(wall[WAYS[0]], wall[way]) for way in WAYS[1:]},
        "reading_seconds_per_iteration": {
            way: shape.batch * statistics.median(wall[way]) for way in WAYS
        },
    }


def _stages(read: Read, videos: int) -> dict[str, float]:
    """The share of a clip's time that each stage takes, under a profiler of function calls."""
    profile = cProfile.Profile()
    for number in range(3):
        for video in range(videos):
            read(video, number)
            if number == 0 and video == 0:
                profile.enable()
    profile.disable()
    spent, stats = dict.fromkeys(STAGES, 0.0), pstats.Stats(profile)
    total = sum(row[2] for row in stats.stats.values())  # type: ignore[attr-defined]
    for (_, _, name), row in stats.stats.items():  # type: ignore[attr-defined]
        called = name.strip("{}<>").removeprefix("built-in method ").removeprefix("method ")
        called = called.split(" ")[0].strip("'").rpartition(".")[2]
        for stage, names in STAGES.items():
            spent[stage] += row[2] if called in names else 0.0
    shares = {stage: seconds / total for stage, seconds in spent.items()}
    return shares | {"everything else": 1 - sum(shares.values())}


def tables(result: Result) -> str:
    """Speeds, seconds of an iteration, bytes, where the time goes, and the machine."""
    rows = [
        [
            _name(row),
            *(f"{row['clips_per_second'][way]['median']:.1f}" for way in WAYS),
            *(spread_text(row["times_the_hosts"][way], 1) for way in WAYS[1:]),
            *(f"{row['reading_seconds_per_iteration'][way]:.2f}" for way in WAYS),
            *(f"{row['iteration_over_hosts_finest'][way]:.2f}" for way in WAYS),
        ]
        for row in result["shapes"]
    ]
    headers = ["clips a second and core", *WAYS, *(f"{way} / host" for way in WAYS[1:])]
    headers += [f"{way}, s an iteration" for way in WAYS]
    headers += [f"{way} / host's finest" for way in WAYS]
    stages = [
        [f"{row['way']}, {_name(row)}", *(f"{100 * s:.0f} %" for s in row["shares"].values())]
        for row in result["stages"]
    ]
    stage_headers = ["share of a clip's time", *STAGES, "everything else"]
    parts = [
        format_table(headers, rows, markdown=True),
        _files(result["videos"]),
        format_table(stage_headers, stages, markdown=True),
        f"{result['machine']['processor']}, one core; {result['versions']}",
    ]
    return "\n\n".join(parts)


def _name(row: Result) -> str:
    return f"{row['frames']} × {row['crop']}²"


def _files(videos: Result) -> str:
    sizes = videos["bytes"], videos["bytes_x264"], videos["bytes_prepared"]
    return (
        f"{videos['videos']} videos, {videos['frames']:,} frames: files {sizes[0] / 1e6:.1f} MB, "
        f"x264's defaults at short side 256 {sizes[1] / 1e6:.1f} MB, prepared "
        f"{sizes[2] / 1e6:.1f} MB ({sizes[2] / sizes[1]:.2f}×); luma PSNR of a prepared video's "
        f"worst frame: {videos['psnr_worst_frame']:.1f} dB at least, "
        f"{videos['psnr_median_of_worst_frames']:.1f} dB in the median"
    )


def plot(result: Result, path: Path) -> None:
    """Bars: clips a second of every shape and way, and the seconds of an iteration."""
    figure, (speeds, seconds) = new_figure(rows=2, width=9, height=7)
    names = [_name(row) for row in result["shapes"]]
    width = 0.8 / len(WAYS)
    for index, way in enumerate(WAYS):
        places = [number + (index - 1) * width for number in range(len(names))]
        spread = [row["clips_per_second"][way] for row in result["shapes"]]
        medians = [s["median"] for s in spread]
        errors = [
            [s["median"] - s["quartile_1"] for s in spread],
            [s["quartile_3"] - s["median"] for s in spread],
        ]
        colour = COLOURS[index]
        bars = speeds.bar(places, medians, width, yerr=errors, color=colour, label=way, ecolor="k")
        speeds.bar_label(bars, fmt="%.0f", fontsize=8, padding=2)
        took = [row["reading_seconds_per_iteration"][way] for row in result["shapes"]]
        bars = seconds.bar(places, took, width, color=colour)
        seconds.bar_label(bars, fmt="%.1f", fontsize=8, padding=2)
    for axes in (speeds, seconds):
        axes.set_yscale("log")
        axes.margins(y=0.15)
    speeds.set_ylabel("clips a second and core")
    seconds.set_ylabel("core seconds of reading\nan iteration")
    seconds.set_xticks(range(len(names)), names)
    seconds.set_xlabel("frames × crop² of a clip")
    figure.legend(loc="outside upper center", ncols=len(WAYS), frameon=False)
    save_figure(figure, path)


if __name__ == "__main__":
    sys.exit(main())
