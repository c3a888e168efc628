"""Fitting given weights to a model: which of its tensors they fill, wholly, partly or not."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["Fit", "fit_weights"]

_HEAD = "head."

_BEHIND_LATERAL = re.compile(r"s(\d)\.pathway0_res0\.(branch1|branch2\.a)\.weight")
"""Convolutions that see what a lateral connection adds to the slow pathway's channels."""

_PARTS = {
    "fast pathway": re.compile(r"s\d\.pathway1_"),
    "lateral connections": re.compile(r"s\d_fuse\."),
    "non-local blocks": re.compile(r"s\d\.pathway\d_nonlocal"),
    "head": re.compile(r"head\."),
    "other weights": re.compile(""),
}
"""Parts of a model that a file may lack, by the names of their tensors; the first that fits."""

_NAMES_SHOWN = 3


@dataclass
class Fit:
    """What became of each tensor, by name; counters of batches are loaded and not listed.

    values: what the model's tensors become; of `partly` filled ones, with their initial rest.
    loaded, partly, unused: names; `partly` with what was taken.
    missing: names of the model's that are not in the file.
    misfit: names that are in both, of another shape, with the two.
    flat: names of 2-D convolutions that are an image model's, and repeated along time.
    """

    values: dict[str, Tensor] = field(default_factory=dict)
    loaded: list[str] = field(default_factory=list)
    partly: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    misfit: dict[str, str] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    flat: tuple[str, ...] = ()

    def differences(self) -> list[str]:
        """What is not the same in the file and in the model."""
        return [
            *(f"lacks {name}" for name in self.missing),
            *(f"has only {part} of {name}" for name, part in self.partly.items()),
            *self.misfit.values(),
            *(f"has {name} beside them" for name in self.unused),
        ]

    def report(self) -> str:
        """A line of totals, then one for each group of tensors with the reason and a few names."""
        kept = len(self.missing) + len(self.misfit)
        groups: dict[str, list[str]] = {part: [] for part in _PARTS}
        for name in self.missing:
            groups[next(part for part, names in _PARTS.items() if names.match(name))].append(name)
        head = [reason for name, reason in self.misfit.items() if name.startswith(_HEAD)]
        others = [reason for reason in self.misfit.values() if reason not in head]
        partly = [f"{name} ({part})" for name, part in self.partly.items()]
        lines = [
            f"{len(self.loaded)} tensors loaded, {len(partly)} partly, {kept} kept at their "
            f"initial values, {len(self.unused)} unused in the file",
            self.flat and f"repeated along time: {len(self.flat)} convolutions",
            partly and f"partly, behind lateral connections: {_some(partly)}",
            *head[:1],
            others and f"of another shape: {_some(others, '; ')}",
            *(
                names and f"{part}: {len(names)} tensors, not in the file: {_some(names)}"
                for part, names in groups.items()
            ),
            self.unused and f"unused: {_some(self.unused)}",
        ]
        return "\n  ".join(str(line) for line in lines if line)


def _some(items: Sequence[str], separator: str = ", ") -> str:
    more = len(items) - _NAMES_SHOWN
    return separator.join(items[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


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
    flat = [n for n, w in wanted.items() if n in given and (given[n].ndim, w.ndim) == (4, 5)]
    fit = Fit(flat=tuple(flat))
    left = {n: v for n, v in given.items() if not (flat and n.startswith(_HEAD))}
    for name, now in wanted.items():
        # Not listed: older files do not have counters, and the host never reads them.
        listed = not name.endswith(".num_batches_tracked")
        if name not in left:
            fit.missing += [name] * listed
            continue
        value = left[name].to(now.device, now.dtype)
        if name in fit.flat:
            length = now.shape[2]
            value = value.unsqueeze(2).repeat(1, 1, length, 1, 1) / length
        own = _channels_before_fusion(name, wanted)
        if value.shape == now.shape:
            fit.values[name] = value
            fit.loaded += [name] * listed
        elif own and value.shape == now[:, :own].shape:
            fit.values[name] = torch.cat([value, now[:, own:]], 1)
            fit.partly[name] = f"{own} of {now.shape[1]} input channels"
        else:
            fit.misfit[name] = _shapes(name, left[name], now)
    _drop_part_of_head(fit)
    fit.unused += [n for n in given if n not in wanted or n not in left]
    return fit


def _channels_before_fusion(name: str, wanted: Mapping[str, Tensor]) -> int:
    """Input channels of a convolution without those that a lateral connection adds; 0: none are.

    The host concatenates the slow pathway's channels first, then the fused ones.
    """
    match = _BEHIND_LATERAL.fullmatch(name)
    fusion = f"s{int(match[1]) - 1}_fuse.conv_f2s.weight" if match else ""
    return wanted[name].shape[1] - wanted[fusion].shape[0] if fusion in wanted else 0


def _drop_part_of_head(fit: Fit) -> None:
    """A bias without its weights says nothing."""
    if any(name.startswith(_HEAD) for name in fit.misfit):
        for name in [n for n in fit.loaded if n.startswith(_HEAD)]:
            fit.loaded.remove(name)
            del fit.values[name]
            fit.misfit[name] = f"{name}: left with the rest of the head"


def _shapes(name: str, given: Tensor, wanted: Tensor) -> str:
    if name.startswith(_HEAD) and given.ndim and len(given) != len(wanted):
        return f"{name}: {len(given)} classes there, {len(wanted)} here"
    return f"{name}: {tuple(given.shape)} there, {tuple(wanted.shape)} here"
