"""The fast pathway of a SlowFast alone, to see how far from the matrix rate it keeps a GPU."""

from __future__ import annotations

from torch import Tensor, nn

from multigrid.cost import FlopsPerClip
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.models.flops import flops_by_module
from steps.case import build_training_model

__all__ = ["FastPathway", "build_fast_pathway", "fast_flops_per_clip"]

_FAST = "pathway1_"


class FastPathway(nn.Module):
    """The stem and the stages of a SlowFast's fast pathway, its global pool and its classes.

    The slow pathway, the lateral connections and what the head takes from them are left out. A
    module keeps the name that it has in the SlowFast, with the stage's before it.
    """

    def __init__(self, model: nn.Module, num_classes: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential()
        for stage in ("s1", "s2", "s3", "s4", "s5"):
            for name, block in model.get_submodule(stage).named_children():
                if name.startswith(_FAST):
                    self.blocks.add_module(f"{stage}_{name}", block)
            if stage == "s2":
                self.blocks.add_module(f"{_FAST}pool", model.get_submodule(f"{_FAST}pool"))
        self.pool = nn.AdaptiveAvgPool3d(1)
        *_, last = [m for m in self.blocks.modules() if isinstance(m, nn.BatchNorm3d)]
        self.projection = nn.Linear(last.num_features, num_classes)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Scores (N, classes) of the fast pathway's clips, the second of [slow, fast]."""
        scores: Tensor = self.projection(self.pool(self.blocks(inputs[1])).flatten(1))
        return scores


def build_fast_pathway(recipe: Recipe) -> nn.Module:
    """The fast pathway of a recipe's SlowFast, with its BN in groups.

    Raises:
        ValueError: another model, or one with more in the pathway than blocks.
    """
    if recipe.model.arch != "slowfast":
        raise ValueError(
            f"MODEL.ARCH {recipe.model.arch} has no fast pathway; give a SlowFast's recipe"
        )
    if any(grouped[1] > 1 for grouped in recipe.nonlocal_.group):
        raise ValueError("NONLOCAL.GROUP of a fast pathway must be 1 to measure it alone")
    return FastPathway(build_training_model(recipe), recipe.model.num_classes)


def fast_flops_per_clip(recipe: Recipe) -> FlopsPerClip:
    """Training FLOPs of the fast pathway for one clip of (frames, crop): three times the forward's,
    without the few thousand of its classes."""
    by_module = flops_by_module(recipe)

    def count(frames: int, crop: int) -> float:
        in_stages = ((name.split("."), n) for name, n in by_module(frames, crop).items())
        return 3 * sum(n for path, n in in_stages if len(path) == 2 and path[1].startswith(_FAST))

    return count
