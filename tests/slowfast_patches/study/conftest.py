"""Fixtures with made-up results of runs."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from slowfast_patches.study.arms import Arm
from slowfast_patches.study.runs import Study
from slowfast_patches.utils.files import write_text


def result_of(arm: Arm, seed: int, seconds: float, /, **values: Any) -> dict[str, Any]:
    """Return the content of a result.json with made-up numbers.

    A quarter of the time is loading. The metric of the validations rises to the final one.
    """
    metrics = {name: values[name] for name in ("top1", "map") if name in values}
    evaluations = [
        {"seconds": seconds * n / 4} | {name: value * n / 4 for name, value in metrics.items()}
        for n in (1, 2, 3, 4)
    ]
    spent = {"training": 0.75 * seconds, "loading": 0.25 * seconds}
    return {
        "config": yaml.safe_load(arm.recipe.text) | {"RNG_SEED": seed, "OUTPUT_DIR": "elsewhere"},
        "versions": {"torch": "2.0"},
        "machine": {"processor": "abacus", "cores": 2, "gpus": []},
        "seconds": spent | {"evaluating": 7.0},
        "iterations": arm.iterations,
        "epochs": 6.0,
        "clips": 8 * arm.iterations,
        "flops": 1e9 * arm.iterations,
        "evaluations": evaluations,
    } | values


@pytest.fixture(scope="session")
def make_result() -> Callable[..., dict[str, Any]]:
    return result_of


@pytest.fixture(scope="session")
def write_run() -> Callable[..., None]:
    """`write_run(study, arm, seed, seconds, top1=80.0, ...)`: a finished run with such a result."""

    def write(study: Study, arm: Arm, seed: int, seconds: float, /, **values: Any) -> None:
        path = study.folder(arm, seed) / "result.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(result_of(arm, seed, seconds, **values)))

    return write
