"""The messages in docs/troubleshooting.md are those of the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "troubleshooting.md"
MESSAGES = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def texts(source: str) -> Iterator[str]:
    """Yield each string of a module, with NUL in place of the values of an f-string."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "\0" for p in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.fixture(scope="module")
def strings() -> list[str]:
    folders = (ROOT / "slowfast_patches", ROOT / "projects" / "multigrid")
    files = [file for folder in folders for file in folder.rglob("*.py")]
    return [text for file in files for text in texts(file.read_text(encoding="utf-8"))]


def test_the_page_lists_messages():
    assert len(MESSAGES) > 15


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_in_the_code(message: str, strings: list[str]):
    pattern = re.compile(".+".join(map(re.escape, message.strip("… ").split("…"))), re.DOTALL)
    assert any(pattern.search(text) for text in strings), message
