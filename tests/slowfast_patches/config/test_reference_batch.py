"""SOLVER.REFERENCE_BATCH_SIZE: rates that follow the mini-batch, once, whoever reads them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from multigrid import Schedule
from slowfast_patches.config import check_recipe, load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import scale_to_processes
from slowfast_patches.config.schedule import (
    learning_rate_of,
    rates_of_batch,
    recipe_at,
    schedule_of,
)
from slowfast_patches.plan.cluster.network import Cluster
from slowfast_patches.plan.cluster.plan import on_cluster
from slowfast_patches.train import checkpoints

CONFIGS = Path(__file__).parents[3] / "configs"
LARGE = "Kinetics/TSM_8x8_R50_1536GPU"

# 32 clips on a machine, rates for 8: four times 0.5, from 0.5 itself.
RECIPE = ["TRAIN.BATCH_SIZE", 32, "TEST.BATCH_SIZE", 32, "MODEL.ARCH", "slowonly"]
RECIPE += ["DATA.NUM_FRAMES", 16, "DATA.TRAIN_CROP_SIZE", 64, "DATA.TEST_CROP_SIZE", 64]
RECIPE += ["DATA.TRAIN_JITTER_SCALES", [64, 80], "NUM_GPUS", 0, "SOLVER.MAX_EPOCH", 10]
RECIPE += ["SOLVER.LR_POLICY", "steps_with_relative_lrs", "SOLVER.STEPS", [0, 4, 8]]
RECIPE += ["SOLVER.LRS", [1, 0.1, 0.01], "SOLVER.BASE_LR", 0.5, "SOLVER.WARMUP_START_LR", 0.5]
RECIPE += ["SOLVER.WARMUP_EPOCHS", 1.0]
ON = ["SOLVER.REFERENCE_BATCH_SIZE", 8]
COSINE = ["SOLVER.LR_POLICY", "cosine", "SOLVER.STEPS", [], "SOLVER.COSINE_END_LR", 0.125]
BOTH = ["MULTIGRID.LONG_CYCLE", True, "MULTIGRID.SHORT_CYCLE", True]


def config(*overrides: object) -> Recipe:
    return load_recipe(None, [*RECIPE, *overrides])


def rates(cfg: Recipe, *epochs: float) -> list[float]:
    policy = learning_rate_of(cfg)
    return [policy.at(epoch) for epoch in epochs]


def large(name: str = LARGE) -> tuple[Recipe, Schedule]:
    cfg = load_recipe(CONFIGS / f"{name}.yaml")
    return cfg, schedule_of(cfg, cfg.data.num_train_videos)


# The rule.


def test_the_rates_follow_the_batch_and_the_warm_up_starts_at_the_rate_as_written():
    assert rates(config(), 0, 0.5, 1, 5, 9) == pytest.approx([0.5, 0.5, 0.5, 0.05, 0.005])
    assert rates(config(*ON), 0, 0.5, 1, 5, 9) == pytest.approx([0.5, 1.25, 2, 0.2, 0.02])
    fewer = config(*ON, "TRAIN.BATCH_SIZE", 2, "SOLVER.WARMUP_EPOCHS", 0.0)
    assert rates(fewer, 0, 5) == pytest.approx([0.125, 0.0125])


def test_a_cosine_ends_at_the_scaled_end():
    """Four times from 0.5 to 0.125; half-way it is at their mean."""
    assert rates(config(*ON, *COSINE), 5, 10) == pytest.approx([1.25, 0.5])
    assert rates(config(*COSINE), 5, 10) == pytest.approx([0.3125, 0.125])


def test_the_batch_is_that_of_all_machines():
    assert rates(config(*ON, "NUM_SHARDS", 3), 0, 1) == pytest.approx([0.5, 6])
    as_many = config(*ON, "NUM_SHARDS", 4, "TRAIN.BATCH_SIZE", 2)
    assert rates(as_many, 0, 1, 5) == pytest.approx([0.5, 0.5, 0.05])


def test_off_is_the_config_itself():
    cfg = config()
    assert rates_of_batch(cfg) is cfg
    assert scale_to_processes(cfg, 4) is cfg


def test_the_recipe_for_1536_gpus_by_hand():
    """0.01 for 64 clips is 1.92 for 12,288, reached in 5 of 100 epochs."""
    _, run = large()
    assert run.base.batch == 12_288
    epoch = run.baseline_iterations / 100
    found = [run.at(round(epochs * epoch)).lr for epochs in (0, 2.5, 5, 39, 41, 81)]
    expected = [0.01, 0.965, 1.92, 1.92, 0.192, 0.0192]
    assert found == pytest.approx(expected, rel=0.005)


def test_multigrid_scales_for_shapes_on_top_the_start_of_the_warm_up_too():
    _, run = large(f"{LARGE}_MULTIGRID")
    assert run.at(0).lr == pytest.approx(8 * 0.01)
    ends = [run.at(phase.stop - 1).lr for phase in run.phases]
    stage = [8 * 1.92, 4 * 1.92, 2 * 1.92, 1.92]
    expected = [*stage, *(lr / 10 for lr in stage), 0.192, 0.0192]
    assert ends == pytest.approx(expected)
    # Warm-up is 5 of the first phase's 10 epochs of the baseline: half of its iterations.
    first = run.phases[0]
    half = first.iterations // 2
    assert run.at(half - 1).lr < run.at(half).lr == pytest.approx(8 * 1.92)
    assert {run.at(i).lr for i in range(half, first.stop)} == {run.at(half).lr}


# Other processes, and clusters.


def test_with_a_reference_number_of_gpus_the_batch_follows_them_and_the_rate_the_batch():
    """From 8 GPUs to 2: 8 clips, which is what the rate is for."""
    cfg = config(*ON, "SOLVER.REFERENCE_WORLD_SIZE", 8, *COSINE)
    scaled = scale_to_processes(cfg, 2)
    assert (scaled.train.batch_size, scaled.test.batch_size) == (8, 8)
    for key in ("BASE_LR", "WARMUP_START_LR", "COSINE_END_LR", "REFERENCE_BATCH_SIZE"):
        assert scaled.solver[key] == cfg.solver[key]
    assert rates(scaled, 0, 5, 10) == pytest.approx([0.5, 0.3125, 0.125])
    assert scale_to_processes(scaled, 2) is scaled
    assert rates(scale_to_processes(cfg, 8), 5, 10) == pytest.approx([1.25, 0.5])
    keys = ["SOLVER.REFERENCE_WORLD_SIZE", 8, "NUM_SHARDS", 2]
    machines = scale_to_processes(config(*ON, *COSINE, *keys), 16)
    assert (machines.num_shards, machines.train.batch_size) == (2, 32)
    assert rates(machines, 5, 10) == pytest.approx([2.5, 1.0])


@pytest.mark.parametrize("suffix", ["", "_MULTIGRID"])
@pytest.mark.parametrize(
    ("gpus", "per_node", "rate"),
    [(8, 8, 0.01), (6, 6, 0.0075), (768, 6, 0.96), (1536, 6, 1.92), (2048, 8, 2.56)],
)
def test_on_a_cluster_with_k_times_the_gpus_the_rate_is_k_times(suffix, gpus, per_node, rate):
    """8 clips a GPU, of which 8 GPUs have 64."""
    cfg = load_recipe(CONFIGS / f"{LARGE}{suffix}.yaml")
    fitted = on_cluster(cfg, Cluster(gpus, per_node, network=1e9))
    assert 8 * gpus == fitted.train.batch_size * fitted.num_shards
    start, full = rates(fitted, 0, 5)
    assert (start, full) == pytest.approx((0.01, rate))


def test_on_a_cluster_a_recipe_is_the_same_however_its_gpus_are_written():
    written = ["NUM_GPUS", 8, *ON]
    plain, other = (
        on_cluster(config(*written, *more), Cluster(32, 8, network=1e9))
        for more in ((), ("SOLVER.REFERENCE_WORLD_SIZE", 8))
    )
    assert plain.train.batch_size == other.train.batch_size == 32
    assert rates(plain, 0, 1, 5) == rates(other, 0, 1, 5) == pytest.approx([0.5, 8, 0.8])


# What is said and kept.


def test_the_log_says_once_what_the_rates_become(caplog):
    with caplog.at_level("INFO"):
        scale_to_processes(config(*ON, *COSINE), 1)
    (record,) = caplog.records
    assert record.getMessage().splitlines() == [
        "scaled from 8 clips in a mini-batch (SOLVER.REFERENCE_BATCH_SIZE) to 32, by the linear "
        "rule:",
        "  SOLVER.BASE_LR 0.5 → 2",
        "  SOLVER.COSINE_END_LR 0.125 → 0.5",
    ]
    caplog.clear()
    with caplog.at_level("INFO"):
        scale_to_processes(config("SOLVER.REFERENCE_BATCH_SIZE", 32), 1)
    assert not caplog.records


def test_the_config_at_an_iteration_has_the_rates_that_are_trained_with():
    cfg = config(*ON, *BOTH, "SOLVER.WARMUP_EPOCHS", 0.5)
    before, run = cfg.text, schedule_of(cfg, 3200)
    for phase, factor in zip(run.phases[:4], (8, 4, 2, 1), strict=True):
        at = recipe_at(cfg, run, phase.stop - 1)
        assert run.at(phase.stop - 1).lr == pytest.approx(at.solver.base_lr)
        assert pytest.approx(2 * factor) == at.solver.base_lr
        assert pytest.approx(0.5 * factor) == at.solver.warmup_start_lr
        # Read as a recipe, it scales no further.
        assert rates(at, 0, 0.5) == pytest.approx([0.5 * factor, 2 * factor])
    assert cfg.text == before


def check_same(there: Recipe, *keys: object) -> None:
    content = {"cfg": there.text, "iteration": 3}
    checkpoints.check_same_recipe(content, config(*keys), Path("c.pyth"))


def test_a_run_is_continued_where_batch_and_rates_stay():
    there = config(*ON)
    check_same(there, *ON)
    check_same(there, *ON, "NUM_SHARDS", 4, "TRAIN.BATCH_SIZE", 8)
    check_same(there, "SOLVER.BASE_LR", 2.0)  # written out
    check_same(there, "SOLVER.REFERENCE_BATCH_SIZE", 16, "SOLVER.BASE_LR", 1.0)
    with pytest.raises(ValueError, match=r"SOLVER\.BASE_LR: 2\.0 there, 0\.5 here") as caught:
        check_same(there)
    assert str(caught.value).count(" there, ") == 1
    with pytest.raises(ValueError, match=r"BATCH_SIZE: 32 there, 64 here"):
        check_same(there, *ON, "NUM_SHARDS", 2)


def test_a_run_from_before_the_keys_existed_is_continued():
    old = config()
    lines = old.text.splitlines(keepends=True)
    kept = [x for x in lines if "REFERENCE_BATCH_SIZE" not in x and "LARS_TRUST" not in x]
    old = replace(old, text="".join(kept))
    check_same(old)
    with pytest.raises(ValueError, match=r"SOLVER\.LARS_TRUST: 0\.001 there, 0\.02 here"):
        check_same(old, "SOLVER.LARS_TRUST", 0.02)


# Mistakes.


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["SOLVER.REFERENCE_BATCH_SIZE", -64], r"REFERENCE_BATCH_SIZE -64 is below 0; it is the"),
        ([*ON, "SOLVER.BASE_LR_SCALE_NUM_SHARDS", True], r"would both scale .* 0 or False"),
        (["SOLVER.REFERENCE_BATCH_SIZE", 2.5], r"takes a whole number, not 2\.5"),
        (["SOLVER.REFERENCE_BATCHSIZE", 8], r"did you mean SOLVER\.REFERENCE_BATCH_SIZE\?"),
    ],
)
def test_what_cannot_be_is_refused(keys: list[object], message: str):
    with pytest.raises(ValueError, match=message):
        check_recipe(scale_to_processes(config(*keys), 1))


def test_a_warm_up_that_would_go_down_is_warned_of(caplog: pytest.LogCaptureFixture):
    few = ["TRAIN.BATCH_SIZE", 4]
    check_recipe(config(*ON))
    check_recipe(config(*few))
    check_recipe(config(*ON, *few, "SOLVER.WARMUP_EPOCHS", 0.0))
    assert not caplog.records
    check_recipe(config(*ON, *few))
    (record,) = caplog.records
    assert "WARMUP_START_LR 0.5 is above 0.25, the rate of 4 clips" in record.getMessage()
    assert "set SOLVER.WARMUP_EPOCHS 0" in record.getMessage()


# A whole run, with LARS, and the same one continued from its middle.


def test_a_run_says_its_rates_trains_at_them_and_continues_exactly(
    train: Callable[..., Path], tmp_path: Path, opened: type
):
    """4 clips at the rate of 2: an epoch of 6 iterations, a checkpoint in its middle."""
    keys = ("SOLVER.REFERENCE_BATCH_SIZE", 2, "SOLVER.WARMUP_START_LR", 0.01)
    keys += ("SOLVER.OPTIMIZING_METHOD", "lars", "SOLVER.WEIGHT_DECAY", 1e-4)
    keys += ("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False)
    keys += ("SOLVER.MAX_EPOCH", 1, "SOLVER.STEPS", "[0, 0.5]", "SOLVER.WARMUP_EPOCHS", 0.25)
    keys += ("BN.USE_PRECISE_STATS", False, "TEST.ENABLE", False)
    whole = opened(train(tmp_path / "whole", *keys))
    assert whole.log.count("SOLVER.BASE_LR 0.01 → 0.02\n") == 1
    lr = [record["lr"] for record in whole.metrics()]
    assert [lr[0], *lr[2:]] == pytest.approx([0.01, 0.02, 0.002, 0.002, 0.002])
    middle = checkpoints.all_checkpoints(whole.path)[0]
    assert "BASE_LR: 0.02" in checkpoints.load(middle)["cfg_at_iteration"]
    again = tmp_path / "again"
    (again / "checkpoints").mkdir(parents=True)
    (again / "checkpoints" / middle.name).write_bytes(middle.read_bytes())
    train(again, *keys)
    found, expected = opened(again).checkpoint, whole.checkpoint
    assert (checkpoints.load(middle)["iteration"], found["iteration"]) == (3, 6)
    for state in (found, expected):
        momenta = state["optimizer_state"]["state"]
        state["tensors"] = [*state["model_state"].values()]
        state["tensors"] += [momenta[i]["momentum_buffer"] for i in sorted(momenta)]
    assert len(found["tensors"]) == len(expected["tensors"])
    assert all(map(torch.equal, found["tensors"], expected["tensors"]))
    groups = [state["optimizer_state"]["param_groups"] for state in (found, expected)]
    assert groups[0] == groups[1]
    assert {group["step"] for group in groups[0]} == {6}
