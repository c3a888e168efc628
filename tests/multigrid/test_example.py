"""The method card's example runs as printed, and the card names the whole API."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import multigrid

CARD = Path(__file__).parents[2] / "projects" / "multigrid" / "README.md"


@pytest.fixture(scope="module")
def example():
    blocks = re.findall(
        r"<!-- example -->\s*```python\n(.*?)```", CARD.read_text(encoding="utf-8"), re.DOTALL
    )
    assert len(blocks) == 1
    return blocks[0]


def test_the_example_runs_as_printed(example, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *phases, total = done.stdout.splitlines()
    assert [line.split()[0] for line in phases] == [
        "64×2×23²", "32×4×23²", "16×4×32²", "8×8×32²", "8×8×32²", "8×8×32²"
    ]  # fmt: skip
    assert float(phases[-1].split()[-1]) < 0.3, "chance is a loss of 0.69"
    assert re.fullmatch(r"9\d iterations instead of 320", total)


def test_the_example_needs_the_method_alone(example):
    nodes = list(ast.walk(ast.parse(example)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[0] for name in names} == {"multigrid", "numpy", "torch"}


@pytest.mark.parametrize("name", multigrid.__all__)
def test_the_card_names_everything_public(name):
    assert re.search(rf"\b{name}\b", CARD.read_text(encoding="utf-8"))
