"""Recipes made longer or shorter, and rates that follow the GPUs and the batch: by hand."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from slowfast_patches.config import check_recipe, load_recipe, parse_recipe
from slowfast_patches.config.recipe import Recipe, keys_of
from slowfast_patches.config.scale import as_overrides, scale_to_processes, scaled_lengths
from slowfast_patches.config.schedule import (
    learning_rate_of,
    rates_of_batch,
    schedule_of,
)
from slowfast_patches.launch.launch import for_processes
from slowfast_patches.study.compare import make_arms
from slowfast_patches.train import run as run_module
from slowfast_patches.train.resume import check_same_recipe
from slowfast_patches.train.state import Run

ROOT = Path(__file__).parents[3]
LARGE = ROOT / "configs" / "Kinetics" / "TSM_8x8_R50_1536GPU"

# 8 clips on each of 8 GPUs.
RECIPE = ["TRAIN.BATCH_SIZE", 64, "TEST.BATCH_SIZE", 32, "NUM_GPUS", 8]
RECIPE += ["SOLVER.BASE_LR", 0.8, "SOLVER.WARMUP_START_LR", 0.08, "SOLVER.COSINE_END_LR", 0.008]
RECIPE += ["SOLVER.MAX_EPOCH", 30, "SOLVER.WARMUP_EPOCHS", 2.5]
BY_GPUS = ["SOLVER.REFERENCE_WORLD_SIZE", 8]

# 32 clips, rates for 8: four times 0.5, from 0.5 itself.
BATCH = ["TRAIN.BATCH_SIZE", 32, "TEST.BATCH_SIZE", 32, "MODEL.ARCH", "slowonly"]
BATCH += ["DATA.NUM_FRAMES", 16, "NUM_GPUS", 0, "SOLVER.MAX_EPOCH", 10]
BATCH += ["SOLVER.LR_POLICY", "steps_with_relative_lrs", "SOLVER.STEPS", [0, 4, 8]]
BATCH += ["SOLVER.LRS", [1, 0.1, 0.01], "SOLVER.BASE_LR", 0.5, "SOLVER.WARMUP_START_LR", 0.5]
BATCH += ["SOLVER.WARMUP_EPOCHS", 1.0]
BY_CLIPS = ["SOLVER.REFERENCE_BATCH_SIZE", 8]
COSINE = ["SOLVER.LR_POLICY", "cosine", "SOLVER.STEPS", [], "SOLVER.COSINE_END_LR", 0.125]


def config(*overrides: object) -> Recipe:
    return load_recipe(None, [*RECIPE, *overrides])


def of_batch(*overrides: object) -> Recipe:
    return load_recipe(None, [*BATCH, *overrides])


def changes(before: Recipe, after: Recipe) -> dict[str, object]:
    old, new = keys_of(before), keys_of(after)
    return {key: new[key] for key in new if old[key] != new[key]}


def rates(recipe: Recipe, *epochs: float) -> list[float]:
    policy = learning_rate_of(recipe)
    return [policy.at(epoch) for epoch in epochs]


def test_all_lengths_scale_together():
    steps = ["SOLVER.LR_POLICY", "steps_with_relative_lrs", "SOLVER.STEPS", [0, 10.5, 20]]
    recipe = config(*steps)
    lengths = scaled_lengths(recipe, 0.25)
    assert lengths == {
        "SOLVER.MAX_EPOCH": 7.5,
        "SOLVER.STEPS": [0, 2.625, 5.0],
        "SOLVER.WARMUP_EPOCHS": 0.625,
        "SOLVER.LENGTH": 1,
    }
    assert scaled_lengths(recipe, 1 / 3)["SOLVER.STEPS"] == [0, 3.5, 6.666667]
    del lengths["SOLVER.LENGTH"]  # as it was
    assert changes(recipe, config(*steps, *as_overrides(lengths))) == lengths


def test_one_key_makes_a_recipe_shorter_once():
    """20 epochs with steps at 12 and 17 and a warm-up of 1, in a quarter of the time."""
    path = "configs/Demo/OWN_VIDEOS.yaml"
    short = load_recipe(path, ["SOLVER.LENGTH", 0.25])
    solver = short.solver
    assert (solver.max_epoch, solver.steps, solver.warmup_epochs) == (5, (0, 3, 4.25), 0.25)
    assert parse_recipe(short.text, "its text") == short
    twice = load_recipe(path, ["SOLVER.LENGTH", 0.25, *as_overrides(scaled_lengths(short, 2))])
    assert twice.solver.max_epoch == 10
    with pytest.raises(ValueError, match=r"before SOLVER.MAX_EPOCH 5; .* set SOLVER.LENGTH"):
        check_recipe(load_recipe(path, ["SOLVER.MAX_EPOCH", 5]))


# SOLVER.REFERENCE_WORLD_SIZE: the batch follows the GPUs, and the rates follow the batch.


def test_off_and_as_many_processes_as_the_recipe_has_gpus_change_nothing():
    for recipe, processes in ((config(), 1), (config(), 64), (config(*BY_GPUS), 8)):
        assert scale_to_processes(recipe, processes) is recipe


def test_fewer_gpus_by_hand(caplog):
    """A quarter of the GPUs: 16 clips, a quarter of every rate, the same epochs."""
    recipe = config(*BY_GPUS)
    with caplog.at_level("INFO"):
        scaled = scale_to_processes(recipe, 2)
    assert changes(recipe, scaled) == pytest.approx(
        {
            "TRAIN.BATCH_SIZE": 16,
            "TEST.BATCH_SIZE": 8,
            "SOLVER.BASE_LR": 0.2,
            "SOLVER.WARMUP_START_LR": 0.02,
            "SOLVER.COSINE_END_LR": 0.002,
            "SOLVER.REFERENCE_WORLD_SIZE": 2,
        }
    )
    assert scale_to_processes(scaled, 2) is scaled
    assert changes(recipe, scale_to_processes(scaled, 8)) == {}  # there and back again
    assert scale_to_processes(config(*BY_GPUS, "TEST.BATCH_SIZE", 4), 2).test.batch_size == 2
    (record,) = caplog.records
    first, *lines = record.getMessage().splitlines()
    assert "from 8 GPUs (SOLVER.REFERENCE_WORLD_SIZE) to 2 processes on NUM_SHARDS 1, 8 " in first
    assert (lines[0], len(lines)) == ("  TRAIN.BATCH_SIZE 64 → 16", 5)


@pytest.mark.parametrize(
    ("machines", "processes", "of_a_machine", "rate"),
    [(1, 3, 24, 0.3), (2, 16, 64, 1.6), (2, 8, 32, 0.8), (4, 4, 8, 0.4)],
)
def test_every_process_keeps_8_clips_whatever_the_machines(machines, processes, of_a_machine, rate):
    scaled = scale_to_processes(config(*BY_GPUS, "NUM_SHARDS", machines), processes)
    found = (scaled.train.batch_size, scaled.solver.base_lr)
    assert found == pytest.approx((of_a_machine, rate))
    assert scale_to_processes(scaled, processes) is scaled


@pytest.mark.parametrize(
    ("keys", "processes", "message"),
    [
        (["TRAIN.BATCH_SIZE", 60], 2, r"BATCH_SIZE 60 does not divide over the 8 .*BATCH_SIZE 64,"),
        (["SOLVER.BASE_LR_SCALE_NUM_SHARDS", True], 8, r"would both scale .* 0 or False"),
        (["SOLVER.REFERENCE_WORLD_SIZE", -8], 1, r"REFERENCE_WORLD_SIZE must be 0 or more"),
        (["NUM_SHARDS", 2], 3, r"3 processes do not divide over NUM_SHARDS 2; start as many"),
    ],
)
def test_what_cannot_be_scaled_is_refused(keys, processes, message):
    with pytest.raises(ValueError, match=message):
        check_recipe(scale_to_processes(config(*BY_GPUS, *keys), processes))


def test_the_cpu_is_one_process_and_torchrun_has_the_last_word(monkeypatch):
    assert for_processes(config(*BY_GPUS, "NUM_GPUS", 0)).train.batch_size == 8
    assert for_processes(config(*BY_GPUS, "NUM_GPUS", 4, "NUM_SHARDS", 2)).train.batch_size == 32
    environment = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "6", "GROUP_WORLD_SIZE": "2"}
    for name, value in (environment | {"RANK": "4"}).items():
        monkeypatch.setenv(name, value)
    scaled = for_processes(config(*BY_GPUS, "NUM_GPUS", 3))
    assert (scaled.num_shards, scaled.train.batch_size) == (2, 24)


class Stopped(BaseException):
    """Raised where the training would start."""


@pytest.mark.slow
def test_run_plan_and_compare_scale_alike_and_the_log_says_so(
    tiny_recipe: Path,
    train: Callable[..., Path],
    tmp_path: Path,
    opened: type,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    load_program: Callable[[str], ModuleType],
):
    """The tiny recipe's 4 clips at 0.01 for two GPUs are 2 at 0.005 on the CPU."""
    trained = list[Recipe]()

    def stop(run: Run) -> None:
        trained.append(run.recipe)
        raise Stopped

    monkeypatch.setattr(run_module, "prepare", stop)
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
    candidate, _ = make_arms([tiny_recipe, tmp_path / "again.yaml"], overrides)
    assert candidate.recipe.solver == trained[0].solver
    assert candidate.iterations == plan["iterations"]
    capsys.readouterr()
    assert (
        load_program("tools/plan.py").main(["--cfg", str(tiny_recipe), "--json", *overrides]) == 0
    )
    assert json.loads(capsys.readouterr().out) == plan


