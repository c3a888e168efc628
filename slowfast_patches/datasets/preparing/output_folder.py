"""Check the output folder of multigrid-prepare, and write the new lists to it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from slowfast_patches.datasets.lists.class_names import read_json
from slowfast_patches.datasets.preparing.sources import Source, check_unclaimed
from slowfast_patches.datasets.preparing.video_lists import VideoList, format_csv
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.files import atomic_write, write_text
from slowfast_patches.utils.storage import as_path
from slowfast_patches.utils.tables import shorten_list

logger = logging.getLogger(__name__)

_SETTINGS = {
    "format": "the format",
    "short_side": "--short-side",
    "fps": "--fps",
    "crf": "--crf",
    "root": "the folder of the videos",
}
"""What the settings in prepared.json are called in messages."""


def check_origins(lists: Sequence[VideoList], out: Path) -> None:
    """Check that the output folder does not overlap with the original data set.

    Raises:
        ValueError: `out` is the folder of an original csv file, which would be overwritten. Or
            `out` lies in the folder of the classes, and would look like another class.
    """
    for origin in (videos.origin for videos in lists):
        if origin in (out, *out.parents) if origin.is_dir() else origin.parent == out:
            raise UserError(
                f"--output {out} lies in the folder of the original data set. Choose another folder"
            )


def claim(
    out: Path, lists: Sequence[VideoList], sources: Sequence[Source], how: Mapping[str, object]
) -> None:
    """Write the settings to prepared.json in `out`, or check that they equal the existing ones.

    Raises:
        ValueError: prepared.json is damaged, `out` was prepared with other settings, or it contains
            a list or a target that multigrid-prepare did not write.
    """
    path = out / "prepared.json"
    if path.exists():
        made = read_json(path, dict)
        if made.keys() != how.keys() or not isinstance(made["root"], str):
            raise UserError(
                f"{path} is damaged: it must have the settings {', '.join(how)}. Choose another "
                "folder, or delete the folder and prepare all videos again"
            )
        if not as_path(made["root"]).exists():  # the sources have been moved
            made["root"] = how["root"]
        if differ := [key for key in how if made[key] != how[key]]:
            what = ", ".join(
                f"{_SETTINGS[key]} {_text(made[key])} (this command: {_text(how[key])})"
                for key in differ
            )
            raise UserError(
                f"{out} was prepared with {what}. Choose another folder, or pass all lists in a "
                "single command"
            )
    elif foreign := [videos.name for videos in lists if (out / videos.name).exists()]:
        raise UserError(
            f"{out / foreign[0]} was not written by multigrid-prepare. Choose another folder"
        )
    else:
        check_unclaimed(out, sources)
    write_text(path, json.dumps(how, indent=2) + "\n")


def _text(setting: object) -> object:
    return "not set" if setting is None else setting


def write_reasons(out: Path, reasons: Mapping[Source, str]) -> None:
    """Write the reasons why videos are left out to unreadable.txt, or remove this file."""
    (out / "unreadable.txt").unlink(missing_ok=True)
    if reasons:
        lines = (f"{s.path}\t{' '.join(reason.split())}\n" for s, reason in reasons.items())
        write_text(out / "unreadable.txt", "".join(lines))


def new_rows(
    lists: Sequence[VideoList], made: Mapping[str, str], classes: Sequence[str]
) -> dict[str, list[tuple[str, int]]]:
    """Return the (path, label) pairs of each new list, by the name of the list.

    Warn about classes without a readable video.

    Args:
        lists: The original lists.
        made: Maps the path of each original video to its prepared file.
        classes: The class names, or an empty sequence.

    Raises:
        ValueError: None of the videos in a list can be read.
    """
    rows = dict[str, list[tuple[str, int]]]()
    for listed in lists:
        of_list = [(made[path], label) for path, label in listed.videos if path in made]
        if not of_list:
            raise UserError(
                f"none of the videos that {listed.origin} lists for {listed.name} can be read. The "
                "lists in the output folder were not changed"
            )
        rows[listed.name] = of_list
        lost = {label for _, label in listed.videos} - {label for _, label in of_list}
        if lost:
            names = [classes[label] if classes else str(label) for label in sorted(lost)]
            logger.warning(
                "warning: %s: none of the videos of %d class(es) can be read: %s",
                *(listed.name, len(names), shorten_list(names)),
            )
    return rows


def write_lists(
    rows: Mapping[str, Sequence[tuple[str, int]]],
    out: Path,
    separator: str,
    classes: Sequence[str],
) -> None:
    """Write all lists and classes.json. If one of them cannot be written, none is replaced.

    Args:
        rows: The (path, label) pairs of each list, by the name of the list.
        out: The output folder.
        separator: The separator between path and label.
        classes: The class names. If empty, classes.json is not written.
    """
    texts = {name: format_csv(of_list, separator) for name, of_list in rows.items()}
    if classes:
        numbers = {name: number for number, name in enumerate(classes)}
        texts["classes.json"] = json.dumps(numbers, ensure_ascii=False, indent=2) + "\n"
    with ExitStack() as stack:
        for name, text in texts.items():
            file = stack.enter_context(atomic_write(out / name))
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
