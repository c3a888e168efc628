"""Functions that register models, data sets and augmentations.

Call them in a module of yours, and name the module in the config key IMPORTS.
"""

from slowfast_patches.config.extensions import register_augmentation
from slowfast_patches.config.families import ModelFamily, register_model
from slowfast_patches.config.recipe import Recipe
from slowfast_patches.datasets.lists.csv_list import LabelledVideo, read_csv
from slowfast_patches.datasets.lists.dataset_lists import DataSet, register_dataset

__all__ = [
    "DataSet",
    "LabelledVideo",
    "ModelFamily",
    "Recipe",
    "read_csv",
    "register_augmentation",
    "register_dataset",
    "register_model",
]
