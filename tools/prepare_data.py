r"""Prepare a data set for multigrid training, so that clips are read several times as fast.

Every video in the lists is encoded as H.264 in DIR/videos, with short groups of pictures and a
short side of at most 256 pixels. Lists with the paths of these files are written to DIR. To train
on the result, give DATA.PATH_TO_DATA_DIR DIR.

    multigrid-prepare --csv k400/train.csv --csv k400/val.csv --csv k400/test.csv \
        --output k400_prepared

prepares the videos of three lists, with "path label" on each line. A video in several lists is
encoded once. Class names (classes.json or classes.txt beside the first list) are copied.

    multigrid-prepare --folder videos --output videos_prepared

takes the classes from folder names: videos/<class>/*.mp4 (.avi, .mkv, .webm, .mov, .mpg, ...), or
videos/{train,val,test}/<class>/*.mp4. Without such a split, some videos of each class are held out
for validation, the same ones each time. Folders inside a class are reported and skipped. Without
--output, only the lists and classes.json (the number of each class) are written, into the folder.

    multigrid-prepare --ssv2 ssv2 --output ssv2_prepared

prepares Something-Something V2 from its JSON files in a folder. The WebM files are in that folder,
in its subfolder 20bn-something-something-v2, or in --prefix.

After a few videos, it stops if the disk is too small for the rest. To continue after an
interruption or a full disk, repeat the command. Complete videos are kept unless their source has
changed. A video that cannot be read is left out of the lists, and reported at the end and in
DIR/unreadable.txt.

Exit status: 0 if all videos are prepared, 1 if some cannot be read, 2 for an error, 130 for Ctrl-C.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict
from functools import partial
from pathlib import Path

from slowfast_patches.utils.command_line import (
    add_json,
    add_list,
    add_option,
    command_parser,
    ends_early,
    tool,
)

if __name__ == "__main__":
    ends_early()

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
    """Parse the command line."""
    parser = command_parser(__doc__)
    data = parser.add_mutually_exclusive_group(required=True)
    add_list(data, "--csv", "list of videos; can be repeated")
    add_option(data, "--folder", "DIR", "folder with a subfolder for each class", Path)
    text = "folder with the JSON files of Something-Something V2"
    add_option(data, "--ssv2", "DIR", text, Path)
    add = partial(add_option, parser)
    add("--output", "DIR", "folder for the prepared data set", Path)
    add_json(parser, "; needs --output")
    add("--workers", "N", "number of processes (default: one per core)", int)
    text = "largest short side of the videos (default: %(default)s)"
    add("--short-side", "PIXELS", text, int, 256)
    text = "refuse videos with larger frames, as DATA.MAX_FRAME_PIXELS (default: %(default)s)"
    add("--max-frame-pixels", "N", text, int, LIMITS.pixels)
    text = "folder that paths in the lists are relative to (default: that of the list)"
    add("--prefix", "DIR", text, default="")
    text = r'separator of path and label in the lists (default: " "); \t is a tab'
    add("--separator", "C", text, default=" ")
    add("--val-fraction", "F", "share of each class to hold out (default: 0.1)", float)
    args = parser.parse_args(argv)
    if args.output is None and (args.json or not args.folder):
        parser.error("--output is needed. Only --folder can write lists alone.")
    if args.folder and args.prefix:
        parser.error("--prefix has no effect with --folder")
    if args.val_fraction is not None and not args.folder:
        parser.error("--val-fraction has no effect without --folder")
    return args


@tool(interrupted="interrupted; repeat the command to continue")
def main(argv: list[str] | None = None) -> int:
    """Prepare the data set or write its lists, and return the exit status."""
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
    """Return the lists to prepare and the class names, which are empty if there are none."""
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
