"""Something-Something V2: what happens to things, whatever they are."""

from __future__ import annotations

import logging

from slowfast.datasets.build import DATASET_REGISTRY

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.clips import ClipDataset
from slowfast_patches.datasets.lists.dataset_lists import list_path
from slowfast_patches.datasets.lists.frame_list import FrameList

__all__ = ["Ssv2"]

logger = logging.getLogger(__name__)


@DATASET_REGISTRY.register()
class Ssv2(ClipDataset):
    """Clips of Something-Something V2: segments of the whole video, never mirrored.

    The videos are frame lists, prepared files, or the WebM files as distributed (`ssv2_list`); the
    log says which form was found. DATA.SAMPLING_RATE and TARGET_FPS have no part in where frames
    are taken.
    """

    name = "ssv2"
    segments = True

    def __init__(self, recipe: Recipe, split: str) -> None:
        super().__init__(recipe, split)
        path = list_path(recipe, split, self.name)
        form = "WebM files" if path.suffix == ".json" else "video files"
        form = "frame lists" if isinstance(self.videos, FrameList) else form
        logger.info(
            "ssv2 %s: %d videos as %s, by %s; clips are %d segments of the whole video, whatever "
            "DATA.SAMPLING_RATE %d says",
            *(
                split,
                len(self.videos),
                form,
                path,
                self.sampling.base.frames,
                recipe.data.sampling_rate,
            ),
        )
