"""mkdocs hooks: pages from outside docs/, a notebook, generated pages, links to files of the
repository."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from slowfast_patches.commands import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "projects/multigrid/README.md": "method.md",
    "projects/real_video/README.md": "real_video.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
"""Markdown of the repository -> page of the site."""
TOUR = "examples/quickstart.ipynb"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
CODE = re.compile(r"^(```.*?^```|(?: {4}[^\n]*\n)+)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, the commands' help, and the files that pages link to."""
    for path, name in PAGES.items():
        files.append(File.generated(config, name, content=(ROOT / path).read_text()))
    files.append(File.generated(config, "commands.md", content=commands_page()))
    text, pictures = notebook_page(ROOT / TOUR)
    files.append(File.generated(config, "tour.md", content=text))
    for name, content in pictures.items():
        files.append(File.generated(config, name, content=content))
    for page in [page for page in files if page.src_uri.endswith(".md")]:
        for path in linked_files(page.content_string, origin(page.src_uri)):
            if files.get_file_from_path(site_path(path)) is None:
                source = str(ROOT / path)
                files.append(File.generated(config, site_path(path), abs_src_path=source))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links between files of the repository to pages and files of the site."""
    path = origin(page.file.src_uri)

    def on_site(match: re.Match[str]) -> str:
        picture, text, target, anchor = match.groups()
        found = resolve(target, path)
        if found is None:
            return match[0]
        if found.is_dir():
            return text
        return f"{picture}[{text}]({site_path(str(found.relative_to(ROOT)))}{anchor or ''})"

    pieces = []
    end = 0
    for code in CODE.finditer(markdown):
        pieces += [LINK.sub(on_site, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*pieces, LINK.sub(on_site, markdown[end:])])


def origin(page: str) -> str:
    """The path in the repository of a page of the site."""
    outside = {name: path for path, name in PAGES.items()} | {"tour.md": TOUR}
    return outside.get(page, f"docs/{page}")


def site_path(path: str) -> str:
    """Where the site has a file of the repository."""
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"


def resolve(target: str, path: str) -> Path | None:
    """The file of the repository that a link means; None for other links."""
    if not target or ":" in target:
        return None
    file = Path(os.path.normpath(ROOT / Path(path).parent / target))
    return file if file.exists() and file.is_relative_to(ROOT) else None


def linked_files(markdown: str, path: str) -> Iterator[str]:
    """Files of the repository, outside docs/, that a page links to."""
    for match in LINK.finditer(markdown):
        file = resolve(match[3], path)
        if file is not None and file.is_file() and not file.is_relative_to(ROOT / "docs"):
            yield str(file.relative_to(ROOT))


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by the names that it has for them."""
    parts = list[str]()
    pictures = dict[str, bytes]()
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            if png := output.get("data", {}).get("image/png"):
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(png)
                parts.append(f"![What the cell above draws]({name})")
            elif (text := printed(output)) and not text.startswith("<"):  # as <Legend at 0x7f...>
                parts.append(f"```text\n{text}\n```")
    first, *rest = parts
    return "\n\n".join([first, f"(The notebook is [{path.name}]({path.name}).)", *rest]), pictures


def printed(output: dict[str, Any]) -> str:
    """What an output of a cell has as text."""
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", "")).rstrip()


def commands_page() -> str:
    """The --help of every command."""
    parts = [f"## {name}\n\n```text\n{help_of(name)}```\n" for name in COMMANDS]
    return "# Commands\n\nWhat each prints for `--help`.\n\n" + "\n".join(parts)


def help_of(name: str) -> str:
    program = import_module(f"slowfast_patches.commands.{COMMANDS[name]}")
    text = io.StringIO()
    with (
        patch.object(sys, "argv", [name, "--help"]),
        patch.dict(os.environ, COLUMNS="92"),
        redirect_stdout(text),
        suppress(SystemExit),
    ):
        program.main()
    return text.getvalue()
