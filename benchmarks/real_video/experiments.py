r"""Run the trainings for the curves and tables of README.md with multigrid-compare.

    python benchmarks/real_video/experiments.py words digits --words data/words --seeds 0 1 2
    python benchmarks/real_video/experiments.py all --words data/words --digits data/digits \
        --faces data/faces --demo data/demo

Reports and runs are written to runs/real_video/NAME. To continue an interrupted experiment, repeat
the command. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from slowfast_patches.train.checkpoint import checkpoint_of

RECIPES = Path(__file__).parent / "recipes"
DEMO = Path("configs/Demo")
CURVE = (0.0625, 0.125, 0.25, 0.5, 1.0)
PREPARED = ("original", "crf23", "crf18", "crf12")
"""Forms of the words' clips: as they are, and as multigrid-prepare writes them with --crf."""
NAMED = (0.25, 1.0, 4.0)
"""Lengths at which the named cycles GENTLE and PAPER are compared."""


@dataclass(frozen=True)
class ExperimentSpec:
    """Recipes to compare on one data set.

    Attributes:
        data: Name of the data set.
        recipes: Recipes to compare. The first one is the baseline.
        lengths: Lengths to train, as multiples of each recipe's length.
        most_seeds: Maximum number of seeds. Further seeds of the command line are ignored.
        start: Recipe that is trained on the words data set first. All runs start from its weights.
            None means random weights.
        names_data: Whether the recipes name their folders of data, relative to the current folder.
    """

    data: str
    recipes: tuple[Path, ...]
    lengths: tuple[float, ...]
    most_seeds: int = 1
    start: Path | None = None
    names_data: bool = False


def recipes(*names: str) -> tuple[Path, ...]:
    return tuple(RECIPES / f"{name}.yaml" for name in names)


def variants(folder: str) -> tuple[Path, ...]:
    return tuple(sorted((RECIPES / folder).glob("*.yaml")))


WORDS = recipes("SLOWFAST_WORDS", "SLOWFAST_WORDS_MULTIGRID")
DIGITS = recipes("SLOWFAST_DIGITS", "SLOWFAST_DIGITS_MULTIGRID")
WORDS_RIVALS = (
    *variants("rivals"),
    *recipes("words_ablation/all_pixels", "cycles/WORDS_PAPER"),
)
DIGITS_RIVALS = (*variants("rivals/digits"), *recipes("cycles/DIGITS_PAPER"))
FACES = recipes("SLOWFAST_FACES", "SLOWFAST_FACES_MULTIGRID")
TRANSFORMER = recipes("VIDEOMAE_WORDS", "VIDEOMAE_WORDS_MULTIGRID")
(START,) = recipes("SLOWFAST_WORDS_START")
DEMO_PAIR = (DEMO / "SLOWFAST_DEMO.yaml", DEMO / "SLOWFAST_DEMO_MULTIGRID.yaml")
EXPERIMENTS = {
    "words": ExperimentSpec("words", WORDS, (*CURVE, 2.0, 4.0), most_seeds=3),
    "words_controls": ExperimentSpec(
        "words", (*WORDS[:1], *variants("words_controls")), (0.5, 1.0)
    ),
    "words_rivals": ExperimentSpec("words", (*WORDS, *WORDS_RIVALS), (0.5, 1.0), 3),
    "digits_rivals": ExperimentSpec("digits", (*DIGITS, *DIGITS_RIVALS), (0.5, 1.0), 3),
    "words_prepared": ExperimentSpec(
        "words",
        recipes(*(f"words_prepared/{name}" for name in PREPARED)),
        (0.5,),
        8,
        names_data=True,
    ),
    "words_ablation": ExperimentSpec("words", (*WORDS, *variants("words_ablation")), (0.5,)),
    "digits": ExperimentSpec("digits", DIGITS, CURVE, most_seeds=3),
    "cycles_words": ExperimentSpec("words", (WORDS[1], *recipes("cycles/WORDS_PAPER")), NAMED),
    "cycles_digits": ExperimentSpec("digits", (DIGITS[1], *recipes("cycles/DIGITS_PAPER")), NAMED),
    "cycles_demo": ExperimentSpec("demo", (*recipes("cycles/DEMO_GENTLE"), DEMO_PAIR[1]), NAMED),
    "carry_over": ExperimentSpec("words", variants("carry_over"), (1.0,)),
    "faces": ExperimentSpec("faces", (*FACES, *variants("faces_ablation")), (0.5,), 3, START),
    "faces_curve": ExperimentSpec("faces", FACES, (0.25, 0.5, 1.0, 2.0), 3, START),
    "faces_controls": ExperimentSpec(
        "faces", (*FACES[:1], *variants("faces_controls")), (0.5, 1.5), start=START
    ),
    "demo_ablation": ExperimentSpec("demo", (*DEMO_PAIR, *variants("demo_ablation")), (0.5,)),
}
if TRANSFORMER[0].is_file():  # else the extra has been deleted
    EXPERIMENTS["transformer"] = ExperimentSpec("words", TRANSFORMER, (0.125, 0.25, 0.5))


