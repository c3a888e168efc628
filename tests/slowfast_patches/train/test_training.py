"""Whole runs: equal to a loop of PySlowFast's functions, with all that they should leave behind."""

import re

import pytest
import torch
import yaml

from multigrid import MultigridBatchSampler, collate
from slowfast_patches import patching
from slowfast_patches.config import load_recipe, pyslowfast_config
from slowfast_patches.config.recipe import Recipe, values_by_key
from slowfast_patches.datasets.loader import build_dataset
from slowfast_patches.models.layers.conv_and_pool import convert_convolutions
from slowfast_patches.plan.recipe_schedule import schedule_of
from tests.conftest import Folder
from tests.slowfast_patches.train.conftest import At, die

OFF = (
    *("MULTIGRID.LONG_CYCLE", False, "MULTIGRID.SHORT_CYCLE", False),
    *("MULTIGRID.EPOCH_FACTOR", 1.0, "MULTIGRID.BN_BASE_SIZE", 2, "MULTIGRID.EVAL_FREQ", 7),
    *("BN.USE_PRECISE_STATS", False, "MODEL.DROPOUT_RATE", 0.0, "TEST.ENABLE", False),
    *("SOLVER.MAX_EPOCH", 2, "SOLVER.STEPS", [0, 1], "TRAIN.EVAL_PERIOD", 2),
)
"""The baseline, whatever the other multigrid keys say: two epochs of 6 iterations."""


