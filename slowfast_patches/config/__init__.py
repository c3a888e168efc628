"""Recipes: their keys, loading and checks."""

from slowfast_patches.config.check import check_recipe
from slowfast_patches.config.load import load_recipe, parse_recipe
from slowfast_patches.config.recipe import Recipe, host_config

__all__ = ["Recipe", "check_recipe", "host_config", "load_recipe", "parse_recipe"]
