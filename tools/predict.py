"""Print the most probable classes of videos, by a trained model.

    multigrid-predict --checkpoint runs/ab/multigrid/seed0 some.mp4 another.mp4 --top 3

--checkpoint is a file, or the folder of a run (its OUTPUT_DIR), whose best checkpoint is taken if
TRAIN.KEEP_BEST kept it, else its last; standard error says which.

A video is a file or a folder of JPEG frames; a folder of video files stands for these. It is scored
as the recipe tests: on TEST.NUM_ENSEMBLE_VIEWS × TEST.NUM_SPATIAL_CROPS clips, whose probabilities
are averaged (or their maximum is taken, where DATA.ENSEMBLE_METHOD says so). A model of several
labels a video gives each class a probability of its own. A warning names an MP4 or MOV file that
was not copied to its end.

The recipe is the one in the checkpoint; weights alone need it as --cfg. KEY VALUE pairs after the
videos change its keys. The names of the classes are those of --classes, or those in the
checkpoint, or those that the data set has beside the lists in DATA.PATH_TO_DATA_DIR; else a warning
says that classes have their number.

--output FILE.csv writes a table: video, prediction, probability, and the probability of each class
in a column of its own. A video that cannot be read has its path alone there.

Exit status: 0 if all videos are predicted, 1 if some cannot be read, 2 for an error.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slowfast_patches.utils.command_line import command_parser, ends_early, tool

if __name__ == "__main__":
    ends_early()

from torch import Tensor

from slowfast_patches.config.recipe import KEYS, Recipe
from slowfast_patches.datasets.lists.class_names import read_class_names
from slowfast_patches.datasets.lists.dataset_lists import class_names
from slowfast_patches.datasets.reading.files import frame_files, video_files
from slowfast_patches.datasets.reading.scan import missing_frames
from slowfast_patches.datasets.reading.video_record import UnreadableVideoError
from slowfast_patches.train.checkpoint_files import checkpoint_of
from slowfast_patches.train.predict import Predictor, read_checkpoint
from slowfast_patches.train.record.tables import write_predictions


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line: `videos`, and in `overrides` what follows the first key."""
    parser = command_parser(__doc__)
    add = parser.add_argument
    add("--checkpoint", type=Path, required=True, metavar="FILE|DIR")
    add("--cfg", type=Path, metavar="FILE", help="the recipe of the weights")
    add("--top", type=int, default=5, metavar="K", help="classes (%(default)s)")
    add(
        "--classes",
        type=Path,
        metavar="FILE",
        help=".json: a list of names or a mapping from name to number; else a name a line",
    )
    add("--output", type=Path, metavar="FILE.csv", help="write the probabilities of all classes")
    add("--json", action="store_true", help="print JSON, and nothing else")
    parser.add_argument("videos", nargs="+", metavar="VIDEO [KEY VALUE]")
    args = parser.parse_intermixed_args(argv)
    if args.top < 1:
        parser.error("--top takes 1 or more")
    if args.output and args.output.suffix != ".csv":
        parser.error("--output takes a name that ends in .csv")
    sections = {name.partition(".")[0] for name in KEYS}
    keys = [i for i, item in enumerate(args.videos) if _is_key(item, sections)]
    first = keys[0] if keys else len(args.videos)
    args.overrides = args.videos[first:]
    args.videos = args.videos[:first]
    if not args.videos:
        parser.error("no video is given")
    return args


def _is_key(item: str, sections: Any) -> bool:
    return item.split(".")[0] in sections and not Path(item).exists()


@tool()
def main(argv: list[str] | None = None) -> int:
    """Predict and print; returns the exit status."""
    args = parse_args(argv)
    path = checkpoint_of(args.checkpoint)
    if path != args.checkpoint:
        print(f"the checkpoint is {path}", file=sys.stderr)
    recipe, stored = read_checkpoint(path, args.cfg, args.overrides)
    predictor = Predictor(recipe, path)
    videos = [video for path in args.videos for video in videos_at(path)]
    names = find_names(args.classes, stored, path, recipe)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
    results = list[dict[str, Any]]()
    probabilities = list[Tensor | None]()
    for video in videos:
        try:
            scores = predictor(video)
            missing = missing_frames(video)
        except UnreadableVideoError as error:
            print(f"{video} {error}", file=sys.stderr)
            probabilities.append(None)
            results.append({"video": video, "error": str(error)})
            continue
        if missing:
            text = f"{missing} of its frames are missing, and the others are scored"
            print(f"warning: {video} is cut off: {text}", file=sys.stderr)
        probabilities.append(scores)
        classes = best(scores, args.top, names)
        results.append({"video": video, "classes": classes})
        if not args.json:
            print(format_classes(video, classes), flush=True)
    if args.output:
        write_predictions(args.output, videos, probabilities, names)
    if args.json:
        print(json.dumps(results, indent=2, ensure_ascii=False))
    return int(any("error" in result for result in results))


def videos_at(path: str) -> list[str]:
    """The video files of a folder that has no JPEG files; else the path itself."""
    is_of_videos = os.path.isdir(path) and not frame_files(path)
    return (video_files(path) if is_of_videos else []) or [path]


def find_names(
    given: Path | None, stored: Sequence[str] | None, checkpoint: Path, recipe: Recipe
) -> Sequence[str] | None:
    """The names of the model's classes: those in a file, those stored in the checkpoint, or those
    beside the lists; None, with a warning, where there are none."""
    count = recipe.model.num_classes
    if given:
        if len(names := read_class_names(given)) != count:
            raise ValueError(f"{given} has {len(names)} names, and the model has {count} classes")
        return names
    if stored:
        return stored
    why = (
        f"neither {checkpoint} nor DATA.PATH_TO_DATA_DIR {recipe.data.path_to_data_dir!r} has names"
    )
    try:
        if found := class_names(recipe):
            return found
    except ValueError as error:
        why = str(error)
    print(f"warning: classes are shown by number: {why}; give --classes FILE", file=sys.stderr)
    return None


def best(scores: Tensor, top: int, names: Sequence[str] | None) -> list[dict[str, Any]]:
    """The most probable classes: number, name (None where there is none) and probability."""
    values, numbers = scores.topk(min(top, len(scores)))
    return [
        {"number": number, "name": names[number] if names else None, "probability": value}
        for value, number in zip(values.tolist(), numbers.tolist(), strict=True)
    ]


def format_classes(video: str, classes: Sequence[dict[str, Any]]) -> str:
    """A video's classes, their probabilities in per cent."""
    names = [row["name"] or f"class {row['number']}" for row in classes]
    rows = zip(names, classes, strict=True)
    return "\n".join(
        [video, *(f"  {100 * row['probability']:5.1f} %  {name}" for name, row in rows)]
    )


if __name__ == "__main__":
    sys.exit(main())
