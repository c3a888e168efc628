"""Programs of torch.export and ONNX give the scores of the model that they were made from."""

import json

import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator

import slowfast_patches
from tests.slowfast_patches.train.test_predict import names, predict, videos

__all__ = ["names", "predict", "videos"]  # fixtures


def test_a_model_is_exported(multigrid_run, videos, names, predict, tmp_path):
    """The program takes one or more clips, and returns the scores of the model."""
    model = slowfast_patches.load_model(multigrid_run)
    clips = model.clips(videos[0])
    with torch.no_grad():
        scores = model(clips)
    path = tmp_path / "new" / "model.pt2"
    assert predict("--checkpoint", multigrid_run, "--export", path)[0] == 0
    extra = {"classes.json": ""}
    program = torch.export.load(path, extra_files=extra).module()
    assert json.loads(extra["classes.json"]) == names
    torch.testing.assert_close(program(clips), scores)
    torch.testing.assert_close(program(clips[1:]), scores[1:])
    status, _, err = predict("--checkpoint", path, videos[0])
    assert status == 2
    assert "is a program that --export has written" in err


def test_a_model_is_written_as_onnx_with_its_class_names(
    multigrid_run, videos, names, predict, tmp_path
):
    """ONNX's own evaluator takes one or more clips, and returns the scores of the model."""
    model = slowfast_patches.load_model(multigrid_run)
    clips = model.clips(videos[0])
    path = tmp_path / "new" / "model.onnx"
    assert predict("--checkpoint", multigrid_run, "--onnx", path)[0] == 0
    program = onnx.load(path)
    assert json.loads(program.metadata_props[0].value) == names
    with torch.no_grad():
        scores = model(clips).numpy()
    run = ReferenceEvaluator(program).run
    for few, wanted in ((clips, scores), (clips[1:], scores[1:])):
        (found,) = run(None, {"clips": few.numpy()})
        np.testing.assert_allclose(found, wanted, atol=1e-5)
