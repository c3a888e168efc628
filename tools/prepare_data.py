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

The videos are in videos/<class>/*.mp4 or videos/{train,val,test}/<class>/*.mp4. The folders of the
splits may also be called training, valid, validation and testing. docs/data.md lists the other
suffixes. Classes are numbered in alphabetical order, so class10 comes before class2. If there are
no folders train, val and test, a fraction of the videos of each class is held out for validation,
always the same videos. Folders inside a class folder are reported and skipped. The class names are
written to classes.json (from class name to class index).

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
import sys
from collections.abc import Sequence
from functools import partial

from slowfast_patches.datasets.preparing.quality import CRF
from slowfast_patches.utils.command_line import (
    above_zero,
    add_option,
    answer_help,
    at_least_one,
    command_parser,
    start_program,
    tool,
)
from slowfast_patches.utils.machine import available_cores


def new_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = command_parser(__doc__)
    data = parser.add_mutually_exclusive_group(required=True)
    text = 'csv file with a line "path label" per video; can be repeated'
    add_option(data, "--csv", "FILE", text, default=[], action="append")
    add_option(data, "--folder", "DIR", "folder with a subfolder for each class")
    text = "folder with the JSON files of Something-Something V2"
    add_option(data, "--ssv2", "DIR", text)
    add = partial(add_option, parser)
    text = "folder or s3://... address for the prepared data set"
    add("--output", "DIR", text, required=True)
    text = "number of processes (default: one per core)"
    add("--workers", "N", text, at_least_one, available_cores())
    text = "resize larger frames to this short side (default: %(default)s)"
    add("--short-side", "PIXELS", text, at_least_one, 256)
    text = "write this many frames per second (default: the frames and times of the source)"
    add("--fps", "N", text, above_zero)
    text = "quality as x264's constant rate factor, from 0 (lossless) to 51 (default: %(default)s)"
    add("--crf", "N", text, float, CRF)
    text = "folder to which the paths in a list are relative (default: the folder of the list)"
    add("--prefix", "DIR", text, default="")
    text = r'separator between path and label in the lists; \t is a tab (default: " ")'
    add("--separator", "C", text, default=" ")
    text = "fraction of the videos of each class to hold out for validation (default: 0.1)"
    add("--val-fraction", "F", text, above_zero)
    return parser


if __name__ == "__main__":
    start_program()
answer_help(new_parser)

from slowfast_patches.datasets.lists.class_names import named_classes
from slowfast_patches.datasets.lists.list_checks import repeated_videos
from slowfast_patches.datasets.preparing.prepare import prepare
from slowfast_patches.datasets.preparing.video_lists import (
    VideoList,
    find_classes,
    read_lists,
    read_ssv2_lists,
)
from slowfast_patches.utils.storage import as_path


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = new_parser()
    args = parser.parse_args(argv)
    args.csv = list(map(as_path, args.csv))
    args.output = as_path(args.output)
    for name in ("folder", "ssv2"):
        if getattr(args, name) is not None:
            setattr(args, name, as_path(getattr(args, name)))
    if args.folder and args.prefix:
        parser.error("--prefix has no effect with --folder")
    if args.val_fraction is not None and not args.folder:
        parser.error("--val-fraction has no effect without --folder")
    return args


@tool
def main(argv: list[str] | None = None) -> int:
    """Prepare the data set, and return the exit status."""
    args = parse_args(argv)
    lists, classes = find_lists(args)
    report = prepare(
        lists,
        args.output,
        workers=args.workers,
        short_side=args.short_side,
        fps=args.fps,
        crf=args.crf,
        separator=args.separator,
        classes=classes,
    )
    print(report)
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
    print(f"{args.folder}: {len(classes)} classes. Videos: {', '.join(counts)}")
    return lists, classes


if __name__ == "__main__":
    sys.exit(main())
