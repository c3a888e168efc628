"""Runs on a GPU: exact resuming, and several processes on one GPU."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from multigrid import Batch, ScheduleStep
from slowfast_patches.train.hooks import KeepBest, SaveCheckpoint, Validate
from slowfast_patches.train.record.log_metrics import LogMetrics
from slowfast_patches.train.step import Stepper
from slowfast_patches.train.trainer import Trainer
from tests.conftest import free_port

pytestmark = pytest.mark.gpu

DETERMINISTIC = ("NUM_GPUS", 1, "TRAIN.DETERMINISTIC", True)
BEST = ("TRAIN.MIXED_PRECISION", True, "MODEL.CHANNELS_LAST", True, "SOLVER.FUSED", True)


def finish(process: subprocess.Popen[str]) -> None:
    _, said = process.communicate(timeout=900)
    assert process.returncode == 0, said


@pytest.mark.parametrize("keys", [(), BEST], ids=["plain", "best"])
def test_a_continued_training_is_the_undisturbed_one_bit_for_bit(
    start_run_net: Callable[..., subprocess.Popen[str]], tmp_path: Path, opened: type, keys
):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    finish(start_run_net(whole, *DETERMINISTIC, *keys))
    finish(start_run_net(parts, *DETERMINISTIC, *keys))
    last = opened(parts)
    checkpoints = sorted((parts / "checkpoints").glob("*.pyth"))
    for later in checkpoints[1:]:
        later.unlink()
    (parts / "result.json").unlink()
    finish(start_run_net(parts, *DETERMINISTIC, *keys))
    assert "Resuming after iteration" in last.log
    expected = opened(whole).checkpoint["model_state"]
    for name, value in last.checkpoint["model_state"].items():
        assert torch.equal(value, expected[name]), name


def test_two_processes_on_one_card_train_what_one_does(
    start_run_net: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    opened: type,
):
    """Each process is a "machine" with the same GPU, and they communicate by gloo.

    The learning rate is low, because such a thin network turns rounding errors into per cents in
    ten iterations. TF32 is off, because it rounds sums over another number of clips differently.
    """
    rates = ("SOLVER.BASE_LR", 1e-4, "SOLVER.WARMUP_START_LR", 1e-5)
    keys = (*DETERMINISTIC, *rates, "TRAIN.TF32", False, "DIST_BACKEND", "gloo")
    finish(start_run_net(tmp_path / "one", *keys))
    where = ("NUM_SHARDS", 2, "TRAIN.BATCH_SIZE", 2, "DIST_JOIN_SECONDS", 300)
    address = f"tcp://127.0.0.1:{free_port()}"
    both = [
        start_run_net(
            *(tmp_path / "two", *keys, *where, "SHARD_ID", number, "--init-method", address),
            GLOO_SOCKET_IFNAME="lo",
        )
        for number in range(2)
    ]
    for process in both:
        finish(process)
    one, two = (opened(tmp_path / name).metrics() for name in ("one", "two"))
    assert [r["shape"] for r in one] == [r["shape"] for r in two]
    for ours, theirs in zip(two, one, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)


def test_only_reports_evaluations_and_checkpoints_wait_for_the_gpu(
    train: Callable[..., Path], tmp_path: Path, opened: type, monkeypatch: pytest.MonkeyPatch
):
    """Every other wait for the GPU that torch detects raises an error.

    torch does not detect that a copy from ordinary memory waits, so the test also checks that
    mini-batches are in pinned memory.
    """
    methods = {LogMetrics: ("_report",), Validate: ("_validate_if_due",)}
    methods |= {SaveCheckpoint: ("_save",), KeepBest: ("_keep_best",)}
    for owner, names in methods.items():
        for name in names:
            monkeypatch.setattr(owner, name, in_mode("default", getattr(owner, name)))
    monkeypatch.setattr(Trainer, "_train_from", in_mode("error", Trainer._train_from))
    pinned, passes = list[bool](), Stepper.forward_backward

    def look(stepper: Stepper, step: ScheduleStep, batch: Batch, *rest: object):
        if stepper.optimizer.state:  # after the dry steps
            pinned.extend(batch[key].is_pinned() for key in ("clips", "flips", "labels"))
        return passes(stepper, step, batch, *rest)

    monkeypatch.setattr(Stepper, "forward_backward", look)
    train(tmp_path, "NUM_GPUS", 1, "LOG_PERIOD", 5, "DATA_LOADER.PIN_MEMORY", True)
    assert pinned
    assert all(pinned)
    assert len(opened(tmp_path).metrics()) > 3


def in_mode(mode: str, method: Callable[..., object]) -> Callable[..., object]:
    """Wrap a method such that synchronising is allowed ("default") or an error ("error")."""

    def call(*given: object) -> object:
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode(mode)
        try:
            return method(*given)
        finally:
            torch.cuda.set_sync_debug_mode(before)

    return call
