"""Predict the classes of videos with a trained model.

    multigrid-predict --checkpoint runs/ab/multigrid/seed0 some.mp4 another.mp4 --top 3

--checkpoint is a checkpoint file, the OUTPUT_DIR of a run, a folder that --hub wrote, or the name
of weights that ship with the package: words-slowfast or demo-slowfast. From an OUTPUT_DIR, the
command uses the best checkpoint if TRAIN.KEEP_BEST has kept one, and otherwise the last checkpoint.
The path of the checkpoint is printed to standard error.

A video is a video file or a folder of JPEG frames. If a folder contains video files, all of them
are predicted, and pictures beside them are not. If a folder contains several series of frames,
choose one, in quotes: 'frames/img_*.jpg'. As in the test, a video is scored on
TEST.NUM_ENSEMBLE_VIEWS × TEST.NUM_SPATIAL_CROPS clips. Their probabilities are combined as set by
DATA.ENSEMBLE_METHOD. In multi-label models, each class has an independent probability.

The command warns if a video is truncated or damaged, if its frame rate varies, or if most of its
clips have few distinct frames.

The recipe is read from the checkpoint. If the checkpoint contains no recipe, give a recipe with
--cfg. KEY VALUE pairs after the videos replace keys of the recipe. Class names are read from
--classes, else from the checkpoint, else from the file beside the lists in DATA.PATH_TO_DATA_DIR.
If there are no class names, the command prints a warning and the class indices.

A detection model (DETECTION.ENABLE) needs --targets FILE.csv in the format of AVA. Each line is
name,second,x1,y1,x2,y2, with a comma at the end. The name is the file name of the video without
suffix, and the coordinates are fractions of the width and height of the frame.

--output FILE.csv writes a table with the columns video, prediction, probability, and one column per
class with the probability of this class. If a video cannot be read, all columns except video are
empty.

Exit status: 0 if all videos and targets are predicted, 1 if some cannot be read, 2 for an error.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from slowfast_patches.utils.command_line import (
    ExtraOption,
    add_imports,
    add_json,
    add_option,
    answer_help,
    at_least_one,
    command_parser,
    extra_options,
    imports_pair,
    split_pairs,
    start_program,
    tool,
)

COMMAND = "multigrid-predict"


def new_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    written = extra_options(COMMAND)
    about, status = __doc__.split("\nExit status:")
    texts = [option.text for option in written]
    parser = command_parser("\n".join([about.rstrip(), *texts, f"\nExit status:{status}"]))
    add = partial(add_option, parser)
    add(
        "--checkpoint",
        "FILE|DIR",
        "checkpoint, OUTPUT_DIR of a run, folder of --hub, or words-slowfast",
        required=True,
    )
    add("--cfg", "FILE", "recipe of the model, if the checkpoint does not contain it", Path)
    text = "number of classes to print (default: %(default)s)"
    add("--top", "K", text, at_least_one, 5)
    names = (
        "file of class names: a text file with a name per line, or a .json file with a list of "
        "names or an object from name to class index"
    )
    add("--classes", "FILE", names, Path)
    add("--output", "FILE.csv", "write a table of the probabilities of all classes", Path)
    for option in written:
        add(f"--{option.name}", option.metavar, option.help, Path)
    text = "what to classify in the videos; for detection, in the format of AVA"
    add("--targets", "FILE.csv", text, Path)
    add_json(parser)
    add_imports(parser)
    text = "videos, followed by keys of the recipe to replace"
    add("videos", "VIDEO [KEY VALUE]", text, default=[], nargs="*")
    return parser


if __name__ == "__main__":
    start_program()
answer_help(new_parser)

from torch import Tensor

from slowfast_patches.config.recipe import KEYS
from slowfast_patches.datasets.lists.class_names import read_class_names
from slowfast_patches.datasets.reading.formats import is_video_name, video_files
from slowfast_patches.datasets.reading.frames import frame_files
from slowfast_patches.datasets.reading.video_file import UnreadableVideoError
from slowfast_patches.registry import TASKS
from slowfast_patches.seams import Lazy
from slowfast_patches.tasks import task_of
from slowfast_patches.tasks.task import Prediction
from slowfast_patches.train.checkpoint import checkpoint_of
from slowfast_patches.train.predict import Predictor, read_checkpoint
from slowfast_patches.train.predict.predictor import require_clip_scores
from slowfast_patches.train.record.result_tables import names_of_data, write_predictions
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.files import check_output
from slowfast_patches.utils.tables import format_list


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line, and split `videos` from the KEY VALUE pairs after them."""
    parser = new_parser()
    args = parser.parse_intermixed_args(_protect_names(parser, argv or sys.argv[1:]))
    words = args.videos
    videos = takewhile(lambda word: not _is_key(word), words)
    args.videos = [word.removeprefix("./") if word.startswith("./-") else word for word in videos]
    args.overrides = split_pairs(words[len(args.videos) :]) + imports_pair(args)
    named = format_list([f"--{option.name}" for option in extra_options(COMMAND)], "or")
    if not (args.videos or given_options(args)):
        parser.error(f"at least one video{named and ', or ' + named}, is required")
    if args.targets and (args.output or given_options(args)):
        parser.error(f"--targets cannot be combined with --output{named and ', ' + named}")
    return args


def given_options(args: argparse.Namespace) -> list[ExtraOption]:
    """Return the options of extras that the command line has."""
    return [option for option in extra_options(COMMAND) if getattr(args, option.name)]


