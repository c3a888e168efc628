"""Every experiment at toy size: the same path on a CPU in minutes, on rendered videos and from
random weights.

A recipe keeps what makes it that recipe (architecture, cycles, LR stages, data set, test views) and
loses what makes it large: width, frames, crop, clips, epochs. Its results mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from slowfast_patches.config import load_recipe
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import as_overrides, scaled_lengths
from slowfast_patches.datasets.demo.charades_form import write_charades_form
from slowfast_patches.datasets.demo.synthetic import DemoSpec, make_demo_data
from slowfast_patches.models.build import build_model
from slowfast_patches.study.arms import Arm
from slowfast_patches.study.experiments import Training

__all__ = ["Toy", "make_toy_inputs", "toy_overrides"]

_VIDEOS = DemoSpec(train=32, val=16, test=16, frames=32, width=64, height=48)
"""The rendered videos that toys are trained on."""

_CROP = 32
_POOLED_CROP = 64
"""What a crop of 224² becomes: the least a network takes, without and with non-local blocks, which
pool their input once more."""

_STARTS: Mapping[str, str] = {
    "imagenet": "Kinetics/I3D_16x4_R50.yaml",
    "kinetics": "Kinetics/SLOWFAST_64FRAMES_R50.yaml",
}
"""The recipe whose toy has the weights of a start."""

_CLASSES = 12
"""Of a start: another number than the toys' own, as Kinetics has other classes than SSv2."""


@dataclass(frozen=True)
class Toy:
    """How large a toy is.

    `iterations` are those of the reference baseline: enough for each phase of a multigrid training
    of a quarter of its epochs to have one.
    """

    iterations: int = 640
    clips: int = 4
    videos: int = _VIDEOS.train
    base_lr: float = 0.02


def toy_overrides(recipe: Recipe, reference: Recipe, toy: Toy) -> dict[str, object]:
    """What makes a toy of a recipe: KEY -> value.

    Batch, learning rate and lengths shrink by what shrinks those of `reference`, the baseline that
    it is compared with, so that their proportions stay.
    """
    solver, data = recipe.solver, recipe.data
    clips = toy.clips / reference.train.batch_size
    rate = toy.base_lr / reference.solver.base_lr
    length = toy.iterations * toy.clips / toy.videos / reference.solver.max_epoch
    batch = max(1, round(recipe.train.batch_size * clips))
    frames = max(8, data.num_frames // 2)
    has_pools = any(blocks for stage in recipe.nonlocal_.location for blocks in stage)
    pixels = (_POOLED_CROP if has_pools else _CROP) / 224

    def shrunk(side: int) -> int:
        return max(_CROP, round(side * pixels))

    return {
        **scaled_lengths(recipe, length),
        "SOLVER.BASE_LR": solver.base_lr * rate,
        "SOLVER.WARMUP_START_LR": solver.warmup_start_lr * rate,
        "TRAIN.BATCH_SIZE": batch,
        "TRAIN.EVAL_PERIOD": 10**6,
        "TRAIN.CHECKPOINT_PERIOD": 10**6,
        "TEST.BATCH_SIZE": 8,
        "TEST.NUM_ENSEMBLE_VIEWS": min(2, recipe.test.num_ensemble_views),
        "DATA.NUM_FRAMES": frames,
        "DATA.SAMPLING_RATE": max(1, _VIDEOS.frames // frames),
        "DATA.NUM_TRAIN_VIDEOS": toy.videos,
        "DATA.TRAIN_CROP_SIZE": shrunk(data.train_crop_size),
        "DATA.TEST_CROP_SIZE": shrunk(data.test_crop_size),
        "DATA.TRAIN_JITTER_SCALES": [shrunk(side) for side in data.train_jitter_scales],
        "RESNET.WIDTH_PER_GROUP": 8,
        "SLOWFAST.BETA_INV": 4,
        "MODEL.NUM_CLASSES": 8,
        "BN.NUM_BATCHES_PRECISE": 4,
        "BN.GROUP_SIZE": min(batch, recipe.bn.group_size),
        "MULTIGRID.BN_BASE_SIZE": min(batch, recipe.multigrid.bn_base_size),
        "MULTIGRID.EVAL_FREQ": 1,
        "DATA_LOADER.NUM_WORKERS": 1,
        "DATA_LOADER.PIN_MEMORY": False,
        "NUM_GPUS": 0,
        "LOG_PERIOD": 50,
    }


def make_toy_inputs(folder: Path, arms: Mapping[Training, Arm], configs: Path, toy: Toy) -> None:
    """Make what the toys of some arms need and is not there yet.

    Videos go to folder/{kinetics,ssv2,charades}, in the form of each data set; the weights to where
    the arms look for them.
    """
    make_demo_data(folder / "kinetics", _VIDEOS)
    if not (folder / "ssv2").exists():
        (folder / "ssv2").symlink_to("kinetics")  # which it reads as it reads prepared videos
    write_charades_form(folder / "kinetics", folder / "charades")
    for training, arm in arms.items():
        path = Path(arm.recipe.train.checkpoint_file_path)
        is_ours = training.start in _STARTS and path.parent == folder
        if is_ours and not path.is_file():
            _write_start(training.start, _start_model(configs, training.start, toy), path)


def _start_model(configs: Path, start: str, toy: Toy) -> Recipe:
    path = configs / _STARTS[start]
    plain = load_recipe(path)
    keys = toy_overrides(plain, plain, toy) | {"MODEL.NUM_CLASSES": _CLASSES}
    return load_recipe(path, as_overrides(keys))


def _write_start(start: str, recipe: Recipe, path: Path) -> None:
    """Random weights of a model; those of ImageNet's ResNet are its pictures' alone, in 2-D."""
    torch.manual_seed(0)
    weights = build_model(recipe).state_dict()
    if start == "imagenet":
        weights = {key: w.sum(2) if w.ndim == 5 else w for key, w in weights.items()}
    temporary = path.with_suffix(".tmp")
    torch.save({"model_state": dict(weights)}, temporary)
    temporary.replace(path)
