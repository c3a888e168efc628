"""Predict the classes of videos with a trained model.

    multigrid-predict --checkpoint runs/ab/multigrid/seed0 some.mp4 another.mp4 --top 3

--checkpoint is a checkpoint file or the OUTPUT_DIR of a run. For an OUTPUT_DIR, the best checkpoint
is used if TRAIN.KEEP_BEST is True, and the last checkpoint otherwise. The path of the checkpoint is
printed to standard error.

A video is a file or a folder of JPEG frames. For a folder of video files, all files are predicted.
As in the test, a video is scored on TEST.NUM_ENSEMBLE_VIEWS × TEST.NUM_SPATIAL_CROPS clips.
DATA.ENSEMBLE_METHOD selects the mean or the maximum over the clips. With several labels per video,
the probabilities of the classes are independent of each other.

A warning is printed for a video that decodes only in part, for an incomplete MP4 or MOV file, and
for a video with a single frame. To find damage, videos of up to 3,000 frames are decoded. For
longer videos, only the structure of the file is checked.

The recipe is read from the checkpoint. If the checkpoint has no recipe, give a recipe by --cfg. KEY
VALUE pairs after the videos replace keys of the recipe. Class names are read from --classes, from
the checkpoint, or from DATA.PATH_TO_DATA_DIR, in this order. If there are no names, class indices
are printed, with a warning.

A detection model (DETECTION.ENABLE True) needs --boxes FILE.csv in the format of AVA. Each line is
VIDEO,SECOND,X1,Y1,X2,Y2, with a comma at the end. VIDEO is the file name without suffix. The
corners are fractions of the width and height of the frame. --draw DIR writes a picture of each key
frame with the boxes and their most probable classes.

--output FILE.csv writes a table with the columns video, prediction and probability, and one column
for each class with its probability. For a video that cannot be read, only the column video is
filled.

--export FILE.pt2 writes a program for torch.export.load, which runs without this package. The input
of the program is a batch of clips, (N, 3, T, S, S) RGB pixels as uint8. T is DATA.NUM_FRAMES and S
is DATA.TEST_CROP_SIZE. The output are probabilities (N, classes). The extra file classes.json in
the program contains the class names.

Exit status: 0 if all videos were predicted, 1 if a video cannot be read, 2 for any other error.
"""

import argparse
import itertools
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from slowfast_patches.utils.command_line import (
    add_imports,
    add_json,
    add_option,
    at_least_one,
    command_parser,
    ends_early,
    imports_pair,
    split_pairs,
    tool,
)

if __name__ == "__main__":
    ends_early()

from torch import Tensor