def _protect_names(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Put `./` before the names of videos that begin with `-`, as the ids of YouTube may."""

    def is_name(word: str) -> bool:
        is_option = word.partition("=")[0] in parser._option_string_actions
        return word[:1] == "-" and not is_option and (is_video_name(word) or Path(word).exists())

    return [f"./{word}" if is_name(word) else word for word in words]


def _is_key(word: str) -> bool:
    sections = {name.partition(".")[0] for name in KEYS}
    section = word.partition("=")[0].partition(".")[0]
    looks_like_key = re.fullmatch(r"[A-Z][A-Z0-9_]*(\.[A-Z0-9_]+)+", word.partition("=")[0])
    return (section in sections or looks_like_key is not None) and not Path(word).exists()


@tool
def main(argv: list[str] | None = None) -> int:
    """Predict all videos, print or write the results, and return the exit status."""
    args = parse_args(argv)
    check_output(args.output, "--output")
    written = given_options(args)
    for option in written:
        if option.is_file:
            check_output(getattr(args, option.name), f"--{option.name}")
    path = checkpoint_of(args.checkpoint)
    if str(path) != args.checkpoint:
        print(f"Using the checkpoint {path}", file=sys.stderr)
    for option in written:
        args.overrides += option.keys
    recipe, stored = read_checkpoint(path, args.cfg, args.overrides)
    if not args.targets:
        require_clip_scores(recipe, path)
    elif TASKS[recipe.task].scores_clips:
        raise UserError(f"{path} is a model for whole videos. Remove --targets.")
    predictor = Predictor(recipe, path, stored or names_of_data(recipe))
    predictor.class_names = names = find_names(args.classes, predictor)
    for option in written:
        target = getattr(args, option.name)
        Lazy(option.write)(predictor, path, target)
        print(f"--{option.name}: {target} written", file=sys.stderr)
    task = task_of(recipe)
    results = list[dict[str, Any]]()
    probabilities = dict[str, Tensor | None]()
    for video in itertools.chain.from_iterable(map(videos_at, args.videos)):
        try:
            if args.targets:
                predictions = task.predict(predictor, video, args.targets)
            else:
                predictions = list[Prediction]([({}, predictor.scores(video))])
            warnings = predictor.warnings(video)
        except UnreadableVideoError as error:
            print(f"{video} {error}", file=sys.stderr)
            probabilities[video] = None
            results.append({"video": video, "error": str(error)})
            continue
        for text in warnings:
            print(f"warning: {video} {text}", file=sys.stderr)
        rows = list[dict[str, Any]]()
        for where, scores in predictions:
            if scores is None:
                print(f"{video}, second {where.get('second')} {where['error']}", file=sys.stderr)
                rows.append({"video": video, **where})
                continue
            probabilities[video] = scores
            classes = best(scores, args.top, names)
            rows.append({"video": video, **where, "classes": classes})
            if not args.json:
                print(video, *(f"{name} {value}" for name, value in where.items()), sep=", ")
                print(_text(classes), flush=True)
        results += rows
    if args.output:
        write_predictions(args.output, list(probabilities), list(probabilities.values()), names)
    if args.json:
        print(json.dumps(results, indent=2, ensure_ascii=False))
    return int(any("error" in row for row in results))


def _text(classes: Sequence[dict[str, Any]]) -> str:
    """Return a line for each class."""
    names = [row["name"] or f"class {row['number']}" for row in classes]
    pairs = zip(classes, names, strict=True)
    return "\n".join(f"  {100 * row['probability']:5.1f} %  {name}" for row, name in pairs)


def videos_at(path: str) -> list[str]:
    """Return the paths of the video files in a folder.

    If `path` is a video file or a folder of JPEG frames, return `[path]`.
    """
    videos = video_files(path) if os.path.isdir(path) else []
    if videos:
        with contextlib.suppress(UnreadableVideoError):
            count = len(frame_files(path))
            text = f"warning: {path} also contains {count} pictures, which are not predicted. To "
            if count > 1:
                print(f"{text}predict them, move them to another folder", file=sys.stderr)
    return videos or [path]


def find_names(given: Path | None, predictor: Predictor) -> tuple[str, ...] | None:
    """Return the class names from the file `given`, or else the class names of the model.

    If there are no class names, print a warning and return None.

    Raises:
        ValueError: The number of names in the file is not the number of classes of the model.
    """
    count = predictor.recipe.model.num_classes
    names = read_class_names(given) if given else predictor.class_names
    if given and names and len(names) != count:
        raise UserError(f"{given} has {len(names)} names, but the model has {count} classes.")
    if names is None:
        print(
            "warning: the class names are unknown, so class indices are shown. Use --classes FILE",
            file=sys.stderr,
        )
    return names


def best(scores: Tensor, top: int, names: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return the `top` most probable classes, in descending order of probability.

    Args:
        scores: Probabilities, (classes,).
        top: Number of classes to return.
        names: The class names, or None.

    Returns:
        A dict per class: the class index "number", the "name" or None, and the "probability".
    """
    values, numbers = scores.topk(min(top, len(scores)))
    return [
        {"number": number, "name": names[number] if names else None, "probability": value}
        for value, number in zip(values.tolist(), numbers.tolist(), strict=True)
    ]


if __name__ == "__main__":
    sys.exit(main())
