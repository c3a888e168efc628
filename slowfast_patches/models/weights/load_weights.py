"""Loading of weights into a model: read a file, then rename, match and report the tensors."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from slowfast_patches.models.weights.names import host_names
from slowfast_patches.models.weights.weight_files import format_of, local_file, read_weights
from slowfast_patches.seams import WEIGHT_NAMES
from slowfast_patches.utils.errors import UserError
from slowfast_patches.utils.tables import shorten_list

logger = logging.getLogger(__name__)

_COUNTER = ".num_batches_tracked"
"""Suffix of BN's counters. They are not reported, because old files lack them and nothing uses
them."""
_HEADS = ("head.", "classifier.", "fc.")
"""Prefixes of the layer that gives the scores. It depends on the classes of the data."""
_BEHIND_LATERAL = re.compile(r"s\d\.pathway0_res0\.(branch1|branch2\.a)\.weight")
"""Convolutions whose input has additional channels from a lateral connection in SlowFast."""


def check_file(path: str | Path) -> None:
    """Check that a weight file exists and has the right format, without reading the weights.

    If `path` is an https address, the file is downloaded.

    Raises:
        ValueError: The file does not exist, cannot be downloaded, or has another format.
    """
    format_of(local_file(path))


def load_weights(
    model: nn.Module,
    path: str | Path,
    *,
    inflate: bool = False,
    complete: bool = False,
    least: float = 0.0,
) -> None:
    """Load weights from a file into a model and log which tensors were loaded.

    The file may be a checkpoint of this package or of later PySlowFast releases, a plain state
    dict, a ResNet with torchvision's names, a Caffe2 checkpoint, or what an extra can read. No code
    in the file is run. If the file has a different number of classes, the head of the model keeps
    its initial values.

    Args:
        model: A PySlowFast model, with or without grouped BN.
        path: The file, or an https address, from which the file is downloaded once.
        inflate: Repeat 2-D convolutions along time, as in TRAIN.CHECKPOINT_INFLATE.
        complete: Require that the file and the model have the same tensors, and that the names in
            the file show no other difference.
        least: Smallest share of the weights of the model, without its head, that the file must
            fill, as in TRAIN.CHECKPOINT_SHARE.

    Raises:
        ValueError: The file cannot be read, no tensor or too few tensors in the file fit the model,
            or a value is not finite. Or the file is an image model and `inflate` is False. Or the
            file lacks a frozen parameter. Or `complete` is True and the file and the model differ.
    """
    wanted = model.state_dict()
    tensors = read_weights(local_file(path))
    fit = fit_weights(host_names(tensors, wanted.keys()), wanted)
    for _, problems in WEIGHT_NAMES:
        fit.problems |= problems(tensors, model)
    trained = trained_tensors(model).keys()
    used = [(name, value) for name, value in fit.values.items() if name in trained]
    problem = _problem(fit, model, inflate, complete) or _too_few(fit, model, least)
    if problem := problem or not_finite(used):
        raise UserError(f"{path} {problem}.")
    model.load_state_dict(fit.values, strict=False)
    if inflate and not fit.inflated:
        logger.warning("TRAIN.CHECKPOINT_INFLATE True has no effect: %s has no 2-D kernels.", path)
    logger.info("%s: %s", path, fit.report())


def _problem(fit: Fit, model: nn.Module, inflate: bool, complete: bool) -> str:
    """Return why the weights in a file do not fit the model, or "" if they fit."""
    problems = [f"{name}: {problem}" for name, problem in fit.problems.items()]
    if not fit.loaded:
        return f"is from another model: no tensor fits ({shorten_list(problems)})"
    if fit.inflated and not inflate:
        return (
            f"has weights of an image model: the kernel of {fit.inflated[0]} is 2-D. Set "
            "TRAIN.CHECKPOINT_INFLATE True to repeat 2-D kernels"
        )
    if complete and problems:
        return (
            f"is not from this model: {shorten_list(problems, 1)}. Give the recipe that the "
            "weights were trained with"
        )
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    if random := sorted(frozen & fit.problems.keys()):
        return (
            f"lacks parameters that TRAIN.FREEZE freezes: {shorten_list(random, 1)} would stay "
            "random. Freeze fewer parameters"
        )
    return ""


def _too_few(fit: Fit, model: nn.Module, least: float) -> str:
    """Return an error text if a file fills too little of a model without its head, or ""."""
    sizes = {
        name: value.numel()
        for name, value in trained_tensors(model).items()
        if not name.startswith(_HEADS)
    }
    filled = [name for name in sizes if name in fit.values]
    share = sum(map(sizes.__getitem__, filled)) / max(1, sum(sizes.values()))
    if share >= least:
        return ""
    problems = [f"{name}: {text}" for name, text in fit.problems.items() if name in sizes]
    return (
        f"fills only {100 * share:.2g} % of the model without its head ({len(filled)} of "
        f"{len(sizes)} tensors). The others keep random values: {shorten_list(problems, 5)}. Give "
        f"weights of this model, or set TRAIN.CHECKPOINT_SHARE {share / 2:.1g} to start from "
        "these few"
    )


@dataclass
class Fit:
    """Result of matching the tensors in a file to the tensors of a model.

    Attributes:
        values: Maps the name of each tensor that is loaded to its new value.
        problems: Maps the name of each other tensor in the model or in the file, and of each tensor
            that is loaded only in part, to the reason.
        inflated: Names of 2-D convolutions in the file that were repeated along time.
    """

    values: dict[str, Tensor] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    inflated: list[str] = field(default_factory=list)

    @property
    def loaded(self) -> list[str]:
        """Names of the tensors that the file fills completely. BN's counters are not included."""
        return [n for n in self.values if n not in self.problems and not n.endswith(_COUNTER)]

    def report(self) -> str:
        """Return the number of loaded tensors, and a line for each reason why others are not."""
        names = defaultdict[str, list[str]](list)
        for name, problem in self.problems.items():
            names[problem].append(name)
        lines = [f"{len(self.loaded)} tensors loaded, {len(self.inflated)} repeated along time"]
        lines += [f"{len(of)} {problem}: {shorten_list(of)}" for problem, of in names.items()]
        return "\n  ".join(lines)


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and the BN running statistics of a model.

    Other buffers are constants. They may be infinite, such as an attention mask.
    """
    statistics = {name: value for name, value in model.named_buffers() if "running_" in name}
    return {**dict(model.named_parameters()), **statistics}


def not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return a text that names the tensors with NaN or infinite values, or "" if there are none."""
    names = [name for name, tensor in tensors if not tensor.isfinite().all()]
    return f"has values that are not finite in {shorten_list(names)}" if names else ""


