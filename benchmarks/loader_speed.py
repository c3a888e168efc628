"""Measure how fast PySlowFast and this package read clips, at every shape of a schedule.

    python benchmarks/loader_speed.py --csv /data/kinetics/val.csv --videos 40

One core reads clips of the same videos in several ways, in interleaved rounds:

    pyslowfast 1.0    PySlowFast's Kinetics data set on the files, with the grid's mean stride
    torchcodec        torchcodec, if it is installed: the same frames, crop and size as "files"
    decord            decord or decord2, if it is installed: likewise
    files             this package's data set on the same files
    prepared          this package's data set on the output of multigrid-prepare
    prepared, CRF N   likewise, for each --crf N of multigrid-prepare

The benchmark prints the clips per second of processor time and the ratios to the other packages,
as medians and quartiles over the rounds.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import (
    ROOT,
    Column,
    new_parser,
    provenance,
    quartiles,
    ratios,
    spread_text,
    table,
    take_turns,
    write_result,
)
from numpy.typing import NDArray
from tqdm import tqdm

from multigrid import PAPER, ClipRequest, Shape, clip_generator, make_grid
from slowfast_patches import patching
from slowfast_patches.config import load_recipe, pyslowfast_config
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.clip_dataset import ClipDataset
from slowfast_patches.datasets.lists.csv_list import read_csv
from slowfast_patches.datasets.preparing.encode import write_prepared
from slowfast_patches.datasets.preparing.quality import CRF
from slowfast_patches.datasets.reading.reader import Cropper
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.utils.command_line import add_option, tool

__all__ = ["main", "measure"]

HOST = "pyslowfast 1.0"
KINETICS = 240_000
"""Number of training videos. The shapes of a schedule do not depend on it."""
Result = dict[str, Any]
Read = Callable[[int, int], object]
"""Function that reads a clip, given a video and a round."""
Decode = Callable[[str, list[int]], Sequence[NDArray[np.uint8]]]
"""Function that decodes the frames of a file at some indices to RGB pictures (H, W, 3)."""


def new_source_parser(doc: str | None, folder: str, videos: int) -> argparse.ArgumentParser:
    """Create a parser with the options of `make_sets` and the option --cfg.

    Args:
        doc: Description of the program.
        folder: Default of --output.
        videos: Default of --videos.
    """
    parser = new_parser(doc, rounds=5, folder=folder)
    add = partial(add_option, parser)
    add("--csv", "FILE", "list of 'path label' lines", Path, required=True)
    add("--prefix", "DIR", "DATA.PATH_PREFIX of the list", default="")
    add("--videos", "N", "number of videos to choose at random (%(default)s)", int, videos)
    recipe = ROOT / "configs" / "Kinetics" / "SLOWFAST_8x8_R50_MULTIGRID.yaml"
    add("--cfg", "FILE", "the recipe", str, str(recipe))
    return parser


def add_crf(parser: argparse.ArgumentParser) -> None:
    text = "also measure copies that multigrid-prepare --crf N makes; can be repeated"
    add_option(parser, "--crf", "N", text, int, action="append", default=[])


@tool
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write the result, and return the exit status."""
    parser = new_source_parser(__doc__, "runs/loader", 24)
    add_crf(parser)
    args = parser.parse_intermixed_args(argv)
    use_one_core()
    result = measure(make_sets(args, args.crf), args.cfg, args.overrides, args.rounds)
    print(format_result(result))
    write_result(args.output / "loader.json", "loader_speed.py", argv, result)
    print(f"\nThe result is in {args.output / 'loader.json'}")
    return 0


