"""Loading weights into a model: read a file, name its tensors, fit them, report."""

from __future__ import annotations

import logging
from pathlib import Path

from torch import nn

from slowfast_patches.models.tsm import ShiftedConv3d
from slowfast_patches.models.weights.files import read_weights
from slowfast_patches.models.weights.fit import fit_weights, flat_convolutions
from slowfast_patches.models.weights.names import TORCHVISION, TSM, Named, host_names

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
    advice = f"change {section}.CHECKPOINT_FILE_PATH"
    try:
        named = host_names(weights.tensors, kind)
    except ValueError as error:
        raise ValueError(f"{path} cannot start this model: it is {error}; {advice}") from error
    wanted = model.state_dict()
    flat = flat_convolutions(named.tensors, wanted)
    if flat and not inflate:
        remedy = (
            "" if complete else "set TRAIN.CHECKPOINT_INFLATE True to repeat it along time, or "
        )
        raise ValueError(
            f"{path} is an image model's: the kernel of {flat[0]} has no time; {remedy}{advice}"
        )
    fit = fit_weights(named.tensors, wanted)
    elsewhere = _other_layout(model, named)
    wrong = [*fit.differences(), *elsewhere]
    if not fit.loaded:
        raise ValueError(
            f"{path}: none of its tensors ({', '.join(fit.unused[:3])}, ...) fits this model "
            f"({', '.join([*fit.misfit.values(), *fit.missing][:3])}, ...); {advice}, or MODEL and "
            "RESNET to what it was made with"
        )
    if complete and wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise ValueError(
            f"{path} is not of this model: {wrong[0]}{more}; give the recipe that it was trained "
            f"with, or {advice}"
        )
    fit.unused += weights.others
    model.load_state_dict(fit.values, strict=False)
    if inflate and not flat:
        logger.warning(
            "TRAIN.CHECKPOINT_INFLATE True has no effect: %s has no 2-D convolutions that fit; "
            "leave it out",
            path,
        )
    origin = "; ".join([weights.origin, *named.notes])
    logger.info("%s (%s): %s", path, origin, "\n  ".join([fit.report(), *elsewhere]))


def _other_layout(model: nn.Module, named: Named) -> list[str]:
    """Says where the file's model has its shifts and strides, which are no tensors, if the model
    has them elsewhere."""
    found, modules = list[str](), dict(model.named_modules())
    here = {name for name, m in modules.items() if isinstance(m, ShiftedConv3d)}
    if named.shifted is not None and named.shifted != here:
        found.append(
            f"the file's model shifts channels in {len(named.shifted)} blocks, this one in "
            f"{len(here)} (MODEL.ARCH tsm: in every block; with TSM.SHIFT_DIV 0: in none)"
        )
    first = (m for name, m in modules.items() if name.endswith("pathway0_res0.branch2.a"))
    strided = any(isinstance(m, nn.Conv3d) and m.stride[1] > 1 for m in first)
    if strided and {TORCHVISION, TSM} & {*named.notes}:
        found.append(
            "RESNET.STRIDE_1X1 True: torchvision's ResNets have their strides in the 3×3 instead"
        )
    return found
