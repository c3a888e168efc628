"""Loading of weights into a model: read a file, then rename, match and report the tensors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import nn

from slowfast_patches.models.tsm import ShiftedConv3d
from slowfast_patches.models.weights.fit import Fit, fit_weights, not_finite
from slowfast_patches.models.weights.names import host_names
from slowfast_patches.models.weights.weight_files import check_kind, local_file, read_weights
from slowfast_patches.utils.tables import shorten_list

logger = logging.getLogger(__name__)


def check_file(path: str | Path, kind: str = "pytorch", *, section: str = "TRAIN") -> None:
    """Check that a weight file exists and has the right format, without reading the weights.

    If `path` is an https address, the file is downloaded. See `load_weights` for the arguments.

    Raises:
        ValueError: The file does not exist, cannot be downloaded, or has another format.
    """
    with _name_key_in_errors(section):
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
    """Load weights from a file into a model and log which tensors were loaded.

    The file may be a checkpoint of this package, of later PySlowFast releases or of the TSM
    authors, a plain state dict, a ResNet with torchvision's names, or a Caffe2 checkpoint. No code
    in the file is run. If the file has a different number of classes, the head of the model keeps
    its initial values.

    Args:
        model: A PySlowFast model, with or without grouped BN.
        path: The file, or an https address, from which the file is downloaded once.
        kind: Format: "pytorch" or "caffe2", as in CHECKPOINT_TYPE.
        inflate: Repeat 2-D convolutions along time, as in TRAIN.CHECKPOINT_INFLATE.
        complete: Require that the file and the model have the same tensors. Also require that both
            shift channels in the same blocks, if the names in the file show where the file does.
        section: "TRAIN" or "TEST": section of the keys in error messages.

    Raises:
        ValueError: The file cannot be read, no tensor in the file fits the model, or a value is not
            finite. Or the file is an image model and `inflate` is False. Or the file lacks a frozen
            parameter. Or `complete` is True and the file and the model differ.
    """
    with _name_key_in_errors(section):
        named = host_names(read_weights(local_file(path), kind), kind)
        fit = fit_weights(named.tensors, model.state_dict())
        shifts = _shift_differences(model, named.shifted)
        problem = _problem(fit, shifts, inflate, complete) or _frozen_problem(fit, model)
        if problem := problem or not_finite(fit.values.items()):
            raise ValueError(f"{path} {problem}")
    model.load_state_dict(fit.values, strict=False)
    if inflate and not fit.inflated:
        logger.warning(
            "TRAIN.CHECKPOINT_INFLATE True has no effect, because %s has no 2-D convolution that "
            "fits the model. Remove the key.",
            path,
        )
    logger.info("%s: %s", path, "\n  ".join([fit.report(), *shifts]))


@contextmanager
def _name_key_in_errors(section: str) -> Iterator[None]:
    """Append the key that sets the path of the weight file to the message of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(
            f"{error}. To load another file, change {section}.CHECKPOINT_FILE_PATH."
        ) from error


def _problem(fit: Fit, shifts: list[str], inflate: bool, complete: bool) -> str | None:
    """Return why the weights in a file do not fit the model, or None if they fit."""
    if fit.inflated and not inflate:
        remedy = "" if complete else ". Set TRAIN.CHECKPOINT_INFLATE True to repeat 2-D kernels"
        return f"has weights of an image model: the kernel of {fit.inflated[0]} is 2-D{remedy}"
    wrong = [*fit.differences(), *shifts]
    if not fit.loaded:
        return f"is from another model: no tensor fits ({', '.join(wrong[:3])}, ...)"
    if complete and wrong:
        return (
            f"is not from this model: {shorten_list(wrong, 1)}. Give the recipe that the weights "
            "were trained with"
        )
    return None


def _frozen_problem(fit: Fit, model: nn.Module) -> str | None:
    """Return an error message if the file does not fill every frozen parameter, else None."""
    missing = fit.partly | fit.kept
    frozen = [
        f"{name} ({missing[name]})"
        for name, parameter in model.named_parameters()
        if not parameter.requires_grad and name in missing
    ]
    if not frozen:
        return None
    return (
        f"lacks parameters that TRAIN.FREEZE freezes: {shorten_list(frozen, 1)} would stay random. "
        "Freeze fewer parameters"
    )


def _shift_differences(model: nn.Module, shifted: frozenset[str] | None) -> list[str]:
    """Return a list with a message if file and model shift channels in different blocks, else [].

    A comparison of tensors cannot find this difference, because a shift has no parameters.
    """
    here = {name for name, m in model.named_modules() if isinstance(m, ShiftedConv3d)}
    if shifted is None or shifted == here:
        return []
    return [
        f"the file's model shifts channels in {len(shifted)} blocks, but this model in "
        f"{len(here)} (MODEL.ARCH tsm shifts in every block, or in no block with TSM.SHIFT_DIV 0)"
    ]
