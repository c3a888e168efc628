"""Find the source files of a data set, and those that must be prepared again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.storage import is_remote, list_status


class Source(NamedTuple):
    """Video to prepare.

    Attributes:
        path: The video file, or the folder of JPEG files.
        target: Path of the prepared file, relative to the output folder.
        size: Size in bytes. 0 if the path does not exist.
        modified: Modification time in seconds. None if the path does not exist.
    """

    path: str
    target: str
    size: int
    modified: int | None


def find_sources(listed: Iterable[str], root: str) -> dict[str, Source]:
    """Return a dict from each listed path to its `Source`.

    Different paths to the same file have equal sources.

    Args:
        listed: The paths in the lists.
        root: Folder whose structure the prepared files repeat, as returned by `local_form`.

    Raises:
        ValueError: Two different files would be written to the same prepared file.
    """
    paths = dict.fromkeys(listed)
    found = list_status(paths)
    of_path = dict[str, Source]()
    of_target = dict[str, str]()
    for path in paths:
        file = path if is_remote(path) else os.path.abspath(path)
        parts = [p for p in Path(os.path.relpath(local_form(file), root)).parts if p != ".."]
        target = "/".join(["videos", *parts])
        if not target.lower().endswith(".mp4"):
            target += ".mp4"
        if of_target.setdefault(target, file) != file:
            raise UserError(
                f"{file} and {of_target[target]} would both be written to {target}. Prepare the "
                "lists that contain them into separate folders"
            )
        there = found.get(path)
        size, modified = (there.size, int(there.modified or 0)) if there else (0, None)
        of_path[path] = Source(file, target, size, modified)
    return of_path


def local_form(path: str) -> str:
    """Return an absolute path, in which the scheme of a remote path has become a folder."""
    return "/" + path.replace("://", "/", 1) if is_remote(path) else path


def not_prepared(out: Path, sources: Sequence[Source]) -> list[Source]:
    """Return the sources without an up-to-date prepared file.

    A local prepared file has the modification time of its source, and a remote one is newer than
    its source. A prepared file whose source has been deleted counts as up to date.
    """
    made = list_status(str(out / source.target) for source in sources)

    def is_prepared(source: Source) -> bool:
        there = made.get(str(out / source.target))
        if there is None or source.modified is None:
            return there is not None
        written = int(there.modified or 0)
        return written >= source.modified if is_remote(out) else written == source.modified

    return [source for source in sources if not is_prepared(source)]
