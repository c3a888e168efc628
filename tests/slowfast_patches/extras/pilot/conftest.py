"""Fixtures of the core's studies that the tests of the pilot use."""

from tests.slowfast_patches.study.conftest import write_run

__all__ = ["write_run"]
