"""What a checkpoint holds: capture and restore the state of a training, read and write files.

Checkpoints are written atomically. Reading a checkpoint executes no code from the file.
"""

from __future__ import annotations

import io
import itertools
import logging
import pickle
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils._pytree import tree_map_only

from multigrid import ScheduleStep
from multigrid.micro_batches import float_buffers
from slowfast_patches.models.weights.load_weights import trained_tensors
from slowfast_patches.models.weights.weight_files import SHIPPED, local_file
from slowfast_patches.train.trainer import Progress, Trainer
from slowfast_patches.utils.distributed import World, gather_objects
from slowfast_patches.utils.errors import RunError, UserError, mistake_in, writing
from slowfast_patches.utils.files import atomic_write, check_archive, make_folder

logger = logging.getLogger(__name__)

VERSION = 5
"""Version of the checkpoint format. `load` rejects files of other versions."""
_FOLDER = "checkpoints"
_BEST = "checkpoint_best.pyth"
RESULTS = ("result.json", "result_classes.csv", "result_confusion.png")
"""Files that a finished training leaves in OUTPUT_DIR."""


Metadata = Callable[[ScheduleStep], Mapping[str, Any]]
"""Function from an iteration to the fields of `Checkpoint` that describe the run and its data."""


@dataclass(kw_only=True)
class Checkpoint(Progress):
    """State of a training after an iteration. The file contains a dict of these fields.

    Attributes:
        epoch: Epoch of the last iteration, as a fractional number.
        cfg: The recipe as YAML.
        cfg_at_iteration: The recipe as YAML, with the shape and the learning rate of the last
            iteration.
        model_state: State dict of the model.
        ema_state: State dict of the averaged weights, or None without MODEL.EMA_DECAY.
        optimizer_state: State dict of the optimizer. None in the best checkpoint, from which a run
            cannot resume.
        scaler_state: State dict of the gradient scaler. None in the best checkpoint.
        hooks: States of the hooks, by name.
        running_stats: BN running statistics of each rank, (world size, N), or None if the
            statistics in `model_state` are already averaged over the ranks.
        world_size: Number of processes.
        identity: Result of `Identity.to_json` for the run.
        num_videos: Number of training videos.
        averaged: Whether `model_state` is the average of the weights (MODEL.EMA_DECAY). Only in the
            best checkpoint.
        class_names: Class names, in the order of the class indices, or None.
        version: Version of this format.
    """

    epoch: float
    cfg: str
    cfg_at_iteration: str
    model_state: dict[str, Tensor]
    ema_state: dict[str, Tensor] | None
    optimizer_state: dict[str, Any] | None
    scaler_state: dict[str, Any] | None
    hooks: dict[str, Any]
    running_stats: Tensor | None
    world_size: int
    identity: dict[str, Any]
    num_videos: int
    class_names: tuple[str, ...] | None
    averaged: bool = False
    version: int = VERSION


class DamagedError(UserError):
    """Error raised when a checkpoint file is damaged."""


def diverged(what: str) -> RunError:
    """Return an error that says that the loss, or a tensor of the training state, is not finite."""
    return RunError(
        f"{what}. Lower SOLVER.BASE_LR to resume, or add TRAIN.AUTO_RESUME False to start over."
    )


def all_checkpoints(output_dir: str | Path) -> list[Path]:
    """Return the checkpoints of a run from the oldest to the newest, without the best one."""
    return sorted(Path(output_dir, _FOLDER).glob(f"checkpoint_iter_{'[0-9]' * 8}.pyth"))


def last_checkpoint(output_dir: str | Path) -> Path | None:
    """Return the newest checkpoint of a run, or None if there is no checkpoint."""
    return next(reversed(all_checkpoints(output_dir)), None)


def best_checkpoint(output_dir: str | Path) -> Path | None:
    """Return the checkpoint that TRAIN.KEEP_BEST keeps, or None if it does not exist."""
    path = Path(output_dir, _FOLDER, _BEST)
    return path if path.is_file() else None


def checkpoint_of(path: str | Path) -> Path:
    """Return the file with the weights at a path.

    The path is a checkpoint file, the OUTPUT_DIR of a run, a folder that `multigrid-predict --hub`
    wrote, or the name of weights that ship with the package. For an OUTPUT_DIR, return the best
    checkpoint, or the newest if there is no best checkpoint.

    Raises:
        ValueError: The path does not exist, the folder contains no checkpoint, or its best and its
            newest checkpoint are of different trainings.
    """
    path = local_file(path)
    checkpoint = _newest_best(path) if path.is_dir() else path
    if checkpoint is None or not checkpoint.exists():
        raise UserError(
            f"There is no checkpoint at {path}. Give a checkpoint file, the OUTPUT_DIR of a run "
            f"or one of {', '.join(SHIPPED)}."
        )
    return checkpoint


