"""Fixtures of the core's experiments that the tests of the pilot use."""

from tests.slowfast_patches.experiments.conftest import write_run

__all__ = ["write_run"]