from slowfast_patches.config.recipe import KEYS
from slowfast_patches.datasets.lists.ava_list import read_boxes
from slowfast_patches.datasets.lists.class_names import read_class_names
from slowfast_patches.datasets.reading.files import frame_files, video_files, video_name
from slowfast_patches.datasets.reading.video_record import UnreadableVideoError
from slowfast_patches.train.checkpoint import checkpoint_of
from slowfast_patches.train.predict import Predictor, read_checkpoint
from slowfast_patches.train.predict.boxes import BoxPredictor
from slowfast_patches.train.record.tables import names_of_data, write_predictions


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line, and separate the videos from the KEY VALUE pairs after them."""
    parser = command_parser(__doc__)
    add = partial(add_option, parser)
    add("--checkpoint", "FILE|DIR", "checkpoint file, or OUTPUT_DIR of a run", Path, required=True)
    add("--cfg", "FILE", "recipe of the model, for a checkpoint without recipe", Path)
    text = "number of classes to print (default: %(default)s)"
    add("--top", "K", text, at_least_one, 5)
    names = "file of class names: one name per line, or JSON (a list, or a map from name to index)"
    add("--classes", "FILE", names, Path)
    add("--output", "FILE.csv", "write a table with the probabilities of all classes", Path)
    text = "write the model as a torch.export program; videos are then optional"
    add("--export", "FILE.pt2", text, Path)
    add("--boxes", "FILE.csv", "boxes to score, in the format of AVA", Path)
    add("--draw", "DIR", "folder for pictures of the boxes and their classes", Path)
    add_json(parser)
    add_imports(parser)
    text = "videos, then keys of the recipe to replace"
    add("videos", "VIDEO [KEY VALUE]", text, default=[], nargs="*")
    args = parser.parse_intermixed_args(argv)
    words = args.videos
    args.videos = list(takewhile(lambda word: not _is_key(word), words))
    args.overrides = split_pairs(words[len(args.videos) :]) + imports_pair(args)
    if not (args.videos or args.export):
        parser.error("at least one video or --export is required")
    if args.boxes and (args.output or args.export):
        parser.error("--boxes cannot be combined with --output or --export")
    if args.draw and not args.boxes:
        parser.error("--draw requires --boxes")
    return args


def _is_key(word: str) -> bool:
    sections = {name.partition(".")[0] for name in KEYS}
    section = word.partition("=")[0].partition(".")[0]
    return section in sections and not Path(word).exists()


@tool()
def main(argv: list[str] | None = None) -> int:
    """Predict all videos, print or write the results, and return the exit status."""
    args = parse_args(argv)
    path = checkpoint_of(args.checkpoint)
    if path != args.checkpoint:
        print(f"Using the checkpoint {path}.", file=sys.stderr)
    if args.export:
        args.overrides += ["NUM_GPUS", 0, "TRAIN.MIXED_PRECISION", False]
    recipe, stored = read_checkpoint(path, args.cfg, args.overrides)
    kind = BoxPredictor if args.boxes else Predictor
    predictor = kind(recipe, path, stored or names_of_data(recipe))
    predictor.class_names = names = find_names(args.classes, predictor)
    if isinstance(predictor, BoxPredictor):
        return predict_boxes(args, predictor)
    if args.export:
        from slowfast_patches.train.predict.export import write_program  # lazy import: slow

        write_program(predictor, args.export)
        print(f"Program written to {args.export}.", file=sys.stderr)
    results = list[dict[str, Any]]()
    probabilities = dict[str, Tensor | None]()
    for video in itertools.chain.from_iterable(map(videos_at, args.videos)):
        try:
            scores = probabilities[video] = predictor.scores(video)
            damage = predictor.damage(video)
        except UnreadableVideoError as error:
            print(f"{video} {error}", file=sys.stderr)
            probabilities[video] = None
            results.append({"video": video, "error": str(error)})
            continue
        if damage:
            print(f"warning: {video} {damage}; only the readable part is scored", file=sys.stderr)
        classes = best(scores, args.top, names)
        results.append({"video": video, "classes": classes})
        if not args.json:
            print(video)
            for row in classes:
                name = row["name"] or f"class {row['number']}"
                print(f"  {100 * row['probability']:5.1f} %  {name}", flush=True)
    if args.output:
        write_predictions(args.output, list(probabilities), list(probabilities.values()), names)
    if args.json:
        print(json.dumps(results, indent=2, ensure_ascii=False))
    return int(None in probabilities.values())


def predict_boxes(args: argparse.Namespace, predictor: BoxPredictor) -> int:
    """Predict the boxes in all videos, print the results, and return the exit status."""
    names = predictor.class_names
    boxes = read_boxes(args.boxes, predictor.recipe.model.num_classes)
    results = list[dict[str, Any]]()
    for video in itertools.chain.from_iterable(map(videos_at, args.videos)):
        seconds = sorted(second for name, second in boxes if name == video_name(video))
        if not seconds:
            results.append({"video": video, "error": f"has no box in {args.boxes}"})
        for second in seconds:
            found = tuple(boxes[video_name(video), second])
            where = {"video": video, "second": second}
            try:
                rows = [best(row, args.top, names) for row in predictor.boxes(video, second, found)]
            except UnreadableVideoError as error:
                results.append({**where, "error": str(error)})
                continue
            pairs = zip(found, rows, strict=True)
            results += [{**where, "box": box, "classes": classes} for box, classes in pairs]
            if args.draw:
                texts = ["\n".join(map(_class_text, classes)) for classes in rows]
                picture = args.draw / f"{video_name(video)}_{second:04d}.png"
                predictor.draw(video, second, found, texts, picture)
    if args.json:
        print(json.dumps(results, indent=2, ensure_ascii=False))
    for result in results:
        if "error" in result:
            print(f"{result['video']} {result['error']}", file=sys.stderr)
        elif not args.json:
            classes = ", ".join(map(_class_text, result["classes"]))
            print(f"{result['video']}, second {result['second']}, box {result['box']}: {classes}")
    return int(any("error" in result for result in results))


def _class_text(row: dict[str, Any]) -> str:
    return f"{row['name'] or row['number']} {100 * row['probability']:.0f} %"


def videos_at(path: str) -> list[str]:
    """Return the video files in a folder, or [path] for a video file or a folder of frames."""
    is_of_videos = os.path.isdir(path) and not frame_files(path)
    return (video_files(path) if is_of_videos else []) or [path]


def find_names(given: Path | None, predictor: Predictor) -> tuple[str, ...] | None:
    """Return the class names in the file `given`, or the class names of the model without a file.

    If there are no names, print a warning and return None.

    Raises:
        ValueError: The number of names in the file is not the number of classes of the model.
    """
    count = predictor.recipe.model.num_classes
    names = read_class_names(given) if given else predictor.class_names
    if given and names and len(names) != count:
        raise ValueError(
            f"{given} has {len(names)} class names, but the model has {count} classes."
        )
    if names is None:
        print(
            "warning: Class indices are shown. To show class names, set --classes FILE.",
            file=sys.stderr,
        )
    return names


def best(scores: Tensor, top: int, names: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return a dict for each of the `top` most probable classes.

    The keys are "number" (the class index), "name" (or None) and "probability".
    """
    values, numbers = scores.topk(min(top, len(scores)))
    return [
        {"number": number, "name": names[number] if names else None, "probability": value}
        for value, number in zip(values.tolist(), numbers.tolist(), strict=True)
    ]


if __name__ == "__main__":
    sys.exit(main())
