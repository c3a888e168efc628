"""Names of classes that a data set has."""

from __future__ import annotations

import logging

from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.dataset_lists import class_names

__all__ = ["names_of_data"]

logger = logging.getLogger(__name__)


def names_of_data(recipe: Recipe) -> tuple[str, ...] | None:
    """Names by class number that a data set has beside its lists; None, with a warning, where they
    are not those of MODEL.NUM_CLASSES classes, and None where it has none."""
    try:
        return class_names(recipe)
    except ValueError as error:
        logger.warning("classes are shown by their number: %s", error)
        return None
