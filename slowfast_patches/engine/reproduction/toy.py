"""Every experiment at toy size: the same path on a CPU in minutes, on rendered videos.

A recipe keeps what makes it that recipe (architecture, cycles, LR stages, data set, test views) and
loses what makes it large: width, frames, crop, clips, epochs. Its results mean nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from fvcore.common.config import CfgNode

from slowfast_patches.config.scale import scaled_lengths
from slowfast_patches.datasets.demo_forms import write_charades_form, write_ssv2_form
from slowfast_patches.datasets.synthetic import DemoSpec, make_demo_data
from slowfast_patches.models.build import build_model

__all__ = ["Toy", "make_toy_data", "make_toy_start", "toy_overrides"]

_SPEC = DemoSpec(train=32, val=16, test=16, frames=32, width=64, height=48)
_SHRINK = 7
"""By which crops and short sides are divided: 224² becomes 32², the least a network takes."""


@dataclass(frozen=True)
class Toy:
    """How large a toy is.

    `iterations` are those of the reference baseline: enough for each phase of a multigrid training
    of a quarter of its epochs to have one.
    """

    iterations: int = 640
    clips: int = 4
    videos: int = _SPEC.train
    base_lr: float = 0.02


def toy_overrides(cfg: CfgNode, reference: CfgNode, toy: Toy) -> dict[str, object]:
    """What makes a toy of a recipe: KEY -> value.

    Batch, learning rate and lengths shrink by what shrinks those of `reference`, the baseline that
    the recipe is compared with, so that their proportions stay.
    """
    solver, data = cfg.SOLVER, cfg.DATA
    clips = toy.clips / reference.TRAIN.BATCH_SIZE
    rate = toy.base_lr / reference.SOLVER.BASE_LR
    length = toy.iterations * toy.clips / toy.videos / reference.SOLVER.MAX_EPOCH
    frames = max(8, data.NUM_FRAMES // 2)
    return {
        **scaled_lengths(cfg, length),
        "SOLVER.BASE_LR": solver.BASE_LR * rate,
        "SOLVER.WARMUP_START_LR": solver.WARMUP_START_LR * rate,
        "TRAIN.BATCH_SIZE": max(1, round(cfg.TRAIN.BATCH_SIZE * clips)),
        "TRAIN.EVAL_PERIOD": 10**6,
        "TRAIN.CHECKPOINT_PERIOD": 10**6,
        "TEST.BATCH_SIZE": 8,
        "TEST.NUM_ENSEMBLE_VIEWS": min(2, cfg.TEST.NUM_ENSEMBLE_VIEWS),
        "DATA.NUM_FRAMES": frames,
        "DATA.SAMPLING_RATE": max(1, _SPEC.frames // frames),
        "DATA.NUM_TRAIN_VIDEOS": toy.videos,
        "DATA.TRAIN_CROP_SIZE": max(32, data.TRAIN_CROP_SIZE // _SHRINK),
        "DATA.TEST_CROP_SIZE": max(32, data.TEST_CROP_SIZE // _SHRINK),
        "DATA.TRAIN_JITTER_SCALES": [max(32, side // _SHRINK) for side in data.TRAIN_JITTER_SCALES],
        "RESNET.WIDTH_PER_GROUP": 8,
        "SLOWFAST.BETA_INV": 4,
        "MODEL.NUM_CLASSES": 8,
        "BN.NUM_BATCHES_PRECISE": 4,
        "MULTIGRID.EVAL_FREQ": 1,
        "DATA_LOADER.NUM_WORKERS": 1,
        "DATA_LOADER.PIN_MEMORY": False,
        "NUM_GPUS": 0,
        "LOG_PERIOD": 50,
    }


def make_toy_data(folder: Path) -> Mapping[str, str]:
    """Render the toy's videos in the form of each data set; folders by the data set's name."""
    kinetics = folder / "kinetics"
    make_demo_data(kinetics, _SPEC)
    write_ssv2_form(kinetics, folder / "ssv2")
    write_charades_form(kinetics, folder / "charades")
    return {name: str(folder / name) for name in ("kinetics", "ssv2", "charades")}


def make_toy_start(start: str, cfg: CfgNode, path: Path) -> Path:
    """Random weights in the form of a start, for the toy `cfg`: an ImageNet ResNet, or a checkpoint
    of a Kinetics training with another number of classes."""
    torch.manual_seed(0)
    weights = build_model(cfg).state_dict()
    if start == "imagenet":
        flat = {key: w.sum(2) if w.ndim == 5 else w for key, w in weights.items()}
        weights = OrderedDict((key, w) for key, w in flat.items() if "pathway0" in key)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"model_state": dict(weights)}, path)
    return path
