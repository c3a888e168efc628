"""Facts about the lists, videos and weights of a run, to be stored and compared (`Identity`)."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import nn

from multigrid import Schedule
from slowfast_patches.config.recipe import KEYS, Recipe
from slowfast_patches.datasets.lists.dataset_lists import dataset_of, list_digest, list_path
from slowfast_patches.datasets.loader import build_dataset
from slowfast_patches.datasets.protocol import VideoDataset
from slowfast_patches.models.build_model import build_on_meta
from slowfast_patches.models.layers.dropout import ClipDropout
from slowfast_patches.models.weights.weight_files import local_file
from slowfast_patches.seams import BATCH_TRANSFORMS, SECTIONS

Fact = Mapping[str, Any]
"""Description of a list, of the videos, of the weights or of the schedule. Only numbers, texts and
lists, so that it can be stored as JSON and in a checkpoint."""
_POINTS = 4
"""Number of iterations of each phase whose learning rates are compared."""


def splits_of(recipe: Recipe) -> list[str]:
    """Return the splits that a run reads."""
    return ["train", "val"] * recipe.train.enable + ["test"] * recipe.test.enable


def reading_key(recipe: Recipe, split: str, clips: bool) -> object:
    """Return the values of all keys that may change which videos are read."""
    sections = ("DATA.", *(f"{name}." for name in SECTIONS))
    names = ("TRAIN.DATASET", "TEST.DATASET", "MODEL.NUM_CLASSES", "IMPORTS")
    named = [name for name in KEYS if name.startswith(sections) or name in names]
    return split, clips, repr([recipe[name] for name in named])


def facts_of_split(
    recipe: Recipe, split: str, dataset: VideoDataset | None, clips: bool
) -> dict[str, Any]:
    """Return the facts and the remarks about the list and the videos of a split."""
    path = list_path(recipe, split)
    spec = dataset_of(recipe, split)
    if dataset is None and spec.has_lists and not path.is_file():
        return {"facts": {}, "remarks": {}}
    from slowfast_patches.datasets.lists.dataset_lists import read_list

    if dataset is None and clips:
        dataset = build_dataset(recipe, split)
    videos = read_list(recipe, split) if dataset is None else dataset.videos
    facts: dict[str, Fact] = {f"{split}_list": list_fact(recipe, videos, split)}
    remarks = dict[str, Any]()
    index = getattr(dataset, "index", None)
    if clips and index is not None:
        facts[f"{split}_clips"] = {
            "readable": len(index) - len(index.unreadable),
            "content": index.content,
        }
        remarks[f"{split}_times"] = index.times
    return {"facts": facts, "remarks": remarks}


def list_fact(recipe: Recipe, videos: Sequence[Any], split: str) -> Fact:
    """Describe a list: the number of videos, their labels in order, and their names."""
    labels = hashlib.sha256()
    for video in videos:
        labels.update(f"{getattr(video, 'annotation', None)}\n".encode(errors="surrogateescape"))
    fact = {
        "videos": len(videos),
        "labels": labels.hexdigest()[:16],
        "names": list_digest(recipe, videos, split)[:16],
    }
    files = dataset_of(recipe, split).files
    for path in files(recipe, split) if files else ():
        fact[path.name] = file_digest(path) if path.is_file() else "missing"
    return fact


def schedule_facts(schedule: Schedule) -> dict[str, Fact]:
    """Describe the shapes and BN groups of all phases, and their learning rates."""
    phases = [
        f"iterations {phase.start} to {phase.stop}: {', '.join(map(str, phase.shapes))}, BN groups "
        f"of {', '.join(map(str, phase.bn_group_sizes))}"
        for phase in schedule.phases
    ]
    rates = [f"{schedule.at(i).lr:.7g} in iteration {i}" for i in sorted(set(_looked_at(schedule)))]
    return {"schedule": {"phases": phases}, "rates": {"rates": rates}}


def _looked_at(schedule: Schedule) -> Iterator[int]:
    """Yield the first and the last iteration of each phase, and some between them."""
    for phase in schedule.phases:
        yield from (phase.start + (phase.iterations - 1) * n // _POINTS for n in range(_POINTS + 1))


def division_of(recipe: Recipe) -> Fact | None:
    """Return how a mini-batch is divided, or None if the division does not change the result.

    The division matters if BN statistics, changes of mini-batches, or the random numbers of dropout
    are computed for a process or for a micro-batch.
    """
    matters = recipe.model.has_batchnorm and not recipe.groups_batchnorm
    matters |= any(recipe[t.switch] and t.is_divided(recipe) for t in BATCH_TRANSFORMS)
    if not recipe.model.spec.is_resnet:
        matters |= _draws_together(build_on_meta(recipe))
    if not matters:
        return None
    return {"processes": recipe.world_size, "micro-batches": recipe.solver.accumulation_steps}


def _draws_together(model: nn.Module) -> bool:
    """Return whether a model draws random numbers for all clips of a micro-batch together."""
    own = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
    for module in model.modules():
        if isinstance(module, ClipDropout):
            continue
        rate = module.p if isinstance(module, own) else getattr(module, "drop_prob", 0)
        if rate:
            return True
    config: Any = getattr(model, "config", None)
    values = config.to_dict() if hasattr(config, "to_dict") else {}
    return any("drop" in name and isinstance(v, float) and v > 0 for name, v in values.items())


def weights_fact(recipe: Recipe) -> Fact | None:
    """Return a digest of the weights that a run starts from or tests. None if it is unknown.

    A run from random weights has an empty fact.
    """
    given = recipe.train.checkpoint_file_path
    if not recipe.train.enable:
        given = recipe.test.checkpoint_file_path or given
    fact = dict[str, Any]()
    if given:
        if given.startswith("https://"):
            return None
        path = local_file(given)
        if not path.is_file():
            return None
        fact = {"file": path.name, "content": file_digest(path)}
    named = recipe.model.spec.weight_files
    for path in (named and named(recipe)) or ():
        fact[path.name] = file_digest(path)
    return fact


def code_digest(name: str) -> str:
    """Return the hash of the source of a module, or of all modules of a package."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or not os.path.isfile(spec.origin):
        return "unknown"
    origin = Path(spec.origin)
    files = sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]
    whole = hashlib.sha256()
    for path in files:
        whole.update(file_digest(path).encode())
    return whole.hexdigest()[:16]


def file_digest(path: Path) -> str:
    """Return the first 16 digits of the SHA-256 hash of a file."""
    status = path.stat()
    return _file_digest(str(path.resolve()), status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _file_digest(path: str, size: int, modified: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
