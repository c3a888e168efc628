"""Print the most probable classes of videos, by a trained model.

    multigrid-predict --checkpoint runs/ab/multigrid/seed0 some.mp4 another.mp4 --top 3

--checkpoint is a file, or the folder of a run (its OUTPUT_DIR), whose best checkpoint is taken if
TRAIN.KEEP_BEST kept it, else its last; standard error says which.

A video is a file or a folder of JPEG frames; a folder of video files stands for these. It is scored
as the recipe tests: on TEST.NUM_ENSEMBLE_VIEWS × TEST.NUM_SPATIAL_CROPS clips, whose probabilities
are averaged (or their maximum is taken, where DATA.ENSEMBLE_METHOD says so). A model of several
labels a video gives each class a probability of its own. A warning names a video of which only a
part decodes (up to 3,000 frames are tried; of a longer one, what its structure tells), an MP4 or
MOV file that was not copied to its end, and a video of one frame.

The recipe is the one in the checkpoint; weights alone need it as --cfg. KEY VALUE pairs after the
videos change its keys. The names of the classes are those of --classes, or those in the
checkpoint, or those that the data set has beside the lists in DATA.PATH_TO_DATA_DIR; else a warning
says that classes have their number.

A model of boxes (DETECTION.ENABLE) needs --boxes FILE.csv, lines as AVA's: the video's name without
its ending, second, x1, y1, x2, y2 as parts of the frame's sides, and a comma. --draw DIR writes a
picture of each key frame, with its boxes and their most probable classes.

--output FILE.csv writes a table: video, prediction, probability, and the probability of each class
in a column of its own. A video that cannot be read has its path alone there.

--export FILE.pt2 writes the model as a program for torch.export.load, which needs nothing of this
package. It takes clips (N, 3, T, S, S) of RGB pixels, uint8, any number of the test grid's T frames
of S × S, and gives probabilities (N, classes). Its extra file classes.json has the names.

Exit status: 0 if all videos are predicted, 1 if some cannot be read, 2 for an error.
"""

import argparse
import itertools
import json
import os
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from slowfast_patches.utils.command_line import command_parser, ends_early, split_pairs, tool

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
    """The command line: `videos`, and in `overrides` what follows the first key."""
    parser = command_parser(__doc__)
    add = parser.add_argument
    add("--checkpoint", type=Path, required=True, metavar="FILE|DIR")
    add("--cfg", type=Path, metavar="FILE", help="the recipe of the weights")
    add("--top", type=int, default=5, metavar="K", help="classes (%(default)s)")
    names = ".json: a list of names or a mapping from name to number; else a name a line"
    add("--classes", type=Path, metavar="FILE", help=names)
    add("--output", type=Path, metavar="FILE.csv", help="write the probabilities of all classes")
    text = "write the model as a program of torch.export; no video is needed then"
    add("--export", type=Path, metavar="FILE.pt2", help=text)
    add("--boxes", type=Path, metavar="FILE.csv", help="boxes to score, as AVA's lists have them")
    add("--draw", type=Path, metavar="DIR", help="write pictures of boxes and scores")
    add("--json", action="store_true", help="print JSON, and nothing else")
    add("videos", nargs="*", default=[], metavar="VIDEO [KEY VALUE]")
    args = parser.parse_intermixed_args(argv)
    if args.top < 1:
        parser.error("--top takes 1 or more")
    words = args.videos
    args.videos = list(takewhile(lambda word: not _is_key(word), words))
    args.overrides = split_pairs(words[len(args.videos) :])
    if not (args.videos or args.export):
        parser.error("no video is given")
    return args


def _is_key(word: str) -> bool:
    sections = {name.partition(".")[0] for name in KEYS}
    section = word.partition("=")[0].partition(".")[0]
    return section in sections and not Path(word).exists()


@tool()
def main(argv: list[str] | None = None) -> int:
    """Predict and print; returns the exit status."""
    args = parse_args(argv)
    path = checkpoint_of(args.checkpoint)
    if path != args.checkpoint:
        print(f"the checkpoint is {path}", file=sys.stderr)
    if args.export:
        args.overrides += ["NUM_GPUS", 0, "TRAIN.MIXED_PRECISION", False]
    recipe, stored = read_checkpoint(path, args.cfg, args.overrides)
    _check_boxes(args, recipe.detection.enable)
    kind = BoxPredictor if recipe.detection.enable else Predictor
    predictor = kind(recipe, path, stored or names_of_data(recipe))
    predictor.class_names = names = find_names(args.classes, predictor)
    if isinstance(predictor, BoxPredictor):
        return predict_boxes(args, predictor)
    if args.export:
        from slowfast_patches.train.predict.export import write_program  # takes a second

        write_program(predictor, args.export)
        print(f"the program is {args.export}", file=sys.stderr)
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
            print(f"warning: {video} {damage}; what can be read is scored", file=sys.stderr)
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


def _check_boxes(args: argparse.Namespace, has_boxes: bool) -> None:
    """Raise ValueError for options that a model of boxes, or of videos, does not have."""
    if has_boxes and (not args.boxes or args.output or args.export):
        raise ValueError("a model of boxes needs --boxes FILE, and has no --output and no --export")
    if not has_boxes and (args.boxes or args.draw):
        raise ValueError("--boxes and --draw go with a model of boxes (DETECTION.ENABLE True)")


def predict_boxes(args: argparse.Namespace, predictor: BoxPredictor) -> int:
    """As `main`, of a model of boxes."""
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
    """The video files of a folder that has no JPEG files; else the path itself."""
    is_of_videos = os.path.isdir(path) and not frame_files(path)
    return (video_files(path) if is_of_videos else []) or [path]


def find_names(given: Path | None, predictor: Predictor) -> tuple[str, ...] | None:
    """The names of the model's classes: those in a file, or those that it comes with; None, with a
    warning, where there are none."""
    count = predictor.recipe.model.num_classes
    names = read_class_names(given) if given else predictor.class_names
    if given and names and len(names) != count:
        raise ValueError(f"{given} has {len(names)} names, and the model has {count} classes")
    if names is None:
        print("warning: classes are shown by number; give --classes FILE", file=sys.stderr)
    return names


def best(scores: Tensor, top: int, names: Sequence[str] | None) -> list[dict[str, Any]]:
    """The most probable classes: number, name (None where there is none) and probability."""
    values, numbers = scores.topk(min(top, len(scores)))
    return [
        {"number": number, "name": names[number] if names else None, "probability": value}
        for value, number in zip(values.tolist(), numbers.tolist(), strict=True)
    ]


if __name__ == "__main__":
    sys.exit(main())
