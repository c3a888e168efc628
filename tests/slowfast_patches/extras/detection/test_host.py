"""What PySlowFast gets: a layer in place of detectron2's, and names for its evaluation."""

import importlib.util
import sys

import numpy as np
import pytest

from slowfast_patches.extras.detection.lists import host_ava


def test_the_models_of_the_host_pool_boxes_with_our_layer():
    if importlib.util.find_spec("detectron2") is None:
        layer = sys.modules["detectron2.layers"].ROIAlign
        assert type(
            layer((7, 7), spatial_scale=0.5, sampling_ratio=0, aligned=True)
        ).__module__ == ("slowfast_patches.extras.detection.roi_align")


def test_the_evaluation_of_ava_has_the_names_that_numpy_removed(monkeypatch):
    from slowfast.utils.ava_evaluation import metrics

    monkeypatch.setattr(metrics, "np", np)
    host_ava()
    # Found, found, missed: precision 1 at recalls 1/3 and 2/3.
    assert metrics.compute_average_precision(np.array([1.0, 1.0]), np.array([1 / 3, 2 / 3])) == (
        pytest.approx(2 / 3)
    )
    assert not hasattr(np, "float")