def fit_weights(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Fit:
    """Match given tensors to the tensors of a model.

    - The kernel of a 2-D convolution is repeated along time and divided by the number of
      repetitions. A clip of identical frames then gives the same features as a single frame
      (Carreira and Zisserman, 2017).
    - A convolution after a lateral connection may have more input channels in the model than in the
      file. PySlowFast puts the channels of the lateral connection last. Their weights keep their
      initial values.

    Args:
        given: Tensors under PySlowFast's names.
        wanted: State dict of the model with its initial values.
    """
    fit = Fit()
    for name, initial in wanted.items():
        if name not in given:
            if not name.endswith(_COUNTER):
                fit.problems[name] = "not in the file"
            continue
        value = given[name].to(initial)
        if (value.ndim, initial.ndim) == (4, 5):
            value = value.unsqueeze(2).repeat(1, 1, initial.shape[2], 1, 1) / initial.shape[2]
            fit.inflated.append(name)
        lateral = _BEHIND_LATERAL.fullmatch(name)
        if value.shape == initial.shape:
            fit.values[name] = value
        elif lateral and value.shape == initial[:, : value.shape[1]].shape:
            channels = value.shape[1]
            fit.values[name] = torch.cat([value, initial[:, channels:]], 1)
            fit.problems[name] = f"loaded for {channels} of {initial.shape[1]} input channels"
        else:
            shapes = tuple(given[name].shape), tuple(initial.shape)
            fit.problems[name] = f"of shape {shapes[0]} in the file, {shapes[1]} in the model"
    fit.problems |= {name: "not in the model" for name in given if name not in wanted}
    return fit