def _newest_best(folder: Path) -> Path | None:
    """Return the best checkpoint of a run, or else the newest.

    Raises:
        ValueError: The best and the newest checkpoint are of different trainings.
    """
    best, last = best_checkpoint(folder), last_checkpoint(folder)
    if best is None or last is None:
        return best or last
    of_best, of_last = head_of(best), head_of(last)
    if of_best and of_last and of_best.training != of_last.training:
        raise UserError(
            f"{best} and {last} are of different trainings. Give the file that you mean, or remove "
            "the other one."
        )
    return best


def describe_last(output_dir: str | Path) -> str:
    """Return a sentence that names the newest checkpoint of a run."""
    path = last_checkpoint(output_dir)
    return f"The last checkpoint is {path}." if path else "There is no checkpoint yet."


def move_earlier_checkpoints(output_dir: str | Path) -> Path | None:
    """Rename the checkpoint folder, so that a new run does not mix its checkpoints with old ones.

    The results of the earlier run are moved to the same folder.

    Returns:
        The new path of the folder, or None if there were no checkpoints and no results.
    """
    folder = Path(output_dir, _FOLDER)
    results = [path for name in RESULTS if (path := Path(output_dir, name)).is_file()]
    if not results and not any(folder.glob("*.pyth")):
        return None
    folder.mkdir(exist_ok=True)
    for path in results:
        path.replace(folder / path.name)
    names = (folder.with_name(f"{_FOLDER}_before_{n}") for n in itertools.count(1))
    with writing(folder):
        return folder.rename(next(name for name in names if not name.exists()))


def move_best_checkpoint(output_dir: str | Path) -> Path:
    """Rename the best checkpoint, which is not of this training.

    Returns:
        The new path.
    """
    path = Path(output_dir, _FOLDER, _BEST)
    names = (path.with_name(f"{path.stem}_before_{n}.pyth") for n in itertools.count(1))
    return path.rename(next(name for name in names if not name.exists()))