def make_sets(args: argparse.Namespace, factors: Sequence[int] = ()) -> dict[str, Path]:
    """Make folders with a train.csv: for the videos, and for their prepared copies.

    Existing copies are reused.

    Args:
        args: Options of `new_source_parser`.
        factors: Constant rate factors of further prepared copies.

    Returns:
        The folders by name: "files", "prepared" and "prepared, CRF N" for each factor N.
    """
    files = _choose_videos(args.csv, args.prefix, args.videos)
    sets = {"files": _write_list(files, args.output / "files")}
    named = {f"prepared, CRF {factor}": factor for factor in factors if factor != CRF}
    for name, factor in {"prepared": CRF, **named}.items():
        folder = args.output / f"prepared_crf{factor}"
        folder.mkdir(parents=True, exist_ok=True)
        copies = [folder / f"{path.stem}.mp4" for path in files]
        for path, copy in zip(files, tqdm(copies, f"preparing, CRF {factor}"), strict=True):
            if not copy.exists():
                write_prepared(str(path), scan(str(path)), copy, crf=factor)
        sets[name] = _write_list(copies, folder)
    return sets


def _choose_videos(csv: Path, prefix: str, count: int) -> list[Path]:
    """Choose videos with different names from a list at random."""
    listed = read_csv(csv, prefix=prefix, separator=" ", num_classes=10**9)
    order = np.random.default_rng(0).permutation(len(listed))
    by_name = {Path(listed[number].path).stem: Path(listed[number].path) for number in order}
    return sorted(list(by_name.values())[:count])


