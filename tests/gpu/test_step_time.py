"""The benchmark of steps measures parts by events on a GPU."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

NAMES = ("recipe", "plain", "mixed_precision", "host", "host_tf32")


def test_parts_sum_to_the_step(load_program, short_cycle_recipe: Path, tmp_path: Path):
    path = tmp_path / "steps.json"
    options = ["--rounds", "3", "--seconds", "0.5"]
    arguments = ["--cfg", str(short_cycle_recipe), *options, "--output", str(path)]
    pairs = ["NUM_GPUS", "1", "DATA_LOADER.NUM_WORKERS", "0"]
    bench = load_program("benchmarks/step_time.py")
    assert bench.main(["--variants", *NAMES, *arguments, *pairs]) == 0
    written = json.loads(path.read_text())
    assert written["device"]["type"] == "cuda"
    rows = {v["name"]: v.get("shapes", written["shapes"]) for v in written["variants"]}
    assert list(rows) == list(NAMES)
    for row in [row for own in rows.values() for row in own]:
        parts = sum(part["median"] for part in row["parts"].values())
        assert parts == pytest.approx(row["seconds"]["median"], rel=0.2)
        assert 0 < row["matrix_share"]["median"] < 1
    assert all(rate > 0 for rate in written["matrix_rates"].values())
