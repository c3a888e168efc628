r"""Score a network at other crop sizes than the crop size that it was trained on.

    python benchmarks/real_video/change_of_shape.py \
        --cfg benchmarks/real_video/recipes/SLOWFAST_WORDS_MULTIGRID.yaml \
        --checkpoint checkpoints/checkpoint_iter_00000964.pyth \
        --crop 32 --at 36 40 48 64 --output change_of_shape.json DATA.PATH_TO_DATA_DIR words

The checkpoint should have been saved at the end of a phase with crops of --crop pixels. For each
crop size N of --at, the script recomputes the BN statistics (precise BN) at size N, and scores the
network on the validation videos in three ways:

    as it is    Frames are resized in proportion to N, and crops of N pixels are cut from them. If N
                is the baseline's crop size, this is the usual evaluation of the baseline.
    enlarged    Crops of --crop pixels are enlarged to N pixels. Only the scale of objects changes.
    framed      Crops of --crop pixels are padded to N pixels by repeating their edges. The scale of
                objects stays the same, but the feature maps are larger.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from slowfast_patches import patching
from slowfast_patches.config.load_recipe import load_recipe
from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.recipe_cycles import without_multigrid
from slowfast_patches.datasets.loader import build_dataset
from slowfast_patches.launch.device import process_device, set_up_device
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.models.build_model import build_model
from slowfast_patches.models.weights import load_weights
from slowfast_patches.plan.recipe_schedule import schedule_of
from slowfast_patches.train.evaluate import Validation
from slowfast_patches.utils import command_line
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.files import write_text
from slowfast_patches.utils.machine import machine, versions
from slowfast_patches.utils.tables import format_table

Change = Callable[[Tensor, int], Tensor]


def enlarged(clips: Tensor, crop: int) -> Tensor:
    """Resize height and width of clips (N, C, T, H, W) to `crop` pixels."""
    return F.interpolate(clips, (clips.shape[2], crop, crop), mode="trilinear")


def framed(clips: Tensor, crop: int) -> Tensor:
    """Pad clips (N, C, T, H, W) on all sides to `crop` × `crop` pixels by repeating their edges."""
    more = crop - clips.shape[-1]
    sides = (more // 2, more - more // 2)
    return F.pad(clips, (*sides, *sides, 0, 0), mode="replicate")


def with_crop(recipe: Recipe, crop: int) -> Recipe:
    """Return the recipe without multigrid and with another crop size.

    The short sides of frames change in proportion, so crops show the same part of a frame.
    """
    data = recipe.data
    sides = [
        max(crop, round(side * crop / data.train_crop_size)) for side in data.train_jitter_scales
    ]
    keys = {f"DATA.{key}": crop for key in ("TRAIN_CROP_SIZE", "CROP_SIZE", "TEST_CROP_SIZE")}
    return without_multigrid(recipe).replaced({**keys, "DATA.TRAIN_JITTER_SCALES": sides})


def score(
    recipe: Recipe, checkpoint: str, crop: int, pixels: int, change: Change, world: World
) -> float:
    """Return the accuracy on the validation videos in %.

    Args:
        recipe: The recipe of the training.
        checkpoint: Path of the checkpoint.
        crop: Crop size of the clips that the network gets, in pixels.
        pixels: Crop size of the clips that are read from the videos, in pixels.
        change: Function that converts clips from `pixels` to `crop`. It is not called if the two
            are equal.
        world: Rank and device of this process.

    Raises:
        ValueError: The weights in the checkpoint do not fit the model of the recipe.
    """
    model = build_model(with_crop(recipe, crop), grouped_bn=True).to(world.device)
    load_weights(model, checkpoint, complete=True)
    if pixels != crop:
        model.register_forward_pre_hook(
            lambda _, inputs: ([change(clips, crop) for clips in inputs[0]], *inputs[1:])
        )
    read = with_crop(recipe, pixels)
    data = build_dataset(read, "train")
    schedule = schedule_of(read, len(data.videos))
    validation = Validation(read, world, StopRequest(world), data, schedule)
    return validation(nn.ModuleList([model]), schedule.at(0))[metric_names(recipe)[0]]


def measure(
    recipe: Recipe, checkpoint: str, crop: int, others: Sequence[int], world: World
) -> dict[str, Any]:
    """Score a checkpoint at the crop size of its training and at other crop sizes.

    Args:
        recipe: The recipe of the training.
        checkpoint: Path of the checkpoint.
        crop: Crop size that the checkpoint was trained on, in pixels.
        others: Larger crop sizes to score, in pixels.
        world: Rank and device of this process.

    Returns:
        Dict with "metric", "trained_on" and "rows". Each row has "crop", and the accuracy in % for
        each of the three ways (see the module docstring).
    """
    rows = [{"crop": crop, "as it is": score(recipe, checkpoint, crop, crop, framed, world)}]
    for other in others:
        row = {"crop": other, "as it is": score(recipe, checkpoint, other, other, framed, world)}
        for change in (enlarged, framed):
            row[change.__name__] = score(recipe, checkpoint, other, crop, change, world)
        rows.append(row)
    return {"metric": metric_names(recipe)[0], "trained_on": crop, "rows": rows}


@command_line.tool
def main(argv: Sequence[str] | None = None) -> int:
    """Score the checkpoint, print a table, write the JSON file, and return the exit status."""
    parser = command_line.command_parser(__doc__)
    add = partial(command_line.add_option, parser)
    command_line.add_cfg(parser)
    add("--checkpoint", "FILE", "checkpoint to score", required=True)
    add("--crop", "N", "crop size of the training in pixels (%(default)s)", int, 32)
    text = "larger crop sizes to score, in pixels (36 40 48 64)"
    add("--at", "N", text, int, [36, 40, 48, 64], nargs="+")
    add("--output", "FILE.json", "also write the result to this file", Path)
    command_line.add_overrides(parser, "config keys to set")
    args = parser.parse_intermixed_args(argv)
    patching.apply()
    recipe = load_recipe(args.cfg, args.overrides)
    set_up_device(recipe)
    world = World(0, 1, process_device(recipe, 0))
    result = measure(recipe, args.checkpoint, args.crop, args.at, world)
    ways = ("as it is", "enlarged", "framed")
    shown = [
        [f"{row['crop']}²", *(f"{row[way]:.1f}" if way in row else "" for way in ways)]
        for row in result["rows"]
    ]
    print(format_table([f"{metric_title(result['metric'])}, % at", *ways], shown))
    if args.output:
        result |= {"machine": machine(), "versions": versions()}
        write_text(args.output, json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
