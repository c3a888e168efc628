"""Turn a data set into one made for multigrid reading: the same videos, several times as fast.

Every video of the lists is written to DIR/videos as H.264 in short groups of pictures, at a short
side of at most 256 pixels, and the lists with the paths of these files to DIR. Training takes the
result like any data set: DATA.PATH_TO_DATA_DIR DIR.

    python tools/prepare_data.py --csv k400/train.csv --csv k400/val.csv --csv k400/test.csv \\
        --output k400_prepared

prepares what three lists name ("path label" a line; a video that several name is written once).
The names of the classes, classes.json or classes.txt beside the first list, go with them.

    python tools/prepare_data.py --folder videos --output videos_prepared

takes the classes from the names of folders: videos/<class>/*.mp4 (.avi, .mkv, .webm, .mov, .mpg,
...), or videos/{train,val,test}/<class>/*.mp4. Without such a split, some videos of each class are
set aside for validation, always the same. Folders inside that of a class are named and not looked
into. Without --output, the lists and classes.json (the number of each class) are written into the
folder, and no video is.

    python tools/prepare_data.py --ssv2 ssv2 --output ssv2_prepared

takes the WebM files that Something-Something V2's json files in a folder name, in it, in its
20bn-something-something-v2, or in --prefix.

After a few videos it stops if the disk is too small for the rest. Interrupted, killed, or stopped
by a full disk, the same command continues: what is whole and whose source has not changed is kept.
A video that cannot be read is left out of the lists and reported, at the end and in
DIR/unreadable.txt; the others go on.

Exit status: 0 if all videos are prepared, 1 if some cannot be read, 2 for an error, 130 for Ctrl-C.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import fields
from itertools import chain
from pathlib import Path

from slowfast_patches.utils import command_line

if __name__ == "__main__":
    command_line.ends_early()

from slowfast_patches.datasets.lists.class_names import named_classes
from slowfast_patches.datasets.lists.list_warnings import repeated_videos
from slowfast_patches.datasets.preparing.prepare import format_report, prepare
from slowfast_patches.datasets.preparing.prepared_set import Settings
from slowfast_patches.datasets.preparing.video_lists import (
    ClassFolders,
    VideoList,
    find_classes,
    read_lists,
    read_ssv2_lists,
    write_class_lists,
)
from slowfast_patches.utils.tables import first_few

_SETTINGS = [field.name for field in fields(Settings)]

_PSNR = f"of the worst frame's luma against the resized source ({Settings.psnr:g})"
_LARGEST = f"refuse larger frames, as DATA.MAX_FRAME_PIXELS ({Settings.max_frame_pixels})"
_OPTIONS = {
    "--output": (Path, "DIR", "folder of the prepared set"),
    "--json": (bool, "with --output: print JSON, and nothing else"),
    "--workers": (int, "N", "processes (one per core)"),
    "--short-side": (int, "PIXELS", f"at most ({Settings.short_side})"),
    "--psnr": (float, "DB", _PSNR),
    "--max-frame-pixels": (int, "N", _LARGEST),
    "--prefix": (str, "DIR", "where the lists' paths start (the folder of each list)"),
    "--separator": (str, "C", r'between path and label in the lists (" "); \t is a tab', " "),
    "--val-fraction": (float, "F", "of each class to set aside (0.1)"),
}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line; an option that would have no effect is an error."""
    parser = command_line.command_parser(__doc__)
    data = parser.add_mutually_exclusive_group(required=True)
    sources = {
        "--csv": ([Path], "FILE", "a list; give one or more"),
        "--folder": (Path, "DIR", "folders named after classes"),
        "--ssv2": (Path, "DIR", "folder of SSv2's json files"),
    }
    command_line.add_options(data, sources)
    command_line.add_old_name(parser, "--out", "output", Path)
    command_line.add_options(parser, _OPTIONS)
    args = parser.parse_args(argv)
    without = {
        "--csv": ["val_fraction"],
        "--ssv2": ["val_fraction"],
        "--folder": ["prefix"] + ["workers", *_SETTINGS] * (args.output is None),
    }
    source = "--csv" if args.csv else "--folder" if args.folder else "--ssv2"
    for name in without[source]:
        if getattr(args, name) is not None:
            parser.error(f"{command_line.option_of(name)} has no effect here")
    if source != "--folder" and args.output is None:
        parser.error(f"{source} needs --output")
    if args.json and args.output is None:
        parser.error("--json needs --output")
    return args


@command_line.tool(interrupted="interrupted; the same command continues")
def main(argv: list[str] | None = None) -> int:
    """Prepare, or make the lists; returns the exit status."""
    args = parse_args(argv)
    with redirect_stdout(sys.stderr) if args.json else nullcontext():
        lists, classes = find_lists(args)
        if args.output is None:
            return 0
        given = {name: getattr(args, name) for name in _SETTINGS}
        report = prepare(
            lists,
            args.output,
            Settings(**{key: value for key, value in given.items() if value is not None}),
            workers=args.workers,
            separator=args.separator,
            classes=classes,
        )
    print(json.dumps(report.to_json(), indent=2) if args.json else format_report(report))
    return 1 if report.unreadable else 0


def find_lists(args: argparse.Namespace) -> tuple[Sequence[VideoList], Sequence[str]]:
    """The lists to prepare, and the classes where they have names; those of a folder are written
    there without --output."""
    if args.csv:
        lists = read_lists(args.csv, prefix=args.prefix or "", separator=args.separator)
        for text in chain(*(repeated_videos(found.origin, found.videos) for found in lists)):
            print(f"warning: {text}", file=sys.stderr)
        return lists, named_classes(args.csv[0].parent) or ()
    if args.ssv2:
        return read_ssv2_lists(args.ssv2, prefix=args.prefix or "")
    found = find_classes(args.folder, args.val_fraction)
    describe(found)
    if args.output is None:
        write_class_lists(found, args.separator)
        keys = ["DATA.PATH_TO_DATA_DIR", str(found.folder)]
        keys += ["MODEL.NUM_CLASSES", str(len(found.classes))]
        print(f"To train on it, give: {shlex.join(keys)}")
    return found.lists, found.classes


def describe(found: ClassFolders) -> None:
    """Print what was found in the folders."""
    counts = ", ".join(f"{len(videos.videos)} in {videos.name}" for videos in found.lists)
    print(f"{found.folder}: {len(found.classes)} classes; videos: {counts}")
    if found.beside:
        print(
            f"warning: {len(found.beside)} files and folders beside the videos of a class are none "
            f"and are not looked into: {first_few(found.beside)}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    sys.exit(main())
