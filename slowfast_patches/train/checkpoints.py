"""Checkpoints: whole or not there, read without executing anything, and never mixed up."""

from __future__ import annotations

import errno
import itertools
import json
import logging
import math
import os
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch import Tensor

from multigrid import batch_rate_factor
from slowfast_patches.config.keys import may_differ
from slowfast_patches.config.recipe import Recipe, keys_of, stored_keys
from slowfast_patches.launch.placement import is_restart
from slowfast_patches.launch.stopping import TrainingStoppedError
from slowfast_patches.utils.files import check_archive, written_whole

__all__ = [
    "Found",
    "Writer",
    "all_checkpoints",
    "best_checkpoint",
    "check_same_list",
    "check_same_recipe",
    "checkpoint_of",
    "continues",
    "describe_last",
    "find_resumable",
    "last_checkpoint",
    "load",
    "prune",
    "save",
    "set_aside",
    "snapshot",
    "start_over",
    "writes",
]

logger = logging.getLogger(__name__)

Content = Mapping[str, Any]

_FOLDER, _BEST = "checkpoints", "checkpoint_best.pyth"
_NOTE = "started_over.json"
"""For which job the run started over."""
_JOBS = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
"""What names a job: the same in all its attempts."""
_ELSE = "Use another OUTPUT_DIR, or TRAIN.AUTO_RESUME False to start over"


# Which are there.


def all_checkpoints(output_dir: str | Path) -> list[Path]:
    """The checkpoints of a run, the newest last."""
    return sorted(Path(output_dir, _FOLDER).glob(f"checkpoint_iter_{'[0-9]' * 8}.pyth"))


def _iteration(path: Path) -> int:
    """The iterations that were done when a checkpoint was written, by its name."""
    return int(path.stem.rpartition("_")[2])


def last_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest checkpoint of a run, if it has one."""
    return next(reversed(all_checkpoints(output_dir)), None)


def best_checkpoint(output_dir: str | Path) -> Path | None:
    """The checkpoint that TRAIN.KEEP_BEST keeps, weights alone, if a run has one."""
    path = Path(output_dir, _FOLDER, _BEST)
    return path if path.is_file() else None


def checkpoint_of(path: str | Path) -> Path:
    """What a user means by `path`: a checkpoint itself, or, of a run's folder, the best one if it
    was kept, else the last; ValueError where there is none."""
    if not Path(path).exists():
        raise ValueError(f"there is no checkpoint {path}; give a file, or a run's OUTPUT_DIR")
    if not Path(path).is_dir():
        return Path(path)
    found = best_checkpoint(path) or last_checkpoint(path)
    if found is None:
        raise ValueError(f"{path} is a folder without checkpoints; give a run's OUTPUT_DIR")
    return found


def describe_last(output_dir: str | Path) -> str:
    """Where a run that stops can go on from, in words."""
    path = last_checkpoint(output_dir)
    if path is None:
        return "there is no checkpoint yet"
    return f"the last checkpoint is {path}, after iteration {_iteration(path)}"


def prune(output_dir: str | Path, kept: int, milestones: Collection[int]) -> None:
    """Delete all checkpoints but the last `kept` (0: all) and those after the iterations
    `milestones`."""
    for path in all_checkpoints(output_dir)[:-kept] if kept else ():
        if _iteration(path) not in milestones:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # no reason to end a training
                logger.warning("%s cannot be deleted: %s", path, error)


def set_aside(output_dir: str | Path) -> Path | None:
    """Rename the folder of an earlier run's checkpoints, so that they never mix with a new run's;
    the new name, or None where there was nothing to rename."""
    folder = Path(output_dir, _FOLDER)
    if last_checkpoint(output_dir) is None and best_checkpoint(output_dir) is None:
        return None
    names = (folder.with_name(f"{_FOLDER}_before_{n}") for n in itertools.count(1))
    return folder.rename(next(name for name in names if not name.exists()))


# Reading and writing.


def load(path: str | Path) -> dict[str, Any]:
    """What is in a checkpoint, on the CPU; nothing in it is executed. ValueError: not a checkpoint,
    or a damaged one; OSError: it cannot be read."""
    check_archive(Path(path))
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # of a seek, in a torn file
            raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(
            f"{path} cannot be read as a PyTorch checkpoint: it is none, or damaged ({reason:.200})"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a checkpoint")
    return content


def save(output_dir: str | Path, iteration: int, content: Content) -> Path:
    """Write the checkpoint after `iteration` iterations, whole or, with an OSError, not at all."""
    return _save(Path(output_dir, _FOLDER, f"checkpoint_iter_{iteration:08d}.pyth"), content)


def _save(path: Path, content: Content) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        try:
            torch.save(dict(content), file)
        except RuntimeError as error:  # torch's, about what the file has refused
            raise error.__context__ or error from None
    return path


@contextmanager
def writes(what: str, output_dir: str | Path, when: str = "") -> Iterator[None]:
    """The body writes one of a run's files; TrainingStoppedError where it cannot."""
    try:
        yield
    except OSError as error:
        raise TrainingStoppedError(
            f"{what} cannot be written{when}: {error.strerror or error}; "
            f"{describe_last(output_dir)}. Make room in {output_dir}, or make it writable, "
            "and give the same command again"
        ) from error


