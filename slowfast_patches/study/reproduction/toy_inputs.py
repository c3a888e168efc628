"""What toys are trained on and start from: rendered videos, random weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import as_overrides
from slowfast_patches.datasets.demo.forms import write_charades_form, write_ssv2_form
from slowfast_patches.datasets.demo.synthetic import make_demo_data
from slowfast_patches.models.build import build_model
from slowfast_patches.study.reproduction.experiment import Start, Training
from slowfast_patches.study.reproduction.toy import TOY_VIDEOS, Toy, toy_overrides
from slowfast_patches.study.runs import Arm

__all__ = ["make_toy_inputs"]

_MODELS: Mapping[Start, str] = {
    "imagenet": "Kinetics/I3D_16x4_R50.yaml",
    "kinetics": "Kinetics/SLOWFAST_64FRAMES_R50.yaml",
}
"""The arm whose toy has the weights of a start."""

_CLASSES = 12
"""Of a start: another number than the toys' own, as Kinetics has other classes than SSv2."""


def make_toy_inputs(folder: Path, recipes: Mapping[Training, Arm], configs: Path, toy: Toy) -> None:
    """Make what the toys of some recipes need and is not there yet.

    Videos go to folder/{kinetics,ssv2,charades}, in the form of each data set; the weights to where
    the recipes look for them.
    """
    make_demo_data(folder / "kinetics", TOY_VIDEOS)
    write_ssv2_form(folder / "kinetics", folder / "ssv2")
    write_charades_form(folder / "kinetics", folder / "charades")
    for training, arm in recipes.items():
        path = Path(arm.recipe.train.checkpoint_file_path)
        is_ours = training.start in _MODELS and path.parent == folder
        if is_ours and not path.is_file():
            _write_start(training.start, _start_model(configs, training.start, toy), path)


def _start_model(configs: Path, start: Start, toy: Toy) -> Recipe:
    path = configs / _MODELS[start]
    plain = load_recipe(path)
    keys = toy_overrides(plain, plain, toy) | {"MODEL.NUM_CLASSES": _CLASSES}
    return load_recipe(path, as_overrides(keys))


def _write_start(start: Start, recipe: Recipe, path: Path) -> None:
    """Random weights of a model; those of ImageNet's ResNet are its pictures' alone, in 2-D."""
    torch.manual_seed(0)
    weights = build_model(recipe).state_dict()
    if start == "imagenet":
        weights = {key: w.sum(2) if w.ndim == 5 else w for key, w in weights.items()}
    temporary = path.with_suffix(".tmp")
    torch.save({"model_state": dict(weights)}, temporary)
    temporary.replace(path)
