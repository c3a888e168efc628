"""Variants of a pilot, and runs with made-up scores."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from slowfast_patches.experiments.report import Report
from slowfast_patches.experiments.runs import Experiment
from slowfast_patches.experiments.variants import Variant, with_length
from slowfast_patches.extras.pilot.pilot_experiment import pilot_variants
from slowfast_patches.extras.pilot.pilot_report import evaluate_pilot, report_pilot
from tests.slowfast_patches.experiments.conftest import write_run

__all__ = ["write_run"]  # a fixture of the core's experiments

DEMO = Path("configs/Demo/SLOWFAST_DEMO.yaml")


@pytest.fixture(scope="session")
def whole_variants(tmp_path_factory: pytest.TempPathFactory) -> list[Variant]:
    """Baseline and all cycles on 640 videos: 2,400 iterations of the baseline."""
    folder = tmp_path_factory.mktemp("lists")
    for split, videos in (("train", 640), ("val", 300)):
        lines = [f"{number}.mp4 {number % 10 // 3}\n" for number in range(videos)]
        (folder / f"{split}.csv").write_text("".join(lines))
    return pilot_variants(DEMO, ["DATA.PATH_TO_DATA_DIR", str(folder)])


@pytest.fixture
def made_up(whole_variants, tmp_path, write_run) -> Callable[..., tuple[pd.DataFrame, Report]]:
    """`made_up(20.0, 30.0, videos=400)`: the runs and the report of a pilot with these scores.

    The baseline takes 16 minutes, four times as long as a cycle.
    """

    def make(*scores: float, videos: int = 400, length: float = 1.0, loading: float = 0.0):
        variants = [with_length(variant, 4.0 * length) for variant in whole_variants[: len(scores)]]
        variants[0] = with_length(whole_variants[0], length)
        experiment = Experiment(
            variants, [0], tmp_path, {variant.name: 23.0 for variant in variants}
        )
        spent = {"training": 23.0, "loading": loading, "evaluating": 7.0}
        for variant, score in zip(variants, scores, strict=True):
            write_run(experiment, variant, 0, 23.0, top1=score, videos=videos, seconds=spent)
        runs = experiment.runs()
        return runs, report_pilot(
            experiment, runs, evaluate_pilot(experiment, runs), "command", 960.0
        )

    return make
