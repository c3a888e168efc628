"""The messages in docs/troubleshooting.md are those of the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

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


def test_each_message_of_the_page_is_in_the_code():
    folders = (ROOT / "slowfast_patches", ROOT / "projects" / "multigrid")
    files = [file for folder in folders for file in folder.rglob("*.py")]
    strings = [text for file in files for text in texts(file.read_text(encoding="utf-8"))]
    assert len(MESSAGES) > 15
    for message in MESSAGES:
        parts = map(re.escape, message.strip("… ").split("…"))
        pattern = re.compile(".+".join(parts), re.DOTALL)
        assert any(map(pattern.search, strings)), message
