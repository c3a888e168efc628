r"""Prepare a data set for multigrid training, so that clips are read several times as fast.

The command encodes every video in the lists as H.264 in DIR/videos, where DIR is the folder given
as --output. The encoded videos have short groups of pictures and a short side of at most 256
pixels. The command also writes lists with the paths of the encoded videos to DIR. To train on the
prepared data set, set the key DATA.PATH_TO_DATA_DIR to DIR.

From csv files with a line "path label" per video:

    multigrid-prepare --csv k400/train.csv --csv k400/val.csv --csv k400/test.csv \
        --output k400_prepared

A video in several lists is encoded once. A warning names the videos that several lists have in
common, also as copies under other names. Class names are copied from classes.json or classes.txt in
the folder of the first list.

From folders named after the classes:

    multigrid-prepare --folder videos --output videos_prepared

The videos are in videos/<class>/*.mp4 or videos/{train,val,test}/<class>/*.mp4. docs/data.md lists
the other suffixes. Classes are numbered in alphabetical order, so class10 comes before class2. If
there are no folders train, val and test, a fraction of the videos of each class is held out for
validation, always the same videos. Folders inside a class folder are reported and skipped. Without
--output, no video is encoded, and only the lists and classes.json (from class name to class index)
are written to the folder of the videos.

Lists, videos and --output may be in a bucket (docs/data.md):

    multigrid-prepare --csv k400/train.csv --csv k400/val.csv --output s3://bucket/k400

From the JSON files of Something-Something V2:

    multigrid-prepare --ssv2 ssv2 --output ssv2_prepared

The WebM files are in the folder of the JSON files, in its subfolder 20bn-something-something-v2, or
in the folder given as --prefix.

After a few videos, the command stops if the disk is too small for all videos. To continue after an
interruption or a full disk, repeat the command. It keeps the encoded videos unless their source has
changed. Unreadable videos are left out of the lists. They are reported at the end and in
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

from slowfast_patches.utils.command_line import (
    add_json,
    add_option,
    command_parser,
    start_program,
    tool,
)

if __name__ == "__main__":
    start_program()

from slowfast_patches.datasets.lists.class_names import named_classes
from slowfast_patches.datasets.lists.list_checks import repeated_videos
from slowfast_patches.datasets.preparing.prepare import format_report, prepare
from slowfast_patches.datasets.preparing.video_lists import (
    VideoList,
    find_classes,
    list_overlaps,
    read_lists,
    read_ssv2_lists,
    write_class_lists,
)
from slowfast_patches.datasets.reading.limits import LIMITS, ReadingLimits
from slowfast_patches.utils.storage import as_path


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = command_parser(__doc__)
    data = parser.add_mutually_exclusive_group(required=True)
    text = 'csv file with a line "path label" per video; can be repeated'
    add_option(data, "--csv", "FILE", text, as_path, [], action="append")
    add_option(data, "--folder", "DIR", "folder with a subfolder for each class", as_path)
    text = "folder with the JSON files of Something-Something V2"
    add_option(data, "--ssv2", "DIR", text, as_path)
    add = partial(add_option, parser)
    add("--output", "DIR", "folder or s3://... address for the prepared data set", as_path)
    add_json(parser, "; requires --output")
    add("--workers", "N", "number of processes (default: one per core)", int)
    text = "resize larger frames to this short side (default: %(default)s)"
    add("--short-side", "PIXELS", text, int, 256)
    text = "write this many frames per second (default: the frames and times of the source)"
    add("--fps", "N", text, float)
    text = (
        "treat videos whose frames have more pixels as unreadable, like DATA.MAX_FRAME_PIXELS "
        "(default: %(default)s)"
    )
    add("--max-frame-pixels", "N", text, int, LIMITS.pixels)
    text = "folder to which the paths in a list are relative (default: the folder of the list)"
    add("--prefix", "DIR", text, default="")
    text = r'separator between path and label in the lists; \t is a tab (default: " ")'
    add("--separator", "C", text, default=" ")
    text = "fraction of the videos of each class to hold out for validation (default: 0.1)"
    add("--val-fraction", "F", text, float)
    args = parser.parse_args(argv)
    if args.output is None and (args.json or not args.folder):
        parser.error(
            "--output is required. It may be omitted only with --folder and without --json"
        )
    if args.folder and args.prefix:
        parser.error("--prefix has no effect with --folder")
    if args.val_fraction is not None and not args.folder:
        parser.error("--val-fraction has no effect without --folder")
    return args


@tool
def main(argv: list[str] | None = None) -> int:
    """Prepare the data set or write its lists, and return the exit status."""
    args = parse_args(argv)
    with redirect_stdout(sys.stderr) if args.json else nullcontext():
        lists, classes = find_lists(args)
        if args.output is None:
            write_class_lists(lists, classes, args.folder, args.separator)
            for overlap in list_overlaps(lists):
                print(f"warning: {overlap}", file=sys.stderr)
            keys = ["DATA.PATH_TO_DATA_DIR", str(args.folder.absolute())]
            keys += ["MODEL.NUM_CLASSES", str(len(classes))]
            print(f"To train on this data set, add these keys: {shlex.join(keys)}")
            return 0
        report = prepare(
            lists,
            args.output,
            short_side=args.short_side,
            fps=args.fps,
            limits=ReadingLimits(pixels=args.max_frame_pixels),
            workers=args.workers,
            separator=args.separator,
            classes=classes,
        )
    print(json.dumps(asdict(report), indent=2) if args.json else format_report(report))
    return 1 if report.unreadable else 0


def find_lists(args: argparse.Namespace) -> tuple[Sequence[VideoList], Sequence[str]]:
    """Return the lists to prepare, and the class names or an empty sequence if they are unknown."""
    if args.csv:
        lists = read_lists(args.csv, prefix=args.prefix, separator=args.separator)
        for listed in lists:
            for text in repeated_videos(listed.origin, listed.videos):
                print(f"warning: {text}", file=sys.stderr)
        return lists, named_classes(args.csv[0].parent) or ()
    if args.ssv2:
        return read_ssv2_lists(args.ssv2, prefix=args.prefix)
    lists, classes = find_classes(args.folder, args.val_fraction)
    counts = [f"{len(listed.videos)} for {listed.name}" for listed in lists]
    print(f"{args.folder}: {len(classes)} classes; videos: {', '.join(counts)}")
    return lists, classes


if __name__ == "__main__":
    sys.exit(main())
