"""Networks have one block in each stage."""

from tests.slowfast_patches.train.conftest import _one_block

__all__ = ["_one_block"]
