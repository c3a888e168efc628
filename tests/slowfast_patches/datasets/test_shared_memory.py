"""Workers need room in /dev/shm for the mini-batches that they load in advance."""

import os
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from multigrid import CosineRate, Shape, Training, make_schedule
from multigrid.shared_memory import fit_workers
from slowfast_patches.config import load_recipe
from slowfast_patches.datasets.loader import limit_workers, training_bytes
from slowfast_patches.utils.errors import explain_machine_error
from tests.conftest import mount_small_shm, needs_mount
from tests.multigrid.clips import Clips

MB = 2**20
SCHEDULE = make_schedule(Shape(4, 8, 32), 24, CosineRate(0.1, 2), cycles=None)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return `free(size)`, which fakes the number of free bytes in /dev/shm."""

    def have(size: int) -> None:
        status = SimpleNamespace(f_bavail=size // 4096, f_frsize=4096, f_blocks=1)
        monkeypatch.setattr(os, "statvfs", lambda path: status)

    return have


@pytest.mark.parametrize(
    ("size", "processes", "workers", "fitting"),
    [
        (64, 1, 2, 2),  # 5 mini-batches of 10 MB
        (64, 2, 2, 1),  # 3 mini-batches in 32 MB
        (64, 4, 2, 0),
        (0, 1, 0, 0),
    ],
)
def test_a_worker_needs_room_for_its_mini_batches(free, size, processes, workers, fitting):
    free(size * MB)
    found, text = fit_workers(workers, 10 * MB, processes=processes)
    assert found == fitting
    assert bool(text) == (fitting < workers)
    needed = processes * (2 * workers + 1) * 10
    assert f"--shm-size {needed}m" in text or not text


def test_a_run_uses_the_workers_that_fit_and_says_so(free, caplog: pytest.LogCaptureFixture):
    """64 clips of 32 × 224² have 308 MB. A validation at the same time needs as much again."""
    k400 = load_recipe(None, ["NUM_GPUS", 1, "DATA_LOADER.NUM_WORKERS", 8, "DATA.NUM_FRAMES", 32])
    schedule = make_schedule(Shape(64, 32, 224), 24_000, CosineRate(0.1, 2), cycles=None)
    size = training_bytes(schedule, 1)
    assert size == 2 * 64 * 32 * 224 * 224 * 3
    free(17 * size)
    assert limit_workers(k400, size) == k400
    assert not caplog.text
    free(16 * size)
    assert limit_workers(k400, size).data_loader.num_workers == 7
    assert "DATA_LOADER.NUM_WORKERS is reduced from 8 to 7. /dev/shm has" in caplog.text
    assert training_bytes(schedule, 8) == size // 8


def load_with_little_room(rank: int) -> None:
    mount_small_shm("64k")
    model = nn.Linear(1, 1)
    training = Training(SCHEDULE, model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.warns(UserWarning, match="enough for 0 instead of 2 .* or reduce num_workers"):
        loader = training.loader(Clips(24), num_workers=2)
    with pytest.raises(RuntimeError) as caught:
        list(loader)
    assert "--shm-size" in explain_machine_error(caught.value)
    assert len(list(training.batches(training.loader(Clips(24))))) == SCHEDULE.iterations


@needs_mount
@pytest.mark.slow("torch waits for its workers")
def test_with_a_small_dev_shm_the_loader_warns_and_the_error_is_explained(
    run_ranks: Callable[..., None],
):
    run_ranks(1, load_with_little_room)
