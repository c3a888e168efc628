"""Recipes made longer or shorter, and fitted to another number of GPUs: worked out by hand."""

import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import scale_to_processes, scaled_lengths
from slowfast_patches.launch.launch import for_processes
from slowfast_patches.study.compare import make_recipes
from slowfast_patches.train import checkpoints
from slowfast_patches.train.state import Run

ROOT = Path(__file__).parents[3]

# 8 clips on each of 8 GPUs.
RECIPE = ["TRAIN.BATCH_SIZE", 64, "TEST.BATCH_SIZE", 32, "NUM_GPUS", 8]
RECIPE += ["SOLVER.BASE_LR", 0.8, "SOLVER.WARMUP_START_LR", 0.08, "SOLVER.COSINE_END_LR", 0.008]
RECIPE += ["SOLVER.MAX_EPOCH", 30, "SOLVER.STEPS", [0, 10.5, 20], "SOLVER.WARMUP_EPOCHS", 2.5]
ON = ["SOLVER.REFERENCE_WORLD_SIZE", 8]


def config(*overrides: object) -> Recipe:
    return load_recipe(None, [*RECIPE, *overrides])


def changes(before: Recipe, after: Recipe) -> dict[str, object]:
    """Key to new value, of the sections that training reads."""
    return {
        f"{section}.{key}": after[f"{section}.{key}"]
        for section in ("TRAIN", "TEST", "SOLVER", "DATA", "MULTIGRID", "BN")
        for key, value in before[section].items()
        if after[f"{section}.{key}"] != value
    }


# Lengths.


def test_all_lengths_scale_together():
    assert scaled_lengths(config(), 0.25) == {
        "SOLVER.MAX_EPOCH": 7.5,
        "SOLVER.STEPS": [0, 2.625, 5.0],
        "SOLVER.WARMUP_EPOCHS": 0.625,
    }
    third = scaled_lengths(config(), 1 / 3)
    assert third["SOLVER.STEPS"] == [0, 3.5, 6.666667]


def test_scaled_lengths_are_overrides_and_the_recipe_stays():
    cfg = config()
    before = cfg.text
    pairs = scaled_lengths(cfg, 2)
    longer = load_recipe(None, [*RECIPE, *(x for pair in pairs.items() for x in pair)])
    assert changes(cfg, longer) == pairs
    assert cfg.text == before


# Processes.


@pytest.mark.parametrize("processes", [1, 2, 8, 64])
def test_off_is_unchanged(processes):
    cfg = config()
    assert scale_to_processes(cfg, processes) is cfg


def test_as_many_processes_as_the_recipe_has_gpus_change_nothing():
    cfg = config(*ON)
    assert scale_to_processes(cfg, 8) is cfg


def test_fewer_gpus_by_hand():
    """A quarter of the GPUs: 16 clips, a quarter of every rate, the same epochs."""
    cfg = config(*ON)
    scaled = scale_to_processes(cfg, 2)
    assert changes(cfg, scaled) == pytest.approx(
        {
            "TRAIN.BATCH_SIZE": 16,
            "TEST.BATCH_SIZE": 8,
            "SOLVER.BASE_LR": 0.2,
            "SOLVER.WARMUP_START_LR": 0.02,
            "SOLVER.COSINE_END_LR": 0.002,
            "SOLVER.REFERENCE_WORLD_SIZE": 2,
        }
    )
    assert scaled.is_frozen()
    assert scale_to_processes(scaled, 2) is scaled
    # There and back again.
    assert changes(cfg, scale_to_processes(scaled, 8)) == {}


def test_three_gpus_of_which_the_batch_is_no_divisor():
    scaled = scale_to_processes(config(*ON), 3)
    assert (scaled.train.batch_size, scaled.test.batch_size) == (24, 12)
    assert math.isclose(scaled.solver.base_lr, 0.3)


@pytest.mark.parametrize(
    ("machines", "processes", "of_a_machine", "rate"),
    [(2, 16, 64, 1.6), (2, 8, 32, 0.8), (4, 4, 8, 0.4)],
)
def test_on_several_machines_the_batch_is_of_one(machines, processes, of_a_machine, rate):
    """Every process keeps 8 clips, whatever the machines; the rate follows the 8 · n in all."""
    scaled = scale_to_processes(config(*ON, "NUM_SHARDS", machines), processes)
    found = (scaled.train.batch_size, scaled.solver.base_lr)
    assert found == pytest.approx((of_a_machine, rate))
    assert scaled.train.batch_size * machines == 8 * processes
    assert scale_to_processes(scaled, processes) is scaled


def test_a_test_batch_smaller_than_the_gpus_is_one_clip_each():
    assert scale_to_processes(config(*ON, "TEST.BATCH_SIZE", 4), 2).test.batch_size == 2


