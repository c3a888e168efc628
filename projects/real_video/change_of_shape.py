r"""Score a network that was trained on one crop size at other crop sizes.

    python projects/real_video/change_of_shape.py \
        --cfg projects/real_video/recipes/SLOWFAST_WORDS_MULTIGRID.yaml \
        --checkpoint checkpoints/checkpoint_iter_00000964.pyth \
        --crop 32 --at 36 40 48 64 --output change_of_shape.json DATA.PATH_TO_DATA_DIR words

The checkpoint is of the end of a coarse phase, trained on crops of --crop pixels. It is scored on
the validation videos at each crop size of --at, after precise BN at that size, in three ways:

    as it is    crops of that size, of frames resized in proportion. At the baseline's crop size,
                this is the baseline's evaluation.
    enlarged    crops of --crop pixels, resized. Only the scale changes.
    framed      crops of --crop pixels, padded by repeated edges. Only the size of the feature maps
                and the positions on them change.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from slowfast_patches import patching
from slowfast_patches.config.load import load_recipe
from slowfast_patches.config.metrics import metric_names, metric_title
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.config.schedule import schedule_of, without_multigrid
from slowfast_patches.datasets.loader import build_dataset
from slowfast_patches.launch.device import process_device, set_up_device
from slowfast_patches.launch.stopping import StopRequest
from slowfast_patches.models.build import build_model
from slowfast_patches.models.weights import load_weights
from slowfast_patches.train.evaluate import Validation
from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.distributed import World
from slowfast_patches.utils.machine import machine, versions
from slowfast_patches.utils.tables import format_table

Change = Callable[[Tensor, int], Tensor]


def enlarged(clips: Tensor, crop: int) -> Tensor:
    """Resize H and W of clips (N, C, T, H, W) to `crop`."""
    return F.interpolate(clips, (clips.shape[2], crop, crop), mode="trilinear")


def framed(clips: Tensor, crop: int) -> Tensor:
    """Pad clips (N, C, T, H, W) to `crop` × `crop` pixels on all sides, by repeating edges."""
    more = crop - clips.shape[-1]
    sides = (more // 2, more - more // 2)
    return F.pad(clips, (*sides, *sides, 0, 0), mode="replicate")


def with_crop(recipe: Recipe, crop: int) -> Recipe:
    """Return a recipe's baseline with another crop size and the same field of view."""
    data = recipe.data
    sides = [
        max(crop, round(side * crop / data.train_crop_size)) for side in data.train_jitter_scales
    ]
    crops = dict.fromkeys(("TRAIN_CROP_SIZE", "CROP_SIZE", "TEST_CROP_SIZE"), crop)
    keys = {f"DATA.{key}": value for key, value in crops.items()}
    return without_multigrid(recipe).replaced({**keys, "DATA.TRAIN_JITTER_SCALES": sides})


def score(
    recipe: Recipe, checkpoint: str, crop: int, pixels: int, change: Change, world: World
) -> float:
    """Return the score in % on the validation videos.

    Args:
        recipe: the recipe of the training.
        checkpoint: file of the trained weights.
        crop: the crop size that the network is given.
        pixels: the crop size at which videos are read.
        change: converts clips to `crop`, if that differs from `pixels`.
        world: this process and its device.

    Raises:
        ValueError: the checkpoint is not of this recipe's network.
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
    """Return the scores at `crop` and at each crop size of `others`."""
    rows = [{"crop": crop, "as it is": score(recipe, checkpoint, crop, crop, framed, world)}]
    for other in others:
        row = {"crop": other, "as it is": score(recipe, checkpoint, other, other, framed, world)}
        for change in (enlarged, framed):
            row[change.__name__] = score(recipe, checkpoint, other, crop, change, world)
        rows.append(row)
    return {"metric": metric_names(recipe)[0], "trained_on": crop, "rows": rows}


@tool()
def main(argv: Sequence[str] | None = None) -> int:
    """Score the checkpoint, print and write the results, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cfg", required=True, metavar="FILE", help="the recipe")
    parser.add_argument("--checkpoint", required=True, metavar="FILE")
    text = "crop size that the checkpoint was trained on (%(default)s)"
    parser.add_argument("--crop", type=int, default=32, metavar="N", help=text)
    text = "larger crop sizes to score (%(default)s)"
    parser.add_argument(
        "--at", type=int, nargs="+", default=[36, 40, 48, 64], metavar="N", help=text
    )
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    parser.add_argument("overrides", nargs="*", default=[], metavar="KEY VALUE")
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
        args.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
