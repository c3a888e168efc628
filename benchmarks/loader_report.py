"""The table and the picture of loader.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loader_measure import STAGES, WAYS

from slowfast_patches.utils.plots import COLOURS, new_figure, save_figure
from slowfast_patches.utils.report import format_table

Result = dict[str, Any]


def tables(result: Result) -> str:
    """Speeds, seconds of an iteration, bytes, where the time goes, and the machine."""
    parts = [_speeds(result), _iterations(result), _files(result["videos"]), _stages(result)]
    memory = result["worker_rss_mb"]
    parts.append(
        f"A worker's peak RSS: {min(memory.values()):.0f} to {max(memory.values()):.0f} MB"
    )
    parts.append(f"{result['machine']['processor']}, one core; {result['versions']}")
    return "\n\n".join(parts)


def _name(row: Result) -> str:
    return f"{row['frames']} × {row['crop']}²"


def _speeds(result: Result) -> str:
    rows = []
    for row in result["shapes"]:
        speeds = [f"{row['clips_per_second'][way]['median']:.1f}" for way in WAYS]
        ratios = [
            "{median:.1f}× ({quartile_1:.1f} to {quartile_3:.1f})".format(
                **row["times_the_hosts"][way]
            )
            for way in WAYS[1:]
        ]
        rows.append([_name(row), *speeds, *ratios])
    headers = ["clips a second and core", *WAYS, *(f"{way}: times the host's" for way in WAYS[1:])]
    return format_table(headers, rows, markdown=True)


def _iterations(result: Result) -> str:
    rows = []
    for row in result["shapes"]:
        seconds = [f"{row['reading_seconds_per_iteration'][way]:.2f}" for way in WAYS]
        shares = [f"{row['iteration_over_hosts_finest'][way]:.2f}" for way in WAYS]
        rows.append([_name(row), str(row["batch"]), *seconds, *shares])
    headers = ["core seconds an iteration", "clips", *WAYS]
    headers += [f"{way} / host's finest" for way in WAYS]
    return format_table(headers, rows, markdown=True)


def _files(videos: Result) -> str:
    sizes = videos["bytes"], videos["bytes_x264"], videos["bytes_prepared"]
    return (
        f"{videos['videos']} videos, {videos['frames']:,} frames: files {sizes[0] / 1e6:.1f} MB, "
        f"x264's defaults at short side 256 {sizes[1] / 1e6:.1f} MB, prepared "
        f"{sizes[2] / 1e6:.1f} MB ({sizes[2] / sizes[1]:.2f}×); luma PSNR of a prepared video's "
        f"worst frame: {videos['psnr_worst_frame']:.1f} dB at least, "
        f"{videos['psnr_median_of_worst_frames']:.1f} dB in the median"
    )


def _stages(result: Result) -> str:
    headers = ["share of a clip's time", *STAGES, "everything else"]
    rows = [
        [f"{row['way']}, {_name(row)}", *(f"{100 * s:.0f} %" for s in row["shares"].values())]
        for row in result["stages"]
    ]
    return format_table(headers, rows, markdown=True)


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
