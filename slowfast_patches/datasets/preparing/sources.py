"""Find the source files of a data set, and those that must be prepared again.

The file sources.jsonl in the output folder records how each prepared file was made: the size and
the version of the source, and the size of the prepared file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from slowfast_patches.datasets.reading.file_status import video_status
from slowfast_patches.utils.errors import UserError, writing
from slowfast_patches.utils.files import write_text
from slowfast_patches.utils.storage import absolute, is_remote, list_status
from slowfast_patches.utils.tables import shorten_list

_RECORD = "sources.jsonl"
"""Name of the record: a line [target, size of source, version of source, size] for each file."""


class Source(NamedTuple):
    """Video to prepare.

    Attributes:
        path: The video file, or the folder or series of JPEG files.
        target: Path of the prepared file, relative to the output folder.
        size: Size in bytes. 0 if the path does not exist.
        version: `Status.version`. 0 if the path does not exist.
        modified: Modification time in seconds. None if the path does not exist.
    """

    path: str
    target: str
    size: int
    version: int
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
    files = {path: str(absolute(path)) for path in listed}
    found = video_status(files.values())
    of_path = dict[str, Source]()
    of_target = dict[str, str]()
    for path, file in files.items():
        parts = [p for p in Path(os.path.relpath(local_form(file), root)).parts if p != ".."]
        target = "/".join(["videos", *parts]).replace("*", "")
        if not target.lower().endswith(".mp4"):
            target += ".mp4"
        if of_target.setdefault(target, file) != file:
            raise UserError(
                f"{file} and {of_target[target]} would both be written to {target}. Prepare the "
                "lists that contain them into separate folders"
            )
        size, version, modified = found.get(file, (0, 0, None))
        of_path[path] = Source(
            file, target, size, version, None if modified is None else int(modified)
        )
    return of_path


def local_form(path: str) -> str:
    """Return an absolute local path. The scheme of a remote path becomes a folder in it."""
    return "/" + path.replace("://", "/", 1) if is_remote(path) else path


def check_apart(out: Path, sources: Sequence[Source]) -> None:
    """Check that no source lies where the prepared files will be written.

    Raises:
        ValueError: A source lies in the folder of the prepared files.
    """
    videos = out / "videos"
    folders = {os.path.dirname(source.path): source.path for source in sources}
    for folder, path in folders.items():
        real = folder if is_remote(folder) else os.path.realpath(folder)
        where = str(videos) if is_remote(out) else os.path.realpath(videos)
        if f"{real}/".startswith(f"{where}/"):
            raise UserError(
                f"--output {out} would write the prepared videos among the original videos in "
                f"{videos}, such as {path}. Choose another folder"
            )


def check_unclaimed(out: Path, sources: Sequence[Source]) -> None:
    """Check that a folder without a record of multigrid-prepare contains none of the targets.

    Raises:
        ValueError: A file would be overwritten.
    """
    if there := list_status(str(out / source.target) for source in sources):
        raise UserError(
            f"--output {out} contains files that multigrid-prepare did not write and would "
            f"overwrite: {shorten_list(list(there))}. Choose another folder"
        )


def not_prepared(out: Path, sources: Sequence[Source]) -> list[Source]:
    """Return the sources without an up-to-date prepared file.

    A prepared file is up to date if the record has its size, and the size and version of its
    source. In a bucket, a file without a record is up to date if it is newer than its source. A
    prepared file whose source has been deleted counts as up to date.
    """
    made = list_status(str(out / source.target) for source in sources)
    record = _read_record(out)

    def is_prepared(source: Source) -> bool:
        there = made.get(str(out / source.target))
        if there is None or source.modified is None:
            return there is not None
        if source.target in record:
            return record[source.target] == (source.size, source.version, there.size)
        return is_remote(out) and int(there.modified or 0) >= source.modified

    return [source for source in sources if not is_prepared(source)]


@contextmanager
def recorded(out: Path) -> Iterator[Recorder]:
    """Yield a recorder of prepared files. On a disk, it writes each record at once."""
    if is_remote(out):
        recorder = Recorder(out, None)
        try:
            yield recorder
        finally:
            recorder.upload()
    else:
        with writing(out / _RECORD):
            opened = (out / _RECORD).open("a", encoding="utf-8")
        with opened as file:
            file.write("\n")  # the last line may be incomplete
            yield Recorder(out, file)


class Recorder:
    """Writer of the record that says how each prepared file was made."""

    def __init__(self, out: Path, file: IO[str] | None) -> None:
        self._out = out
        self._file = file
        self._done = list[Source]()

    def add(self, source: Source) -> None:
        """Record that the prepared file of a source was written."""
        if self._file is None:
            self._done.append(source)
            return
        size = os.stat(self._out / source.target).st_size
        self._file.write(_line(source.target, (source.size, source.version, size)))
        self._file.flush()

    def upload(self) -> None:
        """Write the record of an output folder in a bucket, in which files cannot be extended."""
        made = list_status(str(self._out / source.target) for source in self._done)
        record = _read_record(self._out)
        for source in self._done:
            if there := made.get(str(self._out / source.target)):
                record[source.target] = (source.size, source.version, there.size)
        if self._done:
            write_text(self._out / _RECORD, "".join(_line(*row) for row in record.items()))


_Made = tuple[int, int, int]
"""Size and version of a source, and size of the prepared file."""


def _line(target: str, made: _Made) -> str:
    return json.dumps([target, *made]) + "\n"


def _read_record(out: Path) -> dict[str, _Made]:
    """Read the record of an output folder. Skip lines that a killed process wrote in part."""
    record = dict[str, _Made]()
    if not (out / _RECORD).is_file():
        return record
    for line in (out / _RECORD).read_bytes().splitlines():
        with suppress(ValueError):
            target, *made = json.loads(line)
            size, version, prepared = made
            record[target] = (size, version, prepared)
    return record
