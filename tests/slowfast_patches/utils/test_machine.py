"""Cores, processes and workers of a machine, and its description."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from slowfast_patches.utils import machine as machine_module
from slowfast_patches.utils.machine import (
    available_cores,
    cores_of_process,
    local_processes,
    machine,
    num_workers,
    versions,
)


@pytest.mark.parametrize(
    ("gpus", "local", "cores", "processes", "own"),
    [
        (0, None, 8, 1, 8),
        (4, None, 8, 4, 2),
        (4, "2", 8, 2, 4),
        (16, None, 8, 16, 1),
        (0, "3", 8, 3, 2),
        (1, "", 8, 1, 8),
    ],
)
def test_processes_share_the_cores(monkeypatch, gpus, local, cores, processes, own):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if local is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    monkeypatch.setattr(machine_module, "available_cores", lambda: cores)
    assert local_processes(gpus) == processes
    assert cores_of_process(gpus) == own


@pytest.mark.parametrize(
    ("wanted", "gpus", "cores", "expected"),
    [
        (0, 1, 64, 0),
        ("5", 0, 1, 5),
        ("auto", 1, 8, 7),
        ("auto", 1, 1, 1),
        ("auto", 1, 17, 16),
        ("auto", 1, 64, 16),
        ("auto", 0, 8, 2),
        ("auto", 0, 3, 1),
        ("auto", 0, 64, 16),
        ("auto", 0, 100, 25),
    ],
)
def test_workers(monkeypatch, wanted, gpus, cores, expected):
    monkeypatch.setattr(machine_module, "cores_of_process", lambda num_gpus: cores)
    assert num_workers(wanted, gpus) == expected


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda number: {0: {0, 3, 5}}[number], raising=False
    )
    assert available_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert available_cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cores() == 1


def test_the_description_of_this_machine(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: f"GPU {number}")
    found = machine()
    assert found["gpus"] == ["GPU 0", "GPU 1"]
    assert found["cores"] == os.cpu_count()
    assert found["threads"] == torch.get_num_threads()
    assert found["platform"] == platform.platform()


@pytest.mark.parametrize(
    ("text", "name"),
    [("vendor: x\nmodel name\t: Xeon 9\nmodel name : other\n", "Xeon 9"), ("no name\n", "plain")],
)
def test_the_processor_is_named_by_the_kernel_or_by_python(monkeypatch, text, name):
    monkeypatch.setattr(Path, "read_text", lambda self, **_: text)
    monkeypatch.setattr(platform, "processor", lambda: "plain")
    assert machine()["processor"] == name


def test_versions_are_those_of_the_packages_that_affect_results():
    found = versions()
    assert found["python"] == platform.python_version()
    assert found["torch"] == str(torch.__version__)
    assert found["av"] == version("av")
    assert found["pyslowfast"] == "1.0"
