"""Loading of weights from files, including files written by other programs."""

from slowfast_patches.models.weights.files import local_file
from slowfast_patches.models.weights.load import check_file, load_weights

__all__ = ["check_file", "load_weights", "local_file"]
