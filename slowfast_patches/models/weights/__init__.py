"""Starting a model from the weights that people have, and saying what was taken."""

from slowfast_patches.models.weights.load import check_file, load_weights

__all__ = ["check_file", "load_weights"]
