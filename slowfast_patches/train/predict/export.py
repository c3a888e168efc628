"""Export a trained model as a torch.export program, which runs without this package."""

from __future__ import annotations

import io
import json
from pathlib import Path

import torch
from torch.export import Dim, ExportedProgram

from slowfast_patches.train.predict.predictor import Predictor
from slowfast_patches.utils.files import atomic_write


def exported(predictor: Predictor) -> ExportedProgram:
    """Export `Predictor.forward` as a program.

    The program takes any number of clips of the test grid, (N, 3, T, S, S) uint8, and returns
    probabilities (N, classes).
    """
    data = predictor.recipe.data
    size = data.test_crop_size
    device = next(predictor.parameters()).device
    clips = torch.zeros(2, 3, data.num_frames, size, size, dtype=torch.uint8, device=device)
    shapes = {"clips": {0: Dim("clips", min=1)}}
    with torch.no_grad():
        predictor(clips)  # places of slow frames are computed once, which export cannot follow
        return torch.export.export(predictor, (clips,), dynamic_shapes=shapes, strict=False)


def write_program(predictor: Predictor, path: Path) -> None:
    """Write the program of a model.

    The names of the classes are in it as JSON, as the extra file classes.json.
    """
    program = exported(predictor)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        names = json.dumps(predictor.class_names, ensure_ascii=False)
        # torch ends the process where its own writing to a full disk fails.
        content = io.BytesIO()
        torch.export.save(program, content, extra_files={"classes.json": names})
        file.write(content.getbuffer())
