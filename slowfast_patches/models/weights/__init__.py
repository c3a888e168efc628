"""Loading of weights from files, including files written by other programs."""

from slowfast_patches.models.weights.load_weights import check_file, load_weights
from slowfast_patches.models.weights.weight_files import local_file

__all__ = ["check_file", "load_weights", "local_file"]
