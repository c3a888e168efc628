"""Programs of benchmarks/, and recipes thin enough to be timed."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def step_time(load_program: Callable[[str], ModuleType]) -> ModuleType:
    return load_program("benchmarks/step_time.py")


@pytest.fixture
def thin_tsm(short_cycle_recipe: Path) -> Path:
    """The short-cycle recipe as a TSM."""
    path = short_cycle_recipe.with_name("thin_tsm.yaml")
    path.write_text(f"_BASE_: {short_cycle_recipe.name}\nMODEL: {{ARCH: tsm}}\n")
    return path
