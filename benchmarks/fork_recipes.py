"""Print a table of the recipes of a PySlowFast checkout that train with multigrid.

    python benchmarks/fork_recipes.py SlowFast/configs [--list] [KEY VALUE ...]

Both cycles are switched on in each recipe. A recipe trains if `enable` accepts its keys, if they
describe a schedule, and if its processes can divide the mini-batches. No model is built and nothing
is trained. If a later release of PySlowFast is installed, its defaults and checks are used, too.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from slowfast.config.defaults import get_cfg

from multigrid.batchnorm import check_processes
from multigrid.errors import MultigridError
from multigrid.integrations.pyslowfast import add_multigrid_config
from multigrid.integrations.pyslowfast_checks import refused_keys
from multigrid.integrations.pyslowfast_schedule import schedule_of
from slowfast_patches.utils.command_line import tool
from slowfast_patches.utils.tables import format_table

VIDEOS = {"kinetics": 240_000, "ssv2": 168_913, "charades": 7_985, "ava": 184_000}
"""About the number of training clips in an epoch of each data set. It has no influence on which
recipes train, unless a phase would have no iteration."""


class RecipeResult(NamedTuple):
    """Whether a recipe trains with multigrid, and why not.

    Attributes:
        name: Path of the recipe in the folder.
        group: "trains", or in short why it does not.
        detail: The schedule, or the error.
    """

    name: str
    group: str
    detail: str


def load(path: Path, pairs: list[str]) -> Any:
    """Load a recipe over the defaults of the installed PySlowFast, with both cycles on."""
    cfg = get_cfg()
    if "MVIT" in cfg:  # a later release, which knows all keys
        cfg.merge_from_file(str(path))
    else:
        _merge(cfg, yaml.safe_load(path.read_text()))
    add_multigrid_config(cfg)
    cfg.merge_from_list(pairs)
    cfg.MULTIGRID.LONG_CYCLE = cfg.MULTIGRID.SHORT_CYCLE = True
    return cfg


def _merge(node: Any, values: dict[str, Any]) -> None:
    """Merge values into a config, with new keys and any type. Decode texts as yacs does."""
    for key, value in values.items():
        if isinstance(value, dict):
            _merge(node.setdefault(key, type(node)()), value)
        else:
            node[key] = type(node)._decode_cfg_value(value)


def load_fork_recipe(path: Path, name: str, pairs: list[str]) -> RecipeResult:
    """Return whether a recipe trains with multigrid, and why not."""
    try:
        cfg = load(path, pairs)
        if not cfg.TRAIN.ENABLE:
            return RecipeResult(name, "only tests: TRAIN.ENABLE False", "")
        for reason, keys in refused_keys(cfg).items():
            return RecipeResult(name, f"refused: {' '.join(keys.split(',')[0].split())}", reason)
        if cfg.TRAIN.BATCH_SIZE % cfg.NUM_GPUS:
            return RecipeResult(name, "PySlowFast: TRAIN.BATCH_SIZE is no multiple of NUM_GPUS", "")
        schedule = schedule_of(cfg, VIDEOS.get(cfg.TRAIN.DATASET, VIDEOS["kinetics"]))
        check_processes(schedule, cfg.NUM_GPUS * cfg.NUM_SHARDS)
    except MultigridError as error:
        return RecipeResult(name, "refused: the schedule", str(error))
    except (AssertionError, KeyError, ValueError, yaml.YAMLError) as error:
        return RecipeResult(
            name, "PySlowFast: cannot be loaded", f"{type(error).__name__}: {error}"
        )
    shapes = ", ".join(str(shape) for shape in schedule.shapes)
    return RecipeResult(name, "trains", f"{schedule.iterations:,} iterations of {shapes}")


def judge_all(folder: Path, pairs: list[str]) -> Iterator[RecipeResult]:
    """Return the results of all recipes of a folder, in alphabetical order."""
    for path in sorted(folder.rglob("*.yaml")):
        yield load_fork_recipe(path, str(path.relative_to(folder)), pairs)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder configs/ of a PySlowFast checkout")
    parser.add_argument("--list", action="store_true", help="print a line for each recipe")
    parser.add_argument("pairs", nargs="*", metavar="KEY VALUE", help="keys to set in all recipes")
    args = parser.parse_intermixed_args(arguments)
    outcomes = list(judge_all(args.folder, args.pairs))
    counts = Counter(outcome.group for outcome in outcomes)
    rows = [[group, str(count)] for group, count in counts.most_common()]
    print(format_table(["", "recipes"], [*rows, ["all", str(len(outcomes))]]))
    if args.list:
        print(format_table(["recipe", "", ""], outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(tool(main)())
