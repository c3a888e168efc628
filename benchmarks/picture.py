"""Draw the picture on the first page: accuracy against training time on real video.

    python benchmarks/picture.py --output docs/accuracy.png

The runs are those of benchmarks/results/words.json and words_4x.json: a small SlowFast on spoken
words, with three seeds at each length.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from common import ROOT

from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.pictures import COLOURS, new_figure, save_figure

RESULTS = ROOT / "benchmarks" / "results"
NAMES = {"SLOWFAST_WORDS": "baseline", "SLOWFAST_WORDS_MULTIGRID": "multigrid"}
SHORTEST = 0.25
"""Lengths below this multiple of the recipe's length are left out. Their scores vary too much."""


def read_runs() -> pd.DataFrame:
    """Return a table with the columns label, length, minutes (of steps alone) and top1 of each run.

    Raises:
        OSError: A result file is missing.
    """
    rows = list[tuple[str, float, float, float]]()
    for config in json.loads((RESULTS / "words.json").read_text())["configs"]:
        minutes = config["clock"]["mean"] / 60
        scores = [run["top1"] for run in config["runs"]]
        rows += [(config["label"], config["length"], minutes, score) for score in scores]
    for run in json.loads((RESULTS / "words_4x.json").read_text())["runs"]:
        minutes = run["seconds_of_steps_alone"] / 60
        rows.append((NAMES[run["recipe"]], run["length"], minutes, run["top1"]))
    runs = pd.DataFrame(rows, columns=["label", "length", "minutes", "top1"])
    return runs[runs["length"] >= SHORTEST]


def draw(runs: pd.DataFrame, path: Path) -> None:
    """Draw the mean accuracy of each length with its standard deviation, and save the figure."""
    figure, [axes] = new_figure(rows=1, width=8, height=4)
    sides = {"baseline": (10, -16), "multigrid": (-78, 6)}
    for colour, (name, side) in zip(COLOURS, sides.items(), strict=False):
        lengths = runs[runs["label"] == name].groupby("length")
        minutes = lengths["minutes"].mean()
        scores = lengths["top1"].agg(["mean", "std"])
        axes.errorbar(
            minutes, scores["mean"], scores["std"], marker="o", capsize=4, lw=2, color=colour
        )
        recipe = (minutes[1.0], scores["mean"][1.0])
        style: dict[str, Any] = {"color": colour, "weight": "bold", "size": 12}
        axes.annotate(name, recipe, side, textcoords="offset points", **style)
    axes.set_xscale("log")
    ticks = [1, 2, 5, 10, 20, 40]
    axes.set_xticks(ticks, map(str, ticks))
    axes.minorticks_off()
    axes.set_xlabel("training time in minutes (one CPU thread, without data loading)")
    axes.set_ylabel("top-1 accuracy (%)")
    axes.set_title("Real video: 22 spoken words, 3,000 clips, small SlowFast, 3 seeds", fontsize=11)
    save_figure(figure, path)


@tool
def main(argv: list[str] | None = None) -> int:
    """Draw the picture, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "accuracy.png")
    args = parser.parse_args(argv)
    draw(read_runs(), args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
