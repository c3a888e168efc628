"""Fixture with made-up results of runs."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from slowfast_patches.experiments.runs import Experiment, with_seed
from slowfast_patches.experiments.variants import Variant
from slowfast_patches.utils.files import write_text


@pytest.fixture(scope="session")
def write_run() -> Callable[..., None]:
    """`write_run(experiment, variant, seed, seconds, top1=80.0, ...)`: a finished run with such a
    result.

    A quarter of the time is loading. The metric of the validations rises to the final one.
    """

    def write(
        experiment: Experiment, variant: Variant, seed: int, seconds: float, /, **values: Any
    ) -> None:
        metrics = {name: values[name] for name in ("top1", "map") if name in values}
        evaluations = [
            {"seconds": seconds * part} | {name: value * part for name, value in metrics.items()}
            for part in (0.5, 1)
        ]
        spent = {"training": 0.75 * seconds, "loading": 0.25 * seconds, "evaluating": 7.0}
        result = {
            "config": yaml.safe_load(variant.recipe.text)
            | {"RNG_SEED": seed, "OUTPUT_DIR": "else"},
            "versions": {"torch": "2.0"},
            "machine": {"processor": "abacus", "cores": 2, "gpus": []},
            "seed": seed,
            "seconds": spent,
            "iterations": variant.iterations,
            "epochs": 6.0,
            "clips": 8 * variant.iterations,
            "flops": 1e9 * variant.iterations,
            "evaluations": evaluations,
            "identity": with_seed(variant.identity, seed).to_json(),
        }
        path = experiment.folder(variant, seed) / "result.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(result | values))

    return write
