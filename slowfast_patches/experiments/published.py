"""Content of published.yaml, by table and figure. This module must not import slow packages."""

from pathlib import Path
from typing import Any

import yaml

PUBLISHED: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("published.yaml").read_text(encoding="utf-8")
)
del PUBLISHED["curves"]  # This entry only defines YAML anchors for the figures.
