"""Export a trained model as a torch.export program or to ONNX, to run without this package."""

from __future__ import annotations

import io
import json
from pathlib import Path

import torch
from torch.export import Dim, ExportedProgram

from slowfast_patches.train.predict.predictor import Predictor
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.files import atomic_write, make_folder


def exported(predictor: Predictor) -> ExportedProgram:
    """Export `Predictor.forward` as a program.

    The input of the program is a batch of any number N of clips, (N, 3, T, S, S) uint8. T is
    DATA.NUM_FRAMES and S is DATA.TEST_CROP_SIZE. The output are probabilities (N, classes).
    """
    data = predictor.recipe.data
    size = data.test_crop_size
    device = next(predictor.parameters()).device
    clips = torch.zeros(2, 3, data.num_frames, size, size, dtype=torch.uint8, device=device)
    shapes = {"clips": {0: Dim("clips", min=1)}}
    with torch.no_grad():
        predictor(clips)  # caches the indices of the slow pathway, which export cannot trace
        return torch.export.export(predictor, (clips,), dynamic_shapes=shapes, strict=False)


def write_program(predictor: Predictor, checkpoint: Path, path: Path) -> None:
    """Write the torch.export program of a model to `path`.

    The extra file classes.json in the program is a JSON list of the class names, or null.
    """
    names = json.dumps(predictor.class_names, ensure_ascii=False)
    # Write to memory first, because torch's writer aborts the process if a disk is full.
    content = io.BytesIO()
    torch.export.save(exported(predictor), content, extra_files={"classes.json": names})
    make_folder(path.parent)
    with atomic_write(path) as file:
        file.write(content.getbuffer())


def write_onnx(predictor: Predictor, checkpoint: Path, path: Path) -> None:
    """Write a model to `path` in the ONNX format, with the input and output of `exported`.

    The entry `classes` of the metadata is a JSON list of the class names, or null.

    Raises:
        ValueError: The package onnx or onnxscript is missing.
    """
    try:
        import onnx  # noqa: F401  Lazy: these packages are optional.
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"--onnx needs the packages onnx and onnxscript ({error}). Run pip install onnx "
            "onnxscript"
        ) from None
    sizes = {"clips": {0: "clips"}}
    program = torch.onnx.export(exported(predictor), dynamo=True, dynamic_shapes=sizes)
    assert program is not None
    names = json.dumps(predictor.class_names, ensure_ascii=False)
    program.model.metadata_props["classes"] = names
    make_folder(path.parent)
    with atomic_write(path) as file:
        file.write(program.model_proto.SerializeToString())