# SOLVER.REFERENCE_BATCH_SIZE: the rates follow the batch, once, whoever reads them.


def test_the_rates_follow_the_batch_and_the_warm_up_starts_at_the_rate_as_written(caplog):
    assert rates(of_batch(), 0, 0.5, 1, 5, 9) == pytest.approx([0.5, 0.5, 0.5, 0.05, 0.005])
    scaled = of_batch(*BY_CLIPS)
    assert rates(scaled, 0, 0.5, 1, 5, 9) == pytest.approx([0.5, 1.25, 2, 0.2, 0.02])
    fewer = of_batch(*BY_CLIPS, "TRAIN.BATCH_SIZE", 2, "SOLVER.WARMUP_EPOCHS", 0.0)
    assert rates(fewer, 0, 5) == pytest.approx([0.125, 0.0125])
    # A cosine ends at the scaled end; half-way it is at the mean.
    assert rates(of_batch(*BY_CLIPS, *COSINE), 5, 10) == pytest.approx([1.25, 0.5])
    # The batch is that of all machines.
    assert rates(of_batch(*BY_CLIPS, "NUM_SHARDS", 3), 0, 1) == pytest.approx([0.5, 6])
    recipe = of_batch()
    assert rates_of_batch(recipe) is scale_to_processes(recipe, 4) is recipe
    with caplog.at_level("INFO"):
        scale_to_processes(scaled, 1)
    assert caplog.text.count("SOLVER.BASE_LR 0.5 → 2\n") == 1