def test_the_log_says_what_was_scaled_from_what_to_what(caplog):
    with caplog.at_level("INFO"):
        scale_to_processes(config(*ON), 2)
    (record,) = caplog.records
    first, *lines = record.getMessage().splitlines()
    assert "from 8 GPUs (SOLVER.REFERENCE_WORLD_SIZE) to 2 processes on NUM_SHARDS 1, 8 " in first
    assert [line.strip() for line in lines] == [
        "TRAIN.BATCH_SIZE 64 → 16",
        "TEST.BATCH_SIZE 32 → 8",
        "SOLVER.BASE_LR 0.8 → 0.2",
        "SOLVER.WARMUP_START_LR 0.08 → 0.02",
        "SOLVER.COSINE_END_LR 0.008 → 0.002",
    ]


@pytest.mark.parametrize(
    ("keys", "processes", "message"),
    [
        (["TRAIN.BATCH_SIZE", 60], 2, r"BATCH_SIZE 60 does not divide over the 8 .*BATCH_SIZE 64,"),
        (["SOLVER.BASE_LR_SCALE_NUM_SHARDS", True], 2, r"would both scale .* 0 or False"),
        (["SOLVER.BASE_LR_SCALE_NUM_SHARDS", True], 8, r"would both scale"),
        (["SOLVER.REFERENCE_WORLD_SIZE", -8], 2, r"-8 is below 0"),
        (["NUM_SHARDS", 2], 3, r"3 processes do not divide over NUM_SHARDS 2; start as many"),
    ],
)
def test_what_cannot_be_scaled_is_refused(keys, processes, message):
    with pytest.raises(ValueError, match=message):
        scale_to_processes(config(*ON, *keys), processes)


# One seam: run, plan and compare see the same recipe.


def test_the_cpu_is_one_process_and_torchrun_has_the_last_word(monkeypatch):
    assert for_processes(config(*ON, "NUM_GPUS", 0)).train.batch_size == 8
    assert for_processes(config(*ON, "NUM_GPUS", 4, "NUM_SHARDS", 2)).train.batch_size == 32
    environment = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "6", "GROUP_WORLD_SIZE": "2"}
    for name, value in (environment | {"RANK": "4"}).items():
        monkeypatch.setenv(name, value)
    scaled = for_processes(config(*ON, "NUM_GPUS", 3))
    assert (scaled.num_shards, scaled.train.batch_size) == (2, 24)
    assert math.isclose(scaled.solver.base_lr, 0.6)


class Stopped(BaseException):
    """Raised where the training would start."""


def test_run_plan_and_compare_scale_alike_and_the_log_says_so(
    tiny_recipe: Path,
    train: Callable[..., Path],
    tmp_path: Path,
    opened: type,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """The tiny recipe's 4 clips at 0.01 for two GPUs are 2 at 0.005 on the CPU."""
    trained = list[Recipe]()

    def stop(run: Run) -> None:
        trained.append(run.recipe)
        raise Stopped

    monkeypatch.setattr(Run, "prepare", stop)
    keys = ("SOLVER.REFERENCE_WORLD_SIZE", 2, "MULTIGRID.LONG_CYCLE", False)
    keys += ("MULTIGRID.SHORT_CYCLE", False)
    with pytest.raises(Stopped):
        train(tmp_path, *keys)
    folder = opened(tmp_path)
    assert folder.log.count("TRAIN.BATCH_SIZE 4 → 2\n") == 1
    assert "SOLVER.BASE_LR 0.01 → 0.005\n" in folder.log
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["global_batch"] == trained[0].train.batch_size == 2

    overrides = [*map(str, (*keys, "DATA.PATH_TO_DATA_DIR", tiny_recipe.parent))]
    (tmp_path / "again.yaml").write_text(f"_BASE_: {tiny_recipe}")
    recipe, _ = make_recipes([tiny_recipe, tmp_path / "again.yaml"], overrides)
    assert recipe.recipe.solver == trained[0].solver
    assert recipe.iterations == plan["iterations"]
    capsys.readouterr()
    assert plan_tool().main(["--cfg", str(tiny_recipe), "--json", *overrides]) == 0
    assert json.loads(capsys.readouterr().out) == plan


def plan_tool():
    spec = importlib.util.spec_from_file_location("tools_plan", ROOT / "tools" / "plan.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_scaled_run_is_continued_on_as_many_gpus_only(tmp_path):
    there = {"cfg": scale_to_processes(config(*ON), 4).dump(), "iteration": 3}
    path = tmp_path / "c.pyth"
    checkpoints.check_same_recipe(there, scale_to_processes(config(*ON), 4), path)
    with pytest.raises(ValueError, match="continue on as many as there") as caught:
        checkpoints.check_same_recipe(there, scale_to_processes(config(*ON), 2), path)
    assert "TRAIN.BATCH_SIZE: 32 there, 16 here" in str(caught.value)
    # The same batch and rates, written out, on any number of GPUs.
    written = ["TRAIN.BATCH_SIZE", 32, "SOLVER.BASE_LR", 0.4, "SOLVER.WARMUP_START_LR", 0.04]
    same = config(*written, "SOLVER.COSINE_END_LR", 0.004, "NUM_GPUS", 1)
    checkpoints.check_same_recipe(there, same, path)
