"""Published numbers by table and figure: published.yaml, and those in the folders of the extras.

This module must not import slow packages.
"""

from pathlib import Path
from typing import Any

import yaml

_FILES = (
    Path(__file__).with_name("published.yaml"),
    *sorted((Path(__file__).parents[1] / "extras").glob("*/published.yaml")),
)

PUBLISHED: dict[str, Any] = {
    name: content
    for file in _FILES
    for name, content in yaml.safe_load(file.read_text(encoding="utf-8")).items()
}
del PUBLISHED["curves"]  # This entry only defines YAML anchors for the figures.
