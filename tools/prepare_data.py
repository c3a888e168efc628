"""Turn a data set into one made for multigrid reading: the same videos, several times as fast.

Every video of the lists is written to DIR/videos as H.264 in short groups of pictures, at a short
side of at most 256 pixels, and the lists with the paths of these files to DIR. Training takes the
result like any data set: DATA.PATH_TO_DATA_DIR DIR.

    multigrid-prepare --csv k400/train.csv --csv k400/val.csv --csv k400/test.csv \\
        --output k400_prepared

prepares what three lists name ("path label" a line; a video that several name is written once).
The names of the classes, classes.json or classes.txt beside the first list, go with them.

    multigrid-prepare --folder videos --output videos_prepared

takes the classes from the names of folders: videos/<class>/*.mp4 (.avi, .mkv, .webm, .mov, .mpg,
...), or videos/{train,val,test}/<class>/*.mp4. Without such a split, some videos of each class are
set aside for validation, always the same. Folders inside that of a class are named and not looked
into. Without --output, the lists and classes.json (the number of each class) are written into the
folder, and no video is.

    multigrid-prepare --ssv2 ssv2 --output ssv2_prepared

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
from dataclasses import asdict
from pathlib import Path

from slowfast_patches.utils import command_line

if __name__ == "__main__":
    command_line.ends_early()

from slowfast_patches.datasets.lists.class_names import named_classes
from slowfast_patches.datasets.lists.dataset_lists import repeated_videos
from slowfast_patches.datasets.preparing.prepare import format_report, prepare
from slowfast_patches.datasets.preparing.video_lists import (
    VideoList,
    find_classes,
    list_titles,
    read_lists,
    read_ssv2_lists,
    write_class_lists,
)
from slowfast_patches.datasets.reading.limits import LIMITS, ReadingLimits


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = command_line.command_parser(__doc__)
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument(
        "--csv", type=Path, action="append", metavar="FILE", help="a list; give one or more"
    )
    data.add_argument("--folder", type=Path, metavar="DIR", help="folders named after classes")
    data.add_argument("--ssv2", type=Path, metavar="DIR", help="folder of SSv2's json files")
    add = parser.add_argument
    add("--output", type=Path, metavar="DIR", help="folder of the prepared set")
    add("--json", action="store_true", help="with --output: print JSON, and nothing else")
    add("--workers", type=int, metavar="N", help="processes (one per core)")
    add("--short-side", type=int, metavar="PIXELS", default=256, help="at most (%(default)s)")
    add(
        "--max-frame-pixels",
        type=int,
        metavar="N",
        default=LIMITS.pixels,
        help="refuse larger frames, as DATA.MAX_FRAME_PIXELS (%(default)s)",
    )
    add("--prefix", metavar="DIR", default="", help="where the lists' paths start (their folder)")
    add(
        "--separator",
        default=" ",
        metavar="C",
        help=r'between path and label in the lists (" "); \t is a tab',
    )
    add("--val-fraction", type=float, metavar="F", help="of each class to set aside (0.1)")
    args = parser.parse_args(argv)
    if args.output is None and (args.json or not args.folder):
        parser.error("--output is needed, but with --folder to write lists alone")
    if args.folder and args.prefix:
        parser.error("--prefix has no effect with --folder")
    if args.val_fraction is not None and not args.folder:
        parser.error("--val-fraction has no effect without --folder")
    return args


@command_line.tool(interrupted="interrupted; the same command continues")
def main(argv: list[str] | None = None) -> int:
    """Prepare, or make the lists; returns the exit status."""
    args = parse_args(argv)
    with redirect_stdout(sys.stderr) if args.json else nullcontext():
        lists, classes = find_lists(args)
        if args.output is None:
            write_class_lists(lists, classes, args.folder, args.separator)
            keys = ["DATA.PATH_TO_DATA_DIR", str(args.folder.absolute())]
            keys += ["MODEL.NUM_CLASSES", str(len(classes))]
            print(f"To train on it, give: {shlex.join(keys)}")
            return 0
        report = prepare(
            lists,
            args.output,
            short_side=args.short_side,
            limits=ReadingLimits(pixels=args.max_frame_pixels),
            workers=args.workers,
            separator=args.separator,
            classes=classes,
        )
    print(json.dumps(asdict(report), indent=2) if args.json else format_report(report))
    return 1 if report.unreadable else 0


def find_lists(args: argparse.Namespace) -> tuple[Sequence[VideoList], Sequence[str]]:
    """The lists to prepare, and the classes where they have names."""
    if args.csv:
        lists = read_lists(args.csv, prefix=args.prefix, separator=args.separator)
        for listed in lists:
            for text in repeated_videos(listed.origin, listed.videos):
                print(f"warning: {text}", file=sys.stderr)
        return lists, named_classes(args.csv[0].parent) or ()
    if args.ssv2:
        return read_ssv2_lists(args.ssv2, prefix=args.prefix)
    lists, classes = find_classes(args.folder, args.val_fraction)
    titles = list_titles(lists)
    counts = [f"{len(listed.videos)} for {titles[listed.name]}" for listed in lists]
    print(f"{args.folder}: {len(classes)} classes; videos: {', '.join(counts)}")
    return lists, classes


if __name__ == "__main__":
    sys.exit(main())
