"""Every experiment at toy size: the same path on a CPU in minutes, on rendered videos and from
random weights.

A recipe keeps what makes it that recipe (architecture, cycles, LR stages, data set, test views) and
loses what makes it large: width, frames, crop, clips, epochs. Its results mean nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.scale import scaled_lengths
from slowfast_patches.datasets.demo.charades_form import write_charades_form
from slowfast_patches.datasets.demo.synthetic import DemoSpec, make_demo_data

__all__ = ["Toy", "make_toy_videos", "toy_overrides"]

_VIDEOS = DemoSpec(train=32, val=16, test=16, frames=32, width=64, height=48)
"""The rendered videos that toys are trained on."""

_CROP = 32
_POOLED_CROP = 64
"""What a crop of 224² becomes: the least a network takes, without and with non-local blocks, which
pool their input once more."""


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
    solver = recipe.solver
    data = recipe.data
    clips = toy.clips / reference.train.batch_size
    rate = toy.base_lr / reference.solver.base_lr
    length = toy.iterations * toy.clips / toy.videos / reference.solver.max_epoch
    batch = max(1, round(recipe.train.batch_size * clips))
    frames = max(8, data.num_frames * _frames(reference) // reference.data.num_frames)
    has_pools = any(blocks for stage in recipe.nonlocal_.location for blocks in stage)
    pixels = (_POOLED_CROP if has_pools else _CROP) / 224

    def shrunk(side: int) -> int:
        return max(_CROP, round(side * pixels))

    return {
        **scaled_lengths(recipe, length),
        "SOLVER.BASE_LR": solver.base_lr * rate,
        "SOLVER.WARMUP_START_LR": solver.warmup_start_lr * rate,
        "TRAIN.BATCH_SIZE": batch,
        "TRAIN.CHECKPOINT_INFLATE": False,
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
        "NUM_SHARDS": 1,
        "LOG_PERIOD": 50,
    }


def _frames(reference: Recipe) -> int:
    """Half of a baseline's frames, or as many as its coarsest clips, of a fourth of them, need to
    feed the slow pathway."""
    frames = reference.data.num_frames
    alpha = reference.slowfast.alpha if reference.model.has_two_pathways else 1
    return max(8, frames // 2, min(frames, 4 * alpha))


def make_toy_videos(folder: Path, datasets: Collection[str]) -> None:
    """Make what is not there yet of folder/DATASET for some of kinetics, ssv2 and charades, in the
    form of each."""
    make_demo_data(folder / "kinetics", _VIDEOS)
    if "ssv2" in datasets and not (folder / "ssv2").exists():
        (folder / "ssv2").symlink_to("kinetics")  # which it reads as it reads prepared videos
    if "charades" in datasets:
        write_charades_form(folder / "kinetics", folder / "charades")
