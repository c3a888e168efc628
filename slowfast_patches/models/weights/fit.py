"""Matching of the tensors in a file to the tensors of a model."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from slowfast_patches.utils.tables import shorten_list

_HEAD = "head."
_COUNTER = ".num_batches_tracked"
"""Suffix of BN's counters. They are not reported, because old files lack them and nothing uses
them."""

_BEHIND_LATERAL = re.compile(r"s(\d)\.pathway0_res0\.(branch1|branch2\.a)\.weight")
"""Convolutions whose input has additional channels from a lateral connection."""

_PARTS = re.compile("pathway1|fuse|nonlocal|head")
"""Parts of a model. The report groups the tensors that are not loaded by these parts."""


@dataclass
class Fit:
    """Result of matching the tensors in a file to the tensors of a model.

    Attributes:
        values: Maps the name of each tensor that is loaded to its new value.
        partly: Maps the name of each tensor that the file fills only in part to a description of
            this part.
        kept: Maps the name of each tensor that keeps its initial value to the reason.
        unused: Names of tensors in the file that the model does not use.
        inflated: Names of 2-D convolutions in the file that were repeated along time.
    """

    values: dict[str, Tensor] = field(default_factory=dict)
    partly: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    inflated: list[str] = field(default_factory=list)

    @property
    def loaded(self) -> list[str]:
        """Names of the tensors that the file fills completely. BN's counters are not included."""
        return [n for n in self.values if n not in self.partly and not n.endswith(_COUNTER)]

    def differences(self) -> list[str]:
        """Return a text for each tensor that is missing or different in the file or the model."""
        others = [f"{name}: {reason}" for name, reason in (self.partly | self.kept).items()]
        return others + [f"{name}: not in the model" for name in self.unused]

    def report(self) -> str:
        """Return a line with the number of loaded tensors, then lines about all other tensors."""
        lines = [
            f"{len(self.loaded)} tensors loaded, {len(self.partly)} partly, {len(self.kept)} kept "
            f"at their initial values, {len(self.unused)} unused in the file"
        ]
        if self.inflated:
            lines.append(f"repeated along time: {len(self.inflated)} convolutions")
        if self.partly:
            lines.append(
                f"partly: {shorten_list([f'{n} ({part})' for n, part in self.partly.items()])}"
            )
        groups = defaultdict[str, list[str]](list)
        for name, reason in self.kept.items():
            part = _PARTS.search(name)
            groups[f"{part[0] if part else 'others'}, {reason}"].append(name)
        lines += [
            f"{part}: {len(names)} tensors: {shorten_list(names)}" for part, names in groups.items()
        ]
        if self.unused:
            lines.append(f"unused: {shorten_list(self.unused)}")
        return "\n  ".join(lines)


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
      file. The weights of the additional channels keep their initial values.
    - A head is loaded completely or not at all. The head of an image model is never loaded.

    Args:
        given: Tensors under PySlowFast's names.
        wanted: State dict of the model with its initial values.
    """
    fit = Fit()
    fit.inflated += [
        n for n, w in wanted.items() if n in given and (given[n].ndim, w.ndim) == (4, 5)
    ]
    usable = {n: v for n, v in given.items() if not (fit.inflated and n.startswith(_HEAD))}
    for name, initial in wanted.items():
        if name not in usable:
            if not name.endswith(_COUNTER):
                fit.kept[name] = "not in the file"
            continue
        value = usable[name].to(initial)
        if name in fit.inflated:
            value = value.unsqueeze(2).repeat(1, 1, initial.shape[2], 1, 1) / initial.shape[2]
        channels = _channels_before_fusion(name, wanted)
        if value.shape == initial.shape:
            fit.values[name] = value
        elif channels and value.shape == initial[:, :channels].shape:
            fit.values[name] = torch.cat([value, initial[:, channels:]], 1)
            fit.partly[name] = f"{channels} of {initial.shape[1]} input channels"
        else:
            shapes = tuple(usable[name].shape), tuple(initial.shape)
            fit.kept[name] = f"of shape {shapes[0]} in the file, {shapes[1]} in the model"
    # Do not load a bias of a head without the weights.
    if any(name.startswith(_HEAD) for name in fit.kept):
        for name in [name for name in fit.values if name.startswith(_HEAD)]:
            del fit.values[name]
            fit.kept[name] = "not loaded because the rest of the head is not"
    fit.unused += [name for name in given if name not in wanted or name not in usable]
    return fit


def _channels_before_fusion(name: str, wanted: Mapping[str, Tensor]) -> int:
    """Return the number of input channels of a convolution that precede the lateral channels.

    PySlowFast concatenates the channels of a lateral connection after the other input channels.

    Returns:
        The number of channels, or 0 if the convolution has no lateral input.
    """
    match = _BEHIND_LATERAL.fullmatch(name)
    fusion = f"s{int(match[1]) - 1}_fuse.conv_f2s.weight" if match else ""
    return wanted[name].shape[1] - wanted[fusion].shape[0] if fusion in wanted else 0
