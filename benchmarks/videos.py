"""The videos that loader.py and forms.py read: those of a list, and what is made of them."""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from multigrid import Shape
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.datasets.lists.csv_list import read_csv
from slowfast_patches.datasets.preparing.encode import source_pictures, write_prepared
from slowfast_patches.datasets.reading.scan import scan
from slowfast_patches.datasets.reading.video_record import UnreadableVideoError

__all__ = [
    "KINETICS",
    "Sets",
    "add_videos",
    "distinct_shapes",
    "given_videos",
    "make_sets",
    "size_of",
    "use_one_core",
]

KINETICS = 240_000
"""Videos, for the lengths of the schedule's phases, which the shapes do not depend on."""
SHORT_SIDE = 256
RENDERED = [
    f"mandelbrot=size=340x256:rate=30:start_x={x}:start_y={y},noise=alls={noise}:allf=t"
    for x, y, noise in (
        (-0.743643887, -0.131825904, 4),
        (-0.7269, 0.1889, 8),
        (-1.4012, 0.0, 2),
        (0.2925755, -0.0149977, 6),
        (-0.1011, 0.9563, 3),
        (-0.74529, 0.113075, 5),
    )
]
"""Zooms with noise, ten seconds each, for who has no videos at hand."""


@dataclass(frozen=True)
class Sets:
    """Folders with a train.csv, and what is known of the files in them."""

    files: Path
    prepared: Path
    facts: dict[str, object]


def add_videos(parser: argparse.ArgumentParser, default: int) -> None:
    """Options that say which videos are read."""
    parser.add_argument("--csv", type=Path, metavar="FILE", help="'path label' a line")
    parser.add_argument("--prefix", default="", help="DATA.PATH_PREFIX of the list")
    text = "of the list, at random (%(default)s)"
    parser.add_argument("--videos", type=int, default=default, help=text)


def given_videos(args: argparse.Namespace) -> list[Path]:
    """The videos that `add_videos` asks for; without a list, rendered ones.

    Raises:
        ValueError: nothing in the list can be read.
    """
    if args.csv is None:
        return _rendered_videos(args.output / "rendered")
    return _choose_videos(args.csv, args.prefix, args.videos)


def distinct_shapes(recipe: Recipe) -> list[Shape]:
    """The shapes of a recipe's schedule, each once, from the coarsest to the finest."""
    shapes = set(schedule_of(recipe, KINETICS).shapes)
    return sorted(shapes, key=lambda s: (s.frames * s.crop**2, s.frames))


def make_sets(args: argparse.Namespace) -> Sets:
    """The videos and their copies; those that are there from before are taken."""
    output, files = args.output, given_videos(args)
    plain, prepared = output / f"x264_{SHORT_SIDE}", output / "prepared"
    decibels = []
    for path in tqdm(files, "making copies", disable=None):
        _write_plain(path, plain / path.name)
        decibels.append(_write_prepared(path, prepared / path.name))
    facts = {
        "list": "rendered" if args.csv is None else args.csv.name,
        "videos": len(files),
        "frames": sum(scan(str(path)).video.frames for path in files),
        "bytes": size_of(files),
        "bytes_x264": size_of([plain / path.name for path in files]),
        "bytes_prepared": size_of([prepared / path.name for path in files]),
        "psnr_worst_frame": min(decibels),
        "psnr_median_of_worst_frames": statistics.median(decibels),
    }
    _list(files, output / "files")
    _list([prepared / path.name for path in files], prepared)
    return Sets(output / "files", prepared, facts)


def use_one_core() -> None:
    """Stay on one core, and use one thread wherever a library would take more."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    cv2.setNumThreads(1)


def _choose_videos(csv: Path, prefix: str, count: int) -> list[Path]:
    """Readable videos of a list, at random, of different names.

    Raises:
        ValueError: nothing in the list can be read.
    """
    listed = read_csv(csv, prefix=prefix, separator=" ", num_classes=10**9)
    chosen = dict[str, Path]()
    for number in np.random.default_rng(0).permutation(len(listed)):
        path = Path(listed[number].path)
        try:
            scan(str(path))
        except UnreadableVideoError:
            continue
        chosen.setdefault(path.with_suffix(".mp4").name, path)
        if len(chosen) == count:
            break
    if not chosen:
        raise ValueError(f"{csv}: none of its videos can be read; is --prefix right?")
    return [path for _, path in sorted(chosen.items())]


def _rendered_videos(folder: Path) -> list[Path]:
    """Videos of 340×256, rendered the first time."""
    paths = [folder / f"{number}.mp4" for number in range(len(RENDERED))]
    for path, source in zip(paths, RENDERED, strict=True):
        if not path.exists():
            with av.open(source, format="lavfi") as container:
                frames: Iterator[Any] = (
                    f.to_ndarray(format="yuv420p") for f in container.decode(video=0)
                )
                _encode(path, (next(frames) for _ in range(300)), Fraction(30))
    return paths


def _write_plain(source: Path, target: Path) -> None:
    """A copy of a video that x264's defaults encode at SHORT_SIDE."""
    if not target.exists():
        record = scan(str(source))
        rate = Fraction(record.video.fps).limit_denominator(100_000)
        _encode(target, source_pictures(str(source), record, SHORT_SIDE), rate)


def _encode(path: Path, pictures: Iterator[NDArray[np.uint8]], rate: Fraction) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    with av.open(str(unfinished), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate)
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture, format="yuv420p")
            if number == 0:
                stream.width, stream.height = frame.width, frame.height
            frame.pts, frame.time_base = number, 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    unfinished.replace(path)


def _write_prepared(source: Path, target: Path) -> float:
    """The prepared form of a video; the PSNR of its worst frame, kept beside it."""
    note = target.with_suffix(".psnr")
    if not note.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        psnr = write_prepared(str(source), scan(str(source)), target)
        note.write_text(f"{psnr}\n", encoding="utf-8")
    return float(note.read_text(encoding="utf-8"))


def size_of(paths: list[Path]) -> int:
    """Bytes of some files."""
    return sum(path.stat().st_size for path in paths)


def _list(paths: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{path.resolve()} 0\n" for path in paths)
    (folder / "train.csv").write_text(lines, encoding="utf-8")