def test_the_recipe_for_1536_gpus_by_hand():
    """0.01 for 64 clips is 1.92 for 12,288, reached in 5 of 100 epochs; multigrid scales for its
    shapes on top, the start of the warm-up too."""
    recipe = load_recipe(f"{LARGE}.yaml")
    run = schedule_of(recipe, recipe.data.num_train_videos)
    epoch = run.baseline_iterations / 100
    found = [run.at(round(epochs * epoch)).lr for epochs in (0, 2.5, 5, 39, 41, 81)]
    assert found == pytest.approx([0.01, 0.965, 1.92, 1.92, 0.192, 0.0192], rel=0.005)
    run = schedule_of(load_recipe(f"{LARGE}_MULTIGRID.yaml"), recipe.data.num_train_videos)
    assert run.at(0).lr == pytest.approx(8 * 0.01)
    stage = [8 * 1.92, 4 * 1.92, 2 * 1.92, 1.92]
    expected = [*stage, *(lr / 10 for lr in stage), 0.192, 0.0192]
    assert [run.at(phase.stop - 1).lr for phase in run.phases] == pytest.approx(expected)
    # Warm-up is 5 of the first phase's 10 epochs of the baseline: half of its iterations.
    half = run.phases[0].iterations // 2
    assert run.at(half - 1).lr < run.at(half).lr == pytest.approx(8 * 1.92)


