"""What is written of a tiny network: programs, names of classes, and files that are whole."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from slowfast_patches.extras.export import program
from slowfast_patches.extras.export.program import exported, write_onnx, write_program
from slowfast_patches.utils.errors import UserError

NAMES = ("gehen", "lächeln")


class TinyPredictor(nn.Module):
    """Scores of two classes, from the sums of the clips' pixels. The first call is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.recipe = SimpleNamespace(data=SimpleNamespace(num_frames=2, test_crop_size=3))
        self.class_names = NAMES
        self.weight = nn.Parameter(torch.tensor([0.001, -0.001]))
        self.calls = list[torch.Size]()

    def forward(self, clips: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            self.calls.append(clips.shape)
        return (clips.flatten(1).float().sum(1, keepdim=True) * self.weight).softmax(1)


@pytest.fixture
def predictor() -> TinyPredictor:
    return TinyPredictor()


@pytest.fixture
def trace() -> Iterator[mock.Mock]:
    """Stand in for `torch.export.export`, whose first call takes seconds."""
    with (
        mock.patch("torch.export.export") as export,
        mock.patch.object(program, "Dim", lambda name, **bounds: (name, bounds)),
    ):
        yield export


@pytest.mark.slow("exports a network")
def test_a_program_takes_any_number_of_clips_and_has_the_scores_and_names(predictor, tmp_path):
    path = tmp_path / "new" / "model.pt2"
    write_program(predictor, Path("unused"), path)
    extra = {"classes.json": ""}
    read = torch.export.load(path, extra_files=extra).module()
    assert json.loads(extra["classes.json"]) == list(NAMES)
    assert "lächeln" in extra["classes.json"]
    for count in (1, 2, 5):
        clips = torch.randint(256, (count, 3, 2, 3, 3), dtype=torch.uint8)
        torch.testing.assert_close(read(clips), predictor(clips))
    assert [file.name for file in path.parent.iterdir()] == ["model.pt2"]


def test_a_first_call_fills_caches_before_the_program_is_traced(predictor, trace):
    assert exported(predictor) is trace.return_value
    assert predictor.calls == [(2, 3, 2, 3, 3)]
    (model, (clips,)), options = trace.call_args
    assert model is predictor
    assert (clips.shape, clips.dtype) == ((2, 3, 2, 3, 3), torch.uint8)
    axes = {"clips": {0: ("clips", {"min": 1})}}
    assert options == {"dynamic_shapes": axes, "strict": False}


def test_a_program_is_written_at_once_with_the_names(predictor, trace, tmp_path):
    def save(traced, file, extra_files):
        assert traced is trace.return_value
        file.write(extra_files["classes.json"].encode())

    path = tmp_path / "new" / "model.pt2"
    with mock.patch("torch.export.save", save):
        write_program(predictor, Path("unused"), path)
    assert path.read_text() == '["gehen", "lächeln"]'
    assert [file.name for file in path.parent.iterdir()] == ["model.pt2"]


@pytest.mark.parametrize("missing", ["onnx", "onnxscript"])
def test_onnx_without_its_packages_says_what_to_install(predictor, tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, "onnx", mock.Mock())
    monkeypatch.setitem(sys.modules, "onnxscript", mock.Mock())
    monkeypatch.setitem(sys.modules, missing, None)
    path = tmp_path / "new" / "model.onnx"
    with pytest.raises(UserError, match="--onnx needs the packages onnx and onnxscript"):
        write_onnx(predictor, Path("unused"), path)
    assert not path.parent.exists()


def test_onnx_gets_the_program_and_the_names(predictor, trace, tmp_path, monkeypatch):
    """The converter itself takes seconds, so a slow test has it."""
    for name in ("onnx", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, mock.Mock())
    made = mock.Mock()
    made.model.metadata_props = {}
    made.model_proto.SerializeToString.return_value = b"a program"
    path = tmp_path / "new" / "model.onnx"
    with mock.patch("torch.onnx.export", return_value=made) as convert:
        write_onnx(predictor, Path("unused"), path)
    assert convert.call_args.args == (trace.return_value,)
    assert convert.call_args.kwargs == {"dynamo": True, "dynamic_shapes": {"clips": {0: "clips"}}}
    assert json.loads(made.model.metadata_props["classes"]) == list(NAMES)
    assert "lächeln" in made.model.metadata_props["classes"]
    assert path.read_bytes() == b"a program"
