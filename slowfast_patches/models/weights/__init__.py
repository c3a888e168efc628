"""Loading of weights from files that other programs wrote."""

from slowfast_patches.models.weights.load import check_file, load_weights

__all__ = ["check_file", "load_weights"]
