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
from slowfast_patches.patching import PATCHES, Patch

HOST_FUNCTION = "slowfast.utils.lr_policy:__dict__[lr_func_cosine]"
HASH_OF_SOMETHING_ELSE = "0" * 64


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


def use_rows(monkeypatch: pytest.MonkeyPatch, *rows: Patch) -> None:
    monkeypatch.setattr(patching, "PATCHES", rows)


def test_applied_the_host_builds_our_dataset_under_the_recipes_name():
    from slowfast_patches.datasets.kinetics import Kinetics

    patching.apply()
    assert patching.applied()
    assert DATASET_REGISTRY.get("Kinetics") is Kinetics


def test_undone_the_host_is_as_before():
    before = host_state()
    patching.apply()
    assert host_state() != before
    patching.undo()
    assert host_state() == before
    assert not patching.applied()


def test_apply_and_undo_are_idempotent():
    before = host_state()
    patching.apply()
    once = host_state()
    patching.apply()
    assert host_state() == once
    patching.undo()
    patching.undo()
    assert host_state() == before


def test_undo_leaves_what_somebody_else_put_there_since(monkeypatch):
    registry = DATASET_REGISTRY._obj_map
    monkeypatch.setitem(registry, "Kinetics", registry["Kinetics"])  # put back after the test
    patching.apply()
    registry["Kinetics"] = str
    patching.undo()
    assert DATASET_REGISTRY.get("Kinetics") is str


def test_attributes_are_replaced_and_restored(monkeypatch):
    use_rows(monkeypatch, row(HOST_FUNCTION))
    host_function = lr_policy.lr_func_cosine
    patching.apply()
    assert lr_policy.lr_func_cosine is math.floor
    patching.undo()
    assert lr_policy.lr_func_cosine is host_function


@pytest.mark.parametrize(
    ("target", "replacement", "error"),
    [
        (HOST_FUNCTION, "slowfast_patches.no_such_module:thing", ModuleNotFoundError),
        (HOST_FUNCTION, "math:no_such_function", AttributeError),
        ("slowfast.no_such_module:__dict__[thing]", "math:floor", ModuleNotFoundError),
    ],
)
def test_a_failing_row_takes_the_rows_before_it_back(monkeypatch, target, replacement, error):
    added = row("slowfast.datasets.build:DATASET_REGISTRY._obj_map[Nothing]")
    use_rows(monkeypatch, row(HOST_FUNCTION), added, row(target, replacement))
    before = host_state()
    with pytest.raises(error):
        patching.apply()
    assert host_state() == before
    assert not patching.applied()


def test_a_wrong_version_of_the_host_is_refused_before_anything_changes(monkeypatch):
    before = host_state()
    monkeypatch.setattr(metadata, "version", lambda name: "1.1")
    with pytest.raises(RuntimeError, match=r"pyslowfast 1\.1 .* 1\.0 only: pip install pyslowfast"):
        patching.apply()
    assert host_state() == before
    assert not patching.applied()


def test_a_missing_host_is_said_so(monkeypatch):
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(RuntimeError, match="pyslowfast is not installed"):
        patching.apply()


def test_the_installed_host_has_not_drifted():
    assert patching.drift() == []
    patching.apply()
    assert patching.drift() == []


def test_every_row_that_replaces_something_has_a_hash():
    replacing = [p for p in PATCHES if patching._read(p.target) is not patching._MISSING]
    assert [p.target for p in replacing if p.source_sha256 is None] == []
    assert all(p.versions and p.reason and p.until for p in PATCHES)


def test_a_changed_host_is_noticed_and_warned_of(monkeypatch, caplog):
    class Kinetics:
        """Another Kinetics than the one that the row was written against."""

    monkeypatch.setitem(DATASET_REGISTRY._obj_map, "Kinetics", Kinetics)
    target = "slowfast.datasets.build:DATASET_REGISTRY._obj_map[Kinetics]"
    assert patching.drift() == [target]
    patching.apply()
    assert patching.drift() == [target]
    assert target in caplog.text


def test_a_host_object_that_is_gone_has_drifted(monkeypatch):
    monkeypatch.delattr(lr_policy, "lr_func_cosine")
    use_rows(monkeypatch, row(HOST_FUNCTION, source_sha256=HASH_OF_SOMETHING_ELSE))
    assert patching.drift() == [HOST_FUNCTION]


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

    with pytest.raises(ImportError, match=r"DETECTION\.ENABLE.*github\.com/facebookresearch"):
        ROIAlign(7, spatial_scale=1 / 16, sampling_ratio=0, aligned=True)


def test_the_placeholder_does_not_pretend_that_detectron2_is_installed(monkeypatch):
    installed = importlib.util.find_spec("detectron2") is not None
    monkeypatch.setattr(Patch, "needed", True)
    patching.apply()
    assert (importlib.util.find_spec("detectron2") is not None) == installed
    assert importlib.util.find_spec("detectron2.layers").origin == "slowfast_patches.patching"


def test_an_installed_package_makes_its_row_do_nothing(monkeypatch):
    use_rows(monkeypatch, row(HOST_FUNCTION, unless_installed="torch"))
    host_function = lr_policy.lr_func_cosine
    patching.apply()
    assert lr_policy.lr_func_cosine is host_function
    assert patching.applied()