class Writer:
    """Writes checkpoints in a thread, one at a time; the training is held up while the state is
    copied, not while the copy is written. `kept` and `milestones` are as of `prune`."""

    def __init__(self, output_dir: str | Path, kept: int, milestones: Collection[int]) -> None:
        self._output_dir, self._kept, self._milestones = output_dir, kept, milestones
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    def save(self, iteration: int, state: Content | None, best: Content | None = None) -> None:
        """Begin to write the checkpoint after `iteration` iterations, of `state`, and the best so
        far, of `best`: those that are given, which may change then. Raises as `check`."""
        start = time.perf_counter()
        self.wait()
        state, best = snapshot((state, best))
        copied = time.perf_counter() - start
        self._writing = self._thread.submit(self._write, iteration, state, best, copied)

    def check(self) -> None:
        """Raise what went wrong in the thread, if anything did, as TrainingStoppedError."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Return once nothing is being written; raises as `check`."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write(
        self, iteration: int, state: Content | None, best: Content | None, copied: float
    ) -> None:
        start, paths = time.perf_counter(), list[str]()
        with writes("the checkpoint", self._output_dir, f" after iteration {iteration}"):
            if best is not None:
                path = _save(Path(self._output_dir, _FOLDER, _BEST), best)
                paths.append(f"{path} (the best so far)")
            if state is not None:
                paths.append(str(save(self._output_dir, iteration, state)))
                prune(self._output_dir, self._kept, self._milestones)
        logger.info(
            "checkpoint after iteration %d: %s (held up the training for %.3f s, "
            "written in %.3f s)",
            *(iteration, " and ".join(paths), copied, time.perf_counter() - start),
        )


def snapshot(tree: Any) -> Any:
    """A copy of nested dicts, lists and tuples, with copies of their tensors on the CPU."""
    if isinstance(tree, Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, Mapping):
        return {key: snapshot(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)([snapshot(value) for value in tree])
    return tree


# From which one a run goes on, if from any.


class Found(NamedTuple):
    """The checkpoint that a run continues, and what is in it."""

    path: Path
    content: dict[str, Any]


def continues(recipe: Recipe) -> bool:
    """Whether a run goes on from the checkpoints in OUTPUT_DIR, if there are any: by default, and
    where the job is restarted after it has started over as TRAIN.AUTO_RESUME False asks."""
    if recipe.train.auto_resume:
        return True
    note = Path(recipe.output_dir, _NOTE)
    if not is_restart(os.environ) or not note.exists():
        return False
    noted = json.loads(note.read_text(encoding="utf-8"))
    # torchrun may give each attempt of a SLURM job an id of its own.
    return any(noted.get(name) == value for name, value in _job().items())


def start_over(recipe: Recipe) -> None:
    """Set the checkpoints in OUTPUT_DIR aside, unless the run continues them; a note says for which
    job that was done. For the main process, before anything else."""
    if continues(recipe):
        return
    if kept := set_aside(recipe.output_dir):
        logger.warning("TRAIN.AUTO_RESUME False starts over; earlier checkpoints: %s", kept)
    with written_whole(Path(recipe.output_dir, _NOTE)) as file:
        file.write(json.dumps(_job()).encode())


def _job() -> dict[str, str]:
    return {name: os.environ[name] for name in _JOBS if name in os.environ}


def find_resumable(recipe: Recipe) -> Found | None:
    """The newest checkpoint that is whole, if the run continues; None where it starts anew. Damaged
    ones that are newer are renamed.

    Raises:
        ValueError: all are damaged, or another recipe made them.
        OSError: the disk cannot read one, which may be whole.
    """
    if not continues(recipe):
        return None
    damaged = dict[Path, ValueError]()
    for path in reversed(all_checkpoints(recipe.output_dir)):
        try:
            content = load(path)
        except ValueError as error:
            damaged[path] = error
            continue
        check_same_recipe(content, recipe, path)
        for torn, reason in damaged.items():
            aside = torn.replace(torn.with_name(f"{torn.name}.damaged"))
            logger.warning("%s; renamed to %s, continuing from %s", reason, aside.name, path.name)
        return Found(path, content)
    if damaged:
        newest = next(iter(damaged))
        raise ValueError(
            f"no checkpoint in {newest.parent} can be read, the newest because {damaged[newest]}. "
            + _ELSE
        )
    return None


def check_same_recipe(checkpoint: Content, recipe: Recipe, path: Path) -> None:
    """Raise ValueError if a checkpoint was made by another recipe, naming what differs."""
    if "cfg" not in checkpoint or "iteration" not in checkpoint:
        raise ValueError(
            f"{path} was not written by this trainer and cannot be continued; start from it with "
            "TRAIN.CHECKPOINT_FILE_PATH and another OUTPUT_DIR"
        )
    old = _as_trained(stored_keys(yaml.safe_load(checkpoint["cfg"])))
    new = _as_trained(keys_of(recipe))
    lines = [
        f"  {key}: {old.get(key)} there, {new.get(key)} here"
        for key in sorted(old.keys() | new.keys())
        if not may_differ(key) and not _equal(old.get(key), new.get(key))
    ]
    if lines:
        raise ValueError(
            f"{path} is of another recipe (batch and rates are over all NUM_SHARDS machines; where "
            "they scale with the GPUs, continue on as many as there):\n"
            + "\n".join([*lines, _ELSE])
        )


def check_same_list(found: Found, list_path: Path, num_videos: int, digest: str) -> None:
    """Raise ValueError if a checkpoint was trained on another list than the one that has
    `num_videos` videos and the digest `digest` now; old checkpoints have no digest."""
    there = found.content["num_videos"]
    if there != num_videos or found.content.get("list_digest", digest) != digest:
        raise ValueError(
            f"{found.path} was trained on another list of videos: {there} there, {num_videos} in "
            f"{list_path} now, or other paths, labels or order. Give the same list. {_ELSE}"
        )


def _as_trained(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A config's keys, with the global batch and the learning rates that are trained with in the
    place of those from which they follow."""
    keys, batch = dict(flat), "TRAIN.BATCH_SIZE"
    scaled, rule = ("SOLVER.BASE_LR", "SOLVER.COSINE_END_LR"), keys["SOLVER.BATCH_RATE_RULE"]
    keys[batch] *= (machines := keys.pop("NUM_SHARDS"))
    if keys.pop("SOLVER.BASE_LR_SCALE_NUM_SHARDS"):
        factor = batch_rate_factor(machines, rule)
        keys |= {key: keys[key] * factor for key in (*scaled, "SOLVER.WARMUP_START_LR")}
    if clips := keys.pop("SOLVER.REFERENCE_BATCH_SIZE"):
        factor = batch_rate_factor(keys[batch] / clips, rule)
        keys |= {key: keys[key] * factor for key in scaled}
    return keys


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return bool(one == other)
