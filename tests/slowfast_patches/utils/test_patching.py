"""The ledger: all or none, undoable, refused on a wrong version, drift noticed."""

import importlib.util
import math
import subprocess
import sys
from importlib import metadata

import pytest
from slowfast.datasets.build import DATASET_REGISTRY
from slowfast.utils import lr_policy

from slowfast_patches import patching
from slowfast_patches.datasets.kinetics import Kinetics
from slowfast_patches.patching import Patch

HOST_FUNCTION = "slowfast.utils.lr_policy:__dict__[lr_func_cosine]"


@pytest.fixture(autouse=True)
def ledger_as_before():
    """Every test starts with nothing applied, and leaves the ledger as it found it."""
    was_applied = patching.applied()
    patching.undo()
    yield
    patching.undo()
    if was_applied:
        patching.apply()


def row(target: str, replacement: str = "math:floor", **fields) -> Patch:
    return Patch(target, replacement, ("1.0",), "a test", "the test ends", **fields)


def host_state() -> dict:
    return {
        "registry": dict(DATASET_REGISTRY._obj_map),
        "detectron2": {name for name in sys.modules if name.startswith("detectron2")},
        "cosine": lr_policy.lr_func_cosine,
    }


def test_applied_the_host_has_ours_and_undone_it_is_as_before():
    before = host_state()
    for _ in range(2):
        patching.apply()
        assert DATASET_REGISTRY.get("Kinetics") is Kinetics
    for _ in range(2):
        patching.undo()
        assert host_state() == before
        assert not patching.applied()


def test_a_failing_row_takes_the_rows_before_it_back(monkeypatch):
    added = row("slowfast.datasets.build:DATASET_REGISTRY._obj_map[Nothing]")
    superfluous = row("no_module:__dict__[thing]", unless_installed="torch")
    wrong = row(HOST_FUNCTION, "math:no_such_function")
    rows = (row(HOST_FUNCTION), added, superfluous, wrong)
    before = host_state()
    monkeypatch.setattr(patching, "PATCHES", rows)
    with pytest.raises(AttributeError):
        patching.apply()
    assert host_state() == before
    assert not patching.applied()
    monkeypatch.setattr(patching, "PATCHES", rows[:3])
    patching.apply()
    assert lr_policy.lr_func_cosine is math.floor
    patching.undo()
    assert host_state() == before


def test_a_wrong_version_of_the_host_is_refused_before_anything_changes(monkeypatch):
    before = host_state()
    monkeypatch.setattr(metadata, "version", lambda name: "1.1")
    with pytest.raises(RuntimeError, match=r"pyslowfast 1\.1 .* 1\.0 only: pip install pyslowfast"):
        patching.apply()
    assert host_state() == before
    assert not patching.applied()


def test_a_changed_host_is_noticed_and_warned_of(monkeypatch, caplog):
    class Changed:
        """Another Kinetics than the one that the row was written against."""

    assert patching.drift() == []
    monkeypatch.setitem(DATASET_REGISTRY._obj_map, "Kinetics", Changed)
    target = "slowfast.datasets.build:DATASET_REGISTRY._obj_map[Kinetics]"
    assert patching.drift() == [target]
    patching.apply()
    assert patching.drift() == [target]
    assert target in caplog.text


@pytest.mark.slow
def test_importing_the_ledger_touches_no_package_but_its_own():
    program = (
        "import slowfast_patches.patching as p, sys; "
        "print(p.applied(), 'slowfast' in sys.modules, 'detectron2.layers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["False"] * 3, done.stderr


def test_detection_without_detectron2_says_what_to_install(monkeypatch):
    monkeypatch.setattr(Patch, "needed", True)
    patching.apply()
    from detectron2.layers import ROIAlign

    assert importlib.util.find_spec("detectron2.layers").origin == "slowfast_patches.patching"
    with pytest.raises(ImportError, match=r"DETECTION\.ENABLE.*github\.com/facebookresearch"):
        ROIAlign(7, spatial_scale=1 / 16, sampling_ratio=0, aligned=True)
