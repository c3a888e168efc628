"""benchmarks/step_time.py on one recipe: what it measures, and what it refuses."""

import json
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from multigrid import Shape
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.plan.step_times import MisfitError, read_step_times


@pytest.fixture
def bench(load_program, step_bench) -> ModuleType:
    return load_program("benchmarks/step_time.py")


def test_a_shape_without_room_is_reported_and_the_others_are_measured(
    bench, step_bench, tiny_recipe, tmp_path, capsys, monkeypatch
):
    def take_step(stepper, step, batch, mark):
        if len(batch["clips"]) == 16:
            raise torch.OutOfMemoryError("made up")
        done.append(tuple(batch["clips"].shape[:3]))
        mark("optimizer")

    done = list[tuple[int, ...]]()
    monkeypatch.setattr(step_bench.Stepper, "__call__", take_step)
    path = tmp_path / "times.json"
    arguments = ["--rounds", "2", "--seconds", "1e-9", "--output", str(path)]
    pairs = ["MULTIGRID.LONG_CYCLE", "False"]
    assert bench.main(["--cfg", str(tiny_recipe), *arguments, *pairs]) == 0
    assert "out of memory" in capsys.readouterr().out
    rows = json.loads(path.read_text())["shapes"]
    assert [row["seconds"] is None for row in rows] == [False, True, False, False]
    assert rows[1]["failure"] == "out of memory"
    assert set(done) == {(4, 8, 32), (8, 8, 23)}
    cfg = load_recipe(tiny_recipe, pairs)
    with pytest.raises(MisfitError, match="16×8×16² ran out of memory"):
        read_step_times(path).of_recipe(cfg)


def test_a_recipe_for_gpus_is_not_measured_on_the_cpu(bench, tiny_recipe, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench.main(["--cfg", str(tiny_recipe), "NUM_GPUS", "2"]) == 2
    assert "NUM_GPUS 0 is the CPU" in capsys.readouterr().err


def on_the_cpu(step_bench: ModuleType, cfg: Recipe) -> Any:
    return step_bench.Bench(cfg, torch.device("cpu"))


def test_a_process_takes_its_share_of_the_clips(step_bench, tiny_config, tmp_path):
    """16 clips of 4 processes, BN over all 16: one process has 4, which are its group."""
    cfg = tiny_config(tmp_path, "NUM_SHARDS", 4)
    case = step_bench.Case(on_the_cpu(step_bench, cfg), Shape(16, 8, 32), 16)
    assert case.batch["clips"].shape == (4, 8, 32, 32, 3)
    assert case.step.bn_size == 4


def test_the_precision_is_the_recipes(step_bench, tiny_config, tmp_path):
    cfg = tiny_config(tmp_path, "TRAIN.MIXED_PRECISION", True)
    assert on_the_cpu(step_bench, cfg).precision_name() == "bfloat16"


def test_labels_are_made_as_the_loss_takes_them(step_bench, tiny_config, tmp_path):
    pairs = ("TRAIN.DATASET", "charades", "TEST.DATASET", "charades", "DATA.MULTI_LABEL", True)
    cfg = tiny_config(tmp_path, *pairs, "MODEL.LOSS_FUNC", "bce_logit")
    labels = step_bench.Case(on_the_cpu(step_bench, cfg), Shape(4, 8, 32), None).batch["labels"]
    assert labels.shape == (4, 8)
    assert labels.dtype == torch.float32
    assert set(labels.unique().tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("option", [["--rounds", "1"], ["--seconds", "0"], ["--seconds", "nan"]])
def test_options_out_of_range_are_refused(bench, option, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["step_time.py"])
    with pytest.raises(SystemExit) as stopped:
        bench.main(["--cfg", "any.yaml", *option])
    assert stopped.value.code == 2
    assert option[0] in capsys.readouterr().err
