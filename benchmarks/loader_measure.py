"""How fast clips are read, shape by shape, way by way, for loader.py."""

from __future__ import annotations

import cProfile
import datetime
import pstats
import random
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from loader_sets import Sets
from torch.utils.data import DataLoader, Dataset

from multigrid import ClipRequest, Schedule, Shape, make_grid
from slowfast_patches import patching
from slowfast_patches.config import host_config, load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import schedule_of
from slowfast_patches.datasets.kinetics import Kinetics
from slowfast_patches.utils.machine import machine, versions

KINETICS = 240_000
"""Videos, for the lengths of the schedule's phases, which the shapes do not depend on."""
LOCAL_BATCH = 8
"""Clips of one process at the finest shape, for the memory of a worker."""
WAYS = ("pyslowfast 1.0", "files", "prepared")
STAGES = {
    "open and read": ("open", "close", "pread", "stat", "seek", "demux"),
    "decode": ("decode", "flush_buffers"),
    "resize": ("resize",),
    "colour": ("reformat", "to_ndarray"),
}
Read = Callable[[int, int], object]
"""Read a clip: (video, round)."""


def measure(sets: Sets, cfg_file: str, overrides: list[str], rounds: int) -> dict[str, Any]:
    """Clips per second of every shape and way; see loader.py."""
    patching.apply()
    pairs = [*overrides, "DATA.PATH_PREFIX", "", "NUM_GPUS", 0, "DATA.PATH_LABEL_SEPARATOR", " "]
    cfgs = {
        way: load_recipe(cfg_file, [*pairs, "DATA.PATH_TO_DATA_DIR", str(folder)])
        for way, folder in zip(WAYS, (sets.files, sets.files, sets.prepared), strict=True)
    }
    schedule = schedule_of(cfgs["files"], KINETICS)
    ours = {way: Kinetics(cfgs[way], "train") for way in WAYS[1:]}
    rows, videos = [], len(ours["files"])
    for shape in distinct_shapes(schedule):
        reads: dict[str, Read] = {WAYS[0]: _host(cfgs[WAYS[0]], shape)}
        for way, dataset in ours.items():
            reads[way] = _ours(dataset, shape)
        rows.append(_row(shape, _time(reads, videos, rounds)))
        print(f"{shape.frames} frames of {shape.crop}²: done", flush=True)
    finest = max(rows, key=lambda row: row["frames"] * row["crop"] ** 2)
    host = finest["batch"] / finest["clips_per_second"][WAYS[0]]["median"]
    for row in rows:
        row["iteration_over_hosts_finest"] = {
            way: row["batch"] / row["clips_per_second"][way]["median"] / host for way in WAYS
        }
    return {
        "videos": sets.facts,
        "shapes": rows,
        "stages": [
            {"way": way, "frames": shape.frames, "crop": shape.crop}
            | {"shares": _stages(_ours(dataset, shape), videos)}
            for way, dataset in ours.items()
            for shape in (distinct_shapes(schedule)[0], distinct_shapes(schedule)[-1])
        ],
        "worker_rss_mb": _worker_memory(ours["prepared"], schedule),
        "machine": machine(),
        "versions": versions(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def distinct_shapes(schedule: Schedule) -> list[Shape]:
    """The schedule's shapes, each once, from the coarsest to the finest."""
    return sorted(set(schedule.shapes), key=lambda s: (s.frames * s.crop**2, s.frames))


def _host(recipe: Recipe, shape: Shape) -> Read:
    """The host's own data set, whose recipe says the shape; it draws from global generators."""
    from slowfast.datasets.kinetics import Kinetics as HostKinetics

    base = recipe.base_shape
    grid = make_grid(shape, base, recipe.data.sampling_rate, tuple(recipe.data.train_jitter_scales))
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


def _time(reads: dict[str, Read], videos: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """(wall-clock, CPU) seconds a clip, of every way and round; the first round is not counted."""
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in reads}
    for number in range(rounds + 1):
        for way, read in reads.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for video in range(videos):
                read(video, number)
            spent = time.perf_counter() - wall, time.process_time() - cpu
            if number:
                times[way].append((spent[0] / videos, spent[1] / videos))
    return times


def _row(shape: Shape, times: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    wall = {way: [seconds for seconds, _ in spent] for way, spent in times.items()}
    ratios = {
        way: [host / own for host, own in zip(wall[WAYS[0]], wall[way], strict=True)]
        for way in WAYS[1:]
    }
    return {
        "frames": shape.frames,
        "crop": shape.crop,
        "batch": shape.batch,
        "clips_per_second": {way: _spread([1 / s for s in wall[way]]) for way in WAYS},
        "cpu_seconds_per_clip": {way: _spread([cpu for _, cpu in times[way]]) for way in WAYS},
        "times_the_hosts": {way: _spread(ratios[way]) for way in WAYS[1:]},
        "reading_seconds_per_iteration": {
            way: shape.batch * statistics.median(wall[way]) for way in WAYS
        },
    }


def _spread(values: list[float]) -> dict[str, float]:
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    return {"median": median, "quartile_1": low, "quartile_3": high}


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


class _Watched(Dataset[Any]):
    """The mini-batches of a data set, and how much memory reading them took."""

    def __init__(self, dataset: Kinetics) -> None:
        self._dataset = dataset

    def __getitems__(self, requests: list[ClipRequest]) -> tuple[Any, int]:
        batch = self._dataset.__getitems__(requests)
        return batch["clips"].shape, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _worker_memory(dataset: Kinetics, schedule: Schedule) -> dict[str, float]:
    """Peak RSS in MB of one process's worker that has read mini-batches up to each shape."""
    shapes = [shape for shape in distinct_shapes(schedule) for _ in range(2)]
    batches = [
        [
            ClipRequest(number % len(dataset), 0, shape, 0)
            for number in range(shape.batch * LOCAL_BATCH // schedule.base.batch)
        ]
        for shape in shapes
    ]
    loader = DataLoader(
        _Watched(dataset), batch_sampler=batches, num_workers=1, collate_fn=lambda batch: batch
    )
    return {
        f"{shape.frames}x{shape.crop}": kilobytes / 1024
        for shape, (_, kilobytes) in zip(shapes, loader, strict=True)
    }
