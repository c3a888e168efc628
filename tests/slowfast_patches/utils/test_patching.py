"""The stand-in for detectron2: only where it is missing, and it says what to install."""

import importlib.util
import sys
from types import ModuleType

import pytest

from slowfast_patches import patching


@pytest.fixture
def without_detectron2(monkeypatch: pytest.MonkeyPatch) -> None:
    """No detectron2 is installed, and nothing stands in for it yet."""
    monkeypatch.delitem(sys.modules, "detectron2.layers", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_detection_without_detectron2_says_what_to_install(without_detectron2, monkeypatch):
    monkeypatch.setitem(sys.modules, "detectron2.layers", ModuleType("before"))
    del sys.modules["detectron2.layers"]  # is put back after the test
    patching.apply()
    from detectron2.layers import ROIAlign

    with pytest.raises(ImportError, match=r"DETECTION\.ENABLE.*github\.com/facebookresearch"):
        ROIAlign(7, spatial_scale=1 / 16, sampling_ratio=0, aligned=True)


def test_an_installed_detectron2_is_left_alone(without_detectron2, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    patching.apply()
    assert "detectron2.layers" not in sys.modules
