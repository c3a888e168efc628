"""mkdocs hooks.

They add pages from outside docs/, generated pages, and the version of the package to the site.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from slowfast_patches.tools import installed_commands

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "projects/multigrid/README.md": "method.md",
    "benchmarks/real_video/README.md": "real_video.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
}
"""Maps Markdown files of the repository to pages of the site."""
TOUR = "examples/quickstart.ipynb"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
CODE = re.compile(r"^(```.*?^```|(?: {4}[^\n]*\n)+)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the version to the title of the site, and link the repository if its URL is known."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.site_name = f"{config.site_name} {project['version']}"
    config.repo_name = project["name"]
    if url := os.environ.get("REPOSITORY_URL") or remote_url():
        config.repo_url = url
        config.edit_uri = f"{url}/edit/main/docs/"
    return config


def remote_url() -> str | None:
    """Return the https URL of the git remote `origin`, or None if there is no such remote."""
    command = ["git", "-C", str(ROOT), "remote", "get-url", "origin"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:  # git is not installed
        return None
    match = re.fullmatch(
        r"(?:https://|ssh://git@|git@)([\w.-]+)[:/](.+?)(?:\.git)?/?", done.stdout.strip()
    )
    return f"https://{match[1]}/{match[2]}" if match else None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, the --help texts, and the files that pages link to."""
    for path, name in PAGES.items():
        page = File.generated(config, name, content=(ROOT / path).read_text())
        page.edit_uri = f"../{path}"
        files.append(page)
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
    """Replace links to files of the repository by links to the pages and files of the site."""
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
    """Return the path in the repository of the file that becomes this page of the site."""
    outside = {name: path for path, name in PAGES.items()} | {"tour.md": TOUR}
    return outside.get(page, f"docs/{page}")


def site_path(path: str) -> str:
    """Return the path that a file of the repository has on the site."""
    if path in PAGES:
        return PAGES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"


def resolve(target: str, path: str) -> Path | None:
    """Return the path of the file in the repository to which a link points.

    Args:
        target: Target of the link.
        path: Path in the repository of the file that contains the link.

    Returns:
        The absolute path, or None if the link points to something outside the repository.
    """
    if not target or ":" in target:
        return None
    file = Path(os.path.normpath(ROOT / Path(path).parent / target))
    return file if file.exists() and file.is_relative_to(ROOT) else None


def linked_files(markdown: str, path: str) -> Iterator[str]:
    """Yield the paths of the files outside docs/ to which a page links."""
    for match in LINK.finditer(markdown):
        file = resolve(match[3], path)
        if file is not None and file.is_file() and not file.is_relative_to(ROOT / "docs"):
            yield str(file.relative_to(ROOT))


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Convert a notebook to Markdown.

    Returns:
        The Markdown text, and a dict from the file name of each picture to the PNG bytes.
    """
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
    """Return the text in an output of a notebook cell."""
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", "")).rstrip()


def commands_page() -> str:
    """Return a page with the --help text of every command."""
    parts = [f"## {name}\n\n```text\n{help_of(name)}```\n" for name in installed_commands()]
    return "# Commands\n\nThis page lists the `--help` text of every command.\n\n" + "\n".join(
        parts
    )


def help_of(name: str) -> str:
    """Return the --help text of a command."""
    program = import_module(f"slowfast_patches.tools.{installed_commands()[name]}")
    text = io.StringIO()
    with (
        patch.object(sys, "argv", [name, "--help"]),
        patch.dict(os.environ, COLUMNS="92"),
        redirect_stdout(text),
        suppress(SystemExit),
    ):
        program.main()
    return text.getvalue()