def command(name: str, args: argparse.Namespace, *more: object) -> list[str]:
    """Return the multigrid-compare command line of an experiment.

    Args:
        name: Name of the experiment.
        args: Parsed command line.
        more: Additional config keys and values, alternating.
    """
    experiment = EXPERIMENTS[name]
    options: list[object] = [word for recipe in experiment.recipes for word in ("--cfg", recipe)]
    options += ["--lengths", *experiment.lengths, "--seeds", *args.seeds[: experiment.most_seeds]]
    options += ["--output", args.output / name]
    if args.step_times:
        options += ["--step-times", args.step_times]
    data = ["DATA.PATH_TO_DATA_DIR", getattr(args, experiment.data).resolve()]
    pairs = [*([] if experiment.names_data else data), *more, *args.overrides]
    return ["multigrid-compare", *map(str, [*options, *pairs])]


def run(name: str, args: argparse.Namespace) -> None:
    """Run an experiment. If it has a `start` recipe, train its weights first.

    Raises:
        CalledProcessError: A training or the comparison failed.
    """
    more = list[object]()
    if recipe := EXPERIMENTS[name].start:
        pairs = ["DATA.PATH_TO_DATA_DIR", args.words.resolve()]
        pairs += ["OUTPUT_DIR", args.output / recipe.stem, *args.overrides]
        # If the weights have already been trained, this only tests them.
        words = ["multigrid-train", "--cfg", recipe, *pairs]
        subprocess.run(list(map(str, words)), check=True)
        more = ["TRAIN.CHECKPOINT_FILE_PATH", checkpoint_of(args.output / recipe.stem)]
    subprocess.run(command(name, args, *more), check=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=[*EXPERIMENTS, "all"], metavar="NAME")
    for data in ("words", "digits", "faces", "demo"):
        parser.add_argument(
            f"--{data}", type=Path, metavar="DIR", help=f"folder with the lists of the {data} data"
        )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="SEED")
    parser.add_argument("--output", type=Path, default=Path("runs/real_video"), metavar="DIR")
    text = "output of benchmarks/step_time.py, from which the times in the curves are computed"
    parser.add_argument("--step-times", type=Path, metavar="FILE", help=text)
    parser.add_argument("--set", dest="overrides", nargs="+", default=[], metavar="KEY VALUE")
    args = parser.parse_args()
    names = list(EXPERIMENTS) if "all" in args.names else args.names
    for name in names:
        needed = [EXPERIMENTS[name].data, *(["words"] if EXPERIMENTS[name].start else [])]
        for data in needed:
            if getattr(args, data) is None:
                parser.error(f"the experiment {name} requires --{data} DIR")
    try:
        for name in names:
            run(name, args)
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
