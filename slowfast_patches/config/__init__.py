"""Recipes: their keys, loading and checks.

To add a key, add a field to a section in model_keys.py, data_keys.py or
training_keys.py, or to `Recipe` in recipe.py.
"""

from slowfast_patches.config.check import check_recipe
from slowfast_patches.config.load_recipe import load_recipe, parse_recipe
from slowfast_patches.config.recipe import Recipe, pyslowfast_config

__all__ = ["Recipe", "check_recipe", "load_recipe", "parse_recipe", "pyslowfast_config"]