def _write_list(paths: Sequence[Path], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{path.resolve()} 0\n" for path in paths)
    (folder / "train.csv").write_text(lines, encoding="utf-8")
    return folder


def use_one_core() -> None:
    """Bind the process to one core, and limit torch to one thread."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)


def measure(
    sets: Mapping[str, Path], cfg_file: str, overrides: Sequence[str], rounds: int
) -> Result:
    """Measure the clips per second at every shape, with every reader whose package is installed.

    Args:
        sets: Folders with lists of the same videos: "files", and those of their prepared copies.
        cfg_file: The recipe.
        overrides: KEY VALUE pairs that change the recipe.
        rounds: The number of rounds.
    """
    patching.apply()
    pairs = [*overrides, "DATA.PATH_PREFIX", "", "NUM_GPUS", 0, "DATA.PATH_LABEL_SEPARATOR", " "]
    recipes = {
        way: load_recipe(cfg_file, [*pairs, "DATA.PATH_TO_DATA_DIR", str(folder)])
        for way, folder in sets.items()
    }
    ours = {way: ClipDataset.of_recipe(recipe, "train") for way, recipe in recipes.items()}
    recipe = recipes["files"]
    videos = len(ours["files"])
    met = schedule_of(recipe, KINETICS).shapes
    shapes = sorted(met, key=lambda s: (s.frames * s.crop**2, s.frames))
    peers = {way: decode for way, decode in PEERS.items() if importlib.util.find_spec(way)}
    rows = list[Result]()
    for shape in shapes:
        reads = {HOST: _host(recipe, shape)}
        reads |= {
            way: _peer(decode, ours["files"], recipe.rng_seed, shape)
            for way, decode in peers.items()
        }
        reads |= {way: _ours(dataset, shape) for way, dataset in ours.items()}
        turns = {way: partial(_seconds, read, videos, count()) for way, read in reads.items()}
        rows.append(_row(shape, take_turns(turns, rounds, warm_up=1), list(ours)))
    sizes = {
        way: sum(Path(video.path).stat().st_size for video in dataset.videos) / 1e6
        for way, dataset in ours.items()
    }
    result = {"videos": videos, "megabytes": sizes, "shapes": rows, **provenance()}
    result["versions"] |= {way: importlib.import_module(way).__version__ for way in peers}
    return result


def _host(recipe: Recipe, shape: Shape) -> Read:
    """Return a function that reads clips of one shape with PySlowFast's data set.

    The data set draws from global random generators, so the function seeds them.
    """
    from slowfast.datasets.kinetics import Kinetics as HostKinetics

    sides = recipe.data.train_jitter_scales
    grid = make_grid(shape, recipe.base_shape, recipe.data.sampling_rate, sides, PAPER.sampling)
    config = pyslowfast_config(recipe)
    config.DATA.NUM_FRAMES = shape.frames
    config.DATA.TRAIN_CROP_SIZE = shape.crop
    config.DATA.SAMPLING_RATE = round(statistics.mean(grid.strides))
    config.DATA.TRAIN_JITTER_SCALES = list(grid.short_sides)
    dataset = HostKinetics(config, "train")

    def read(video: int, number: int) -> object:
        random.seed(1000 * number + video)
        np.random.seed(1000 * number + video)
        return dataset[video]

    return read


def _ours(dataset: ClipDataset, shape: Shape) -> Read:
    return lambda video, number: dataset[ClipRequest(video, number, shape, 0)]["clip"]


def _peer(decode: Decode, dataset: ClipDataset, seed: int, shape: Shape) -> Read:
    """Return a function that reads the clips of `_ours` with another decoder.

    It crops and resizes the decoded pictures with OpenCV.
    """
    index = dataset.index
    assert index is not None

    def read(number: int, epoch: int) -> object:
        video = index[number].video
        rng = clip_generator(seed, epoch, number)
        plan = dataset.sampling.training_plan(rng, shape, video)
        indices = np.minimum(plan.frame_indices, video.frames - 1).tolist()
        cropper = Cropper(plan.window(video), (video.width, video.height), shape.crop)
        clip = np.empty((shape.frames, shape.crop, shape.crop, 3), np.uint8)
        pictures = decode(dataset.videos[number].path, indices)
        for picture, out in zip(pictures, clip, strict=True):
            cropper.image(picture, out)
        return clip

    return read


def _torchcodec(path: str, indices: list[int]) -> Sequence[NDArray[np.uint8]]:
    """Decode in torchcodec's fastest mode, which does not scan the file."""
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(
        path, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="approximate"
    )
    frames: NDArray[np.uint8] = decoder.get_frames_at(indices).data.numpy()
    return list(frames)


def _decord(path: str, indices: list[int]) -> Sequence[NDArray[np.uint8]]:
    from decord import VideoReader

    frames: NDArray[np.uint8] = VideoReader(path, num_threads=1).get_batch(indices).asnumpy()
    return list(frames)


PEERS: dict[str, Decode] = {"torchcodec": _torchcodec, "decord": _decord}
"""Other decoders, by the name of their module."""


def _seconds(read: Read, videos: int, rounds: count[int]) -> float:
    """Return the CPU seconds per clip, over all threads, when one clip of each video is read."""
    number = next(rounds)
    start = time.process_time()
    for video in range(videos):
        read(video, number)
    return (time.process_time() - start) / videos


def _row(shape: Shape, seconds: dict[str, list[float]], sets: Sequence[str]) -> Result:
    speeds = {way: quartiles([1 / s for s in took]) for way, took in seconds.items()}
    times = {
        other: {way: ratios(seconds[other], seconds[way]) for way in sets}
        for other in seconds
        if other not in sets or other == "prepared"
    }
    return {
        "frames": shape.frames,
        "crop": shape.crop,
        "batch": shape.batch,
        "clips_per_second": speeds,
        "times": times,
    }


def format_result(result: Result) -> str:
    """Format a table of speeds, a table of ratios, and a description of the machine."""
    rows = [{"name": f"{row['frames']} × {row['crop']}²", **row} for row in result["shapes"]]
    ways = list(rows[0]["clips_per_second"])
    clip: dict[str, Column] = {"clip": ("name", str)}
    speeds = {
        f"{way}, clips/s": (f"clips_per_second|{way}|median", "{:.1f}".format) for way in ways
    }
    times = {
        f"{way} / {other}": (f"times|{other}|{way}", spread_text)
        for other, compared in rows[0]["times"].items()
        for way in compared
        if way != other
    }
    tables = [table(rows, clip | columns, markdown=True) for columns in (speeds, times)]
    sizes = ", ".join(f"{way}: {size:.1f} MB" for way, size in result["megabytes"].items())
    machine = f"{result['machine']['processor']}, one core; {result['versions']}"
    return "\n\n".join([*tables, sizes, machine])


if __name__ == "__main__":
    sys.exit(main())
