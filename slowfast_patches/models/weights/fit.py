"""Fitting given weights to a model: which of its tensors they fill, wholly, partly or not."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["Fit", "fit_weights", "not_finite"]

_HEAD = "head."
_COUNTER = ".num_batches_tracked"
"""Counters are loaded and not reported: older files lack them, and the host never reads them."""

_BEHIND_LATERAL = re.compile(r"s(\d)\.pathway0_res0\.(branch1|branch2\.a)\.weight")
"""Convolutions that see what a lateral connection adds to the slow pathway's channels."""

_PARTS = re.compile("pathway1|fuse|nonlocal|head")
"""Parts of a model that a file may lack, by the names of their tensors."""

_NAMES_SHOWN = 3


@dataclass
class Fit:
    """What became of each tensor, by name.

    values: what the model's tensors become; of `partly` filled ones, with their initial rest.
    partly: which part was taken.
    kept: why a tensor keeps its initial values.
    unused: names of the file's.
    flat: names of 2-D convolutions that are an image model's, and repeated along time.
    """

    values: dict[str, Tensor] = field(default_factory=dict)
    partly: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    flat: list[str] = field(default_factory=list)

    @property
    def loaded(self) -> list[str]:
        """Names of the tensors that are wholly the file's."""
        return [n for n in self.values if n not in self.partly and not n.endswith(_COUNTER)]

    def differences(self) -> list[str]:
        """What is not the same in the file and in the model."""
        others = [f"{name}: {reason}" for name, reason in (self.partly | self.kept).items()]
        return others + [f"{name}: not in the model" for name in self.unused]

    def report(self) -> str:
        """A line of totals, then one for each part of the model that is not loaded."""
        lines = [
            f"{len(self.loaded)} tensors loaded, {len(self.partly)} partly, {len(self.kept)} kept "
            f"at their initial values, {len(self.unused)} unused in the file"
        ]
        if self.flat:
            lines.append(f"repeated along time: {len(self.flat)} convolutions")
        if self.partly:
            lines.append(f"partly: {_some([f'{n} ({part})' for n, part in self.partly.items()])}")
        groups = defaultdict[str, list[str]](list)
        for name, reason in self.kept.items():
            part = _PARTS.search(name)
            groups[f"{part[0] if part else 'others'}, {reason}"].append(name)
        lines += [f"{part}: {len(names)} tensors: {_some(names)}" for part, names in groups.items()]
        if self.unused:
            lines.append(f"unused: {_some(self.unused)}")
        return "\n  ".join(lines)


def _some(items: Sequence[str]) -> str:
    more = len(items) - _NAMES_SHOWN
    return ", ".join(items[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the names of tensors that have NaN or infinity, as a reason to refuse them; or ""."""
    names = [name for name, tensor in tensors if not tensor.isfinite().all()]
    return f"has values that are not finite in {_some(names)}" if names else ""


def fit_weights(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Fit:
    """Fill the tensors of a model.

    - A 2-D convolution is repeated along time and divided by the temporal kernel's length, so that
      a clip that stands still gives what its frame gives (Carreira and Zisserman, 2017).
    - Where a lateral connection adds channels behind those that a single pathway has, the weights
      of these are taken, and the added ones' keep their initial values.
    - A head fits as a whole or not at all, and an image model's is not taken.

    Args:
        given: by the host's names.
        wanted: the model's state dict, with its initial values.
    """
    fit = Fit()
    fit.flat += [n for n, w in wanted.items() if n in given and (given[n].ndim, w.ndim) == (4, 5)]
    left = {n: v for n, v in given.items() if not (fit.flat and n.startswith(_HEAD))}
    for name, now in wanted.items():
        if name not in left:
            if not name.endswith(_COUNTER):
                fit.kept[name] = "not in the file"
            continue
        value = left[name].to(now)
        if name in fit.flat:
            value = value.unsqueeze(2).repeat(1, 1, now.shape[2], 1, 1) / now.shape[2]
        own = _channels_before_fusion(name, wanted)
        if value.shape == now.shape:
            fit.values[name] = value
        elif own and value.shape == now[:, :own].shape:
            fit.values[name] = torch.cat([value, now[:, own:]], 1)
            fit.partly[name] = f"{own} of {now.shape[1]} input channels"
        else:
            fit.kept[name] = f"{tuple(left[name].shape)} there, {tuple(now.shape)} here"
    if any(name.startswith(_HEAD) for name in fit.kept):  # a bias without its weights says nothing
        for name in [name for name in fit.values if name.startswith(_HEAD)]:
            del fit.values[name]
            fit.kept[name] = "left with the rest of the head"
    fit.unused += [name for name in given if name not in wanted or name not in left]
    return fit


def _channels_before_fusion(name: str, wanted: Mapping[str, Tensor]) -> int:
    """Input channels of a convolution without those that a lateral connection adds; 0: none are.

    The host concatenates the slow pathway's channels first, then the fused ones.
    """
    match = _BEHIND_LATERAL.fullmatch(name)
    fusion = f"s{int(match[1]) - 1}_fuse.conv_f2s.weight" if match else ""
    return wanted[name].shape[1] - wanted[fusion].shape[0] if fusion in wanted else 0