def test_with_a_reference_number_of_gpus_the_batch_follows_them_and_the_rate_the_batch():
    """From 8 GPUs to 2: 8 clips, which is what the rate is for."""
    recipe = of_batch(*BY_CLIPS, *BY_GPUS, *COSINE)
    scaled = scale_to_processes(recipe, 2)
    assert (scaled.train.batch_size, scaled.test.batch_size) == (8, 8)
    assert scaled.solver == replace(recipe.solver, reference_world_size=2)
    assert rates(scaled, 0, 5, 10) == pytest.approx([0.5, 0.3125, 0.125])
    machines = scale_to_processes(of_batch(*BY_CLIPS, *COSINE, *BY_GPUS, "NUM_SHARDS", 2), 16)
    assert (machines.num_shards, machines.train.batch_size) == (2, 32)
    assert rates(machines, 5, 10) == pytest.approx([2.5, 1.0])


def test_by_the_rule_of_the_square_root_rates_follow_the_root_of_the_batch():
    """Four times the clips are twice the rate, whichever key says so; a quarter is a half."""
    root = ["SOLVER.BATCH_RATE_RULE", "sqrt"]
    recipe = of_batch(*BY_CLIPS, *root, *COSINE)  # 32 clips, rates for 8
    assert rates(recipe, 0, 1, 10) == pytest.approx([0.5, 0.98, 0.25], abs=0.01)
    assert rates(config(*root, "NUM_SHARDS", 4, "SOLVER.BASE_LR_SCALE_NUM_SHARDS", True), 30) == [
        pytest.approx(2 * 0.008)
    ]
    scaled = scale_to_processes(config(*BY_GPUS, *root), 2)
    assert (scaled.train.batch_size, scaled.solver.base_lr) == (16, pytest.approx(0.4))
    check_same(
        recipe, of_batch(*root, *COSINE, "SOLVER.BASE_LR", 1.0, "SOLVER.COSINE_END_LR", 0.25)
    )


def test_a_warm_up_that_would_go_down_is_warned_of(caplog):
    few = ["TRAIN.BATCH_SIZE", 4]
    for quiet in (BY_CLIPS, few, [*BY_CLIPS, *few, "SOLVER.WARMUP_EPOCHS", 0.0]):
        check_recipe(of_batch(*quiet))
    assert not caplog.records
    check_recipe(of_batch(*BY_CLIPS, *few))
    assert "WARMUP_START_LR 0.5 is above 0.25, the rate of 4 clips" in caplog.text
    with pytest.raises(ValueError, match=r"would both scale .* 0 or False"):
        check_recipe(of_batch(*BY_CLIPS, "SOLVER.BASE_LR_SCALE_NUM_SHARDS", True))


# Both keys and a checkpoint.


def check_same(there: Recipe, here: Recipe) -> None:
    check_same_recipe(there.text, here, Path("c.pyth"))


def test_a_run_is_continued_where_batch_and_rates_stay():
    there = of_batch(*BY_CLIPS)
    check_same(there, of_batch(*BY_CLIPS, "NUM_SHARDS", 4, "TRAIN.BATCH_SIZE", 8))
    check_same(there, of_batch("SOLVER.BASE_LR", 2.0))  # written out
    with pytest.raises(ValueError, match=r"SOLVER\.BASE_LR: 2\.0 there, 0\.5 here") as caught:
        check_same(there, of_batch())
    assert str(caught.value).count(" there, ") == 1
    with pytest.raises(ValueError, match=r"BATCH_SIZE: 32 there, 64 here"):
        check_same(there, of_batch(*BY_CLIPS, "NUM_SHARDS", 2))


def test_a_scaled_run_is_continued_on_as_many_gpus_only():
    there = scale_to_processes(config(*BY_GPUS), 4)
    check_same(there, scale_to_processes(config(*BY_GPUS), 4))
    with pytest.raises(ValueError, match="continue on as many as there") as caught:
        check_same(there, scale_to_processes(config(*BY_GPUS), 2))
    assert "TRAIN.BATCH_SIZE: 32 there, 16 here" in str(caught.value)
    # The same batch and rates, written out, on any number of GPUs.
    written = ["TRAIN.BATCH_SIZE", 32, "SOLVER.BASE_LR", 0.4, "SOLVER.WARMUP_START_LR", 0.04]
    check_same(there, config(*written, "SOLVER.COSINE_END_LR", 0.004, "NUM_GPUS", 1))
