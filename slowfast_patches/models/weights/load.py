"""Loading weights into a model: read a file, name its tensors, fit them, report."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from slowfast_patches.models.tsm import ShiftedConv3d
from slowfast_patches.models.weights.files import read_weights
from slowfast_patches.models.weights.fit import Fit, fit_weights, flat_convolutions
from slowfast_patches.models.weights.names import TORCHVISION, TSM, Named, host_names
from slowfast_patches.models.weights.report import format_fit

__all__ = ["load_weights"]

logger = logging.getLogger(__name__)


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
        path: the file.
        kind: "pytorch" or "caffe2", as CHECKPOINT_TYPE has it.
        inflate: repeat 2-D convolutions along time, as TRAIN.CHECKPOINT_INFLATE asks for.
        complete: the file and the model must have the very same tensors, as for testing, and shift
            in the same blocks, where the file's names tell.
        section: TRAIN or TEST, whose keys the errors name.

    Raises:
        ValueError: the file cannot be read; nothing in it fits; it is an image model's and
            `inflate` is False; or `complete`, and something lacks or is left.
    """
    weights = read_weights(path, kind, section=section)
    try:
        named = host_names(weights.tensors, kind)
    except ValueError as error:
        raise ValueError(
            f"{path} cannot start this model: it is {error}; change {section}.CHECKPOINT_FILE_PATH"
        ) from error
    given, wanted = named.tensors, model.state_dict()
    flat = flat_convolutions(given, wanted)
    if flat and not inflate:
        raise ValueError(_image_message(path, flat[0], complete, section))
    fit = fit_weights(given, wanted)
    differences = [*_other_shifts(model, named), *_other_strides(model, named)]
    _check(fit, differences, path, complete, section)
    fit.unused += weights.others
    model.load_state_dict(fit.values, strict=False)
    if inflate and not flat:
        logger.warning(
            "TRAIN.CHECKPOINT_INFLATE True has no effect: %s has no 2-D convolutions that fit; "
            "leave it out",
            path,
        )
    report, origin = [format_fit(fit), *differences], (weights.origin, *named.notes)
    logger.info("%s (%s): %s", path, "; ".join(origin), "\n  ".join(report))


def _check(
    fit: Fit, differences: Sequence[str], path: str | Path, complete: bool, section: str
) -> None:
    """Raise ValueError where nothing was loaded, or less than everything though it must be."""
    if not fit.loaded:
        raise ValueError(
            f"{path}: none of its tensors ({', '.join(fit.unused[:3])}, ...) fits this model "
            f"({', '.join([*fit.misfit.values(), *fit.missing][:3])}, ...); change "
            f"{section}.CHECKPOINT_FILE_PATH, or MODEL and RESNET to what it was made with"
        )
    wrong = [f"lacks {name}" for name in fit.missing]
    wrong += [f"has only {part} of {name}" for name, part in fit.partly.items()]
    wrong += list(fit.misfit.values()) + [f"has {name} beside them" for name in fit.unused]
    wrong += differences
    if complete and wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise ValueError(
            f"{path} is not of this model: {wrong[0]}{more}; give the recipe that it was trained "
            f"with, or change {section}.CHECKPOINT_FILE_PATH"
        )


def _other_shifts(model: nn.Module, named: Named) -> list[str]:
    """Says where a TSM's file has shifts, which are no tensors, if the model has them elsewhere."""
    here = {name for name, m in model.named_modules() if isinstance(m, ShiftedConv3d)}
    if named.shifted is None or named.shifted == here:
        return []
    return [
        f"the file's model shifts channels in {len(named.shifted)} blocks, this one in {len(here)} "
        "(MODEL.ARCH tsm: in every block; with TSM.SHIFT_DIV 0: in none)"
    ]


def _other_strides(model: nn.Module, named: Named) -> list[str]:
    """Says where torchvision's ResNets have their strides, if the model has them elsewhere."""
    first = (m for name, m in model.named_modules() if name.endswith("pathway0_res0.branch2.a"))
    strided = any(isinstance(m, nn.Conv3d) and m.stride[1] > 1 for m in first)
    if not strided or not {TORCHVISION, TSM} & {*named.notes}:
        return []
    return ["RESNET.STRIDE_1X1 True: torchvision's ResNets have their strides in the 3×3 instead"]


def _image_message(path: str | Path, name: str, complete: bool, section: str) -> str:
    message = f"{path} is an image model's: the kernel of {name} has no time; "
    if complete:
        return message + f"change {section}.CHECKPOINT_FILE_PATH to a trained video model"
    return message + (
        "set TRAIN.CHECKPOINT_INFLATE True to repeat it along time, or change "
        f"{section}.CHECKPOINT_FILE_PATH"
    )
