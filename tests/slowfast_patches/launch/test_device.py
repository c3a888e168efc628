"""How a process is set up for its device. The GPUs are stand-ins."""

from __future__ import annotations

import os

import pytest
import torch

from slowfast_patches.config import load_recipe
from slowfast_patches.launch import device as module
from slowfast_patches.launch.device import (
    check_gpus,
    keep_memory_whole,
    process_device,
    set_up_device,
    with_precision,
)
from slowfast_patches.launch.placement import Placement
from slowfast_patches.utils.errors import UserError


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))


def recipe(*pairs):
    return load_recipe(None, pairs)


@pytest.mark.parametrize(
    ("gpus", "found", "local_rank", "fits"),
    [
        (2, 2, None, True),
        (2, 3, None, True),
        (2, 1, None, False),
        (2, 1, 1, True),  # a task of srun that sees its own GPU
        (2, 0, 1, False),
        (3, 2, 1, False),
        (0, 0, None, True),
    ],
)
def test_a_machine_has_the_gpus_or_a_task_has_its_own(monkeypatch, gpus, found, local_rank, fits):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    given = recipe("NUM_GPUS", gpus), Placement(1, 0, max(1, gpus), local_rank)
    if fits:
        check_gpus(*given)
        return
    with pytest.raises(UserError, match=f"NUM_GPUS is {gpus}, but this machine has {found} GPUs"):
        check_gpus(*given)


@pytest.mark.parametrize(("count", "number"), [(4, 3), (1, 0)])
def test_a_rank_takes_the_gpu_of_its_number_or_the_only_one(monkeypatch, count, number):
    current = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    os.environ.pop("PYTORCH_ALLOC_CONF", None)
    assert process_device(recipe("NUM_GPUS", 4), 3) == torch.device("cuda", number)
    assert current == [number]
    assert os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


@pytest.mark.parametrize(
    ("cores", "workers", "threads"), [(8, 3, 5), (4, 4, 1), (2, 5, 1), (2, 0, 2)]
)
def test_each_worker_has_a_core_and_torch_the_others(monkeypatch, cores, workers, threads):
    told = []
    os.environ.pop("OMP_NUM_THREADS", None)
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    monkeypatch.setattr(module, "cores_of_process", lambda gpus: cores)
    monkeypatch.setattr(module, "num_workers", lambda asked, gpus: workers)
    assert process_device(recipe("NUM_GPUS", 0), 2) == torch.device("cpu")
    assert told == [threads]
    os.environ["OMP_NUM_THREADS"] = "9"
    process_device(recipe("NUM_GPUS", 0), 2)
    assert told == [threads], "the user's number stays"


def test_a_precision_that_was_asked_for_stays():
    for asked in (True, False):
        given = recipe("TRAIN.MIXED_PRECISION", asked)
        assert with_precision(given, on_gpu=not asked) is given


@pytest.fixture
def backends():
    """torch's settings, which are restored."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    former = cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic, matmul.allow_tf32
    yield lambda: (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic)
    cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic, matmul.allow_tf32 = former
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    ("tf32", "benchmark", "deterministic", "expected"),
    [
        (True, True, False, (True, True, True, False)),
        (False, False, False, (False, False, False, False)),
        (True, True, True, (True, True, False, True)),  # a benchmark chooses by time
    ],
)
def test_torch_is_set_as_the_recipe_says(backends, tf32, benchmark, deterministic, expected):
    names = ("TRAIN.TF32", tf32, "TRAIN.CUDNN_BENCHMARK", benchmark)
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    set_up_device(recipe(*names, "TRAIN.DETERMINISTIC", deterministic))
    assert backends() == expected
    assert torch.are_deterministic_algorithms_enabled() is deterministic
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) is deterministic


def test_the_allocator_of_the_user_stays():
    os.environ.pop("PYTORCH_ALLOC_CONF", None)
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:64"
    keep_memory_whole()
    assert "PYTORCH_ALLOC_CONF" not in os.environ
    del os.environ["PYTORCH_CUDA_ALLOC_CONF"]
    os.environ["PYTORCH_ALLOC_CONF"] = "backend:native"
    keep_memory_whole()
    assert os.environ["PYTORCH_ALLOC_CONF"] == "backend:native"