def load(path: Path) -> Checkpoint:
    """Read a checkpoint to the CPU without executing code from the file.

    Raises:
        DamagedError: The file is damaged, or is not a PyTorch file.
        ValueError: The file is not a checkpoint of this version.
        UserError: The file cannot be read from the disk.
    """
    try:
        check_archive(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        with mistake_in(f"{path} cannot be read from the disk"):
            if isinstance(error, OSError):
                raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if isinstance(error, pickle.UnpicklingError):  # torch advises to run code of the file
            reason = "it has no weights, or also objects that are not safe to load"
        raise DamagedError(
            f"{path} cannot be read as a PyTorch checkpoint. The file is damaged or has another "
            f"format ({reason:.200})."
        ) from error
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise UserError(
            f"{path} was not written by this version of the trainer, which cannot resume from the "
            "file. To start a new training from these weights, set TRAIN.CHECKPOINT_FILE_PATH to "
            "the file and choose another OUTPUT_DIR."
        )
    try:
        return Checkpoint(**content)
    except TypeError as error:
        raise DamagedError(f"{path} lacks parts of a checkpoint ({error}).") from error


def head_of(path: Path) -> Checkpoint | None:
    """Return a checkpoint without reading its tensors, which are on the meta device.

    For a file that is not a checkpoint of this version, return None.
    """
    try:
        content = torch.load(path, map_location="meta", mmap=True, weights_only=True)
    except Exception:  # not a file of torch, or damaged: loading the weights explains it
        return None
    is_checkpoint = isinstance(content, dict) and content.get("version") == VERSION
    return Checkpoint(**content) if is_checkpoint else None


def save(
    output_dir: str | Path, checkpoint: Checkpoint, kept: int = 0, milestones: Collection[int] = ()
) -> Path:
    """Write a checkpoint atomically, and delete old checkpoints.

    The file name contains the iteration. A checkpoint without `optimizer_state` is written as the
    best checkpoint.

    Args:
        output_dir: The folder of the run.
        checkpoint: The checkpoint to write.
        kept: Number of newest checkpoints to keep. 0 keeps all checkpoints.
        milestones: Iterations whose checkpoints are never deleted.

    Returns:
        The path of the file.

    Raises:
        OSError: The file cannot be written. An existing file of the same name is unchanged.
    """
    start = time.perf_counter()
    best = checkpoint.optimizer_state is None
    name = _BEST if best else f"checkpoint_iter_{checkpoint.iteration:08d}.pyth"
    path = Path(output_dir, _FOLDER, name)
    make_folder(path.parent)
    with atomic_write(path) as file:
        try:
            torch.save(to_cpu(vars(checkpoint)), file)
        except RuntimeError as error:  # torch hides the OSError of a failed write
            raise error.__context__ or error from None
    for old in all_checkpoints(output_dir)[:-kept] if kept else ():
        if int(old.stem[-8:]) not in milestones:
            old.unlink(missing_ok=True)
    logger.info("Checkpoint written to %s in %.3f s.", path, time.perf_counter() - start)
    return path


def to_cpu(tree: Any) -> Any:
    """Copy nested dicts, lists and tuples, and move the tensors in the copy to the CPU."""
    return tree_map_only(Tensor, lambda tensor: tensor.detach().cpu(), tree)


# The state of a training.


def capture(
    trainer: Trainer, metadata: Metadata, running_stats: Tensor | None = None
) -> Checkpoint:
    """Return the state of a training after its last finished iteration.

    Raises:
        RunError: The training has diverged, or a checkpoint with the state of a hook could not be
            loaded.

    Args:
        trainer: The trainer.
        metadata: Function that returns the fields that describe the run and its data.
        running_stats: Result of `buffers_of_ranks`, if the statistics of the processes differ.
    """
    _check_finite(trainer)
    hooks = trainer.hook_states()
    _check_loadable(hooks)
    return Checkpoint(
        **vars(trainer.progress),
        **trainer.stepper.state_dict(),
        **metadata(trainer.schedule.at(trainer.progress.iteration - 1)),
        hooks=hooks,
        running_stats=running_stats,
        world_size=trainer.world.size,
    )


def _check_finite(trainer: Trainer) -> None:
    """Raise RunError if a parameter, a running statistic or the optimizer is not finite."""
    stepper = trainer.stepper
    tensors = trained_tensors(stepper.models)
    for number, state in enumerate(stepper.optimizer.state.values()):
        values = {name: value for name, value in state.items() if isinstance(value, Tensor)}
        tensors |= {f"{name} of parameter {number}": value for name, value in values.items()}
    names = [name for name, value in tensors.items() if not value.isfinite().all()]
    if names:
        raise diverged(
            f"After iteration {trainer.progress.iteration}, {len(names)} tensors of the training "
            f"state have NaN or infinite values, such as {names[0]}. No checkpoint was written"
        )


def _check_loadable(states: Mapping[str, Any]) -> None:
    """Raise RunError if `checkpoint.load` would refuse the state of a hook."""
    for name, state in states.items():
        file = io.BytesIO()
        try:
            torch.save(state, file)
            file.seek(0)
            torch.load(file, weights_only=True)
        except Exception as error:
            raise RunError(
                f"The state of the hook {name} cannot be stored in a checkpoint. Its state_dict "
                "may return tensors, numbers, texts, lists, tuples and dicts, but no objects of "
                f"other types, such as arrays or NumPy's numbers ({error!s:.200})"
            ) from error


def restore(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Restore the state that `capture` returned. The best checkpoint cannot be restored."""
    trainer.progress = Progress(**{f.name: getattr(checkpoint, f.name) for f in fields(Progress)})
    trainer.clock.load(checkpoint.seconds)
    trainer.stepper.load_state_dict(vars(checkpoint))
    trainer.load_hook_states(checkpoint.hooks)
    set_buffers(trainer.stepper.models, checkpoint.running_stats, trainer.world)


def buffers_of_ranks(model: nn.Module, world: World) -> Tensor | None:
    """Gather the running means and variances of all processes.

    Scheduled validations and checkpoints average the statistics over the processes. A checkpoint at
    another iteration stores the different statistics of all processes.

    Returns:
        (world size, N) on the CPU, or None if there is a single process or no running statistics.
    """
    if world.size == 1 or not _floats(model):
        return None
    return torch.stack(gather_objects(parameters_to_vector(_floats(model)).cpu()))


def set_buffers(model: nn.Module, rows: Tensor | None, world: World) -> None:
    """Restore the running statistics of this rank from the result of `buffers_of_ranks`.

    Do nothing if `rows` is None, or has the statistics of a different number of processes.
    """
    if rows is not None and len(rows) == world.size:
        vector_to_parameters(rows[world.rank].to(world.device), _floats(model))


def _floats(model: nn.Module) -> list[Tensor]:
    return [buffer for module in model.modules() for buffer in float_buffers(module)]
