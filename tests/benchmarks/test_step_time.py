"""Tests of benchmarks/step_time.py on one recipe: its variants and errors."""

import json
import re
import subprocess

import pytest
import torch
from common import CPU
from steps import case as cases
from steps import step_variants
from torch import nn

from multigrid import GroupedBatchNorm3d
from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe

SHORT = ("MULTIGRID.LONG_CYCLE", "False", "MULTIGRID.SHORT_CYCLE_FACTORS", "[0.7]")


@pytest.fixture
def cfg(tiny_recipe) -> Recipe:
    """Return a recipe with crops of 22 and 32 pixels, in batches of 8 and 4 clips."""
    return load_recipe(tiny_recipe, SHORT)


@pytest.fixture
def step_time(load_program):
    return load_program("benchmarks/step_time.py")


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch):
    monkeypatch.setattr(step_variants, "compiler_problem", lambda device: "no compiler")


def test_a_switch_alone_leaves_the_others_off_and_all_is_what_the_device_can(tiny_recipe):
    """A CPU has no TF32 and no cuDNN, and the fixture takes away its compiler."""
    on = ["TRAIN.MIXED_PRECISION", True, "SOLVER.FUSED", True, "MULTIGRID.SIZE_DIVISOR", 16]
    cfg = load_recipe(tiny_recipe, on)
    assert step_variants.with_switches(cfg, "recipe", CPU) == (cfg, {})
    could = ["MODEL.CHANNELS_LAST", "SOLVER.FUSED", "TRAIN.MIXED_PRECISION"]
    for name, expected in (("plain", []), ("channels_last", could[:1]), ("all", could)):
        changed, keys = step_variants.with_switches(cfg, name, CPU)
        assert sorted(key for key, value in keys.items() if value is True) == expected
        assert changed.train.mixed_precision == (name == "all")


def test_the_hosts_code_is_untouched_and_trains_at_every_shape(cfg):
    """Each crop has a model whose head's window is 1 × 1, the size of its feature map.

    The clips are the same as for this package's model.
    """
    plain, host = step_variants.build_variants(cfg, ["plain", "host"], CPU)
    for ours, case in zip(plain.cases, host.cases, strict=True):
        assert ours.batch is case.batch
        model, _ = case.bench.model_and_optimizer(case.step)
        before = model.head.projection.weight.clone()
        parts = case.bench.time(case.step, case.batch, 1).parts
        assert list(parts) == ["input", "forward", "backward", "optimizer"]
        assert not torch.equal(before, model.head.projection.weight)
        kinds = {type(m) for m in model.modules()}
        assert GroupedBatchNorm3d not in kinds
        assert {nn.BatchNorm3d, nn.AvgPool3d, nn.Dropout} <= kinds
        assert all(kind.__module__.startswith(("torch.", "slowfast.")) for kind in kinds)


def test_a_shape_without_room_is_reported_and_the_others_are_measured(
    step_time, tiny_recipe, tmp_path, capsys, monkeypatch
):
    def take_step(stepper, step, batch, mark):
        if len(batch["clips"]) == 16:
            raise torch.OutOfMemoryError("made up")
        mark("optimizer")

    monkeypatch.setattr(cases.Stepper, "__call__", take_step)
    path = tmp_path / "times.json"
    arguments = ["--rounds", "2", "--seconds", "1e-9", "--output", str(path)]
    pairs = ["MULTIGRID.LONG_CYCLE", "False"]
    names = ["--variants", "recipe", "plain", "tf32"]
    assert step_time.main(["--cfg", str(tiny_recipe), *arguments, *names, *pairs]) == 0
    table = capsys.readouterr().out
    assert "out of memory" in table
    assert "tf32 is not measured: TRAIN.TF32 requires a GPU" in table
    written = json.loads(path.read_text())
    assert [variant["name"] for variant in written["variants"]] == names[1:]
    rows = written["shapes"]
    assert [row["seconds"] is None for row in rows] == [False, True, False, False]
    assert rows[1]["failure"] == "out of memory"


def test_the_commands_of_make_gpu_are_accepted(step_time):
    """KEY VALUE pairs may follow the names of variants."""
    parts = [f"benchmarks/results/gpu_{name}.md" for name in ("host", "layout", "sizes")]
    words = ["make", "--dry-run", "--always-make", *parts]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    commands = re.findall(r"benchmarks/step_time\.py (.*)\) >", said)
    assert len(commands) == len(parts)
    for command in commands:
        args = step_time.parse_args(command.split())
        assert args.overrides[:2] == ["NUM_GPUS", "1"]
        load_recipe(args.cfg, args.overrides)
