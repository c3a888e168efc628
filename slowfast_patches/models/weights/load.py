"""Loading weights into a model: read a file, name its tensors, fit them, report."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from slowfast_patches.models.tsm import ShiftedConv3d
from slowfast_patches.models.weights.files import check_kind, local_file, read_weights
from slowfast_patches.models.weights.fit import Fit, fit_weights, not_finite
from slowfast_patches.models.weights.names import host_names

__all__ = ["check_file", "load_weights"]

logger = logging.getLogger(__name__)


def check_file(path: str | Path, kind: str = "pytorch", *, section: str = "TRAIN") -> None:
    """Look whether a file can be a checkpoint of a kind, without reading it, but fetching it where
    it is an address; the arguments and errors are those of `load_weights`."""
    with _naming_the_key(section):
        check_kind(local_file(path), kind)


def load_weights(
    model: nn.Module,
    path: str | Path,
    *,
    kind: str = "pytorch",
    inflate: bool = False,
    complete: bool = False,
    section: str = "TRAIN",
) -> None:
    """Start a model from a file, of which nothing is executed; logs what was loaded, and not.

    Our checkpoints, those of the later releases and of the TSM authors, plain state dicts, ResNets
    in torchvision's names and Caffe2 files are read. A head of other classes keeps its initial
    values.

    Args:
        model: one of the host's, with or without grouped batch normalisation.
        path: the file, or an https address to fetch it from, once.
        kind: "pytorch" or "caffe2", as CHECKPOINT_TYPE has it.
        inflate: repeat 2-D convolutions along time, as TRAIN.CHECKPOINT_INFLATE asks for.
        complete: the file and the model must have the very same tensors, as for testing, and shift
            in the same blocks, where the file's names tell.
        section: TRAIN or TEST, whose keys the errors name.

    Raises:
        ValueError: the file cannot be read; nothing in it fits; it is an image model's and
            `inflate` is False; it lacks a parameter that takes no gradient (TRAIN.FREEZE); a
            value is not finite; or `complete`, and something lacks or is left.
    """
    with _naming_the_key(section):
        named = host_names(read_weights(local_file(path), kind), kind)
        fit = fit_weights(named.tensors, model.state_dict())
        shifts = _other_shifts(model, named.shifted)
        problem = _problem(fit, shifts, inflate, complete) or _frozen_problem(fit, model)
        if problem := problem or not_finite(fit.values.items()):
            raise ValueError(f"{path} {problem}")
    model.load_state_dict(fit.values, strict=False)
    if inflate and not fit.flat:
        logger.warning(
            "TRAIN.CHECKPOINT_INFLATE True has no effect: %s has no 2-D convolutions that fit; "
            "leave it out",
            path,
        )
    logger.info("%s: %s", path, "\n  ".join([fit.report(), *shifts]))


@contextmanager
def _naming_the_key(section: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error}; change {section}.CHECKPOINT_FILE_PATH") from error


def _problem(fit: Fit, shifts: list[str], inflate: bool, complete: bool) -> str | None:
    """Why a file's weights are not taken."""
    if fit.flat and not inflate:
        remedy = "" if complete else "; set TRAIN.CHECKPOINT_INFLATE True to repeat it along time"
        return f"is an image model's: the kernel of {fit.flat[0]} has no time{remedy}"
    wrong = [*fit.differences(), *shifts]
    if not fit.loaded:
        return f"is of another model, none of its tensors fits: {', '.join(wrong[:3])}, ..."
    if complete and wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return f"is not of this model: {wrong[0]}{more}; give the recipe that it was trained with"
    return None


def _frozen_problem(fit: Fit, model: nn.Module) -> str | None:
    """Why weights are not taken as those that a frozen part keeps."""
    left = fit.partly | fit.kept
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad and name in left]
    if not frozen:
        return None
    more = f" and {len(frozen) - 1} more" if len(frozen) > 1 else ""
    return (
        f"does not have all that TRAIN.FREEZE keeps: {frozen[0]} ({left[frozen[0]]}){more} would "
        "stay random; freeze less"
    )


def _other_shifts(model: nn.Module, shifted: frozenset[str] | None) -> list[str]:
    """Where the file's model shifts channels, if this model does it elsewhere: a shift has no
    tensors."""
    here = {name for name, m in model.named_modules() if isinstance(m, ShiftedConv3d)}
    if shifted is None or shifted == here:
        return []
    return [
        f"the file's model shifts channels in {len(shifted)} blocks, this one in "
        f"{len(here)} (MODEL.ARCH tsm: in every block; with TSM.SHIFT_DIV 0: in none)"
    ]
