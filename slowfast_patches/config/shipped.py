"""The recipes that come with the package, which commands find from any folder."""

from __future__ import annotations

from pathlib import Path

__all__ = ["CONFIGS", "recipe_path"]

_PACKAGE = Path(__file__).parents[1]

CONFIGS = next(filter(Path.is_dir, (_PACKAGE / "configs", _PACKAGE.parent / "configs")))
"""Their folder: in the installed package, or beside it in a checkout."""


def recipe_path(path: str | Path) -> Path:
    """The file that a user named, or else the recipe of that name which the package ships.

    Raises:
        ValueError: there is neither.
    """
    places = (Path(path).expanduser(), CONFIGS.parent / path)
    for place in places:
        if place.exists():
            return place
    raise ValueError(
        f"the config {path} cannot be read: there is no such file, and no recipe of that name in "
        f"{CONFIGS}"
    )