def host_loop(cfg: Recipe) -> dict[str, torch.Tensor]:
    """The weights after a baseline training written with the host's functions; ours are the clips,
    which are random."""
    patching.apply()
    from slowfast.datasets.utils import pack_pathway_output
    from slowfast.models.losses import get_loss_func
    from slowfast.models.model_builder import _MODEL_TYPES
    from slowfast.models.optimizer import construct_optimizer, set_lr
    from slowfast.utils.lr_policy import get_lr_at_epoch

    dataset = build_dataset(cfg, "train")
    torch.manual_seed(cfg.rng_seed)
    host = pyslowfast_config(cfg)
    # Convolutions as ours, whose rounding would otherwise differ, and grow.
    model = convert_convolutions(_MODEL_TYPES[cfg.model.arch](host).train())
    optimizer, loss_function = construct_optimizer(model, host), get_loss_func("cross_entropy")()
    batches = list(MultigridBatchSampler(schedule_of(cfg, len(dataset)), cfg.rng_seed))
    per_epoch = len(dataset) // cfg.train.batch_size
    for i, requests in enumerate(batches):
        set_lr(optimizer, get_lr_at_epoch(host, i / per_epoch))
        samples = [dataset[request] for request in requests]
        packed = [pack_pathway_output(host, prepare(cfg, sample)) for sample in samples]
        inputs = [torch.stack(clips) for clips in zip(*packed, strict=True)]
        loss = loss_function(model(inputs), collate(samples)["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert len(batches) == cfg.solver.max_epoch * per_epoch
    return model.state_dict()


def prepare(cfg: Recipe, sample: dict) -> torch.Tensor:
    """One clip as the host's dataset gives it: (C, T, H, W), normalised."""
    clip = torch.as_tensor(sample["clip"]).float() / 255
    clip = (clip - torch.tensor(cfg.data.mean)) / torch.tensor(cfg.data.std)
    clip = clip.permute(3, 0, 1, 2)
    return clip.flip(3) if sample["flip"] else clip


def test_off_is_a_loop_of_the_hosts_functions_whatever_the_multigrid_keys_say(
    train, tmp_path, tiny_config
):
    run = Folder(train(tmp_path, *OFF))
    assert run.result["iterations"] == run.result["baseline_iterations"] == 12
    assert len({record["lr"] for record in run.metrics()}) > 3  # warm-up, plateau, a tenth
    expected = host_loop(tiny_config(tmp_path, *OFF))
    found = run.checkpoint["model_state"]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


# What is left behind.


def test_a_run_leaves_each_iteration_once_and_everything_that_made_it(multigrid_run, tiny_config):
    recipe, folder = tiny_config(multigrid_run), Folder(multigrid_run)
    schedule, result = schedule_of(recipe, 24), folder.result
    records, evaluations = map(folder.metrics, ("train", "val"))
    assert re.findall(r"phase \d of 6: (.*); LR", folder.log) == list(schedule.phase_lines())
    assert [r["iteration"] for r in records] == list(range(1, schedule.iterations + 1))
    for record, step in zip(records, schedule.steps(), strict=True):
        shape = [step.shape.batch, step.shape.frames, step.shape.crop]
        assert (record["shape"], record["phase"]) == (shape, step.phase)
        assert (record["lr"], record["bn_group_size"]) == (step.lr, step.bn_group_size)
        assert record["epoch"] == pytest.approx(step.epoch, abs=1e-3)
    seconds = [r["seconds"] for r in records]
    assert seconds == sorted(seconds)
    assert [e["iteration"] for e in evaluations] == [phase.stop for phase in schedule.phases]
    assert [{"type": "val", **e} for e in result["evaluations"]] == evaluations

    assert result["config"] == yaml.safe_load(recipe.text)
    assert values_by_key(load_recipe(multigrid_run / "config.yaml")) == values_by_key(recipe)
    assert result["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert result["seconds"]["testing"] > 0
    assert (result["iterations"], result["baseline_iterations"]) == (schedule.iterations, 36)
    assert (result["clips"], result["global_batch"]) == (schedule.clips, 4)
    assert (result["metric"], result["videos"], result["unreadable"]) == ("top1", 8, 0)
    assert 0 <= result["top1"] <= result["top5"] <= 100
    assert "fine-tuning" in (multigrid_run / "plan.txt").read_text()


def test_a_run_with_all_switches_begins_as_the_plain_run(train, multigrid_run, tmp_path):
    switches = ("MODEL.CHANNELS_LAST", "MODEL.ACT_CHECKPOINT", "SOLVER.FUSED", "TRAIN.KEEP_BEST")
    keys = [item for key in switches for item in (key, True)]
    keys += ["MODEL.EMA_DECAY", 0.5]
    few = ("MULTIGRID.LONG_CYCLE_FACTORS", [[0.25, 0.5**0.5], [1, 1]])
    few += ("MULTIGRID.EVAL_FREQ", 0, "TRAIN.EVAL_PERIOD", 99, "BN.USE_PRECISE_STATS", False)
    train(tmp_path, *few, *keys, "SOLVER.MAX_EPOCH", 2, "SOLVER.STEPS", [0, 1])
    run, plain = Folder(tmp_path), Folder(multigrid_run)
    records, first = run.metrics(), plain.metrics()[0]
    assert records[0]["shape"] == first["shape"]
    assert records[0]["loss"] == pytest.approx(first["loss"], rel=1e-4)
    content = run.checkpoint["model_state"]
    assert content.keys() == plain.checkpoint["model_state"].keys()
    weight = content["s2.pathway0_res0.branch2.b.weight"]
    assert weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert content["s1.pathway0_stem.bn.num_batches_tracked"] == len(records)
    assert 0 <= run.result["top1_ema"] <= 100


def test_validations_and_precise_bn_change_nothing_of_the_training(train, multigrid_run, tmp_path):
    """The other run has two validations before the sixth iteration."""
    with pytest.raises(SystemExit):
        train(tmp_path, "MULTIGRID.EVAL_FREQ", 0, "TRAIN.EVAL_PERIOD", 1000, hooks=[At(7, die)])
    assert Folder(tmp_path).metrics("val") == []
    losses = [[r["loss"] for r in Folder(f).metrics()[:6]] for f in (tmp_path, multigrid_run)]
    assert losses[0] == losses[1]


def test_a_run_that_a_hook_ends_has_a_test_and_a_result_and_is_not_trained_further(train, tmp_path):
    def stop(trainer):
        trainer.should_stop = True

    keys = (*OFF, "TEST.ENABLE", True)
    train(tmp_path, *keys, hooks=[At(5, stop)])
    run = Folder(tmp_path)
    result = run.result
    assert (result["iterations"], result["planned_iterations"]) == (5, 12)
    assert result["clips"] == 5 * 4
    assert result["evaluations"][-1]["iteration"] == run.checkpoint["iteration"] == 5
    assert {"top1", "top5"} <= result.keys()
    assert "A hook ends the training after iteration 5 of 12." in run.log
    before = run.metrics()
    train(tmp_path, *keys)
    assert run.metrics() == before
    assert run.result["top1"] == result["top1"]


def test_the_log_names_the_keys_that_change_at_the_boundary_of_a_long_cycle(multigrid_run):
    """The shapes are 32×2×23², 16×4×23², 8×4×32² and 4×8×32², then fine-tuning at a tenth."""
    log = Folder(multigrid_run).log
    words = "Recipe keys from this iteration on: "
    said = [line.split(words)[1] for line in log.splitlines() if words in line]
    assert said[0].startswith("TRAIN.BATCH_SIZE 32, DATA.NUM_FRAMES 2, DATA.TRAIN_CROP_SIZE 23")
    assert said[1].startswith("TRAIN.BATCH_SIZE 16, DATA.NUM_FRAMES 4, SOLVER.BASE_LR")
    assert said[2].startswith("TRAIN.BATCH_SIZE 8, DATA.TRAIN_CROP_SIZE 32, SOLVER.BASE_LR")
    assert said[3].startswith("TRAIN.BATCH_SIZE 4, DATA.NUM_FRAMES 8, SOLVER.BASE_LR 0.01")
